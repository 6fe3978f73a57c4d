//! Tail loss probe: when the tail of a flight stays unanswered, one segment asks.
//!
//! Above: `retransmit` arms it in place of the RTO, `close::timer` runs it. RFC 8985 §7; Linux:
//! tcp_schedule_loss_probe, tcp_send_loss_probe, tcp_process_tlp_ack.
//!
//! Nothing follows the last segments of a flight, so no SACK tells of their loss. A probe after two
//! round trips brings an answer that RACK can read, an RTO earlier. A probe that repeats the lost
//! segment repairs the loss before anything else detects it: the ACK that proves it lowers the
//! window.
//!
//! Not here: what the answer marks lost (`rack`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    base::counters::Counter,
    cx::Cx,
    loss::retransmit,
    segment::{self, next, pacing},
    tcb::{
        Tcb, TcbFlags,
        acked::Acked,
        ecn,
        recovery::{CaState, Probe},
        timers::{self, RtxPurpose},
    },
};

/// Added to two round trips so that an answer on its way is not overtaken (Linux `TCP_TIMEOUT_MIN`).
const MARGIN: Duration = Duration::from_millis(2);

/// When a probe is due, if the connection is in a state for one (RFC 8985 §7.2). `rto_at` bounds it.
pub(crate) fn deadline(tcb: &Tcb, cx: &Cx<'_>, rto_at: Instant) -> Option<Instant> {
    let srtt_us = tcb.rtt.srtt_us()?;
    let allowed = cx.config.tcp_early_retrans >= 3
        && tcb.flags.contains(TcbFlags::SACK)
        && matches!(tcb.recovery.state(), CaState::Open | CaState::Cwr)
        && tcb.recovery.probe.is_none()
        && tcb.recovery.timeouts() == 0
        && tcb.send_queue.sacked_bytes() == 0
        && tcb.send_queue.sent_count() > 0;
    if !allowed {
        return None;
    }
    // A lone segment's ACK may be delayed.
    let alone = tcb.snd_nxt.since(tcb.snd_una) <= tcb.mss.effective();
    let margin = if alone { cx.config.tcp_delack_max } else { MARGIN };
    let departed = pacing::all_departed(tcb, cx);
    Some((departed.plus_micros(2 * u64::from(srtt_us)) + margin).min(rto_at.max(departed)))
}

/// The probe timer ran out (RFC 8985 §7.3): new data if the peer's window has room, else the last segment again.
pub(crate) fn on_timer(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.timers.stop_rtx();
    if tcb.send_queue.sent_count() == 0 {
        return;
    }
    let end_before = tcb.snd_nxt;
    let new_data = next::send_held(tcb, cx);
    let probed = new_data || repeat_last(tcb, cx);
    if probed {
        tcb.recovery.probe = Some(Probe { end_seq: tcb.snd_nxt, is_retransmission: !new_data });
        debug_assert!(new_data == (tcb.snd_nxt != end_before));
        cx.count(Counter::TcpExtTCPLossProbes);
    }
    // RFC 8985 §7.3: the RTO counts from the probe, whose answer else would come too late.
    let rto_at = if probed { cx.now + tcb.rtt.rto() } else { timers::rto_deadline(tcb, cx) };
    tcb.timers.arm_rtx(RtxPurpose::Retransmit, rto_at);
}

fn repeat_last(tcb: &mut Tcb, cx: &mut Cx<'_>) -> bool {
    let mut index = tcb.send_queue.sent_count() - 1;
    if retransmit::still_in_host_queue(tcb, cx, index) {
        return false;
    }
    let (len, mss) = (tcb.send_queue.entry(index).len, tcb.mss.effective());
    if len > mss {
        let front = (len - 1) / mss * mss;
        if !tcb.send_queue.split(cx.pool, index, front) {
            return false;
        }
        index += 1;
    }
    if !segment::transmit(tcb, cx, index) {
        return false;
    }
    retransmit::count_retransmission(tcb, cx, index);
    true
}

/// RFC 8985 §7.4.2: did the probe repair a loss? Then the window owes a reduction.
pub(crate) fn on_ack(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) {
    let Some(probe) = tcb.recovery.probe else { return };
    if tcb.snd_una.lt(probe.end_seq) {
        return;
    }
    let both_arrived = acked.duplicate.is_some_and(|(_, end)| end == probe.end_seq);
    if !probe.is_retransmission || both_arrived {
        tcb.recovery.probe = None;
    } else if tcb.snd_una.gt(probe.end_seq) {
        tcb.recovery.probe = None;
        if tcb.recovery.state() == CaState::Open {
            cx.count(Counter::TcpExtTCPLossProbeRecovery);
            tcb.congestion.on_repaired_loss();
            ecn::on_reduced(tcb);
        }
    } else if acked.delivered == 0 && !acked.has_news {
        // A peer without D-SACK repeats its ACK for the copy.
        tcb.recovery.probe = None;
    }
}
