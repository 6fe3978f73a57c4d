//! All packet memory that counts against one limit, and the pools that share it.
//!
//! Above: one domain per process, or per test. Linux: the slab caches behind `alloc_skb`.
//!
//! Memory is taken from the system in slabs and given back only when the domain dies. Taking a slab is the
//! slow path: it takes a lock.
//!
//! Not here: allocation of packets (pool.rs).

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::packet::{DESCRIPTOR_BYTES, Descriptor, FreeDescriptor};
use crate::page::{FreePage, PAGE_SLAB_BYTES, PAGES_PER_SLAB};
use crate::pool::depot::DepotRef;
use crate::pool::home::{Home, HomeRef, Stats};
use crate::pool::lock::{lock, lock_counted};
use crate::pool::{Local, Pool, PoolStats};
use crate::shim::{Arc, Mutex, MutexGuard};

/// Bytes of a slab of descriptors.
const DESCRIPTOR_SLAB_BYTES: usize = if cfg!(loom) { 4 * DESCRIPTOR_BYTES } else { 64 * 1024 };
/// Descriptors in one slab: 93; four in models, where each is a state to explore.
const DESCRIPTORS_PER_SLAB: usize = DESCRIPTOR_SLAB_BYTES / DESCRIPTOR_BYTES;

/// Limits of a [`Domain`].
#[derive(Clone, Copy, Debug)]
pub struct DomainConfig {
    /// Most bytes the domain takes from the system. An upper bound, not a reservation; at the bound
    /// allocation fails and packets are dropped with `DropReason::NoMemory`.
    pub max_bytes: usize,
}

impl Default for DomainConfig {
    /// 1 GiB: sixteen thousand full-sized socket buffers.
    fn default() -> Self {
        Self { max_bytes: 1 << 30 }
    }
}

/// What a domain holds, summed over its pools. Exact when no thread is inside a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainStats {
    /// Packets alive.
    pub packets_live: i64,
    /// Pages that are being carved or read.
    pub pages_live: i64,
    /// Bytes taken from the system.
    pub bytes: usize,
    /// Pools ever made.
    pub pools: usize,
    /// Pools that wait for a thread to adopt them.
    pub pools_idle: usize,
    /// Descriptors without a packet: in pools, in the depot, and on their way there.
    pub descriptors_free: i64,
    /// Of those, the ones in the depot.
    pub descriptors_depot: usize,
    /// Packets that wait to die at home: `packets_live` has them.
    pub packets_deferred: i64,
    /// What all pools together have done.
    pub pool: PoolStats,
}

/// Domains of a process are numbered from 1, so that a pool can tell which descriptors it may keep.
static NEXT_DOMAIN: AtomicU64 = AtomicU64::new(1);

/// Packet memory under one limit. Clones are the same domain.
///
/// The memory goes back to the system with the last clone and the last [`Pool`]; packets that are still
/// alive then keep all of it (a leak, never a dangling packet).
#[derive(Clone)]
pub struct Domain(Arc<Core>);

impl Domain {
    /// A domain without memory: pools take it when they first need it.
    #[must_use]
    pub fn new(config: DomainConfig) -> Self {
        Self(Arc::new(Core {
            config,
            number: NEXT_DOMAIN.fetch_add(1, Ordering::Relaxed),
            depot: DepotRef::default(),
            state: Mutex::new(State::default()),
        }))
    }

    /// A pool for the calling core or thread: one that a finished thread left behind, with all its memory,
    /// or a new one.
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

    /// Packets alive: zero when every packet was freed. Exact when no thread is inside a pool.
    #[must_use]
    pub fn balance(&self) -> i64 {
        self.stats().packets_live
    }

