//! Timers of a connection, as data.
//!
//! Above: the stack's timer wheel, which asks `next_deadline` and calls `on_timer`. Linux: net/ipv4/tcp_timer.c.
//! RFC 9293 §3.8, RFC 6298 §5, RFC 1122 §4.2.3.
//!
//! A deadline is a field: arming and moving one costs a store. The wheel may hold an earlier instant than the real
//! deadline; `on_timer` then does nothing and the wheel asks again, so that a bulk transfer moves its retransmission
//! deadline with every ACK and never touches the wheel.
//!
//! Not here: what a retransmission timeout does to the queue (`retransmit`), keepalive and the idle timeout (`keepalive`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    ack_compression,
    base::{counters::Counter, error::TcpError, state::State},
    cx::Cx,
    keepalive, output, recovery, retransmit, segment,
    tcb::{Tcb, TcbFlags},
    tlp,
};

/// A deadline that never comes.
const NEVER: Instant = Instant::FAR_FUTURE;

/// What the retransmission slot waits for. One slot, as in Linux (`icsk_pending`): the purposes exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RtxPurpose {
    /// RFC 6298: the oldest segment in flight is lost.
    Retransmit,
    /// RFC 8985 §7: the tail of the flight stays unanswered.
    LossProbe,
    /// RFC 8985 §6: what may have been reordered is lost by then.
    Reorder,
    /// RFC 9293 §3.8.6.1: nothing in flight and the window, a cork or missing memory holds data back.
    Persist,
}

/// The deadlines of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    rtx: Instant,
    delack: Instant,
    /// Keepalive and the idle timeout in synchronized states; FIN-WAIT-2 and TIME-WAIT expiry in theirs (Linux `sk_timer`).
    keep: Instant,
    /// When the pace lets the next packet leave.
    pacing: Instant,
    purpose: RtxPurpose,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self {
            rtx: NEVER,
            delack: NEVER,
            keep: NEVER,
            pacing: NEVER,
            purpose: RtxPurpose::Retransmit,
        }
    }

    pub(crate) fn arm_rtx(&mut self, purpose: RtxPurpose, deadline: Instant) {
        self.rtx = deadline;
        self.purpose = purpose;
    }

    pub(crate) fn stop_rtx(&mut self) {
        self.rtx = NEVER;
    }

    /// What the slot waits for, if it is armed.
    pub(crate) fn rtx(&self) -> Option<RtxPurpose> {
        (self.rtx != NEVER).then_some(self.purpose)
    }

    /// Something watches what is in flight.
    pub(crate) fn is_watching(&self) -> bool {
        self.rtx != NEVER && self.purpose != RtxPurpose::Persist
    }

    pub(crate) fn arm_delack(&mut self, deadline: Instant) {
        self.delack = deadline;
    }

    pub(crate) fn stop_delack(&mut self) {
        self.delack = NEVER;
    }

    pub(crate) fn delack(&self) -> Option<Instant> {
        (self.delack != NEVER).then_some(self.delack)
    }

    pub(crate) fn arm_keep(&mut self, deadline: Instant) {
        self.keep = deadline;
    }

    pub(crate) fn stop_keep(&mut self) {
        self.keep = NEVER;
    }

    pub(crate) fn arm_pacing(&mut self, deadline: Instant) {
        self.pacing = deadline;
    }

    pub(crate) fn stop_pacing(&mut self) {
        self.pacing = NEVER;
    }

    /// Something waits for the pace.
    pub(crate) fn is_pacing(&self) -> bool {
        self.pacing != NEVER
    }

    pub(crate) fn stop_all(&mut self) {
        *self = Self::new();
    }

    fn next(&self) -> Option<Instant> {
        let earliest = self.rtx.min(self.delack).min(self.keep).min(self.pacing);
        (earliest != NEVER).then_some(earliest)
    }
}

impl Tcb {
    /// When [`on_timer`] has something to do, if nothing else happens before. May move either way with every call
    /// into the connection; the caller re-arms its wheel when it moved earlier, and asks again when the wheel fires.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }
}

impl Tcb {
    /// The delayed-ACK timer has something to do at `now`.
    #[must_use]
    pub fn is_delack_due(&self, now: Instant) -> bool {
        self.timers.delack <= now
    }

    /// Segments wait to be processed by a reader who has been woken. If it does not come in time, the delayed-ACK timer
    /// fetches them, unless it was to run before anyway: the peer must have its ACK before it repeats what it sent,
    /// hence three quarters of the smallest RTO (Linux: tcp_prequeue).
    pub fn watch_reader(&mut self, cx: &Cx<'_>) {
        if !self.ack.is_pending() && self.timers.delack().is_none() {
            self.timers.arm_delack(cx.now + cx.config.tcp_rto_min * 3 / 4);
        }
    }

    /// An ACK leaves with the next `output`.
    #[must_use]
    pub fn owes_ack_now(&self) -> bool {
        self.ack.is_now()
    }
}

/// Handles every deadline that is due at `cx.now`, and none that is not. The caller calls [`output::output`] after it.
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
    if output::send_held(tcb, cx) {
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

/// How long a cork, `MSG_MORE`, Nagle or a window below a segment may hold data with nothing in flight: the 200 ms that
/// tcp(7) promises of `TCP_CORK`, inside the bounds of the override timer (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
const HOLD_MAX: Duration = Duration::from_millis(200);

/// Arms the persist slot. Held data leaves after [`HOLD_MAX`]; a closed window is asked after an RTO, doubled per probe
/// while it stays closed, up to `tcp_rto_max` (RFC 9293 §3.8.6.1).
pub(crate) fn arm_persist(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.snd_wnd > 0 && tcb.persist_backoff == 0 {
        tcb.timers.arm_rtx(RtxPurpose::Persist, cx.now + HOLD_MAX);
        return;
    }
    tcb.timers.arm_rtx(RtxPurpose::Persist, cx.now + persist_wait(tcb));
}

fn persist_wait(tcb: &Tcb) -> Duration {
    let base = tcb.rtt.base_rto();
    base.saturating_mul(1 << tcb.persist_backoff.min(16)).min(tcb.rtt.rto_max())
}
