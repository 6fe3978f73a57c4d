//! One door to atomics, cells and locks: std in the product, loom in the models.
//!
//! Nothing else in this crate names `std::sync`, so that a model run checks the very code that ships. The
//! shapes are loom's where the two differ: a cell is entered through `with` and `with_mut`, so that loom
//! sees how long an access lasts.

#[cfg(loom)]
pub(crate) use loom_side::*;
#[cfg(not(loom))]
pub(crate) use std_side::*;

#[cfg(not(loom))]
mod std_side {
    pub(crate) use std::sync::atomic::{AtomicPtr, Ordering};

    /// `core::cell::UnsafeCell` with loom's scoped access.
    #[repr(transparent)]
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

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
    }
}

#[cfg(loom)]
mod loom_side {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicPtr, Ordering};
}

/// Explores every interleaving of `f` with at most three pre-emptions (`LOOM_MAX_PREEMPTIONS` overrides),
/// the bound under which each model of this crate ends in seconds.
#[cfg(all(test, loom))]
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}
