//! Byte queue limits: how many bytes a device queue may hold, found out by watching it.
//!
//! Above: the transmit queue, which asks [`Dql::has_room`] before it hands the device more. Below: the device's
//! completions. Linux: lib/dynamic_queue_limits.c (`dql_queued`, `dql_completed`).
//!
//! The limit grows when the queue ran empty although more had been held back, and shrinks when for a second it has never
//! been needed. So the device never starves and what waits, waits in the qdisc, where it can be ordered and dropped.
//!
//! Byte counts wrap at 32 bits; only differences are looked at.
//!
//! Not here: what to do with packets that find no room (`qdisc`).

use std::time::Duration;

use pkt::Instant;

use crate::base::limits::BQL_LIMIT_MAX;

/// How long slack must be seen before the limit shrinks (`slack_hold_time`).
const SLACK_HOLD: Duration = Duration::from_secs(1);

/// The books of one device queue.
#[derive(Clone, Debug)]
pub struct Dql {
    /// Bytes ever handed to the device.
    queued: u32,
    /// Bytes it has ever completed.
    completed: u32,
    /// Bytes it may hold.
    limit: u32,
    /// `limit + completed`: `queued` may grow to this.
    adjusted_limit: u32,
    /// Bytes of the last packet handed over.
    last_bytes: u32,
    /// `queued` at the last completion.
    previous_queued: u32,
    /// Bytes by which the queue was over the limit at the last completion.
    previous_over: u32,
    /// `last_bytes` at the last completion.
    previous_last_bytes: u32,
    /// The least slack seen since `slack_since`.
    lowest_slack: u32,
    slack_since: Instant,
    limits: (u32, u32),
}

impl Dql {
    /// An empty queue whose limit starts at `limit_min`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            queued: 0,
            completed: 0,
            limit: 0,
            adjusted_limit: 0,
            last_bytes: 0,
            previous_queued: 0,
            previous_over: 0,
            previous_last_bytes: 0,
            lowest_slack: u32::MAX,
            slack_since: now,
            limits: (0, BQL_LIMIT_MAX),
        }
    }

    /// Bounds the limit (`limit_min`, `limit_max` in a queue's `byte_queue_limits`), in bytes. The next completion
    /// applies them; with an empty queue they hold at once.
    pub fn set_limits(&mut self, min: u32, max: u32) {
        let max = max.min(BQL_LIMIT_MAX);
        self.limits = (min.min(max), max);
        self.limit = self.limit.clamp(self.limits.0, self.limits.1);
        self.adjusted_limit = self.limit.wrapping_add(self.completed);
    }

    /// Nothing is with the device any more, and nothing is known of it (`dql_reset`).
    pub fn reset(&mut self, now: Instant) {
        let (min, max) = self.limits;
        *self = Self::new(now);
        self.set_limits(min, max);
    }

    /// `bytes` are handed to the device.
    pub fn on_queued(&mut self, bytes: u32) {
        self.last_bytes = bytes;
        self.queued = self.queued.wrapping_add(bytes);
    }

    /// Bytes that still fit; below zero when the last packet went over the limit.
    #[must_use]
    pub const fn available(&self) -> i32 {
        self.adjusted_limit.wrapping_sub(self.queued).cast_signed()
    }

    /// Whether the device may be given another packet. One may always go over the limit.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.available() >= 0
    }

    /// Bytes the device may hold.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Bytes it holds (`inflight`).
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.queued.wrapping_sub(self.completed)
    }

    /// The device has completed `bytes` more.
    ///
    /// # Panics
    /// In tests when it completes what it was not given.
    pub fn on_completed(&mut self, bytes: u32, now: Instant) {
        debug_assert!(bytes <= self.in_flight(), "completed what was never queued");
        let completed = self.completed.wrapping_add(bytes);
        let mut over = beyond(self.in_flight(), self.limit);
        let in_progress = self.queued.wrapping_sub(completed);
        let was_in_progress = self.previous_queued.wrapping_sub(self.completed);
        let previous_done = completed.wrapping_sub(self.previous_queued).cast_signed() >= 0;
        let mut limit = self.limit;
        if over > 0 && in_progress == 0 || self.previous_over > 0 && previous_done {
            // Starved: it had been stopped at the limit and has run empty.
            limit = limit
                .saturating_add(beyond(completed, self.previous_queued))
                .saturating_add(self.previous_over);
            self.reset_slack(now);
        } else if in_progress > 0 && was_in_progress > 0 && !previous_done {
            // Busy for the whole interval: what it never needed is slack.
            let slack = beyond(limit.wrapping_add(self.previous_over), bytes.wrapping_mul(2));
            let last_objects = match self.previous_over {
                0 => 0,
                previous_over => beyond(self.previous_last_bytes, previous_over),
            };
            self.lowest_slack = self.lowest_slack.min(slack.max(last_objects));
            if now.saturating_duration_since(self.slack_since) > SLACK_HOLD {
                limit = limit.saturating_sub(self.lowest_slack);
                self.reset_slack(now);
            }
        }
        limit = limit.clamp(self.limits.0, self.limits.1);
        if limit != self.limit {
            self.limit = limit;
            over = 0;
        }
        self.adjusted_limit = limit.wrapping_add(completed);
        self.previous_over = over;
        self.previous_last_bytes = self.last_bytes;
        self.previous_queued = self.queued;
        self.completed = completed;
    }

    fn reset_slack(&mut self, now: Instant) {
        self.slack_since = now;
        self.lowest_slack = u32::MAX;
    }
}

