//! Slabs: memory as the system gave it, and the part of the newest ones that no pool has had yet.
//!
//! Above: domain.rs, under its lock. Linux: the pages of a slab cache's node.
//!
//! Pools share slabs. A pool that grows takes a few descriptors or pages at first and twice as many each time, up to a
//! whole slab, so that a thread which sends little holds little.
//!
//! Not here: which slabs are released (trim.rs).

use core::fmt;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use crate::packet::{DESCRIPTOR_BYTES, Descriptor, FreeDescriptor};
use crate::page::{FreePage, PAGE_BYTES, PAGE_SLAB_BYTES, PAGES_PER_SLAB};
use crate::pool::home::HomeRef;

/// Bytes of a slab of descriptors.
const DESCRIPTOR_SLAB_BYTES: usize = if cfg!(loom) { 4 * DESCRIPTOR_BYTES } else { 64 * 1024 };
/// Descriptors in one slab: 93; four in models, where each is a state to explore.
pub(super) const DESCRIPTORS_PER_SLAB: usize = DESCRIPTOR_SLAB_BYTES / DESCRIPTOR_BYTES;

/// Descriptors that a pool takes when it grows for the first time: a request, its answer and their clones. A whole slab in
/// models.
pub(super) const DESCRIPTORS_FIRST: usize = if cfg!(loom) { DESCRIPTORS_PER_SLAB } else { 8 };
/// Pages that a pool takes when it grows for the first time. A whole slab in models.
pub(super) const PAGES_FIRST: usize = if cfg!(loom) { PAGES_PER_SLAB } else { 1 };

const _: () = assert!(PAGES_PER_SLAB > 1 && DESCRIPTORS_PER_SLAB > 1);

/// Where a domain takes slabs from, and where it returns them.
///
/// # Safety
///
/// [`take`](Self::take) returns memory that is valid for reads and writes, aligned and sized by the layout, and used by nobody
/// else until it is given back. The memory is zeroed unless [`is_zeroed`](Self::is_zeroed) says otherwise.
pub unsafe trait SlabSource: Send + Sync {
    /// Memory of this layout, 64 or 256 KiB. `None` when there is none. Bytes that are never touched should cost nothing.
    fn take(&self, layout: Layout) -> Option<NonNull<u8>>;

    /// Whether [`take`](Self::take) returns zeroed memory, always. The domain clears each descriptor and page of a source
    /// without zeroed memory when it first gives it to a pool, so that memory which no pool uses is never touched.
    fn is_zeroed(&self) -> bool {
        true
    }

    /// Returns memory to the system.
    ///
    /// # Safety
    ///
    /// `memory` came from [`take`](Self::take) of the same source with this layout, and nobody uses it any more.
    unsafe fn give_back(&self, memory: NonNull<u8>, layout: Layout);
}

/// Slabs from the global allocator: for simulations and tests, whose domains are small and short-lived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the allocator gives memory of the layout, exclusively, until `dealloc`; `is_zeroed` says that the memory may not be
// zeroed. `alloc_zeroed` would write all of a slab, because the alignment of pages is beyond that of calloc(3).
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

/// One kind of slab: all that exist, by address, and the newest one's unused rest.
#[derive(Default)]
pub(super) struct Kind {
    slabs: BTreeMap<usize, Slab>,
    /// The newest slab, while part of it was never given to a pool.
    fresh: Option<Fresh>,
}

#[derive(Clone, Copy)]
struct Slab(NonNull<u8>);

// SAFETY: an address that is dereferenced only under the domain's lock, or by the owners of what lies there.
unsafe impl Send for Slab {}

#[derive(Clone, Copy)]
struct Fresh {
    slab: Slab,
    /// Objects of the slab that pools have had.
    used: usize,
}

impl Kind {
    pub(super) fn len(&self) -> usize {
        self.slabs.len()
    }

    /// The slab that `address` lies in, unless part of it was never given to a pool.
    pub(super) fn used_slab_of(&self, address: usize) -> Option<usize> {
        let (&base, _) = self.slabs.range(..=address).next_back()?;
        let is_fresh = self.fresh.is_some_and(|fresh| fresh.slab.0.as_ptr().addr() == base);
        (!is_fresh).then_some(base)
    }

    /// Up to `wanted` of the `per_slab` objects of the newest slab: the first one's index, and how many.
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
    /// Slabs taken so far: tells a domain that still grows from one that does not.
    pub(super) taken: u64,
    pub(super) descriptors: Kind,
    pub(super) pages: Kind,
}

/// What a pool got: how many objects, and whether a slab was taken from the system for them.
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

    /// Up to `wanted` fresh descriptors for `home` go to `put`. `None` at the limit.
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
            // SAFETY: `index` is below `DESCRIPTORS_PER_SLAB`, which many fit into the slab.
            let memory = unsafe { slab.cast::<Descriptor>().add(index) };
            if !is_zeroed {
                // SAFETY: inside the slab, and nobody else's: given to nobody before by `share`.
                unsafe { memory.write_bytes(0, 1) };
            }
            // SAFETY: zeroed above or by the source's promise, aligned by the source's promise, given to nobody before by
            // `share`, and released only by `release` and `destroy`.
            put(unsafe { FreeDescriptor::init(memory, home) });
        }
        Some(Share { count, is_new_slab })
    }

    /// Up to `wanted` fresh pages for `home` go to `put`. `None` at the limit.
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
                // SAFETY: `PAGE_BYTES` bytes from there are inside the slab, and nobody else's: `share` gives pages in their
                // order, so that the first one, with all headers, is cleared before any header is written.
                unsafe { page.write_bytes(0, PAGE_BYTES) };
            }
            // SAFETY: a slab whose page is zeroed, aligned to its size by its layout; `index` is one of its pages, given to nobody
            // before by `share`, and released only by `release` and `destroy`.
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
            // SAFETY: taken with this layout; by the caller's promise nobody has an address inside.
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
            // SAFETY: taken with this layout; by the caller's promise nobody has an address inside.
            unsafe { self.source.give_back(memory, PAGE_LAYOUT) };
        }
    }

    /// Returns everything.
    ///
    /// # Safety
    ///
    /// No descriptor and no page of these slabs is used any more.
    pub(super) unsafe fn destroy(&mut self) {
        let bases = |kind: &Kind| kind.slabs.keys().copied().collect::<Vec<_>>();
        for base in bases(&self.descriptors) {
            // SAFETY: by the caller.
            unsafe { self.release_descriptors(base) };
        }
        for base in bases(&self.pages) {
            // SAFETY: by the caller.
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
