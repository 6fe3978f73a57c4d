//! Recovery with SACK: RACK detects losses, and PRR controls the window (except with BBR).
//!
//! Above: `recovery::on_ack` and the reordering timer. RFC 8985, RFC 6675 (pipe), RFC 6937bis;
//! Linux: tcp_fastretrans_alert, tcp_rack_reo_timeout.
//!
//! Limited transmit needs no rule of its own: SACKed bytes do not count as in flight, so new data
//! can be sent.
//!
//! Not here: which transmissions are lost (`rack`), recovery without SACK (`recovery`).

use core::time::Duration;

use super::undo;
use crate::{
    base::counters::Counter,
    cx::Cx,
    loss::{rack, retransmit, tlp},
    tcb::{
        Tcb, TcbFlags,
        acked::Acked,
        ecn,
        recovery::{CaState, Undo},
    },
};

/// Processes an ACK. Returns the time until the reordering timer is due, if it must run.
pub(super) fn on_ack(
    tcb: &mut Tcb,
    cx: &Cx<'_>,
    acked: &Acked,
    rtt: Option<Duration>,
) -> Option<Duration> {
    rack::on_ack(tcb, cx, acked);
    tlp::on_ack(tcb, cx, acked);
    undo::on_ack(tcb, cx, acked);
    let undone = match tcb.recovery.state {
        CaState::Loss => undo::process_loss(tcb, cx, acked),
        _ => undo::process(tcb, cx, acked),
    };
    if undone {
        tcb.recovery.state = open_or_disorder(tcb);
    }
    if !tcb.recovery.state.is_calm() && super::is_over(tcb) {
        leave(tcb);
    }
    let found = rack::detect(tcb, cx);
    match tcb.recovery.state {
        CaState::Open | CaState::Disorder | CaState::Cwr if tcb.send_queue.lost_bytes() > 0 => {
            if !super::is_mtu_probe_loss(tcb, cx) {
                enter(tcb, cx, acked.delivered);
            }
        }
        CaState::Open | CaState::Disorder if acked.marked => {
            super::enter_cwr(tcb);
            tcb.congestion.on_recovery_ack(acked.delivered, tcb.pipe(), acked.bytes > 0);
        }
        CaState::Open | CaState::Disorder => {
            tcb.recovery.state = open_or_disorder(tcb);
            // `delivered` excludes data that an earlier SACK block reported, as in Linux.
            if acked.bytes > 0 {
                super::grow(tcb, cx, acked.delivered, rtt);
            }
        }
        CaState::Recovery | CaState::Cwr => {
            if acked.delivered > 0 {
                let safe = acked.bytes > 0 && !found.lost;
                tcb.congestion.on_recovery_ack(acked.delivered, tcb.pipe(), safe);
            }
        }
        CaState::Loss => {
            if acked.bytes > 0 {
                super::grow(tcb, cx, acked.delivered, rtt);
            }
        }
    }
    found.wait
}

/// Returns Open, or Disorder while the peer reports holes.
pub(super) fn open_or_disorder(tcb: &Tcb) -> CaState {
    if tcb.send_queue.sacked_bytes() > 0 { CaState::Disorder } else { CaState::Open }
}

/// Leaves recovery: all data that was in flight at its start is acknowledged.
fn leave(tcb: &mut Tcb) {
    tcb.congestion.on_recovery_complete();
    if tcb.recovery.state != CaState::Cwr {
        tcb.recovery.rack.on_recovery_end();
    }
    tcb.recovery.state = open_or_disorder(tcb);
}

/// Enters recovery after a loss, with one reduction for all data in flight.
fn enter(tcb: &mut Tcb, cx: &Cx<'_>, delivered: u32) {
    tcb.recovery.recover = tcb.snd_nxt;
    tcb.recovery.since = cx.now;
    tcb.recovery.state = CaState::Recovery;
    tcb.recovery.probe = None;
    tcb.recovery.undo = Some(Undo::new(tcb.snd_una));
    cx.count(Counter::TcpExtTCPSackRecovery);
    tcb.congestion.on_enter_sack_recovery();
    ecn::on_reduced(tcb);
    tcb.congestion.on_recovery_ack(delivered, tcb.pipe(), false);
}

/// Handles the expiry of the reordering timer: entries that are still missing are lost.
pub(crate) fn on_reorder_timer(tcb: &mut Tcb, cx: &Cx<'_>) {
    tcb.timers.stop_rtx();
    if tcb.send_queue.sent_count() == 0 || !tcb.flags.contains(TcbFlags::SACK) {
        return;
    }
    let found = rack::detect(tcb, cx);
    let calm = !tcb.recovery.state.is_repairing();
    if calm && tcb.send_queue.lost_bytes() > 0 && !super::is_mtu_probe_loss(tcb, cx) {
        enter(tcb, cx, 0);
    }
    retransmit::arm_flight_timer(tcb, cx, found.wait, false);
}