/// How far `a` is beyond `b`; zero when it is not.
const fn beyond(a: u32, b: u32) -> u32 {
    let difference = a.wrapping_sub(b);
    if difference.cast_signed() > 0 { difference } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FRAME: u32 = 1514;
    const START: Instant = Instant::from_secs(10);

    /// Queues `frames` frames; answers what is available then.
    fn queue(dql: &mut Dql, frames: u32) -> i32 {
        (0..frames).for_each(|_| dql.on_queued(FRAME));
        dql.available()
    }

    /// Completes `frames` frames; answers the limit and up to where may be queued.
    fn complete(dql: &mut Dql, frames: u32) -> (u32, u32) {
        dql.on_completed(frames * FRAME, START);
        (dql.limit, dql.adjusted_limit)
    }

    /// The trace of a queue that grows until it is never empty any more.
    #[test]
    fn the_limit_grows_until_the_device_does_not_starve() {
        let mut dql = Dql::new(START);
        assert_eq!(queue(&mut dql, 1), -1514);
        assert_eq!(complete(&mut dql, 1), (1514, 3028));
        assert_eq!(queue(&mut dql, 2), -1514);
        assert_eq!(complete(&mut dql, 2), (4542, 9084));
        assert_eq!(queue(&mut dql, 3), 0);
        assert_eq!(complete(&mut dql, 1), (4542, 10_598));
        queue(&mut dql, 1);
        assert_eq!(complete(&mut dql, 2), (4542, 13_626));
        queue(&mut dql, 2);
        assert_eq!(complete(&mut dql, 3), (4542, 18_168));
        assert_eq!(dql.in_flight(), 0);
    }

    /// Over the limit at one completion, and by the next all of that was done: the limit has held packets back, although the device is
    /// busy with younger ones.
    #[test]
    fn the_limit_grows_when_what_was_over_it_is_done() {
        let mut dql = Dql::new(START);
        queue(&mut dql, 1);
        assert_eq!(complete(&mut dql, 1), (FRAME, 2 * FRAME));
        queue(&mut dql, 2);
        assert_eq!(complete(&mut dql, 1), (FRAME, 3 * FRAME));
        queue(&mut dql, 2);
        // Two more are done, of which one was queued since; before that the queue was over by one.
        assert_eq!(complete(&mut dql, 2), (3 * FRAME, 7 * FRAME));
        assert_eq!(dql.in_flight(), FRAME);
    }

    /// What the last packet brought over the limit by less than itself is slack as well: one packet may always go over it.
    #[test]
    fn the_part_of_a_large_packet_below_the_limit_is_slack() {
        let mut dql = Dql::new(START);
        dql.limit = 10_000;
        dql.adjusted_limit = dql.limit;
        dql.on_queued(9000);
        dql.on_queued(5000);
        dql.on_completed(1000, START);
        assert_eq!(dql.limit(), 10_000);
        // Over by 4,000 with a packet of 5,000. So much is done now that nothing else is slack.
        dql.on_completed(12_000, START + Duration::from_millis(1100));
        assert_eq!(dql.limit(), 9000);
    }

    #[test]
    fn slack_that_is_never_used_for_a_second_is_given_up() {
        let mut dql = Dql::new(START);
        dql.set_limits(0, 1 << 20);
        dql.limit = 100 * FRAME;
        dql.adjusted_limit = dql.limit;
        let mut now = START;
        dql.on_queued(20 * FRAME);
        for _ in 0..300 {
            dql.on_queued(FRAME);
            now += Duration::from_millis(10);
            dql.on_completed(FRAME, now);
        }
        assert!(dql.limit() < 20 * FRAME, "{}", dql.limit());
    }

    #[test]
    fn the_limit_stays_within_its_bounds() {
        let mut dql = Dql::new(START);
        dql.set_limits(2 * FRAME, 3 * FRAME);
        assert_eq!(dql.limit(), 2 * FRAME);
        for _ in 0..50 {
            while dql.has_room() {
                dql.on_queued(FRAME);
            }
            dql.on_completed(dql.in_flight(), START);
            assert!((2 * FRAME..=3 * FRAME).contains(&dql.limit()));
        }
        assert_eq!(dql.limit(), 3 * FRAME);
    }

    proptest! {
        /// Whatever completes when: an empty queue takes a packet, so nobody waits for ever.
        #[test]
        fn an_empty_queue_has_room(steps in prop::collection::vec((1u32..70_000, 0u32..100), 1..200)) {
            let mut dql = Dql::new(START);
            let mut now = START;
            for (bytes, percent) in steps {
                if dql.has_room() {
                    dql.on_queued(bytes);
                }
                now += Duration::from_micros(u64::from(bytes));
                dql.on_completed(dql.in_flight() / 100 * percent, now);
                if dql.in_flight() == 0 {
                    prop_assert!(dql.has_room());
                }
            }
            dql.on_completed(dql.in_flight(), now);
            prop_assert!(dql.has_room());
        }
    }
}
