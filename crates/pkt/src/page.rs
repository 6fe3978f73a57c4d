//! Pages of payload memory, handed out as immutable, reference-counted slices.
//!
//! Above: packet.rs (frags), pool.rs (recycling). Linux: `skb_frag_t`, page_frag_refill, page_pool.
//!
//! ```text
//!  slab (256 KiB, aligned)
//!  ┌─────────┬──────────────────┬─────────────────┬─ … ─┬─────────────────┐
//!  │headers×8│ page 0           │ page 1          │     │ page 7          │   a page: 32 KiB
//!  └─────────┴──────────────────┴─────────────────┴─ … ─┴─────────────────┘
//!
//!  a page being carved      ┌ slice ┬ slice ┬ slice ┬── not yet written ──┐
//!  by one `Cursor`          └───────┴───────┴───────┴─────────────────────┘
//!                                                   ^ position
//! ```
//!
//! A page is owned by exactly one of: a free list (`FreePage`), a `Cursor` together with the slices
//! carved so far, or its slices alone. The headers lie apart from the data, so that reading payload
//! never shares a cache line with a count. The header of a data address is found by arithmetic.
//!
//! Biased count: opening a page sets `refs` to [`BIAS`], which no number of dropped slices can use
//! up. Carving counts in the cursor, without an atomic operation. Retiring the cursor replaces the
//! bias by the number of slices carved; this one atomic makes `refs` the number of live slices. The
//! thread that takes `refs` to zero owns the page.
//!
//! Bytes are written once, before the slice over them exists, and only read afterwards. The
//! exception is the only slice over a lent page (pages.rs), which may write its bytes again.
//!
//! Not here: where free pages are kept and when slabs are taken (pool.rs).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use sync::{Link, Linked};

use crate::pages::LentReturns;
use crate::pool::HomeRef;
use crate::shim::{Arc, AtomicI64, Track};

mod cursor;
mod slice;

pub(crate) use cursor::Cursor;
pub(crate) use slice::Slice;

/// Bytes of one page. 32 KiB as Linux's page frag: a 64 KiB superframe needs three slices, far
/// below `FRAGS_MAX`, and the one atomic of a retirement is spread over twenty full segments.
pub(crate) const PAGE_BYTES: usize = if cfg!(loom) { 4096 } else { 32 * 1024 };
/// Pages in one slab. Fewer in loom models, where each page is state to explore, and in builds for
/// fuzzing, where each run takes a slab from the address sanitizer, which marks every byte of it.
pub(crate) const PAGES_PER_SLAB: usize = if cfg!(any(loom, fuzzing)) { 2 } else { 8 };
/// Bytes of one slab of pages, which is also its alignment.
pub(crate) const PAGE_SLAB_BYTES: usize = PAGE_BYTES * PAGES_PER_SLAB;
/// Bytes of the headers, which lie at the start of the slab and shorten its first page.
pub(crate) const HEADERS_BYTES: usize = PAGES_PER_SLAB * size_of::<PageHeader>();

/// Value of `refs` while a cursor carves: no number of slices dropped by other cores can lower it
/// to zero.
const BIAS: i64 = 1 << 62;

const _: () = assert!(PAGE_SLAB_BYTES.is_power_of_two() && PAGE_BYTES.is_power_of_two());
const _: () = assert!(HEADERS_BYTES < PAGE_BYTES / 4);
#[cfg(not(loom))]
const _: () = assert!(size_of::<PageHeader>() == 64);

/// State of one page, on a cache line of its own: every core that drops a slice writes it.
#[repr(C, align(64))]
pub(crate) struct PageHeader {
    link: Link,
    /// Live slices, plus [`BIAS`] minus the cursor's own count while a cursor carves. Lowered with
    /// Release; the thread that reaches zero fences with Acquire, so that all reads of the data
    /// come before its reuse.
    refs: AtomicI64,
    home: HomeRef,
    /// List that receives the page instead of its home pool once no slice is left: null, or an
    /// `Arc<LentReturns>` in raw form. Written only by the exclusive owner of the page; atomic
    /// because other threads read the header meanwhile. Relaxed: `refs` orders it.
    lent_returns: AtomicPtr<LentReturns>,
    /// Index of the page in the `Pages` that lent it.
    place: AtomicU32,
    track: Track,
}

/// Address of a page, without ownership: `FreePage`, `Cursor` and `Slice` own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Page(NonNull<PageHeader>);

impl Page {
    /// Returns the page that contains the address `data`.
    #[inline]
    fn of(data: NonNull<u8>) -> Self {
        let address = data.as_ptr().addr();
        let slab = address & !(PAGE_SLAB_BYTES - 1);
        let index = (address % PAGE_SLAB_BYTES) / PAGE_BYTES;
        let header = slab + index * size_of::<PageHeader>();
        // `data` was derived from the pointer to the whole slab and keeps its provenance.
        let pointer = data.as_ptr().with_addr(header).cast::<PageHeader>();
        // SAFETY: a slab does not start at address zero.
        Self(unsafe { NonNull::new_unchecked(pointer) })
    }

