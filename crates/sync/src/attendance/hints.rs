//! What is known of the descriptors of a core, and of the threads that wait for its frames.
//!
//! Relaxed: no wake-up depends on the flags, and a thread that misses a change does what was right a moment before. Not modeled,
//! for the same reason. The mask is read by a worker that was woken, or sleeps, after it was written.

use super::Attendance;
use crate::shim::{Ordering, plain};

#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Some queue has a descriptor, which the worker watches. Written while the host is being built.
    has_descriptors: plain::Flag,
    /// The last frames that came by a descriptor were superframes. Written by the owner of the core.
    bulk: plain::Flag,
    /// The thread that went to sleep last has polled, and polls again when it is woken.
    sleeper_polls: plain::Flag,
    /// Queues whose descriptor is not to be watched, one bit each. Written by the owner of the core, which then wakes the
    /// worker if that must watch another one; read by the worker after `prepare_sleep`.
    masked: plain::Word,
}

/// Writes a flag that has changed: the line is shared by all threads that read it.
#[inline]
fn set(flag: &plain::Flag, value: bool) {
    if flag.load(Ordering::Relaxed) != value {
        flag.store(value, Ordering::Relaxed);
    }
}

impl Attendance {
    /// A queue of the core has a descriptor.
    pub fn add_descriptor(&self) {
        self.hints.has_descriptors.store(true, Ordering::Relaxed);
    }

    /// Frames come to the core by descriptors: their senders do not run it.
    #[inline]
    #[must_use]
    pub fn has_descriptors(&self) -> bool {
        self.hints.has_descriptors.load(Ordering::Relaxed)
    }

    /// The last frames that came by a descriptor were superframes, or were not.
    #[inline]
    pub fn set_bulk(&self, bulk: bool) {
        set(&self.hints.bulk, bulk);
    }

    /// Superframes come to the core by descriptors: it matters in which caches they are.
    #[inline]
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.hints.bulk.load(Ordering::Relaxed)
    }

    /// A thread is about to sleep that has polled and polls again when it is woken, or one that has not.
    pub fn note_sleeper(&self, polls: bool) {
        set(&self.hints.sleeper_polls, polls);
    }

    /// Whether the thread that went to sleep last polls when it is woken.
    #[must_use]
    pub fn sleeper_polls(&self) -> bool {
        self.hints.sleeper_polls.load(Ordering::Relaxed)
    }

    /// Queues whose descriptor is not to be watched, one bit each.
    #[inline]
    #[must_use]
    pub fn masked(&self) -> u64 {
        self.hints.masked.load(Ordering::Relaxed)
    }

    /// Changes which descriptors are not to be watched. Only the owner of the core calls it.
    #[inline]
    pub fn set_masked(&self, queues: u64) {
        self.hints.masked.store(queues, Ordering::Relaxed);
    }
}
