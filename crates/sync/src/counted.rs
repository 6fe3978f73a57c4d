//! Counted entries: objects found in a read section without a reference, and held with one beyond it.
//!
//! Below: [`crate::refcount`], [`crate::epoch`]. Above: the dst entries of `stack`. Linux: `struct dst_entry`, `dst_hold_safe`,
//! `dst_release`, `sk_rx_dst`.
//!
//! An entry has parts by who touches them, and its [`Layout`] says which of them may share lines with the count. A block is
//! aligned to 128 bytes and so is every line group below, because prefetchers move lines in pairs.
//!
//! ```text
//!            0                    128·k                              following groups
//!   packed   │ header │ head      │ count │ tail                     │ cold │ stats
//!   padded   │ header │ head      │ count │ nothing                  │ tail │ cold │ stats
//!   filled   │ header │ head      │ count │ cold                     │ tail │ stats
//! ```
//!
//! - **head** and **tail** are read for every packet and never written. Packed is the historic accident: whoever reads
//!   `tail` fetches a line that every get and put of another core has taken away.
//! - **cold** is read when an entry is made, listed or freed. Filled puts it into the gap, so isolation costs no memory.
//! - **stats** are written now and then by readers, hence apart from all.
//!
//! Three handles, by what they may do:
//!
//! | | may leave the read section | costs |
//! |---|---|---|
//! | [`Handle`] | no: it borrows the section | nothing |
//! | [`Ref`] | yes | one get, one put |
//! | [`AnyRef`] | yes: a `Ref` without its type, for packets | the same |
//!
//! An entry dies in two steps: the last put retires it to the epoch domain, and the grace period frees it. So a `Handle` may
//! be of an entry without references; [`Handle::try_get`] finds that out. A [`Slot`] publishes an entry to readers: it is
//! **cleared before its reference is put**, or a reader could find an entry whose grace period is over.
//!
//! Not here: what the parts hold, whether an entry is still valid.

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
pub use slot::Slot;

mod any;
mod block;
mod slot;
#[cfg(test)]
mod tests;

/// What an entry is made of.
pub trait Parts: 'static + Sized {
    /// Read for every packet.
    type Head: Send + Sync + 'static;
    /// Read for every packet, and in the packed layout beside the count.
    type Tail: Send + Sync + 'static;
    /// Hardly ever read.
    type Cold: Send + Sync + 'static;
    /// Written by readers.
    type Stats: Send + Sync + 'static;
}

/// An entry found in a read section, which it cannot leave. Copied freely: it counts nothing.
pub struct Handle<'s, P: Parts> {
    view: View<'s, P>,
    /// A section belongs to one thread.
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

    /// What is read for every packet.
    #[inline]
    pub fn head(self) -> &'s P::Head {
        self.view.head()
    }

    /// What else is read for every packet.
    #[inline]
    pub fn tail(self) -> &'s P::Tail {
        self.view.tail()
    }

    /// What is hardly ever read.
    pub fn cold(self) -> &'s P::Cold {
        self.view.cold()
    }

    /// What readers write.
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

    /// Whether both are the same entry.
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
    /// Makes an entry with one reference, whose memory waits for the sections of `domain` in the end.
    #[must_use]
    pub fn new(domain: &Domain, layout: Layout, counting: Counting, entry: Entry<P>) -> Self {
        let header = block::make(domain, layout, counting, entry);
        // SAFETY: just made, with one reference.
        unsafe { Self::new_raw(header) }
    }

    /// # Safety
    /// The block is of `P`, and the caller has a reference to give.
    #[inline]
    unsafe fn new_raw(header: NonNull<Header>) -> Self {
        Self { header, parts: PhantomData }
    }

    #[inline]
    fn view(&self) -> View<'_, P> {
        View { header: self.header, alive: PhantomData, parts: PhantomData }
    }

    /// The entry without a reference of its own.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> Handle<'_, P> {
        // SAFETY: alive as long as this reference is borrowed.
        unsafe { Handle::new(self.header) }
    }

    /// What is read for every packet.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &P::Head {
        self.view().head()
    }

    /// What else is read for every packet.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> &P::Tail {
        self.view().tail()
    }

    /// What is hardly ever read.
    #[must_use]
    pub fn cold(&self) -> &P::Cold {
        self.view().cold()
    }

    /// What readers write.
    #[inline]
    #[must_use]
    pub fn stats(&self) -> &P::Stats {
        self.view().stats()
    }

    /// References at this moment, this one included.
    #[must_use]
    pub fn refs(&self) -> u32 {
        self.view().refs()
    }

    /// How the entry is counted.
    #[must_use]
    pub fn counting(&self) -> Counting {
        self.view().header().counting
    }

    /// How the entry lies in memory.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.view().layout()
    }

    /// Gives the reference back in a read section: one subtraction. Dropping it elsewhere costs a compare-and-swap.
    #[inline]
    pub fn release(self, section: &Section<'_>) {
        AnyRef::from(self).release(section);
    }

    /// Whether both are references to one entry.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl<P: Parts> Clone for Ref<P> {
    fn clone(&self) -> Self {
        let alive = self.view().try_get();
        debug_assert!(alive, "a reference to a dead entry");
        // SAFETY: the reference that `self` is keeps the count from its end, so the get has succeeded.
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

/// Gives one reference back by `put`, and retires the entry if it was the last.
///
/// # Safety
/// The caller has a reference to give up.
#[inline]
unsafe fn put(header: NonNull<Header>, put: impl FnOnce(&RefCount, Counting) -> Put) {
    let (count, counting, kind) = {
        // SAFETY: alive until the put below has returned: by the reference, and where the put looks again after it gave the
        // reference up, by the section it asks for.
        let header_ref = unsafe { header.as_ref() };
        // SAFETY: the header says where its block has its count.
        let count = unsafe { header.byte_add(usize::from(header_ref.count)).cast().as_ref() };
        (count, header_ref.counting, header_ref.kind)
    };
    let put = put(count, counting);
    debug_assert!(put != Put::Imbalanced, "a put too many");
    if put == Put::Last {
        // SAFETY: of its own kind, and the last put happens once.
        unsafe { (kind.retire)(header) };
    }
}
