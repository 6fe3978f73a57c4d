//! The out-of-order queue: packets that arrived before their predecessors, until the gap before
//! them is filled.
//!
//! Above: `input` inserts packets that are in the window but not next, and takes the packets that
//! have become next. RFC 9293 §3.10.7.4 (seventh step), RFC 2018, RFC 2883; Linux:
//! tcp_data_queue_ofo(), tcp_ofo_queue(), tcp_prune_ofo_queue().
//!
//! ```text
//!    rcv_nxt                run 0                      run 1
//!       |      gap     start ... end       gap   start ....... end
//!                      [pkt][ pkt ]              [pkt][pkt][ pkt ]
//! ```
//!
//! Packets are grouped into *runs*: a run is a range of the sequence space without a gap, with its
//! packets in a list. Runs are sorted, and neither overlap nor touch. A run is a SACK block, so the
//! number of runs is the number of gaps and not of packets: the segments that follow one loss
//! arrive in order, and each costs one comparison and one list append. A search is binary; an
//! insertion of a new run moves at most half of at most [`RUNS_MAX`] small entries, which bounds
//! the cost of a peer that fills the window with single bytes.
//!
//! The bytes of a run's packets are exactly its range: a new packet is trimmed where it overlaps,
//! and replaces a run that it covers completely. It is not defined which copy of a byte is kept,
//! because both come from the peer.
//!
//! A FIN has no byte of payload, so the queue stores only its sequence number.
//!
//! The queue frees only packets whose payload `collapse` has copied to others. Packets that are
//! removed without being delivered are returned to the caller, which frees them.
//!
//! Not here: the check that a segment is acceptable, memory accounting of the socket, the order of
//! SACK blocks.

mod place;
mod run;

use alloc::collections::VecDeque;

use pkt::{DropReason, Packet, PacketList, Pool};

use self::{
    place::Place,
    run::{Run, is_small, payload_len, trim, truesize},
};
use crate::wire::seq::SeqNum;

/// Largest number of runs. There is one for each gap: a 64 MiB window of full segments at 1 %
/// random loss has about 450. A peer that causes more runs probably tries to make the queue slow.
pub const RUNS_MAX: usize = 4096;

/// Entries that stay allocated while the queue is empty: enough for a usual loss, small compared to
/// the control block.
const RUNS_KEPT: usize = 8;

/// The out-of-order queue of one connection.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Sorted; `runs[i].end` is before `runs[i + 1].start`.
    runs: VecDeque<Run>,
    /// Sequence number of the peer's FIN. Not before the end of any run.
    fin: Option<SeqNum>,
    /// Sum of the packets' memory.
    truesize: usize,
    /// Memory of the small packets queued since small packets were last copied together.
    small_truesize: usize,
    /// Number of runs moved and packets traversed since the beginning: the work that a hostile peer
    /// can cause.
    #[cfg(test)]
    pub(crate) steps: usize,
}

/// Result of an insertion.
#[derive(Debug)]
#[must_use]
pub enum Insert {
    /// A part of the packet was new and is queued.
    Queued(Queued),
    /// The packet was a FIN without data and is returned. The FIN is recorded unless it contradicts
    /// the known stream.
    FinNoted(Packet),
    /// No data was queued. A FIN may have been recorded.
    Refused(DropReason, Packet),
}

/// A packet was queued.
#[derive(Debug)]
pub struct Queued {
    /// Bytes of the stream that the packet added, less those of `redundant`: above 0.
    pub new_bytes: u32,
    /// Run that contains the packet: the first SACK block to report (RFC 2018 §4).
    pub block: (SeqNum, SeqNum),
    /// First range of the packet that was already queued, if any: the D-SACK block to report
    /// (RFC 2883 §4).
    pub duplicate: Option<(SeqNum, SeqNum)>,
    /// Packets that the new one replaces. The caller frees them.
    pub redundant: PacketList,
}

