//! The next new segment: how many bytes of it may leave now, what holds it back, and its first
//! transmission.
//!
//! Above: `output`, the tail loss probe and the persist timer, which send new data, and
//! `loss::retransmit`, which asks whether there is some. RFC 9293 §3.7.4 and §3.8.6.2.1,
//! RFC 5681 §3.1; Linux: tcp_snd_wnd_test, tcp_cwnd_test, tcp_nagle_test, tcp_tso_should_defer.
//!
//! Not here: the loop over new segments (`output`), the pace and the limit of what waits below
//! (`pacing`, `small_queue`).

use core::time::Duration;

use crate::{
    base::counters::Counter,
    cx::Cx,
    segment,
    tcb::{Tcb, TcbFlags, recovery::CaState, send_queue::entry::EntryFlags, timers},
    wire::seq::SeqNum,
};

/// Longest wait of a part of a superframe for the ACK that lets more of it go.
const SUPERFRAME_WAIT_MAX: Duration = Duration::from_millis(1);

/// Why transmission of new data stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// Nothing is left to send.
    Nothing,
    /// `cwnd` is full.
    Congestion,
    /// The peer's window is full, or holds back a small segment (RFC 9293 §3.8.6.2.1).
    Window,
    /// Nagle, cork, or waiting for a fuller superframe.
    Hold,
    /// The pace.
    Pace,
    /// Enough waits below TCP.
    HostQueue,
    /// No packet memory.
    Memory,
}

/// Index of the next new entry and how many of its payload bytes may leave in one packet, at most `burst`.
pub(crate) fn next_len(tcb: &Tcb, cx: &Cx<'_>, burst: u32) -> Result<(usize, u32), Blocked> {
    let Some((index, entry)) = tcb.send_queue.first_unsent() else { return Err(Blocked::Nothing) };
    let mss = tcb.mss.effective();
    let window = window_left(tcb, entry.seq);
    let limited = tcb.recovery.limited_transmit_segments() * mss;
    let congestion = (tcb.congestion.cwnd() + limited).saturating_sub(tcb.pipe());
    let mut limit = window.min(congestion).min(burst);
    if tcb.flags.contains(TcbFlags::URGENT_OUT) {
        // Each segment carries a pointer of its own.
        limit = limit.min(mss);
    }
    let fin = entry.flags.contains(EntryFlags::FIN);
    let room = window.min(congestion);
    let fits = entry.len <= limit;
    if fits && entry.len > mss && room < burst {
        // As good as cut, as long as more may be written to it. Linux asks for that behind the windows, and only then.
        let grows = tcb.send_queue.is_tail(index) && (!entry.is_closed() || entry.len == room);
        if grows && defer_superframe(tcb, cx, room) {
            return Err(deferred(congestion <= window && entry.len == room));
        }
    }
    if fits && entry.seq_len() <= window {
        return hold_small(tcb, index, entry.len, fin);
    }
    if fits && entry.len > 0 {
        // The data fits and its FIN does not: the FIN follows alone.
        return Ok((index, entry.len));
    }
    let whole = limit - limit % mss;
    if whole == 0 {
        // RFC 9293 §3.8.6.2.1 (3): less than a segment only if it is half of the largest window seen.
        if window < mss && window > 0 && window >= tcb.mss.max_window() / 2 && congestion >= window
        {
            return Ok((index, window));
        }
        return Err(if window < mss { Blocked::Window } else { Blocked::Congestion });
    }
    if whole < burst && defer_superframe(tcb, cx, room) {
        return Err(deferred(congestion <= window));
    }
    Ok((index, whole))
}

/// New data may leave now.
pub(crate) fn has_sendable(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    next_len(tcb, cx, tcb.mss.transmit_max()).is_ok()
}

/// Bytes of the peer's window from `seq` on.
fn window_left(tcb: &Tcb, seq: SeqNum) -> u32 {
    // The SYN-ACK of a connection that is open early takes nothing of what the peer's SYN offered.
    let end = tcb.snd_una + tcb.snd_wnd + u32::from(tcb.is_open_early());
    if end.gt(seq) { end.since(seq) } else { 0 }
}

