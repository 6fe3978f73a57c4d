//! The scoreboard: the marks of the entries in flight.
//!
//! Above: the files of `loss` set and read the marks. RFC 6675 §4; Linux: TCPCB_* flags and
//! the counters sacked_out, lost_out, retrans_out.
//!
//! | marks | event | next marks |
//! |---|---|---|
//! | any | A SACK block covers the entry | `SACKED` |
//! | none | The entry is detected as lost | `LOST` |
//! | none | A tail loss probe retransmits the entry | `RETRANSMITTED` |
//! | `LOST` | The entry is retransmitted | `LOST`, `RETRANSMITTED` |
//! | `RETRANSMITTED`, with or without `LOST` | The retransmission is detected as lost | `LOST` |
//! | `LOST`, with or without `RETRANSMITTED` | The loss proves wrong | without `LOST` |
//! | `LOST`, `RETRANSMITTED` or both | Without SACK: recovery or CWR ends, or recovery is undone | none |
//! | `SACKED` | The peer reneges: it has discarded data that it had reported | none |
//!
//! A `SACKED` entry has neither of the other marks. `RETRANSMITTED` alone marks an entry that a
//! tail loss probe has retransmitted, or whose `LOST` mark was undone: original and copy may both
//! be in flight.

use pkt::{Instant, Pool};

use super::{EntryFlags, SendQueue};
use crate::{
    congestion::{LossSample, LossThresh},
    tcb::acked::{Acked, Transmission},
    wire::seq::SeqNum,
};

/// Slack of the limit above which entries in flight are no longer split
/// ([`SendQueue::is_too_big`]): two superframes (packets of several segments) of 64 KB.
const SPLIT_SLACK: u32 = 2 << 16;

/// A retransmission that is assumed to be in flight: its first sequence number and the time when it
/// was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retransmission {
    seq: SeqNum,
    sent_at: Instant,
}

impl SendQueue {
    /// Marks the entries that lie completely in `start..end`, a range in flight that the peer has
    /// reported. An entry that lies only partly in the range is split first, at a multiple of
    /// `mss` from its start.
    pub(crate) fn mark_sacked(
        &mut self,
        pool: &mut Pool,
        (start, end): (SeqNum, SeqNum),
        mss: u32,
        sndbuf: u32,
        acked: &mut Acked,
    ) -> SplitCounts {
        let mut cuts = SplitCounts::default();
        let mut from = start;
        while let Some((gap_start, gap_end)) = self.sacked.next_gap(from, end) {
            let mut index = self.index_of(gap_start);
            while index < self.sent && self.entries[index].seq.lt(gap_end) {
                match self.overlap(index, gap_start, gap_end, mss) {
                    Overlap::Whole => self.mark_one_sacked(index, acked),
                    Overlap::None => {}
                    Overlap::CutAt(at) => {
                        if self.is_too_big(sndbuf) {
                            cuts.refused += 1;
                        } else if self.split(pool, index, at) {
                            cuts.made += 1;
                            continue;
                        }
                    }
                }
                index += 1;
            }
            from = gap_end;
        }
        cuts
    }

    /// Whether the queue exceeds the send buffer by so much that entries in flight are no longer
    /// split. Each split costs more memory than the data that it separates. A peer could exhaust
    /// the memory of this host with SACK blocks or a very small MSS that require many splits
    /// (CVE-2019-11478). Sending a part of the data twice is cheaper (Linux tcp_fragment).
    pub(crate) fn is_too_big(&self, sndbuf: u32) -> bool {
        self.wmem_queued / 2 > sndbuf.saturating_add(SPLIT_SLACK)
    }

