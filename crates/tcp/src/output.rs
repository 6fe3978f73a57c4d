//! Transmission: one call sends every segment that may be sent.
//!
//! Above: `stack::socket` calls [`output`] once per batch. Below: `segment` puts the packets on
//! `cx.out`. RFC 9293 §3.8, RFC 5681 §3.1; Linux: tcp_write_xmit, tcp_push_pending_frames.
//!
//! Order of one call: lost segments, new segments, then a pending ACK that no data segment carried.
//! New data is sent in whole queue entries; an entry larger than the windows allow is split first.
//!
//! Not here: loss detection (`loss`), the length of the next segment (`segment::next`), headers
//! (`segment`).

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

/// Sends everything that may be sent: retransmissions, new data, and a pending ACK.
///
/// The caller calls it once after a batch of `input`, `on_timer` and application calls, and again
/// when packet memory or transmit capacity is available again.
#[inline]
pub fn output(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if !predicted::transmit(tcb, cx) {
        output_all(tcb, cx);
    }
}

/// The slow path of [`output`], for every case that `predicted::transmit` does not handle. A
/// separate function, so that the fast path needs only a small stack frame.
#[inline(never)]
fn output_all(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.flags.contains(TcbFlags::WRITE_SUPPRESSED) && !memory::suppresses_send(tcb, cx) {
        tcb.flags -= TcbFlags::WRITE_SUPPRESSED;
    }
    // A segment that must wait for its departure time arms the pacing timer again.
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

/// Returns whether no output is needed after the application has only read. That is the case if no
/// ACK is pending, or only a delayed one whose timer is armed. Unsent data still waits for the same
/// event as before the read: an acknowledgment, a completion, or an armed timer, each of which
/// causes an [`output`] call.
#[inline]
#[must_use]
pub fn is_settled_after_read(tcb: &Tcb) -> bool {
    !tcb.ack.is_now() && (!tcb.ack.is_pending() || tcb.timers.delack().is_some())
}

/// Returns whether the delayed-ACK timer would expire so soon, within a quarter of the delay, that
/// sending the ACK now costs less than waiting. A compressed ACK always waits.
#[inline]
fn is_worth_sending(tcb: &Tcb, now: Instant, armed: Instant, wait_us: u64) -> bool {
    armed.nanos_since(now) <= wait_us * 250 && !tcb.ack_compression.is_waiting()
}

/// Leaves the pending ACK to the delayed-ACK timer. Returns false, without a change, if sending it
/// now costs less.
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

/// Sends a pending ACK that no data carried, at once or by the delayed-ACK timer.
fn send_owed_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.state == State::Close || tcb.state == State::SynSent {
        tcb.ack.cancel();
        return;
    }
    if tcb.ack.is_now() {
        if !segment::send_ack(tcb, cx) {
            // Without packet memory the timer tries again.
            tcb.timers.arm_delack(cx.now + cx.config.tcp_delack_min);
        }
        return;
    }
    if !leave_to_timer(tcb, cx.now) {
        segment::send_ack(tcb, cx);
    }
}

/// Arms the RTO if data is in flight. Arms the persist timer if nothing is in flight and unsent
/// data is held back for any reason but pacing (Linux: tcp_check_probe_timer).
fn arm_timers(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.send_queue.sent_count() > 0 {
        if !tcb.timers.is_flight_timer_armed() {
            retransmit::arm_flight_timer(tcb, cx, None, true);
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
        retransmit::arm_flight_timer(tcb, cx, None, false);
    }
    tcb.flags.set(TcbFlags::HOST_LIMITED, blocked == Blocked::HostQueue);
    let cwnd_limited = blocked == Blocked::Congestion;
    tcb.flags.set(TcbFlags::CWND_LIMITED, cwnd_limited);
    let judged = tcb.recovery.state().is_calm() || tcb.congestion.algorithm().needs_pacing();
    if (tcb.snd_nxt != before || cwnd_limited) && judged {
        note_use(tcb, cx, cwnd_limited);
    }
}

/// Informs congestion control how much of the window this call has used.
#[inline]
fn note_use(tcb: &mut Tcb, cx: &Cx<'_>, cwnd_limited: bool) {
    let never_expires = !cx.config.tcp_slow_start_after_idle;
    tcb.congestion.on_sent(&SendSample {
        now: cx.now,
        in_flight: tcb.pipe(),
        cwnd_limited,
        snd_una: tcb.snd_una,
        snd_nxt: tcb.snd_nxt,
        rto_us: if never_expires { u64::MAX } else { tcb.rtt.rto_us().into() },
    });
}

/// Returns the largest payload of one packet, in whole segments.
fn burst_max(tcb: &Tcb, cx: &Cx<'_>) -> u32 {
    let mss = tcb.mss.effective();
    // The unsent data fits into one segment, which every limit allows.
    if tcb.send_queue.write_seq().since(tcb.snd_nxt) <= mss {
        return mss;
    }
    pacing::burst_bytes(tcb, cx).min(half_window(tcb)).min(small_queue_burst(tcb, cx))
}

/// Returns half the congestion window in whole segments. Larger packets are not sent: with at least
/// two in flight, data is still on its way while the ACK of the first returns (Linux:
/// tcp_cwnd_test).
fn half_window(tcb: &Tcb) -> u32 {
    let mss = tcb.mss.effective();
    (tcb.congestion.cwnd() / mss / 2).max(1) * mss
}

/// Returns the payload that the TCP Small Queues limit allows for one packet, in whole segments.
fn small_queue_burst(tcb: &Tcb, cx: &Cx<'_>) -> u32 {
    let mss = tcb.mss.effective();
    (small_queue::burst_max(cx) / mss).max(1).saturating_mul(mss)
}

/// Reduces the congestion window after more than an RTO without transmission, because the window
/// may no longer match the network path (RFC 5681 §4.1).
fn restart_after_idle(tcb: &mut Tcb, cx: &Cx<'_>) {
    let idle = cx.now - tcb.last_sent_at;
    let rto = tcb.rtt.rto();
    let is_idle = tcb.send_queue.sent_count() == 0 && idle > rto;
    // The window is reduced only if data can be sent now. Otherwise, while the peer's window is
    // closed, every window probe would halve the congestion window.
    if is_idle && cx.config.tcp_slow_start_after_idle && has_sendable(tcb, cx) {
        tcb.congestion.on_idle(idle, rto, cx.now);
        tcb.last_sent_at = cx.now;
    }
}
