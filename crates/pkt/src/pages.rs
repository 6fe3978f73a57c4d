//! Payload memory that an application fills itself, and that is sent without a copy.
//!
//! Above: `send_pages` of a socket, `send_file`. Linux: `MSG_ZEROCOPY`, `MSG_SPLICE_PAGES`,
//! `sendfile`.
//!
//! ```text
//!            Pages ──┬─ one reference each ──► page 0   page 1   page 2
//!   recall() drops   │                           ▲        ▲
//!   these references │         packets that were sent hold slices
//!                    └─ LentReturns ◄── dropping a page's last slice queues it here, notifies
//! ```
//!
//! Linux takes the application's own memory, pins it, and reports on an error queue when it may be
//! written again. Here the memory belongs to the stack from the start and a reference count
//! controls its lifetime. Nothing is pinned, and safe code cannot write memory that is still in
//! flight: [`Pages::chunks_mut`] returns `None` while a packet holds a page.
//!
//! Not here: waiting (crate `quietline`), the use of the packets by TCP.

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering;

use sync::{EventCount, Llist};

use crate::packet::Packet;
use crate::page::{Cursor, FreePage, Slice};
use crate::pool::{NoPool, Pool, Recycle};
use crate::shim::{Arc, AtomicU32};

/// Bytes to append to a packet: copied from a buffer, or shared with the pages they lie in.
pub trait Payload: Copy {
    /// Returns the number of bytes.
    fn byte_len(&self) -> usize;

    /// Splits the bytes into the first `at` bytes and the rest.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    fn split(self, at: usize) -> (Self, Self);

    /// Appends the bytes to `packet` and returns the number appended. That is fewer than all if the
    /// packet has all its frags or the pool is at its limit.
    fn append_to(self, packet: &mut Packet, pool: &mut Pool) -> usize;

    /// As `append_to`. Copied bytes are summed in pieces of `piece` bytes
    /// ([`Packet::append_in_pieces`]).
    fn append_in_pieces(self, packet: &mut Packet, pool: &mut Pool, piece: u16) -> usize;
}

impl Payload for &[u8] {
    #[inline]
    fn byte_len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }

    #[inline]
    fn append_to(self, packet: &mut Packet, pool: &mut Pool) -> usize {
        packet.append(pool, self)
    }

    #[inline]
    fn append_in_pieces(self, packet: &mut Packet, pool: &mut Pool, piece: u16) -> usize {
        packet.append_in_pieces(pool, self, piece)
    }
}

/// Pages of payload, filled by their owner and sent by sharing them.
pub struct Pages {
    /// One slice per page, in order; each as long as its page, except possibly the last one. Empty
    /// between `recall` and `collect`.
    slices: Vec<Slice>,
    /// Offset of each page's first byte.
    starts: Vec<usize>,
    len: usize,
    lent_returns: Arc<LentReturns>,
}

impl Pages {
    /// Allocates `len` zeroed bytes, at least one. `None` at the domain's limit.
    ///
    /// # Panics
    ///
    /// If `len` is zero.
    #[must_use]
    pub fn new(pool: &mut Pool, len: usize) -> Option<Self> {
        assert!(len > 0, "pages of zero bytes");
        let mut pages = Self::empty();
        while pages.len < len {
            let mut cursor = pool.open_page()?;
            let bytes = cursor.room().min(len - pages.len);
            cursor.unused()[..bytes].fill(0);
            pages.push(cursor, bytes);
        }
        Some(pages)
    }

    /// Allocates up to `len` bytes and fills them with `read`, which gets the room in each page and
    /// returns the number of bytes it wrote. A short or empty read ends the filling. `None` at the
    /// domain's limit, or if no byte was read.
    ///
    /// # Errors
    ///
    /// The error of `read`, unless earlier calls wrote bytes: these are returned first, and the
    /// error is discarded.
    pub fn read_from<E>(
        pool: &mut Pool,
        len: usize,
        mut read: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Option<Self>, E> {
        let mut pages = Self::empty();
        while pages.len < len {
            let Some(mut cursor) = pool.open_page() else { break };
            let room = cursor.room().min(len - pages.len);
            let result = read(&mut cursor.unused()[..room]);
            let got = match result {
                Ok(got) if got > 0 => got,
                result => {
                    pool.close_page(cursor);
                    match result {
                        Err(error) if pages.len == 0 => return Err(error),
                        _ => break,
                    }
                }
            };
            pages.push(cursor, got);
            if got < room {
                break;
            }
        }
        Ok((pages.len > 0).then_some(pages))
    }

    fn empty() -> Self {
        Self {
            slices: Vec::new(),
            starts: Vec::new(),
            len: 0,
            lent_returns: Arc::new(LentReturns::default()),
        }
    }

    /// Adds the first `bytes` bytes of a page.
    fn push(&mut self, cursor: Cursor, bytes: usize) {
        let place = self.starts.len();
        self.starts.push(self.len);
        self.len += bytes;
        self.slices.push(whole(cursor, bytes, place, &self.lent_returns));
    }

    /// Returns the number of bytes, which is never zero.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always returns false: there is at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true while no packet holds any of the pages: all data sent was acknowledged and, if
    /// the peer is a stack of this process, read.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        if self.is_recalled() { self.is_back() } else { self.slices.iter().all(Slice::is_unique) }
    }

