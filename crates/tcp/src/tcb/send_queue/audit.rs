//! Invariants of the send queue: its order, its sums, and the marks of its entries.
//!
//! Above: `socket::audit`.

use pkt::Packet;

use super::{Entry, EntryFlags, SendQueue};
use crate::wire::seq::SeqNum;

impl SendQueue {
    /// Panics unless the entries are contiguous from SND.UNA (`una`) to `write_seq`, SND.NXT
    /// (`nxt`) is the first unsent byte, and the sums agree with the entries.
    ///
    /// The simulator and the fuzzer call this function after every event, and a traversal of a
    /// queue of thousands of entries would take most of their time. Therefore only one of
    /// [`calls_per_traversal`](Self::calls_per_traversal) calls traverses the queue. A hash of the
    /// queue's numbers chooses that call, so that the same input always leads to the same checks.
    pub(crate) fn check(&self, una: SeqNum, nxt: SeqNum) {
        assert_eq!(
            self.entries.front().map_or(self.write_seq, |entry| entry.seq),
            una,
            "the queue does not begin at SND.UNA"
        );
        assert_eq!(
            self.entries.back().map_or(una, Entry::end_seq),
            self.write_seq,
            "the queue does not end at write_seq"
        );
        assert!(self.sent <= self.entries.len(), "`sent` exceeds the number of entries");
        let first_unsent = self.entries.get(self.sent).map_or(self.write_seq, |entry| entry.seq);
        assert_eq!(first_unsent, nxt, "SND.NXT is not the first unsent byte");
        let numbers = [una.0, nxt.0, self.write_seq.0, self.sacked_bytes, self.lost_bytes];
        let mixed = numbers
            .iter()
            .fold(0_u32, |sum, number| (sum.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B1));
        if (mixed >> 16).is_multiple_of(self.calls_per_traversal()) {
            self.check_entries();
            self.check_marks();
        }
    }

    /// Returns the number of calls per traversal, chosen so that a call checks about 64 entries on
    /// average.
    fn calls_per_traversal(&self) -> u32 {
        u32::try_from(self.entries.len() / 64).unwrap_or(u32::MAX).max(1)
    }

    fn check_entries(&self) {
        let mut wmem = 0;
        let mut seq = self.entries.front().map_or(self.write_seq, |entry| entry.seq);
        for (index, entry) in self.entries.iter().enumerate() {
            assert_eq!(entry.seq, seq, "entry {index} is not contiguous");
            assert!(entry.seq_len() > 0, "entry {index} is empty");
            let packet_len = entry.packet.as_ref().map_or(0, Packet::len);
            assert_eq!(
                packet_len, entry.len as usize,
                "entry {index} and its packet differ in length"
            );
            let truesize = entry.packet.as_ref().map_or(0, Packet::truesize);
            assert_eq!(truesize, entry.charge, "the charge of entry {index} is not its truesize");
            seq = entry.end_seq();
            wmem += entry.charge;
        }
        assert_eq!(wmem, self.wmem_queued, "wmem_queued is not the sum of the charges");
    }

    /// Panics unless the sums agree with the marks.
    fn check_marks(&self) {
        let (mut lost_bytes, mut retrans_bytes, mut sacked_bytes) = (0, 0, 0);
        let (mut count, mut again) = (0, 0);
        for (index, entry) in self.entries.iter().enumerate() {
            let marks = entry.flags & (EntryFlags::LOST | EntryFlags::RETRANSMITTED);
            let sacked = entry.flags.contains(EntryFlags::SACKED);
            assert!(
                index < self.sent || (marks.is_empty() && !sacked),
                "an unsent entry has marks"
            );
            assert!(
                marks.is_empty() || !sacked,
                "a SACKED entry is marked as LOST or RETRANSMITTED"
            );
            let bytes_if = |marked: bool| if marked { entry.seq_len() } else { 0 };
            lost_bytes += bytes_if(marks.contains(EntryFlags::LOST));
            retrans_bytes += bytes_if(marks.contains(EntryFlags::RETRANSMITTED));
            sacked_bytes += bytes_if(sacked);
            count += u32::from(sacked);
            again += usize::from(marks.contains(EntryFlags::RETRANSMITTED));
            let waits = marks == EntryFlags::LOST;
            assert!(!waits || index >= self.lost_hint, "lost_hint skips a lost entry");
        }
        assert_eq!(lost_bytes, self.lost_bytes, "lost_bytes is not the sum of LOST entries");
        assert_eq!(
            retrans_bytes, self.retrans_bytes,
            "retrans_bytes is not the sum of RETRANSMITTED entries"
        );
        assert_eq!(
            sacked_bytes, self.sacked_bytes,
            "sacked_bytes is not the sum of SACKED entries"
        );
        assert_eq!(
            self.sacked.check(),
            sacked_bytes,
            "the SACK ranges differ from the SACKED entries"
        );
        assert_eq!(count, self.sacked_count, "sacked_count is not the number of SACKED entries");
        assert!(
            again <= self.retransmitted.len(),
            "a retransmission is not in the list `retransmitted`"
        );
    }
}
