//! Batches of free descriptors that are returned together.
//!
//! Above: pool.rs. Linux: the batches of the slab allocator's alien caches.
//!
//! ```text
//!  return list ─► carrier ─► carrier ─► …
//!                 frags: [address, address, …]   up to 32 more descriptors of the same home
//! ```
//!
//! Every descriptor that another core has freed lies in that core's cache. If the home pool walked
//! a list of them, it would pay one cache-line transfer after the other, each dependent on the one
//! before. A parcel is one list entry, the carrier, whose unused frags hold the addresses of the
//! other descriptors. The home pool reads a few lines instead of all. The lines of the other
//! descriptors are fetched when they are allocated, which no other access depends on.
//!
//! Not here: when a parcel is sent (pool.rs).

use core::ptr::NonNull;

use sync::{Link, Linked};

use crate::packet::descriptor::{Descriptor, FRAGS_MAX, FreeDescriptor};
use crate::page::Slice;
use crate::pool::HomeRef;

/// Descriptors a parcel carries besides its carrier: exactly four cache lines of addresses. Two in
/// loom models, where each descriptor is state to explore.
const PARCEL_MAX: u8 = if cfg!(loom) { 2 } else { 32 };
const _: () = assert!(
    PARCEL_MAX as usize * size_of::<FreeDescriptor>() <= FRAGS_MAX * size_of::<Slice>()
        && align_of::<FreeDescriptor>() <= align_of::<Slice>()
);

/// Number of descriptors in a full parcel.
pub(crate) const PARCEL_LEN: usize = PARCEL_MAX as usize + 1;

/// Free descriptors of one home, or of the depot. Has no destructor: it is sent, or leaks.
pub(crate) struct Parcel(NonNull<Descriptor>);

// SAFETY: exclusive ownership of free descriptors, which any thread may hold.
unsafe impl Send for Parcel {}

// SAFETY: exactly one `Parcel` owns the carrier, which has a fixed address in its slab. The pointer
// covers the whole descriptor, of which `link` is the first field.
unsafe impl Linked for Parcel {
    #[inline]
    fn into_link(self) -> NonNull<Link> {
        self.0.cast()
    }

    #[inline]
    unsafe fn from_link(link: NonNull<Link>) -> Self {
        Self(link.cast())
    }
}

impl Parcel {
    /// Makes a parcel of one descriptor, which becomes the carrier.
    #[inline]
    pub(crate) fn new(carrier: FreeDescriptor) -> Self {
        // SAFETY: a free descriptor is initialized and exclusively owned.
        unsafe { (*carrier.0.as_ptr()).body.frag_count = 0 };
        Self(carrier.0)
    }

    /// Adds a descriptor; of the same home, if the parcel is sent there. Returns true if the parcel
    /// is full after that.
    #[inline]
    pub(crate) fn push(&mut self, descriptor: FreeDescriptor) -> bool {
        // SAFETY: the carrier is initialized and exclusively owned, and so is its body.
        let body = unsafe { &mut (*self.0.as_ptr()).body };
        assert!(body.frag_count < PARCEL_MAX);
        let addresses = (&raw mut body.frags).cast::<FreeDescriptor>();
        // SAFETY: the frags of a free descriptor are unused memory, large and aligned enough for
        // `PARCEL_MAX` addresses (asserted above), and fewer are in it.
        unsafe { addresses.add(usize::from(body.frag_count)).write(descriptor) };
        body.frag_count += 1;
        body.frag_count == PARCEL_MAX
    }

    /// Returns the number of descriptors, the carrier included.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: as in `push`.
        usize::from(unsafe { (*self.0.as_ptr()).body.frag_count }) + 1
    }

    /// Returns the home of all descriptors inside, for a parcel that is sent there.
    #[inline]
    pub(crate) fn home(&self) -> HomeRef {
        // SAFETY: the carrier is initialized and exclusively owned.
        unsafe { (*self.0.as_ptr()).home }
    }

    /// Passes every descriptor inside to `put`, the carrier last.
    #[inline]
    pub(crate) fn unpack(self, mut put: impl FnMut(FreeDescriptor)) {
        // SAFETY: as in `push`.
        let body = unsafe { &mut (*self.0.as_ptr()).body };
        let addresses = (&raw const body.frags).cast::<FreeDescriptor>();
        for index in 0..body.frag_count {
            // SAFETY: the first `frag_count` addresses were written by `push`, and each is read
            // once.
            put(unsafe { addresses.add(usize::from(index)).read() });
        }
        put(FreeDescriptor(self.0));
    }
}
