//! Transmit: what may leave, and when.
//!
//! Above: `stack::socket`, once per batch. Below: `segment` puts it on `cx.out`. RFC 9293 §3.8, RFC 5681 §3.1; Linux:
//! tcp_write_xmit, tcp_push_pending_frames.
//!
//! Order of one run: what is lost, what is new, then the ACK that is owed if no data carried it. New data leaves in
//! whole queue entries: one that holds more than the windows allow is cut first.
//!
//! Not here: what is lost (`recovery`), headers (`segment`), the window we announce (`receive_window`).

mod mtu_probe;
mod predicted;

pub use predicted::output_nothing;

use core::time::Duration;

use pkt::Instant;

use crate::{
    base::{counters::Counter, state::State},
    congestion::SendSample,
    cx::Cx,
    open::syn,
    output::mtu_probe::Probed,
    pacing, retransmit, segment, small_queue,
    tcb::{
        Tcb, TcbFlags, memory,
        recovery::CaState,
        send_queue::EntryFlags,
        timers::{self, RtxPurpose},
        totals,
    },
    wire::seq::SeqNum,
};

/// Longest wait of a part of a superframe for the ACK that lets more of it go.
const SUPERFRAME_WAIT_MAX: Duration = Duration::from_millis(1);

/// Sends everything that may leave: retransmissions, new data, and the ACK that is owed.
///
/// The caller runs it once after a batch of `input`, `on_timer` and application calls, and again when packet memory
/// or transmit room came back.
#[inline]
pub fn output(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if !predicted::transmit(tcb, cx) {
        output_all(tcb, cx);
    }
}

/// [`output`], whatever it may find. Apart from its short form, whose frame is small.
#[inline(never)]
fn output_all(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.flags.contains(TcbFlags::WRITE_SUPPRESSED) && !memory::suppresses_send(tcb, cx) {
        tcb.flags -= TcbFlags::WRITE_SUPPRESSED;
    }
    // Whatever has to wait arms it anew.
    tcb.timers.stop_pacing();
    syn::poll_syn(tcb, cx);
    let may_transmit = tcb.state.may_transmit() || tcb.is_open_early();
    if may_transmit && !tcb.send_queue.is_empty() {
        retransmit::transmit_lost(tcb, cx);
        transmit_new(tcb, cx);
        arm_timers(tcb, cx);
    }
    if tcb.ack.is_pending() {
        send_owed_ack(tcb, cx);
    }
    totals::on_output(tcb, cx.now);
}

/// Where the application has only read since the last [`output`]: whether nothing follows from that. No ACK is owed, or one
/// that its timer has in hand, whatever time it is. What waits to be sent waits for the same as before: an acknowledgment, a
/// completion or a timer that is armed, each of which runs [`output`] by itself.
#[inline]
#[must_use]
pub fn is_settled_after_read(tcb: &Tcb) -> bool {
    !tcb.ack.is_now() && (!tcb.ack.is_pending() || tcb.timers.delack().is_some())
}

/// The delayed-ACK timer would fire so soon that what it costs to wait for it is worth nothing.
#[inline]
fn is_worth_sending(tcb: &Tcb, now: Instant, armed: Instant, wait_us: u64) -> bool {
    armed.nanos_since(now) <= wait_us * 250 && !tcb.ack_compression.is_waiting()
}

/// Lets the delayed-ACK timer send what is owed, and answers whether it may.
#[inline]
fn leave_to_timer(tcb: &mut Tcb, now: Instant) -> bool {
    let wait_us = u64::from(tcb.ack.delay_us(tcb.rtt.srtt_us()));
    let latest = now.plus_micros(wait_us);
    match tcb.timers.delack() {
        Some(armed) if is_worth_sending(tcb, now, armed, wait_us) => return false,
        Some(armed) if armed <= latest => {}
        _ => tcb.timers.arm_delack(latest),
    }
    true
}

/// An ACK that no data carried: at once, or by the delayed-ACK timer.
fn send_owed_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.state == State::Close || tcb.state == State::SynSent {
        tcb.ack.cancel();
        return;
    }
    if tcb.ack.is_now() {
        if !segment::send_ack(tcb, cx) {
            // No memory: the timer tries again.
            tcb.timers.arm_delack(cx.now + cx.config.tcp_delack_min);
        }
        return;
    }
    if !leave_to_timer(tcb, cx.now) {
        segment::send_ack(tcb, cx);
    }
}

/// In flight: RTO. Held back with nothing in flight: the persist timer, whatever holds it (Linux
/// tcp_check_probe_timer).
fn arm_timers(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.send_queue.sent_count() > 0 {
        if !tcb.timers.is_watching() {
            retransmit::arm_watch(tcb, cx, None, true);
        }
    } else if tcb.send_queue.first_unsent().is_some()
        && tcb.timers.rtx().is_none()
        && !tcb.timers.is_pacing()
    {
        timers::arm_persist(tcb, cx);
    }
}

