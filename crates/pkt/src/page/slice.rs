//! Immutable bytes inside a page, and the references that keep the page allocated.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::{FreePage, Page, narrow};
use crate::pages::LentReturns;
use crate::shim::{Arc, fence};

/// Immutable bytes inside a page, and one or more references on it. A slice holds several
/// references where they were taken or merged together, so that the count, which other cores write
/// too, is touched once for all of them. Has no destructor: its holder passes it to a `Recycle`, or
/// leaks it.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(super) data: NonNull<u8>,
    pub(super) len: u32,
    /// References on the page that this slice holds, at least one.
    pub(super) refs: u32,
}

// SAFETY: the bytes are read-only while any slice over them exists, and the count is atomic.
unsafe impl Send for Slice {}
// SAFETY: as above; writing requires exclusive access to the slice.
unsafe impl Sync for Slice {}

impl Slice {
    /// Returns the length, which is never zero.
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
        // SAFETY: `data..data + len` lies inside the page's initialized data. It was written before
        // this slice was made, and no thread writes it while this slice holds its reference.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr(), self.len()) }
    }

    /// Drops the first `count` bytes and returns `count`. At least one byte must remain: the
    /// address of an empty slice could lie in the next page.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) -> u32 {
        assert!(count < self.len());
        // SAFETY: stays inside the slice by the assertion.
        self.data = unsafe { self.data.add(count) };
        self.len -= narrow(count);
        narrow(count)
    }

    /// Keeps the first `len` bytes, at least one. Returns the number of bytes dropped.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) -> u32 {
        assert!(len > 0 && len <= self.len());
        let dropped = self.len - narrow(len);
        self.len = narrow(len);
        dropped
    }

    /// Returns true if `next` begins in the same page where this slice ends.
    #[inline]
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        // SAFETY: one past the end of the slice is in bounds of its slab, or one past it.
        let end = unsafe { self.data.add(self.len()) };
        // The end of a full page has the address of the next page's start.
        end == next.data && Page::is_same(self.data, next.data)
    }

    /// Extends this slice over `next` and takes over its references. Returns the number of bytes
    /// added, or gives `next` back if it does not follow.
    #[inline]
    pub(crate) fn cover(&mut self, next: Self) -> Result<u32, Self> {
        if !self.is_followed_by(&next) {
            return Err(next);
        }
        self.len += next.len;
        self.refs += next.refs;
        Ok(next.len)
    }

    /// Returns another slice over the same bytes: one atomic increment.
    #[inline]
    pub(crate) fn share(&self) -> Self {
        // Relaxed: this slice keeps the page allocated meanwhile, as in `Arc::clone`.
        Page::of(self.data).header().refs.fetch_add(1, Ordering::Relaxed);
        Self { data: self.data, len: self.len, refs: 1 }
    }

    /// Takes `count` more references, for [`part`](Self::part) to pass on: one atomic addition.
    #[inline]
    pub(crate) fn hold(&mut self, count: u32) {
        // Relaxed: as in `share`.
        Page::of(self.data).header().refs.fetch_add(i64::from(count), Ordering::Relaxed);
        self.refs += count;
    }

    /// Returns a slice over `len` bytes from `skip` on, with one of the references that `hold` took
    /// for it.
    #[inline]
    pub(crate) fn part(&mut self, skip: usize, len: usize) -> Self {
        assert!(
            self.refs > 1 && len > 0 && skip.checked_add(len).is_some_and(|end| end <= self.len())
        );
        self.refs -= 1;
        // SAFETY: the address stays inside the slice by the assertion.
        Self { data: unsafe { self.data.add(skip) }, len: narrow(len), refs: 1 }
    }

    /// Returns true if this is the only slice of its page and no cursor carves the page.
    pub(crate) fn is_unique(&self) -> bool {
        // Acquire: reads through dropped slices come before the writes of the caller.
        Page::of(self.data).header().refs.load(Ordering::Acquire) == 1
    }

    /// Returns the bytes for writing. `None` unless this is the only slice of its page.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        Page::of(self.data).header().track.write();
        // SAFETY: `data..data + len` lies inside the page's initialized data. No other slice and no
        // cursor can reach it, and the exclusive borrow of this slice prevents sharing it.
        Some(unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.len()) })
    }

    /// Makes the page go to `lent_returns` once no slice is left. Allowed only for the page's only
    /// slice.
    pub(crate) fn lend(&self, lent_returns: Arc<LentReturns>, place: usize) {
        assert!(self.is_unique());
        let page = Page::of(self.data);
        let header = page.header();
        let before =
            header.lent_returns.swap(Arc::into_raw(lent_returns).cast_mut(), Ordering::Relaxed);
        assert!(before.is_null(), "a page is lent once at a time");
        header.place.store(u32::try_from(place).expect("2^32 pages"), Ordering::Relaxed);
    }

    /// Returns true if the page goes to its lender's list once no slice is left.
    pub(crate) fn is_lent(&self) -> bool {
        let page = Page::of(self.data);
        !page.header().lent_returns.load(Ordering::Relaxed).is_null()
    }

    /// Drops the slice's references. Returns the page if they were the last ones and the page was
    /// not lent.
    #[inline]
    pub(crate) fn release(self) -> Option<FreePage> {
        let page = Page::of(self.data);
        let refs = &page.header().refs;
        let ours = i64::from(self.refs);
        // Release: reads through this slice come before the reuse by the thread that reaches zero.
        if refs.fetch_sub(ours, Ordering::Release) != ours {
            return None;
        }
        fence(Ordering::Acquire);
        FreePage(page).unless_lent()
    }
}
