//! The send queue: all bytes that the application wrote and the peer has not acknowledged.
//!
//! Above: `socket::api` appends, `segment` transmits clones of the entries, `input::ack` removes
//! them. Linux: sk_write_queue and tcp_rtx_queue; here both are one queue, divided by the index
//! `sent`.
//!
//! | entries | sequence numbers | state |
//! |---|---|---|
//! | before index `sent` | SND.UNA to SND.NXT | sent at least once, kept for retransmission |
//! | from index `sent` on | SND.NXT to `write_seq` | not sent yet; only the last entry grows |
//!
//! Entries are contiguous in sequence space and hold at least one sequence number each. An entry is
//! transmitted whole or split first (`split`), so that data in flight, lost, retransmitted or
//! reported by SACK always consists of whole entries. The scoreboard (`marks`) therefore needs only
//! a few flags per entry, and the sums of the flagged entries.
//!
//! Not here: the choice of the entry to send (`output`, `loss::retransmit`), headers (`segment`).

mod audit;
pub(crate) mod entry;
mod gather;
mod marks;
mod sacked;

use alloc::collections::VecDeque;
use core::ops::Range;

use pkt::{Instant, Packet, Payload, Pool};

use self::{marks::Retransmission, sacked::Sacked};
use crate::{
    congestion::{LossSample, LossThresh},
    tcb::{
        acked::Acked,
        send_queue::entry::{Entry, EntryFlags, Snapshot},
    },
    wire::seq::SeqNum,
};

/// Send queue of a connection.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: VecDeque<Entry>,
    /// Number of entries at the front that were transmitted at least once.
    sent: usize,
    /// Index before which no lost entry waits for its retransmission.
    lost_hint: usize,
    /// First sequence number after the queue: the number of the next byte that the application
    /// writes.
    write_seq: SeqNum,
    /// Sum of the entries' charges in `truesize` bytes (Linux `sk_wmem_queued`).
    wmem_queued: u32,
    /// Number of sequence numbers in entries flagged `LOST`.
    lost_bytes: u32,
    /// Number of sequence numbers in entries flagged `RETRANSMITTED`.
    retrans_bytes: u32,
    /// Number of sequence numbers in entries flagged `SACKED`.
    sacked_bytes: u32,
    /// Number of entries flagged `SACKED`.
    sacked_count: u32,
    /// Number of sequence numbers ever detected as lost, modulo 2^32 (Linux `tp->lost`). The loss
    /// of a retransmission counts again.
    lost_total: u32,
    /// First loss above `loss_thresh` since `take_excessive_loss` was last called.
    excessive_loss: Option<LossSample>,
    /// Fraction of the flight that may be lost before a loss counts as excessive.
    loss_thresh: LossThresh,
    /// Ranges of the entries flagged `SACKED`.
    sacked: Sacked,
    /// Retransmissions in flight, in the order of sending. Obsolete items are removed when they
    /// reach the front.
    retransmitted: VecDeque<Retransmission>,
    /// Sequence number before which no entry has to be checked for the loss of its first
    /// transmission; `None` is the front.
    scan_from: Option<SeqNum>,
}

impl SendQueue {
    /// Returns a range of addresses that contains the memory of the entries. A `VecDeque` does not
    /// reveal where its memory begins, so the range has its whole capacity before the first entry
    /// and after it.
    pub(crate) fn memory(&self) -> Range<usize> {
        let first = self.entries.as_slices().0.as_ptr().addr();
        let bytes = self.entries.capacity() * size_of::<Entry>();
        first.saturating_sub(bytes)..first + bytes
    }

    pub(crate) fn new(write_seq: SeqNum, loss_thresh: LossThresh) -> Self {
        Self {
            entries: VecDeque::new(),
            sent: 0,
            lost_hint: 0,
            write_seq,
            wmem_queued: 0,
            lost_bytes: 0,
            retrans_bytes: 0,
            sacked_bytes: 0,
            sacked_count: 0,
            lost_total: 0,
            excessive_loss: None,
            loss_thresh,
            sacked: Sacked::default(),
            retransmitted: VecDeque::new(),
            scan_from: None,
        }
    }

