//! Payload memory that an application fills itself: what is sent from it is not copied.
//!
//! Above: `send_pages` of a socket, `send_file`. Linux: `MSG_ZEROCOPY`, `MSG_SPLICE_PAGES`, `sendfile`.
//!
//! ```text
//!            Pages ──┬─ one reference each ──► page 0   page 1   page 2
//!   recall() drops   │                           ▲        ▲
//!   these references │         packets that were sent hold slices
//!                    └─ Shelf ◄── whoever drops the last slice puts the page here and tells it
//! ```
//!
//! Linux takes the application's own memory, pins it, and reports on an error queue when it may be written again. Here the
//! memory is the stack's from the start and its life is a reference count, so that nothing is pinned and safe code cannot
//! write what is still on its way: [`Pages::chunks_mut`] answers only while no packet holds a page.
//!
//! Not here: waiting (crate `quietline`), what TCP does with the packets.

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering;

use sync::{EventCount, Llist};

use crate::packet::Packet;
use crate::page::{Cursor, FreePage, Slice};
use crate::pool::{Elsewhere, Pool, Recycle};
use crate::shim::{Arc, AtomicU32};

/// Bytes on their way into a packet: copied from a buffer, or shared with the pages they lie in.
pub trait Payload: Copy {
    /// How many.
    fn byte_len(&self) -> usize;

    /// The first `at` of them, and the others.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    fn split(self, at: usize) -> (Self, Self);

    /// Appends them to `packet` and returns how many were taken: fewer than all when it has all its frags or the pool is
    /// at its limit.
    fn append_to(self, packet: &mut Packet, pool: &mut Pool) -> usize;

    /// As `append_to`. What is copied is summed on the way, in pieces of `piece` bytes ([`Packet::append_in_pieces`]).
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
    /// In order; each as long as its page, the last one perhaps shorter. Empty between `recall` and `collect`.
    slices: Vec<Slice>,
    /// Where the bytes of each page begin.
    starts: Vec<usize>,
    len: usize,
    shelf: Arc<Shelf>,
}

impl Pages {
    /// `len` zeroed bytes, at least one. `None` at the domain's limit.
    ///
    /// # Panics
    ///
    /// If `len` is zero.
    #[must_use]
    pub fn new(pool: &mut Pool, len: usize) -> Option<Self> {
        assert!(len > 0, "pages without a byte");
        let mut pages = Self::empty();
        while pages.len < len {
            let mut cursor = pool.open_page()?;
            let bytes = cursor.room().min(len - pages.len);
            cursor.unused()[..bytes].fill(0);
            pages.push(cursor, bytes);
        }
        Some(pages)
    }

    /// Up to `len` bytes that `read` puts there: it is called with the room in each page and says how many bytes it gave,
    /// fewer at their end. `None` at the domain's limit, or when there was nothing to read.
    ///
    /// # Errors
    ///
    /// What `read` says, unless it has given bytes before: those are worth an answer first.
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
        Self { slices: Vec::new(), starts: Vec::new(), len: 0, shelf: Arc::new(Shelf::default()) }
    }

    /// Adds the first `bytes` of a page.
    fn push(&mut self, cursor: Cursor, bytes: usize) {
        let place = self.starts.len();
        self.starts.push(self.len);
        self.len += bytes;
        self.slices.push(whole(cursor, bytes, place, &self.shelf));
    }

    /// Number of bytes, never zero.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: pages have at least a byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True while no packet holds any of the pages: all that was sent was acknowledged, and read where the peer is a
    /// stack of this process.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        if self.is_recalled() { self.is_back() } else { self.slices.iter().all(Slice::is_unique) }
    }

    /// The bytes in parts, none of them empty.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.slices.iter().map(Slice::bytes)
    }

    /// The bytes in parts, to be written. `None` unless [idle](Self::is_idle).
    pub fn chunks_mut(&mut self) -> Option<impl Iterator<Item = &mut [u8]>> {
        if !self.is_idle() || !self.collect() {
            return None;
        }
        // Unique they stay: only `self` could share them.
        Some(self.slices.iter_mut().filter_map(Slice::bytes_mut))
    }

    /// The bytes of `range`, to be sent.
    ///
    /// # Panics
    ///
    /// If `range` leaves the pages.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> PagesRange<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} leaves the pages");
        PagesRange { pages: self, start: range.start, end: range.end }
    }

    /// Gives up our own references, so that every page comes to the shelf as soon as no packet holds it.
    pub fn recall(&mut self) {
        for slice in self.slices.drain(..) {
            Elsewhere.put_slice(slice);
        }
    }

    /// True between [`recall`](Self::recall) and [`collect`](Self::collect): nothing can be sent.
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.slices.len() < self.starts.len()
    }

    /// After [`recall`](Self::recall): true when the last packet that held a page is gone. [`events`](Self::events) are told
    /// of every page.
    #[must_use]
    pub fn is_back(&self) -> bool {
        // Acquire: the pages that were counted are on the list.
        self.shelf.count.load(Ordering::Acquire) as usize == self.starts.len()
    }

    /// After [`recall`](Self::recall): takes the pages, with what they held, once they are all [back](Self::is_back).
    pub fn collect(&mut self) -> bool {
        if !self.is_recalled() {
            return true;
        }
        if !self.is_back() {
            return false;
        }
        self.shelf.count.store(0, Ordering::Relaxed);
        let mut pages: Vec<_> = self.shelf.returned.take_all().collect();
        pages.sort_unstable_by_key(FreePage::place);
        for (place, page) in pages.into_iter().enumerate() {
            let end = self.starts.get(place + 1).copied().unwrap_or(self.len);
            let bytes = end - self.starts[place];
            self.slices.push(whole(Cursor::open(page), bytes, place, &self.shelf));
        }
        true
    }

    /// Who is told when a page has come back.
    #[must_use]
    pub fn events(&self) -> &EventCount {
        &self.shelf.events
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

/// The first `bytes` of a free page as its only slice, to come back to `shelf`.
fn whole(mut cursor: Cursor, bytes: usize, place: usize, shelf: &Arc<Shelf>) -> Slice {
    let slice = cursor.carve(bytes);
    let unused = cursor.retire();
    debug_assert!(unused.is_none(), "the slice holds the page");
    slice.lend(Arc::clone(shelf), place);
    slice
}

/// Part of some [`Pages`].
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

    /// Nothing is copied, so nothing is summed.
    fn append_in_pieces(self, packet: &mut Packet, pool: &mut Pool, _piece: u16) -> usize {
        self.append_to(packet, pool)
    }
}

/// Where lent pages come back to. Kept alive by the pages that are out, and sends what is left of them home at its end.
#[derive(Default)]
pub(crate) struct Shelf {
    returned: Llist<FreePage>,
    /// Pages on the list.
    count: AtomicU32,
    events: EventCount,
}

impl Shelf {
    /// A page that nobody holds any more.
    pub(crate) fn put(&self, page: FreePage) {
        self.returned.push(page);
        self.count.fetch_add(1, Ordering::Release);
        self.events.notify_all();
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.returned.take_all().for_each(FreePage::go_home);
    }
}
