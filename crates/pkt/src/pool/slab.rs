//! Slabs: memory as the system gave it, and the part of the newest slabs that no pool has had yet.
//!
//! Above: domain.rs, under its lock. Linux: the pages of a slab cache's node.
//!
//! Pools share slabs. A pool that grows takes a few descriptors or pages at first and doubles the
//! number each time, up to a whole slab, so that a thread which sends little holds little memory.
//!
//! Not here: the choice of slabs to release (trim.rs).

use core::fmt;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use crate::packet::{DESCRIPTOR_BYTES, Descriptor, FreeDescriptor};
use crate::page::{FreePage, PAGE_BYTES, PAGE_SLAB_BYTES, PAGES_PER_SLAB};
use crate::pool::home::HomeRef;

/// Bytes of a slab of descriptors.
pub(super) const DESCRIPTOR_SLAB_BYTES: usize =
    if cfg!(loom) { 4 * DESCRIPTOR_BYTES } else { 64 * 1024 };
/// Descriptors in one slab: 93; four in loom models, where each is state to explore.
pub(super) const DESCRIPTORS_PER_SLAB: usize = DESCRIPTOR_SLAB_BYTES / DESCRIPTOR_BYTES;

/// Descriptors that a pool takes when it grows for the first time: a request, its answer and their
/// clones. A whole slab in loom models.
pub(super) const DESCRIPTORS_FIRST: usize = if cfg!(loom) { DESCRIPTORS_PER_SLAB } else { 8 };
/// Pages that a pool takes when it grows for the first time. A whole slab in loom models.
pub(super) const PAGES_FIRST: usize = if cfg!(loom) { PAGES_PER_SLAB } else { 1 };

const _: () = assert!(PAGES_PER_SLAB > 1 && DESCRIPTORS_PER_SLAB > 1);

/// Source that a domain takes slabs from and returns them to.
///
/// # Safety
///
/// [`take`](Self::take) returns memory that is valid for reads and writes, aligned and sized by the
/// layout, and not used otherwise until it is given back. The memory is zeroed unless
/// [`is_zeroed`](Self::is_zeroed) returns false.
pub unsafe trait SlabSource: Send + Sync {
    /// Returns memory of this layout, 64 or 256 KiB, or `None` if there is none. Bytes that are
    /// never touched should cost no physical memory.
    fn take(&self, layout: Layout) -> Option<NonNull<u8>>;

    /// Returns whether [`take`](Self::take) always returns zeroed memory. Without zeroed memory,
    /// the domain clears each descriptor and page when it first gives it to a pool, so that memory
    /// which no pool uses is never touched.
    fn is_zeroed(&self) -> bool {
        true
    }

    /// Returns memory to the system.
    ///
    /// # Safety
    ///
    /// `memory` came from [`take`](Self::take) of the same source with this layout, and no thread
    /// uses it any more.
    unsafe fn give_back(&self, memory: NonNull<u8>, layout: Layout);
}

/// Slabs from the global allocator, for simulations and tests, whose domains are small and
/// short-lived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the allocator gives memory of the layout, exclusively, until `dealloc`; `is_zeroed`
// returns false. `alloc_zeroed` would write all of a slab, because the alignment of pages is beyond
// that of calloc(3).
unsafe impl SlabSource for Heap {
    fn take(&self, layout: Layout) -> Option<NonNull<u8>> {
        assert!(layout.size() > 0);
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { alloc(layout) })
    }

    fn is_zeroed(&self) -> bool {
        false
    }

    unsafe fn give_back(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: allocated with this layout in `take`, by the caller's promise.
        unsafe { dealloc(memory.as_ptr(), layout) };
    }
}

/// All slabs of one kind, by address, and the unused rest of the newest one.
#[derive(Default)]
pub(super) struct Kind {
    slabs: BTreeMap<usize, Slab>,
    /// The newest slab, while part of it was never given to a pool.
    fresh: Option<Fresh>,
}

