//! The part of a pool that other cores access: the lists its memory is returned to, and its
//! counters.
//!
//! Above: page.rs and packet.rs return memory here. Linux: `softnet_data.defer_list` and the alien
//! caches of the slab allocator.
//!
//! Not here: the free lists of the core itself (local.rs).

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::PoisonError;

use sync::{Llist, Padded};

use super::PoolStats;
use crate::packet::{FreeDescriptor, Packet, Parcel};
use crate::page::{FreePage, Slice};
use crate::shim::{AtomicBool, fence};

/// Notifies the thread of a pool that packets wait for it. Linux: the IPI of
/// `kick_defer_list_purge`.
pub trait PoolKick: Send + Sync {
    /// Makes the thread run, which then calls `Pool::drain_returns`.
    fn kick(&self);
}

/// Not loom's `Arc`: a kick is not part of a model's state.
pub(crate) type KickRef = std::sync::Arc<dyn PoolKick>;

/// The part of a pool that all cores share.
#[derive(Debug)]
pub(crate) struct Home {
    /// Number of the domain that owns the memory. Never changes.
    pub(crate) domain: u64,
    /// State read by a core that has a packet for this home, written when a thread takes or leaves
    /// the pool.
    pub(crate) reach: Padded<Reach>,
    /// List written by every core that sends packets to be freed here.
    pub(crate) deferred: Padded<Deferred>,
    /// Lists written by every core that frees memory of this pool.
    pub(crate) returns: Padded<Returns>,
    /// Counters written by the core that has the pool.
    pub(crate) stats: Padded<Stats>,
}

/// Whether a thread has the pool, and how to notify it.
pub(crate) struct Reach {
    /// Whether a thread has the pool.
    online: AtomicBool,
    /// Whether `kick` is set. Relaxed: a core that reads a stale value drops the payload
    /// unnecessarily, or leaves it in the packet for a while.
    kickable: AtomicBool,
    kick: std::sync::Mutex<Option<KickRef>>,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            online: AtomicBool::new(false),
            kickable: AtomicBool::new(false),
            kick: std::sync::Mutex::default(),
        }
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").field("kickable", &self.is_kickable()).finish_non_exhaustive()
    }
}

impl Reach {
    /// Records that a thread has taken the pool, or left it. A core that pushes a packet after the
    /// thread left sees this after its push.
    pub(crate) fn set_online(&self, online: bool) {
        self.online.store(online, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn is_online(&self) -> bool {
        self.online.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_kickable(&self) -> bool {
        self.kickable.load(Ordering::Relaxed)
    }

    pub(crate) fn set_kick(&self, kick: Option<KickRef>) {
        self.kickable.store(kick.is_some(), Ordering::Relaxed);
        *self.kick.lock().unwrap_or_else(PoisonError::into_inner) = kick;
    }

    #[cold]
    pub(crate) fn kick(&self) {
        let kick = self.kick.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(kick) = kick {
            kick.kick();
        }
    }
}

/// Whole packets on their way to their home.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    pub(crate) packets: Llist<Packet>,
    /// Packets sent or refused since the last drain. Relaxed: a limit orders nothing.
    pub(crate) count: AtomicU32,
}

/// Memory on its way to its home.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    pub(crate) packets: Llist<Parcel>,
    pub(crate) pages: Llist<FreePage>,
    /// Packets of this home that were freed elsewhere. Relaxed, as all counters here: they order
    /// nothing.
    pub(crate) packets_count: AtomicU64,
    /// Pages of this home whose last slice was dropped elsewhere.
    pub(crate) pages_count: AtomicU64,
}

/// Counters of one pool. There is one writer, so a plain load and store suffices.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) alloc_local: Counter,
    pub(crate) free_local: Counter,
    pub(crate) adopted: Counter,
    pub(crate) free_remote: Counter,
    pub(crate) defer_pushed: Counter,
    pub(crate) defer_overflow: Counter,
    pub(crate) defer_kicks: Counter,
    pub(crate) defer_drained: Counter,
    pub(crate) magazine_flushes: Counter,
    pub(crate) magazine_refills: Counter,
    pub(crate) returns_drained: Counter,
    pub(crate) slab_refill: Counter,
    pub(crate) slab_shares: Counter,
    pub(crate) locks: Counter,
    pub(crate) locks_contended: Counter,
    pub(crate) alloc_failed: Counter,
    pub(crate) pages_opened: Counter,
    pub(crate) pages_freed: Counter,
}

