//! The receive window: the number of bytes that the peer may send.
//!
//! Above: every transmitted segment announces a window; `input::sequence` asks for its remaining
//! part. RFC 9293 §3.8.6.2.2 (silly window avoidance), §3.8.6 (the announced right edge is kept),
//! RFC 7323 §2; Linux: __tcp_select_window, tcp_select_window.
//!
//! The right edge of an announced window never moves back, unless `tcp_shrink_window` allows it;
//! then data up to the highest edge ever announced is still accepted, because it may be in flight
//! (RFC 7323 §2.4; Linux: tcp_max_receive_window).
//!
//! Differs from Linux: the edge is kept even when memory has run out. If the edge moved back, a
//! peer with data in flight beyond it would have to guess whether that data was accepted. The peer
//! retransmits data that is dropped for lack of memory.
//!
//! Not here: the growth of the buffer (`tcb::receive_buffer`), data beyond the window
//! (`input::sequence`).

use crate::{
    base::counters::Counter,
    cx::Cx,
    tcb::{
        Tcb, TcbFlags,
        memory::{PRESSURE_SEGMENTS, rmem_alloc},
        receive_buffer::UNSCALED_MAX,
    },
    wire::seq::SeqNum,
};

/// Returns the remaining part of the announced window.
pub(crate) fn receive_window(tcb: &Tcb) -> u32 {
    let end = tcb.rcv_wup + tcb.rcv_wnd;
    if end.gt(tcb.rcv_nxt) { end.since(tcb.rcv_nxt) } else { 0 }
}

/// Returns the highest right edge ever announced.
pub(crate) fn highest_edge(tcb: &Tcb) -> SeqNum {
    if tcb.flags.contains(TcbFlags::RETRACTED) {
        tcb.retracted_edge
    } else {
        tcb.rcv_wup + tcb.rcv_wnd
    }
}

/// Returns the number of bytes from RCV.NXT on that are accepted: those before the highest right
/// edge ever announced (RFC 7323 §2.4, the first rule for receivers).
pub(crate) fn acceptable_window(tcb: &Tcb) -> u32 {
    let end = highest_edge(tcb);
    if end.gt(tcb.rcv_nxt) { end.since(tcb.rcv_nxt) } else { 0 }
}

/// Returns the window for the free memory of the buffer.
pub(crate) fn free_window(tcb: &Tcb) -> u32 {
    let buffer = &tcb.receive_buffer;
    buffer.window_of(buffer.rcvbuf().saturating_sub(rmem_alloc(tcb)))
}

/// Returns the smallest window that is not silly: one segment of the peer, or the whole buffer.
pub(crate) fn least_window(tcb: &Tcb) -> u32 {
    tcb.ack.rcv_mss().min(tcb.receive_buffer.window_clamp())
}

/// Returns the window that the free buffer allows, and 0 rather than a silly window
/// (RFC 9293 §3.8.6.2.2). A scaled window is a multiple of its scale unit; the edge of an unscaled
/// one moves by whole segments.
///
/// `ssthresh` never reduces the window below one segment: `ssthresh` grows only with arriving data,
/// and a closed window admits none.
pub(crate) fn wanted_window(tcb: &Tcb) -> u32 {
    let buffer = &tcb.receive_buffer;
    let free = free_window(tcb);
    let full = buffer.window_clamp();
    let mss = least_window(tcb);
    if free < full / 2 && (free < full / 16 || free < mss) {
        return 0;
    }
    let free = free.min(full).min(buffer.ssthresh().max(mss));
    if tcb.rcv_wscale > 0 {
        // Rounds up to a multiple of the unit of the window scale.
        let below = (1 << tcb.rcv_wscale) - 1;
        return (free + below) & !below;
    }
    // Unscaled: move the edge by whole segments only, unless the window is below one segment.
    let current = tcb.rcv_wnd;
    if current <= free.saturating_sub(mss) || current > free || current < mss {
        free - free % mss.max(1)
    } else {
        current
    }
}

