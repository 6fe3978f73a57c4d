//! Counted entries: objects found in a read section without a reference, and held with one beyond
//! it.
//!
//! Below: [`crate::refcount`], [`crate::epoch`]. Above: the dst entries of `stack`. Linux: `struct
//! dst_entry`, `dst_hold_safe`, `dst_release`, `sk_rx_dst`.
//!
//! The parts of an entry are grouped by their readers and writers, and its [`Layout`] decides which
//! of them may share lines with the count. A block is aligned to 128 bytes and so is every line
//! group below, because prefetchers fetch lines in pairs.
//!
//! ```text
//!            0                    128·k                              following groups
//!   packed   │ header │ head      │ count │ tail                     │ cold │ stats
//!   padded   │ header │ head      │ count │ nothing                  │ tail │ cold │ stats
//!   filled   │ header │ head      │ count │ cold                     │ tail │ stats
//! ```
//!
//! - **head** and **tail** are read for every packet and never written. The packed layout is
//!   Linux's historical accident: each read of `tail` fetches a line that the gets and puts of
//!   other cores have invalidated.
//! - **cold** is read when an entry is made, listed or freed. The filled layout puts it into the
//!   gap, so that isolating the count costs no memory.
//! - **stats** are written occasionally by readers, hence separate from all.
//!
//! Three kinds of reference:
//!
//! | | may leave the read section | cost |
//! |---|---|---|
//! | [`Handle`] | no: it borrows the section | none |
//! | [`Ref`] | yes | one get, one put |
//! | [`AnyRef`] | yes: a `Ref` without its type, for packets | the same |
//!
//! An [`Owner`] is the reference of the table that publishes an entry. While it exists, a sharded
//! entry counts the gets, and the puts in read sections, in a word of their CPU.
//!
//! An entry is freed in two steps: the last put retires it to the epoch domain, and the end of the
//! grace period frees it. A `Handle` may therefore refer to an entry without references;
//! [`Handle::try_get`] detects that. A [`Slot`] publishes an entry to readers. It is **cleared
//! before its reference is put**, otherwise a reader could find an entry whose grace period is
//! over.
//!
//! Not here: the contents of the parts, the validity of an entry.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{self, NonNull};

use crate::epoch::{Domain, Section};
use crate::refcount::{Counting, Put, RefCount};
use crate::shim::{AtomicPtr, Ordering};

pub use any::AnyRef;
pub use block::{Entry, Layout, Offsets};
use block::{Header, View};
pub use owner::Owner;
pub use slot::Slot;

mod any;
mod block;
mod owner;
mod slot;
#[cfg(test)]
mod tests;

/// The types of an entry's parts.
pub trait Parts: 'static + Sized {
    /// Part that is read for every packet.
    type Head: Send + Sync + 'static;
    /// Part that is read for every packet, and lies beside the count in the packed layout.
    type Tail: Send + Sync + 'static;
    /// Part that is rarely read.
    type Cold: Send + Sync + 'static;
    /// Part that readers write.
    type Stats: Send + Sync + 'static;
}

/// An entry found in a read section, which the handle cannot leave. It can be copied freely,
/// because it counts no reference.
pub struct Handle<'s, P: Parts> {
    view: View<'s, P>,
    /// Marker: a section belongs to one thread.
    thread: PhantomData<*const ()>,
}

impl<P: Parts> Clone for Handle<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Parts> Copy for Handle<'_, P> {}

impl<'s, P: Parts> Handle<'s, P> {
    /// # Safety
    /// The block is of `P` and alive as long as `'s`.
    #[inline]
    unsafe fn new(header: NonNull<Header>) -> Self {
        Self { view: View { header, alive: PhantomData, parts: PhantomData }, thread: PhantomData }
    }

    /// Returns the part that is read for every packet.
    #[inline]
    pub fn head(self) -> &'s P::Head {
        self.view.head()
    }

    /// Returns the other part that is read for every packet.
    #[inline]
    pub fn tail(self) -> &'s P::Tail {
        self.view.tail()
    }

    /// Returns the part that is rarely read.
    pub fn cold(self) -> &'s P::Cold {
        self.view.cold()
    }

    /// Returns the part that readers write.
    #[inline]
    pub fn stats(self) -> &'s P::Stats {
        self.view.stats()
    }

    /// Takes a reference, unless the last one is gone: the conditional get.
    #[inline]
    #[must_use]
    pub fn try_get(self) -> Option<Ref<P>> {
        // SAFETY: a reference was just taken.
        self.view.try_get().then(|| unsafe { Ref::new_raw(self.view.header) })
    }

    /// Returns whether both are the same entry.
    #[inline]
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        self.view.header == other.view.header
    }
}

impl<P: Parts> Deref for Handle<'_, P> {
    type Target = P::Head;

    #[inline]
    fn deref(&self) -> &P::Head {
        self.view.head()
    }
}

