//! A published entry: `sk_rx_dst`, the caches of a next hop.

use core::fmt;
use core::marker::PhantomData;

use super::{AtomicPtr, Domain, Handle, Header, NonNull, Ordering, Parts, Ref, Section, ptr};

/// Holds one reference or none. Any thread may load it in a read section. One writer at a time
/// changes it, or several by [`publish`](Self::publish) and [`take`](Self::take) alone.
pub struct Slot<P: Parts> {
    /// Published entry, or null. Release when an entry is published, so that readers see all of it;
    /// Acquire by readers. Clearing needs no order of its own: the reference is put afterwards, and
    /// the grace period that may follow orders the rest.
    entry: AtomicPtr<Header>,
    domain: Domain,
    parts: PhantomData<Ref<P>>,
}

impl<P: Parts> Slot<P> {
    /// Makes an empty slot. Readers need sections of `domain`.
    pub fn new(domain: &Domain) -> Self {
        let entry = AtomicPtr::new(ptr::null_mut());
        Self { entry, domain: domain.clone(), parts: PhantomData }
    }

    /// Returns the published entry, without a reference.
    ///
    /// # Panics
    ///
    /// If `section` is of another domain.
    #[inline]
    pub fn load<'s>(&'s self, section: &'s Section<'_>) -> Option<Handle<'s, P>> {
        assert!(section.covers(&self.domain), "section of another domain");
        let entry = NonNull::new(self.entry.load(Ordering::Acquire))?;
        // SAFETY: the slot is cleared before its reference is put. The entry was still published
        // when this section had begun, so if that put was the last one, the block was retired after
        // the section began.
        Some(unsafe { Handle::new(entry) })
    }

    /// Returns whether no entry is published.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entry.load(Ordering::Relaxed).is_null()
    }

    /// Publishes `entry`; `Err` gives it back if one is published already.
    ///
    /// # Panics
    ///
    /// If `entry` is of another domain.
    pub fn publish(&self, entry: Ref<P>) -> Result<(), Ref<P>> {
        assert!(*entry.view().header().domain == self.domain, "entry of another domain");
        let new = entry.header.as_ptr();
        let empty = ptr::null_mut();
        match self.entry.compare_exchange(empty, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                // The reference now belongs to the slot.
                core::mem::forget(entry);
                Ok(())
            }
            Err(_) => Err(entry),
        }
    }

    /// Clears the slot and returns its reference, so that the caller puts it after the clearing.
    pub fn take(&self) -> Option<Ref<P>> {
        // Acquire: the caller accesses an entry that another thread may have published.
        let entry = NonNull::new(self.entry.swap(ptr::null_mut(), Ordering::Acquire))?;
        // SAFETY: the slot's reference, which the swap gave to this thread alone.
        Some(unsafe { Ref::new_raw(entry) })
    }
}

impl<P: Parts> Drop for Slot<P> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<P: Parts> fmt::Debug for Slot<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
