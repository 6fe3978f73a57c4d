//! The writer of a page, which carves slices from it.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::{BIAS, FreePage, Page, Slice, narrow};
use crate::shim::fence;

/// The only writer of a page: hands out slices until the page is used up.
///
/// Has no destructor: it ends by `retire`.
pub(crate) struct Cursor {
    page: Page,
    /// Next byte to hand out.
    position: NonNull<u8>,
    /// Bytes left from `position`.
    room: u32,
    /// References made minus references dropped through this cursor. Negative when references that
    /// were counted in the atomic are dropped through the cursor.
    carved: i64,
}

// SAFETY: a cursor is the exclusive right to write from `position` on; the count is atomic.
unsafe impl Send for Cursor {}

impl Cursor {
    /// Opens a free page for carving.
    #[inline]
    pub(crate) fn open(page: FreePage) -> Self {
        let header = page.0.header();
        header.track.write();
        // Relaxed: no other thread knows the page until a slice of it is published.
        header.refs.store(BIAS, Ordering::Relaxed);
        let (position, room) = page.0.data();
        Self { page: page.0, position, room: narrow(room), carved: 0 }
    }

    /// Returns the number of bytes that can still be carved.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// Returns true if nothing was carved since the page was opened.
    pub(crate) fn is_fresh(&self) -> bool {
        self.carved == 0 && self.position == self.page.data().0
    }

    /// Returns the bytes that can still be carved: initialized, and exclusively the cursor's.
    pub(crate) fn unused(&mut self) -> &mut [u8] {
        // Declares a read to the loom model: reads through earlier slices may be concurrent,
        // reopening the page may not.
        self.page.header().track.read();
        // SAFETY: `position..position + room` lies inside the page's initialized data. Slices only
        // cover bytes before `position`, and the borrow of the only cursor keeps `position`
        // constant.
        unsafe { core::slice::from_raw_parts_mut(self.position.as_ptr(), self.room()) }
    }

    /// Makes a slice of the first `len` unused bytes; `len` is in `1..=room`.
    #[inline]
    pub(crate) fn carve(&mut self, len: usize) -> Slice {
        assert!(len > 0);
        let slice = Slice { data: self.position, len: narrow(len), refs: 1 };
        self.skip(len);
        self.carved += 1;
        slice
    }

    /// Returns true if the slice ends where the next carved slice would begin.
    #[inline]
    pub(crate) fn follows(&self, slice: &Slice) -> bool {
        // SAFETY: one past the end of the slice is in bounds of its slab, or one past it.
        let end = unsafe { slice.data.add(slice.len()) };
        // The end of a full page has the address of the next page's start.
        end == self.position && Page::of(slice.data) == self.page
    }

    /// Extends `slice`, which this cursor follows, by the first `len` unused bytes. Returns `len`.
    #[inline]
    pub(crate) fn extend(&mut self, slice: &mut Slice, len: usize) -> u32 {
        assert!(self.follows(slice));
        slice.len += narrow(len);
        self.skip(len);
        narrow(len)
    }

    /// As `Slice::share`, without an atomic, for a slice of the page being carved. `None` for a
    /// slice of another page.
    #[inline]
    pub(crate) fn share(&mut self, slice: &Slice) -> Option<Slice> {
        (Page::of(slice.data) == self.page).then(|| {
            self.carved += 1;
            Slice { data: slice.data, len: slice.len, refs: 1 }
        })
    }

    /// As `Slice::hold`, without an atomic. Returns false, and does nothing, for a slice of another
    /// page.
    #[inline]
    pub(crate) fn hold(&mut self, slice: &mut Slice, count: u32) -> bool {
        let ours = Page::of(slice.data) == self.page;
        if ours {
            self.carved += i64::from(count);
            slice.refs += count;
        }
        ours
    }

    /// As `Slice::release`, without an atomic, for a slice of the page being carved. Gives a slice
    /// of another page back.
    #[inline]
    pub(crate) fn release(&mut self, slice: Slice) -> Option<Slice> {
        if Page::of(slice.data) == self.page {
            self.carved -= i64::from(slice.refs);
            return None;
        }
        Some(slice)
    }

    /// Ends carving. Returns the page if no slice of it is left.
    pub(crate) fn retire(self) -> Option<FreePage> {
        if self.is_fresh() {
            // Nothing was carved: no slice refers to the page, and the next `open` sets the count.
            return Some(FreePage(self.page));
        }
        let delta = self.carved - BIAS;
        let refs = &self.page.header().refs;
        // Release: writes through this cursor come before the reuse by the thread that reaches
        // zero.
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
