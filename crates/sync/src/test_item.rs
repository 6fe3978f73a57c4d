//! A minimal linked item for the tests of this crate: a number in a box, with a live count.

use core::ptr::NonNull;
use std::sync::Arc;

use crate::llist::{Link, Linked};

/// An item that knows its producer and its place in that producer's order. Clones of `live` count the items
/// not yet dropped (a plain std `Arc`: the count is evidence, not part of a model).
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

// SAFETY: the box keeps its address while it is a raw pointer, and the pointer is to the whole node, whose
// first field (`repr(C)`) is the link.
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
