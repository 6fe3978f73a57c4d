//! Something with many owners that hangs in one lock-free list at a time: [`Listed`], and its [`Hook`].
//!
//! Above: the list of sockets that may send again (`stack::socket`), onto which completions push from any core and under
//! whatever locks their callers hold. Linux: `tsq_node` on the list of a `struct tsq_tasklet`.
//!
//! [`Llist`](crate::Llist) owns what is in it, and an [`Arc`] has many owners; so what is pushed is the one hook that the
//! object has, and the list needs neither a lock nor memory. Who comes while the hook is out is told so, and need do
//! nothing: whoever takes the list will see the object.
//!
//! Not here: what it means that an object is listed (`small_queue`).

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::llist::{Link, Linked};
use crate::shim::{Arc, AtomicBool, Ordering};

#[cfg(test)]
mod tests;

/// See the module head.
#[repr(C)]
pub struct Listed<T> {
    /// First: a pointer to it is one to the whole.
    link: Link,
    /// The hook is out. Taken with Acquire, given back with Release: who hangs it next finds the link as the last list left it.
    out: AtomicBool,
    value: T,
}

impl<T> Listed<T> {
    /// `value`, in no list.
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self { link: Link::new(), out: AtomicBool::new(false), value })
    }

    /// The hook, to be pushed to a list; `None` while it is out.
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

/// The one handle of a [`Listed`] that lists take; dropping it gives it back. It keeps the object alive.
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

// SAFETY: the object keeps its address while the reference that the hook stands for is not dropped, which only `from_link`'s
// caller can do; the pointer is to the whole object, whose first field (`repr(C)`) is the link; and nobody else has a hook,
// so nobody else reaches the link.
unsafe impl<T> Linked for Hook<T> {
    fn into_link(self) -> NonNull<Link> {
        let hook = core::mem::ManuallyDrop::new(self);
        // An `Arc` is never null.
        NonNull::new(Arc::as_ptr(&hook.0).cast_mut().cast()).expect("an Arc")
    }

    unsafe fn from_link(link: NonNull<Link>) -> Self {
        let object: *const Listed<T> = link.as_ptr().cast();
        // SAFETY: `link` came from `into_link`, which kept the reference that this takes back.
        Self(unsafe { Arc::from_raw(object) })
    }
}