    /// Appends `bytes` and returns the number of appended bytes, which is smaller than requested
    /// only if `alloc` gave no packet or packet memory ran out.
    ///
    /// The tail grows up to `size_goal` while it is unsent. A byte slice is copied into the heads
    /// or pool pages of packets: this is the only copy on the transmit path, except for a path MTU
    /// probe (`gather`). `pkt::Pages` are shared instead. The copy into pages also computes a
    /// checksum for each piece of `piece` bytes, unless `piece` is 0. `alloc` allocates the
    /// packets.
    pub(crate) fn append(
        &mut self,
        pool: &mut Pool,
        mut bytes: impl Payload,
        (size_goal, piece): (u32, u16),
        mut alloc: impl FnMut(&mut Pool) -> Option<Packet>,
    ) -> usize {
        let total = bytes.byte_len();
        while bytes.byte_len() > 0 {
            let grown = match self.growable_tail(size_goal) {
                Some(index) => self.grow(pool, index, bytes, (size_goal, piece)),
                None => 0,
            };
            let taken = match grown {
                0 => self.push_packet(pool, bytes, (size_goal, piece), &mut alloc),
                grown => grown,
            };
            if taken == 0 {
                break;
            }
            bytes = bytes.split(taken).1;
        }
        total - bytes.byte_len()
    }

    /// Returns the index of the tail if bytes may still be appended to it.
    fn growable_tail(&self, size_goal: u32) -> Option<usize> {
        let index = self.entries.len().checked_sub(1)?;
        let tail = &self.entries[index];
        let open = index >= self.sent && tail.len < size_goal && tail.packet.is_some();
        (open && !tail.is_closed()).then_some(index)
    }

    /// Returns the number of bytes that the tail accepts before a write begins another packet.
    pub(crate) fn tail_room(&self, size_goal: u32) -> u32 {
        self.growable_tail(size_goal).map_or(0, |index| size_goal - self.entries[index].len)
    }

    /// Appends as many of `bytes` as fit to the tail, which is entry `index`, and returns their
    /// number.
    fn grow(
        &mut self,
        pool: &mut Pool,
        index: usize,
        bytes: impl Payload,
        (size_goal, piece): (u32, u16),
    ) -> usize {
        let entry = &mut self.entries[index];
        let Some(packet) = entry.packet.as_mut() else { return 0 };
        let room = bytes.byte_len().min((size_goal - entry.len) as usize);
        let taken = bytes.split(room).0.append_in_pieces(packet, pool, piece);
        let grown = u32::try_from(taken).expect("a packet is shorter than 2^32 bytes");
        entry.len += grown;
        let charge = packet.truesize();
        self.wmem_queued = self.wmem_queued - entry.charge + charge;
        entry.charge = charge;
        self.write_seq += grown;
        taken
    }

    /// Adds a packet at the tail with as many of `bytes` as fit, and returns their number: 0 when
    /// there is no memory.
    fn push_packet(
        &mut self,
        pool: &mut Pool,
        bytes: impl Payload,
        (size_goal, piece): (u32, u16),
        alloc: &mut impl FnMut(&mut Pool) -> Option<Packet>,
    ) -> usize {
        let Some(mut packet) = alloc(pool) else { return 0 };
        let fitting = bytes.split(bytes.byte_len().min(size_goal as usize)).0;
        let taken = fitting.append_in_pieces(&mut packet, pool, piece);
        if taken == 0 {
            pool.free(packet);
            return 0;
        }
        let charge = packet.truesize();
        let len = u32::try_from(taken).expect("a packet is shorter than 2^32 bytes");
        self.wmem_queued += charge;
        self.push_entry(Some(packet), (len, charge), EntryFlags::empty());
        taken
    }

    /// Adds an unsent entry of `len` bytes at the tail. `charge` is the memory of its packet.
    fn push_entry(&mut self, packet: Option<Packet>, (len, charge): (u32, u32), flags: EntryFlags) {
        let (seq, sent_at, snapshot) = (self.write_seq, Instant::ZERO, Snapshot::default());
        self.write_seq += len;
        self.entries.push_back(Entry {
            packet,
            seq,
            len,
            charge,
            retransmits: 0,
            flags,
            sent_at,
            snapshot,
        });
    }

