//! Packets that arrived before their turn, until the gap before them closes.
//!
//! Above: `input` inserts what is in the window but not next, and takes what became next.
//! RFC 9293 §3.10.7.4 (seventh), RFC 2018, RFC 2883; Linux: tcp_data_queue_ofo(), tcp_ofo_queue(),
//! tcp_prune_ofo_queue().
//!
//! ```text
//!    rcv_nxt                run 0                      run 1
//!       |      gap     start ... end       gap   start ....... end
//!                      [pkt][ pkt ]              [pkt][pkt][ pkt ]
//! ```
//!
//! Packets are kept by *run*: a stretch of the sequence space without a gap, holding its packets as
//! a list. Runs are sorted, and neither overlap nor touch. A run is what SACK calls a block, so
//! their number is the number of gaps and not of packets: the segments that follow one loss arrive
//! in order and each costs one comparison and one list append. A search is binary; an insertion of
//! a new run moves at most half of at most [`RUNS_MAX`] small entries, which bounds what a peer
//! that fills the window with single bytes can cost.
//!
//! The bytes of a run's packets are exactly its range: a new packet is trimmed where it overlaps,
//! and a run that it covers whole gives way to it. Which copy of a byte survives is not defined,
//! because both are the peer's.
//!
//! A FIN is a mark at a sequence number, since it has no byte.
//!
//! Nothing is freed here: packets that leave without being delivered go back to the caller, which
//! counts and frees them.
//!
//! Not here: whether a segment is acceptable, memory accounting of the socket, the order of SACK
//! blocks.

mod place;
mod run;

use alloc::collections::VecDeque;

use pkt::{DropReason, Packet, PacketList, Pool};

use self::{
    place::Place,
    run::{Run, is_small, payload_len, trim, truesize},
};
use crate::wire::seq::SeqNum;

/// Runs held at once. One for each gap: a 64 MiB window of full segments at 1 % random loss has
/// about 450. More is a peer that wants the queue to be slow.
pub const RUNS_MAX: usize = 4096;

/// Entries kept allocated once the queue is empty: enough for a usual loss, small beside the
/// control block.
const RUNS_KEPT: usize = 8;

/// The out-of-order queue of one connection.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Sorted; `runs[i].end` is before `runs[i + 1].start`.
    runs: VecDeque<Run>,
    /// The peer's FIN comes with this number. Not before the end of any run.
    fin: Option<SeqNum>,
    /// Sum of the packets' memory.
    truesize: usize,
    /// Memory of the small packets queued since they were last copied together.
    small_truesize: usize,
    /// Runs moved and packets walked since the beginning: what a hostile peer makes us do.
    #[cfg(test)]
    pub(crate) steps: usize,
}

/// What became of an inserted packet.
#[derive(Debug)]
#[must_use]
pub enum Insert {
    /// Some of it was new and is queued.
    Queued(Queued),
    /// A FIN without data: it is noted, and the packet has done its duty.
    FinNoted(Packet),
    /// Nothing was queued.
    Refused(DropReason, Packet),
}

/// A packet was queued.
#[derive(Debug)]
pub struct Queued {
    /// Bytes of the stream it added, less those of `redundant`: above 0.
    pub new_bytes: u32,
    /// The run it is in: the first SACK block to report (RFC 2018 §4).
    pub block: (SeqNum, SeqNum),
    /// The first range that was here before, if any: the D-SACK block to report (RFC 2883 §4).
    pub duplicate: Option<(SeqNum, SeqNum)>,
    /// Packets it made superfluous, to be dropped with [`DropReason::TcpOfoDuplicate`].
    pub redundant: PacketList,
}

/// What became deliverable.
#[derive(Debug, Default)]
pub struct Ready {
    /// Packets in order, their first byte being the `rcv_nxt` asked about.
    pub packets: PacketList,
    /// RCV.NXT behind them.
    pub rcv_nxt: SeqNum,
    /// Packets that hold nothing new, to be dropped with [`DropReason::TcpOfoDuplicate`].
    pub stale: PacketList,
}

impl Reassembly {
    /// An empty queue; it allocates with its first packet.
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

