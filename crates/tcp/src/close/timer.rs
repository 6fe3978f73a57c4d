//! Expiry of a connection's timers.
//!
//! Above: the stack's timer wheel. Below: `loss`, `segment::ack_compression` and `keepalive` handle
//! most timers. The delayed ACK, zero window probes and FIN-WAIT-2 are handled here. RFC 9293 §3.8,
//! RFC 6298 §5, RFC 1122 §4.2.3; Linux: net/ipv4/tcp_timer.c.
//!
//! Not here: the deadlines themselves (`tcb::timers`), the retransmission timeout
//! (`loss::retransmit`), keepalive and the idle timeout (`keepalive`).

use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    close::keepalive,
    cx::Cx,
    loss::{recovery, retransmit, tlp},
    segment::{self, ack_compression, next},
    tcb::{
        Tcb, TcbFlags,
        timers::{RtxPurpose, arm_persist, persist_wait},
    },
};

/// Handles every deadline that is due at `cx.now`. The caller calls [`output`](crate::output())
/// afterwards.
pub fn on_timer(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.timers.pacing <= cx.now {
        // The following `output` call sends the paced segments.
        tcb.timers.stop_pacing();
    }
    if tcb.timers.delack <= cx.now {
        on_delack(tcb, cx);
    }
    if tcb.timers.rtx <= cx.now {
        match tcb.timers.purpose {
            RtxPurpose::Retransmit => retransmit::on_rto(tcb, cx),
            RtxPurpose::LossProbe => tlp::on_timer(tcb, cx),
            RtxPurpose::Reorder => recovery::on_reorder_timer(tcb, cx),
            RtxPurpose::Persist => on_persist(tcb, cx),
        }
    }
    if tcb.timers.keep <= cx.now {
        tcb.timers.stop_keep();
        match tcb.state {
            State::FinWait2 if tcb.flags.contains(TcbFlags::ORPHAN) => on_fin_wait_2(tcb, cx),
            State::TimeWait => tcb.finish(cx, None),
            _ => keepalive::on_timer(tcb, cx),
        }
    }
}

/// Handles the delayed-ACK timer. Schedules the delayed ACK, because within its delay no second
/// segment arrived and no data segment carried the ACK (RFC 9293 §3.8.6.3). If a compressed ACK
/// waits for this timer, sends it instead.
fn on_delack(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.timers.stop_delack();
    if tcb.ack_compression.is_waiting() && tcb.state != State::Close {
        ack_compression::release(tcb, cx);
        return;
    }
    if !tcb.ack.is_pending() || tcb.state == State::Close {
        return;
    }
    tcb.ack.on_delack_timeout(tcb.rtt.rto());
    cx.count(Counter::TcpExtDelayedACKs);
    tcb.ack.schedule_now();
}

/// Ends an orphan whose peer has not sent a FIN. Linux: tcp_keepalive_timer in TCP_FIN_WAIT2.
fn on_fin_wait_2(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.finish(cx, None);
}

/// Handles the persist timer: sends held-back data if the window has room, else probes whether the
/// window has opened, as long as the peer answers (RFC 9293 §3.8.6.1).
fn on_persist(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.timers.stop_rtx();
    if tcb.send_queue.sent_count() > 0 || tcb.send_queue.first_unsent().is_none() {
        tcb.probes_out = 0;
        return;
    }
    if probes_exhausted(tcb, cx) {
        cx.count(Counter::TcpExtTCPAbortOnTimeout);
        tcb.finish(cx, Some(tcb.soft_error.unwrap_or(TcpError::TimedOut)));
        return;
    }
    tcb.send_queue.mark_held_pushed();
    if next::send_held(tcb, cx) {
        // The window had room, and a cork, Nagle, a window below a segment or missing memory held
        // the data back. Up to one segment is sent now, and the RTO is armed.
        return;
    }
    segment::send_probe(tcb, cx);
    tcb.count_probe(cx.now);
    tcb.persist_backoff = tcb.persist_backoff.saturating_add(1);
    cx.count(Counter::TcpExtTCPWinProbe);
    arm_persist(tcb, cx);
}

/// Returns whether the probes have reached R2, the limit at which a connection ends. Except for
/// orphans, probes are counted since the last ACK of any kind: a connection whose peer answers
/// stays open (RFC 9293 §3.8.6.1).
fn probes_exhausted(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    if let Some(limit) = tcb.user_timeout
        && tcb.probes_out > 0
        && cx.now - tcb.probe_since >= limit
    {
        return true;
    }
    if tcb.flags.contains(TcbFlags::ORPHAN) {
        // No application waits for this data, so a peer must not hold the connection forever with a
        // closed window.
        let alive = persist_wait(tcb) < tcb.rtt.rto_max();
        return tcb.persist_backoff >= retransmit::orphan_retries(tcb, cx.config, alive);
    }
    tcb.probes_out >= cx.config.tcp_retries2
}
