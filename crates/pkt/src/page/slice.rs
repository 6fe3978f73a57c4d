//! Immutable bytes inside a page, and the references that keep it.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::{FreePage, Page, narrow};
use crate::pages::Shelf;
use crate::shim::{Arc, fence};

/// Immutable bytes inside a page, and references on it: one, or more that were taken together or have come together, so that
/// the count, which other cores write too, is touched once for many. Has no destructor: whoever holds it gives it to a
/// `Recycle`, or leaks it.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(super) data: NonNull<u8>,
    pub(super) len: u32,
    /// References on the page that end with this slice, at least one.
    pub(super) refs: u32,
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
