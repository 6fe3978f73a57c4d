//! Sends a probe of the path MTU: the next bytes of the stream in one segment of the probed size.
//!
//! Above: `output`, before it sends new data. RFC 4821 §7.3 and §7.4; Linux: tcp_mtu_probe,
//! tcp_mtu_check_reprobe.
//!
//! Not here: the search, and its reaction to an answer or a loss (`tcb::mtu_probe`).

use crate::{
    cx::Cx,
    segment::{self, next},
    tcb::{Tcb, mtu_probe::Probe, recovery::CaState},
};

/// Congestion window in segments below which no probe is sent (Linux: 11 in tcp_mtu_probe).
const CWND_SEGMENTS_MIN: u32 = 11;

/// Result of [`probe`]: the next step of `output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probed {
    /// No probe is needed or possible: send as usual.
    No,
    /// A probe was sent.
    Sent,
    /// A probe is needed but the window is full: send nothing until an ACK makes room.
    Wait,
}

/// Sends the next bytes of the stream in one segment of the probed size, if the state allows a
/// probe (RFC 4821 §7.3–7.4).
pub(crate) fn probe(tcb: &mut Tcb, cx: &mut Cx<'_>) -> Probed {
    let Some(search) = &mut tcb.mtu_probing else { return Probed::No };
    let mss = tcb.mss.effective();
    let calm = tcb.recovery.state() == CaState::Open && tcb.reassembly.is_empty();
    if search.probe.is_some() || !calm || tcb.congestion.cwnd() < CWND_SEGMENTS_MIN * mss {
        return Probed::No;
    }
    let mtu = u32::midpoint(search.low, search.high);
    let len = tcb.mss.payload_of(mtu);
    if search.high - search.low < u32::from(cx.config.tcp_probe_threshold).max(1) || len <= mss {
        restart_search(tcb, cx);
        return Probed::No;
    }
    // Enough segments must follow the probe: their acknowledgment distinguishes its loss from the
    // loss of the whole flight.
    let needed = len + (u32::from(cx.config.tcp_reordering) + 1) * mss;
    let unsent = tcb.send_queue.write_seq().since(tcb.snd_nxt);
    if unsent < needed || tcb.snd_wnd < needed || len > tcb.congestion.cwnd() {
        return Probed::No;
    }
    let flight = tcb.snd_nxt.since(tcb.snd_una);
    if tcb.snd_wnd - flight.min(tcb.snd_wnd) < needed || tcb.pipe() + len > tcb.congestion.cwnd() {
        return if flight > 0 { Probed::Wait } else { Probed::No };
    }
    let start = tcb.snd_nxt;
    let index = tcb.send_queue.sent_count();
    if !tcb.send_queue.gather(cx.pool, len) || !segment::transmit_whole(tcb, cx, index) {
        return Probed::No;
    }
    next::note_first(tcb, cx, index, 1);
    if let Some(search) = &mut tcb.mtu_probing {
        search.probe = Some(Probe { start, end: start + len, mtu });
    }
    Probed::Sent
}

/// Restarts a finished search after `tcp_probe_interval`, because the path MTU may have grown
/// (RFC 4821 §7.2; Linux: tcp_mtu_check_reprobe).
fn restart_search(tcb: &mut Tcb, cx: &Cx<'_>) {
    let high = tcb.mss.searchable_mtu();
    if let Some(search) = &mut tcb.mtu_probing
        && cx.now - search.began_at >= cx.config.tcp_probe_interval
    {
        search.began_at = cx.now;
        search.high = high.max(search.low);
    }
}
