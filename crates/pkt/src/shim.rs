//! Synchronization types that loom replaces: everything two threads of this crate share.
//!
//! Counters that order nothing stay `core` atomics in both builds, so that models do not explore
//! them.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};

/// Reports reads and writes of memory that loom cannot see (packet bodies, page data), so that a
/// model fails if two accesses are not ordered. Costs nothing in a normal build.
#[derive(Debug)]
pub(crate) struct Track {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

impl Track {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(loom)]
            cell: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Reports a read of the tracked memory.
    #[inline(always)]
    #[cfg_attr(not(loom), expect(clippy::unused_self, reason = "only loom uses it"))]
    pub(crate) fn read(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }

    /// Reports a write of the tracked memory.
    #[inline(always)]
    #[cfg_attr(not(loom), expect(clippy::unused_self, reason = "only loom uses it"))]
    pub(crate) fn write(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }
}