    /// Sets PSH on the first unsent entry before the persist timer sends it, because it may be a
    /// long time until more data follows.
    pub(crate) fn mark_held_pushed(&mut self) {
        if let Some(entry) = self.entries.get_mut(self.sent) {
            entry.flags |= EntryFlags::PSH;
        }
    }

    /// Marks the end of a record: later data goes into another packet.
    pub(crate) fn mark_record_end(&mut self) {
        if self.entries.len() > self.sent
            && let Some(tail) = self.entries.back_mut()
        {
            tail.flags |= EntryFlags::END_OF_RECORD;
        }
    }

    /// Marks the end of a write: sets PSH on the last entry if it is unsent.
    pub(crate) fn mark_push(&mut self) {
        if self.entries.len() > self.sent
            && let Some(tail) = self.entries.back_mut()
        {
            tail.flags |= EntryFlags::PSH;
        }
    }

    /// Appends the FIN: to the tail if it is unsent, otherwise as an entry without payload.
    pub(crate) fn append_fin(&mut self) {
        if self.entries.len() > self.sent
            && let Some(tail) = self.entries.back_mut()
        {
            tail.flags |= EntryFlags::FIN | EntryFlags::PSH;
        } else {
            self.push_entry(None, (0, 0), EntryFlags::FIN);
        }
        self.write_seq += 1;
    }

    /// Splits entry `index` after `at` bytes of payload; returns `false` when there is no memory.
    /// The first part keeps the packet and its fast clone (`Pool::alloc_fclone`). PSH, FIN and the
    /// end of a record move to the second part.
    pub(crate) fn split(&mut self, pool: &mut Pool, index: usize, at: u32) -> bool {
        let entry = &mut self.entries[index];
        debug_assert!(at > 0 && at < entry.seq_len() && at <= entry.len);
        let rest_len = entry.len - at;
        let mut rest_packet = None;
        if rest_len > 0 {
            let Some(packet) = entry.packet.as_mut() else { return false };
            let Some(rest) = packet.split_off(pool, at as usize) else { return false };
            rest_packet = Some(rest);
        }
        let old_charge = entry.charge;
        entry.charge = entry.packet.as_ref().map_or(0, Packet::truesize);
        let charge = rest_packet.as_ref().map_or(0, Packet::truesize);
        self.wmem_queued = self.wmem_queued - old_charge + entry.charge + charge;
        let rest = Entry {
            packet: rest_packet,
            seq: entry.seq + at,
            len: rest_len,
            charge,
            retransmits: entry.retransmits,
            flags: entry.flags,
            sent_at: entry.sent_at,
            snapshot: entry.snapshot,
        };
        entry.len = at;
        entry.flags -= EntryFlags::FIN | EntryFlags::PSH | EntryFlags::END_OF_RECORD;
        self.entries.insert(index + 1, rest);
        if index < self.sent {
            self.sent += 1;
        }
        if self.lost_hint > index {
            self.lost_hint += 1;
        }
        self.note_split(index + 1);
        true
    }

    /// Records a transmission of entry `index`, the first one or a retransmission. `snapshot` and
    /// `app_limited` are the connection's state for the delivery rate.
    #[inline]
    pub(crate) fn on_transmit(
        &mut self,
        index: usize,
        now: Instant,
        snapshot: Snapshot,
        app_limited: bool,
    ) {
        let entry = &mut self.entries[index];
        entry.sent_at = now;
        entry.snapshot = snapshot;
        entry.flags.set(EntryFlags::APP_LIMITED, app_limited);
        if index < self.sent {
            self.note_retransmission(index);
        } else {
            debug_assert_eq!(index, self.sent, "entries were not sent in order");
            self.sent += 1;
        }
    }