    /// Returns the position of the entry at `index` relative to a reported range.
    fn overlap(&self, index: usize, start: SeqNum, end: SeqNum, mss: u32) -> Overlap {
        let entry = &self.entries[index];
        if start.le(entry.seq) && end.ge(entry.end_seq()) {
            return Overlap::Whole;
        }
        if start.gt(entry.seq) {
            let skip = start.since(entry.seq).next_multiple_of(mss);
            let useful = (entry.seq + skip).lt(end.min(entry.end_seq())) && skip <= entry.len;
            return if useful { Overlap::CutAt(skip) } else { Overlap::None };
        }
        let held = end.since(entry.seq);
        let held = held - held % mss;
        if held > 0 { Overlap::CutAt(held) } else { Overlap::None }
    }

    fn mark_one_sacked(&mut self, index: usize, acked: &mut Acked) {
        let entry = &self.entries[index];
        let (flags, bytes) = (entry.flags, entry.seq_len());
        if flags.contains(EntryFlags::SACKED) {
            return;
        }
        let (start, end) = (entry.seq, entry.end_seq());
        acked.deliver(entry, bytes, end);
        acked.sacked += bytes;
        if !flags.contains(EntryFlags::EVER_RETRANSMITTED) {
            acked.sacked_sent_at = acked.sacked_sent_at.max(Some(entry.sent_at));
        }
        self.forget_marks(flags, bytes);
        let entry = &mut self.entries[index];
        entry.flags -= EntryFlags::LOST | EntryFlags::RETRANSMITTED;
        entry.flags |= EntryFlags::SACKED;
        self.sacked_bytes += bytes;
        self.sacked_count += 1;
        self.sacked.insert(start, end);
    }

    /// Subtracts `bytes` of an entry with these marks from the sums.
    pub(super) fn forget_marks(&mut self, flags: EntryFlags, bytes: u32) {
        if flags.contains(EntryFlags::LOST) {
            self.lost_bytes -= bytes;
        }
        if flags.contains(EntryFlags::RETRANSMITTED) {
            self.retrans_bytes -= bytes;
        }
        if flags.contains(EntryFlags::SACKED) {
            self.sacked_bytes -= bytes;
        }
    }

    /// Marks entry `index` as lost, unless it is `SACKED`. A retransmission of the entry counts as
    /// lost, too, so the entry may be retransmitted again.
    pub(crate) fn mark_lost(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        if entry.flags.contains(EntryFlags::SACKED) {
            return;
        }
        let bytes = entry.seq_len();
        let again = entry.flags.contains(EntryFlags::RETRANSMITTED);
        if !entry.flags.contains(EntryFlags::LOST) || again {
            self.lost_total = self.lost_total.wrapping_add(bytes);
            let lost = self.lost_total.wrapping_sub(entry.snapshot.lost);
            let sample = LossSample { tx_in_flight: entry.snapshot.in_flight, lost, len: bytes };
            if self.excessive_loss.is_none()
                && self.loss_thresh.is_exceeded(sample.lost, sample.tx_in_flight)
            {
                self.excessive_loss = Some(sample);
            }
        }
        if !entry.flags.contains(EntryFlags::LOST) {
            self.lost_bytes += bytes;
        }
        if again {
            self.retrans_bytes -= bytes;
        }
        entry.flags |= EntryFlags::LOST;
        entry.flags -= EntryFlags::RETRANSMITTED;
        self.lost_hint = self.lost_hint.min(index);
    }

    /// Marks all entries in flight except `SACKED` ones as lost, after a retransmission timeout.
    pub(crate) fn mark_all_lost(&mut self) {
        for index in 0..self.sent {
            self.mark_lost(index);
        }
        self.retransmitted.clear();
    }

    /// Marks the entries in flight that are larger than `len` as lost, because the path cannot
    /// carry them. Returns whether any entry, also one marked before, is lost.
    pub(crate) fn mark_larger_lost(&mut self, len: u32) -> bool {
        for index in 0..self.sent {
            if self.entries[index].len > len {
                self.mark_lost(index);
            }
        }
        self.lost_bytes > 0
    }

