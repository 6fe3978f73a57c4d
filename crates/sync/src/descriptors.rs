//! Who watches the descriptors of a core: its worker, or for a while the application thread that polls them.
//!
//! Above: `stack::Core`, its worker and whoever polls it. Linux: `napi_busy_loop` beside the hard interrupt that
//! `napi_defer_hard_irqs` and `gro_flush_timeout` keep off.
//!
//! A thread that polls finds frames before a worker could be woken for them, and will most likely poll again. So it leaves a
//! note with its number and a time ([`Descriptors::leave_to`]); a worker that finds the note sleeps without the descriptors.
//! The worker watches again when the thread says that it will not be back ([`Descriptors::give_back`],
//! [`Descriptors::leave`]), and at the latest when the time is over. A thread that does not say so lets frames lie until then.
//!
//! ```text
//!   thread                                     worker
//!   leave_to(me, until)                        is_left → will sleep without the descriptors:
//!   ... finds what it waited for ...             begin_sleep(true)
//!   give_back(me) or leave(me)                   is_given_back → does not sleep
//!     true → wakes the worker                    end_sleep
//! ```
//!
//! Both sides write their own word, pass a fence and read the other's: either the thread sees that the worker sleeps, or the
//! worker sees that the note is gone. The note is one word. So of several threads that poll in turn the last one speaks: it
//! reads its own number, and an earlier one finds another and changes nothing.
//!
//! Not here: who runs a core ([`core_lock`](crate::core_lock)), clocks, the sleep itself.

use core::fmt;

use crate::shim::{AtomicBool, AtomicU64, Ordering, StoreInOrder as _, fence};

#[cfg(test)]
mod tests;

/// What a thread that polls has left: who it is, until when it will be back, and whether it said so itself.
///
/// From bit 0: 16 bits of the number, one of the request, 47 of the time in microseconds, which are four years.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Note(u64);

/// Which thread has polled. Two in 65,535 share one: then either may give back what the other has polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poller(u16);

impl Poller {
    /// Whoever speaks first.
    pub const ANYBODY: Self = Self(0);

    /// The thread whose context has this number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let number = number % u64::from(u16::MAX) + 1;
        Self(u16::try_from(number).unwrap_or(u16::MAX))
    }
}

impl Note {
    /// The descriptors are the worker's.
    const NONE: Self = Self(0);
    const REQUEST: u64 = 1 << 16;
    const TIME_SHIFT: u32 = 17;
    const NANOS: u64 = 1000;

    const fn new(Poller(number): Poller, until: u64, by_request: bool) -> Self {
        let micros = until / Self::NANOS;
        // Four years after the boot polls are no longer known of, and the worker watches beside them.
        let micros = if micros >> (u64::BITS - Self::TIME_SHIFT) == 0 { micros } else { 0 };
        let request = if by_request { Self::REQUEST } else { 0 };
        Self(micros << Self::TIME_SHIFT | request | number as u64)
    }

    const fn is_by(self, Poller(number): Poller) -> bool {
        self.0 & 0xffff == number as u64
    }

    const fn is_by_request(self) -> bool {
        self.0 & Self::REQUEST != 0
    }

    const fn until(self) -> u64 {
        (self.0 >> Self::TIME_SHIFT) * Self::NANOS
    }
}

/// The note of whoever polls, and what the worker sleeps on. Times are in nanoseconds, by one clock for all threads.
pub struct Descriptors {
    /// The last note, as a number. Relaxed: the fences of `take_back` and `begin_sleep` order it.
    note: AtomicU64,
    /// The worker sleeps without the descriptors.
    yields: AtomicBool,
    /// The worker sleeps on them. A hint for whoever polls, who takes it back when it wakes the worker.
    watches: AtomicBool,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self {
            note: AtomicU64::new(Note::NONE.0),
            yields: AtomicBool::new(false),
            watches: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let note = self.note();
        f.debug_struct("Descriptors")
            .field("left_until", &note.until())
            .field("by_request", &note.is_by_request())
            .field("yields", &self.yields.load(Ordering::Relaxed))
            .field("watches", &self.watches.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Descriptors {
    /// `poller` has polled and will most likely again before `until`: by request when it said so itself, otherwise a guess.
    #[inline]
    pub fn leave_to(&self, poller: Poller, until: u64, by_request: bool) {
        self.note.store_in_order(Note::new(poller, until, by_request).0);
    }

    /// Whether a thread has polled a moment ago and will most likely again.
    #[inline]
    #[must_use]
    pub fn is_left(&self, now: u64) -> bool {
        self.note().until() > now
    }

    /// Until when a thread has asked to be left alone with them, if that is later than `now`.
    #[must_use]
    pub fn requested_until(&self, now: u64) -> Option<u64> {
        let note = self.note();
        (note.is_by_request() && note.until() > now).then(|| note.until())
    }

    /// Nobody has polled since they were given back.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        self.note() == Note::NONE
    }

    /// `poller` goes to sleep. Nothing changes when another thread has polled since and is expected back at `now`.
    #[must_use = "true obliges the caller to wake the worker"]
    pub fn give_back(&self, poller: Poller, now: u64) -> bool {
        let note = self.note();
        let is_others = !note.is_by(poller) && !note.is_by(Poller::ANYBODY) && note.until() > now;
        !is_others && self.take_back()
    }

    /// `poller`, which has polled, will not do so here again soon. Nothing changes when another thread has polled since: that
    /// one has had the core after this one, and speaks for both.
    #[must_use = "true obliges the caller to wake the worker"]
    pub fn leave(&self, poller: Poller) -> bool {
        let note = self.note();
        // Without a note somebody has given back while this thread still had the core: a worker that found it there sleeps.
        (note.is_by(poller) || note == Note::NONE) && self.take_back()
    }

    fn take_back(&self) -> bool {
        self.note.store_in_order(Note::NONE.0);
        // Pairs with the fence in `begin_sleep`: either we see that the worker yields, or it sees that the note is gone.
        fence(Ordering::SeqCst);
        self.resume()
    }

    /// The worker is about to sleep, without the descriptors when it `yields`. It looks afterwards whether there is a reason
    /// not to.
    pub fn begin_sleep(&self, yields: bool) {
        self.yields.store_in_order(yields);
        self.watches.store(!yields, Ordering::Relaxed);
        // Pairs with the fence in `take_back`.
        fence(Ordering::SeqCst);
    }

    /// The worker is awake again.
    pub fn end_sleep(&self) {
        self.yields.store_in_order(false);
        self.watches.store(false, Ordering::Relaxed);
    }

    /// Whether the worker sleeps without them and nobody has woken it for that yet.
    #[must_use = "true obliges the caller to wake the worker"]
    pub fn resume(&self) -> bool {
        self.yields.load(Ordering::Relaxed) && self.yields.swap(false, Ordering::AcqRel)
    }

    /// Whether the worker sleeps on them and nobody has woken it for that yet: once awake it sleeps without them, as long as the
    /// caller polls.
    #[inline]
    #[must_use = "true obliges the caller to wake the worker"]
    pub fn relieve(&self) -> bool {
        self.watches.load(Ordering::Relaxed) && self.watches.swap(false, Ordering::Relaxed)
    }

    fn note(&self) -> Note {
        Note(self.note.load(Ordering::Relaxed))
    }
}
