//! Objects with several owners that can be in one lock-free list at a time: [`Listed`], and its
//! [`Hook`].
//!
//! Above: the list of sockets that may send again (`stack::socket`). Completions push onto it from
//! any core, and their callers may hold any lock. Linux: `tsq_node` on the list of a `struct
//! tsq_tasklet`.
//!
//! [`Llist`](crate::Llist) owns its items, and an [`Arc`] has several owners. The item pushed is
//! therefore the object's only hook, and the list needs neither a lock nor an allocation. A thread
//! that asks for the hook while it is in a list gets `None` and need do nothing: the thread that
//! takes the list will see the object.
//!
//! Not here: the meaning of being listed (`small_queue`).

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::llist::{Link, Linked};
use crate::shim::{Arc, AtomicBool, Ordering};

#[cfg(test)]
mod tests;

/// An object with the link and the state of its hook, as the head of the module describes.
#[repr(C)]
pub struct Listed<T> {
    /// Link, the first field: a pointer to it is a pointer to the whole object.
    link: Link,
    /// Whether the hook is taken. Set with Acquire, cleared with Release: the next thread that
    /// takes the hook sees the link as the last list left it.
    out: AtomicBool,
    value: T,
}

impl<T> Listed<T> {
    /// Wraps `value`, in no list.
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self { link: Link::new(), out: AtomicBool::new(false), value })
    }

    /// Takes the hook, to be pushed to a list; `None` while it is taken.
    pub fn hook(this: &Arc<Self>) -> Option<Hook<T>> {
        if this.out.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Hook(Arc::clone(this)))
    }
}

impl<T> Deref for Listed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> fmt::Debug for Listed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed")
            .field("out", &self.out.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

/// The only handle of a [`Listed`] that lists accept; dropping it gives it back. It keeps the
/// object alive.
#[derive(Debug)]
pub struct Hook<T>(Arc<Listed<T>>);

impl<T> Deref for Hook<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Drop for Hook<T> {
    fn drop(&mut self) {
        self.0.out.store(false, Ordering::Release);
    }
}

// SAFETY: the object keeps its address while the hook's reference is not dropped, which only the
// caller of `from_link` can do. The pointer is to the whole object, whose first field (`repr(C)`)
// is the link. No other hook exists, so no other thread accesses the link.
unsafe impl<T> Linked for Hook<T> {
    fn into_link(self) -> NonNull<Link> {
        let hook = core::mem::ManuallyDrop::new(self);
        // An `Arc` is never null.
        NonNull::new(Arc::as_ptr(&hook.0).cast_mut().cast()).expect("an Arc")
    }

    unsafe fn from_link(link: NonNull<Link>) -> Self {
        let object: *const Listed<T> = link.as_ptr().cast();
        // SAFETY: `link` came from `into_link`, which kept the reference that this call takes back.
        Self(unsafe { Arc::from_raw(object) })
    }
}
