//! Exclusive ownership of a core: NAPI's ownership bits around the core's state.
//!
//! Above: `stack::Core`, workers and busy-polling socket calls. Linux: `napi_schedule_prep`,
//! `napi_complete_done`, the bits NAPI_STATE_SCHED and NAPI_STATE_MISSED.
//!
//! ```text
//!            schedule → true                 claim, try_own
//!   IDLE ───────────────────────► SCHED ───────────────────────► SCHED|RUNNING
//!    │▲                             ▲                              │   ▲  │ schedule, own refuse
//!    ││           reschedule        └──────────────────────────────┤   │  ▼
//!    ││                                                            │   │ SCHED|RUNNING|MISSED
//!    │└────────────────────────────────────────────────────────────┘   │  │
//!    │            release → Ok                          release → Err  └──┘
//!    └── try_own, own_if_idle ──► SCHED|RUNNING
//! ```
//!
//! An event is first put where the core will find it (its queue), then `schedule` is called. Either
//! the caller is told to get the core run, or a pending run will see the event, or the running
//! owner finds MISSED when it tries to release the core and checks again. So no event waits for the
//! next one.
//!
//! The same word has one bit for each queue of the core, set if a run is owed for that queue. Where
//! Linux keeps SCHED and MISSED per queue and a list per CPU, one owner runs the whole core here.
//! One exchange therefore announces both, and a set queue bit keeps the owner from releasing the
//! core as MISSED does.
//!
//! A polling owner needs no notification: it publishes the queues it polls
//! ([`CoreGuard::poll_queues`]), and a thread that adds to one of them only reads that
//! ([`CoreLock::own_or_schedule`]). When the owner stops polling, it withdraws this and checks the
//! queues a last time.
//!
//! Differs from Linux: RUNNING is a bit of its own, because the thread that is told to get the core
//! run need not be the thread that runs it. Two threads that respond to the same call do no harm.
//!
//! Not here: the choice of the thread to notify, and the queues.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::padded::Padded;
use crate::prefetch::fetch_for_writing;
use crate::shim::{AtomicU64, Ordering, UnsafeCell, fence, unique_number};

#[cfg(test)]
mod tests;

/// A run is owed or in progress.
const SCHED: u64 = 1 << 0;
/// A thread owns the core. Never set without `SCHED`.
const RUNNING: u64 = 1 << 1;
/// An event occurred while the core was owned or already scheduled.
const MISSED: u64 = 1 << 2;
/// The core is owned, and no event has occurred since.
const OWNED: u64 = SCHED | RUNNING;
/// Position of the bit of queue 0; the others follow.
const QUEUES_SHIFT: u32 = 3;
/// Bits of all queues.
const QUEUES: u64 = !0 << QUEUES_SHIFT;

/// Maximum number of queues of one core: the bits that the ownership bits leave.
pub const QUEUES_MAX: usize = (u64::BITS - QUEUES_SHIFT) as usize;

/// A core's state with its ownership bits.
pub struct CoreLock<T> {
    /// Number of this lock, unique in the process.
    id: u64,
    words: Padded<Words>,
    value: UnsafeCell<T>,
}

/// Words written by the owner and by every thread that has work for the core, hence on lines of
/// their own.
struct Words {
    /// Ownership bits and queue bits. Every transition is a read-modify-write, even one that
    /// changes nothing: it orders the event that was queued before it against the owner's next
    /// check.
    state: AtomicU64,
    /// Queues that the owner polls without notification, one bit each from bit 0 on. Only the owner
    /// writes it, and it is zero without an owner. Relaxed: the fences of `is_polled` and
    /// `stop_polling` order it.
    polled: AtomicU64,
}

// SAFETY: `value` is accessed only through a `CoreGuard`, and RUNNING admits one at a time; the
// guard may be on any thread, hence `T: Send`.
unsafe impl<T: Send> Sync for CoreLock<T> {}

