//! One value that is read by everybody and replaced now and then.
//!
//! Below: [`crate::epoch`]. Above: route tables, sysctl snapshots, device lists in `stack`. Linux:
//! `rcu_dereference`, `rcu_assign_pointer`.
//!
//! A reader loads one pointer and writes nothing. A writer builds the new value beside the old one, swaps the
//! pointer, and leaves the old value to the epoch domain; writers take turns by a lock.
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
    /// Never null, a leaked box. Release by the writer, Acquire by readers: a value is seen whole.
    current: AtomicPtr<T>,
    writer: Mutex<()>,
    domain: Domain,
    owns: PhantomData<T>,
}

impl<T> RcuCell<T> {
    /// Holds `value`; what is replaced later is retired to `domain`.
    pub fn new(domain: &Domain, value: T) -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            writer: Mutex::new(()),
            domain: domain.clone(),
            owns: PhantomData,
        }
    }

    /// The present value, which stays alive and unchanged as long as `section`.
    ///
    /// # Panics
    ///
    /// When `section` is of another domain.
    #[inline]
    pub fn load<'s>(&'s self, section: &'s Section<'_>) -> &'s T {
        assert!(section.covers(&self.domain), "section of another domain");
        // SAFETY: never null, and retired only after it was replaced: this section began before the drop.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// The value, which an exclusive reference owns anyway.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: never null, and `&mut self` excludes readers of the present value.
        unsafe { &mut *self.current.load(Ordering::Relaxed) }
    }
}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// Puts `value` in place of the present one.
    pub fn replace(&self, value: T) {
        self.update(|_| value);
    }

    /// Puts `value` in place of the present one, which is retired when the answer is dropped: for a caller that holds a lock. To
    /// retire may run the drops of whatever else was retired before, which must not meet that lock.
    pub fn exchange(&self, value: T) -> Replaced<'_, T> {
        let writer = self.writer.lock();
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::Release);
        drop(writer);
        Replaced { domain: &self.domain, old }
    }

    /// Puts `next(present)` in its place. Writers wait for each other while `next` runs; readers do not.
    pub fn update(&self, next: impl FnOnce(&T) -> T) {
        let writer = self.writer.lock();
        // SAFETY: never null, and only the holder of `writer` replaces and retires.
        let value = next(unsafe { &*self.current.load(Ordering::Relaxed) });
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::Release);
        drop(writer);
        if let Some(old) = NonNull::new(old) {
            // SAFETY: `old` was a leaked box, the swap made it unreachable, and gave it to this thread alone.
            unsafe { self.domain.retire_raw(old) };
        }
    }
}

/// A value that was replaced and is not retired yet ([`RcuCell::exchange`]).
#[must_use = "retires what was replaced when it is dropped: after the lock"]
pub struct Replaced<'a, T: Send + 'static> {
    domain: &'a Domain,
    /// A leaked box that this alone owns, but for readers.
    old: *mut T,
}

impl<T: Send + 'static> Drop for Replaced<'_, T> {
    fn drop(&mut self) {
        if let Some(old) = NonNull::new(self.old) {
            // SAFETY: `old` was a leaked box, the exchange made it unreachable and gave it to this value, which is dropped once.
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
        // The value is behind a section, which a formatter does not have.
        f.debug_struct("RcuCell").finish_non_exhaustive()
    }
}
