//! Explicit congestion notification: the agreement of the handshake, the echo of marks, and the
//! answer to an echo.
//!
//! Above: the handshake (`open::syn`, `open::request`), `input::ecn`, and `segment`, which sends
//! the bits. RFC 3168 §6.1, RFC 8257 §3.2; Linux: tcp_ecn.h.
//!
//! ```text
//!   data, ECT ──► router marks CE ──► receiver: ECE on every ACK ──► sender: window reduced once,
//!        ◄─────────────────── CWR on the next new data ends the echo ◄───────┘
//! ```
//!
//! Nothing here trusts the path. A peer that echoes without end costs one reduction per window. A
//! path that clears marks makes ECN useless and does no other harm. A path that drops SYNs with ECN
//! bits costs one retransmission (`tcp_ecn_fallback`). A SYN-ACK that repeats our own bits is a
//! reflection, not an agreement.
//!
//! Only new data is ECN-capable: a mark on anything else could be lost without notice
//! (RFC 3168 §6.1.4–6.1.6). With DCTCP every segment is, because its routers drop segments that are
//! not.
//!
//! Not here: marks that arrive (`input::ecn`), the reduction that an echo causes (`loss`,
//! `congestion`), AccECN, the bits of the IP header (crate stack).

use bitflags::bitflags;
use pkt::{Ecn, Packet};

use crate::{
    congestion::Algorithm,
    cx::config::TcpConfig,
    tcb::Tcb,
    wire::header::{Flags, SegmentHeader},
};

/// A SYN that asks for ECN (RFC 3168 §6.1.1).
pub(crate) const ECN_SETUP: Flags = Flags::ECE.union(Flags::CWR);

bitflags! {
    /// Where a connection stands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EcnState: u8 {
        /// Both sides speak it; between SYN and SYN-ACK: we asked.
        const AGREED = 1;
        /// The peer sent something ECN-capable.
        const SEEN = 1 << 1;
        /// A mark came in and the peer has not said that it reduced: every ACK carries ECE.
        const ECHO = 1 << 2;
        /// The window was reduced: the next new data carries CWR.
        const OWES_CWR = 1 << 3;
        /// DCTCP.CE: the last data segment was marked.
        const CE = 1 << 4;
    }
}

/// The control bits of our SYN; `retransmission` of one that may have been dropped because it asked for ECN (RFC 3168
/// §6.1.1.1).
pub(crate) fn offer(tcb: &mut Tcb, config: &TcpConfig, retransmission: bool) -> Flags {
    let wanted = config.tcp_ecn == 1 || tcb.congestion.algorithm().needs_ecn();
    let offered = wanted && !(retransmission && config.tcp_ecn_fallback);
    tcb.ecn.set(EcnState::AGREED, offered);
    if offered { ECN_SETUP } else { Flags::empty() }
}

/// Whether a SYN from a peer makes an ECN connection. `codepoint` is that of its IP header: a SYN that arrives ECN-capable
/// comes through something that writes these bits as it likes.
pub(crate) fn accepts(
    config: &TcpConfig,
    algorithm: Algorithm,
    syn: &SegmentHeader,
    codepoint: Ecn,
) -> bool {
    let intact = codepoint == Ecn::NotEct && config.tcp_ecn != 0;
    syn.flags.contains(ECN_SETUP) && (intact || algorithm.needs_ecn())
}

/// The window was reduced, for whatever reason: the peer is told (RFC 3168 §6.1.2).
pub(crate) fn on_reduced(tcb: &mut Tcb) {
    if tcb.ecn.contains(EcnState::AGREED) {
        tcb.ecn |= EcnState::OWES_CWR;
    }
}

/// The segment echoes a mark.
pub(crate) fn is_echo(tcb: &Tcb, header: &SegmentHeader) -> bool {
    tcb.ecn.contains(EcnState::AGREED) && header.has(Flags::ECE) && !header.has(Flags::SYN)
}

/// Sets the bits of a segment of a synchronized connection. `new_data` when it is the first transmission of its payload.
pub(crate) fn dress(
    tcb: &mut Tcb,
    packet: &mut Packet,
    header: &mut SegmentHeader,
    new_data: bool,
) {
    if !tcb.ecn.contains(EcnState::AGREED) || header.has(Flags::RST) {
        return;
    }
    let dctcp = tcb.congestion.algorithm().needs_ecn();
    if new_data || dctcp {
        packet.meta_mut().ecn = Ecn::Ect0;
    }
    if new_data && tcb.ecn.contains(EcnState::OWES_CWR) {
        tcb.ecn.remove(EcnState::OWES_CWR);
        header.flags |= Flags::CWR;
    }
    let echo = if dctcp { EcnState::CE } else { EcnState::ECHO };
    header.flags.set(Flags::ECE, tcb.ecn.contains(echo));
}