impl<T> CoreLock<T> {
    /// Makes an idle lock around `value`.
    pub fn new(value: T) -> Self {
        Self {
            id: unique_number(),
            words: Padded::new(Words { state: AtomicU64::new(0), polled: AtomicU64::new(0) }),
            value: UnsafeCell::new(value),
        }
    }

    /// Requests a run that polls `queues`, one bit each from bit 0 on; with no bit, a run that
    /// polls none. Returns true if the caller must make some thread call [`claim`](Self::claim)
    /// (itself, or the core's worker). Returns false if that has been done before, or the owner
    /// will run once more.
    #[must_use = "true obliges the caller to get the core run"]
    pub fn schedule(&self, queues: u64) -> bool {
        let queues = queue_bits(queues);
        let before = self.change(|state| {
            Some(queues | if state & SCHED == 0 { state | SCHED } else { state | MISSED })
        });
        before.is_ok_and(|before| before & SCHED == 0)
    }

    /// As [`schedule`](Self::schedule), for a caller that will run the core itself: if no thread
    /// owns the core and no run is owed, the caller owns it at once, and takes it over with
    /// [`adopt`](Self::adopt). One exchange instead of three, because the queues travel in the
    /// claim. `None`: the current or next owner will see the queues.
    ///
    /// An item in a queue that the owner polls is found without any write here, so the item itself
    /// must order the data that comes with it.
    #[inline]
    pub fn own_or_schedule(&self, queues: u64) -> Option<Claim> {
        if self.is_polled(queues) {
            return None;
        }
        let bits = queue_bits(queues);
        let before = self.change(|state| {
            Some(if state & SCHED == 0 { state | OWNED } else { state | MISSED | bits })
        });
        let is_ours = before.is_ok_and(|before| before & SCHED == 0);
        is_ours.then_some(Claim { lock: self.id, queues: bits })
    }

    /// Returns whether an owner polls all of `queues`, and will check them again after the caller's
    /// addition.
    #[inline]
    fn is_polled(&self, queues: u64) -> bool {
        let polled = || self.words.polled.load(Ordering::Relaxed);
        if queues == 0 || queues & !polled() != 0 {
            return false;
        }
        // Pairs with the fence in `stop_polling`: either the owner's last check sees the caller's
        // addition, or this load sees that the owner no longer polls.
        fence(Ordering::SeqCst);
        queues & !polled() == 0
    }

    /// Takes over the ownership of `claim`.
    ///
    /// # Panics
    /// If the claim is of another lock.
    #[inline]
    pub fn adopt(&self, claim: Claim) -> CoreGuard<'_, T> {
        assert_eq!(claim.lock, self.id, "the claim of another core");
        // A claim is made by the thread that sets RUNNING and is consumed here, and no other lock
        // has this number: so no other thread has the ownership.
        let guard = CoreGuard::new(self);
        guard.claimed.set(claim.queues);
        guard
    }

    /// Marks queues for the next check of the current or next owner, without requesting a run: for
    /// a caller that is about to [`try_own`](Self::try_own).
    pub fn mark(&self, queues: u64) {
        self.words.state.fetch_or(queue_bits(queues), Ordering::AcqRel);
    }

    /// Takes ownership if a run is owed and no thread has begun it.
    pub fn claim(&self) -> Option<CoreGuard<'_, T>> {
        self.own_where(|state| state & (SCHED | RUNNING) == SCHED)
    }

    /// Takes ownership if no thread has it, whether or not a run is owed. Changes nothing if
    /// another thread has it: for busy polling.
    pub fn own_if_idle(&self) -> Option<CoreGuard<'_, T>> {
        self.own_where(|state| state & RUNNING == 0)
    }

    /// As [`own_if_idle`](Self::own_if_idle), but makes an existing owner run once more.
    pub fn try_own(&self) -> Option<CoreGuard<'_, T>> {
        let before = self.change(|state| {
            Some(if state & RUNNING == 0 { state & QUEUES | OWNED } else { state | MISSED })
        });
        before.is_ok_and(|before| before & RUNNING == 0).then(|| CoreGuard::new(self))
    }

    /// Returns true if a run is owed or in progress. A hint: it may be out of date when this
    /// returns.
    pub fn is_scheduled(&self) -> bool {
        self.words.state.load(Ordering::Relaxed) & SCHED != 0
    }

    /// Returns true if a run or a queue is owed and no thread owns the core; an owner handles all
    /// of it. A hint, as above.
    pub fn is_owed(&self) -> bool {
        let state = self.words.state.load(Ordering::Relaxed);
        state != 0 && state & RUNNING == 0
    }

    /// Returns the value, which an exclusive reference may access without the lock.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes every guard.
        unsafe { &mut *self.value.with_mut(|value| value) }
    }

    fn own_where(&self, admit: impl Fn(u64) -> bool) -> Option<CoreGuard<'_, T>> {
        // A run sees all events before its start, so MISSED is cleared.
        let taken = self.change(|state| admit(state).then_some(state & QUEUES | OWNED));
        taken.is_ok().then(|| CoreGuard::new(self))
    }

    /// Replaces the state by `next(state)`; `Err` if that is `None`. AcqRel: the thread that takes
    /// ownership sees the scheduler's additions and the writes of the last owner.
    fn change(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.words.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next)
    }
}

