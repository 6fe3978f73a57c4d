//! The timers of a core, as they are armed. They fire in a turn (`turn::expire_timers`).
//!
//! Linux: `mod_timer`, `timer_delete`, `__run_timers`.

use std::sync::PoisonError;

use pkt::Instant;

use super::{Core, CoreId, TimerEntry};
use crate::timer::{TimerKey, TimerWheel};

/// An entry in the wheel of some core, for an owner that may end before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerHandle {
    pub(crate) core: CoreId,
    key: TimerKey,
}

impl TimerHandle {
    /// In one word, which is not `u64::MAX`: there are fewer cores.
    pub(crate) fn to_bits(self) -> u64 {
        let (core, generation) = (u64::from(self.core.0), u64::from(self.key.generation));
        core << 48 | generation << 32 | u64::from(self.key.index)
    }

    /// The handle that gave these bits.
    #[expect(clippy::cast_possible_truncation, reason = "the fields are taken apart")]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        let key = TimerKey { index: bits as u32, generation: (bits >> 32) as u16 };
        Self { core: CoreId((bits >> 48) as u16), key }
    }
}

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
        let next = timers.next_deadline();
        self.attendance.set_timer(next.map(Instant::as_nanos));
        next.unwrap_or(Instant::FAR_FUTURE)
    }
}
