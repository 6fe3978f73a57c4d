//! What other cores see of a pool: where its memory returns to, and its counters.
//!
//! Above: page.rs and packet.rs find the way home here. Linux: `softnet_data.defer_list` and the alien
//! caches of the slab allocator.
//!
//! Not here: the free lists of the core itself (pool.rs).

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use sync::{Llist, Padded};

use crate::packet::{FreeDescriptor, Parcel};
use crate::page::{FreePage, Slice};

/// The shared half of a pool.
#[derive(Debug, Default)]
pub(crate) struct Home {
    /// Written by every core that frees memory of this pool.
    pub(crate) returns: Padded<Returns>,
    /// Written by the core that has the pool.
    pub(crate) stats: Padded<Stats>,
}

/// Memory on its way home.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    pub(crate) packets: Llist<Parcel>,
    pub(crate) pages: Llist<FreePage>,
    /// Packets of this home that died elsewhere. Relaxed, as all counters here: they order nothing.
    pub(crate) packets_count: AtomicU64,
    /// Pages of this home that were used up elsewhere.
    pub(crate) pages_count: AtomicU64,
}

/// Counters of one pool. One writer, so a plain load and store suffices.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) alloc_local: Counter,
    pub(crate) free_local: Counter,
    pub(crate) free_remote: Counter,
    pub(crate) returns_drained: Counter,
    pub(crate) slab_refill: Counter,
    pub(crate) alloc_failed: Counter,
    pub(crate) pages_opened: Counter,
    pub(crate) pages_freed: Counter,
}

/// Written by one thread at a time, read by anybody.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline(always)]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.load(), f)
    }
}

/// Address of a `Home`, good as long as memory of that home is held ("Lifetime" in pool.rs).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomeRef(NonNull<Home>);

// SAFETY: a shared reference to `Home`, which is `Sync`.
unsafe impl Send for HomeRef {}
// SAFETY: as above.
unsafe impl Sync for HomeRef {}

const _: () = {
    const fn sync<T: Sync>() {}
    sync::<Home>();
};

impl HomeRef {
    /// A home that lives until `destroy`.
    pub(crate) fn leak(home: Home) -> Self {
        Self(NonNull::from(Box::leak(Box::new(home))))
    }

    /// Frees the home.
    ///
    /// # Safety
    ///
    /// Nobody holds memory of this home, nor uses a copy of this reference.
    pub(crate) unsafe fn destroy(self) {
        // SAFETY: made by `leak`; the caller promises that this is the end.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// Sends descriptors home from any thread. The push is the last touch: once home, the descriptors and
    /// this very list may be freed.
    #[inline]
    pub(crate) fn return_parcel(self, parcel: Parcel) {
        self.returns.packets.push(parcel);
    }

    /// Sends a page home from any thread; as above.
    #[inline]
    pub(crate) fn return_page(self, page: FreePage) {
        self.returns.pages_count.fetch_add(1, Ordering::Relaxed);
        self.returns.pages.push(page);
    }
}

impl Deref for HomeRef {
    type Target = Home;

    #[inline]
    fn deref(&self) -> &Home {
        // SAFETY: "Lifetime" in pool.rs: a home is freed only when nothing that carries its address is left.
        unsafe { self.0.as_ref() }
    }
}

/// Where memory of dead packets goes.
pub(crate) trait Recycle {
    /// A packet of `home` dies.
    fn count_packet(&mut self, home: HomeRef);
    /// A descriptor is free.
    fn put_descriptor(&mut self, descriptor: FreeDescriptor);
    /// A slice is no longer needed.
    fn put_slice(&mut self, slice: Slice);
}

/// Without a pool at hand everything goes home by the return lists.
pub(crate) struct Elsewhere;

impl Recycle for Elsewhere {
    #[inline]
    fn count_packet(&mut self, home: HomeRef) {
        home.returns.packets_count.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn put_descriptor(&mut self, descriptor: FreeDescriptor) {
        descriptor.home().return_parcel(Parcel::new(descriptor));
    }

    #[inline]
    fn put_slice(&mut self, slice: Slice) {
        if let Some(page) = slice.release() {
            page.home().return_page(page);
        }
    }
}

impl Home {
    /// Packets allocated here minus packets of this home that died. Packets cloned here count as allocated
    /// here.
    pub(crate) fn packets_live(&self) -> i64 {
        let born = self.stats.alloc_local.load();
        let died =
            self.stats.free_local.load() + self.returns.packets_count.load(Ordering::Relaxed);
        born.wrapping_sub(died).cast_signed()
    }

    /// Pages opened here minus pages that came back.
    pub(crate) fn pages_live(&self) -> i64 {
        let opened = self.stats.pages_opened.load();
        let freed =
            self.stats.pages_freed.load() + self.returns.pages_count.load(Ordering::Relaxed);
        opened.wrapping_sub(freed).cast_signed()
    }
}