/// Returns the bits of `queues` in the word.
const fn queue_bits(queues: u64) -> u64 {
    debug_assert!(queues <= !0 >> QUEUES_SHIFT, "a queue beyond QUEUES_MAX");
    queues << QUEUES_SHIFT
}

impl<T: Default> Default for CoreLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for CoreLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.words.state.load(Ordering::Relaxed);
        f.debug_struct("CoreLock")
            .field("scheduled", &(state & SCHED != 0))
            .field("running", &(state & RUNNING != 0))
            .field("missed", &(state & MISSED != 0))
            .field("queues", &format_args!("{:#x}", state >> QUEUES_SHIFT))
            .finish_non_exhaustive()
    }
}

/// Ownership of a core on its way to the thread that will run it. Consumed by [`CoreLock::adopt`];
/// if it is dropped, the core stays owned for ever.
#[derive(Debug)]
#[must_use = "the core stays owned until the claim is adopted"]
pub struct Claim {
    lock: u64,
    /// Bits of the queues that the run is owed for.
    queues: u64,
}

/// Ownership of a core. Give it up with [`release`](Self::release) or
/// [`reschedule`](Self::reschedule).
///
/// Dropping it makes the core idle even if MISSED or a queue was set: the event then waits for the
/// next owner. That is meant for unwinding and shutdown.
#[must_use]
pub struct CoreGuard<'a, T> {
    lock: &'a CoreLock<T>,
    /// Bits of queues that are scheduled and not in the word, because they came with the claim.
    claimed: Cell<u64>,
    /// Marker: for `Send` and `Sync`, a guard is like a `&mut T`.
    owns: PhantomData<&'a mut T>,
}

impl<'a, T> CoreGuard<'a, T> {
    /// Makes the guard of a caller that has just set RUNNING.
    fn new(lock: &'a CoreLock<T>) -> Self {
        Self { lock, claimed: Cell::new(0), owns: PhantomData }
    }

    /// Takes the scheduled queues among those in `wanted`, one bit each. The owner is now
    /// responsible for them: a thread that schedules one of them later sets its bit again. Take a
    /// queue before checking it, and [`put_back`](Self::put_back) the queues that were not checked.
    #[must_use = "the taken queues must be checked"]
    pub fn take_queues(&self, wanted: u64) -> u64 {
        let wanted = queue_bits(wanted);
        let state = &self.lock.words.state;
        let claimed = self.claimed.get();
        self.claimed.set(claimed & !wanted);
        let mut taken = claimed & wanted;
        // Acquire: items queued before a bit was set are visible to the check. A bit that is missed
        // here makes `release` fail.
        if state.load(Ordering::Acquire) & wanted != 0 {
            taken |= state.fetch_and(!wanted, Ordering::AcqRel) & wanted;
        }
        taken >> QUEUES_SHIFT
    }

