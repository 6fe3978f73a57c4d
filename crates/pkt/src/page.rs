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
//! A page belongs to one of: a free list (`FreePage`), a `Cursor` plus the slices carved so far, or only its
//! slices. The headers lie apart from the data so that reading payload never shares a cache line with a
//! count, and are found from a data address by arithmetic.
//!
//! Biased count: opening a page sets `refs` to [`BIAS`], which no number of drops can use up. Carving counts
//! in the cursor, without an atomic. Retiring the cursor replaces the bias by what was carved: the one
//! atomic that makes `refs` the number of live slices. Whoever takes `refs` to zero owns the page.
//!
//! Bytes are written once, before the slice over them exists, and only read afterwards; the only slice over lent pages
//! (pages.rs) may write them again.
//!
//! Not here: where free pages are kept and when slabs are taken (pool.rs).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use sync::{Link, Linked};

use crate::pages::Shelf;
use crate::pool::HomeRef;
use crate::shim::{Arc, AtomicI64, Track};

mod cursor;
mod slice;

pub(crate) use cursor::Cursor;
pub(crate) use slice::Slice;

/// Bytes of one page. 32 KiB as Linux's page frag: a 64 KiB superframe needs three slices, far below
/// `FRAGS_MAX`, and one retirement atomic is spread over twenty full segments.
pub(crate) const PAGE_BYTES: usize = if cfg!(loom) { 4096 } else { 32 * 1024 };
/// Pages in one slab. Fewer in models, where each is a state to explore, and in builds for fuzzing, where each run takes a slab from
/// the address sanitizer, which marks every byte of it.
pub(crate) const PAGES_PER_SLAB: usize = if cfg!(any(loom, fuzzing)) { 2 } else { 8 };
/// Bytes, and alignment, of one slab of pages.
pub(crate) const PAGE_SLAB_BYTES: usize = PAGE_BYTES * PAGES_PER_SLAB;
/// The headers lie at the start of the slab and shorten its first page.
pub(crate) const HEADERS_BYTES: usize = PAGES_PER_SLAB * size_of::<PageHeader>();

/// Value of `refs` while a cursor carves: out of reach of any number of remote drops.
const BIAS: i64 = 1 << 62;

const _: () = assert!(PAGE_SLAB_BYTES.is_power_of_two() && PAGE_BYTES.is_power_of_two());
const _: () = assert!(HEADERS_BYTES < PAGE_BYTES / 4);
#[cfg(not(loom))]
const _: () = assert!(size_of::<PageHeader>() == 64);

/// Bookkeeping of one page, on a cache line of its own: written by every core that drops a slice.
#[repr(C, align(64))]
pub(crate) struct PageHeader {
    link: Link,
    /// Live slices, plus [`BIAS`] minus the cursor's own count while a cursor carves. Dropped with
    /// Release; whoever reaches zero fences with Acquire, so all reads of the data come before its reuse.
    refs: AtomicI64,
    home: HomeRef,
    /// Where the page goes when nobody holds it, instead of home: null, or an `Arc<Shelf>` in raw form. Written by whoever
    /// has the page to himself; atomic because others look at the header meanwhile. Relaxed: `refs` orders it.
    shelf: AtomicPtr<Shelf>,
    /// Which of the shelf's pages it is.
    place: AtomicU32,
    track: Track,
}

/// Address of a page. A name without ownership: `FreePage`, `Cursor` and `Slice` own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Page(NonNull<PageHeader>);

impl Page {
    /// The page that `data`, an address inside its data, belongs to.
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

    /// Whether two addresses lie in one page: slabs are aligned to as many bytes as they have, hence pages are, too.
    #[inline]
    fn is_same(one: NonNull<u8>, other: NonNull<u8>) -> bool {
        (one.as_ptr().addr() ^ other.as_ptr().addr()) < PAGE_BYTES
    }

    #[inline]
    fn header(&self) -> &PageHeader {
        // SAFETY: headers are initialised with their slab, are only accessed through shared references
        // from then on, and the slab outlives every owner of one of its pages ("Lifetime" in pool.rs).
        unsafe { self.0.as_ref() }
    }

    fn index(self) -> usize {
        (self.0.as_ptr().addr() % PAGE_SLAB_BYTES) / size_of::<PageHeader>()
    }

