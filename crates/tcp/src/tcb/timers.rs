//! Deadlines of a connection, stored as fields of its control block.
//!
//! Above: the stack's timer wheel reads `next_deadline`; `close::timer` runs the due timers.
//! RFC 9293 §3.8, RFC 6298 §5; Linux: net/ipv4/tcp_timer.c.
//!
//! Because a deadline is a field, arming or moving it costs one store. The wheel may hold an
//! earlier time than the real deadline. If the wheel fires at that time, `on_timer` does nothing,
//! and the stack reads the deadline again. So a bulk transfer moves its retransmission deadline
//! with every ACK and does not access the wheel.
//!
//! Not here: the actions when a deadline has passed (`close::timer`).

use core::time::Duration;

use pkt::Instant;

use crate::{cx::Cx, tcb::Tcb};

/// Deadline of a timer that is not armed.
const NEVER: Instant = Instant::FAR_FUTURE;

/// Longest delay before a retry after packet memory ran out (Linux `TCP_RESOURCE_PROBE_INTERVAL`).
pub(crate) const MEMORY_RETRY: Duration = Duration::from_millis(500);

/// Longest time that a cork, `MSG_MORE`, missing memory or a window below a segment may hold data
/// back with nothing in flight: the 200 ms that tcp(7) states for `TCP_CORK`, within the bounds of
/// the override timer (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
const HOLD_MAX: Duration = Duration::from_millis(200);

/// Purpose of the retransmission timer. One timer serves all purposes, as in Linux
/// (`icsk_pending`), because they exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RtxPurpose {
    /// RFC 6298: when it expires, the SYN or all data in flight is assumed to be lost.
    Retransmit,
    /// RFC 8985 §7: when it expires, a tail loss probe is sent.
    LossProbe,
    /// RFC 8985 §6: when it expires, segments that may have been reordered are assumed to be lost.
    Reorder,
    /// RFC 9293 §3.8.6.1: nothing is in flight, and the window, a cork or missing memory holds data
    /// back.
    Persist,
}

/// The deadlines of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    /// Deadline of the SYN or the data in flight, or of held-back data (Linux
    /// `icsk_retransmit_timer`).
    pub(crate) rtx: Instant,
    /// Deadline of a delayed or compressed ACK, which data or a read may cause to be sent earlier.
    pub(crate) delack: Instant,
    /// Deadline of keepalive and the idle timeout, or of the end of FIN-WAIT-2 or TIME-WAIT (Linux
    /// `sk_timer`).
    pub(crate) keep: Instant,
    /// Departure time of the next paced packet.
    pub(crate) pacing: Instant,
    /// Purpose of `rtx` while it is armed.
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

    /// Returns the purpose of the retransmission timer, if it is armed.
    pub(crate) fn rtx(&self) -> Option<RtxPurpose> {
        (self.rtx != NEVER).then_some(self.purpose)
    }

    /// Whether a timer is armed for data in flight.
    pub(crate) fn is_flight_timer_armed(&self) -> bool {
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

    /// Whether the pacing timer is armed.
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
    /// Returns the deadline: the time when [`on_timer`](crate::on_timer) has to run next, unless
    /// the connection changes before. Every call into the connection may move the deadline in
    /// either direction. The caller re-arms its wheel if the deadline became earlier, and reads the
    /// deadline again when the wheel fires.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether the delayed-ACK timer is due at `now`.
    #[must_use]
    pub fn is_delack_due(&self, now: Instant) -> bool {
        self.timers.delack <= now
    }

    /// Arms the delayed-ACK timer for segments that wait on the prequeue for a woken reader, unless
    /// an ACK is already pending or the timer is armed. The delay is three quarters of the smallest
    /// RTO, because the peer must receive its ACK before it retransmits (Linux: tcp_prequeue).
    pub fn arm_prequeue_delack(&mut self, cx: &Cx<'_>) {
        if !self.ack.is_pending() && self.timers.delack().is_none() {
            self.timers.arm_delack(cx.now + cx.config.tcp_rto_min * 3 / 4);
        }
    }

    /// Whether the next `output` sends an ACK.
    #[must_use]
    pub fn owes_ack_now(&self) -> bool {
        self.ack.is_now()
    }
}

/// Arms the retransmission timer for one RTO from now, as RFC 6298 §5.1–5.3 requires while data is
/// in flight. After a timeout, the wait ends no later than the `TCP_USER_TIMEOUT`.
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

/// Returns the time when the RTO of the data in flight is due: one RTO after the last transmission
/// of the oldest segment, but at least 1 ms from now.
pub(crate) fn rto_deadline(tcb: &Tcb, cx: &Cx<'_>) -> Instant {
    let head = tcb.send_queue.head().map_or(cx.now, |entry| entry.sent_at);
    head.plus_micros(tcb.rtt.rto_us().into()).max(cx.now.plus_micros(1_000))
}

/// Arms the persist timer. If the window is open and was not probed, held-back data is sent after
/// [`HOLD_MAX`]. Otherwise the window is probed after an RTO, and the interval doubles with each
/// probe, up to the largest RTO (RFC 9293 §3.8.6.1).
pub(crate) fn arm_persist(tcb: &mut Tcb, cx: &Cx<'_>) {
    if tcb.snd_wnd > 0 && tcb.persist_backoff == 0 {
        tcb.timers.arm_rtx(RtxPurpose::Persist, cx.now + HOLD_MAX);
        return;
    }
    tcb.timers.arm_rtx(RtxPurpose::Persist, cx.now + persist_wait(tcb));
}

/// Returns the time until the next probe of a closed window.
pub(crate) fn persist_wait(tcb: &Tcb) -> Duration {
    let base = tcb.rtt.base_rto();
    base.saturating_mul(1 << tcb.persist_backoff.min(16)).min(tcb.rtt.rto_max())
}
