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

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use sync::{Link, Linked};

use crate::pages::Shelf;
use crate::pool::HomeRef;
use crate::shim::{Arc, AtomicI64, Track, fence};

/// Bytes of one page. 32 KiB as Linux's page frag: a 64 KiB superframe needs three slices, far below
/// `FRAGS_MAX`, and one retirement atomic is spread over twenty full segments.
pub(crate) const PAGE_BYTES: usize = if cfg!(loom) { 4096 } else { 32 * 1024 };
/// Pages in one slab. Fewer in models, where each is a state to explore.
pub(crate) const PAGES_PER_SLAB: usize = if cfg!(loom) { 2 } else { 8 };
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
    /// Initialises the headers of a new slab and hands out its pages.
    ///
    /// # Safety
    ///
    /// `slab` points to `PAGE_SLAB_BYTES` zeroed bytes, aligned to as much and owned by nobody else, with
    /// provenance over all of them, that stay allocated as long as "Lifetime" in pool.rs demands.
    pub(crate) unsafe fn from_slab(
        slab: NonNull<u8>,
        home: HomeRef,
    ) -> impl ExactSizeIterator<Item = Self> {
        (0..PAGES_PER_SLAB).map(move |index| {
            let header = slab.cast::<PageHeader>();
            // SAFETY: the headers lie inside the slab, see `HEADERS_BYTES`, which is aligned for them.
            let header = unsafe { header.add(index) };
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
        })
    }

    /// Ends the life of what loom models put into the header.
    #[cfg(loom)]
    pub(crate) fn destroy(self) {
        // SAFETY: initialised by `from_slab`, exclusively ours, and never used again.
        unsafe { self.0.0.drop_in_place() };
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

/// Immutable bytes inside a page, and references on it: one, or more that were taken together or have come together, so that
/// the count, which other cores write too, is touched once for many. Has no destructor: whoever holds it gives it to a
/// `Recycle`, or leaks it.
#[derive(Debug)]
pub(crate) struct Slice {
    data: NonNull<u8>,
    len: u32,
    /// References on the page that end with this slice, at least one.
    refs: u32,
}

// SAFETY: the bytes are read-only while any slice over them lives, and the count is atomic.
unsafe impl Send for Slice {}
// SAFETY: as above; writing wants the slice exclusively.
unsafe impl Sync for Slice {}

impl Slice {
    /// Never zero.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn len_u32(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        let page = Page::of(self.data);
        page.header().track.read();
        // SAFETY: `data..data + len` lies inside the page's initialised data, was written before this slice
        // was made, and is written by nobody until the reference this slice holds is gone.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr(), self.len()) }
    }

    /// Drops the first `count` bytes, which must leave at least one: the address of an empty slice could
    /// lie in the next page. Returns `count`.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) -> u32 {
        assert!(count < self.len());
        // SAFETY: stays inside the slice by the assertion.
        self.data = unsafe { self.data.add(count) };
        self.len -= narrow(count);
        narrow(count)
    }

    /// Keeps the first `len` bytes, at least one. Returns how many were dropped.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) -> u32 {
        assert!(len > 0 && len <= self.len());
        let dropped = self.len - narrow(len);
        self.len = narrow(len);
        dropped
    }

    /// True when `next` begins in the same page where this slice ends.
    #[inline]
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        // SAFETY: one past the end of the slice is in bounds of its slab, or one past it.
        let end = unsafe { self.data.add(self.len()) };
        // The end of a full page has the address of the next page's start.
        end == next.data && Page::is_same(self.data, next.data)
    }

    /// Makes this slice cover `next` too and takes over its references. Returns by how much it grew, or gives `next` back when
    /// it does not follow.
    #[inline]
    pub(crate) fn cover(&mut self, next: Self) -> Result<u32, Self> {
        if !self.is_followed_by(&next) {
            return Err(next);
        }
        self.len += next.len;
        self.refs += next.refs;
        Ok(next.len)
    }

    /// Another slice over the same bytes: one atomic increment.
    #[inline]
    pub(crate) fn share(&self) -> Self {
        // Relaxed: this slice keeps the page alive meanwhile, as in `Arc::clone`.
        Page::of(self.data).header().refs.fetch_add(1, Ordering::Relaxed);
        Self { data: self.data, len: self.len, refs: 1 }
    }

    /// `count` more references, for [`part`](Self::part) to give away: one atomic addition.
    #[inline]
    pub(crate) fn hold(&mut self, count: u32) {
        // Relaxed: as in `share`.
        Page::of(self.data).header().refs.fetch_add(i64::from(count), Ordering::Relaxed);
        self.refs += count;
    }

    /// A slice over `len` of the bytes from `skip` on, with one of the references that were taken for it by `hold`.
    #[inline]
    pub(crate) fn part(&mut self, skip: usize, len: usize) -> Self {
        assert!(
            self.refs > 1 && len > 0 && skip.checked_add(len).is_some_and(|end| end <= self.len())
        );
        self.refs -= 1;
        // SAFETY: stays inside the slice by the assertion.
        Self { data: unsafe { self.data.add(skip) }, len: narrow(len), refs: 1 }
    }

    /// True when this is the only slice of its page, which is not being carved either.
    pub(crate) fn is_unique(&self) -> bool {
        // Acquire: reads through slices that were dropped come before what the caller writes.
        Page::of(self.data).header().refs.load(Ordering::Acquire) == 1
    }

    /// The bytes, to be written. `None` unless this is the only slice of its page.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        Page::of(self.data).header().track.write();
        // SAFETY: `data..data + len` lies inside the page's initialised data. No other slice and no cursor is left that
        // could reach it, and the exclusive borrow of this one keeps it from being shared.
        Some(unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.len()) })
    }

    /// Lets the page go to `shelf` when nobody holds it any more. Only while this is the page's only slice.
    pub(crate) fn lend(&self, shelf: Arc<Shelf>, place: usize) {
        assert!(self.is_unique());
        let page = Page::of(self.data);
        let header = page.header();
        let before = header.shelf.swap(Arc::into_raw(shelf).cast_mut(), Ordering::Relaxed);
        assert!(before.is_null(), "lent twice");
        header.place.store(u32::try_from(place).expect("2^32 pages"), Ordering::Relaxed);
    }

    /// The page goes to a shelf when nobody holds it any more.
    pub(crate) fn is_lent(&self) -> bool {
        let page = Page::of(self.data);
        !page.header().shelf.load(Ordering::Relaxed).is_null()
    }

    /// Gives its references back. Returns the page when they were the last ones and the page was not lent.
    #[inline]
    pub(crate) fn release(self) -> Option<FreePage> {
        let page = Page::of(self.data);
        let refs = &page.header().refs;
        let ours = i64::from(self.refs);
        // Release: our reads of the data come before the reuse by whoever sees zero.
        if refs.fetch_sub(ours, Ordering::Release) != ours {
            return None;
        }
        fence(Ordering::Acquire);
        FreePage(page).unless_lent()
    }
}

