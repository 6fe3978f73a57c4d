//! The next new segment: how many of its bytes may be sent now, why it is held back, and its first
//! transmission.
//!
//! Above: `output`, the tail loss probe and the persist timer, which send new data, and
//! `loss::retransmit`, which asks whether new data can be sent. RFC 9293 §3.7.4 and §3.8.6.2.1,
//! RFC 5681 §3.1; Linux: tcp_snd_wnd_test, tcp_cwnd_test, tcp_nagle_test, tcp_tso_should_defer.
//!
//! Not here: the loop over new segments (`output`), pacing and the limit of packets below TCP
//! (`pacing`, `small_queue`).

use core::time::Duration;

use crate::{
    base::counters::Counter,
    cx::Cx,
    segment,
    tcb::{Tcb, TcbFlags, recovery::CaState, send_queue::entry::EntryFlags, timers},
    wire::seq::SeqNum,
};

/// Longest time that a partial superframe (a packet of several segments, for GSO) waits for an ACK
/// that allows a larger one.
const SUPERFRAME_WAIT_MAX: Duration = Duration::from_millis(1);

/// Reason why the transmission of new data stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// No new data is queued.
    Nothing,
    /// `cwnd` is full.
    Congestion,
    /// The peer's window is full, or too small for a full segment (RFC 9293 §3.8.6.2.1).
    Window,
    /// Nagle's algorithm, a cork, or a superframe that is not full yet.
    Hold,
    /// Pacing.
    Pace,
    /// TCP Small Queues: too many packets of the connection are below TCP.
    HostQueue,
    /// No packet memory.
    Memory,
}

/// Returns the index of the next new entry and how many of its payload bytes may be sent in one
/// packet, at most `burst`.
pub(crate) fn next_len(tcb: &Tcb, cx: &Cx<'_>, burst: u32) -> Result<(usize, u32), Blocked> {
    let Some((index, entry)) = tcb.send_queue.first_unsent() else { return Err(Blocked::Nothing) };
    let mss = tcb.mss.effective();
    let window = window_left(tcb, entry.seq);
    let limited = tcb.recovery.limited_transmit_segments() * mss;
    let congestion = (tcb.congestion.cwnd() + limited).saturating_sub(tcb.pipe());
    let mut limit = window.min(congestion).min(burst);
    if tcb.flags.contains(TcbFlags::URGENT_OUT) {
        // Each segment has its own urgent pointer.
        limit = limit.min(mss);
    }
    let fin = entry.flags.contains(EntryFlags::FIN);
    let room = window.min(congestion);
    let fits = entry.len <= limit;
    if fits && entry.len > mss && room < burst {
        // The entry counts as partial while the application may append to it. Linux defers here
        // only after the tests of both windows.
        let grows = tcb.send_queue.is_tail(index) && (!entry.is_closed() || entry.len == room);
        if grows && defer_superframe(tcb, cx, room) {
            return Err(deferred(congestion <= window && entry.len == room));
        }
    }
    if fits && entry.seq_len() <= window {
        return hold_small(tcb, index, entry.len, fin);
    }
    if fits && entry.len > 0 {
        // The data fits and its FIN does not: the FIN is sent later, alone.
        return Ok((index, entry.len));
    }
    let whole = limit - limit % mss;
    if whole == 0 {
        // RFC 9293 §3.8.6.2.1 (3): a window below a segment is used only if it is at least half of
        // the largest window that the peer has announced.
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

/// Returns whether new data may be sent now.
pub(crate) fn has_sendable(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    next_len(tcb, cx, tcb.mss.transmit_max()).is_ok()
}

/// Returns the bytes of the peer's window from `seq` on.
fn window_left(tcb: &Tcb, seq: SeqNum) -> u32 {
    // A Fast Open server may send before its SYN-ACK is acknowledged. The SYN-ACK uses no space in
    // the window of the peer's SYN.
    let end = tcb.snd_una + tcb.snd_wnd + u32::from(tcb.is_open_early());
    if end.gt(seq) { end.since(seq) } else { 0 }
}

/// Applies Nagle's algorithm with Minshall's modification (RFC 9293 §3.7.4): a small segment waits
/// while an earlier small one is unacknowledged, and always with `TCP_CORK`, `MSG_MORE` or during a
/// write. Only the last entry waits, and never if it has a FIN, in urgent mode, or while
/// `PUSH_HELD` is set.
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

/// Returns the reason why a superframe waits: the congestion window, or another limit.
const fn deferred(cwnd_limited: bool) -> Blocked {
    if cwnd_limited { Blocked::Congestion } else { Blocked::Hold }
}

/// Returns whether a partial superframe waits for the next ACK, which will allow a fuller one. A
/// split now would leave small packets for the rest of the transfer. Linux: tcp_tso_should_defer.
fn defer_superframe(tcb: &Tcb, cx: &Cx<'_>, limit: u32) -> bool {
    let divisor = u32::from(cx.config.tcp_tso_win_divisor);
    let open = matches!(tcb.recovery.state(), CaState::Open | CaState::Cwr);
    if divisor == 0 || !open || tcb.send_queue.sent_count() == 0 {
        return false;
    }
    if cx.now - tcb.last_sent_at > SUPERFRAME_WAIT_MAX {
        return false;
    }
    // The next ACK answers the oldest segment. The wait for it is at most half a round trip and at
    // most a millisecond.
    let srtt = tcb.rtt.srtt().unwrap_or(Duration::ZERO);
    let wait_max = (srtt / 2).min(SUPERFRAME_WAIT_MAX);
    if tcb.send_queue.head().is_some_and(|head| head.sent_at + srtt > cx.now + wait_max) {
        return false;
    }
    limit < tcb.snd_wnd.min(tcb.congestion.cwnd()) / divisor
}

/// Sends `len` payload bytes of entry `index` for the first time, and splits the entry if it holds
/// more.
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

/// Updates the state after entry `index` was sent for the first time, as `segments` segments.
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
    if !tcb.timers.is_flight_timer_armed() {
        timers::arm_rto(tcb, cx);
    }
}

/// Sends at most one segment of data that Nagle's algorithm, a cork or a small window holds back,
/// as far as the window has space. Returns `false` if nothing was sent. The persist timer calls
/// this function, so that no data waits forever; the tail loss probe calls it, too.
pub(crate) fn send_held(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    let Some((index, entry)) = tcb.send_queue.first_unsent() else { return false };
    let window = window_left(tcb, entry.seq);
    let len = entry.len.min(window).min(tcb.mss.effective());
    if window == 0 || (len == 0 && entry.len > 0) {
        return false;
    }
    send_first(tcb, cx, index, len)
}
