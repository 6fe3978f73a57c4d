//! CoDel: drops when packets have waited longer than a target for a whole interval (RFC 8289).
//!
//! Above: `fq_codel`, which keeps one for each flow. Linux: include/net/codel_impl.h. The moment a packet was queued is its
//! `meta.timestamp`.

use std::time::Duration;

use pkt::{Instant, Packet};

/// Parameters of the controller (RFC 8289 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodelParams {
    /// Acceptable standing delay.
    pub(super) target: Duration,
    /// About a round trip: how long the delay may be exceeded before it counts as standing.
    pub(super) interval: Duration,
    /// A queue of so few bytes is never too long.
    pub(super) mtu: u32,
}

/// State of one queue (RFC 8289 §5.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codel {
    /// Drops since the dropping state was entered; sets the pace of the next ones.
    count: u32,
    /// `count` when the dropping state was last left.
    last_count: u32,
    dropping: bool,
    /// When the delay will have been above the target for an interval.
    first_above: Option<Instant>,
    drop_next: Instant,
}

/// What the controller says of the packet at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodelVerdict {
    /// Let it go.
    Forward,
    /// Drop it (or mark it and let it go), and ask about the next.
    Drop,
}

impl Codel {
    /// The queue is empty: nothing is too long any more.
    pub(super) fn on_empty(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }

    /// Judges the packet taken from the front, with `backlog_bytes` behind it; after a drop the next one too (RFC 8289
    /// §5.5).
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

    /// `codel_should_drop`: has the delay been above the target for an interval?
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

    /// Starts near the rate that controlled the queue last time, if that was not long ago.
    fn enter_dropping(&mut self, params: &CodelParams, now: Instant) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let recently = now.saturating_duration_since(self.drop_next) < 16 * params.interval;
        self.count = if delta > 1 && recently { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now, params);
    }

    /// The interval shrinks with the square root of the number of drops.
    fn control_law(&self, from: Instant, params: &CodelParams) -> Instant {
        from + params.interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}
