//! Who runs a core: NAPI's ownership bits around the core's state.
//!
//! Above: `stack::Core`, workers and busy-polling socket calls. Linux: `napi_schedule_prep`,
//! `napi_complete_done`, the bits NAPI_STATE_SCHED and NAPI_STATE_MISSED.
//!
//! ```text
//!            schedule → true                 claim, try_own
//!   IDLE ───────────────────────► SCHED ───────────────────────► SCHED|RUNNING
//!    │▲                             ▲                              │   ▲  │ schedule → false, try_own → None
//!    ││           reschedule        └──────────────────────────────┤   │  ▼
//!    ││                                                            │   │ SCHED|RUNNING|MISSED
//!    │└────────────────────────────────────────────────────────────┘   │  │
//!    │            release → Ok                          release → Err  └──┘
//!    └── try_own, own_if_idle ──► SCHED|RUNNING
//! ```
//!
//! An event is first put where the core will look (its queue), then `schedule` is called. Either the caller
//! is told to get the core run, or a pending run will see the event, or the running owner finds MISSED when
//! it wants to leave and looks again. So no event waits for the next one.
//!
//! The same word has a bit for each queue of the core: which of them the run is owed for. Where Linux keeps SCHED and MISSED
//! per queue and a list per CPU, one owner runs the whole core here, so one exchange announces both, and a queue bit that
//! is set keeps the owner from leaving as MISSED does.
//!
//! An owner that polls need not be told at all: it says which queues it looks at anyway ([`CoreGuard::poll_queues`]), and whoever
//! has something for one of them only reads that ([`CoreLock::own_or_schedule`]). When it stops it takes that back, and looks a
//! last time.
//!
//! Differs from Linux: RUNNING is a bit of its own, because whoever was told to get the core run may be
//! another thread than the one that runs it; two threads answering the same call is harmless.
//!
//! Not here: which thread is told, and queues.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::padded::Padded;
use crate::prefetch::fetch_for_writing;
use crate::shim::{AtomicU64, Ordering, UnsafeCell, fence, unique_number};

#[cfg(test)]
mod tests;

/// A run is owed or under way.
const SCHED: u64 = 1 << 0;
/// A thread owns the core. Never without `SCHED`.
const RUNNING: u64 = 1 << 1;
/// Something happened while the core was owned or already scheduled.
const MISSED: u64 = 1 << 2;
/// Owned, and nothing happened since.
const OWNED: u64 = SCHED | RUNNING;
/// The bit of queue 0; the others follow.
const QUEUES_SHIFT: u32 = 3;
/// The bits of all queues.
const QUEUES: u64 = !0 << QUEUES_SHIFT;

/// Queues that one core may have: the bits that the ownership bits leave.
pub const QUEUES_MAX: usize = (u64::BITS - QUEUES_SHIFT) as usize;

/// A core's state with its ownership bits.
pub struct CoreLock<T> {
    /// No other lock of the process has or had it.
    id: u64,
    words: Padded<Words>,
    value: UnsafeCell<T>,
}

/// Written by the owner and by every thread that has work for the core, hence on lines of their own.
struct Words {
    /// Every transition is a read-modify-write, also the one that changes nothing: it orders the event that was
    /// queued before it against the owner's next look.
    state: AtomicU64,
    /// The queues that the owner looks at without being told, one bit each from bit 0 on. Only the owner writes it, and it is zero
    /// when there is none. Relaxed: the fences of `is_polled` and `stop_polling` order it.
    polled: AtomicU64,
}

// SAFETY: `value` is reached only through a `CoreGuard`, and RUNNING admits one at a time; the guard may be
// on any thread, hence `T: Send`.
unsafe impl<T: Send> Sync for CoreLock<T> {}

impl<T> CoreLock<T> {
    /// Idle, around `value`.
    pub fn new(value: T) -> Self {
        Self {
            id: unique_number(),
            words: Padded::new(Words { state: AtomicU64::new(0), polled: AtomicU64::new(0) }),
            value: UnsafeCell::new(value),
        }
    }

    /// Asks for a run that looks at `queues`, one bit each from bit 0 on; none asks for a run that looks at none. True: the
    /// caller must see to it that some thread calls [`claim`](Self::claim) (itself, or the core's worker). False: that has
    /// been done, or the owner will run once more.
    #[must_use = "true obliges the caller to get the core run"]
    pub fn schedule(&self, queues: u64) -> bool {
        let queues = queue_bits(queues);
        let before = self.change(|state| {
            Some(queues | if state & SCHED == 0 { state | SCHED } else { state | MISSED })
        });
        before.is_ok_and(|before| before & SCHED == 0)
    }

