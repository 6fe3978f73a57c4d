//! Flow limit: drops packets of a flow that floods a queue.
//!
//! Linux: `skb_flow_limit`, `net.core.flow_limit_cpu_bitmap`, `net.core.flow_limit_table_len`. A
//! history records the flows of the last 256 packets that found the queue at least half full. One
//! flow may have 128 of them. Further packets of this flow are dropped, so that packets of other
//! flows still find room.

use std::{boxed::Box, vec};

/// Number of recorded packets. Linux: `FLOW_LIMIT_HISTORY`.
const HISTORY: usize = 256;

/// History of the packets that one core has steered to other cores.
#[derive(Debug)]
pub(super) struct FlowLimit {
    /// Number of recorded packets in each bucket. The number of buckets is a power of two.
    counts: Box<[u16]>,
    /// Buckets of the recorded packets, oldest at `next`.
    history: Box<[u32; HISTORY]>,
    next: usize,
    /// Number of valid entries in `history`.
    known: usize,
}

impl FlowLimit {
    /// Creates a history with `buckets` buckets, a power of two.
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

    /// Records a packet of the flow with this hash, for a queue with `qlen` of at most `max`
    /// packets, if the queue is at least half full. Returns true if the flow exceeds its share and
    /// the packet must be dropped.
    pub(super) fn exceeds(&mut self, hash: u32, qlen: u32, max: u32) -> bool {
        if qlen < max >> 1 {
            return false;
        }
        let bucket = hash & (self.buckets() - 1);
        let oldest = core::mem::replace(&mut self.history[self.next], bucket);
        self.next = (self.next + 1) % HISTORY;
        if self.known == HISTORY {
            // Each valid entry of the history has incremented the count of its bucket.
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
    fn a_flow_with_more_than_half_of_the_last_256_packets_is_dropped() {
        let mut limit = FlowLimit::new(4096);
        let dropped = |limit: &mut FlowLimit, hash, n: usize| {
            (0..n).filter(|_| limit.exceeds(hash, 500, 1000)).count()
        };
        assert_eq!(dropped(&mut limit, 7, 128), 0);
        assert_eq!(
            dropped(&mut limit, 7, 10),
            10,
            "not exactly the 129th and later packets were dropped"
        );
        assert_eq!(dropped(&mut limit, 8, 100), 0, "packets of another flow were dropped");
        // After 128 packets of a third flow, enough packets of the first flow have left the
        // history.
        assert_eq!(dropped(&mut limit, 9, 128), 0);
        assert_eq!(dropped(&mut limit, 7, 1), 0);
    }

    #[test]
    fn a_queue_less_than_half_full_has_no_flow_limit() {
        let mut limit = FlowLimit::new(1);
        assert!((0..1000).all(|_| !limit.exceeds(7, 499, 1000)));
        assert!(!limit.exceeds(7, 500, 1000), "an empty history exceeds the limit");
    }

    #[test]
    fn flows_of_one_bucket_share_one_limit() {
        let mut limit = FlowLimit::new(2);
        let drops = (0..256u32).filter(|n| limit.exceeds(n * 2, 1000, 1000)).count();
        assert_eq!(drops, 128);
    }
}
