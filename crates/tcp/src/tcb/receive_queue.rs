//! The receive queue: in-order bytes that wait for the application.
//!
//! Above: `input::data` appends packets, `socket::api` copies their bytes to the application.
//! Linux: sk_receive_queue, tcp_queue_rcv.
//!
//! Packets hold only payload and are never empty. `read_offset` bytes of the first packet are
//! already read; the thread that reads the last byte of a packet releases it. Small payloads are
//! copied into the tail packet if there is one, so that a flood of small segments costs about its
//! bytes instead of one descriptor each. When the reader is far behind or memory is scarce,
//! payloads below an eighth of a page are copied to a common page, so that each of them does not
//! pin a whole page.
//!
//! Not here: out-of-order segments (`reassembly`), the window (`segment::window`).

use alloc::collections::VecDeque;
use core::ops::Range;

use pkt::{Packet, Pool};

/// Largest payload that is copied into the tail packet: a descriptor takes more memory than a
/// smaller payload.
const COALESCE_BYTES_MAX: usize = 512;

/// Number of queued packets from which on the reader counts as lagging, so that arriving packets
/// will be held for some time.
const BEHIND_PACKETS: usize = 64;

/// Receive queue of a connection.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    packets: VecDeque<Packet>,
    /// Bytes of the first packet that the application has read.
    read_offset: u32,
    /// Bytes not yet read.
    bytes: u32,
    /// Sum of the packets' `truesize`.
    rmem_alloc: u32,
}

impl ReceiveQueue {
    /// Returns an address range that includes the queue's memory. `VecDeque` does not tell where
    /// its memory begins, so the range extends from the first item by the whole capacity in both
    /// directions.
    pub(crate) fn memory(&self) -> Range<usize> {
        let first = self.packets.as_slices().0.as_ptr().addr();
        let bytes = self.packets.capacity() * size_of::<Packet>();
        first.saturating_sub(bytes)..first + bytes
    }

    /// Appends a segment's payload; returns `true` when it was copied into the tail.
    pub(crate) fn push(&mut self, pool: &mut Pool, packet: Packet) -> bool {
        self.bytes += u32::try_from(packet.len()).expect("a packet is shorter than 2^32 bytes");
        if packet.len() <= COALESCE_BYTES_MAX && self.coalesce(pool, &packet) {
            pool.free(packet);
            return true;
        }
        self.rmem_alloc += packet.truesize();
        self.packets.push_back(packet);
        false
    }

    /// Returns whether the reader lags so far that copying a segment's payload is worth its cost.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.packets.len() >= BEHIND_PACKETS
    }

    /// Copies small payloads, each of which pins a page, to common pages.
    pub(crate) fn condense(&mut self, pool: &mut Pool) {
        for packet in &mut self.packets {
            packet.condense(pool);
        }
    }

    /// Copies a small payload into the tail; returns `false` and leaves the tail unchanged if it
    /// does not fit.
    fn coalesce(&mut self, pool: &mut Pool, packet: &Packet) -> bool {
        let Some(tail) = self.packets.back_mut() else { return false };
        let (old_len, old_truesize) = (tail.len(), tail.truesize());
        let fitted = packet.slices().all(|slice| tail.append(pool, slice) == slice.len());
        if !fitted {
            tail.truncate(old_len);
        }
        self.rmem_alloc = self.rmem_alloc - old_truesize + tail.truesize();
        fitted
    }

    /// Copies up to `buf.len()` bytes from the front and removes them. `release` takes the packets
    /// that become empty.
    pub(crate) fn read(&mut self, buf: &mut [u8], release: &mut impl FnMut(Packet)) -> usize {
        let mut copied = 0;
        while copied < buf.len()
            && let Some(front) = self.packets.front()
        {
            let offset = self.read_offset as usize;
            let n = front.copy_to(offset, &mut buf[copied..]);
            copied += n;
            if offset + n == front.len() {
                self.pop_front(release);
            } else {
                self.read_offset += u32::try_from(n).expect("a packet is shorter than 2^32 bytes");
            }
        }
        self.bytes -= u32::try_from(copied).expect("a read copies at most the queued bytes");
        copied
    }

    /// Removes `count` bytes from the front without copying them. The queue must hold at least
    /// `count` bytes.
    pub(crate) fn skip(&mut self, count: u32, release: &mut impl FnMut(Packet)) {
        let mut rest = count as usize;
        while rest > 0
            && let Some(front) = self.packets.front()
        {
            let left = front.len() - self.read_offset as usize;
            if rest < left {
                self.read_offset +=
                    u32::try_from(rest).expect("a packet is shorter than 2^32 bytes");
                break;
            }
            rest -= left;
            self.pop_front(release);
        }
        self.bytes -= count;
    }

    /// Copies up to `buf.len()` bytes after the first `skip` ones, without removing them.
    pub(crate) fn peek(&self, buf: &mut [u8], skip: usize) -> usize {
        let mut copied = 0;
        let mut offset = self.read_offset as usize + skip;
        for packet in &self.packets {
            if copied == buf.len() {
                break;
            }
            let skipped = offset.min(packet.len());
            copied += packet.copy_to(skipped, &mut buf[copied..]);
            offset -= skipped;
        }
        copied
    }

    fn pop_front(&mut self, release: &mut impl FnMut(Packet)) {
        if let Some(packet) = self.packets.pop_front() {
            self.rmem_alloc -= packet.truesize();
            self.read_offset = 0;
            release(packet);
        }
    }

    /// Frees all packets.
    pub(crate) fn purge(&mut self, pool: &mut Pool) {
        while !self.packets.is_empty() {
            self.pop_front(&mut |packet| pool.free(packet));
        }
        self.bytes = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the bytes that the application can read.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the memory of the queue (Linux `sk_rmem_alloc`, its in-order part).
    pub(crate) fn rmem_alloc(&self) -> u32 {
        self.rmem_alloc
    }

    /// Panics unless the sums agree with the packets, and no packet is empty or completely read.
    pub(crate) fn check(&self) {
        let bytes: usize = self.packets.iter().map(Packet::len).sum();
        assert_eq!(
            bytes,
            (self.bytes + self.read_offset) as usize,
            "unread and read bytes do not add up"
        );
        let truesize: u32 = self.packets.iter().map(Packet::truesize).sum();
        assert_eq!(truesize, self.rmem_alloc, "rmem_alloc is not the sum of truesize");
        assert!(self.packets.iter().all(|packet| !packet.is_empty()), "a packet is empty");
        let front = self.packets.front().map_or(0, Packet::len);
        assert!((self.read_offset as usize) < front.max(1), "the first packet has no unread bytes");
    }
}
