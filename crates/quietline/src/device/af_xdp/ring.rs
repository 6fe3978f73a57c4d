//! The four rings of an AF_XDP socket: entries and two indices in memory shared with the kernel.
//!
//! Above: `receive` (fill ring, receive ring), `transmit` (transmit ring, completion ring). Linux:
//! net/xdp/xsk_queue.h, Documentation/networking/af_xdp.rst.
//!
//! ```text
//!            consumer index            producer index          free-running 32-bit numbers
//!                 │                         │
//!   ─────────────┬┴────┬─────┬─────┬─────┬──┴──────────        slot = index & mask
//!     free       │  written, not yet taken │   free
//! ```
//!
//! Each index is written by one side only. The writer of an entry publishes it with a Release store
//! of the producer index, which the other side loads with Acquire before it reads the entry. The
//! reader returns the slot with a Release store of the consumer index, which the writer loads with
//! Acquire before it overwrites the entry. Both sides here publish once per batch and cache the
//! other side's index.
//!
//! Entries are words that are loaded and stored atomically, so that a kernel that breaks the
//! protocol causes wrong values and never undefined behavior. The code that takes an entry checks
//! its values.
//!
//! Not here: the frame that an entry refers to (`umem`), the system calls that wake the kernel
//! (`socket`).

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::super::mapping::Mapping;

/// `XDP_RING_NEED_WAKEUP`: the kernel processes the ring only after a system call.
const NEED_WAKEUP: u32 = 1;

/// Offsets of the parts of a ring in its mapping, in bytes. Linux: `struct xdp_ring_offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Offset of the producer index.
    pub(super) producer: usize,
    /// Offset of the consumer index.
    pub(super) consumer: usize,
    /// Offset of the kernel's flags.
    pub(super) flags: usize,
    /// Offset of the first entry.
    pub(super) entries: usize,
}

/// Contents of a slot: one or two words.
pub(super) trait Entry: Copy {
    /// Bytes of a slot.
    const BYTES: usize;
    /// Reads the slot at `offset`.
    fn load(memory: &Mapping, offset: usize) -> Self;
    /// Writes the slot at `offset`.
    fn store(self, memory: &Mapping, offset: usize);
}

/// Address of a frame, in the fill and completion rings.
impl Entry for u64 {
    const BYTES: usize = 8;

    fn load(memory: &Mapping, offset: usize) -> Self {
        memory.long(offset).load(Ordering::Relaxed)
    }

    fn store(self, memory: &Mapping, offset: usize) {
        memory.long(offset).store(self, Ordering::Relaxed);
    }
}

/// A frame with its length, in the receive and transmit rings. Linux: `struct xdp_desc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Offset of the frame from the start of the UMEM.
    pub(super) addr: u64,
    /// Length of the frame in bytes.
    pub(super) len: u32,
    /// Options such as `XDP_TX_METADATA`.
    pub(super) options: u32,
}

impl Entry for Descriptor {
    const BYTES: usize = 16;

    fn load(memory: &Mapping, offset: usize) -> Self {
        Self {
            addr: memory.long(offset).load(Ordering::Relaxed),
            len: memory.word(offset + 8).load(Ordering::Relaxed),
            options: memory.word(offset + 12).load(Ordering::Relaxed),
        }
    }

    fn store(self, memory: &Mapping, offset: usize) {
        memory.long(offset).store(self.addr, Ordering::Relaxed);
        memory.word(offset + 8).store(self.len, Ordering::Relaxed);
        memory.word(offset + 12).store(self.options, Ordering::Relaxed);
    }
}

/// Common part of both ends of a ring.
struct Ring<E> {
    memory: Arc<Mapping>,
    layout: Layout,
    /// Slots, a power of two.
    size: u32,
    entry: PhantomData<fn() -> E>,
}

impl<E: Entry> Ring<E> {
    fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> Self {
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        Self { memory, layout, size, entry: PhantomData }
    }

    fn producer(&self) -> &AtomicU32 {
        self.memory.word(self.layout.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.memory.word(self.layout.consumer)
    }

    fn slot(&self, index: u32) -> usize {
        self.layout.entries + (index & (self.size - 1)) as usize * E::BYTES
    }

    /// Returns whether the kernel processes this ring only after a system call.
    fn needs_wakeup(&self) -> bool {
        // The published index must be visible before the flag is read: the kernel sets the flag and
        // then checks the ring once more.
        fence(Ordering::SeqCst);
        self.memory.word(self.layout.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

impl<E> fmt::Debug for Ring<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Producer end of a ring that the kernel consumes: fill and transmit.
#[derive(Debug)]
pub(super) struct Producer<E> {
    ring: Ring<E>,
    /// Index of the next slot to write. Slots from the published index up to here are written and
    /// not yet published.
    next: u32,
    /// Cached consumer index of the kernel.
    taken: u32,
}

impl<E: Entry> Producer<E> {
    /// Continues at the ring's present indices.
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> Self {
        let ring = Ring::<E>::new(memory, layout, size);
        let next = ring.producer().load(Ordering::Relaxed);
        let taken = ring.consumer().load(Ordering::Acquire);
        Self { ring, next, taken }
    }

    /// Writes an entry, which the kernel sees after [`Producer::publish`]. Returns the entry if the
    /// ring is full.
    pub(super) fn push(&mut self, entry: E) -> Result<(), E> {
        if self.next.wrapping_sub(self.taken) >= self.ring.size {
            self.taken = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.taken) >= self.ring.size {
                return Err(entry);
            }
        }
        entry.store(&self.ring.memory, self.ring.slot(self.next));
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Publishes all written entries to the kernel.
    pub(super) fn publish(&self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns the number of entries that the kernel has not taken yet.
    pub(super) fn waiting(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// Returns whether the kernel takes entries only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// Consumer end of a ring that the kernel fills: receive and completion.
#[derive(Debug)]
pub(super) struct Consumer<E> {
    ring: Ring<E>,
    /// Index of the next slot to read. Slots from the published index up to here are read and not
    /// yet returned.
    next: u32,
    /// Cached producer index of the kernel.
    written: u32,
}

impl<E: Entry> Consumer<E> {
    /// Continues at the ring's present indices.
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, size: u32) -> Self {
        let ring = Ring::<E>::new(memory, layout, size);
        let next = ring.consumer().load(Ordering::Relaxed);
        let written = ring.producer().load(Ordering::Acquire);
        Self { ring, next, written }
    }

    /// Reads the next entry and leaves it in the ring.
    pub(super) fn peek(&mut self) -> Option<E> {
        if self.next == self.written {
            self.written = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.written {
                return None;
            }
        }
        Some(E::load(&self.ring.memory, self.ring.slot(self.next)))
    }

    /// Takes the next entry. [`Consumer::release`] returns its slot to the kernel.
    pub(super) fn pop(&mut self) -> Option<E> {
        let entry = self.peek()?;
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Returns the slots of all entries taken so far to the kernel.
    pub(super) fn release(&self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }

    /// Returns the number of entries that can be taken.
    pub(super) fn ready(&self) -> u32 {
        let written = self.ring.producer().load(Ordering::Acquire);
        written.wrapping_sub(self.next).min(self.ring.size)
    }
}

#[cfg(test)]
pub(super) mod tests;
