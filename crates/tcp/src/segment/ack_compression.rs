//! Answers to out-of-order segments: ACKs are sent at once while they indicate a loss to the
//! sender, and are compressed afterwards.
//!
//! Above: `input::data`, and `close::timer` when the delayed-ACK timer expires. Below: `segment`
//! sends. RFC 5681 §4.2, RFC 2018 §4; Linux: __tcp_ack_snd_check, tcp_sack_compress_send_ack.
//!
//! Fast retransmit needs three duplicate ACKs, so the first three of a hole are sent at once. Later
//! duplicate ACKs only report further arrivals, and one ACK can report many segments: it waits for
//! a twentieth of the round-trip time, at most `tcp_comp_sack_delay`, and for at most
//! `tcp_comp_sack_nr` segments. Without SACK the sender counts duplicates, so every ACK is sent.
//!
//! Not here: ACKs of data in order (`tcb::delayed_ack`), the choice of SACK blocks
//! (`tcb::sack_report`).

use core::time::Duration;

use crate::{
    cx::Cx,
    segment,
    tcb::{Tcb, TcbFlags},
};

/// Duplicate ACKs that are sent at once for each hole (Linux `TCP_FASTRETRANS_THRESH`).
const DUP_ACKS_AT_ONCE: u8 = 3;

/// Divisor of the round-trip time: a compressed ACK waits for a twentieth of it.
const RTT_DIVISOR: u32 = 20;

/// Answers an out-of-order segment: sends an ACK, or leaves the answer to the compressed ACK.
pub(crate) fn answer(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if compress(tcb, cx) {
        return;
    }
    if !segment::send_duplicate_ack(tcb, cx) {
        tcb.ack.schedule_now();
    }
}

/// Arms the timer of the compressed ACK if the answer may wait; returns whether it may.
fn compress(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
    let rcv_nxt = tcb.rcv_nxt;
    let state = &mut tcb.ack_compression;
    if !tcb.flags.contains(TcbFlags::SACK) || state.compressed >= cx.config.tcp_comp_sack_nr {
        return false;
    }
    // An ACK with a D-SACK is not delayed, because the D-SACK is reported only once. In quick-ACK
    // mode no ACK is delayed.
    if tcb.ack.is_quick() || tcb.ack.is_now() || tcb.sack_report.has_duplicate() {
        return false;
    }
    if state.rcv_nxt != rcv_nxt {
        (state.rcv_nxt, state.dup_acks) = (rcv_nxt, 0);
    }
    if state.dup_acks < DUP_ACKS_AT_ONCE {
        state.dup_acks += 1;
        return false;
    }
    let wait = delay(tcb, cx);
    if wait.is_zero() {
        return false;
    }
    tcb.ack_compression.compressed += 1;
    let deadline = cx.now + wait;
    if tcb.timers.delack().is_none_or(|armed| deadline < armed) {
        tcb.timers.arm_delack(deadline);
    }
    true
}

/// Returns the time that an answer may wait: the sender must receive it within the same round trip.
fn delay(tcb: &Tcb, cx: &Cx<'_>) -> Duration {
    let mut rtt = tcb.receive_buffer.rtt();
    if let Some(srtt) = tcb.rtt.srtt() {
        rtt = rtt.min(srtt);
    }
    (rtt / RTT_DIVISOR).min(cx.config.tcp_comp_sack_delay)
}

/// Sends the compressed ACK: its timer has expired, or a block would be discarded before it was
/// reported.
pub(crate) fn release(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.ack_compression.on_timeout();
    if !segment::send_ack(tcb, cx) {
        tcb.ack.schedule_now();
    }
}
