//! Deadlines of a core: the times at which it must run even if nothing arrives. A worker reads them
//! before it sleeps, and a turn does the due work.
//!
//! A thread that moves a deadline forward publishes it here, then calls
//! [`Attendance::wake_before`].

use super::Attendance;
use crate::shim::{AtomicU64, Ordering, StoreInOrder as _};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// Deadlines of a core. Relaxed except where a field states otherwise: the fences of `wake_before`
/// and `prepare_sleep` order them for the worker. A turn that misses a deadline finds it in the
/// next turn, before which the worker does not sleep.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// Earliest timer in the wheel. Written under the lock of the wheel, read without it.
    timer_ns: AtomicU64,
    /// Time at which a queue is polled without a signal (`napi_defer_hard_irqs`). Written by the
    /// owner of the core.
    napi_ns: AtomicU64,
    /// Earliest transmit deadline, or an earlier time. A thread that leaves packets in a queue
    /// first sets the deadline of that queue, then lowers this one with Release. The owner of the
    /// core raises it with Acquire, and then checks every queue.
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

/// Returns a deadline; `None` for [`NEVER`].
fn known(ns: u64) -> Option<u64> {
    (ns != NEVER).then_some(ns)
}

impl Attendance {
    /// Sets the earliest timer of the wheel, whose lock the caller holds; `None` if the wheel is
    /// empty.
    #[inline]
    pub fn set_timer(&self, at_ns: Option<u64>) {
        self.deadlines.timer_ns.store_in_order(at_ns.unwrap_or(NEVER));
    }

    /// Returns whether a timer of the wheel is due.
    #[inline]
    #[must_use]
    pub fn is_timer_due(&self, now_ns: u64) -> bool {
        self.deadlines.timer_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// Sets the earliest time at which a queue is polled without a signal. Only the owner of the
    /// core calls it.
    #[inline]
    pub fn set_napi_timer(&self, at_ns: Option<u64>) {
        self.deadlines.napi_ns.store_in_order(at_ns.unwrap_or(NEVER));
    }

    /// Returns whether a queue is to be polled without a signal.
    #[inline]
    #[must_use]
    pub fn is_napi_timer_due(&self, now_ns: u64) -> bool {
        self.deadlines.napi_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// Returns the earlier of the two timers.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let Deadlines { timer_ns, napi_ns, .. } = &self.deadlines;
        known(timer_ns.load(Ordering::Relaxed).min(napi_ns.load(Ordering::Relaxed)))
    }

    /// Records that a transmit queue of the core must run at `at_ns`. The caller has already set
    /// the deadline of the queue.
    pub fn note_transmit_deadline(&self, at_ns: u64) {
        self.deadlines.transmit_ns.fetch_min(at_ns, Ordering::Release);
    }

    /// Returns whether a transmit queue is or was due. The caller then calls
    /// [`take_transmit_deadline`](Self::take_transmit_deadline).
    #[inline]
    #[must_use]
    pub fn is_transmit_due(&self, now_ns: u64) -> bool {
        self.deadlines.transmit_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// Clears the transmit deadline. The owner of the core then checks the deadline of every
    /// transmit queue, and records the remaining ones. The next turn finds a deadline recorded
    /// after this call.
    pub fn take_transmit_deadline(&self) {
        // Acquire: the owner sees the deadline of each queue for which this one was lowered.
        self.deadlines.transmit_ns.swap(NEVER, Ordering::Acquire);
    }
}