/// Why transmission of new data stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
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

fn transmit_new(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.send_queue.first_unsent().is_none() {
        return;
    }
    restart_after_idle(tcb, cx);
    let before = tcb.snd_nxt;
    let written = tcb.flags.contains(TcbFlags::WRITTEN);
    tcb.flags -= TcbFlags::WRITTEN;
    let probed = mtu_probe::probe(tcb, cx);
    let burst = burst_max(tcb, cx);
    let blocked = loop {
        if probed == Probed::Wait {
            break Blocked::Hold;
        }
        match next_len(tcb, cx, burst) {
            Ok(_) if !pacing::admit(tcb, cx) => break Blocked::Pace,
            Ok((index, len)) => {
                if small_queue::is_full(tcb, cx, index, len, small_queue::Kind::New) {
                    break Blocked::HostQueue;
                }
                if written && small_queue::autocorks(tcb, cx, index, len) {
                    break Blocked::Hold;
                }
                if !send_first(tcb, cx, index, len) {
                    break Blocked::Memory;
                }
            }
            Err(blocked) => break blocked,
        }
    };
    if tcb.snd_nxt != before && tcb.timers.rtx() != Some(RtxPurpose::Reorder) {
        retransmit::arm_watch(tcb, cx, None, false);
    }
    tcb.flags.set(TcbFlags::HOST_LIMITED, blocked == Blocked::HostQueue);
    let cwnd_limited = blocked == Blocked::Congestion;
    tcb.flags.set(TcbFlags::CWND_LIMITED, cwnd_limited);
    let judged = tcb.recovery.state().is_calm() || tcb.congestion.algorithm().needs_pacing();
    if (tcb.snd_nxt != before || cwnd_limited) && judged {
        note_use(tcb, cx, cwnd_limited);
    }
}

/// How far this run has used the congestion window.
#[inline]
fn note_use(tcb: &mut Tcb, cx: &Cx<'_>, cwnd_limited: bool) {
    let trusted_for_ever = !cx.config.tcp_slow_start_after_idle;
    tcb.congestion.on_sent(&SendSample {
        now: cx.now,
        in_flight: tcb.pipe(),
        cwnd_limited,
        snd_una: tcb.snd_una,
        snd_nxt: tcb.snd_nxt,
        rto_us: if trusted_for_ever { u64::MAX } else { tcb.rtt.rto_us().into() },
    });
}

/// Payload bytes of one packet, in whole segments.
fn burst_max(tcb: &Tcb, cx: &Cx<'_>) -> u32 {
    let mss = tcb.mss.effective();
    // A request: no limit is below one segment, so none has to be worked out.
    if tcb.send_queue.write_seq().since(tcb.snd_nxt) <= mss {
        return mss;
    }
    pacing::burst_bytes(tcb, cx).min(half_window(tcb)).min(small_queue_burst(tcb, cx))
}

/// Half the congestion window in whole segments: no packet is larger, so that at least two are in flight and the ACK of
/// one is not waited for with nothing on the way (Linux: tcp_cwnd_test).
fn half_window(tcb: &Tcb) -> u32 {
    let mss = tcb.mss.effective();
    (tcb.congestion.cwnd() / mss / 2).max(1) * mss
}

/// What the limit of what waits below allows for one packet, in whole segments.
fn small_queue_burst(tcb: &Tcb, cx: &Cx<'_>) -> u32 {
    let mss = tcb.mss.effective();
    (small_queue::burst_max(cx) / mss).max(1).saturating_mul(mss)
}

/// RFC 5681 §4.1: a window nobody used for an RTO is no longer known to fit the path.
fn restart_after_idle(tcb: &mut Tcb, cx: &Cx<'_>) {
    let idle = cx.now - tcb.last_sent_at;
    let rto = tcb.rtt.rto();
    let is_idle = tcb.send_queue.sent_count() == 0 && idle > rto;
    // Only what leaves ends an idle time: a closed window is no reason to halve once more with every probe.
    if is_idle && cx.config.tcp_slow_start_after_idle && has_sendable(tcb, cx) {
        tcb.congestion.on_idle(idle, rto, cx.now);
        tcb.last_sent_at = cx.now;
    }
}

/// Index of the next new entry and how many of its payload bytes may leave in one packet, at most `burst`.
fn next_len(tcb: &Tcb, cx: &Cx<'_>, burst: u32) -> Result<(usize, u32), Blocked> {
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
fn send_first(tcb: &mut Tcb, cx: &mut Cx<'_>, index: usize, len: u32) -> bool {
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
