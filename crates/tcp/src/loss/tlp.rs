//! Tail loss probe: one segment that solicits an ACK when the tail of a flight stays
//! unacknowledged.
//!
//! Above: `loss::retransmit` arms the probe timer in place of the RTO; `close::timer` calls
//! `on_timer` when it expires. RFC 8985 §7; Linux: tcp_schedule_loss_probe, tcp_send_loss_probe,
//! tcp_process_tlp_ack.
//!
//! No segment follows the tail of a flight, so no SACK reports its loss. A probe after two round
//! trips solicits an ACK from which RACK detects the loss earlier than the RTO would. If the probe
//! retransmits the only lost segment, the loss is repaired before any ACK could report it. The ACK
//! of such a probe therefore reduces the congestion window.
//!
//! Not here: loss detection from the ACK that the probe solicits (`rack`).

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

/// Time added to two round trips, so that the probe does not precede an ACK that is on its way
/// (Linux `TCP_TIMEOUT_MIN`).
const MARGIN: Duration = Duration::from_millis(2);

/// Returns the time at which a probe is due, if the state allows one (RFC 8985 §7.2). The probe is
/// not later than the RTO deadline `rto_at`, except while pacing delays the flight.
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
    // The peer may delay the ACK of a single segment.
    let alone = tcb.snd_nxt.since(tcb.snd_una) <= tcb.mss.effective();
    let margin = if alone { cx.config.tcp_delack_max } else { MARGIN };
    let departed = pacing::all_departed(tcb, cx);
    Some((departed.plus_micros(2 * u64::from(srtt_us)) + margin).min(rto_at.max(departed)))
}

/// Handles the expiry of the probe timer (RFC 8985 §7.3): sends new data if some is queued and the
/// peer's window has room, otherwise the last segment again.
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
    // RFC 8985 §7.3: the RTO restarts at the probe, so that it does not expire before the probe's
    // answer arrives.
    let rto_at = if probed { cx.now + tcb.rtt.rto() } else { timers::rto_deadline(tcb, cx) };
    tcb.timers.arm_rtx(RtxPurpose::Retransmit, rto_at);
}

/// Retransmits the last segment in flight. Returns `false` if the previous transmission of this
/// segment is still in a queue below TCP, or if packet memory is missing.
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

/// Ends the probe episode (RFC 8985 §7.4.2). If the probe repaired a loss, reduces the window.
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
    } else if acked.delivered == 0 && !acked.not_duplicate {
        // A peer without D-SACK answers the retransmitted segment with a duplicate ACK.
        tcb.recovery.probe = None;
    }
}
