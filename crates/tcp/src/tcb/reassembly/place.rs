//! The place of a new packet's range among the runs (ranges without a gap, `run`): the index at
//! which to insert it, and its overlaps with the runs.
//!
//! Above: `reassembly` computes the place before it changes the queue. Linux has no counterpart;
//! tcp_data_queue_ofo traverses its tree.

use super::Reassembly;
use crate::wire::seq::SeqNum;

/// Place of a range among the runs, and its overlaps with them.
#[derive(Debug)]
pub(super) struct Place {
    /// Start of the range after its overlaps with neighboring runs were cut off. Runs inside the
    /// range are not cut off: they are covered, and the new packet replaces them.
    pub(super) start: SeqNum,
    pub(super) end: SeqNum,
    /// Index of the first run after `start`: the index at which to insert the packet's run.
    pub(super) index: usize,
    /// Index of the first run from `index` on that is not completely covered.
    pub(super) covered_end: usize,
    /// Whether run `index - 1` ends at `start`.
    pub(super) joins_left: bool,
    /// Whether run `covered_end` starts at `end`.
    pub(super) joins_right: bool,
    /// Whether the whole range is already queued.
    pub(super) is_duplicate: bool,
    /// First part of the range that is already queued.
    pub(super) duplicate: Option<(SeqNum, SeqNum)>,
}

impl Place {
    /// Records an overlap with a run if it is the first one and not empty.
    fn overlap(&mut self, start: SeqNum, end: SeqNum) {
        if start != end && self.duplicate.is_none() {
            self.duplicate = Some((start, end));
        }
    }

    /// Returns whether the packet neither extends nor replaces a run.
    pub(super) fn is_new_run(&self) -> bool {
        !self.joins_left && !self.joins_right && self.index == self.covered_end
    }
}

impl Reassembly {
    /// Returns the index of the first run that ends after `seq`.
    pub(super) fn first_ending_after(&self, seq: SeqNum) -> usize {
        self.runs.partition_point(|run| run.end.le(seq))
    }

    /// Returns the index of the first run that ends at `seq` or later. In the usual cases, the
    /// result is the last run or the number of runs, and no search is needed.
    fn first_touching(&self, seq: SeqNum) -> usize {
        let count = self.runs.len();
        match self.runs.back() {
            Some(last) if last.end.lt(seq) => count,
            Some(last) if last.start.le(seq) => count - 1,
            _ => self.runs.partition_point(|run| run.end.lt(seq)),
        }
    }

    /// Returns the place of the range `seq..end`.
    pub(super) fn place(&self, seq: SeqNum, end: SeqNum) -> Place {
        let index = self.first_touching(seq);
        let mut place = Place {
            start: seq,
            end,
            index,
            covered_end: index,
            joins_left: false,
            joins_right: false,
            is_duplicate: false,
            duplicate: None,
        };
        let Some(run) = self.runs.get(index) else { return place };
        if run.start.le(seq) {
            if run.end.ge(end) {
                place.is_duplicate = true;
                return place;
            }
            place.overlap(seq, run.end);
            place.start = run.end;
            place.joins_left = true;
            place.index = index + 1;
            place.covered_end = index + 1;
        }
        while let Some(run) = self.runs.get(place.covered_end) {
            if run.end.le(end) {
                place.overlap(run.start, run.end);
                place.covered_end += 1;
            } else {
                if run.start.le(end) {
                    place.overlap(run.start, end);
                    place.end = run.start;
                    place.joins_right = true;
                }
                break;
            }
        }
        place
    }
}