#[derive(Clone, Copy)]
struct Slab(NonNull<u8>);

// SAFETY: the address is dereferenced only under the domain's lock, or by the owners of the objects
// in the slab.
unsafe impl Send for Slab {}

#[derive(Clone, Copy)]
struct Fresh {
    slab: Slab,
    /// Number of the slab's objects that were given to pools.
    used: usize,
}

impl Kind {
    pub(super) fn len(&self) -> usize {
        self.slabs.len()
    }

    /// Returns the addresses of the slabs.
    pub(super) fn addresses(&self) -> impl Iterator<Item = usize> {
        self.slabs.keys().copied()
    }

    /// Returns the slab that contains `address`, unless part of it was never given to a pool.
    pub(super) fn used_slab_of(&self, address: usize) -> Option<usize> {
        let (&base, _) = self.slabs.range(..=address).next_back()?;
        let is_fresh = self.fresh.is_some_and(|fresh| fresh.slab.0.as_ptr().addr() == base);
        (!is_fresh).then_some(base)
    }

    /// Takes up to `wanted` of the `per_slab` objects of the newest slab: returns the slab, the
    /// first object's index, and the count.
    fn share(&mut self, wanted: usize, per_slab: usize) -> Option<(NonNull<u8>, usize, usize)> {
        let fresh = self.fresh.as_mut()?;
        let (first, count) = (fresh.used, wanted.min(per_slab - fresh.used));
        fresh.used += count;
        let slab = fresh.slab.0;
        if fresh.used == per_slab {
            self.fresh = None;
        }
        Some((slab, first, count))
    }
}

/// All slabs of a domain.
pub(super) struct Slabs {
    source: &'static dyn SlabSource,
    bytes_max: usize,
    /// Bytes taken from the system and not returned.
    pub(super) bytes: usize,
    /// Number of slabs taken so far, which tells a growing domain from one that does not grow.
    pub(super) taken: u64,
    pub(super) descriptors: Kind,
    pub(super) pages: Kind,
}

/// Result of taking objects for a pool: their number, and whether a slab was taken from the system
/// for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) count: usize,
    pub(super) is_new_slab: bool,
}

const DESCRIPTOR_LAYOUT: Layout =
    match Layout::from_size_align(DESCRIPTOR_SLAB_BYTES, align_of::<Descriptor>()) {
        Ok(layout) => layout,
        Err(_) => panic!("the size and alignment of a slab are constants"),
    };

const PAGE_LAYOUT: Layout = match Layout::from_size_align(PAGE_SLAB_BYTES, PAGE_SLAB_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("the size and alignment of a slab are constants"),
};

impl Slabs {
    pub(super) fn new(bytes_max: usize, source: &'static dyn SlabSource) -> Self {
        let (descriptors, pages) = (Kind::default(), Kind::default());
        Self { source, bytes_max, bytes: 0, taken: 0, descriptors, pages }
    }

    /// Passes up to `wanted` fresh descriptors for `home` to `put`. `None` at the limit.
    pub(super) fn take_descriptors(
        &mut self,
        wanted: usize,
        home: HomeRef,
        mut put: impl FnMut(FreeDescriptor),
    ) -> Option<Share> {
        let is_new_slab = self.descriptors.fresh.is_none();
        if is_new_slab {
            let slab = self.take(DESCRIPTOR_LAYOUT)?;
            self.descriptors.add(slab);
        }
        let is_zeroed = self.source.is_zeroed();
        let (slab, first, count) = self.descriptors.share(wanted, DESCRIPTORS_PER_SLAB)?;
        for index in first..first + count {
            // SAFETY: `index` is below `DESCRIPTORS_PER_SLAB`, the number of descriptors that fit
            // into the slab.
            let memory = unsafe { slab.cast::<Descriptor>().add(index) };
            if !is_zeroed {
                // SAFETY: inside the slab, and exclusive: `share` gave it to no pool before.
                unsafe { memory.write_bytes(0, 1) };
            }
            // SAFETY: zeroed above or by the source's promise, aligned by the source's promise,
            // given to no pool before by `share`, and released only by `release` and `destroy`.
            put(unsafe { FreeDescriptor::init(memory, home) });
        }
        Some(Share { count, is_new_slab })
    }