    /// Clears the marks `LOST` and `RETRANSMITTED` when, without SACK, recovery or CWR has ended or
    /// recovery was undone.
    pub(crate) fn clear_marks(&mut self) {
        self.retransmitted.clear();
        self.scan_from = None;
        if self.lost_bytes == 0 && self.retrans_bytes == 0 {
            return;
        }
        for entry in self.entries.iter_mut().take(self.sent) {
            entry.flags -= EntryFlags::LOST | EntryFlags::RETRANSMITTED;
        }
        self.lost_bytes = 0;
        self.retrans_bytes = 0;
    }

    /// Clears the marks `LOST` after they proved wrong: the data is in flight. `RETRANSMITTED`
    /// stays, because copies of the data may be in flight, too.
    pub(crate) fn unmark_lost(&mut self) {
        self.scan_from = None;
        if self.lost_bytes == 0 {
            return;
        }
        for entry in self.entries.iter_mut().take(self.sent) {
            entry.flags -= EntryFlags::LOST;
        }
        self.lost_bytes = 0;
    }

    /// Returns the latest transmission among the `SACKED` entries that were sent only once.
    pub(crate) fn newest_sacked_original(&self) -> Option<Transmission> {
        let sent = self.entries.iter().take(self.sent);
        let originals = sent.filter(|entry| {
            entry.flags & (EntryFlags::SACKED | EntryFlags::EVER_RETRANSMITTED)
                == EntryFlags::SACKED
        });
        let made = originals
            .map(|entry| Transmission { sent_at: entry.sent_at, end_seq: entry.end_seq() });
        made.reduce(|newest, this| if this.is_after(&newest) { this } else { newest })
    }

    /// Clears all marks `SACKED`: the peer has discarded data that it had reported, so none of its
    /// reports is reliable any more (RFC 2018 §8).
    pub(crate) fn renege(&mut self) {
        for entry in self.entries.iter_mut().take(self.sent) {
            entry.flags -= EntryFlags::SACKED;
        }
        self.sacked.clear();
        self.sacked_bytes = 0;
        self.sacked_count = 0;
    }

    /// Returns the index of the first lost entry that is not retransmitted yet.
    pub(crate) fn next_lost(&mut self) -> Option<usize> {
        if self.lost_bytes == 0 {
            return None;
        }
        while self.lost_hint < self.sent {
            let flags = self.entries[self.lost_hint].flags;
            if flags.contains(EntryFlags::LOST) && !flags.contains(EntryFlags::RETRANSMITTED) {
                return Some(self.lost_hint);
            }
            self.lost_hint = self.after_sacked(self.lost_hint).max(self.lost_hint + 1);
        }
        None
    }

    /// Records a retransmission of entry `index`.
    pub(super) fn note_retransmission(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        entry.retransmits = entry.retransmits.saturating_add(1);
        if !entry.flags.contains(EntryFlags::RETRANSMITTED) {
            self.retrans_bytes += entry.seq_len();
        }
        entry.flags |= EntryFlags::RETRANSMITTED | EntryFlags::EVER_RETRANSMITTED;
        self.retransmitted.push_back(Retransmission { seq: entry.seq, sent_at: entry.sent_at });
    }

    /// Adds entry `index`, the second part of an entry that was split, to the list of
    /// retransmissions if that part is a retransmission in flight.
    pub(super) fn note_split(&mut self, index: usize) {
        let entry = &self.entries[index];
        if entry.flags.contains(EntryFlags::RETRANSMITTED) {
            let sent_at = entry.sent_at;
            let place = self.retransmitted.partition_point(|again| again.sent_at <= sent_at);
            self.retransmitted.insert(place, Retransmission { seq: entry.seq, sent_at });
        }
    }

