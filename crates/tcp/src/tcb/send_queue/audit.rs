//! Invariants of the send queue: its order, its sums, and the marks of its entries.
//!
//! Above: `socket::audit`.

use pkt::Packet;

use super::{Entry, EntryFlags, SendQueue};
use crate::wire::seq::SeqNum;

impl SendQueue {
    /// Panics unless the sums and the order of the module head hold. `una` and `nxt` are SND.UNA and SND.NXT.
    ///
    /// Simulator and fuzzer ask after every turn, so that a queue of thousands would take most of their time: a long one is walked in
    /// one of [`turns_per_walk`](Self::turns_per_walk) turns, which its own numbers choose, so that a run repeats itself exactly.
    pub(crate) fn check(&self, una: SeqNum, nxt: SeqNum) {
        assert_eq!(
            self.entries.front().map_or(self.write_seq, |entry| entry.seq),
            una,
            "it begins at SND.UNA"
        );
        assert_eq!(
            self.entries.back().map_or(una, Entry::end_seq),
            self.write_seq,
            "it ends at write_seq"
        );
        assert!(self.sent <= self.entries.len());
        let first_unsent = self.entries.get(self.sent).map_or(self.write_seq, |entry| entry.seq);
        assert_eq!(first_unsent, nxt, "SND.NXT is the first unsent byte");
        let numbers = [una.0, nxt.0, self.write_seq.0, self.sacked_bytes, self.lost_bytes];
        let mixed = numbers
            .iter()
            .fold(0_u32, |sum, number| (sum.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B1));
        if (mixed >> 16).is_multiple_of(self.turns_per_walk()) {
            self.check_entries();
            self.check_marks();
        }
    }

    /// Of so many turns one walks the queue: a turn costs some 64 entries in the mean.
    fn turns_per_walk(&self) -> u32 {
        u32::try_from(self.entries.len() / 64).unwrap_or(u32::MAX).max(1)
    }

    fn check_entries(&self) {
        let mut wmem = 0;
        let mut seq = self.entries.front().map_or(self.write_seq, |entry| entry.seq);
        for (index, entry) in self.entries.iter().enumerate() {
            assert_eq!(entry.seq, seq, "entry {index} is contiguous");
            assert!(entry.seq_len() > 0, "entry {index} is not empty");
            let packet_len = entry.packet.as_ref().map_or(0, Packet::len);
            assert_eq!(packet_len, entry.len as usize, "entry {index} holds its bytes");
            let truesize = entry.packet.as_ref().map_or(0, Packet::truesize);
            assert_eq!(truesize, entry.charge, "entry {index} is charged what it holds");
            seq = entry.end_seq();
            wmem += entry.charge;
        }
        assert_eq!(wmem, self.wmem_queued, "wmem_queued is the sum of the charges");
    }

    /// Panics unless the marks agree with their sums.
    fn check_marks(&self) {
        let (mut lost_bytes, mut retrans_bytes, mut sacked_bytes) = (0, 0, 0);
        let (mut count, mut again) = (0, 0);
        for (index, entry) in self.entries.iter().enumerate() {
            let marks = entry.flags & (EntryFlags::LOST | EntryFlags::RETRANSMITTED);
            let sacked = entry.flags.contains(EntryFlags::SACKED);
            assert!(index < self.sent || (marks.is_empty() && !sacked), "unsent has no marks");
            assert!(marks.is_empty() || !sacked, "what arrived is not lost");
            let bytes_if = |marked: bool| if marked { entry.seq_len() } else { 0 };
            lost_bytes += bytes_if(marks.contains(EntryFlags::LOST));
            retrans_bytes += bytes_if(marks.contains(EntryFlags::RETRANSMITTED));
            sacked_bytes += bytes_if(sacked);
            count += u32::from(sacked);
            again += usize::from(marks.contains(EntryFlags::RETRANSMITTED));
            let waits = marks == EntryFlags::LOST;
            assert!(!waits || index >= self.lost_hint, "lost_hint skips nothing");
        }
        assert_eq!(lost_bytes, self.lost_bytes, "LOST adds up");
        assert_eq!(retrans_bytes, self.retrans_bytes, "RETRANSMITTED adds up");
        assert_eq!(sacked_bytes, self.sacked_bytes, "SACKED adds up");
        assert_eq!(self.sacked.check(), sacked_bytes, "the ranges are the entries");
        assert_eq!(count, self.sacked_count, "sacked_count is the entries'");
        assert!(again <= self.again.len(), "every retransmission is listed");
    }
}