/// Packets that have become deliverable.
#[derive(Debug, Default)]
pub struct Ready {
    /// Packets in order, starting at the given `rcv_nxt`.
    pub packets: PacketList,
    /// RCV.NXT after these packets.
    pub rcv_nxt: SeqNum,
    /// Packets without new data. The caller frees them.
    pub stale: PacketList,
}

impl Reassembly {
    /// Returns an empty queue, which allocates memory for its first packet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            runs: VecDeque::new(),
            fin: None,
            truesize: 0,
            small_truesize: 0,
            #[cfg(test)]
            steps: 0,
        }
    }

    /// Queues a packet without headers, already trimmed to the window. `seq` is the sequence number
    /// of its first byte. `fin` says whether its segment carried a FIN; the packet may then be
    /// empty.
    ///
    /// `limit_bytes` bounds the memory of all queued packets. A packet that would exceed it is
    /// refused, as is one that would exceed the number of runs.
    pub fn insert(
        &mut self,
        seq: SeqNum,
        mut packet: Packet,
        fin: bool,
        limit_bytes: usize,
    ) -> Insert {
        // Data behind the FIN does not belong to the stream.
        let end = match self.fin {
            Some(last) => (seq + payload_len(&packet)).min(last.max(seq)),
            None => seq + payload_len(&packet),
        };
        if seq == end {
            return if fin && packet.is_empty() {
                self.note_fin(seq);
                Insert::FinNoted(packet)
            } else {
                Insert::Refused(DropReason::TcpOfoDuplicate, packet)
            };
        }
        let place = self.place(seq, end);
        if place.is_duplicate {
            if fin {
                self.note_fin(end);
            }
            return Insert::Refused(DropReason::TcpOfoDuplicate, packet);
        }
        let too_large = self.truesize + truesize(&packet) > limit_bytes;
        if too_large || (place.is_new_run() && self.runs.len() >= RUNS_MAX) {
            return Insert::Refused(DropReason::TcpOfoQueueFull, packet);
        }
        let skipped = place.start.since(seq);
        trim(&mut packet, skipped, place.end.since(place.start));
        let (redundant, redundant_bytes) = self.remove_covered(&place);
        let block = self.link(&place, packet);
        if fin {
            self.note_fin(end);
        }
        Insert::Queued(Queued {
            new_bytes: place.end.since(place.start) - redundant_bytes,
            block,
            duplicate: place.duplicate,
            redundant,
        })
    }

    /// Removes the packets that have become contiguous with `rcv_nxt`, and the packets before it.
    pub fn take_contiguous(&mut self, rcv_nxt: SeqNum) -> Ready {
        let mut ready = Ready { rcv_nxt, ..Ready::default() };
        while self.runs.front().is_some_and(|run| run.start.le(rcv_nxt)) {
            let Some(mut run) = self.runs.pop_front() else { break };
            self.truesize -= run.truesize;
            if run.end.le(rcv_nxt) {
                ready.stale.append(&mut run.packets);
                continue;
            }
            let stale = ready.stale.len();
            run.skip_to(rcv_nxt, &mut ready.stale);
            self.note_steps(1 + ready.stale.len() - stale);
            ready.packets = run.packets;
            ready.rcv_nxt = run.end;
            // There is a gap before the next run.
            break;
        }
        self.shrink();
        ready
    }

    /// Returns all packets and resets the FIN: the connection receives no more data.
    #[must_use]
    pub fn clear(&mut self) -> PacketList {
        let mut all = PacketList::default();
        for run in &mut self.runs {
            all.append(&mut run.packets);
        }
        *self = Self::new();
        all
    }

    /// Returns whether the peer's FIN is next, because all data before it has been received.
    #[must_use]
    pub fn is_fin_next(&self, rcv_nxt: SeqNum) -> bool {
        self.fin == Some(rcv_nxt)
    }

    /// Returns the sequence number of the peer's FIN, if one arrived out of order.
    #[must_use]
    pub const fn fin(&self) -> Option<SeqNum> {
        self.fin
    }

    /// Returns whether no packet is queued. A FIN may be recorded.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns whether no packet is queued and no FIN is recorded: the stream has no gap.
    #[inline]
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.runs.is_empty() && self.fin.is_none()
    }

    /// Returns the memory of the queued packets.
    #[must_use]
    pub const fn truesize(&self) -> usize {
        self.truesize
    }

    /// Returns the number of queued bytes of the stream.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks().map(|(start, end)| u64::from(end.since(start))).sum()
    }

    /// Returns the end of the last queued byte.
    #[must_use]
    pub fn highest_end(&self) -> Option<SeqNum> {
        self.runs.back().map(|run| run.end)
    }

    /// Returns start and end of each run, in order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (SeqNum, SeqNum)> + '_ {
        self.runs.iter().map(|run| (run.start, run.end))
    }

    /// Returns the SACK block that contains `seq`, if `seq` is queued. A FIN that follows a run is
    /// part of its block, as in Linux: a sender keeps FIN and payload in one packet, and
    /// retransmits a packet that no block covers completely.
    #[must_use]
    pub fn block_of(&self, seq: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let next = self.first_ending_after(seq);
        if let Some(run) = self.runs.get(next).filter(|run| run.start.le(seq)) {
            let fin = u32::from(self.fin == Some(run.end));
            return Some((run.start, run.end + fin));
        }
        if self.fin != Some(seq) {
            return None;
        }
        let before = next.checked_sub(1).and_then(|last| self.runs.get(last));
        let start = before.filter(|run| run.end == seq).map_or(seq, |run| run.start);
        Some((start, seq + 1))
    }

    /// Returns the queued ranges before `rcv_nxt`, in order: in-order data has brought these bytes
    /// a second time (the D-SACK range).
    pub fn ranges_before(&self, rcv_nxt: SeqNum) -> impl Iterator<Item = (SeqNum, SeqNum)> + '_ {
        let reached = self.blocks().take_while(move |(start, _)| start.lt(rcv_nxt));
        reached.map(move |(start, end)| (start, end.min(rcv_nxt)))
    }

    /// Asserts the invariants of the queue.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    pub fn check(&self, rcv_nxt: SeqNum) {
        let mut before = rcv_nxt;
        let mut total = 0;
        for run in &self.runs {
            assert!(
                run.start.gt(before),
                "run {:?} begins before or at {before}, the end of the previous one",
                (run.start, run.end)
            );
            assert!(run.end.gt(run.start));
            let bytes = usize::try_from(run.end.since(run.start)).unwrap_or(usize::MAX);
            assert_eq!(run.packets.bytes(), bytes);
            before = run.end;
            total += run.truesize;
        }
        assert_eq!(self.truesize, total);
        assert!(self.fin.is_none_or(|fin| fin.ge(before)));
        assert!(self.runs.len() <= RUNS_MAX);
    }

    /// Records a FIN. A FIN that contradicts the known stream is ignored: the peer retransmits it,
    /// and it is processed when it is next.
    fn note_fin(&mut self, seq: SeqNum) {
        if self.fin.is_none() && self.highest_end().is_none_or(|end| end.le(seq)) {
            self.fin = Some(seq);
        }
    }

    /// Removes the runs that a packet covers completely; returns their packets and the number of
    /// their bytes.
    fn remove_covered(&mut self, place: &Place) -> (PacketList, u32) {
        let mut redundant = PacketList::default();
        let mut bytes = 0;
        self.note_steps(place.covered_end - place.index);
        if place.covered_end > place.index {
            self.note_moves(place.covered_end);
        }
        for mut run in self.runs.drain(place.index..place.covered_end) {
            self.truesize -= run.truesize;
            bytes += run.end.since(run.start);
            redundant.append(&mut run.packets);
        }
        (redundant, bytes)
    }

    /// Adds a trimmed packet to the run that `place` determines, or as a new run. Returns the range
    /// of the run that contains the packet.
    fn link(&mut self, place: &Place, packet: Packet) -> (SeqNum, SeqNum) {
        self.truesize += truesize(&packet);
        if is_small(&packet) {
            self.small_truesize += truesize(&packet);
        }
        let mut new = Run::new(place.start, place.end, packet);
        let index = match (place.joins_left, place.joins_right) {
            (false, false) => {
                self.note_moves(place.index);
                self.runs.insert(place.index, new);
                place.index
            }
            (false, true) => {
                let right = &mut self.runs[place.index];
                new.absorb(right);
                *right = new;
                place.index
            }
            (true, joins_right) => {
                if joins_right && let Some(mut right) = self.runs.remove(place.index) {
                    self.note_moves(place.index);
                    new.absorb(&mut right);
                }
                self.runs[place.index - 1].absorb(&mut new);
                place.index - 1
            }
        };
        (self.runs[index].start, self.runs[index].end)
    }

    /// Counts the runs that a change at `index` moves: the runs on the shorter side of `index`.
    fn note_moves(&mut self, index: usize) {
        self.note_steps(index.min(self.runs.len() - index.min(self.runs.len())));
    }

    /// Counts work, for the tests that bound it.
    #[cfg(test)]
    fn note_steps(&mut self, steps: usize) {
        self.steps += steps;
    }

    #[cfg(not(test))]
    #[expect(
        clippy::unused_self,
        clippy::needless_pass_by_ref_mut,
        reason = "counts in tests only"
    )]
    fn note_steps(&mut self, _steps: usize) {}

    /// Releases a large allocation when the queue is empty.
    fn shrink(&mut self) {
        if self.runs.is_empty() && self.runs.capacity() > RUNS_KEPT {
            self.runs.shrink_to(RUNS_KEPT);
        }
    }
}