    /// Start of the page's data and its length.
    fn data(self) -> (NonNull<u8>, usize) {
        let index = self.index();
        let start = if index == 0 { HEADERS_BYTES } else { index * PAGE_BYTES };
        let slab = self.0.as_ptr().addr() & !(PAGE_SLAB_BYTES - 1);
        let pointer = self.0.as_ptr().cast::<u8>().with_addr(slab + start);
        // SAFETY: inside the slab, which does not start at address zero.
        (unsafe { NonNull::new_unchecked(pointer) }, (index + 1) * PAGE_BYTES - start)
    }
}

/// A page without slices and without a cursor: exclusive ownership of header and data.
pub(crate) struct FreePage(Page);

// SAFETY: a free page is exclusive ownership of plain memory; which thread holds it does not matter.
unsafe impl Send for FreePage {}

impl FreePage {
    /// Initialises the header of page `index` of a new slab.
    ///
    /// # Safety
    ///
    /// `slab` points to `PAGE_SLAB_BYTES` zeroed bytes, aligned to as much, with provenance over all of them, that stay allocated
    /// as long as "Lifetime" in pool.rs demands. `index` is below `PAGES_PER_SLAB`, and the page is owned by nobody else.
    pub(crate) unsafe fn init(slab: NonNull<u8>, index: usize, home: HomeRef) -> Self {
        debug_assert!(index < PAGES_PER_SLAB);
        // SAFETY: the headers lie inside the slab, see `HEADERS_BYTES`, which is aligned for them.
        let header = unsafe { slab.cast::<PageHeader>().add(index) };
        // SAFETY: in bounds and aligned as above, and owned by the caller.
        unsafe {
            header.write(PageHeader {
                link: Link::new(),
                refs: AtomicI64::new(0),
                home,
                shelf: AtomicPtr::new(core::ptr::null_mut()),
                place: AtomicU32::new(0),
                track: Track::new(),
            });
        }
        Self(Page(header))
    }

    /// Gives the page up, with what loom models put into the header.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        // SAFETY: initialised by `init`, exclusively ours, and never used again.
        unsafe {
            self.0.0.drop_in_place();
        }
    }

    /// Where it is: pages of one slab lie between two multiples of the slab's size.
    pub(crate) fn address(&self) -> usize {
        self.0.0.as_ptr().addr()
    }

    /// From now on it belongs to `home`.
    pub(crate) fn set_home(&mut self, home: HomeRef) {
        // SAFETY: a free page is exclusively ours, and nobody else reads the field: whoever gives up the last slice of a page
        // has read nothing behind that.
        unsafe { (&raw mut (*self.0.0.as_ptr()).home).write(home) };
    }

    /// Home of the page.
    pub(crate) fn home(&self) -> HomeRef {
        self.0.header().home
    }

    /// Sends the page home.
    pub(crate) fn go_home(self) {
        self.home().return_page(self);
    }

    /// Which of its shelf's pages it is.
    pub(crate) fn place(&self) -> u32 {
        self.0.header().place.load(Ordering::Relaxed)
    }

    /// Puts a lent page on its shelf; gives any other back.
    fn unless_lent(self) -> Option<Self> {
        let shelf = self.0.header().shelf.load(Ordering::Relaxed);
        if shelf.is_null() {
            return Some(self);
        }
        self.0.header().shelf.store(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `Slice::lend` made the pointer of an `Arc`, and nobody has taken it since: it was still there.
        let shelf = unsafe { Arc::from_raw(shelf.cast_const()) };
        shelf.put(self);
        None
    }
}

// SAFETY: a shared reference reads only the header's constant and atomic fields.
unsafe impl Sync for FreePage {}

// SAFETY: a free page is owned by exactly one `FreePage`, and its header, `Link` included, lies at a fixed
// address in the slab. The pointer is the one to the whole header (and slab), `link` being its first field.
unsafe impl Linked for FreePage {
    fn into_link(self) -> NonNull<Link> {
        self.0.0.cast()
    }

    unsafe fn from_link(link: NonNull<Link>) -> Self {
        Self(Page(link.cast()))
    }
}

const _: () = assert!(core::mem::offset_of!(PageHeader, link) == 0);

/// A length inside one page.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "lengths inside a page are at most PAGE_BYTES")]
fn narrow(len: usize) -> u32 {
    debug_assert!(len <= PAGE_BYTES);
    len as u32
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
