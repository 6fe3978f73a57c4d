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
//! Differs from Linux: RUNNING is a bit of its own, because whoever was told to get the core run may be
//! another thread than the one that runs it; two threads answering the same call is harmless.
//!
//! Not here: which thread is told, and queues.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::padded::Padded;
use crate::shim::{AtomicU32, Ordering, UnsafeCell};

#[cfg(test)]
mod tests;

/// A run is owed or under way.
const SCHED: u32 = 1 << 0;
/// A thread owns the core. Never without `SCHED`.
const RUNNING: u32 = 1 << 1;
/// Something happened while the core was owned or already scheduled.
const MISSED: u32 = 1 << 2;

/// A core's state with its ownership bits.
pub struct CoreLock<T> {
    /// Written by the owner and by every thread that has work for the core, hence on lines of its own. Every
    /// transition is a read-modify-write, also the one that changes nothing: it orders the event that was
    /// queued before it against the owner's next look.
    state: Padded<AtomicU32>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `CoreGuard`, and RUNNING admits one at a time; the guard may be
// on any thread, hence `T: Send`.
unsafe impl<T: Send> Sync for CoreLock<T> {}

impl<T> CoreLock<T> {
    /// Idle, around `value`.
    pub fn new(value: T) -> Self {
        Self { state: Padded::new(AtomicU32::new(0)), value: UnsafeCell::new(value) }
    }

    /// Asks for a run. True: the caller must see to it that some thread calls [`claim`](Self::claim) (itself,
    /// or the core's worker). False: that has been done, or the owner will run once more.
    #[must_use = "true obliges the caller to get the core run"]
    pub fn schedule(&self) -> bool {
        let before =
            self.change(|state| Some(if state & SCHED == 0 { SCHED } else { state | MISSED }));
        before.is_ok_and(|before| before & SCHED == 0)
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
            Some(if state & RUNNING == 0 { SCHED | RUNNING } else { state | MISSED })
        });
        before.is_ok_and(|before| before & RUNNING == 0).then(|| CoreGuard::new(self))
    }

    /// True when a run is owed or under way. A hint: it may be over when this returns.
    pub fn is_scheduled(&self) -> bool {
        self.state.load(Ordering::Relaxed) & SCHED != 0
    }

    /// The value, which an exclusive reference owns anyway.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes every guard.
        unsafe { &mut *self.value.with_mut(|value| value) }
    }

    fn own_where(&self, admit: impl Fn(u32) -> bool) -> Option<CoreGuard<'_, T>> {
        // What was missed before the run begins is seen by the run, so MISSED does not survive.
        let taken = self.change(|state| admit(state).then_some(SCHED | RUNNING));
        taken.is_ok().then(|| CoreGuard::new(self))
    }

    /// Replaces the state by `next(state)`; `Err` when that is `None`. AcqRel: the taker sees what the
    /// scheduler queued and what the last owner left.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next)
    }
}

impl<T: Default> Default for CoreLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for CoreLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("CoreLock")
            .field("scheduled", &(state & SCHED != 0))
            .field("running", &(state & RUNNING != 0))
            .field("missed", &(state & MISSED != 0))
            .finish_non_exhaustive()
    }
}

/// Ownership of a core. Give it up with [`release`](Self::release) or [`reschedule`](Self::reschedule).
///
/// Dropping it makes the core idle even if MISSED was set: the event then waits for the next `schedule`.
/// That is meant for unwinding and shutdown.
#[must_use]
pub struct CoreGuard<'a, T> {
    lock: &'a CoreLock<T>,
    /// As a `&mut T` for the compiler's question who may send or share a guard.
    owns: PhantomData<&'a mut T>,
}

impl<'a, T> CoreGuard<'a, T> {
    /// The caller has just set RUNNING.
    fn new(lock: &'a CoreLock<T>) -> Self {
        Self { lock, owns: PhantomData }
    }

    /// Gives the core up. `Err` returns it because something was missed: look at the queues again first.
    pub fn release(self) -> Result<(), Self> {
        const OWNED: u32 = SCHED | RUNNING;
        let state = &self.lock.state;
        // Release: the next owner sees this one's work.
        if state.compare_exchange(OWNED, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            core::mem::forget(self);
            return Ok(());
        }
        // Only MISSED can have been added. Acquire: the next look sees what was queued before it was set.
        state.swap(OWNED, Ordering::AcqRel);
        Err(self)
    }

    /// Gives the core up with a run owed: more work is there, but this thread's budget is over. The caller
    /// must get the core run, as after `schedule` returned true.
    pub fn reschedule(self) {
        // A swap, not a store: whoever claims next must also see what a MISSED erased here stood for.
        self.lock.state.swap(SCHED, Ordering::AcqRel);
        core::mem::forget(self);
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
        self.lock.state.swap(0, Ordering::AcqRel);
    }
}

impl<T: fmt::Debug> fmt::Debug for CoreGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CoreGuard").field(&**self).finish()
    }
}
