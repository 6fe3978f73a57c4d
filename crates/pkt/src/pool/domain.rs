//! All packet memory that counts against one limit, and the pools that share it.
//!
//! Above: one domain per process, or per test. Linux: the slab caches behind `alloc_skb`.
//!
//! Memory is taken from the system in slabs. It is given back when no pool needs it (trim.rs) and
//! when the domain ends. Taking a share of a slab is the slow path: it takes a lock.
//!
//! Not here: allocation of packets (pool.rs), the slabs themselves (slab.rs).

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::packet::{DESCRIPTOR_BYTES, FreeDescriptor};
use crate::page::{FreePage, PAGE_BYTES, PAGE_SLAB_BYTES};
use crate::pool::depot::{Depot, DepotRef};
use crate::pool::home::{Home, HomeRef};
use crate::pool::lock::{lock, lock_counted};
use crate::pool::slab::{DESCRIPTOR_SLAB_BYTES, DESCRIPTORS_PER_SLAB, Heap, SlabSource, Slabs};
use crate::pool::{Local, Pool, PoolStats};
use crate::shim::{Arc, Mutex, MutexGuard};

/// Limits of a [`Domain`].
#[derive(Clone, Copy, Debug)]
pub struct DomainConfig {
    /// Upper bound of the bytes the domain takes from the system, not a reservation. At the bound
    /// allocation fails and packets are dropped with `DropReason::NoMemory`.
    pub max_bytes: usize,
}

impl Default for DomainConfig {
    /// 1 GiB: sixteen thousand full-sized socket buffers.
    fn default() -> Self {
        Self { max_bytes: 1 << 30 }
    }
}

/// State of a domain, summed over its pools. Exact when no thread is inside a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainStats {
    /// Packets alive.
    pub packets_live: i64,
    /// Pages that are being carved or that slices refer to.
    pub pages_live: i64,
    /// Bytes taken from the system and not given back.
    pub bytes: usize,
    /// Pools ever made.
    pub pools: usize,
    /// Pools without a thread, to be reused by the next thread.
    pub pools_idle: usize,
    /// Descriptors without a packet: in pools, in the depot, on return lists, and those that no
    /// pool has had yet.
    pub descriptors_free: i64,
    /// Free descriptors in the depot.
    pub descriptors_depot: usize,
    /// Packets that wait to be freed by their home pool; also counted in `packets_live`.
    pub packets_deferred: i64,
    /// Counters of all pools together.
    pub pool: PoolStats,
}

/// Number of the next domain. Domains of a process are numbered from 1, so that a pool can tell
/// which descriptors it may keep.
static NEXT_DOMAIN: AtomicU64 = AtomicU64::new(1);

/// Packet memory under one limit. A clone refers to the same domain.
///
/// The memory goes back to the system with the last clone and the last [`Pool`], and before that by
/// [`trim`](Self::trim). Packets that are still alive at the end keep all of it (a leak, never a
/// dangling packet).
#[derive(Clone)]
pub struct Domain(Arc<Core>);

impl Domain {
    /// Makes a domain without memory: pools take memory when they first need it.
    #[must_use]
    pub fn new(config: DomainConfig) -> Self {
        Self::with_source(config, &Heap)
    }

    /// As [`new`](Self::new), with slabs from `source` instead of the global allocator.
    #[must_use]
    pub fn with_source(config: DomainConfig, source: &'static dyn SlabSource) -> Self {
        Self(Arc::new(Core {
            config,
            number: NEXT_DOMAIN.fetch_add(1, Ordering::Relaxed),
            depot: DepotRef::default(),
            state: Mutex::new(State::new(Slabs::new(config.max_bytes, source))),
        }))
    }