/// Chooses the window of the segment to be sent and returns its 16-bit field.
pub(crate) fn select_window(tcb: &mut Tcb, cx: &Cx<'_>) -> u16 {
    let before = tcb.rcv_wnd;
    if !cx.memory.is_plenty() {
        tcb.receive_buffer.note_scarcity(true, PRESSURE_SEGMENTS);
        tcb.ack.stop_quick();
    }
    let current = receive_window(tcb);
    let mut window = wanted_window(tcb);
    let may_shrink = cx.config.tcp_shrink_window && tcb.rcv_wscale > 0;
    if window < current && !may_shrink {
        // The edge never moves back (RFC 9293 §3.8.6).
        if window == 0 {
            cx.count(Counter::TcpExtTCPWantZeroWindowAdv);
        }
        window = current.next_multiple_of(1 << tcb.rcv_wscale);
    }
    let field = (window >> tcb.rcv_wscale).min(UNSCALED_MAX);
    announce(tcb, field << tcb.rcv_wscale, may_shrink);
    match (before, tcb.rcv_wnd) {
        (0, 1..) => cx.count(Counter::TcpExtTCPFromZeroWindowAdv),
        (1.., 0) => cx.count(Counter::TcpExtTCPToZeroWindowAdv),
        _ => {}
    }
    u16::try_from(field).unwrap_or(u16::MAX)
}

/// Records that the segment to be sent announces `window` bytes from RCV.NXT on.
fn announce(tcb: &mut Tcb, window: u32, may_shrink: bool) {
    let (highest, last) = (highest_edge(tcb), tcb.rcv_wup + tcb.rcv_wnd);
    tcb.rcv_wnd = window;
    tcb.rcv_wup = tcb.rcv_nxt;
    let edge = tcb.rcv_wup + window;
    debug_assert!(may_shrink || edge.ge(last) || tcb.flags.contains(TcbFlags::RETRACTED));
    let retracted = edge.lt(highest);
    tcb.flags.set(TcbFlags::RETRACTED, retracted);
    if tcb.flags.contains(TcbFlags::HAS_RETRACTED) && tcb.rcv_nxt.gt(tcb.retracted_edge) {
        // Data beyond the retracted edge shows that the peer has received a later window.
        tcb.flags -= TcbFlags::HAS_RETRACTED;
    }
    if retracted {
        let known = tcb.flags.contains(TcbFlags::HAS_RETRACTED);
        tcb.retracted_to = if known { tcb.retracted_to.min(edge) } else { edge };
        tcb.flags |= TcbFlags::HAS_RETRACTED;
        tcb.retracted_edge = highest;
    }
}

/// Returns the window of a duplicate ACK: the previous one, although more may be free by now. The
/// peer treats an ACK that changes the window as a window update (RFC 5681 §2), and would not count
/// it as a duplicate.
pub(crate) fn hold_window(tcb: &mut Tcb, cx: &Cx<'_>) -> u16 {
    if tcb.rcv_nxt != tcb.rcv_wup {
        return select_window(tcb, cx);
    }
    u16::try_from(tcb.rcv_wnd >> tcb.rcv_wscale).unwrap_or(u16::MAX)
}

impl Tcb {
    /// Schedules a window update if it is worth a segment: the remaining window is at most half of
    /// the upper bound, and the update at least doubles it (RFC 9293 §3.8.6.2.2; Linux
    /// `__tcp_cleanup_rbuf`).
    pub(crate) fn schedule_window_update(&mut self) {
        if !self.state.may_receive() {
            return;
        }
        let window = receive_window(self);
        if window <= self.receive_buffer.window_clamp() / 2 {
            let wanted = wanted_window(self);
            if wanted > 0 && wanted / 2 >= window {
                self.ack.schedule_now();
            }
        }
    }
}
