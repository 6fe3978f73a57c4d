//! Who may touch a socket: the lock that packet input never waits for.
//!
//! Above: every socket in `stack`. Linux: `lock_sock`, `release_sock`, `bh_lock_sock`, `sk_backlog`,
//! `tcp_release_cb` (net/core/sock.c).
//!
//! Two kinds of callers meet here. An application thread **owns** a socket for the length of a call and may
//! be descheduled meanwhile. A core in **softirq** (packet input, timers) has one item of work and must go on
//! at once: it runs the item if the socket is free, else leaves it to the holder. So neither a sleeping
//! application nor a busy second core ever stalls packet input.
//!
//! One word holds everything that decides (`bytes` in its upper half), so that giving the lock up and finding
//! that work has arrived are one atomic step:
//!
//! ```text
//!                         softirq, defer: run the work, drain
//!          ┌──────────── SOFTIRQ_BUSY ◄──────────┐
//!          │ CAS: nothing left                   │ CAS: nobody holds it
//!          ▼                                     │
//!        FREE ───────────────────────────────────┘
//!          ▲ │ CAS: nobody holds it
//!          │ ▼   own, try_own
//!         OWNED      release: drain, then CAS
//!
//!   while held   softirq   +bytes (or Full), push to the backlog, then set BACKLOG
//!                defer     set DEFERRED bits
//!                own       join the sleepers, then set WAITERS
//!   to leave     BACKLOG?  clear it, take the whole list, run each item in order; look again
//!                DEFERRED? clear the bits, run them; look again
//!                neither:  CAS(word seen → 0), which fails and looks again if a bit appeared;
//!                          if WAITERS was set, wake one sleeper
//! ```
//!
//! - **Order.** Items of one producer run in the order it brought them: an item is run directly only when
//!   BACKLOG is clear or after the backlog was drained, and `softirq` returns `Queued` only once BACKLOG is set.
//! - **Flood.** `bytes` counts admitted items and becomes 0 only in the CAS that leaves the lock (or ends
//!   `run_backlog`), never between rounds: a producer faster than the drain reaches its limit and is refused,
//!   so the drain ends. An item admitted but not yet pushed at that moment is forgotten by the counter: the
//!   limit may be exceeded by one item for each producer that was just then inside `softirq`.
//! - **Orphans.** A producer whose holder left before it set its bit finds that out from the old value of the
//!   same operation, and runs what it left behind itself.
//! - **Sleepers.** A woken sleeper takes the lock with WAITERS set, since others may sleep behind it; one
//!   needless look at the queue at the end of a burst is the price.
//!
//! Not here: what the bits and items mean, receive buffer limits, coalescing in the backlog.

use core::fmt;

use crate::eventcount::EventCount;
use crate::llist::{Linked, Llist};
use crate::shim::{self, AtomicU64, Ordering, UnsafeCell};

mod held;
mod owned;
#[cfg(test)]
mod tests;

use held::Held;
pub use owned::Owned;

/// An application thread holds the lock.
const OWNED: u64 = 1 << 0;
/// A core in softirq holds the lock.
const SOFTIRQ_BUSY: u64 = 1 << 1;
/// Somebody sleeps in `own`.
const WAITERS: u64 = 1 << 2;
/// The backlog list has items whose producers have gone.
const BACKLOG: u64 = 1 << 3;
/// First of the eight deferred-work bits.
const DEFERRED_SHIFT: u32 = 8;
const DEFERRED: u64 = 0xff << DEFERRED_SHIFT;
/// Bytes admitted to the backlog since it was last found empty: the upper half of the word.
const BYTES_SHIFT: u32 = 32;
const FLAGS: u64 = (1 << BYTES_SHIFT) - 1;
const HELD: u64 = OWNED | SOFTIRQ_BUSY;

/// Looks at a lock in softirq before `own` sleeps. One packet takes a core about a microsecond and a look
/// some tens of nanoseconds; after that the core has a burst to work through, or was descheduled.
const SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 100 };

/// One piece of work for the holder of a socket.
#[derive(Debug)]
pub enum Work<P> {
    /// A packet, in arrival order.
    Item(P),
    /// As `Item`: the one that [`SocketLock::softirq`] was called with, run before that returns. What its caller knows
    /// about it besides still holds.
    Direct(P),
    /// Deferred work: the bits given to [`SocketLock::defer`] since the last time, merged.
    Deferred(u8),
}

/// What became of work brought in softirq.
#[derive(Debug)]
#[must_use]
pub enum Entry<P> {
    /// It was run before the call returned.
    Ran,
    /// The present holder will run it before leaving.
    Queued,
    /// The backlog's byte limit refuses it.
    Full(P),
}

