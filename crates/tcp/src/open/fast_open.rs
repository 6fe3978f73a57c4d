//! TCP Fast Open: data in the SYN of a peer whose address an earlier handshake has validated.
//!
//! Above: `stack::socket`, which keeps the client's cookies and limits a listener's Fast Open
//! connections whose handshake is incomplete. RFC 7413; Linux: net/ipv4/tcp_fastopen.c.
//!
//! A server gives every client address a cookie: a keyed hash that only this server can compute.
//! When a client sends its cookie and data in the SYN, the server proceeds as if the handshake were
//! complete: the data is readable at once, and the application may answer before the third segment
//! arrives.
//!
//! *Consequence for the application* (RFC 7413 §6): the network may duplicate a SYN after its
//! connection has ended, which opens a second connection with the same data. A server that enables
//! Fast Open accepts that a request may be executed twice.
//!
//! A client that may send data in its SYN holds the SYN until the first write
//! (`TCP_FASTOPEN_CONNECT`, `MSG_FASTOPEN`). A server that does not accept the data acknowledges
//! the SYN alone, and the client retransmits the data at once.
//!
//! Before RFC 7413 assigned an option kind, Fast Open used an experimental one (kind 254,
//! RFC 6994). Both forms are parsed. A server answers in the client's form, and a client whose
//! request in the standard form gets no cookie tries the experimental form once.
//!
//! Not here: the state of a connection that uses Fast Open (`tcb::fast_open`), the SYN with its
//! data (`open::syn`), and in `stack` the client's cookie cache, the pause after failures, and the
//! listener's limit.

pub mod keys;

use pkt::Packet;

use crate::{
    base::counters::Counter,
    cx::Cx,
    open::syn,
    tcb::{
        Tcb,
        fast_open::{FastOpenFailure, FastOpenResult, FastOpenState, SynPhase},
    },
    wire::{cookie::Cookie, header::SegmentHeader},
};

/// MSS assumed for a peer that announces none (RFC 9293 §3.7.1).
const MSS_UNKNOWN: u16 = 536;

/// Records whether the server accepted the data, from the SYN-ACK that established the connection
/// (RFC 7413 §4.2.1).
pub(crate) fn on_syn_ack(tcb: &mut Tcb, cx: &Cx<'_>, header: &SegmentHeader) {
    let lossy = tcb.recovery.handshake_was_lossy();
    let Some(state) = &mut tcb.fast_open else { return };
    // The server has accepted the data only if it acknowledges all of it.
    let taken = header.ack.ge(tcb.iss + 1 + state.syn_data);
    let offered = header.options.fast_open.filter(|cookie| !cookie.is_request());
    // A cookie is ignored if our SYN had no Fast Open option.
    let cookie = offered.filter(|_| state.cookie.is_some());
    let asked = state.cookie.filter(|cookie| cookie.is_request());
    state.result = Some(FastOpenResult {
        cookie,
        peer_mss: header.options.mss.unwrap_or(MSS_UNKNOWN),
        syn_dropped: lossy && cookie.is_none() && state.syn_data > 0 && !taken,
        refused: asked
            .filter(|_| !lossy && cookie.is_none())
            .map(|request| request.is_experimental()),
    });
    if state.syn_data == 0 {
        return;
    }
    state.taken = taken;
    state.failure = match (taken, lossy) {
        (true, _) => FastOpenFailure::None,
        (false, false) => FastOpenFailure::DataNotAcknowledged,
        (false, true) => FastOpenFailure::SynRetransmitted,
    };
    cx.count(if taken {
        Counter::TcpExtTCPFastOpenActive
    } else {
        Counter::TcpExtTCPFastOpenActiveFail
    });
}

/// Accepts the data of a SYN: the connection may send and receive from now on. `cookie` is the new
/// cookie for a client whose cookie is outdated; the SYN-ACK carries the new one.
pub(crate) fn accept(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    header: &SegmentHeader,
    packet: Packet,
    cookie: Option<Cookie>,
) {
    let len = u32::try_from(packet.len()).expect("a packet is shorter than 2^32 bytes");
    let mut state = FastOpenState::new(true, cookie, SynPhase::Left);
    state.syn_data = len;
    state.taken = len > 0;
    tcb.fast_open = Some(state);
    tcb.snd_wnd = u32::from(header.window);
    tcb.mss.on_window(tcb.snd_wnd);
    tcb.snd_wl1 = header.seq;
    tcb.congestion.set_mss(tcb.mss.effective());
    if len > 0 {
        tcb.rcv_nxt += len;
        tcb.totals.bytes_received += u64::from(len);
        tcb.receive_queue.push(cx.pool, packet);
    } else {
        cx.pool.free(packet);
    }
    tcb.rcv_wup = tcb.rcv_nxt;
    cx.count(Counter::TcpExtTCPFastOpenPassive);
    syn::send_syn(tcb, cx);
}
