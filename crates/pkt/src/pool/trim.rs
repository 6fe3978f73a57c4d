//! Release of memory that no pool needs to the system.
//!
//! Above: callers that notice that a process has become idle ([`Domain::trim`]). Linux: the
//! shrinker of a slab cache, `__kmem_cache_shrink`.
//!
//! Pools without a thread keep nothing: their descriptors go to the depot, their pages to the
//! domain. A slab can be released if all its descriptors are in the depot, or the domain has all
//! its pages. One call releases half of those slabs, and none while slabs are still being taken, so
//! that a load which comes in waves does not take and release memory for each wave.
//!
//! Lifetime: a slab is released by the owner of every descriptor or page in it, hence no other
//! thread has an address inside ("Lifetime" in pool.rs).
//!
//! Not here: the pools of live threads, which only those threads may access.

use super::{
    Domain, Local,
    depot::Depot,
    domain::State,
    slab::{DESCRIPTORS_PER_SLAB, Slabs},
};
use crate::packet::{FreeDescriptor, PARCEL_LEN, Parcel};
use crate::page::{FreePage, PAGES_PER_SLAB};

impl Domain {
    /// Releases memory that ended threads and past peaks have left unused. For idle moments: it
    /// takes locks and time. Returns true if another call, a moment later, may release more.
    pub fn trim(&self) -> bool {
        let core = self.core();
        let mut state = core.lock();
        let State { slabs, idle, spare_pages, taken_at_trim, descriptors, pages, .. } = &mut *state;
        for local in idle {
            local.give_up(spare_pages);
        }
        let grows = core::mem::replace(taken_at_trim, slabs.taken) != slabs.taken;
        if grows {
            return true;
        }
        let before = spare_pages.len();
        let pages_left = trim_pages(slabs, spare_pages);
        *pages -= before - spare_pages.len();
        let (released, descriptors_left) = trim_descriptors(slabs, core.depot());
        *descriptors -= released;
        pages_left || descriptors_left
    }
}

/// Releases slabs of pages; returns true if further slabs could be released.
fn trim_pages(slabs: &mut Slabs, spare: &mut Vec<FreePage>) -> bool {
    spare.sort_unstable_by_key(FreePage::address);
    let bases = complete(
        spare.iter().filter_map(|page| slabs.pages.used_slab_of(page.address())),
        PAGES_PER_SLAB,
    );
    let release = &bases[..bases.len().div_ceil(2)];
    let mut kept = Vec::with_capacity(spare.len());
    for page in spare.drain(..) {
        let base = slabs.pages.used_slab_of(page.address());
        if base.is_some_and(|base| release.binary_search(&base).is_ok()) {
            page.destroy();
        } else {
            kept.push(page);
        }
    }
    *spare = kept;
    for &base in release {
        // SAFETY: all pages of the slab were in `spare`, as many as it has, and were just given up.
        unsafe { slabs.release_pages(base) };
    }
    release.len() < bases.len()
}

/// Releases slabs of descriptors; returns the number of descriptors released, and whether further
/// slabs could be.
fn trim_descriptors(slabs: &mut Slabs, depot: &Depot) -> (usize, bool) {
    if depot.descriptors() < DESCRIPTORS_PER_SLAB {
        return (0, false);
    }
    let mut free: Vec<FreeDescriptor> = Vec::with_capacity(depot.descriptors());
    for parcel in depot.take_all() {
        parcel.unpack(|descriptor| free.push(descriptor));
    }
    free.sort_unstable_by_key(FreeDescriptor::address);
    let bases = complete(
        free.iter().filter_map(|it| slabs.descriptors.used_slab_of(it.address())),
        DESCRIPTORS_PER_SLAB,
    );
    let release = &bases[..bases.len().div_ceil(2)];
    let mut parcel: Option<Parcel> = None;
    for descriptor in free {
        let base = slabs.descriptors.used_slab_of(descriptor.address());
        if base.is_some_and(|base| release.binary_search(&base).is_ok()) {
            descriptor.destroy();
            continue;
        }
        parcel = match parcel.take() {
            None => Some(Parcel::new(descriptor)),
            Some(mut open) => {
                open.push(descriptor);
                Some(open)
            }
        };
        if let Some(full) = parcel.take_if(|open| open.len() == PARCEL_LEN) {
            depot.put_back(full);
        }
    }
    if let Some(rest) = parcel {
        depot.put_back(rest);
    }
    for &base in release {
        // SAFETY: all descriptors of the slab were in the depot, as many as it has, and were just
        // given up.
        unsafe { slabs.release_descriptors(base) };
    }
    (release.len() * DESCRIPTORS_PER_SLAB, release.len() < bases.len())
}

/// Returns the slabs that occur `per_slab` times in `bases`, which is sorted.
fn complete(bases: impl Iterator<Item = usize>, per_slab: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut last, mut count) = (0, 0);
    for base in bases {
        count = if base == last { count + 1 } else { 1 };
        last = base;
        if count == per_slab {
            found.push(base);
        }
    }
    found
}

impl Local {
    /// Empties a pool without a thread: descriptors go to the depot and pages to the domain, where
    /// any pool can take them.
    fn give_up(&mut self, pages: &mut Vec<FreePage>) {
        self.drain_returns();
        self.drain_pages();
        while !self.free.is_empty() {
            self.flush();
        }
        self.free = Vec::new();
        self.pages_made -= self.pages.len();
        pages.append(&mut self.pages);
        self.pages = Vec::new();
        self.begin_small();
    }
}