    /// Passes up to `wanted` fresh pages for `home` to `put`. `None` at the limit.
    pub(super) fn take_pages(
        &mut self,
        wanted: usize,
        home: HomeRef,
        mut put: impl FnMut(FreePage),
    ) -> Option<Share> {
        let is_new_slab = self.pages.fresh.is_none();
        if is_new_slab {
            let slab = self.take(PAGE_LAYOUT)?;
            self.pages.add(slab);
        }
        let is_zeroed = self.source.is_zeroed();
        let (slab, first, count) = self.pages.share(wanted, PAGES_PER_SLAB)?;
        for index in first..first + count {
            if !is_zeroed {
                // SAFETY: page `index` lies inside the slab.
                let page = unsafe { slab.add(index * PAGE_BYTES) };
                // SAFETY: `PAGE_BYTES` bytes from there are inside the slab, and exclusive: `share`
                // gives pages in order, so that the first one, with all headers, is cleared before
                // any header is written.
                unsafe { page.write_bytes(0, PAGE_BYTES) };
            }
            // SAFETY: the slab is aligned to its size by its layout, and this page of it is zeroed;
            // `index` is one of its pages, given to no pool before by `share`, and released only by
            // `release` and `destroy`.
            put(unsafe { FreePage::init(slab, index, home) });
        }
        Some(Share { count, is_new_slab })
    }

    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let total = self.bytes.checked_add(layout.size())?;
        if total > self.bytes_max {
            return None;
        }
        let memory = self.source.take(layout)?;
        self.bytes = total;
        self.taken += 1;
        Some(memory)
    }

    /// Returns a slab of descriptors to the system.
    ///
    /// # Safety
    ///
    /// `base` is a slab's address, and the caller has given up every descriptor in it.
    pub(super) unsafe fn release_descriptors(&mut self, base: usize) {
        if let Some(Slab(memory)) = self.descriptors.slabs.remove(&base) {
            self.bytes -= DESCRIPTOR_LAYOUT.size();
            // SAFETY: taken with this layout; by the caller's promise no thread has an address
            // inside.
            unsafe { self.source.give_back(memory, DESCRIPTOR_LAYOUT) };
        }
    }

    /// Returns a slab of pages to the system.
    ///
    /// # Safety
    ///
    /// `base` is a slab's address, and the caller has given up every page in it.
    pub(super) unsafe fn release_pages(&mut self, base: usize) {
        if let Some(Slab(memory)) = self.pages.slabs.remove(&base) {
            self.bytes -= PAGE_LAYOUT.size();
            // SAFETY: taken with this layout; by the caller's promise no thread has an address
            // inside.
            unsafe { self.source.give_back(memory, PAGE_LAYOUT) };
        }
    }

    /// Returns all slabs to the system.
    ///
    /// # Safety
    ///
    /// No descriptor and no page of these slabs is used any more.
    pub(super) unsafe fn destroy(&mut self) {
        let bases = |kind: &Kind| kind.slabs.keys().copied().collect::<Vec<_>>();
        for base in bases(&self.descriptors) {
            // SAFETY: by the caller's promise.
            unsafe { self.release_descriptors(base) };
        }
        for base in bases(&self.pages) {
            // SAFETY: by the caller's promise.
            unsafe { self.release_pages(base) };
        }
    }
}

impl Kind {
    fn add(&mut self, memory: NonNull<u8>) {
        let slab = Slab(memory);
        self.slabs.insert(memory.as_ptr().addr(), slab);
        self.fresh = Some(Fresh { slab, used: 0 });
    }
}

impl fmt::Debug for Slabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slabs").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
