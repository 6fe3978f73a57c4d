//! Exclusive access to a socket: a lock that packet input never waits for.
//!
//! Above: every socket in `stack`. Linux: `lock_sock`, `release_sock`, `bh_lock_sock`,
//! `sk_backlog`, `tcp_release_cb` (net/core/sock.c).
//!
//! There are two kinds of callers. An application thread **owns** a socket for the length of a call
//! and may be descheduled meanwhile. A core in **softirq** (packet input, timers) has one item of
//! work and must continue at once: it runs the item if the socket is free, otherwise it leaves it
//! to the holder. So neither a sleeping application nor a busy second core ever stalls packet
//! input.
//!
//! One word holds all state of the lock (`bytes` in its upper half), so that releasing the lock and
//! finding that work has arrived are one atomic step:
//!
//! ```text
//!                         softirq, defer: run the work, drain
//!          ┌──────────── SOFTIRQ_BUSY ◄──────────┐
//!          │ CAS: nothing left                   │ CAS: no holder
//!          ▼                                     │
//!        FREE ───────────────────────────────────┘
//!          ▲ │ CAS: no holder
//!          │ ▼   own, try_own
//!         OWNED      release: drain, then CAS
//!
//!   while held   softirq   +bytes (or Full); queue: push to the backlog, then set BACKLOG
//!                defer     set DEFERRED bits
//!                own       join the sleepers, then set WAITERS
//!   to leave     BACKLOG?  clear it, take the whole list, run each item in order; check again
//!                DEFERRED? clear the bits, run them; check again
//!                neither:  CAS(word seen → 0), which fails and checks again if a bit appeared;
//!                          if WAITERS was set, wake one sleeper
//! ```
//!
//! - **Order.** Items of one producer run in the order it brought them: the holder in softirq runs
//!   older items first (`run_older`), and `queue` returns only once BACKLOG is set.
//! - **Flood.** `bytes` counts admitted items and becomes 0 only in the CAS that releases the lock
//!   (or ends `run_backlog`), never between rounds. A producer faster than the drain therefore
//!   reaches its limit and is refused, so the drain ends. An item admitted but not yet pushed at
//!   that moment is no longer counted: the limit may be exceeded by one item for each producer that
//!   has an [`Admitted`] at that time.
//! - **Orphans.** If the holder left before a producer set its bit, the producer finds that in the
//!   old value of the same operation, and runs the items it left behind itself.
//! - **Sleepers.** A woken sleeper takes the lock with WAITERS set, because others may still sleep.
//!   This costs one unnecessary check of the queue at the end of a burst.
//!
//! Not here: the meaning of bits and items, receive buffer limits, coalescing in the backlog.

use core::fmt;

use crate::eventcount::EventCount;
use crate::llist::{Linked, Llist};
use crate::shim::{self, AtomicU64, Ordering, UnsafeCell};

mod held;
mod owned;
mod softirq;
#[cfg(test)]
mod tests;

use held::Held;
pub use owned::Owned;
pub use softirq::{Admitted, Softirq};

/// An application thread holds the lock.
const OWNED: u64 = 1 << 0;
/// A core in softirq holds the lock.
const SOFTIRQ_BUSY: u64 = 1 << 1;
/// A thread sleeps in `own`.
const WAITERS: u64 = 1 << 2;
/// The backlog list has items whose producers have returned.
const BACKLOG: u64 = 1 << 3;
/// Position of the first of the eight deferred-work bits.
const DEFERRED_SHIFT: u32 = 8;
const DEFERRED: u64 = 0xff << DEFERRED_SHIFT;
/// Position of the bytes admitted to the backlog since it was last found empty: the upper half of
/// the word.
const BYTES_SHIFT: u32 = 32;
const FLAGS: u64 = (1 << BYTES_SHIFT) - 1;
const HELD: u64 = OWNED | SOFTIRQ_BUSY;

/// Checks of a lock held in softirq before `own` sleeps. One packet takes a core about a
/// microsecond and a check some tens of nanoseconds; after that the core has a burst to process, or
/// was descheduled.
const SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 100 };

/// One piece of work for the holder of a socket.
#[derive(Debug)]
pub enum Work<P> {
    /// A packet of the backlog, in arrival order.
    Item(P),
    /// Deferred work: the bits given to [`SocketLock::defer`] since the last run, merged.
    Deferred(u8),
}

