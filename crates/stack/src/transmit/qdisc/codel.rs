//! CoDel: drops packets after the queueing delay has exceeded a target for a whole interval
//! (RFC 8289).
//!
//! Above: `fq_codel`, which has one controller for each flow. Linux: include/net/codel_impl.h.
//! `meta.timestamp` is the time at which a packet was enqueued.

use std::time::Duration;

use pkt::{Instant, Packet};

/// Parameters of the controller (RFC 8289 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodelParams {
    /// Queueing delay that is acceptable for longer than an interval.
    pub(super) target: Duration,
    /// Time, about a round trip, for which the delay may exceed the target before packets are
    /// dropped.
    pub(super) interval: Duration,
    /// Number of waiting bytes up to which no packet is dropped: about one packet.
    pub(super) mtu: u32,
}

/// State of one queue (RFC 8289 §5.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codel {
    /// Number of drops, which determines the interval to the next drop. When the dropping state is
    /// entered, the number starts at 1 or, soon after the last dropping state, at the number of
    /// drops in that state, not counting the first.
    count: u32,
    /// `count` when the dropping state was last entered.
    last_count: u32,
    dropping: bool,
    /// Time at which the delay will have exceeded the target for an interval; `None` while the
    /// delay is below the target or at most `mtu` bytes wait.
    first_above: Option<Instant>,
    drop_next: Instant,
}

/// Verdict on the packet at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodelVerdict {
    /// Forward the packet.
    Forward,
    /// Drop the packet and ask for the next one, or mark the packet with CE and forward it.
    Drop,
}

impl Codel {
    /// Notes that the queue is empty: the delay is no longer above the target.
    pub(super) fn on_empty(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }

    /// Decides about the packet taken from the front of the queue, in which `backlog_bytes` remain.
    /// After a drop, the caller must also ask for the next packet (RFC 8289 §5.5).
    pub(super) fn judge(
        &mut self,
        packet: &Packet,
        backlog_bytes: u32,
        params: &CodelParams,
        now: Instant,
    ) -> CodelVerdict {
        let ok_to_drop = self.ok_to_drop(packet, backlog_bytes, params, now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            } else if now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                self.drop_next = self.control_law(self.drop_next, params);
                return CodelVerdict::Drop;
            }
            return CodelVerdict::Forward;
        }
        if !ok_to_drop {
            return CodelVerdict::Forward;
        }
        self.enter_dropping(params, now);
        CodelVerdict::Drop
    }

    /// Whether the delay has exceeded the target for a whole interval (`codel_should_drop`).
    fn ok_to_drop(
        &mut self,
        packet: &Packet,
        backlog_bytes: u32,
        params: &CodelParams,
        now: Instant,
    ) -> bool {
        let sojourn = now.saturating_duration_since(packet.meta().timestamp);
        if sojourn < params.target || backlog_bytes <= params.mtu {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now + params.interval);
                false
            }
            Some(first_above) => now > first_above,
        }
    }

    /// Enters the dropping state. Soon after the last dropping state, `count` starts at the number
    /// of drops in that state, not counting the first.
    fn enter_dropping(&mut self, params: &CodelParams, now: Instant) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let recently = now.saturating_duration_since(self.drop_next) < 16 * params.interval;
        self.count = if delta > 1 && recently { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now, params);
    }

    /// Returns the time of the next drop: the interval shrinks with the square root of the number
    /// of drops.
    fn control_law(&self, from: Instant, params: &CodelParams) -> Instant {
        from + params.interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}
