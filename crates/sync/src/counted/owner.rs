//! The reference of the table that publishes an entry.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use super::{Counting, Domain, Entry, Layout, Parts, Ref};

/// The first reference to an entry. While it exists, a sharded entry counts its other references in
/// words of their CPUs. Dropping it adds these up in the entry's one word before it puts the
/// reference. With other methods of counting it is a plain reference.
pub struct Owner<P: Parts>(ManuallyDrop<Ref<P>>);

impl<P: Parts> Owner<P> {
    /// Makes an entry with one reference, whose memory is freed after a grace period of `domain`.
    #[must_use]
    pub fn new(domain: &Domain, layout: Layout, counting: Counting, entry: Entry<P>) -> Self {
        Self(ManuallyDrop::new(Ref::make(domain, layout, counting, true, entry)))
    }

    /// Returns the reference, for an entry that no table publishes.
    #[must_use]
    pub fn into_ref(self) -> Ref<P> {
        let mut owner = ManuallyDrop::new(self);
        owner.0.view().close_shards();
        // SAFETY: `owner` is neither used again nor dropped.
        unsafe { ManuallyDrop::take(&mut owner.0) }
    }
}

impl<P: Parts> Deref for Owner<P> {
    type Target = Ref<P>;

    #[inline]
    fn deref(&self) -> &Ref<P> {
        &self.0
    }
}

impl<P: Parts> Drop for Owner<P> {
    fn drop(&mut self) {
        self.0.view().close_shards();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl<P: Parts> fmt::Debug for Owner<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&*self.0).finish()
    }
}