/// Release of memory: dropping the end of the queue, and copying small packets together
/// (RFC 2018 §8; Linux: tcp_prune_ofo_queue, tcp_collapse_ofo_queue).
///
/// Both functions traverse packets. The caller releases memory for many segments at once, so a peer
/// that fills the queue with very small segments must send many of them to cause one traversal
/// (CVE-2018-5390, SegmentSmack).
impl Reassembly {
    /// Reduces memory to `limit_bytes` by returning the packets with the highest sequence numbers,
    /// which the caller frees. That is safe because the peer must keep unacknowledged data even if
    /// SACK has reported it (RFC 2018 §8).
    #[must_use]
    pub fn prune(&mut self, limit_bytes: usize) -> PacketList {
        let mut pruned = PacketList::default();
        while self.truesize > limit_bytes {
            let Some(last) = self.runs.back_mut() else { break };
            let others = self.truesize - last.truesize;
            let packets = last.packets.len();
            last.keep_front(limit_bytes.saturating_sub(others), &mut pruned);
            self.truesize = others + last.truesize;
            if last.start == last.end {
                self.runs.pop_back();
            }
            self.note_steps(packets);
        }
        self.shrink();
        pruned
    }

    /// Copies adjacent small packets of a run together, if small packets of at least `worth_bytes`
    /// of memory have arrived since the last such copy. Returns the number of packets that this
    /// saves.
    pub fn collapse(&mut self, pool: &mut Pool, worth_bytes: usize) -> usize {
        if self.small_truesize < worth_bytes.max(1) {
            return 0;
        }
        self.small_truesize = 0;
        let (mut saved, mut packets, mut memory) = (0, 0, 0);
        for run in &mut self.runs {
            packets += run.packets.len();
            saved += run.collapse(pool);
            memory += run.truesize;
        }
        self.truesize = memory;
        self.note_steps(packets);
        saved
    }
}

#[cfg(test)]
mod tests;
