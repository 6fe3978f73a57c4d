//! A reference without a type, which a packet carries.

use core::any::TypeId;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use super::{Parts, Ref, block::Header, put};
use crate::epoch::Section;
use crate::refcount::{Counting, Put, RefCount};

/// A counted reference without the types of its entry's parts: one word, for a packet to carry.
pub struct AnyRef {
    header: NonNull<Header>,
}

// SAFETY: as `Ref`, from which it was made.
unsafe impl Send for AnyRef {}
// SAFETY: as above.
unsafe impl Sync for AnyRef {}

impl AnyRef {
    /// # Safety
    /// The caller passes on a reference it holds.
    #[inline]
    pub(super) unsafe fn new_raw(header: NonNull<Header>) -> Self {
        Self { header }
    }

    /// Restores the type; `Err` gives the reference back if the entry has other parts.
    pub fn downcast<P: Parts>(self) -> Result<Ref<P>, Self> {
        // SAFETY: the entry is alive as long as this reference.
        let kind = unsafe { self.header.as_ref() }.kind;
        if (kind.parts)() != TypeId::of::<P>() {
            return Err(self);
        }
        let header = ManuallyDrop::new(self).header;
        // SAFETY: the block is of `P`, and the reference passes from `self`.
        Ok(unsafe { Ref::new_raw(header) })
    }

    /// Puts the reference in a read section.
    #[inline]
    pub fn release(self, section: &Section<'_>) {
        let header = ManuallyDrop::new(self).header;
        let in_shards = || {
            // SAFETY: alive by the reference, and by the section until this returns.
            unsafe { header.as_ref() }.count_put()
        };
        let put_here = |count: &RefCount, counting| match counting {
            Counting::Sharded if in_shards() => Put::Shared,
            _ => count.put(counting, section),
        };
        // SAFETY: this put gives up the reference.
        unsafe { put(header, put_here) };
    }
}

impl<P: Parts> From<Ref<P>> for AnyRef {
    #[inline]
    fn from(reference: Ref<P>) -> Self {
        let header = ManuallyDrop::new(reference).header;
        // SAFETY: the reference passes from the typed one.
        unsafe { Self::new_raw(header) }
    }
}

impl Drop for AnyRef {
    fn drop(&mut self) {
        // SAFETY: this put gives up the reference.
        unsafe { put(self.header, RefCount::put_alone) };
    }
}

impl fmt::Debug for AnyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyRef").finish_non_exhaustive()
    }
}