    /// Returns a pool for the calling core or thread: one that an ended thread left, with all its
    /// memory, or a new one.
    #[must_use]
    pub fn pool(&self) -> Pool {
        let mut local = {
            let mut state = self.0.lock();
            state.idle.pop().unwrap_or_else(|| {
                let home = HomeRef::leak(Home::new(self.0.number));
                state.homes.push(home);
                Local::new(home, DepotRef::clone(&self.0.depot))
            })
        };
        local.open();
        Pool::new(local, Arc::clone(&self.0))
    }

    /// Returns the number of packets alive, zero when every packet was freed. Exact when no thread
    /// is inside a pool.
    #[must_use]
    pub fn balance(&self) -> i64 {
        self.stats().packets_live
    }

    /// Returns the upper bound of the bytes taken from the system.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        self.0.config.max_bytes
    }

    /// Returns the bytes taken from the system and not given back.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.0.lock().slabs.bytes
    }

    /// Returns the bytes that cannot be used for other packets: those of live packets and of pages
    /// that are being carved or that slices refer to. A page counts whole, however little of it is
    /// referred to. Less than [`live_bytes`](Self::live_bytes) by the free memory. Approximate
    /// while threads are inside pools.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let (mut packets, mut pages) = (0, 0);
        for home in &self.0.lock().homes {
            packets += home.packets_live();
            pages += home.pages_live();
        }
        let bytes = |count: i64, size: usize| usize::try_from(count).unwrap_or(0) * size;
        bytes(packets, DESCRIPTOR_BYTES) + bytes(pages, PAGE_BYTES)
    }

    pub(super) fn core(&self) -> &Core {
        &self.0
    }

    /// Returns the addresses of all slabs of descriptors and of pages, for tools that name the
    /// memory a program accesses.
    #[must_use]
    pub fn slabs(&self) -> Vec<Range<usize>> {
        let state = self.0.lock();
        let place = |bytes: usize| move |address: usize| address..address + bytes;
        let descriptors = state.slabs.descriptors.addresses().map(place(DESCRIPTOR_SLAB_BYTES));
        let pages = state.slabs.pages.addresses().map(place(PAGE_SLAB_BYTES));
        descriptors.chain(pages).collect()
    }

    /// Returns the state of the domain.
    #[must_use]
    pub fn stats(&self) -> DomainStats {
        let state = self.0.lock();
        let mut stats = DomainStats {
            bytes: state.slabs.bytes,
            pools: state.homes.len(),
            pools_idle: state.idle.len(),
            ..DomainStats::default()
        };
        for home in &state.homes {
            stats.packets_live += home.packets_live();
            stats.pages_live += home.pages_live();
            stats.pool.add(&home.stats());
        }
        let made = i64::try_from(state.descriptors_made()).unwrap_or(i64::MAX);
        stats.descriptors_free = made - stats.packets_live;
        stats.descriptors_depot = self.0.depot.descriptors();
        let pool = &stats.pool;
        stats.packets_deferred = pool.defer_pushed.wrapping_sub(pool.defer_drained).cast_signed();
        stats
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.stats()).finish()
    }
}

/// State shared by the clones of a domain and its pools.
pub(crate) struct Core {
    config: DomainConfig,
    number: u64,
    depot: DepotRef,
    state: Mutex<State>,
}

/// State under the domain's lock.
pub(super) struct State {
    pub(super) slabs: Slabs,
    /// Descriptors given to pools and not released since.
    pub(super) descriptors: usize,
    /// Pages given to pools and not released since.
    pub(super) pages: usize,
    /// Free pages taken from pools without a thread.
    pub(super) spare_pages: Vec<FreePage>,
    /// Value of `Slabs::taken` at the last trim.
    pub(super) taken_at_trim: u64,
    homes: Vec<HomeRef>,
    pub(super) idle: Vec<Local>,
}

