//! The only access to atomics, cells, locks and sleeping: std in the product, loom in the models.
//!
//! No other module of this crate names `std::sync` or `std::thread`, so a model run checks the code
//! that ships. Where std and loom differ, this module takes loom's interface: a cell is accessed
//! through `with` and `with_mut`, so that loom sees each access.

#[cfg(loom)]
pub(crate) use loom_side::*;
#[cfg(not(loom))]
pub(crate) use std_side::*;

/// Types of std in a model, too: for values that order nothing, so that no model need see them.
pub(crate) mod plain {
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    pub(crate) type Flag = core::sync::atomic::AtomicBool;
    pub(crate) type Word = core::sync::atomic::AtomicU64;
}

#[cfg(not(loom))]
mod std_side {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Mutex as RawMutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current, park, park_timeout, yield_now};

    /// Returns a small number that this thread keeps while it exists, for choosing one of several
    /// equal slots.
    pub(crate) fn thread_slot() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        std::thread_local! {
            static SLOT: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        // A thread that is ending may still retire objects: any slot will do.
        SLOT.try_with(|slot| *slot).unwrap_or(0)
    }

    /// `core::cell::UnsafeCell` with loom's scoped access.
    #[repr(transparent)]
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }
}

#[cfg(loom)]
mod loom_side {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Mutex as RawMutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current, park, yield_now};

    /// Returns the only slot of a model.
    pub(crate) fn thread_slot() -> usize {
        0
    }

    /// Parks without a timeout: loom has no clock, so a timed park ends only by a wake.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        park();
    }
}

/// A relaxed store to a word that several threads write.
///
/// All stores to a word have one modification order. Loom knows that order only in part: when a
/// third thread has read two stores, loom may take a store for the last one that a later one has
/// replaced. A swap comes right after the store that it reads, so in a model it keeps the order
/// complete; the value it reads is not used.
pub(crate) trait StoreInOrder {
    type Value;

    fn store_in_order(&self, value: Self::Value);
}

macro_rules! store_in_order {
    ($($word:ty: $value:ty),*) => {$(
        impl StoreInOrder for $word {
            type Value = $value;

            #[inline]
            fn store_in_order(&self, value: $value) {
                #[cfg(not(loom))]
                self.store(value, Ordering::Relaxed);
                #[cfg(loom)]
                self.swap(value, Ordering::Relaxed);
            }
        }
    )*};
}

store_in_order!(AtomicU64: u64, AtomicU32: u32);

/// Returns a number that no other call in this process returns.
pub(crate) fn unique_number() -> u64 {
    // Core atomics: the numbers order nothing, so no model needs to see them.
    use core::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A mutex without poisoning: the data under these locks is consistent before any code that may
/// panic runs.
#[derive(Debug)]
pub(crate) struct Mutex<T>(RawMutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RawMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the lock; `None` if another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// Explores every interleaving of `f` with at most three preemptions (`LOOM_MAX_PREEMPTIONS`
/// overrides the bound), with which most models of this crate end in seconds.
#[cfg(all(test, loom))]
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    model_within(3, f);
}

/// As [`model`], with at most `preemptions` preemptions.
#[cfg(all(test, loom))]
pub(crate) fn model_within(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    let tried = std::sync::Arc::new(core::sync::atomic::AtomicU32::new(0));
    let count = std::sync::Arc::clone(&tried);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let tried = tried.load(Ordering::Relaxed);
    assert!(tried > 2, "only {tried} orders were tried: loom does not see the threads interact");
}