    /// Bytes that may be taken from the system at most.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        self.0.config.max_bytes
    }

    /// Bytes taken from the system so far.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// What the domain holds.
    #[must_use]
    pub fn stats(&self) -> DomainStats {
        let state = self.0.lock();
        let mut stats = DomainStats {
            bytes: state.bytes,
            pools: state.homes.len(),
            pools_idle: state.idle.len(),
            ..DomainStats::default()
        };
        for home in &state.homes {
            stats.packets_live += home.packets_live();
            stats.pages_live += home.pages_live();
            stats.pool.add(&home.stats());
        }
        let made = i64::try_from(state.descriptors).unwrap_or(i64::MAX);
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

/// What the clones of a domain and its pools share.
pub(crate) struct Core {
    config: DomainConfig,
    number: u64,
    depot: DepotRef,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    /// Descriptors ever made.
    descriptors: usize,
    slabs: Vec<Slab>,
    homes: Vec<HomeRef>,
    idle: Vec<Local>,
}

/// Memory as the system gave it.
struct Slab {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an address that only `Core::drop` uses.
unsafe impl Send for Slab {}

impl Core {
    /// A slab of fresh descriptors for `home`. `None` at the limit.
    pub(crate) fn descriptors(
        &self,
        home: HomeRef,
    ) -> Option<impl ExactSizeIterator<Item = FreeDescriptor>> {
        let layout =
            Layout::from_size_align(DESCRIPTOR_SLAB_BYTES, align_of::<Descriptor>()).ok()?;
        let memory = self.take(DESCRIPTOR_SLAB_BYTES, layout, &home.stats)?.cast::<Descriptor>();
        let made = {
            let mut state = lock_counted(&self.state, &home.stats);
            state.descriptors += DESCRIPTORS_PER_SLAB;
            state.descriptors
        };
        self.depot.reserve(made, &home.stats);
        Some((0..DESCRIPTORS_PER_SLAB).map(move |index| {
            // SAFETY: `index` descriptors fit into the slab, which is zeroed, ours alone, aligned by its
            // layout, and stays until `Core::drop`.
            unsafe { FreeDescriptor::init(memory.add(index), home) }
        }))
    }

    /// A slab of fresh pages for `home`. `None` at the limit.
    pub(crate) fn pages(&self, home: HomeRef) -> Option<impl ExactSizeIterator<Item = FreePage>> {
        // Twice the size instead of the alignment: the system allocator then maps zero pages that cost
        // nothing until they are touched, where an aligned request would be cleared by hand.
        let layout = Layout::from_size_align(2 * PAGE_SLAB_BYTES, 64).ok()?;
        let memory = self.take(PAGE_SLAB_BYTES, layout, &home.stats)?;
        let offset = memory.as_ptr().align_offset(PAGE_SLAB_BYTES);
        assert!(offset < PAGE_SLAB_BYTES, "align_offset of u8 always succeeds");
        // SAFETY: `offset` is below half of the allocation.
        let slab = unsafe { memory.add(offset) };
        // SAFETY: the rest holds a whole slab, zeroed, aligned, ours alone, and stays until `Core::drop`.
        Some(unsafe { FreePage::from_slab(slab, home) })
    }

    /// At the limit: what is on its way to any pool goes to the one that needs it. The others may have more than they use,
    /// and not look for their returns. False when there was nothing.
    #[cold]
    pub(crate) fn collect_returns(&self, local: &mut Local) -> bool {
        let state = lock_counted(&self.state, &local.home.stats);
        let found: usize = state.homes.iter().map(|home| local.take_returns_of(*home)).sum();
        found > 0
    }

    /// Takes back what a dropped pool had, for the next thread that asks for a pool.
    pub(crate) fn abandon(&self, local: Local) {
        self.lock().idle.push(local);
    }

    /// Zeroed memory that stays allocated until `drop`. `None` at the limit.
    fn take(&self, bytes: usize, layout: Layout, stats: &Stats) -> Option<NonNull<u8>> {
        let mut state = lock_counted(&self.state, stats);
        let total = state.bytes.checked_add(bytes)?;
        if total > self.config.max_bytes {
            return None;
        }
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        state.bytes = total;
        state.slabs.push(Slab { memory, layout });
        Some(memory)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Core {
    /// Frees everything if everything is home, else leaks everything: a descriptor or page that is not home
    /// may be used or returned at any time, and needs its home for that.
    fn drop(&mut self) {
        let mut state = core::mem::take(&mut *self.lock());
        // All pools are idle: each holds a reference to this core until it is.
        let mut home = Some(0);
        for local in &mut state.idle {
            home = local.complete().and_then(|here| home.map(|home| home + here));
        }
        // What a full pool passed on while it took its returns is in the depot by now.
        let home = home.map(|home| home + self.depot.descriptors());
        if state.idle.len() != state.homes.len() || home != Some(state.descriptors) {
            core::mem::forget(state);
            return;
        }
        self.depot.destroy();
        state.idle.drain(..).for_each(Local::destroy);
        for home in state.homes.drain(..) {
            // SAFETY: all memory of this home is home and was just given up, and the last thread that sent
            // some touched the home before that memory could be counted.
            unsafe { home.destroy() };
        }
        for slab in state.slabs.drain(..) {
            // SAFETY: allocated with this layout in `take`; as above, nobody has an address inside.
            unsafe { dealloc(slab.memory.as_ptr(), slab.layout) };
        }
    }
}

const _: () = assert!(PAGES_PER_SLAB > 1 && DESCRIPTORS_PER_SLAB > 1);