/// Nagle's rule with Minshall's reading (RFC 9293 §3.7.4): a small segment waits while an earlier small one is not
/// acknowledged; with `TCP_CORK` or `MSG_MORE` it waits anyway. Only the tail can be small, and a FIN ends all waiting.
fn hold_small(tcb: &Tcb, index: usize, len: u32, fin: bool) -> Result<(usize, u32), Blocked> {
    let mss = tcb.mss.effective();
    let small = len % mss;
    let pushed = fin || tcb.flags.intersects(TcbFlags::URGENT_OUT | TcbFlags::PUSH_HELD);
    if small == 0 || pushed || !tcb.send_queue.is_tail(index) {
        return Ok((index, len));
    }
    let unacked_small = tcb.snd_sml.gt(tcb.snd_una) && tcb.snd_sml.le(tcb.snd_nxt);
    let cork = tcb.flags.intersects(TcbFlags::CORK | TcbFlags::MORE | TcbFlags::MID_WRITE);
    let nagle =
        !tcb.flags.contains(TcbFlags::NODELAY) && tcb.send_queue.sent_count() > 0 && unacked_small;
    if !cork && !nagle {
        return Ok((index, len));
    }
    if len > small { Ok((index, len - small)) } else { Err(Blocked::Hold) }
}

/// What a superframe waits for: more of the congestion window, or more of something else.
const fn deferred(cwnd_limited: bool) -> Blocked {
    if cwnd_limited { Blocked::Congestion } else { Blocked::Hold }
}

/// A part of a superframe waits for the next ACK when that will let a fuller one go: cutting it now would turn the
/// rest of the transfer into small packets. Linux: tcp_tso_should_defer.
fn defer_superframe(tcb: &Tcb, cx: &Cx<'_>, limit: u32) -> bool {
    let divisor = u32::from(cx.config.tcp_tso_win_divisor);
    let open = matches!(tcb.recovery.state(), CaState::Open | CaState::Cwr);
    if divisor == 0 || !open || tcb.send_queue.sent_count() == 0 {
        return false;
    }
    if cx.now - tcb.last_sent_at > SUPERFRAME_WAIT_MAX {
        return false;
    }
    // The next ACK answers the oldest segment. Half a round trip is too long to wait for it, and so is more than a millisecond.
    let srtt = tcb.rtt.srtt().unwrap_or(Duration::ZERO);
    let patience = (srtt / 2).min(SUPERFRAME_WAIT_MAX);
    if tcb.send_queue.head().is_some_and(|head| head.sent_at + srtt > cx.now + patience) {
        return false;
    }
    limit < tcb.snd_wnd.min(tcb.congestion.cwnd()) / divisor
}

/// First transmission of `len` payload bytes of entry `index`, which is cut when it holds more.
pub(crate) fn send_first(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize, len: u32) -> bool {
    let entry = tcb.send_queue.entry(index);
    let fin_fits = entry.seq_len() <= window_left(tcb, entry.seq);
    let cut = entry.len > len || (entry.seq_len() > len && !fin_fits);
    if cut && !tcb.send_queue.split(cx.pool, index, len) {
        return false;
    }
    if !segment::transmit(tcb, cx, index) {
        return false;
    }
    let entry = tcb.send_queue.entry(index);
    let segments = entry.len.div_ceil(tcb.mss.effective()).max(1);
    if !entry.len.is_multiple_of(tcb.mss.effective()) {
        tcb.snd_sml = entry.end_seq();
    }
    note_first(tcb, cx, index, segments);
    true
}

/// Entry `index` has left for the first time, as so many segments.
pub(crate) fn note_first(tcb: &mut Tcb, cx: &Cx<'_>, index: usize, segments: u32) {
    let entry = tcb.send_queue.entry(index);
    tcb.snd_nxt = entry.end_seq();
    tcb.persist_backoff = 0;
    tcb.totals.bytes_sent += u64::from(entry.len);
    if entry.len > 0 {
        tcb.totals.data_segs_out = tcb.totals.data_segs_out.wrapping_add(segments);
        cx.counters.add(Counter::TcpExtTCPOrigDataSent, u64::from(segments));
    }
    cx.counters.add(Counter::TcpOutSegs, u64::from(segments));
    if !tcb.timers.is_watching() {
        timers::arm_rto(tcb, cx);
    }
}

/// Sends what Nagle, a cork or a small window holds back, as far as the window has room; `false` when it has none.
/// The persist timer calls it: nothing waits for ever.
pub(crate) fn send_held(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    let Some((index, entry)) = tcb.send_queue.first_unsent() else { return false };
    let window = window_left(tcb, entry.seq);
    let len = entry.len.min(window).min(tcb.mss.effective());
    if window == 0 || (len == 0 && entry.len > 0) {
        return false;
    }
    send_first(tcb, cx, index, len)
}