    /// Puts back queues that the owner has taken and that still have items.
    pub fn put_back(&self, queues: u64) {
        self.lock.mark(queues);
    }

    /// Declares that the owner polls `queues` continuously from here on, until
    /// [`stop_polling`](Self::stop_polling): a thread that adds to one of them need not notify.
    pub fn poll_queues(&self, queues: u64) {
        self.lock.words.polled.store(queues, Ordering::Relaxed);
    }

    /// Ends polling, before the core is released. The caller must check the polled queues once
    /// more, and [`put_back`](Self::put_back) those that have items, because no thread has
    /// announced them.
    #[must_use = "the polled queues must be checked once more"]
    pub fn stop_polling(&self) -> u64 {
        let polled = self.lock.words.polled.load(Ordering::Relaxed);
        if polled != 0 {
            self.lock.words.polled.store(0, Ordering::Relaxed);
            // Pairs with the fence in `is_polled`.
            fence(Ordering::SeqCst);
        }
        polled
    }

    /// Returns whether a queue was scheduled since they were last taken: a hint, for an owner that
    /// polls. MISSED alone, which stays until the core is released, does not count.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.lock.words.state.load(Ordering::Relaxed) & !MISSED != OWNED
    }

    /// Prefetches the words that `release` writes, for an owner that has polled: threads that added
    /// to the polled queues have read them.
    #[inline]
    pub fn prepare_release(&self) {
        fetch_for_writing(&raw const self.lock.words);
    }

    /// Releases the core. `Err` returns it if an event was missed or a queue is scheduled: check
    /// the queues again first.
    pub fn release(self) -> Result<(), Self> {
        debug_assert_eq!(
            self.lock.words.polled.load(Ordering::Relaxed),
            0,
            "the owner still polls"
        );
        let state = &self.lock.words.state;
        self.mark_claimed();
        // Release: the next owner sees the work of this one.
        if state.compare_exchange(OWNED, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            core::mem::forget(self);
            return Ok(());
        }
        // Only MISSED and queues can have been added. Acquire: the next check sees items queued
        // before.
        state.fetch_and(!MISSED, Ordering::AcqRel);
        Err(self)
    }

    /// Releases the core with a run owed: work is left, but this thread's budget is used up. The
    /// caller must get the core run, as after `schedule` returned true.
    pub fn reschedule(self) {
        debug_assert_eq!(
            self.lock.words.polled.load(Ordering::Relaxed),
            0,
            "the owner still polls"
        );
        self.mark_claimed();
        // A read-modify-write, not a store: the next claimer must also see the event of a MISSED
        // that is cleared here.
        self.lock.words.state.fetch_and(!(RUNNING | MISSED), Ordering::AcqRel);
        core::mem::forget(self);
    }

    /// Passes the queues that came with the claim and were not checked on to the next owner.
    #[inline]
    fn mark_claimed(&self) {
        let claimed = self.claimed.take();
        if claimed != 0 {
            self.lock.words.state.fetch_or(claimed, Ordering::AcqRel);
        }
    }

    /// Returns the lock that this guard holds.
    pub fn lock(&self) -> &'a CoreLock<T> {
        self.lock
    }
}

impl<T> Deref for CoreGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread has set RUNNING and no other thread has a
        // reference to the value.
        unsafe { &*self.lock.value.with(|value| value) }
    }
}

impl<T> DerefMut for CoreGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference made through the
        // guard.
        unsafe { &mut *self.lock.value.with_mut(|value| value) }
    }
}

impl<T> Drop for CoreGuard<'_, T> {
    fn drop(&mut self) {
        // Items in polled queues, which no thread announced, are passed on to the next owner too.
        let polled = self.stop_polling();
        if polled != 0 {
            self.put_back(polled);
        }
        self.mark_claimed();
        self.lock.words.state.fetch_and(QUEUES, Ordering::AcqRel);
    }
}

impl<T: fmt::Debug> fmt::Debug for CoreGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CoreGuard").field(&**self).finish()
    }
}
