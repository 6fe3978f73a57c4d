//! Ranges that arrived out of order or twice, as the next ACK reports them.
//!
//! Above: `input` notes arrivals; `segment` asks for the blocks of an ACK. Below: `reassembly`,
//! whose runs are the blocks. RFC 2018 §4, RFC 2883 §4; Linux: tcp_sack_new_ofo_skb.
//!
//! Kept here are places, not blocks: a sequence number in each of the runs that changed last,
//! newest first. The block is looked up when an ACK leaves, so that it is as long as the run has
//! become, that merged runs are one block, and that what was pruned or delivered is never reported.
//!
//! Not here: how many blocks fit beside the other options (`wire::option`), a duplicate that has to
//! leave at once (`segment::sack_report`), what the peer's blocks mean (`loss::scoreboard`).

use arrayvec::ArrayVec;

use crate::{
    tcb::reassembly::Reassembly,
    wire::{option::SACK_BLOCKS_MAX, seq::SeqNum},
};

/// See the module head.
#[derive(Clone, Debug, Default)]
pub(crate) struct SackReport {
    /// A number inside each of the runs that changed last, newest first.
    recent: ArrayVec<SeqNum, SACK_BLOCKS_MAX>,
    /// The range that arrived twice and is not reported yet.
    duplicate: Option<(SeqNum, SeqNum)>,
}

impl SackReport {
    /// A packet joined `block`, or was found in it: the next ACK reports it first (RFC 2018 §4).
    pub(crate) fn on_block(&mut self, block: (SeqNum, SeqNum)) {
        let (start, end) = block;
        self.recent.retain(|seq| !(seq.ge(start) && seq.lt(end)));
        if self.recent.is_full() {
            self.recent.pop();
        }
        self.recent.insert(0, start);
    }

    /// Reporting `block` would push out another that no ACK has carried yet, if ACKs were saved meanwhile.
    pub(crate) fn is_full_for(&self, (start, end): (SeqNum, SeqNum)) -> bool {
        self.recent.is_full() && !self.recent.iter().any(|seq| seq.ge(start) && seq.lt(end))
    }

    /// `range` arrived twice. `false` when another range waits to be reported that it does not touch.
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

    /// A duplicate waits to be reported.
    pub(crate) fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// The blocks of an ACK that leaves now: a duplicate first, then the runs that changed last.
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

    /// The duplicate is reported: once only (RFC 2883 §4).
    pub(crate) fn on_sent(&mut self) {
        self.duplicate = None;
    }

    /// Everything received is in order.
    pub(crate) fn on_in_order(&mut self) {
        self.recent.clear();
    }
}
