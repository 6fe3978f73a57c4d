//! The place where an entry is published: `sk_rx_dst`, the caches of a next hop.

use core::fmt;
use core::marker::PhantomData;

use super::{AtomicPtr, Domain, Handle, Header, NonNull, Ordering, Parts, Ref, Section, ptr};

/// Holds one reference or none. Anybody may look in a read section; one writer at a time changes it, or several by
/// [`publish`](Self::publish) and [`take`](Self::take) alone.
pub struct Slot<P: Parts> {
    /// Release when an entry is published, so that readers see it whole; Acquire by readers. Clearing needs no order of its
    /// own: the reference is put afterwards, and the grace period that may follow orders the rest.
    entry: AtomicPtr<Header>,
    domain: Domain,
    parts: PhantomData<Ref<P>>,
}

impl<P: Parts> Slot<P> {
    /// Empty. Readers need sections of `domain`.
    pub fn new(domain: &Domain) -> Self {
        let entry = AtomicPtr::new(ptr::null_mut());
        Self { entry, domain: domain.clone(), parts: PhantomData }
    }

    /// What is published, without a reference.
    ///
    /// # Panics
    ///
    /// When `section` is of another domain.
    #[inline]
    pub fn load<'s>(&'s self, section: &'s Section<'_>) -> Option<Handle<'s, P>> {
        assert!(section.covers(&self.domain), "section of another domain");
        let entry = NonNull::new(self.entry.load(Ordering::Acquire))?;
        // SAFETY: it was published when this section had begun, and is cleared before its reference is put: if that was the
        // last one the block was retired after this section began.
        Some(unsafe { Handle::new(entry) })
    }

    /// Whether nothing is published.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entry.load(Ordering::Relaxed).is_null()
    }

    /// Publishes `entry`; `Err` gives it back because there is one already.
    ///
    /// # Panics
    ///
    /// When `entry` is of another domain.
    pub fn publish(&self, entry: Ref<P>) -> Result<(), Ref<P>> {
        assert!(*entry.view().header().domain == self.domain, "entry of another domain");
        let new = entry.header.as_ptr();
        let empty = ptr::null_mut();
        match self.entry.compare_exchange(empty, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                // The reference is the slot's.
                core::mem::forget(entry);
                Ok(())
            }
            Err(_) => Err(entry),
        }
    }

    /// Clears the slot and hands its reference out: what the caller drops, it drops after the clearing.
    pub fn take(&self) -> Option<Ref<P>> {
        // Acquire: the caller looks at what somebody else may have published.
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
