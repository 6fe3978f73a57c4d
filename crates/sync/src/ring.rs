//! A bounded queue between threads: any thread sends, one at a time receives.
//!
//! Above: in-process devices (`stack::device::wire`). Linux: `ptr_ring`, which veth's XDP path and
//! tun use.
//!
//! ```text
//!   senders ── lock, tail ──► [turn, item] [turn, item] … ──► head ── the receiver
//! ```
//!
//! Each slot tells by an item number whether it holds an item. A receiver that waits reads no other
//! memory that a sender writes, and the line it reads also brings the item. So one cache line is
//! transferred per item.
//!
//! Senders exclude each other by a lock of one byte, on a line that the receiver never touches. It
//! costs one locked instruction however many items a sender pushes, and all of them become visible
//! when it releases the lock. The receiver is a [`Receiver`], of which there is one at a time, so
//! that receiving takes no lock. Senders read its index only when the ring may be full.
//!
//! A sender that has to wait for another one spins briefly, then yields the CPU: the lock is held
//! for a few stores.
//!
//! Not here: notification of the receiver.

use core::fmt;
use core::mem::MaybeUninit;

use crate::padded::Padded;
use crate::shim::{self, Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

#[cfg(test)]
mod tests;

/// Spins on a held lock before the thread yields the CPU.
const SPINS_MAX: u32 = if cfg!(loom) { 0 } else { 100 };

/// A bounded queue, as the head of the module describes.
pub struct Ring<T> {
    sending: Padded<Sending>,
    receiving: Padded<Receiving>,
    /// Slots, a power of two of them. Those from the head up to the tail are initialized. The slot
    /// at the tail is written by the sender that holds the lock, the slot at the head is read by
    /// the receiver.
    slots: Box<[Slot<T>]>,
    /// Upper bound of waiting items, at most the number of slots.
    limit: usize,
}

/// Place of one item.
struct Slot<T> {
    /// [`turn_of`] the item last put here. Release: a receiver that sees the value also sees the
    /// item.
    turn: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

/// State written by senders, under the lock, which orders it.
struct Sending {
    locked: AtomicBool,
    /// Items sent so far; wraps.
    tail: AtomicUsize,
    /// Value of `head` when a sender last read it.
    head_seen: AtomicUsize,
}

/// State written by the receiver.
struct Receiving {
    /// Whether there is a receiver. Acquire by the next one, Release by the one before.
    taken: AtomicBool,
    /// Items received so far; wraps. Release: a sender that sees the value may write the slots
    /// before it.
    head: AtomicUsize,
}

// SAFETY: an item is moved in by one thread and out by another, which `T: Send` allows. A slot is
// written by the holder of the lock while it is outside head..tail, and read by the only receiver
// while it is inside.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; the ring owns its items.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// Makes a ring for at most `limit` waiting items.
    ///
    /// # Panics
    /// If `limit` is zero.
    pub fn new(limit: usize) -> Self {
        assert!(limit > 0, "a ring needs room for one item");
        let slots = limit.next_power_of_two();
        Self {
            sending: Padded::new(Sending {
                locked: AtomicBool::new(false),
                tail: AtomicUsize::new(0),
                head_seen: AtomicUsize::new(0),
            }),
            receiving: Padded::new(Receiving {
                taken: AtomicBool::new(false),
                head: AtomicUsize::new(0),
            }),
            slots: (0..slots).map(|_| Slot::empty()).collect(),
            limit,
        }
    }

    /// Locks the ring for sending. Other senders wait until the guard is dropped, which makes the
    /// pushed items visible.
    #[inline]
    pub fn sender(&self) -> Sender<'_, T> {
        if !take(&self.sending.locked) {
            self.wait_for_lock();
        }
        let tail = self.sending.tail.load(Ordering::Relaxed);
        Sender {
            ring: self,
            first: tail,
            tail,
            head_seen: self.sending.head_seen.load(Ordering::Relaxed),
        }
    }

    #[cold]
    fn wait_for_lock(&self) {
        let mut spins = 0;
        while self.sending.locked.load(Ordering::Relaxed) || !take(&self.sending.locked) {
            if spins < SPINS_MAX {
                spins += 1;
                shim::spin_loop();
            } else {
                shim::yield_now();
            }
        }
    }

    /// Returns the receiver; `None` while another one exists.
    pub fn receiver(this: &Arc<Self>) -> Option<Receiver<T>> {
        if !take(&this.receiving.taken) {
            return None;
        }
        let head = this.receiving.head.load(Ordering::Relaxed);
        Some(Receiver { ring: Arc::clone(this), head })
    }

    /// Returns whether no item waits. A hint: it may be out of date when this returns.
    pub fn is_empty(&self) -> bool {
        !self.has(self.receiving.head.load(Ordering::Relaxed))
    }

    /// Returns whether the item of this number is present. Acquire: if so, all writes before it was
    /// sent are visible.
    #[inline]
    fn has(&self, number: usize) -> bool {
        self.slot(number).turn.load(Ordering::Acquire) == turn_of(number)
    }

    #[inline]
    fn slot(&self, number: usize) -> &Slot<T> {
        &self.slots[number & (self.slots.len() - 1)]
    }
}