    /// Queues a packet that holds nothing but data, whose first byte is `seq`, trimmed to the
    /// window. `fin` says that its segment carried one.
    ///
    /// `limit_bytes` bounds the memory of all queued packets; a packet that would exceed it is
    /// refused, as is one that would open one gap too many.
    pub fn insert(
        &mut self,
        seq: SeqNum,
        mut packet: Packet,
        fin: bool,
        limit_bytes: usize,
    ) -> Insert {
        // Data behind the FIN is none of the stream's.
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

    /// Takes what has become contiguous with `rcv_nxt`, and what lies before it.
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
            // The next run starts behind a gap.
            break;
        }
        self.shrink();
        ready
    }

    /// Gives back everything and forgets the FIN: the connection takes no more data.
    #[must_use]
    pub fn clear(&mut self) -> PacketList {
        let mut all = PacketList::default();
        for run in &mut self.runs {
            all.append(&mut run.packets);
        }
        *self = Self::new();
        all
    }

    /// The peer's FIN is next: everything before it has been taken.
    #[must_use]
    pub fn is_fin_next(&self, rcv_nxt: SeqNum) -> bool {
        self.fin == Some(rcv_nxt)
    }

    /// The number of the peer's FIN, if one came out of order.
    #[must_use]
    pub const fn fin(&self) -> Option<SeqNum> {
        self.fin
    }

    /// No packet is queued. A FIN may be noted.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// No packet is queued and no FIN is noted: the stream has no gap.
    #[inline]
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.runs.is_empty() && self.fin.is_none()
    }

    /// Memory of the queued packets.
    #[must_use]
    pub const fn truesize(&self) -> usize {
        self.truesize
    }

    /// Bytes of the stream held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks().map(|(start, end)| u64::from(end.since(start))).sum()
    }

    /// Behind the last byte held.
    #[must_use]
    pub fn highest_end(&self) -> Option<SeqNum> {
        self.runs.back().map(|run| run.end)
    }

    /// Start and end of each run, in order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (SeqNum, SeqNum)> + '_ {
        self.runs.iter().map(|run| (run.start, run.end))
    }

    /// The SACK block that holds `seq`, if it is held. A FIN that follows a run is part of its block, as
    /// in Linux: a sender keeps FIN and payload in one packet, and repeats what no block covers whole.
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

    /// Ranges held that lie before `rcv_nxt`, in order: data in order has brought them again.
    pub fn ranges_before(&self, rcv_nxt: SeqNum) -> impl Iterator<Item = (SeqNum, SeqNum)> + '_ {
        let reached = self.blocks().take_while(move |(start, _)| start.lt(rcv_nxt));
        reached.map(move |(start, end)| (start, end.min(rcv_nxt)))
    }

    /// Asserts what always holds.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn check(&self, rcv_nxt: SeqNum) {
        let mut before = rcv_nxt;
        let mut total = 0;
        for run in &self.runs {
            assert!(run.start.gt(before), "{:?} touches {before}", (run.start, run.end));
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

    /// Notes a FIN. One that contradicts what is known is ignored: it comes again when it is next.
    fn note_fin(&mut self, seq: SeqNum) {
        if self.fin.is_none() && self.highest_end().is_none_or(|end| end.le(seq)) {
            self.fin = Some(seq);
        }
    }

    /// Takes out the runs a packet covers whole; answers their packets and how many bytes they
    /// held.
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

    /// Puts a trimmed packet in its place and answers the run it is in.
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

    /// Counts the runs that a change at `index` moves: those on its shorter side.
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

    /// An empty queue keeps no large allocation.
    fn shrink(&mut self) {
        if self.runs.is_empty() && self.runs.capacity() > RUNS_KEPT {
            self.runs.shrink_to(RUNS_KEPT);
        }
    }
}

/// Memory given back: the far end of the queue dropped, small packets copied together (RFC 2018 §8; Linux:
/// tcp_prune_ofo_queue, tcp_collapse_ofo_queue).
///
/// Both walk packets. The caller makes room for many segments at once, so that a peer which fills the queue with tiny
/// ones pays for each walk with as many of them (CVE-2018-5390, SegmentSmack).
impl Reassembly {
    /// Frees memory down to `limit_bytes` by giving back the packets furthest from their turn, to
    /// be dropped with `DropReason::TcpOfoPrune`. The peer must keep what it has not been
    /// acknowledged for, even when SACK reported it (RFC 2018 §8).
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

    /// Copies small neighbours within a run together, if small packets of at least `worth_bytes` of memory came since that
    /// was last done; answers how many packets that saved.
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
