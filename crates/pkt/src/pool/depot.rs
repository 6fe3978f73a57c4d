//! The depot: full magazines give descriptors to it and empty magazines take them, one parcel at a
//! time.
//!
//! Above: local.rs. Linux: the shared array of a slab cache (`array_cache` of a node).
//!
//! A core that only allocates and a core that only frees exchange descriptors here, once per
//! parcel: one lock for thirty-three packets, held for a push or a pop.
//!
//! Not here: memory from the system (domain.rs).

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{
    home::Stats,
    lock::{lock, lock_counted},
};
use crate::packet::{PARCEL_LEN, Parcel};
use crate::shim::Mutex;

/// Not loom's `Arc`: where a model leaks memory on purpose, the depot is leaked too.
pub(crate) type DepotRef = std::sync::Arc<Depot>;

/// Parcels of free descriptors of one domain, which belong to no pool until a pool takes them.
#[derive(Default)]
pub(crate) struct Depot {
    parcels: Mutex<Vec<Parcel>>,
    /// Number of descriptors in the parcels. Relaxed: a pool that misses a parcel takes a share of
    /// a slab.
    descriptors: AtomicUsize,
}

impl Depot {
    /// Reserves room for `descriptors`, the number the domain has made, so that `put` never
    /// allocates. Parcels may be short where a pool was closed or its mode was changed; a margin
    /// covers them.
    pub(crate) fn reserve(&self, descriptors: usize, stats: &Stats) {
        let mut parcels = lock_counted(&self.parcels, stats);
        let wanted = descriptors / PARCEL_LEN + 8;
        let missing = wanted.saturating_sub(parcels.len());
        parcels.reserve(missing);
    }

    /// Adds a parcel, for the pool that counts in `stats`.
    pub(crate) fn put(&self, parcel: Parcel, stats: &Stats) {
        self.descriptors.fetch_add(parcel.len(), Ordering::Relaxed);
        lock_counted(&self.parcels, stats).push(parcel);
    }

    /// Takes the parcel added last, for the pool that counts in `stats`.
    pub(crate) fn take(&self, stats: &Stats) -> Option<Parcel> {
        if self.descriptors.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let parcel = lock_counted(&self.parcels, stats).pop()?;
        self.descriptors.fetch_sub(parcel.len(), Ordering::Relaxed);
        Some(parcel)
    }

    /// Takes all parcels, for the trim of a domain.
    pub(super) fn take_all(&self) -> Vec<Parcel> {
        let mut parcels = lock(&self.parcels);
        let taken: Vec<Parcel> = parcels.drain(..).collect();
        let descriptors: usize = taken.iter().map(Parcel::len).sum();
        self.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
        taken
    }

    /// Puts a parcel of [`take_all`](Self::take_all) back.
    pub(super) fn put_back(&self, parcel: Parcel) {
        self.descriptors.fetch_add(parcel.len(), Ordering::Relaxed);
        lock(&self.parcels).push(parcel);
    }

    /// Returns the number of descriptors in the depot. Exact when no thread is in `put` or `take`.
    pub(crate) fn descriptors(&self) -> usize {
        self.descriptors.load(Ordering::Relaxed)
    }

    /// Ends the depot of a domain whose memory has all been returned.
    pub(crate) fn destroy(&self) {
        #[cfg(loom)]
        for parcel in lock(&self.parcels).drain(..) {
            parcel.unpack(crate::packet::FreeDescriptor::destroy);
        }
    }
}