impl<T> Slot<T> {
    fn empty() -> Self {
        Self { turn: AtomicUsize::new(0), item: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// Returns the value of a slot's turn once it holds the item of this number. No other item of the
/// slot has this value, nor has a slot that never held an item.
#[inline]
const fn turn_of(number: usize) -> usize {
    number.wrapping_add(1)
}

/// Sets a flag that is clear. Acquire: orders the caller after the thread that cleared it.
#[inline]
fn take(flag: &AtomicBool) -> bool {
    flag.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let mut head = self.receiving.head.load(Ordering::Relaxed);
        let tail = self.sending.tail.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: the slots from head to tail are initialized, and `&mut self` excludes all
            // other threads.
            self.slot(head).item.with_mut(|item| unsafe { (*item).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The lock for sending.
pub struct Sender<'a, T> {
    ring: &'a Ring<T>,
    /// Number of the first item of this sender.
    first: usize,
    tail: usize,
    head_seen: usize,
}

impl<T> Sender<'_, T> {
    /// Adds `item` at the end.
    ///
    /// # Errors
    /// Gives the item back if the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.tail.wrapping_sub(self.head_seen) >= self.ring.limit {
            // Acquire: the receiver has finished with the slots before it.
            self.head_seen = self.ring.receiving.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head_seen) >= self.ring.limit {
                return Err(item);
            }
        }
        // SAFETY: the slot is not between head and tail, so the receiver does not access it, and
        // this is the only sender.
        self.ring.slot(self.tail).item.with_mut(|slot| unsafe {
            (*slot).write(item);
        });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }
}

impl<T> Drop for Sender<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // The turn of the first item is stored last: a receiver that sees the first item sees all
        // of them, and is not woken once per item.
        let mut number = self.tail;
        while number != self.first {
            number = number.wrapping_sub(1);
            self.ring.slot(number).turn.store(turn_of(number), Ordering::Release);
        }
        let sending = &self.ring.sending;
        sending.head_seen.store(self.head_seen, Ordering::Relaxed);
        sending.tail.store(self.tail, Ordering::Relaxed);
        sending.locked.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for Sender<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("tail", &self.tail).finish_non_exhaustive()
    }
}

/// The receiving side of a ring.
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    head: usize,
}

impl<T> Receiver<T> {
    /// Returns whether no item waits. Items that arrive later are seen by a later call.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.ring.has(self.head)
    }

    /// Removes and returns the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the slot's turn says that the item is present, so it is initialized, and no
        // sender writes it before the head has passed it. It is moved out once, because the head
        // advances right after this.
        let item =
            self.ring.slot(self.head).item.with(|item| unsafe { (*item).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        self.ring.receiving.head.store(self.head, Ordering::Release);
        Some(item)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.ring.receiving.taken.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("head", &self.head).finish_non_exhaustive()
    }
}