    /// Returns the index of the oldest retransmission in flight.
    pub(crate) fn oldest_retransmission(&mut self) -> Option<usize> {
        let una = self.entries.front()?.seq;
        while let Some(again) = self.retransmitted.front() {
            let index = self.index_of(again.seq.max(una));
            if let Some(entry) = self.entries.get(index).filter(|_| index < self.sent)
                && entry.flags.contains(EntryFlags::RETRANSMITTED)
                && entry.sent_at == again.sent_at
            {
                return Some(index);
            }
            self.retransmitted.pop_front();
        }
        None
    }

    /// Removes the retransmissions before `una` from the list, because they are acknowledged.
    pub(super) fn drop_retransmissions_before(&mut self, una: SeqNum) {
        while self.retransmitted.front().is_some_and(|again| again.seq.lt(una)) {
            // A retransmission that begins before `una` may end after it.
            let Some(again) = self.retransmitted.pop_front() else { break };
            let rest = self.entries.front().filter(|front| front.sent_at == again.sent_at);
            if rest.is_some_and(|front| front.flags.contains(EntryFlags::RETRANSMITTED)) {
                self.retransmitted.push_front(Retransmission { seq: una, ..again });
                break;
            }
        }
    }

    /// Returns the index of the entry that contains `seq`.
    pub(super) fn index_of(&self, seq: SeqNum) -> usize {
        self.entries.partition_point(|entry| entry.end_seq().le(seq))
    }

    /// Returns the index of the first entry after the SACK range that contains entry `index`, or
    /// `index` if the entry is not `SACKED`.
    pub(crate) fn after_sacked(&self, index: usize) -> usize {
        let entry = &self.entries[index];
        if !entry.flags.contains(EntryFlags::SACKED) {
            return index;
        }
        self.index_of(self.sacked.end_of(entry.seq)).max(index + 1)
    }

    /// Returns the index before which no entry has to be checked for the loss of its first
    /// transmission: all of them are `SACKED`, lost or retransmitted.
    pub(crate) fn scan_start(&self) -> usize {
        self.scan_from.map_or(0, |seq| self.index_of(seq))
    }

    pub(crate) fn set_scan_start(&mut self, index: usize) {
        self.scan_from = self.entries.get(index).map(|entry| entry.seq);
    }

    pub(crate) fn lost_bytes(&self) -> u32 {
        self.lost_bytes
    }

    /// Returns and clears the first loss that exceeded BBR's LossThresh.
    pub(crate) fn take_excessive_loss(&mut self) -> Option<LossSample> {
        self.excessive_loss.take()
    }

    /// Returns BBR's LossThresh: the fraction of the flight whose loss is tolerated.
    pub(crate) fn loss_thresh(&self) -> LossThresh {
        self.loss_thresh
    }

    /// Returns the bytes ever detected as lost, modulo 2^32.
    pub(crate) fn lost_total(&self) -> u32 {
        self.lost_total
    }

    pub(crate) fn retrans_bytes(&self) -> u32 {
        self.retrans_bytes
    }

    /// Returns the bytes in flight that the peer has reported.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.sacked_bytes
    }

    /// Returns the number of `SACKED` segments, estimated as the number of `SACKED` entries or, if
    /// larger, the number of full segments in their bytes. A small segment counts as a full one.
    pub(crate) fn sacked_segments(&self, mss: u32) -> u32 {
        self.sacked_count.max(self.sacked_bytes / mss)
    }

    /// Returns the first sequence number after the highest reported byte.
    pub(crate) fn highest_sacked(&self) -> Option<SeqNum> {
        self.sacked.highest()
    }
}

/// Numbers of splits at the edges of a reported range.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitCounts {
    /// Splits made.
    pub(crate) made: u32,
    /// Splits refused because the queue is too large.
    pub(crate) refused: u32,
}

/// Position of an entry relative to a reported range.
enum Overlap {
    Whole,
    /// The entry lies partly inside: after a split at this offset, one part may lie inside.
    CutAt(u32),
    /// No whole segment of the entry lies inside.
    None,
}
