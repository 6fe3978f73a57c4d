//! A bounded queue between threads: any thread sends, one at a time receives.
//!
//! Above: in-process devices (`stack::device::wire`). Linux: `ptr_ring`, which veth's XDP path and tun use.
//!
//! ```text
//!   senders ── lock, tail ──► [turn, item] [turn, item] … ──► head ── the receiver
//! ```
//!
//! A slot says itself whether there is something in it, by the number of the item: a receiver that waits looks at nothing that a
//! sender writes besides, and the line that it looks at brings the item. So one line changes hands for what is sent.
//!
//! Senders take turns by a lock of one byte, which costs one locked instruction however many items they leave, on a line that
//! the receiver never touches. What they leave is there when they let go, all of it at once. The receiver is a [`Receiver`], of
//! which there is one at a time, so that receiving locks nothing. Senders look at its index only when the ring may be full.
//!
//! A sender that has to wait for another spins for a moment, then lets others run: the lock is held for a few stores.
//!
//! Not here: who is told that there is something.

use core::fmt;
use core::mem::MaybeUninit;

use crate::padded::Padded;
use crate::shim::{self, Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

#[cfg(test)]
mod tests;

/// Looks at a lock that is held before the thread lets others run.
const SPINS_MAX: u32 = if cfg!(loom) { 0 } else { 100 };

/// See the module head.
pub struct Ring<T> {
    sending: Padded<Sending>,
    receiving: Padded<Receiving>,
    /// A power of two of them. Those from the head up to the tail are initialised; the one at the tail is written by the sender
    /// that holds the lock, the one at the head read by the receiver.
    slots: Box<[Slot<T>]>,
    /// Items that may wait: at most as many as there are slots.
    limit: usize,
}

/// The place of one item.
struct Slot<T> {
    /// [`turn_of`] the item that was put here last. Release: who sees it sees the item.
    turn: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

/// What senders write. Under the lock, which orders it.
struct Sending {
    locked: AtomicBool,
    /// Items sent so far; wraps.
    tail: AtomicUsize,
    /// `head` as a sender saw it last.
    head_seen: AtomicUsize,
}

/// What the receiver writes.
struct Receiving {
    /// There is a receiver. Acquire by the next one, Release by the one before.
    taken: AtomicBool,
    /// Items received so far; wraps. Release: a sender that sees it may write the slots before it.
    head: AtomicUsize,
}

// SAFETY: an item is moved in by one thread and out by another, which `T: Send` allows. A slot is written by the holder of the
// lock while it is outside head..tail, and read by the one receiver while it is inside.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; the ring owns its items.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// For at most `limit` items that wait.
    ///
    /// # Panics
    /// Without room for one.
    pub fn new(limit: usize) -> Self {
        assert!(limit > 0, "a ring without room");
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

    /// The right to send, for a moment: others wait until it is dropped, and what was sent is there then.
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

    /// The right to receive; `None` while another has it.
    pub fn receiver(this: &Arc<Self>) -> Option<Receiver<T>> {
        if !take(&this.receiving.taken) {
            return None;
        }
        let head = this.receiving.head.load(Ordering::Relaxed);
        Some(Receiver { ring: Arc::clone(this), head })
    }

    /// Whether nothing waits. A hint: it may have changed when this returns.
    pub fn is_empty(&self) -> bool {
        !self.has(self.receiving.head.load(Ordering::Relaxed))
    }

    /// Whether the item of this number is there. Acquire: then it is, and what was there before it, too.
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

/// What the slot of an item says when it is there: of the items of this slot no other has it, and a slot that never had one
/// does not say it of the first.
#[inline]
const fn turn_of(number: usize) -> usize {
    number.wrapping_add(1)
}

/// Takes what nobody has. Acquire: after whoever has let it go.
#[inline]
fn take(flag: &AtomicBool) -> bool {
    flag.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let mut head = self.receiving.head.load(Ordering::Relaxed);
        let tail = self.sending.tail.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: from head to tail the slots are initialised, and `&mut self` says that nobody else is there.
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

/// Who sends at the moment.
pub struct Sender<'a, T> {
    ring: &'a Ring<T>,
    /// The first item of this sender.
    first: usize,
    tail: usize,
    head_seen: usize,
}

impl<T> Sender<'_, T> {
    /// Puts `item` behind all others.
    ///
    /// # Errors
    /// Gives it back when the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.tail.wrapping_sub(self.head_seen) >= self.ring.limit {
            // Acquire: the receiver is through with the slots before it.
            self.head_seen = self.ring.receiving.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head_seen) >= self.ring.limit {
                return Err(item);
            }
        }
        // SAFETY: the slot is not between head and tail, so the receiver does not look at it, and this is the only sender.
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
        // The first one last: a receiver that sees it sees them all, and need not come for each.
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

/// Who receives.
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    head: usize,
}

impl<T> Receiver<T> {
    /// Whether nothing waits. What comes later is seen by a later look.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.ring.has(self.head)
    }

    /// Takes the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the slot's turn says that the item is there, so it is initialised, and no sender writes it before the head has
        // passed it; it is moved out of here once, because the head goes on at once.
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