    /// As [`schedule`](Self::schedule), for a caller that will run the core itself: if nobody runs it and no run is owed, it is
    /// the caller's at once, who takes it up with [`adopt`](Self::adopt). One exchange instead of three, for the queues
    /// travel in the claim. `None`: the owner, there or to come, will see the queues.
    ///
    /// What was put into a queue that the owner polls is found by it, and nothing is written for that: then the item itself must
    /// order what comes with it.
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

    /// Whether an owner looks at all of `queues`, and will look again after what the caller has put there.
    #[inline]
    fn is_polled(&self, queues: u64) -> bool {
        let polled = || self.words.polled.load(Ordering::Relaxed);
        if queues == 0 || queues & !polled() != 0 {
            return false;
        }
        // Pairs with the fence in `stop_polling`: either the owner's last look sees what was put there, or we see here that it
        // does not poll any more.
        fence(Ordering::SeqCst);
        queues & !polled() == 0
    }

    /// The ownership that `claim` stands for.
    ///
    /// # Panics
    /// It is another lock's.
    #[inline]
    pub fn adopt(&self, claim: Claim) -> CoreGuard<'_, T> {
        assert_eq!(claim.lock, self.id, "the claim of another core");
        // A claim is made where RUNNING is set, by whoever sets it, is used up here, and there is no other lock of this number:
        // so nobody else has the ownership.
        let guard = CoreGuard::new(self);
        guard.claimed.set(claim.queues);
        guard
    }

    /// Marks queues for the next look, be it of an owner who is there or of one to come, and asks nobody to run: for a
    /// caller that is about to [`try_own`](Self::try_own).
    pub fn mark(&self, queues: u64) {
        self.words.state.fetch_or(queue_bits(queues), Ordering::AcqRel);
    }

    /// Takes ownership if a run is owed and nobody has begun it.
    pub fn claim(&self) -> Option<CoreGuard<'_, T>> {
        self.own_where(|state| state & (SCHED | RUNNING) == SCHED)
    }

    /// Takes ownership if nobody has it, be a run owed or not, and leaves no trace if somebody has it: busy
    /// polling.
    pub fn own_if_idle(&self) -> Option<CoreGuard<'_, T>> {
        self.own_where(|state| state & RUNNING == 0)
    }

    /// As [`own_if_idle`](Self::own_if_idle), but an owner is made to run once more.
    pub fn try_own(&self) -> Option<CoreGuard<'_, T>> {
        let before = self.change(|state| {
            Some(if state & RUNNING == 0 { state & QUEUES | OWNED } else { state | MISSED })
        });
        before.is_ok_and(|before| before & RUNNING == 0).then(|| CoreGuard::new(self))
    }

    /// True when a run is owed or under way. A hint: it may be over when this returns.
    pub fn is_scheduled(&self) -> bool {
        self.words.state.load(Ordering::Relaxed) & SCHED != 0
    }

    /// True when a run or a queue is owed and nobody runs the core: an owner sees to all of it. A hint, as above.
    pub fn is_owed(&self) -> bool {
        let state = self.words.state.load(Ordering::Relaxed);
        state != 0 && state & RUNNING == 0
    }

    /// The value, which an exclusive reference owns anyway.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes every guard.
        unsafe { &mut *self.value.with_mut(|value| value) }
    }

    fn own_where(&self, admit: impl Fn(u64) -> bool) -> Option<CoreGuard<'_, T>> {
        // What was missed before the run begins is seen by the run, so MISSED does not survive.
        let taken = self.change(|state| admit(state).then_some(state & QUEUES | OWNED));
        taken.is_ok().then(|| CoreGuard::new(self))
    }

    /// Replaces the state by `next(state)`; `Err` when that is `None`. AcqRel: the taker sees what the
    /// scheduler queued and what the last owner left.
    fn change(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.words.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next)
    }
}

/// The bits of `queues` in the word.
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

/// Ownership of a core on its way to who will run it. Used up by [`CoreLock::adopt`]; without it the core stays owned for ever.
#[derive(Debug)]
#[must_use = "the core stays owned until the claim is adopted"]
pub struct Claim {
    lock: u64,
    /// Bits of the queues that the run is owed for.
    queues: u64,
}

/// Ownership of a core. Give it up with [`release`](Self::release) or [`reschedule`](Self::reschedule).
///
/// Dropping it makes the core idle even if MISSED or a queue was set: the event then waits for the next owner.
/// That is meant for unwinding and shutdown.
#[must_use]
pub struct CoreGuard<'a, T> {
    lock: &'a CoreLock<T>,
    /// Bits of queues that are scheduled and not in the word, because they came with the ownership.
    claimed: Cell<u64>,
    /// As a `&mut T` for the compiler's question who may send or share a guard.
    owns: PhantomData<&'a mut T>,
}