/// Result of [`SocketLock::softirq`] for one item.
#[derive(Debug)]
#[must_use]
pub enum Entry<'a, T, P: Linked> {
    /// No thread held the lock: the caller runs the item now.
    Free(Softirq<'a, T, P>),
    /// Another thread holds the lock, and the backlog has room for the item.
    Held(Admitted<'a, T, P>),
    /// The backlog's byte limit refuses the item.
    Full,
}

/// Result of queuing or deferring work in softirq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Queued {
    /// The holder had left: the work ran before the call returned.
    Ran,
    /// The current holder will run it before it releases the lock.
    ForHolder,
}

/// A value of type `T` with the socket lock around it; `P` is the type of the backlog's items.
///
/// It begins a cache line: cores in softirq write the word and the backlog while the holder works,
/// so no field in front of the lock shares their line.
#[repr(C, align(64))]
pub struct SocketLock<T, P: Linked> {
    /// State, as the head of the module describes. Taking is Acquire, leaving is Release, plus
    /// Acquire for `pass`. Every other write is a read-modify-write and so keeps the release
    /// sequence from the last holder to the next.
    word: AtomicU64,
    backlog: Llist<P>,
    sleepers: EventCount,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is accessed only by the thread that set OWNED or SOFTIRQ_BUSY in a word that had
// neither, and that may be any thread, hence `T: Send`. Items cross threads by the list, which
// requires `P: Send`.
unsafe impl<T: Send, P: Linked + Send> Sync for SocketLock<T, P> {}

impl<T, P: Linked> SocketLock<T, P> {
    /// Makes a free lock around `value`.
    pub fn new(value: T) -> Self {
        // The holder's state is not on the line of the word.
        const {
            assert!(
                cfg!(any(loom, not(target_pointer_width = "64")))
                    || core::mem::offset_of!(Self, value) >= 64
            );
        };
        Self {
            word: AtomicU64::new(0),
            backlog: Llist::new(),
            sleepers: EventCount::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Softirq: begins to process one item of `bytes`. If the lock is free, takes it, and the
    /// caller runs the item. Otherwise admits the item to the backlog, unless the backlog would
    /// exceed `limit` bytes. Never waits.
    #[inline]
    pub fn softirq(&self, bytes: u32, limit: u32) -> Entry<'_, T, P> {
        let free =
            self.word.compare_exchange(0, SOFTIRQ_BUSY, Ordering::Acquire, Ordering::Relaxed);
        match free {
            Ok(_) => Entry::Free(Softirq::new(Held::new(self, SOFTIRQ_BUSY), false)),
            Err(word) => self.softirq_contended(word, bytes, limit),
        }
    }

    /// Softirq: brings deferred work, a set of bits whose meaning is the caller's. If the lock is
    /// free, runs it and all work that arrives meanwhile. Never refused, because bits of one kind
    /// merge.
    #[inline]
    pub fn defer(&self, bits: u8, mut run: impl FnMut(&mut T, Work<P>)) -> Queued {
        let free =
            self.word.compare_exchange(0, SOFTIRQ_BUSY, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            let mut held = Held::new(self, SOFTIRQ_BUSY);
            run(held.value_mut(), Work::Deferred(bits));
            held.leave(&mut run);
            return Queued::Ran;
        }
        self.mark(u64::from(bits) << DEFERRED_SHIFT, &mut run)
    }

    /// For the holder itself, while it holds the lock: runs `bits` once more before the lock is
    /// free, after the work in progress.
    pub fn defer_to_holder(&self, bits: u8) {
        // Relaxed: the thread that will run the bits made the changes they stand for.
        let before = self.word.fetch_or(u64::from(bits) << DEFERRED_SHIFT, Ordering::Relaxed);
        debug_assert!(before & HELD != 0, "deferred work needs a holder");
    }

    /// Application: takes the lock, waiting for it if necessary. Spins briefly on a core in
    /// softirq, which releases the lock soon; sleeps behind another application thread.
    #[inline]
    pub fn own(&self) -> Owned<'_, T, P> {
        let free = self.word.compare_exchange(0, OWNED, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            self.own_contended();
        }
        Owned { held: Held::new(self, OWNED) }
    }

