//! Values that the tests of this crate protect: a linked item with a live count, and for the models
//! a number whose accesses loom checks.

use core::ptr::NonNull;
use std::sync::Arc;

use crate::llist::{Link, Linked};

/// An item that knows its producer and its place in that producer's order. Clones of `live` count
/// the items not yet dropped (a plain std `Arc`: the count is not part of a model).
#[derive(Debug)]
pub(crate) struct Item(Box<Node>);

#[derive(Debug)]
#[repr(C)]
struct Node {
    link: Link,
    producer: u32,
    sequence: u32,
    _live: Arc<()>,
}

impl Item {
    pub(crate) fn new(producer: u32, sequence: u32, live: &Arc<()>) -> Self {
        let live = Arc::clone(live);
        Self(Box::new(Node { link: Link::new(), producer, sequence, _live: live }))
    }

    pub(crate) fn id(&self) -> (u32, u32) {
        (self.0.producer, self.0.sequence)
    }
}

// SAFETY: the box keeps its address while it is a raw pointer, and the pointer is to the whole
// node, whose first field (`repr(C)`) is the link.
unsafe impl Linked for Item {
    fn into_link(self) -> NonNull<Link> {
        // A box is never null.
        NonNull::new(Box::into_raw(self.0).cast()).expect("box")
    }

    unsafe fn from_link(link: NonNull<Link>) -> Self {
        // SAFETY: `link` came from `into_link`, so it is a boxed `Node`.
        Self(unsafe { Box::from_raw(link.as_ptr().cast()) })
    }
}

/// A number whose reads and whose drop loom checks. A read that overlaps the drop, or that is not
/// ordered after the value was made, is reported as a racing access.
#[cfg(loom)]
pub(crate) struct Watched(crate::shim::UnsafeCell<u32>);

#[cfg(loom)]
impl Watched {
    pub(crate) fn new(value: u32) -> Self {
        Self(crate::shim::UnsafeCell::new(value))
    }

    pub(crate) fn read(&self) -> u32 {
        // SAFETY: no drop overlaps this read, which is the property that the models check.
        self.0.with(|value| unsafe { *value })
    }
}

// SAFETY: read through shared references, written only by the drop.
#[cfg(loom)]
unsafe impl Sync for Watched {}

#[cfg(loom)]
impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: `&mut self`; that no read overlaps is the property that the models check.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}