/// The one place a page is written from: hands out slices until the page is used up.
///
/// Has no destructor: it ends by `retire`.
pub(crate) struct Cursor {
    page: Page,
    /// Next byte to hand out.
    position: NonNull<u8>,
    /// Bytes left from `position`.
    room: u32,
    /// References made minus references dropped through this cursor. May go below zero when what was counted by the
    /// atomic is dropped here.
    carved: i64,
}

// SAFETY: a cursor is the exclusive right to write behind `position`; the count is atomic.
unsafe impl Send for Cursor {}

impl Cursor {
    /// Starts to carve a free page.
    #[inline]
    pub(crate) fn open(page: FreePage) -> Self {
        let header = page.0.header();
        header.track.write();
        // Relaxed: the page is ours alone until a slice of it is published.
        header.refs.store(BIAS, Ordering::Relaxed);
        let (position, room) = page.0.data();
        Self { page: page.0, position, room: narrow(room), carved: 0 }
    }

    /// Bytes that can still be carved.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// True when nothing was carved since the page was opened.
    pub(crate) fn is_fresh(&self) -> bool {
        self.carved == 0 && self.position == self.page.data().0
    }

    /// The bytes that can still be carved: initialised, and nobody else's.
    pub(crate) fn unused(&mut self) -> &mut [u8] {
        // A read to the model: readers of earlier slices are allowed, opening the page again is not.
        self.page.header().track.read();
        // SAFETY: `position..position + room` lies inside the page's initialised data; slices only cover
        // what lies before `position`, and the borrow of the only cursor keeps `position` where it is.
        unsafe { core::slice::from_raw_parts_mut(self.position.as_ptr(), self.room()) }
    }