/// Counter with one writer at a time and any number of readers.
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

/// Address of a `Home`, valid as long as memory of that home is held ("Lifetime" in pool.rs).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomeRef(NonNull<Home>);

// SAFETY: equivalent to a shared reference to `Home`, which is `Sync`.
unsafe impl Send for HomeRef {}
// SAFETY: as above.
unsafe impl Sync for HomeRef {}

const _: () = {
    const fn sync<T: Sync>() {}
    sync::<Home>();
};

impl HomeRef {
    /// Makes a home that exists until `destroy`.
    pub(crate) fn leak(home: Home) -> Self {
        Self(NonNull::from(Box::leak(Box::new(home))))
    }

    /// Frees the home.
    ///
    /// # Safety
    ///
    /// No thread holds memory of this home or uses a copy of this reference.
    pub(crate) unsafe fn destroy(self) {
        // SAFETY: made by `leak`; by the caller's promise no copy of this reference is used again.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// Returns descriptors to their home from any thread. The push is the last access: once it is
    /// done, the descriptors and this very list may be freed.
    #[inline]
    pub(crate) fn return_parcel(self, parcel: Parcel) {
        self.returns.packets.push(parcel);
    }

    /// Returns a page to its home from any thread; the push is the last access, as above.
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
        // SAFETY: "Lifetime" in pool.rs: a home is freed only when no memory that carries its
        // address is left.
        unsafe { self.0.as_ref() }
    }
}

/// Destination of the memory of freed packets.
pub(crate) trait Recycle {
    /// Counts a freed packet of `home`.
    fn count_packet(&mut self, home: HomeRef);
    /// Takes a free descriptor.
    fn put_descriptor(&mut self, descriptor: FreeDescriptor);
    /// Releases a slice.
    fn put_slice(&mut self, slice: Slice);
}

/// Destination for a thread without a pool at hand: all memory returns to its home through the
/// return lists.
pub(crate) struct NoPool;

impl Recycle for NoPool {
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
    /// Makes a home of `domain` that no thread has yet.
    pub(crate) fn new(domain: u64) -> Self {
        Self {
            domain,
            reach: Padded::default(),
            deferred: Padded::default(),
            returns: Padded::default(),
            stats: Padded::default(),
        }
    }

    /// Returns the counters of the pool.
    pub(crate) fn stats(&self) -> PoolStats {
        let stats = &self.stats;
        PoolStats {
            alloc_local: stats.alloc_local.load(),
            free_local: stats.free_local.load(),
            adopted: stats.adopted.load(),
            free_remote: stats.free_remote.load(),
            returned: self.returns.packets_count.load(Ordering::Relaxed),
            returns_drained: stats.returns_drained.load(),
            defer_pushed: stats.defer_pushed.load(),
            defer_overflow: stats.defer_overflow.load(),
            defer_kicks: stats.defer_kicks.load(),
            defer_drained: stats.defer_drained.load(),
            magazine_flushes: stats.magazine_flushes.load(),
            magazine_refills: stats.magazine_refills.load(),
            slab_refill: stats.slab_refill.load(),
            slab_shares: stats.slab_shares.load(),
            locks: stats.locks.load(),
            locks_contended: stats.locks_contended.load(),
            alloc_failed: stats.alloc_failed.load(),
            pages_opened: stats.pages_opened.load(),
        }
    }

    /// Returns packets allocated here minus freed packets of this home. Packets cloned here count
    /// as allocated here.
    pub(crate) fn packets_live(&self) -> i64 {
        let allocated = self.stats.alloc_local.load();
        let freed =
            self.stats.free_local.load() + self.returns.packets_count.load(Ordering::Relaxed);
        allocated.wrapping_sub(freed).cast_signed()
    }

    /// Returns pages opened here minus pages that were returned.
    pub(crate) fn pages_live(&self) -> i64 {
        let opened = self.stats.pages_opened.load();
        let freed =
            self.stats.pages_freed.load() + self.returns.pages_count.load(Ordering::Relaxed);
        opened.wrapping_sub(freed).cast_signed()
    }
}