impl State {
    const fn new(slabs: Slabs) -> Self {
        Self {
            slabs,
            descriptors: 0,
            pages: 0,
            spare_pages: Vec::new(),
            taken_at_trim: 0,
            homes: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Returns the number of descriptors that exist, including those that no pool has had yet.
    fn descriptors_made(&self) -> usize {
        self.slabs.descriptors.len() * DESCRIPTORS_PER_SLAB
    }
}

impl Core {
    /// Passes up to `wanted` descriptors that no pool has had to `put`, for `home`. Returns false
    /// at the limit.
    pub(crate) fn descriptors(
        &self,
        home: HomeRef,
        wanted: usize,
        put: impl FnMut(FreeDescriptor),
    ) -> bool {
        let made = {
            let mut state = lock_counted(&self.state, &home.stats);
            let Some(share) = state.slabs.take_descriptors(wanted, home, put) else { return false };
            state.descriptors += share.count;
            home.stats.slab_shares.add(1);
            share.is_new_slab.then(|| state.descriptors_made())
        };
        if let Some(made) = made {
            home.stats.slab_refill.add(1);
            self.depot.reserve(made, &home.stats);
        }
        true
    }

    /// Passes up to `wanted` pages to `put`, for `home`: free pages of pools without a thread
    /// first. Returns false at the limit.
    pub(crate) fn pages(
        &self,
        home: HomeRef,
        wanted: usize,
        mut put: impl FnMut(FreePage),
    ) -> bool {
        let mut state = lock_counted(&self.state, &home.stats);
        if !state.spare_pages.is_empty() {
            let keep = state.spare_pages.len().saturating_sub(wanted);
            for mut page in state.spare_pages.drain(keep..) {
                page.set_home(home);
                put(page);
            }
            home.stats.slab_shares.add(1);
            return true;
        }
        let Some(share) = state.slabs.take_pages(wanted, home, put) else { return false };
        state.pages += share.count;
        home.stats.slab_shares.add(1);
        home.stats.slab_refill.add(u64::from(share.is_new_slab));
        true
    }

    /// At the limit: moves descriptors that are being returned to any pool to `local`, which needs
    /// them. The other pools may have more than they use and not drain their return lists. Returns
    /// false if there were none.
    #[cold]
    pub(crate) fn collect_returns(&self, local: &mut Local) -> bool {
        let state = lock_counted(&self.state, &local.home.stats);
        let found: usize = state.homes.iter().map(|home| local.take_returns_of(*home)).sum();
        found > 0
    }

    /// Takes back a dropped pool, for the next thread that asks for one.
    pub(crate) fn abandon(&self, local: Local) {
        self.lock().idle.push(local);
    }

    pub(super) fn depot(&self) -> &Depot {
        &self.depot
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Core {
    /// Frees everything if everything has been returned, otherwise leaks everything: a descriptor
    /// or page that has not been returned may be used or returned at any time, and needs its home
    /// for that.
    fn drop(&mut self) {
        let empty = State::new(Slabs::new(0, &Heap));
        let mut state = core::mem::replace(&mut *self.lock(), empty);
        // All pools are idle, because each holds a reference to this core until then.
        let mut home = (0, state.spare_pages.len());
        for local in &mut state.idle {
            let (descriptors, pages) = local.collect();
            home = (home.0 + descriptors, home.1 + pages);
        }
        // Descriptors that a full pool passed on while it took its returns are in the depot by now.
        home.0 += self.depot.descriptors();
        let made = (state.descriptors, state.pages);
        if state.idle.len() != state.homes.len() || home != made {
            core::mem::forget(state);
            return;
        }
        self.depot.destroy();
        state.idle.drain(..).for_each(Local::destroy);
        state.spare_pages.drain(..).for_each(FreePage::destroy);
        for home in state.homes.drain(..) {
            // SAFETY: all memory of this home has been returned and was just given up. The last
            // thread that returned some of it accessed the home before that memory could be
            // counted.
            unsafe { home.destroy() };
        }
        // SAFETY: as above, no thread has an address inside.
        unsafe { state.slabs.destroy() };
    }
}