impl<P: Parts> fmt::Debug for Handle<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("refs", &self.view.refs()).finish_non_exhaustive()
    }
}

/// A counted reference to an entry.
pub struct Ref<P: Parts> {
    header: NonNull<Header>,
    parts: PhantomData<fn() -> P>,
}

// SAFETY: a counted reference to parts that are `Send + Sync`; the count is atomic.
unsafe impl<P: Parts> Send for Ref<P> {}
// SAFETY: as above.
unsafe impl<P: Parts> Sync for Ref<P> {}

impl<P: Parts> Ref<P> {
    /// Makes an entry with one reference, whose memory is freed after a grace period of `domain`.
    #[must_use]
    pub fn new(domain: &Domain, layout: Layout, counting: Counting, entry: Entry<P>) -> Self {
        Self::make(domain, layout, counting, false, entry)
    }

    fn make(
        domain: &Domain,
        layout: Layout,
        counting: Counting,
        owned: bool,
        entry: Entry<P>,
    ) -> Self {
        let header = block::make(domain, layout, counting, owned, entry);
        // SAFETY: just made, with one reference.
        unsafe { Self::new_raw(header) }
    }

    /// # Safety
    /// The block is of `P`, and the caller passes on a reference it holds.
    #[inline]
    unsafe fn new_raw(header: NonNull<Header>) -> Self {
        Self { header, parts: PhantomData }
    }

    #[inline]
    fn view(&self) -> View<'_, P> {
        View { header: self.header, alive: PhantomData, parts: PhantomData }
    }

    /// Returns a handle on the entry, without a reference of its own.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> Handle<'_, P> {
        // SAFETY: the entry is alive as long as this reference is borrowed.
        unsafe { Handle::new(self.header) }
    }

    /// Returns the part that is read for every packet.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &P::Head {
        self.view().head()
    }

    /// Returns the other part that is read for every packet.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> &P::Tail {
        self.view().tail()
    }

    /// Returns the part that is rarely read.
    #[must_use]
    pub fn cold(&self) -> &P::Cold {
        self.view().cold()
    }

    /// Returns the part that readers write.
    #[inline]
    #[must_use]
    pub fn stats(&self) -> &P::Stats {
        self.view().stats()
    }

    /// Returns the current number of references, including this one. A sharded count is exact
    /// while no other thread changes it.
    #[must_use]
    pub fn refs(&self) -> u32 {
        self.view().refs()
    }

    /// Returns the entry's method of counting.
    #[must_use]
    pub fn counting(&self) -> Counting {
        self.view().header().counting
    }

    /// Returns the entry's layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.view().layout()
    }

    /// Puts the reference in a read section: one subtraction. Dropping it elsewhere costs a
    /// compare-and-swap.
    #[inline]
    pub fn release(self, section: &Section<'_>) {
        AnyRef::from(self).release(section);
    }

    /// Returns whether both are references to one entry.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl<P: Parts> Clone for Ref<P> {
    fn clone(&self) -> Self {
        let alive = self.view().try_get();
        debug_assert!(alive, "a reference to an entry without references");
        // SAFETY: the reference of `self` keeps the count from reaching zero, so the get has
        // succeeded.
        unsafe { Self::new_raw(self.header) }
    }
}

impl<P: Parts> Deref for Ref<P> {
    type Target = P::Head;

    #[inline]
    fn deref(&self) -> &P::Head {
        self.head()
    }
}

impl<P: Parts> Drop for Ref<P> {
    fn drop(&mut self) {
        // SAFETY: the reference is given up here.
        drop(unsafe { AnyRef::new_raw(self.header) });
    }
}

impl<P: Parts> fmt::Debug for Ref<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ref").field("refs", &self.refs()).finish_non_exhaustive()
    }
}

/// Drops one reference by `put`, and retires the entry if it was the last one.
///
/// # Safety
/// The caller holds a reference and gives it up.
#[inline]
unsafe fn put(header: NonNull<Header>, put: impl FnOnce(&RefCount, Counting) -> Put) {
    let (count, counting, kind) = {
        // SAFETY: alive until the put below returns: by the reference, and where the put accesses
        // the count after its subtraction, by the section it requires.
        let header_ref = unsafe { header.as_ref() };
        // SAFETY: the header stores the position of the count in its block.
        let count = unsafe { header.byte_add(usize::from(header_ref.count)).cast().as_ref() };
        (count, header_ref.counting, header_ref.kind)
    };
    let put = put(count, counting);
    debug_assert!(put != Put::Imbalanced, "a put without a reference");
    if put == Put::Last {
        // SAFETY: the function is of the block's own kind, and the last put happens once.
        unsafe { (kind.retire)(header) };
    }
}
