//! The timers of a core, as they are armed. They fire in a turn (`turn::expire_timers`).
//!
//! Linux: `mod_timer`, `timer_delete`, `__run_timers`.

use std::sync::{PoisonError, atomic::Ordering};

use pkt::Instant;

use super::{Core, TimerEntry};
use crate::base::timer::{TimerHandle, TimerWheel};

impl Core {
    /// Arms a timer. Any context may call it.
    pub(crate) fn arm(&self, deadline: Instant, entry: TimerEntry) -> TimerHandle {
        let (key, next) = {
            let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
            let key = timers.insert(deadline, entry);
            (key, self.publish_next_timer(&timers))
        };
        // What a sleeper compares with: the wheel's moment, not the exact one, or it would be woken for nothing.
        self.wake_before(next);
        TimerHandle { core: self.id, key }
    }

    /// Takes a timer out of the wheel, if it has not fired. Whoever sleeps until then wakes for nothing. Any context may call it.
    pub(crate) fn disarm(&self, handle: TimerHandle) {
        debug_assert_eq!(handle.core, self.id);
        let removed = {
            let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
            let removed = timers.remove(handle.key);
            let _ = self.publish_next_timer(&timers);
            removed
        };
        // Outside of the lock: the entry may be the last one to know of its owner.
        drop(removed);
    }

    /// Entries in the timer wheel, those included that nobody waits for any more.
    #[must_use]
    pub fn timers_armed(&self) -> usize {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn publish_next_timer(&self, timers: &TimerWheel<TimerEntry>) -> Instant {
        let next = timers.next_deadline().unwrap_or(Instant::FAR_FUTURE);
        self.next_timer_ns.store(next.as_nanos(), Ordering::Relaxed);
        next
    }
}
