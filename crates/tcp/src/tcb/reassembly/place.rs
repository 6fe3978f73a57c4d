//! Where a range of the sequence space goes among the runs, and how it meets what is there.
//!
//! Above: `reassembly`, before anything is changed. Linux: none; tcp_data_queue_ofo walks its tree.

use super::Reassembly;
use crate::wire::seq::SeqNum;

/// Where a range goes and how it meets what is there.
#[derive(Debug)]
pub(super) struct Place {
    /// The range without what overlaps its neighbours; runs in its middle are covered.
    pub(super) start: SeqNum,
    pub(super) end: SeqNum,
    /// First run behind `start`.
    pub(super) index: usize,
    /// First run behind `index` that is not covered whole.
    pub(super) covered_end: usize,
    /// Run `index - 1` ends at `start`.
    pub(super) joins_left: bool,
    /// Run `covered_end` starts at `end`.
    pub(super) joins_right: bool,
    /// All of it is here already.
    pub(super) is_duplicate: bool,
    /// The first range that is here already.
    pub(super) duplicate: Option<(SeqNum, SeqNum)>,
}

impl Place {
    fn overlap(&mut self, start: SeqNum, end: SeqNum) {
        if start != end && self.duplicate.is_none() {
            self.duplicate = Some((start, end));
        }
    }

    pub(super) fn is_new_run(&self) -> bool {
        !self.joins_left && !self.joins_right && self.index == self.covered_end
    }
}

impl Reassembly {
    pub(super) fn first_ending_after(&self, seq: SeqNum) -> usize {
        self.runs.partition_point(|run| run.end.le(seq))
    }

    /// Index of the first run that ends at `seq` or later. The usual answer, the last or none,
    /// costs no search.
    fn first_touching(&self, seq: SeqNum) -> usize {
        let count = self.runs.len();
        match self.runs.back() {
            Some(last) if last.end.lt(seq) => count,
            Some(last) if last.start.le(seq) => count - 1,
            _ => self.runs.partition_point(|run| run.end.lt(seq)),
        }
    }

    /// Where the range `seq..end` goes.
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
