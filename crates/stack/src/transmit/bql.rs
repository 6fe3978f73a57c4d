//! Byte queue limits (BQL): measures how many bytes a device queue must hold so that the device is
//! never idle.
//!
//! Above: the transmit queue, which calls [`Dql::has_room`] before it passes packets to the device.
//! Below: the device's completions. Linux: lib/dynamic_queue_limits.c (`dql_queued`,
//! `dql_completed`).
//!
//! The limit grows if the device's queue became empty while the limit held packets back. It shrinks
//! if a part of it, the slack, was not needed for a second. The device therefore does not starve,
//! and excess packets wait in the queueing discipline, which can reorder and drop them.
//!
//! Byte counts wrap around at 32 bits; only differences are evaluated.
//!
//! Not here: the handling of packets that find no room (`qdisc`).

use std::time::Duration;

use pkt::Instant;

use crate::base::limits::BQL_LIMIT_MAX;

/// Time for which slack (the unneeded part of the limit) must be observed before the limit shrinks
/// (`slack_hold_time`).
const SLACK_HOLD: Duration = Duration::from_secs(1);

/// Dynamic limit and byte counts of one device queue.
#[derive(Clone, Debug)]
pub struct Dql {
    /// Total bytes passed to the device.
    queued: u32,
    /// Total bytes that the device has completed.
    completed: u32,
    /// Maximum bytes that the device may hold.
    limit: u32,
    /// `limit + completed`: another packet may be passed to the device while `queued` is at most
    /// this.
    adjusted_limit: u32,
    /// Length of the last packet passed to the device.
    last_bytes: u32,
    /// `queued` at the last completion.
    previous_queued: u32,
    /// Bytes by which the queue exceeded the limit at the last completion; 0 if the limit then
    /// changed.
    previous_over: u32,
    /// `last_bytes` at the last completion.
    previous_last_bytes: u32,
    /// Minimum slack since `slack_since`.
    lowest_slack: u32,
    slack_since: Instant,
    /// Bounds of `limit`: `limit_min` and `limit_max`.
    limits: (u32, u32),
}

impl Dql {
    /// Creates the counts of an empty queue. The limit starts at 0, and its bounds are 0 and
    /// `BQL_LIMIT_MAX` until [`set_limits`](Self::set_limits) is called.
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

    /// Sets the bounds of the limit (`limit_min`, `limit_max` in a queue's `byte_queue_limits`), in
    /// bytes.
    pub fn set_limits(&mut self, min: u32, max: u32) {
        let max = max.min(BQL_LIMIT_MAX);
        self.limits = (min.min(max), max);
        self.limit = self.limit.clamp(self.limits.0, self.limits.1);
        self.adjusted_limit = self.limit.wrapping_add(self.completed);
    }

    /// Resets the counts to those of an empty queue and the limit to its lower bound (`dql_reset`).
    pub fn reset(&mut self, now: Instant) {
        let (min, max) = self.limits;
        *self = Self::new(now);
        self.set_limits(min, max);
    }

    /// Counts `bytes` as passed to the device.
    pub fn on_queued(&mut self, bytes: u32) {
        self.last_bytes = bytes;
        self.queued = self.queued.wrapping_add(bytes);
    }

    /// Returns the number of bytes that the limit still allows; negative if the device
    /// holds more than the limit.
    #[must_use]
    pub const fn available(&self) -> i32 {
        self.adjusted_limit.wrapping_sub(self.queued).cast_signed()
    }

    /// Whether the device may be given another packet. One packet may always exceed the limit.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.available() >= 0
    }

    /// Returns the maximum bytes that the device may hold.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the bytes that the device holds (`inflight`).
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.queued.wrapping_sub(self.completed)
    }

    /// Counts `bytes` as completed by the device and adjusts the limit.
    ///
    /// # Panics
    /// Panics with debug assertions if the device completes more bytes than it was given.
    pub fn on_completed(&mut self, bytes: u32, now: Instant) {
        debug_assert!(
            bytes <= self.in_flight(),
            "the device completed bytes that were never queued"
        );
        let completed = self.completed.wrapping_add(bytes);
        let mut over = beyond(self.in_flight(), self.limit);
        let in_progress = self.queued.wrapping_sub(completed);
        let was_in_progress = self.previous_queued.wrapping_sub(self.completed);
        let previous_done = completed.wrapping_sub(self.previous_queued).cast_signed() >= 0;
        let mut limit = self.limit;
        if over > 0 && in_progress == 0 || self.previous_over > 0 && previous_done {
            // The device starved or may have starved: the queue exceeded the limit, now or at the
            // last completion, and all bytes that it held then have completed.
            limit = limit
                .saturating_add(beyond(completed, self.previous_queued))
                .saturating_add(self.previous_over);
            self.reset_slack(now);
        } else if in_progress > 0 && was_in_progress > 0 && !previous_done {
            // The device was busy for the whole interval: the part of the limit that was not needed
            // is slack.
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

/// Returns by how much `a` exceeds `b`, or zero.
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

    /// Queues `frames` frames and returns the available bytes.
    fn queue(dql: &mut Dql, frames: u32) -> i32 {
        (0..frames).for_each(|_| dql.on_queued(FRAME));
        dql.available()
    }

    /// Completes `frames` frames and returns the limit and the adjusted limit.
    fn complete(dql: &mut Dql, frames: u32) -> (u32, u32) {
        dql.on_completed(frames * FRAME, START);
        (dql.limit, dql.adjusted_limit)
    }

    /// Follows the limit of a queue that exceeds it and becomes empty at the first two completions;
    /// later the queue never exceeds the limit, and the limit stays.
    #[test]
    fn the_limit_grows_while_the_device_starves() {
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

    /// At one completion the queue exceeded the limit, and the next one completes all bytes queued
    /// until then. The limit has therefore held packets back, although the device is busy with
    /// later packets.
    #[test]
    fn the_limit_grows_when_the_excess_bytes_complete() {
        let mut dql = Dql::new(START);
        queue(&mut dql, 1);
        assert_eq!(complete(&mut dql, 1), (FRAME, 2 * FRAME));
        queue(&mut dql, 2);
        assert_eq!(complete(&mut dql, 1), (FRAME, 3 * FRAME));
        queue(&mut dql, 2);
        // Two more frames complete, one of which was queued after the last completion. At that
        // completion, the queue exceeded the limit by one frame.
        assert_eq!(complete(&mut dql, 2), (3 * FRAME, 7 * FRAME));
        assert_eq!(dql.in_flight(), FRAME);
    }

    /// The part of the last packet that was below the limit is also slack, because one packet may
    /// always exceed the limit.
    #[test]
    fn the_part_of_a_large_packet_below_the_limit_is_slack() {
        let mut dql = Dql::new(START);
        dql.limit = 10_000;
        dql.adjusted_limit = dql.limit;
        dql.on_queued(9000);
        dql.on_queued(5000);
        dql.on_completed(1000, START);
        assert_eq!(dql.limit(), 10_000);
        // At the first completion the queue exceeded the limit by 4,000 bytes, with a last packet
        // of 5,000. The second completion is so large that there is no other slack.
        dql.on_completed(12_000, START + Duration::from_millis(1100));
        assert_eq!(dql.limit(), 9000);
    }

    #[test]
    fn a_limit_that_is_too_large_for_a_second_shrinks() {
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
        /// For any order of completions, an empty queue accepts a packet, so that no packet waits
        /// forever.
        #[test]
        fn an_empty_device_queue_has_room(steps in prop::collection::vec((1u32..70_000, 0u32..100), 1..200)) {
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
