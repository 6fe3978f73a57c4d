//! When a core has something to do although nothing arrives. A worker that is about to sleep reads it, a turn does what is due.
//!
//! A thread that moves a deadline forward publishes it here, then calls [`Attendance::wake_before`].

use super::Attendance;
use crate::shim::{AtomicU64, Ordering, StoreInOrder as _};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Relaxed, but for what is said beside a field: the fences of `wake_before` and `prepare_sleep` order them for the worker. A turn
/// that misses a deadline finds it in the next one, before which the worker does not sleep.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// Earliest timer in the wheel. Written under the lock of the wheel, read without it.
    timer_ns: AtomicU64,
    /// When a queue is polled although it has signaled nothing (`napi_defer_hard_irqs`). Written by the owner of the core.
    napi_ns: AtomicU64,
    /// When a transmit queue is to be run, or earlier. Lowered, with Release, by a thread that has left packets in a queue, after
    /// the deadline of that queue; raised, with Acquire, by the owner of the core, which then looks at every queue.
    transmit_ns: AtomicU64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            timer_ns: AtomicU64::new(NEVER),
            napi_ns: AtomicU64::new(NEVER),
            transmit_ns: AtomicU64::new(NEVER),
        }
    }
}

/// A time, if it is one.
fn known(ns: u64) -> Option<u64> {
    (ns != NEVER).then_some(ns)
}

impl Attendance {
    /// The earliest timer of the wheel, whose lock the caller holds; `None` when it is empty.
    #[inline]
    pub fn set_timer(&self, at_ns: Option<u64>) {
        self.deadlines.timer_ns.store_in_order(at_ns.unwrap_or(NEVER));
    }

    /// Whether a timer of the wheel is due.
    #[inline]
    #[must_use]
    pub fn is_timer_due(&self, now_ns: u64) -> bool {
        self.deadlines.timer_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// The earliest time at which a queue is polled although it has signaled nothing. Only the owner of the core calls it.
    #[inline]
    pub fn set_napi_timer(&self, at_ns: Option<u64>) {
        self.deadlines.napi_ns.store_in_order(at_ns.unwrap_or(NEVER));
    }

    /// Whether a queue is to be polled by time.
    #[inline]
    #[must_use]
    pub fn is_napi_timer_due(&self, now_ns: u64) -> bool {
        self.deadlines.napi_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// The earlier of the two timers.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let Deadlines { timer_ns, napi_ns, .. } = &self.deadlines;
        known(timer_ns.load(Ordering::Relaxed).min(napi_ns.load(Ordering::Relaxed)))
    }

    /// A transmit queue of the core is to be run at `at_ns`. The queue has its own deadline, which was written before.
    pub fn note_transmit_deadline(&self, at_ns: u64) {
        self.deadlines.transmit_ns.fetch_min(at_ns, Ordering::Release);
    }

    /// Whether a transmit queue is due, or was: [`take_transmit_deadline`](Self::take_transmit_deadline) follows.
    #[inline]
    #[must_use]
    pub fn is_transmit_due(&self, now_ns: u64) -> bool {
        self.deadlines.transmit_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// The owner of the core is about to look at the deadline of every transmit queue, and notes anew those that remain. A
    /// deadline that is noted after this call is found by the next turn.
    pub fn take_transmit_deadline(&self) {
        // Acquire: the owner sees the deadline of each queue for which this one was lowered.
        self.deadlines.transmit_ns.swap(NEVER, Ordering::Acquire);
    }
}
