//! Ranges of the send queue that the peer has reported by SACK, sorted and disjoint.
//!
//! Above: `send_queue`, whose entries hold the same information as the flag `SACKED`. RFC 6675 §4.
//! Linux has no counterpart: it searches the queue, and remembers the blocks of the last ACK
//! (tcp_sacktag_write_queue).
//!
//! A peer repeats its blocks in every ACK, and a hostile peer sends them in any order. The ranges
//! show which part of a block is new, so that entries that are already marked need no visit: an ACK
//! costs a few binary searches per block and one step per newly marked entry.
//!
//! Not here: validity of a block (`loss::scoreboard`), splitting entries at the edges of a block.

use alloc::collections::VecDeque;

use crate::wire::seq::SeqNum;

/// Ranges reported by SACK.
#[derive(Debug, Default)]
pub(super) struct Sacked {
    /// Start and end of each range. Sorted; the end of one range is before the start of the next.
    runs: VecDeque<(SeqNum, SeqNum)>,
}

impl Sacked {
    /// Returns the first part of `from..end` that is not reported yet.
    pub(super) fn next_gap(&self, from: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let index = self.runs.partition_point(|run| run.1.le(from));
        let (start, next) = match self.runs.get(index) {
            Some(&(left, right)) if left.le(from) => (right, index + 1),
            _ => (from, index),
        };
        let stop = self.runs.get(next).map_or(end, |run| run.0.min(end));
        start.lt(stop).then_some((start, stop))
    }

    /// Returns the end of the range that contains `seq`, or `seq` itself.
    pub(super) fn end_of(&self, seq: SeqNum) -> SeqNum {
        let index = self.runs.partition_point(|run| run.1.le(seq));
        match self.runs.get(index) {
            Some(&(left, right)) if left.le(seq) => right,
            _ => seq,
        }
    }

    /// Adds a range, and joins it with the ranges that it touches.
    pub(super) fn insert(&mut self, start: SeqNum, end: SeqNum) {
        let index = self.runs.partition_point(|run| run.1.lt(start));
        let Some(run) = self.runs.get_mut(index).filter(|run| run.0.le(end)) else {
            self.runs.insert(index, (start, end));
            return;
        };
        *run = (run.0.min(start), run.1.max(end));
        let mut right = run.1;
        while let Some(&(next_start, next_end)) = self.runs.get(index + 1)
            && next_start.le(right)
        {
            right = right.max(next_end);
            self.runs.remove(index + 1);
        }
        self.runs[index].1 = right;
    }

    /// Removes the ranges before `una`, because they are acknowledged.
    pub(super) fn drop_before(&mut self, una: SeqNum) {
        while self.runs.front().is_some_and(|run| run.1.le(una)) {
            self.runs.pop_front();
        }
        if let Some(run) = self.runs.front_mut() {
            run.0 = run.0.max(una);
        }
        if self.runs.is_empty() && self.runs.capacity() > 8 {
            self.runs.shrink_to(8);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the end of the last range.
    pub(super) fn highest(&self) -> Option<SeqNum> {
        self.runs.back().map(|run| run.1)
    }

    /// Returns the number of bytes reported. Panics unless the ranges are sorted and disjoint.
    pub(super) fn check(&self) -> u32 {
        let mut before: Option<SeqNum> = None;
        let mut bytes = 0;
        for &(start, end) in &self.runs {
            assert!(
                before.is_none_or(|before| before.lt(start)) && start.lt(end),
                "ranges are not sorted and disjoint"
            );
            before = Some(end);
            bytes += end.since(start);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the ranges with an array of one flag per byte, across the wrap of sequence
        /// numbers.
        #[test]
        fn the_ranges_behave_as_a_set_of_bytes(ops in prop::collection::vec((0u32..200, 1u32..40), 1..60), una in 0u32..200) {
            let base = SeqNum(u32::MAX - 100);
            let mut sacked = Sacked::default();
            let mut model = [false; 256];
            for &(start, len) in &ops {
                sacked.insert(base + start, base + start + len);
                model[start as usize..(start + len) as usize].fill(true);
                let bytes = u32::try_from(model.iter().filter(|&&held| held).count()).unwrap();
                prop_assert_eq!(sacked.check(), bytes);
            }
            sacked.drop_before(base + una);
            model[..una as usize].fill(false);
            let gap = sacked.next_gap(base + una, base + 250);
            let start = (una as usize..250).find(|&at| !model[at]).unwrap();
            let end = (start..250).find(|&at| model[at]).unwrap_or(250);
            let number = |at: usize| base + u32::try_from(at).unwrap();
            prop_assert_eq!(gap, Some((number(start), number(end))));
            prop_assert_eq!(sacked.end_of(base + una), number(start));
        }
    }
}
