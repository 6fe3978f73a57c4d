//! Explicit congestion notification: its negotiation in the handshake, the echo of marks, and the
//! reaction to an echo.
//!
//! Above: the handshake (`open::syn`, `open::request`), `input::ecn`, and `segment`, which sends
//! the bits. RFC 3168 §6.1, RFC 8257 §3.2; Linux: tcp_ecn.h.
//!
//! 1. The sender marks packets with data as ECN-capable (ECT).
//! 2. A congested router changes the mark to CE.
//! 3. The receiver sets ECE on every ACK: the echo.
//! 4. The sender reduces its window once, and sets CWR on the next new data.
//! 5. The receiver ends the echo when CWR arrives.
//!
//! With DCTCP, ECE on an ACK says instead whether the acknowledged packets were marked.
//!
//! ECN does not rely on a cooperative network path or peer. A peer that echoes without end causes
//! one reduction per window. A path that clears marks makes ECN useless and does no other harm. A
//! path that drops SYNs with ECN bits costs one retransmission (`tcp_ecn_fallback`). A SYN-ACK that
//! repeats our own bits is a reflection, and ECN is not used.
//!
//! Only new data is ECN-capable: a mark on any other segment could be lost without notice
//! (RFC 3168 §6.1.4–6.1.6). With DCTCP every segment except resets and the SYN-ACK of a request
//! (`open::request`) is ECN-capable, because DCTCP routers drop other segments.
//!
//! Not here: received marks (`input::ecn`), the reduction that an echo causes (`loss`,
//! `congestion`), AccECN, the bits of the IP header (crate stack).

use bitflags::bitflags;
use pkt::{Ecn, Packet};

use crate::{
    congestion::Algorithm,
    cx::config::TcpConfig,
    tcb::Tcb,
    wire::header::{Flags, SegmentHeader},
};

/// Flags of a SYN that requests ECN (RFC 3168 §6.1.1).
pub(crate) const ECN_SETUP: Flags = Flags::ECE.union(Flags::CWR);

bitflags! {
    /// State of ECN on a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct EcnState: u8 {
        /// ECN is negotiated; between SYN and SYN-ACK: our SYN requested it.
        const AGREED = 1;
        /// The peer has sent an ECN-capable segment.
        const SEEN = 1 << 1;
        /// A mark has arrived and no CWR since: every ACK carries ECE.
        const ECHO = 1 << 2;
        /// The window was reduced: the next new data carries CWR.
        const OWES_CWR = 1 << 3;
        /// DCTCP.CE: the last data segment was marked.
        const CE = 1 << 4;
    }
}

/// Returns the ECN flags of our SYN. `retransmission` says whether an earlier SYN may have been
/// dropped because it requested ECN (RFC 3168 §6.1.1.1).
pub(crate) fn offer(tcb: &mut Tcb, config: &TcpConfig, retransmission: bool) -> Flags {
    let wanted = config.tcp_ecn == 1 || tcb.congestion.algorithm().needs_ecn();
    let offered = wanted && !(retransmission && config.tcp_ecn_fallback);
    tcb.ecn.set(EcnState::AGREED, offered);
    if offered { ECN_SETUP } else { Flags::empty() }
}

/// Returns whether a peer's SYN negotiates ECN. `codepoint` is the ECN field of its IP header. A
/// SYN must not be ECN-capable, so any other value than Not-ECT shows that the network path
/// rewrites the field. With DCTCP neither the field nor `tcp_ecn` matters.
pub(crate) fn accepts(
    config: &TcpConfig,
    algorithm: Algorithm,
    syn: &SegmentHeader,
    codepoint: Ecn,
) -> bool {
    let intact = codepoint == Ecn::NotEct && config.tcp_ecn != 0;
    syn.flags.contains(ECN_SETUP) && (intact || algorithm.needs_ecn())
}

/// Records that the window was reduced, for any reason, so that the peer is informed by CWR
/// (RFC 3168 §6.1.2).
pub(crate) fn on_reduced(tcb: &mut Tcb) {
    if tcb.ecn.contains(EcnState::AGREED) {
        tcb.ecn |= EcnState::OWES_CWR;
    }
}

/// Returns whether the segment echoes a mark.
pub(crate) fn is_echo(tcb: &Tcb, header: &SegmentHeader) -> bool {
    tcb.ecn.contains(EcnState::AGREED) && header.has(Flags::ECE) && !header.has(Flags::SYN)
}

/// Sets the ECN bits of a segment of a synchronized connection. `new_data` says whether its payload
/// is sent for the first time.
pub(crate) fn set_bits(
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
