//! A deadline of a connection has passed.
//!
//! Above: the stack's timer wheel. Below: each slot has a step of its own in `loss`,
//! `segment::ack_compression` or `keepalive`; probes of a closed window are here. RFC 9293 §3.8,
//! RFC 6298 §5, RFC 1122 §4.2.3; Linux: net/ipv4/tcp_timer.c.
//!
//! Not here: the deadlines as data (`tcb::timers`), the retransmission timeout
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

/// Handles every deadline that is due at `cx.now`, and none that is not. The caller calls [`output`](crate::output()) after it.
pub fn on_timer(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    if tcb.timers.pacing <= cx.now {
        // The output that follows sends what waited.
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

/// RFC 9293 §3.8.6.3: no second segment came and the application sent nothing to carry the ACK.
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

/// An orphan's peer never sent its FIN. Linux: tcp_keepalive_timer in TCP_FIN_WAIT2.
fn on_fin_wait_2(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    tcb.finish(cx, None);
}

/// RFC 9293 §3.8.6.1: ask whether the window opened, for as long as somebody answers.
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
        // The window had room and a cork, Nagle or missing memory held the data: it is out, RTO watches it.
        return;
    }
    segment::send_probe(tcb, cx);
    if tcb.probes_out == 0 {
        tcb.probe_since = cx.now;
    }
    tcb.probes_out = tcb.probes_out.saturating_add(1);
    tcb.persist_backoff = tcb.persist_backoff.saturating_add(1);
    cx.count(Counter::TcpExtTCPWinProbe);
    arm_persist(tcb, cx);
}

/// R2 for probes: counted since the last ACK of any kind, as RFC 9293 §3.8.6.1 keeps a connection whose peer answers.
fn probes_exhausted(tcb: &Tcb, cx: &Cx<'_>) -> bool {
    if let Some(limit) = tcb.user_timeout
        && tcb.probes_out > 0
        && cx.now - tcb.probe_since >= limit
    {
        return true;
    }
    if tcb.flags.contains(TcbFlags::ORPHAN) {
        // Nobody waits for this data: a peer that keeps its window closed may not hold it for ever.
        let alive = persist_wait(tcb) < tcb.rtt.rto_max();
        return tcb.persist_backoff >= retransmit::orphan_retries(tcb, cx.config, alive);
    }
    tcb.probes_out >= cx.config.tcp_retries2
}
