//! Hints on the descriptors of a core, and on the threads that wait for its frames.
//!
//! Relaxed: no wake-up depends on the flags, and a thread that misses a change acts on a value that
//! was right a moment before. For the same reason the flags are not modeled. The worker reads the
//! mask after a wake-up, or in a sleep, that follows the write.

use super::Attendance;
use crate::shim::{Ordering, plain};

#[derive(Debug, Default)]
pub(super) struct Hints {
    /// True if a queue has a descriptor, which the worker watches. Written while the host is being
    /// built.
    has_descriptors: plain::Flag,
    /// True if the last frames from a descriptor were superframes. Written by the owner of the
    /// core.
    bulk: plain::Flag,
    /// True if the thread that went to sleep last has polled, and polls again when it is woken.
    sleeper_polls: plain::Flag,
    /// Queues whose descriptor must not be watched, one bit each. Written by the owner of the core,
    /// which wakes the worker if another descriptor must be watched; read by the worker after
    /// `prepare_sleep`.
    masked: plain::Word,
}

/// Writes a flag only if it changes, because all threads that read it share the cache line.
#[inline]
fn set(flag: &plain::Flag, value: bool) {
    if flag.load(Ordering::Relaxed) != value {
        flag.store(value, Ordering::Relaxed);
    }
}

impl Attendance {
    /// Records that a queue of the core has a descriptor.
    pub fn add_descriptor(&self) {
        self.hints.has_descriptors.store(true, Ordering::Relaxed);
    }

    /// Returns whether frames reach the core through descriptors, so that their senders do not run
    /// it.
    #[inline]
    #[must_use]
    pub fn has_descriptors(&self) -> bool {
        self.hints.has_descriptors.load(Ordering::Relaxed)
    }

    /// Sets whether the last frames from a descriptor were superframes.
    #[inline]
    pub fn set_bulk(&self, bulk: bool) {
        set(&self.hints.bulk, bulk);
    }

    /// Returns whether superframes reach the core through descriptors: then the CPU that reads them
    /// matters, for its caches.
    #[inline]
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.hints.bulk.load(Ordering::Relaxed)
    }

    /// Records whether the thread that is about to sleep has polled, and thus polls again when it
    /// is woken.
    pub fn note_sleeper(&self, polls: bool) {
        set(&self.hints.sleeper_polls, polls);
    }

    /// Returns whether the thread that went to sleep last polls when it is woken.
    #[must_use]
    pub fn sleeper_polls(&self) -> bool {
        self.hints.sleeper_polls.load(Ordering::Relaxed)
    }

    /// Returns the queues whose descriptor must not be watched, one bit each.
    #[inline]
    #[must_use]
    pub fn masked(&self) -> u64 {
        self.hints.masked.load(Ordering::Relaxed)
    }

    /// Sets the queues whose descriptor must not be watched. Only the owner of the core calls it.
    #[inline]
    pub fn set_masked(&self, queues: u64) {
        self.hints.masked.store(queues, Ordering::Relaxed);
    }
}
