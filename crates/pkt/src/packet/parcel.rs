//! Dead descriptors that travel home together.
//!
//! Above: pool.rs. Linux: the batches of the slab allocator's alien caches.
//!
//! ```text
//!  return list ─► carrier ─► carrier ─► …
//!                 frags: [address, address, …]   up to 32 more descriptors of the same home
//! ```
//!
//! Every descriptor that another core has freed lies in that core's cache. Walking a list of them costs the
//! home one transfer after the other, each waiting for the one before. A parcel is one list entry whose
//! dead frags hold the addresses of the others: the home reads a few lines instead of all, and the lines of
//! the others are fetched when they are allocated, where nothing waits for them.
//!
//! Not here: when a parcel is sent (pool.rs).

use core::ptr::NonNull;

use sync::{Link, Linked};

use crate::packet::descriptor::{Descriptor, FRAGS_MAX, FreeDescriptor};
use crate::page::Slice;
use crate::pool::HomeRef;

/// Descriptors a parcel carries besides its carrier: exactly four cache lines of addresses. Two in models,
/// where each is a state to explore.
const PARCEL_MAX: u8 = if cfg!(loom) { 2 } else { 32 };
const _: () = assert!(
    PARCEL_MAX as usize * size_of::<FreeDescriptor>() <= FRAGS_MAX * size_of::<Slice>()
        && align_of::<FreeDescriptor>() <= align_of::<Slice>()
);

/// Descriptors in a full parcel.
pub(crate) const PARCEL_LEN: usize = PARCEL_MAX as usize + 1;

/// Free descriptors of one home, or of the depot. Has no destructor: it is sent, or leaks.
pub(crate) struct Parcel(NonNull<Descriptor>);

// SAFETY: exclusive ownership of free descriptors; which thread holds it does not matter.
unsafe impl Send for Parcel {}

// SAFETY: the carrier is owned by exactly one `Parcel` and has a fixed address in its slab; the pointer is
// the one to the whole descriptor, of which `link` is the first field.
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
    /// A parcel of one, which becomes the carrier.
    #[inline]
    pub(crate) fn new(carrier: FreeDescriptor) -> Self {
        // SAFETY: a free descriptor is initialised and exclusively ours.
        unsafe { (*carrier.0.as_ptr()).body.frag_count = 0 };
        Self(carrier.0)
    }

    /// Adds a descriptor: of the same home, if the parcel is sent there. True when the parcel is full after that.
    #[inline]
    pub(crate) fn push(&mut self, descriptor: FreeDescriptor) -> bool {
        // SAFETY: the carrier is initialised and exclusively ours, and so is its body.
        let body = unsafe { &mut (*self.0.as_ptr()).body };
        assert!(body.frag_count < PARCEL_MAX);
        let addresses = (&raw mut body.frags).cast::<FreeDescriptor>();
        // SAFETY: the frags of a dead packet are free memory, large and aligned enough for `PARCEL_MAX`
        // addresses (asserted above), and fewer are in it.
        unsafe { addresses.add(usize::from(body.frag_count)).write(descriptor) };
        body.frag_count += 1;
        body.frag_count == PARCEL_MAX
    }

    /// Descriptors inside, the carrier included.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: as in `push`.
        usize::from(unsafe { (*self.0.as_ptr()).body.frag_count }) + 1
    }

    /// Home of all that is inside, for a parcel that is sent there.
    #[inline]
    pub(crate) fn home(&self) -> HomeRef {
        // SAFETY: the carrier is initialised and exclusively ours.
        unsafe { (*self.0.as_ptr()).home }
    }

    /// Hands out the descriptors inside, and the carrier last.
    #[inline]
    pub(crate) fn unpack(self, mut put: impl FnMut(FreeDescriptor)) {
        // SAFETY: as in `push`.
        let body = unsafe { &mut (*self.0.as_ptr()).body };
        let addresses = (&raw const body.frags).cast::<FreeDescriptor>();
        for index in 0..body.frag_count {
            // SAFETY: the first `frag_count` addresses were written by `push`, and each is read once.
            put(unsafe { addresses.add(usize::from(index)).read() });
        }
        put(FreeDescriptor(self.0));
    }
}