    /// Returns whether two addresses lie in the same page. A slab is aligned to its size, hence
    /// every page is aligned to its own.
    #[inline]
    fn is_same(one: NonNull<u8>, other: NonNull<u8>) -> bool {
        (one.as_ptr().addr() ^ other.as_ptr().addr()) < PAGE_BYTES
    }

    #[inline]
    fn header(&self) -> &PageHeader {
        // SAFETY: headers are initialized with their slab and only accessed through shared
        // references from then on, and the slab outlives every owner of one of its pages
        // ("Lifetime" in pool.rs).
        unsafe { self.0.as_ref() }
    }

    fn index(self) -> usize {
        (self.0.as_ptr().addr() % PAGE_SLAB_BYTES) / size_of::<PageHeader>()
    }

    /// Returns the start and the length of the page's data.
    fn data(self) -> (NonNull<u8>, usize) {
        let index = self.index();
        let start = if index == 0 { HEADERS_BYTES } else { index * PAGE_BYTES };
        let slab = self.0.as_ptr().addr() & !(PAGE_SLAB_BYTES - 1);
        let pointer = self.0.as_ptr().cast::<u8>().with_addr(slab + start);
        // SAFETY: the pointer is inside the slab, which does not start at address zero.
        (unsafe { NonNull::new_unchecked(pointer) }, (index + 1) * PAGE_BYTES - start)
    }
}

/// A page without slices and without a cursor: exclusive ownership of header and data.
pub(crate) struct FreePage(Page);

// SAFETY: a free page is exclusive ownership of plain memory, which any thread may hold.
unsafe impl Send for FreePage {}

impl FreePage {
    /// Initializes the header of page `index` of a new slab.
    ///
    /// # Safety
    ///
    /// `slab` points to `PAGE_SLAB_BYTES` zeroed bytes, aligned to their number, with provenance
    /// over all of them, that stay allocated as long as "Lifetime" in pool.rs demands. `index` is
    /// below `PAGES_PER_SLAB`, and the page has no other owner.
    pub(crate) unsafe fn init(slab: NonNull<u8>, index: usize, home: HomeRef) -> Self {
        debug_assert!(index < PAGES_PER_SLAB);
        // SAFETY: the headers lie inside the slab (see `HEADERS_BYTES`), which is aligned for them.
        let header = unsafe { slab.cast::<PageHeader>().add(index) };
        // SAFETY: in bounds and aligned as above, and owned by the caller.
        unsafe {
            header.write(PageHeader {
                link: Link::new(),
                refs: AtomicI64::new(0),
                home,
                lent_returns: AtomicPtr::new(core::ptr::null_mut()),
                place: AtomicU32::new(0),
                track: Track::new(),
            });
        }
        Self(Page(header))
    }

    /// Gives the page up, and drops the objects of loom models in its header.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        // SAFETY: initialized by `init`, exclusively owned by `self`, and never used again.
        unsafe {
            self.0.0.drop_in_place();
        }
    }

    /// Returns the address of the header. All addresses of one slab lie between two multiples of
    /// the slab's size.
    pub(crate) fn address(&self) -> usize {
        self.0.0.as_ptr().addr()
    }

    /// Makes the page belong to `home`.
    pub(crate) fn set_home(&mut self, home: HomeRef) {
        // SAFETY: `self` owns the free page exclusively, and no other thread reads the field: a
        // thread that drops the last slice of a page does not read its header afterwards.
        unsafe { (&raw mut (*self.0.0.as_ptr()).home).write(home) };
    }

    /// Returns the home of the page.
    pub(crate) fn home(&self) -> HomeRef {
        self.0.header().home
    }

    /// Returns the page to its home pool.
    pub(crate) fn go_home(self) {
        self.home().return_page(self);
    }

    /// Returns the page's index in the `Pages` that lent it.
    pub(crate) fn place(&self) -> u32 {
        self.0.header().place.load(Ordering::Relaxed)
    }

    /// Returns a lent page to the list of its lender, or gives any other page back to the caller.
    fn unless_lent(self) -> Option<Self> {
        let lent_returns = self.0.header().lent_returns.load(Ordering::Relaxed);
        if lent_returns.is_null() {
            return Some(self);
        }
        self.0.header().lent_returns.store(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `Slice::lend` stored the pointer of an `Arc`, and no other thread has taken it
        // since: it was not null.
        let lent_returns = unsafe { Arc::from_raw(lent_returns.cast_const()) };
        lent_returns.put(self);
        None
    }
}

// SAFETY: a shared reference reads only the header's constant and atomic fields.
unsafe impl Sync for FreePage {}

// SAFETY: exactly one `FreePage` owns a free page, and its header, `Link` included, lies at a fixed
// address in the slab. The pointer covers the whole header (and slab), of which `link` is the first
// field.
unsafe impl Linked for FreePage {
    fn into_link(self) -> NonNull<Link> {
        self.0.0.cast()
    }

    unsafe fn from_link(link: NonNull<Link>) -> Self {
        Self(Page(link.cast()))
    }
}

const _: () = assert!(core::mem::offset_of!(PageHeader, link) == 0);

/// Converts a length inside one page.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "lengths inside a page are at most PAGE_BYTES")]
fn narrow(len: usize) -> u32 {
    debug_assert!(len <= PAGE_BYTES);
    len as u32
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