    /// Makes a slice of the first `len` unused bytes, `1..=room`.
    #[inline]
    pub(crate) fn carve(&mut self, len: usize) -> Slice {
        assert!(len > 0);
        let slice = Slice { data: self.position, len: narrow(len), refs: 1 };
        self.skip(len);
        self.carved += 1;
        slice
    }

    /// True when the slice ends where the next one would begin.
    #[inline]
    pub(crate) fn follows(&self, slice: &Slice) -> bool {
        // SAFETY: one past the end of the slice is in bounds of its slab, or one past it.
        let end = unsafe { slice.data.add(slice.len()) };
        // The end of a full page has the address of the next page's start.
        end == self.position && Page::of(slice.data) == self.page
    }

    /// Makes `slice`, which this cursor follows, longer by the first `len` unused bytes. Returns `len`.
    #[inline]
    pub(crate) fn extend(&mut self, slice: &mut Slice, len: usize) -> u32 {
        assert!(self.follows(slice));
        slice.len += narrow(len);
        self.skip(len);
        narrow(len)
    }

    /// `Slice::share` without an atomic, for a slice of the page being carved.
    #[inline]
    pub(crate) fn share(&mut self, slice: &Slice) -> Option<Slice> {
        (Page::of(slice.data) == self.page).then(|| {
            self.carved += 1;
            Slice { data: slice.data, len: slice.len, refs: 1 }
        })
    }

    /// `Slice::hold` without an atomic. False, and nothing done, for a slice of another page.
    #[inline]
    pub(crate) fn hold(&mut self, slice: &mut Slice, count: u32) -> bool {
        let ours = Page::of(slice.data) == self.page;
        if ours {
            self.carved += i64::from(count);
            slice.refs += count;
        }
        ours
    }

    /// `Slice::release` without an atomic, for a slice of the page being carved. Gives other slices back.
    #[inline]
    pub(crate) fn release(&mut self, slice: Slice) -> Option<Slice> {
        if Page::of(slice.data) == self.page {
            self.carved -= i64::from(slice.refs);
            return None;
        }
        Some(slice)
    }

    /// Gives up the unused rest. Returns the page when no slice of it is left.
    pub(crate) fn retire(self) -> Option<FreePage> {
        if self.is_fresh() {
            // Never carved: no slice knows the page, and opening it again sets the count.
            return Some(FreePage(self.page));
        }
        let delta = self.carved - BIAS;
        let refs = &self.page.header().refs;
        // Release: what was written through this cursor comes before the reuse by whoever sees zero.
        if refs.fetch_add(delta, Ordering::Release) + delta != 0 {
            return None;
        }
        fence(Ordering::Acquire);
        Some(FreePage(self.page))
    }

    #[inline]
    fn skip(&mut self, len: usize) {
        assert!(len <= self.room());
        // SAFETY: stays inside the page's data, or one past it, by the assertion.
        self.position = unsafe { self.position.add(len) };
        self.room -= narrow(len);
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("room", &self.room).field("carved", &self.carved).finish()
    }
}

/// A length inside one page.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "lengths inside a page are at most PAGE_BYTES")]
fn narrow(len: usize) -> u32 {
    debug_assert!(len <= PAGE_BYTES);
    len as u32
}
