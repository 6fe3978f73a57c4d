//! Where full magazines leave descriptors and empty ones find them, a parcel at a time.
//!
//! Above: local.rs. Linux: the shared array of a slab cache (`array_cache` of a node).
//!
//! A core that only allocates and one that only frees meet here once for every parcel: one lock for thirty-three packets,
//! held for a push or a pop.
//!
//! Not here: memory from the system (domain.rs).

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{
    home::Stats,
    lock::{lock, lock_counted},
};
use crate::packet::{PARCEL_LEN, Parcel};
use crate::shim::Mutex;

/// Not loom's `Arc`: where memory is leaked on purpose the depot is too.
pub(crate) type DepotRef = std::sync::Arc<Depot>;

/// Parcels of free descriptors of one domain, which are at home nowhere until a pool takes them.
#[derive(Default)]
pub(crate) struct Depot {
    parcels: Mutex<Vec<Parcel>>,
    /// Descriptors in them. Relaxed: whoever misses a parcel makes do with a slab.
    descriptors: AtomicUsize,
}

impl Depot {
    /// `descriptors` have been made: room for all of them, so that `put` never allocates. A parcel may be short where a
    /// pool was closed or its mode was changed; those few may.
    pub(crate) fn reserve(&self, descriptors: usize, stats: &Stats) {
        let mut parcels = lock_counted(&self.parcels, stats);
        let wanted = descriptors / PARCEL_LEN + 8;
        let missing = wanted.saturating_sub(parcels.len());
        parcels.reserve(missing);
    }

    /// Leaves a parcel, of the pool that counts in `stats`.
    pub(crate) fn put(&self, parcel: Parcel, stats: &Stats) {
        self.descriptors.fetch_add(parcel.len(), Ordering::Relaxed);
        lock_counted(&self.parcels, stats).push(parcel);
    }

    /// The parcel that was left last, for the pool that counts in `stats`.
    pub(crate) fn take(&self, stats: &Stats) -> Option<Parcel> {
        if self.descriptors.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let parcel = lock_counted(&self.parcels, stats).pop()?;
        self.descriptors.fetch_sub(parcel.len(), Ordering::Relaxed);
        Some(parcel)
    }

    /// Everything, to be looked through by a domain that is trimmed.
    pub(super) fn take_all(&self) -> Vec<Parcel> {
        let mut parcels = lock(&self.parcels);
        let taken: Vec<Parcel> = parcels.drain(..).collect();
        let descriptors: usize = taken.iter().map(Parcel::len).sum();
        self.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
        taken
    }

    /// A parcel of what [`take_all`](Self::take_all) took stays.
    pub(super) fn put_back(&self, parcel: Parcel) {
        self.descriptors.fetch_add(parcel.len(), Ordering::Relaxed);
        lock(&self.parcels).push(parcel);
    }

    /// Descriptors that wait here. Exact when nobody is in `put` or `take`.
    pub(crate) fn descriptors(&self) -> usize {
        self.descriptors.load(Ordering::Relaxed)
    }

    /// The end of a complete domain.
    pub(crate) fn destroy(&self) {
        #[cfg(loom)]
        for parcel in lock(&self.parcels).drain(..) {
            parcel.unpack(crate::packet::FreeDescriptor::destroy);
        }
    }
}
