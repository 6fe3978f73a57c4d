//! Conditions that the holders of a lock publish, and the wakes that are due for them.
//!
//! The holder of a [`SocketLock`](crate::SocketLock) changes both: [`Conditions`] are stored beside
//! the lock, [`NewlyReady`] in the protected value. Linux's `sk_data_ready` and `sk_write_space`
//! wake at once, under the lock.
//!
//! ```text
//!  holder, under the lock                    waiter
//!  publish: store the bits, note the new     token = event.prepare()
//!  bits = newly_ready.take()                 lock.pass()
//!  release the lock                          bits set? → cancel(token), go on
//!  bits? → event.notify_all_behind()         event.wait(token, timeout)
//! ```
//!
//! A holder takes the newly ready bits at the end of its work and wakes after it has released the
//! lock, because a wake is a system call, and the woken thread wants the lock. Work that one
//! context begins can end under another holder, so every holder takes all bits, including those
//! that another context has noted.
//!
//! No wake is lost, and no side passes a fence: leaving the lock and [`SocketLock::pass`] are
//! read-modify-writes of one word. A waiter that passes after the holder has left sees the bits. A
//! waiter that passes before has queued itself earlier, and the holder sees it.
//!
//! Not here: the meaning of the bits, and which waiters a bit concerns.
//!
//! [`SocketLock::pass`]: crate::SocketLock::pass

use crate::shim::{AtomicU8, Ordering};

/// Bits that hold now.
#[derive(Debug)]
pub struct Conditions {
    /// Written under the lock, read by waiters without it. Release and Acquire: a thread that sees
    /// a bit sees what the holder wrote before.
    bits: AtomicU8,
}

impl Conditions {
    /// Publishes `bits` for the first time; no thread waits yet.
    pub fn new(bits: u8) -> Self {
        Self { bits: AtomicU8::new(bits) }
    }

    /// Returns the bits as last published.
    #[inline]
    pub fn load(&self) -> u8 {
        self.bits.load(Ordering::Acquire)
    }

    /// Replaces all bits, and notes those that were not set before. Under the lock.
    #[inline]
    pub fn publish(&self, bits: u8, newly_ready: &mut NewlyReady) {
        // Relaxed: only holders of the lock write.
        newly_ready.note(bits & !self.bits.load(Ordering::Relaxed));
        self.bits.store(bits, Ordering::Release);
    }

    /// Sets `bits`, and notes them even if they were set before. Under the lock.
    #[inline]
    pub fn announce(&self, bits: u8, newly_ready: &mut NewlyReady) {
        self.bits.store(self.bits.load(Ordering::Relaxed) | bits, Ordering::Release);
        newly_ready.note(bits);
    }

    /// Clears `bits`, so that the next publication of them is news. Under the lock.
    pub fn retract(&self, bits: u8) {
        self.bits.store(self.bits.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }
}

/// Bits that have become true and for which no thread was woken.
#[derive(Debug, Default)]
pub struct NewlyReady {
    bits: u8,
}

impl NewlyReady {
    /// Adds `bits`.
    #[inline]
    pub const fn note(&mut self, bits: u8) {
        self.bits |= bits;
    }

    /// Removes `bits`: they need no wake any more.
    #[inline]
    pub const fn retract(&mut self, bits: u8) {
        self.bits &= !bits;
    }

    /// Takes all bits. The caller wakes for them after it has released the lock.
    #[inline]
    #[must_use]
    pub const fn take(&mut self) -> u8 {
        core::mem::replace(&mut self.bits, 0)
    }
}
