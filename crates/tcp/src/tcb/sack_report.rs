//! Blocks that the next ACK reports: ranges that arrived out of order or twice.
//!
//! Above: `input` records arrivals; `segment` reads the blocks of an ACK. Below: `reassembly`,
//! whose runs are the blocks. RFC 2018 §4, RFC 2883 §4; Linux: tcp_sack_new_ofo_skb.
//!
//! The report stores no blocks of out-of-order data, but positions: one sequence number in each of
//! the runs (ranges without a gap) that changed last, newest first. The block of a position is
//! looked up when an ACK is sent. So a block has the current length of its run, merged runs are one
//! block, and data that was pruned or delivered is not in a block.
//!
//! Not here: the number of blocks that fit beside the other options (`wire::option`), a duplicate
//! that must be reported at once (`segment::sack_report`), the peer's blocks (`loss::scoreboard`).

use arrayvec::ArrayVec;

use crate::{
    tcb::reassembly::Reassembly,
    wire::{option::SACK_BLOCKS_MAX, seq::SeqNum},
};

/// Blocks that the next ACK of a connection reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct SackReport {
    /// A sequence number inside each of the runs that changed last, newest first.
    recent: ArrayVec<SeqNum, SACK_BLOCKS_MAX>,
    /// Range that arrived twice and is not reported yet.
    duplicate: Option<(SeqNum, SeqNum)>,
}

impl SackReport {
    /// Records that a packet was added to `block` or is a duplicate of data in `block`: the next
    /// ACK reports this block before all other runs, after an unreported duplicate (RFC 2018 §4).
    pub(crate) fn on_block(&mut self, block: (SeqNum, SeqNum)) {
        let (start, end) = block;
        self.recent.retain(|seq| !(seq.ge(start) && seq.lt(end)));
        if self.recent.is_full() {
            self.recent.pop();
        }
        self.recent.insert(0, start);
    }

    /// Whether recording the block `start..end` would discard another block. If ACKs are
    /// compressed, the other block may still be unreported.
    pub(crate) fn is_full_for(&self, (start, end): (SeqNum, SeqNum)) -> bool {
        self.recent.is_full() && !self.recent.iter().any(|seq| seq.ge(start) && seq.lt(end))
    }

    /// Records that `range` arrived twice, and joins it with an unreported range that it touches.
    /// Returns `false`, without any change, if the two ranges do not touch.
    pub(crate) fn add_duplicate(&mut self, range: (SeqNum, SeqNum)) -> bool {
        let (start, end) = range;
        match &mut self.duplicate {
            None => self.duplicate = Some(range),
            Some((left, right)) if start.le(*right) && end.ge(*left) => {
                (*left, *right) = ((*left).min(start), (*right).max(end));
            }
            Some(_) => return false,
        }
        true
    }

    /// Whether an unreported duplicate exists.
    pub(crate) fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// Returns the blocks of an ACK: a duplicate first, then the runs that changed last.
    pub(crate) fn blocks(
        &self,
        reassembly: &Reassembly,
    ) -> ArrayVec<(SeqNum, SeqNum), SACK_BLOCKS_MAX> {
        let mut blocks = ArrayVec::new();
        blocks.extend(self.duplicate);
        let first = blocks.len();
        for block in self.recent.iter().filter_map(|&seq| reassembly.block_of(seq)) {
            if !blocks[first..].contains(&block) && blocks.try_push(block).is_err() {
                break;
            }
        }
        blocks
    }

    /// Removes the duplicate after an ACK has reported it: a duplicate is reported only once
    /// (RFC 2883 §4).
    pub(crate) fn on_sent(&mut self) {
        self.duplicate = None;
    }

    /// Removes the positions of all runs when the reassembly queue is empty. An unreported
    /// duplicate is kept.
    pub(crate) fn on_in_order(&mut self) {
        self.recent.clear();
    }
}