/// A value of type `T` with the socket lock around it; `P` is what the backlog holds.
pub struct SocketLock<T, P: Linked> {
    /// See the module head. Taking is Acquire, leaving is Release, and Acquire of those who `pass`; every other write is a
    /// read-modify-write and so keeps the release sequence from the last holder to the next.
    word: AtomicU64,
    backlog: Llist<P>,
    sleepers: EventCount,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only by the thread that set OWNED or SOFTIRQ_BUSY in a word that had neither,
// and that may be any thread, hence `T: Send`; items cross threads by the list, which asks `P: Send`.
unsafe impl<T: Send, P: Linked + Send> Sync for SocketLock<T, P> {}

impl<T, P: Linked> SocketLock<T, P> {
    /// A free lock around `value`.
    pub fn new(value: T) -> Self {
        Self {
            word: AtomicU64::new(0),
            backlog: Llist::new(),
            sleepers: EventCount::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Softirq: brings one item. If nobody holds the lock, runs it and everything that arrives meanwhile;
    /// else queues it unless that brought more than `limit` bytes into the backlog. Never waits.
    ///
    /// `leave` is called with an item that is going to be queued: it is run later, on another thread perhaps, and must
    /// take with it what it needs.
    #[inline]
    pub fn softirq(
        &self,
        item: P,
        bytes: u32,
        limit: u32,
        leave: impl FnOnce(&mut P),
        mut run: impl FnMut(&mut T, Work<P>),
    ) -> Entry<P> {
        let free =
            self.word.compare_exchange(0, SOFTIRQ_BUSY, Ordering::Acquire, Ordering::Relaxed);
        match free {
            Ok(_) => {
                let mut held = Held::new(self, SOFTIRQ_BUSY);
                run(held.value_mut(), Work::Direct(item));
                held.leave(&mut run);
                Entry::Ran
            }
            Err(word) => self.softirq_contended(word, item, (bytes, limit), leave, &mut run),
        }
    }

    /// Softirq: brings deferred work, a set of bits whose meaning is the caller's. As [`softirq`](Self::softirq),
    /// but never refused: bits of one kind merge.
    #[inline]
    pub fn defer(&self, bits: u8, mut run: impl FnMut(&mut T, Work<P>)) -> Entry<P> {
        let free =
            self.word.compare_exchange(0, SOFTIRQ_BUSY, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            let mut held = Held::new(self, SOFTIRQ_BUSY);
            run(held.value_mut(), Work::Deferred(bits));
            held.leave(&mut run);
            return Entry::Ran;
        }
        self.mark(u64::from(bits) << DEFERRED_SHIFT, &mut run)
    }

    /// For the holder itself, and while it holds: `bits` are run once more before the lock is free, behind what is
    /// being run.
    pub fn defer_to_holder(&self, bits: u8) {
        // Relaxed: what the bits stand for was done by the thread that will run them.
        let before = self.word.fetch_or(u64::from(bits) << DEFERRED_SHIFT, Ordering::Relaxed);
        debug_assert!(before & HELD != 0, "work for a holder that is not there");
    }

    /// Application: takes the lock, waiting for it if need be. Looks a moment at a core in softirq, which
    /// leaves soon; sleeps behind another application thread.
    #[inline]
    pub fn own(&self) -> Owned<'_, T, P> {
        let free = self.word.compare_exchange(0, OWNED, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            self.own_contended();
        }
        Owned { held: Held::new(self, OWNED) }
    }

    /// Application: takes the lock if nobody holds it.
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

    /// True while an application thread holds the lock. A hint: it may be over when this returns.
    pub fn is_owned(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OWNED != 0
    }

    /// For a thread that has announced itself as a waiter and is about to look at what holders publish. Of a holder that has left
    /// before this it sees all that was published; one that leaves later sees the announcement, and needs no fence for that
    /// ([`EventCount::notify_all_behind`]).
    pub fn pass(&self) {
        // Leaving is a read-modify-write of the same word: whichever of the two is second acquires what was before the first.
        self.word.fetch_or(0, Ordering::AcqRel);
    }

    /// Bytes admitted to the backlog and not yet worked off.
    pub fn backlog_bytes(&self) -> u32 {
        backlog_bytes(self.word.load(Ordering::Relaxed))
    }

    /// The value, which an exclusive reference owns anyway.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes every holder.
        unsafe { &mut *self.value.with_mut(|value| value) }
    }

    /// Takes the value out; what is in the backlog is dropped.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    #[cold]
    fn softirq_contended(
        &self,
        mut word: u64,
        mut item: P,
        (bytes, limit): (u32, u32),
        leave: impl FnOnce(&mut P),
        run: &mut impl FnMut(&mut T, Work<P>),
    ) -> Entry<P> {
        loop {
            let seen = if word & HELD == 0 {
                match self.take(word, SOFTIRQ_BUSY) {
                    Ok(()) => {
                        // Left behind by a holder that was dropped, or not yet by a producer: first come first.
                        let mut held = Held::new(self, SOFTIRQ_BUSY);
                        if word & BACKLOG != 0 {
                            held.drain(run);
                        }
                        run(held.value_mut(), Work::Direct(item));
                        held.leave(run);
                        return Entry::Ran;
                    }
                    Err(found) => found,
                }
            } else {
                // Differs from Linux: counts the new item too, because then `limit` is the most there can be.
                let fits = backlog_bytes(word).checked_add(bytes).is_some_and(|sum| sum <= limit);
                if !fits {
                    return Entry::Full(item);
                }
                let admitted = word + (u64::from(bytes) << BYTES_SHIFT);
                match self.exchange(word, admitted, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(found) => found,
                }
            };
            word = seen;
        }
        leave(&mut item);
        self.backlog.push(item);
        self.mark(BACKLOG, run)
    }

    /// Sets `bits` for the holder to find; if it has left before it could, does their work here.
    #[cold]
    fn mark(&self, bits: u64, run: &mut impl FnMut(&mut T, Work<P>)) -> Entry<P> {
        // Release: whoever clears the bits sees what they stand for.
        let mut word = self.word.fetch_or(bits, Ordering::Release) | bits;
        while word & HELD == 0 {
            if word & bits == 0 {
                // Another one came, saw the bits, and has left again.
                return Entry::Ran;
            }
            match self.take(word, SOFTIRQ_BUSY) {
                Ok(()) => {
                    Held::new(self, SOFTIRQ_BUSY).leave(run);
                    return Entry::Ran;
                }
                Err(found) => word = found,
            }
        }
        Entry::Queued
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
                // Others may sleep behind us, and the WAITERS that stood for them is gone.
                holder = OWNED | WAITERS;
                spins = 0;
            }
        }
    }

    /// Sleeps until a holder leaves. False when there was no need to.
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
            // Without a timeout there is one way to come back.
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