    /// Application: takes the lock if it is free.
    pub fn try_own(&self) -> Option<Owned<'_, T, P>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & HELD == 0 {
            match self.take(word, OWNED) {
                Ok(()) => return Some(Owned { held: Held::new(self, OWNED) }),
                Err(found) => word = found,
            }
        }
        None
    }

    /// Returns true while an application thread holds the lock. A hint: it may be out of date when
    /// this returns.
    pub fn is_owned(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OWNED != 0
    }

    /// For a thread that has queued itself as a waiter and is about to check data that holders
    /// publish. If a holder released the lock before this call, the thread sees all its
    /// publications. If it releases the lock later, the holder sees the waiter, without a fence
    /// ([`EventCount::notify_all_behind`]).
    pub fn pass(&self) {
        // Leaving is a read-modify-write of the same word: the second of the two acquires all
        // writes before the first.
        self.word.fetch_or(0, Ordering::AcqRel);
    }

    /// Returns the bytes admitted to the backlog and not yet processed.
    pub fn backlog_bytes(&self) -> u32 {
        backlog_bytes(self.word.load(Ordering::Relaxed))
    }

    /// Returns the value, which an exclusive reference may access without the lock.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes every holder.
        unsafe { &mut *self.value.with_mut(|value| value) }
    }

    /// Returns the value; items in the backlog are dropped.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    #[cold]
    fn softirq_contended(&self, mut word: u64, bytes: u32, limit: u32) -> Entry<'_, T, P> {
        loop {
            word = if word & HELD == 0 {
                match self.take(word, SOFTIRQ_BUSY) {
                    // Items were left by a holder that was dropped, or a producer has not set its
                    // bit yet.
                    Ok(()) => {
                        let held = Held::new(self, SOFTIRQ_BUSY);
                        return Entry::Free(Softirq::new(held, word & BACKLOG != 0));
                    }
                    Err(found) => found,
                }
            } else {
                // Differs from Linux: counts the new item too, because then `limit` is the maximum
                // of the backlog.
                let fits = backlog_bytes(word).checked_add(bytes).is_some_and(|sum| sum <= limit);
                if !fits {
                    return Entry::Full;
                }
                let admitted = word + (u64::from(bytes) << BYTES_SHIFT);
                match self.exchange(word, admitted, Ordering::Relaxed) {
                    Ok(_) => return Entry::Held(Admitted::new(self)),
                    Err(found) => found,
                }
            };
        }
    }

    /// Sets `bits` for the holder to find; if the holder has left before it could see them, runs
    /// the work here.
    #[cold]
    fn mark(&self, bits: u64, run: &mut impl FnMut(&mut T, Work<P>)) -> Queued {
        // Release: the thread that clears the bits sees the data they stand for.
        let mut word = self.word.fetch_or(bits, Ordering::Release) | bits;
        while word & HELD == 0 {
            if word & bits == 0 {
                // Another holder came, saw the bits, and has left again.
                return Queued::Ran;
            }
            match self.take(word, SOFTIRQ_BUSY) {
                Ok(()) => {
                    Held::new(self, SOFTIRQ_BUSY).leave(run);
                    return Queued::Ran;
                }
                Err(found) => word = found,
            }
        }
        Queued::ForHolder
    }

    #[cold]
    fn own_contended(&self) {
        let mut holder = OWNED;
        let mut spins = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word & HELD == 0 {
                if self.take(word, holder).is_ok() {
                    return;
                }
            } else if word & OWNED == 0 && spins < SPINS_MAX {
                spins += 1;
                shim::spin_loop();
            } else if self.sleep() {
                // Other threads may still sleep, and the WAITERS bit that stood for them was
                // cleared.
                holder = OWNED | WAITERS;
                spins = 0;
            }
        }
    }

    /// Sleeps until a holder leaves. Returns false if that was not necessary.
    fn sleep(&self) -> bool {
        let token = self.sleepers.prepare();
        let mut word = self.word.load(Ordering::Relaxed);
        while word & HELD != 0 {
            if word & WAITERS == 0
                && let Err(found) = self.exchange(word, word | WAITERS, Ordering::Release)
            {
                word = found;
                continue;
            }
            // Without a timeout the only result is a notification.
            let _ = self.sleepers.wait(token, None);
            return true;
        }
        self.sleepers.cancel(token);
        false
    }

    /// Adds `holder` to the free word `word`.
    fn take(&self, word: u64, holder: u64) -> Result<(), u64> {
        self.exchange(word, word | holder, Ordering::Acquire).map(drop)
    }

    fn exchange(&self, from: u64, to: u64, success: Ordering) -> Result<u64, u64> {
        self.word.compare_exchange(from, to, success, Ordering::Relaxed)
    }
}

impl<T: Default, P: Linked> Default for SocketLock<T, P> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, P: Linked> fmt::Debug for SocketLock<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("SocketLock")
            .field("owned", &(word & OWNED != 0))
            .field("softirq_busy", &(word & SOFTIRQ_BUSY != 0))
            .field("waiters", &(word & WAITERS != 0))
            .field("backlog_bytes", &backlog_bytes(word))
            .field("deferred", &((word & DEFERRED) >> DEFERRED_SHIFT))
            .finish_non_exhaustive()
    }
}

fn backlog_bytes(word: u64) -> u32 {
    u32::try_from(word >> BYTES_SHIFT).expect("half a word")
}
