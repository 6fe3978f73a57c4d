//! The two locks of packet memory, and the count of their acquisitions on a packet's path.
//!
//! Above: the depot (depot.rs) and the state of the domain (domain.rs). Linux: `list_lock` of a
//! slab cache's node, which has no count.
//!
//! As long as magazines last, no lock is taken for a packet: locks are taken for a parcel or for a
//! slab. All other memory that moves from core to core goes through lists without locks (home.rs).

use std::sync::{PoisonError, TryLockError};

use super::home::Stats;
use crate::shim::{Mutex, MutexGuard};

/// Takes a lock, even if it is poisoned: none is held across foreign code, so a panic leaves the
/// state behind it consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for a pool that takes or returns memory: counts the acquisition, and whether
/// another thread held the lock.
pub(super) fn lock_counted<'m, T>(mutex: &'m Mutex<T>, stats: &Stats) -> MutexGuard<'m, T> {
    stats.locks.add(1);
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            stats.locks_contended.add(1);
            lock(mutex)
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_a_lock_counts_it() {
        let (mutex, stats) = (Mutex::new(0), Stats::default());
        *lock_counted(&mutex, &stats) += 1;
        assert_eq!((stats.locks.load(), stats.locks_contended.load()), (1, 0));
        std::thread::scope(|scope| {
            let held = lock(&mutex);
            scope.spawn(|| *lock_counted(&mutex, &stats) += 1);
            while stats.locks_contended.load() == 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!((stats.locks.load(), stats.locks_contended.load()), (2, 1));
        assert_eq!(*lock(&mutex), 2);
    }
}
