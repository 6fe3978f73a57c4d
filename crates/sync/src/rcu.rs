//! One value that many threads read and that is replaced rarely.
//!
//! Below: [`crate::epoch`]. Above: route tables, sysctl snapshots, device lists in `stack`. Linux:
//! `rcu_dereference`, `rcu_assign_pointer`.
//!
//! A reader loads one pointer and writes nothing. A writer builds the new value beside the old one,
//! swaps the pointer, and retires the old value to the epoch domain; a lock serializes writers.
//!
//! Not here: tables with many entries ([`crate::rcu_map`]).

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::epoch::{Domain, Section};
use crate::shim::{AtomicPtr, Mutex, Ordering};

#[cfg(test)]
mod tests;

/// A replaceable value.
pub struct RcuCell<T> {
    /// Current value: never null, a leaked box. Release by the writer, Acquire by readers, so that
    /// a reader sees a complete value.
    current: AtomicPtr<T>,
    writer: Mutex<()>,
    domain: Domain,
    owns: PhantomData<T>,
}

impl<T> RcuCell<T> {
    /// Makes a cell with `value`; replaced values are retired to `domain`.
    pub fn new(domain: &Domain, value: T) -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            writer: Mutex::new(()),
            domain: domain.clone(),
            owns: PhantomData,
        }
    }

    /// Returns the current value, which stays allocated and unchanged as long as `section`.
    ///
    /// # Panics
    ///
    /// If `section` is of another domain.
    #[inline]
    pub fn load<'s>(&'s self, section: &'s Section<'_>) -> &'s T {
        assert!(section.covers(&self.domain), "section of another domain");
        // SAFETY: never null, and retired only after it was replaced, hence dropped only after this
        // section has ended.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Returns the value, which an exclusive reference may access without a section.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: never null, and `&mut self` excludes readers of the current value.
        unsafe { &mut *self.current.load(Ordering::Relaxed) }
    }
}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// Replaces the current value by `value`.
    pub fn replace(&self, value: T) {
        self.update(|_| value);
    }

    /// Replaces the current value by `value`. The old value is retired when the result is dropped:
    /// for a caller that holds a lock. Retiring may run the drops of other retired objects, which
    /// must not run under that lock.
    pub fn exchange(&self, value: T) -> Replaced<'_, T> {
        let writer = self.writer.lock();
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::Release);
        drop(writer);
        Replaced { domain: &self.domain, old }
    }

    /// Replaces the current value by `next(current)`. Other writers wait while `next` runs; readers
    /// do not.
    pub fn update(&self, next: impl FnOnce(&T) -> T) {
        let writer = self.writer.lock();
        // SAFETY: never null, and only the holder of `writer` replaces and retires.
        let value = next(unsafe { &*self.current.load(Ordering::Relaxed) });
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::Release);
        drop(writer);
        if let Some(old) = NonNull::new(old) {
            // SAFETY: `old` was a leaked box, and the swap made it unreachable and gave it to this
            // thread alone.
            unsafe { self.domain.retire_raw(old) };
        }
    }
}

/// A value that was replaced and is not retired yet ([`RcuCell::exchange`]).
#[must_use = "dropping it retires the replaced value, which must happen after the lock is released"]
pub struct Replaced<'a, T: Send + 'static> {
    domain: &'a Domain,
    /// Leaked box that this value alone owns; readers may still refer to it.
    old: *mut T,
}

impl<T: Send + 'static> Drop for Replaced<'_, T> {
    fn drop(&mut self) {
        if let Some(old) = NonNull::new(self.old) {
            // SAFETY: `old` was a leaked box, and the exchange made it unreachable and gave it to
            // `self`, which is dropped once.
            unsafe { self.domain.retire_raw(old) };
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Replaced<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replaced").finish_non_exhaustive()
    }
}

impl<T> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // SAFETY: a leaked box; `load` ties its references to `&self`, so none is left.
        drop(unsafe { Box::from_raw(self.current.load(Ordering::Relaxed)) });
    }
}

impl<T> fmt::Debug for RcuCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value needs a section, which a formatter does not have.
        f.debug_struct("RcuCell").finish_non_exhaustive()
    }
}
