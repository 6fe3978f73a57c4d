//! Transmission: one run sends every segment that may leave.
//!
//! Above: `stack::socket`, once per batch. Below: `segment` puts it on `cx.out`. RFC 9293 §3.8,
//! RFC 5681 §3.1; Linux: tcp_write_xmit, tcp_push_pending_frames.
//!
//! Order of one run: lost segments, new segments, then the ACK that is owed if no data carried it.
//! New data leaves in whole queue entries: an entry that holds more than the windows allow is cut
//! first.
//!
//! Not here: what is lost (`loss`), how much of the stream is the next segment (`segment::next`),
//! headers (`segment`).

mod mtu_probe;
mod predicted;

pub use predicted::output_nothing;

use pkt::Instant;

use self::mtu_probe::Probed;
use crate::{
    base::state::State,
    congestion::SendSample,
    cx::Cx,
    loss::retransmit,
    open::syn,
    segment::{
        self,
        next::{Blocked, has_sendable, next_len, send_first},
        pacing, small_queue,
    },
    tcb::{
        Tcb, TcbFlags, memory,
        timers::{self, RtxPurpose},
        totals,
    },
};

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
