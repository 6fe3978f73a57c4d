//! The flow limit: who floods a queue that is half full loses first.
//!
//! Linux: `skb_flow_limit`, `net.core.flow_limit_cpu_bitmap`, `net.core.flow_limit_table_len`. Of the last 256 packets
//! that met a queue more than half full, one flow may have been 128; small flows then still get through.

use std::{boxed::Box, vec};

/// Packets that are remembered. Linux: `FLOW_LIMIT_HISTORY`.
const HISTORY: usize = 256;

/// What one core remembers of the packets it has handed on.
#[derive(Debug)]
pub(super) struct FlowLimit {
    /// How many of the remembered packets are in each bucket: a power of two of them.
    counts: Box<[u16]>,
    /// Their buckets, oldest at `next`.
    history: Box<[u32; HISTORY]>,
    next: usize,
    /// Entries of `history` that mean something.
    known: usize,
}

impl FlowLimit {
    /// Counts flows in `buckets` buckets, a power of two.
    pub(super) fn new(buckets: u32) -> Self {
        debug_assert!(buckets.is_power_of_two());
        Self {
            counts: vec![0; buckets as usize].into_boxed_slice(),
            history: Box::new([0; HISTORY]),
            next: 0,
            known: 0,
        }
    }

    pub(super) fn buckets(&self) -> u32 {
        u32::try_from(self.counts.len()).unwrap_or(u32::MAX)
    }

    /// One more packet of the flow of `hash` for a queue of `qlen` packets, where `max` may be. True: it takes more than its
    /// half and is to be dropped.
    pub(super) fn exceeds(&mut self, hash: u32, qlen: u32, max: u32) -> bool {
        if qlen < max >> 1 {
            return false;
        }
        let bucket = hash & (self.buckets() - 1);
        let oldest = core::mem::replace(&mut self.history[self.next], bucket);
        self.next = (self.next + 1) % HISTORY;
        if self.known == HISTORY {
            // Every known entry of the history has counted one in its bucket.
            self.counts[oldest as usize] -= 1;
        } else {
            self.known += 1;
        }
        let count = &mut self.counts[bucket as usize];
        *count += 1;
        usize::from(*count) > HISTORY / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_that_takes_more_than_half_of_the_last_256_is_dropped() {
        let mut limit = FlowLimit::new(4096);
        let dropped = |limit: &mut FlowLimit, hash, n: usize| {
            (0..n).filter(|_| limit.exceeds(hash, 500, 1000)).count()
        };
        assert_eq!(dropped(&mut limit, 7, 128), 0);
        assert_eq!(dropped(&mut limit, 7, 10), 10, "the 129th and on");
        assert_eq!(dropped(&mut limit, 8, 100), 0, "others get through");
        // The history forgets: 128 others push enough of the first flow out.
        assert_eq!(dropped(&mut limit, 9, 128), 0);
        assert_eq!(dropped(&mut limit, 7, 1), 0);
    }

    #[test]
    fn a_queue_that_is_not_half_full_asks_nobody() {
        let mut limit = FlowLimit::new(1);
        assert!((0..1000).all(|_| !limit.exceeds(7, 499, 1000)));
        assert!(!limit.exceeds(7, 500, 1000), "nothing was remembered either");
    }

    #[test]
    fn flows_of_one_bucket_are_one_flow() {
        let mut limit = FlowLimit::new(2);
        let drops = (0..256u32).filter(|n| limit.exceeds(n * 2, 1000, 1000)).count();
        assert_eq!(drops, 128);
    }
}
