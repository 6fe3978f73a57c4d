//! Deadlines of a connection, as data.
//!
//! Above: the stack's timer wheel asks `next_deadline`; `close::timer` runs what is due.
//! RFC 9293 §3.8, RFC 6298 §5; Linux: net/ipv4/tcp_timer.c.
//!
//! A deadline is a field: arming or moving one costs a store. The wheel may hold an earlier instant
//! than the real deadline; `on_timer` then does nothing and the wheel asks again, so that a bulk
//! transfer moves its retransmission deadline with every ACK and never touches the wheel.
//!
//! Not here: what a deadline that has passed causes (`close::timer`).

use core::time::Duration;

use pkt::Instant;

use crate::{cx::Cx, tcb::Tcb};

/// A deadline that never comes.
const NEVER: Instant = Instant::FAR_FUTURE;

/// How long to wait before trying again when packet memory ran out (Linux `TCP_RESOURCE_PROBE_INTERVAL`).
pub(crate) const MEMORY_RETRY: Duration = Duration::from_millis(500);

/// How long a cork, `MSG_MORE`, Nagle or a window below a segment may hold data with nothing in flight: the 200 ms that
/// tcp(7) promises of `TCP_CORK`, inside the bounds of the override timer (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
const HOLD_MAX: Duration = Duration::from_millis(200);

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
    /// Deadline that watches the data in flight, or held data (Linux `icsk_retransmit_timer`).
    pub(crate) rtx: Instant,
    /// Deadline of an ACK that waits for data to carry it, or for a reader.
    pub(crate) delack: Instant,
    /// Keepalive and the idle timeout in synchronized states; FIN-WAIT-2 and TIME-WAIT expiry in theirs (Linux `sk_timer`).
    pub(crate) keep: Instant,
    /// Moment at which the pace lets the next packet leave.
    pub(crate) pacing: Instant,
    /// Purpose of `rtx`, while that is armed.
    pub(crate) purpose: RtxPurpose,
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
    /// When [`on_timer`](crate::on_timer) has something to do, if nothing else happens before. May move either way with every call
    /// into the connection; the caller re-arms its wheel when it moved earlier, and asks again when the wheel fires.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

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

/// RFC 6298 §5.1–5.3: runs while anything is in flight, an RTO from now.
pub(crate) fn arm_rto(tcb: &mut Tcb, cx: &Cx<'_>) {
    let mut wait = tcb.rtt.rto();
    if let Some(limit) = tcb.user_timeout
        && tcb.recovery.timeouts() > 0
    {
        let left = limit.saturating_sub(cx.now - tcb.recovery.since());
        wait = wait.min(left.max(Duration::from_millis(1)));
    }
    tcb.timers.arm_rtx(RtxPurpose::Retransmit, cx.now + wait);
}

/// When the RTO of what is in flight is due, counted from the last transmission of the oldest.
pub(crate) fn rto_deadline(tcb: &Tcb, cx: &Cx<'_>) -> Instant {
    let head = tcb.send_queue.head().map_or(cx.now, |entry| entry.sent_at);
    head.plus_micros(tcb.rtt.rto_us().into()).max(cx.now.plus_micros(1_000))
}

/// Arms the persist slot. Held data leaves after [`HOLD_MAX`]; a closed window is asked after an RTO, doubled per probe
/// while it stays closed, up to `tcp_rto_max` (RFC 9293 §3.8.6.1).
pub(crate) fn arm_persist(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.snd_wnd > 0 && tcb.persist_backoff == 0 {
        tcb.timers.arm_rtx(RtxPurpose::Persist, cx.now + HOLD_MAX);
        return;
    }
    tcb.timers.arm_rtx(RtxPurpose::Persist, cx.now + persist_wait(tcb));
}

pub(crate) fn persist_wait(tcb: &Tcb) -> Duration {
    let base = tcb.rtt.base_rto();
    base.saturating_mul(1 << tcb.persist_backoff.min(16)).min(tcb.rtt.rto_max())
}