    /// Removes all data before `una`, and trims an entry that is acknowledged in part. The packets
    /// of removed entries are uncharged and passed to `release`.
    pub(crate) fn ack_to(
        &mut self,
        una: SeqNum,
        acked: &mut Acked,
        mut release: impl FnMut(Packet),
    ) {
        while let Some(front) = self.entries.front() {
            if self.sent == 0 || front.seq.ge(una) {
                break;
            }
            if !front.flags.contains(EntryFlags::SACKED) {
                let once = !front.flags.contains(EntryFlags::EVER_RETRANSMITTED);
                acked.sent_at = once.then_some(front.sent_at);
                acked.retransmitted |= !once;
                let end = front.end_seq().min(una);
                acked.deliver(front, end.since(front.seq), end);
            }
            if front.end_seq().gt(una) {
                acked.bytes += self.trim_front(una);
                break;
            }
            acked.bytes += front.seq_len();
            self.pop_front(&mut release);
        }
        self.sacked.drop_before(una);
        self.drop_retransmissions_before(una);
    }

    /// Returns the entry in flight if it is the only one and no retransmission is listed.
    #[inline]
    pub(crate) fn lone(&self) -> Option<&Entry> {
        if self.sent != 1 || !self.retransmitted.is_empty() { None } else { self.entries.front() }
    }

    /// Returns the unsent entry if it is the only entry of the queue.
    #[inline]
    pub(crate) fn lone_unsent(&self) -> Option<&Entry> {
        if self.sent != 0 || self.entries.len() != 1 { None } else { self.entries.front() }
    }

    /// Removes the only entry in flight, which must not be lost, retransmitted or SACKED: the
    /// fast path of [`ack_to`](Self::ack_to) with the end of the entry.
    #[inline]
    pub(crate) fn take_lone(&mut self) -> Option<Entry> {
        debug_assert!(self.lone().is_some());
        let entry = self.entries.pop_front()?;
        self.wmem_queued -= entry.charge;
        self.sent = 0;
        self.lost_hint = self.lost_hint.saturating_sub(1);
        Some(entry)
    }

    fn pop_front(&mut self, release: &mut impl FnMut(Packet)) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.wmem_queued -= entry.charge;
        self.sacked_count -= u32::from(entry.flags.contains(EntryFlags::SACKED));
        self.forget_marks(entry.flags, entry.seq_len());
        self.sent -= 1;
        self.lost_hint = self.lost_hint.saturating_sub(1);
        if let Some(packet) = entry.packet {
            release(packet);
        }
    }

    /// Removes the part of the first entry before `una`, and returns the number of removed bytes.
    fn trim_front(&mut self, una: SeqNum) -> u32 {
        let entry = &mut self.entries[0];
        let cut = una.since(entry.seq);
        debug_assert!(
            cut > 0 && cut <= entry.len,
            "an entry without payload was acknowledged in part"
        );
        entry.seq = una;
        entry.len -= cut;
        if let Some(packet) = entry.packet.as_mut() {
            packet.advance(cut as usize);
            let charge = packet.truesize();
            self.wmem_queued = self.wmem_queued - entry.charge + charge;
            entry.charge = charge;
        }
        let flags = entry.flags;
        self.forget_marks(flags, cut);
        cut
    }

    /// Frees all entries, the unsent ones included, when the connection ends.
    pub(crate) fn purge(&mut self, pool: &mut Pool) {
        while let Some(entry) = self.entries.pop_front() {
            free(pool, entry.packet);
        }
        *self = Self::new(self.write_seq, self.loss_thresh);
    }

    /// Returns the entry at `index`.
    pub(crate) fn entry(&self, index: usize) -> &Entry {
        &self.entries[index]
    }

    /// Returns the oldest entry in flight.
    pub(crate) fn head(&self) -> Option<&Entry> {
        self.entries.front().filter(|_| self.sent > 0)
    }

    /// Returns the first unsent entry and its index.
    pub(crate) fn first_unsent(&self) -> Option<(usize, &Entry)> {
        self.entries.get(self.sent).map(|entry| (self.sent, entry))
    }

    /// Whether entry `index` is the last one.
    pub(crate) fn is_tail(&self, index: usize) -> bool {
        index + 1 == self.entries.len()
    }

    /// Returns the number of entries in flight (Linux's `packets_out` counts segments instead).
    pub(crate) fn sent_count(&self) -> usize {
        self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn write_seq(&self) -> SeqNum {
        self.write_seq
    }

    pub(crate) fn wmem_queued(&self) -> u32 {
        self.wmem_queued
    }
}

fn free(pool: &mut Pool, packet: Option<Packet>) {
    if let Some(packet) = packet {
        pool.free(packet);
    }
}