    /// Returns the bytes in non-empty parts.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.slices.iter().map(Slice::bytes)
    }

    /// Returns the bytes in parts, for writing. `None` unless [idle](Self::is_idle).
    pub fn chunks_mut(&mut self) -> Option<impl Iterator<Item = &mut [u8]>> {
        if !self.is_idle() || !self.collect() {
            return None;
        }
        // The slices stay unique: only `self` could share them.
        Some(self.slices.iter_mut().filter_map(Slice::bytes_mut))
    }

    /// Returns the bytes of `range` as payload to send.
    ///
    /// # Panics
    ///
    /// If `range` exceeds the pages.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> PagesRange<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} exceeds the pages");
        PagesRange { pages: self, start: range.start, end: range.end }
    }

    /// Drops the references of `self`, so that each page is returned as soon as no packet holds it.
    pub fn recall(&mut self) {
        for slice in self.slices.drain(..) {
            NoPool.put_slice(slice);
        }
    }

    /// Returns true between [`recall`](Self::recall) and [`collect`](Self::collect), while nothing
    /// can be sent.
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.slices.len() < self.starts.len()
    }

    /// After [`recall`](Self::recall): returns true once the last packet that held a page is freed.
    /// [`events`](Self::events) is notified for every returned page.
    #[must_use]
    pub fn is_back(&self) -> bool {
        // Acquire: every counted page is on the list.
        self.lent_returns.count.load(Ordering::Acquire) as usize == self.starts.len()
    }

    /// After [`recall`](Self::recall): takes the pages back, with their contents, once all of them
    /// are [back](Self::is_back). Returns false before that.
    pub fn collect(&mut self) -> bool {
        if !self.is_recalled() {
            return true;
        }
        if !self.is_back() {
            return false;
        }
        self.lent_returns.count.store(0, Ordering::Relaxed);
        let mut pages: Vec<_> = self.lent_returns.returned.take_all().collect();
        pages.sort_unstable_by_key(FreePage::place);
        for (place, page) in pages.into_iter().enumerate() {
            let end = self.starts.get(place + 1).copied().unwrap_or(self.len);
            let bytes = end - self.starts[place];
            self.slices.push(whole(Cursor::open(page), bytes, place, &self.lent_returns));
        }
        true
    }

    /// Returns the event count that is notified when a page is returned.
    #[must_use]
    pub fn events(&self) -> &EventCount {
        &self.lent_returns.events
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.recall();
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("len", &self.len).field("idle", &self.is_idle()).finish()
    }
}

/// Carves the first `bytes` bytes of a free page as its only slice, and lends the page so that it
/// returns to `lent_returns`.
fn whole(mut cursor: Cursor, bytes: usize, place: usize, lent_returns: &Arc<LentReturns>) -> Slice {
    let slice = cursor.carve(bytes);
    let unused = cursor.retire();
    debug_assert!(unused.is_none(), "the slice holds the page");
    slice.lend(Arc::clone(lent_returns), place);
    slice
}

/// A range of some [`Pages`].
#[derive(Clone, Copy, Debug)]
pub struct PagesRange<'a> {
    pages: &'a Pages,
    start: usize,
    end: usize,
}

impl Payload for PagesRange<'_> {
    fn byte_len(&self) -> usize {
        self.end - self.start
    }

    fn split(self, at: usize) -> (Self, Self) {
        assert!(at <= self.byte_len());
        let middle = self.start + at;
        (Self { end: middle, ..self }, Self { start: middle, ..self })
    }

    fn append_to(self, packet: &mut Packet, _pool: &mut Pool) -> usize {
        let Pages { slices, starts, .. } = self.pages;
        let mut at = self.start;
        while at < self.end {
            let place = starts.partition_point(|start| *start <= at) - 1;
            let Some(slice) = slices.get(place) else { break };
            let skip = at - starts[place];
            let len = (slice.len() - skip).min(self.end - at);
            if !packet.append_share(slice, skip, len) {
                break;
            }
            at += len;
        }
        at - self.start
    }

    /// No byte is copied, so none is summed.
    fn append_in_pieces(self, packet: &mut Packet, pool: &mut Pool, _piece: u16) -> usize {
        self.append_to(packet, pool)
    }
}

/// List that lent pages are returned to. The lent pages keep it alive; when it is dropped, it
/// returns the pages still on it to their home pools.
#[derive(Default)]
pub(crate) struct LentReturns {
    returned: Llist<FreePage>,
    /// Number of pages on the list.
    count: AtomicU32,
    events: EventCount,
}

impl LentReturns {
    /// Adds a page that has no slice left, and notifies the lender.
    pub(crate) fn put(&self, page: FreePage) {
        self.returned.push(page);
        self.count.fetch_add(1, Ordering::Release);
        self.events.notify_all();
    }
}

impl Drop for LentReturns {
    fn drop(&mut self) {
        self.returned.take_all().for_each(FreePage::go_home);
    }
}