impl<'a, T> CoreGuard<'a, T> {
    /// The caller has just set RUNNING.
    fn new(lock: &'a CoreLock<T>) -> Self {
        Self { lock, claimed: Cell::new(0), owns: PhantomData }
    }

    /// The queues that were scheduled, one bit each, among those in `wanted`. They are the owner's now: whoever schedules
    /// one from here on sets its bit again. Take a queue before looking at it, and [`put_back`](Self::put_back) what has
    /// not been looked at.
    #[must_use = "what is taken must be looked at"]
    pub fn take_queues(&self, wanted: u64) -> u64 {
        let wanted = queue_bits(wanted);
        let state = &self.lock.words.state;
        let claimed = self.claimed.get();
        self.claimed.set(claimed & !wanted);
        let mut taken = claimed & wanted;
        // Acquire: what was queued before a bit was set is seen by the look. A bit that is missed here fails `release`.
        if state.load(Ordering::Acquire) & wanted != 0 {
            taken |= state.fetch_and(!wanted, Ordering::AcqRel) & wanted;
        }
        taken >> QUEUES_SHIFT
    }

    /// Queues that the owner has taken and that still have something.
    pub fn put_back(&self, queues: u64) {
        self.lock.mark(queues);
    }

    /// From here on the owner looks at `queues` again and again, until [`stop_polling`](Self::stop_polling): nobody who has
    /// something for one of them needs to tell.
    pub fn poll_queues(&self, queues: u64) {
        self.lock.words.polled.store(queues, Ordering::Relaxed);
    }

    /// The end of polling, before the core is given up. Look at the queues that were polled once more, and
    /// [`put_back`](Self::put_back) those that have something: nobody has told.
    #[must_use = "what came unannounced must be looked for once more"]
    pub fn stop_polling(&self) -> u64 {
        let polled = self.lock.words.polled.load(Ordering::Relaxed);
        if polled != 0 {
            self.lock.words.polled.store(0, Ordering::Relaxed);
            // Pairs with the fence in `is_polled`.
            fence(Ordering::SeqCst);
        }
        polled
    }

    /// Whether anybody has told of a queue since they were last taken: a hint, for an owner that polls. That somebody wanted to run
    /// the core, which is noted until it is released, is none.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.lock.words.state.load(Ordering::Relaxed) & !MISSED != OWNED
    }

    /// For an owner that has polled and is about to let the core go: begins to fetch the words that it will write for that, which
    /// whoever had something has read.
    #[inline]
    pub fn prepare_release(&self) {
        fetch_for_writing(&raw const self.lock.words);
    }

    /// Gives the core up. `Err` returns it because something was missed or a queue is scheduled: look at the queues again
    /// first.
    pub fn release(self) -> Result<(), Self> {
        debug_assert_eq!(self.lock.words.polled.load(Ordering::Relaxed), 0, "it still polls");
        let state = &self.lock.words.state;
        self.mark_claimed();
        // Release: the next owner sees this one's work.
        if state.compare_exchange(OWNED, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            core::mem::forget(self);
            return Ok(());
        }
        // Only MISSED and queues can have been added. Acquire: the next look sees what was queued before.
        state.fetch_and(!MISSED, Ordering::AcqRel);
        Err(self)
    }

    /// Gives the core up with a run owed: more work is there, but this thread's budget is over. The caller
    /// must get the core run, as after `schedule` returned true.
    pub fn reschedule(self) {
        debug_assert_eq!(self.lock.words.polled.load(Ordering::Relaxed), 0, "it still polls");
        self.mark_claimed();
        // A read-modify-write, not a store: whoever claims next must also see what a MISSED erased here stood for.
        self.lock.words.state.fetch_and(!(RUNNING | MISSED), Ordering::AcqRel);
        core::mem::forget(self);
    }

    /// What came with the ownership and was not looked at is the next owner's.
    #[inline]
    fn mark_claimed(&self) {
        let claimed = self.claimed.take();
        if claimed != 0 {
            self.lock.words.state.fetch_or(claimed, Ordering::AcqRel);
        }
    }

    /// The lock this guard owns.
    pub fn lock(&self) -> &'a CoreLock<T> {
        self.lock
    }
}

impl<T> Deref for CoreGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so RUNNING is ours and nobody else has a reference to the value.
        unsafe { &*self.lock.value.with(|value| value) }
    }
}

impl<T> DerefMut for CoreGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference made through the guard.
        unsafe { &mut *self.lock.value.with_mut(|value| value) }
    }
}

impl<T> Drop for CoreGuard<'_, T> {
    fn drop(&mut self) {
        // What came unannounced waits for the next owner, too.
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
