//! Per-core packet memory: allocation and free without a lock or an atomic operation.
//!
//! Above: every core and every application thread owns one `Pool`. Linux: the slab caches with per-CPU
//! arrays, `napi_alloc_cache`, page_pool, and the deferred free lists of `skb_attempt_defer_free`.
//!
//! ```text
//!        core A                                  core B
//!   ┌──────────────┐   packet travels A → B  ┌──────────────┐
//!   │ Pool         │ ──────────────────────► │ Pool         │
//!   │  free: Vec   │                         │  free: Vec   │
//!   │  pages: Vec  │        freed on B       │  pages: Vec  │
//!   │  cursors     │   ┌─────────────────────┼─ parcels     │
//!   └──────▲───────┘   │ one CAS a parcel    └──────────────┘
//!          │ one swap  ▼
//!   ┌──────┴─────────────────┐
//!   │ Home of A: return lists│
//!   └────────────────────────┘
//! ```
//!
//! One size class of descriptor serves sending, receiving and cloning, so that the memory a core frees for
//! one is the memory it next uses for another (last in, first out: still in its cache). What dies on
//! another core returns to its home, which takes all returns in one swap when its own list runs dry.
//!
//! Lifetime: slabs and homes are freed only by `Core::drop` (domain.rs), which runs when no `Domain` and no
//! `Pool` is left, and only if every descriptor and every page is on a free list. So whoever owns a packet,
//! a slice, a cursor or a free descriptor or page may use its memory and its home at any time: as long as
//! he owns it, it is not on a free list.
//!
//! Not here: limits and slabs (domain.rs), what other cores touch (home.rs).

use core::fmt;
use core::mem::ManuallyDrop;

use arrayvec::ArrayVec;

use crate::packet::{FreeDescriptor, HEADROOM, Kind, Packet, Parcel, end};
use crate::page::{Cursor, FreePage, Slice};
use crate::shim::Arc;

mod domain;
mod home;
mod rx_slot;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use domain::{Domain, DomainConfig, DomainStats};
pub(crate) use home::{Elsewhere, HomeRef, Recycle};
pub use rx_slot::{RX_HEADROOM, RX_LEN_MAX, RxSlot};

/// Partly carved receive pages a pool keeps: as many receive queues can fill packets in turn without
/// wasting the rest of a page.
const RX_CURSORS: usize = 4;

/// Parcels a pool fills at once: a core usually frees for the few threads whose sockets it serves.
const PARCELS: usize = 4;

/// The packet memory of one core or thread.
///
/// May move between threads but is used by one at a time. Dropping it leaves its memory, and what is still
/// on the way home to it, to the next [`Domain::pool`].
pub struct Pool {
    local: ManuallyDrop<Local>,
    core: Arc<domain::Core>,
}

/// What one pool has done so far. Linux has no such counters; the first three say where packets die.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Packets allocated or cloned here.
    pub alloc_local: u64,
    /// Packets of this pool freed through this pool.
    pub free_local: u64,
    /// Packets of other pools freed through this pool.
    pub free_remote: u64,
    /// Packets of this pool that died elsewhere, or where no pool was at hand.
    pub returned: u64,
    /// Descriptors taken from the return list.
    pub returns_drained: u64,
    /// Slabs taken from the system, for descriptors or pages.
    pub slab_refill: u64,
    /// Allocations that failed at the domain's limit.
    pub alloc_failed: u64,
    /// Pages taken into use.
    pub pages_opened: u64,
}

impl Pool {
    pub(crate) fn new(local: Local, core: Arc<domain::Core>) -> Self {
        Self { local: ManuallyDrop::new(local), core }
    }

    /// An empty packet with [`HEADROOM`] for headers. `None` at the domain's limit.
    #[inline]
    pub fn alloc(&mut self) -> Option<Packet> {
        self.alloc_at(HEADROOM, Kind::Alone)
    }

    /// An empty packet whose next clone is tracked: [`Packet::clone_busy`] tells whether that clone still
    /// lives. For packets that stay in a queue while their clones are sent.
    #[inline]
    pub fn alloc_fclone(&mut self) -> Option<Packet> {
        self.alloc_at(HEADROOM, Kind::Original)
    }

    /// A packet that holds a copy of `bytes`. `None` when they do not fit or at the domain's limit.
    pub fn alloc_from(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = self.alloc()?;
        if packet.append(self, bytes) == bytes.len() {
            return Some(packet);
        }
        self.free(packet);
        None
    }

    /// Memory for a device to receive up to `len_max` bytes into. `None` at the domain's limit.
    ///
    /// # Panics
    ///
    /// If `len_max` exceeds [`RX_LEN_MAX`].
    pub fn rx_slot(&mut self, len_max: usize) -> Option<RxSlot> {
        RxSlot::new(self, len_max)
    }

    /// Ends a packet. Its memory is reused here when it is at home here, else it goes home.
    #[inline]
    pub fn free(&mut self, packet: Packet) {
        end(packet, &mut *self.local);
    }

    /// Takes back what died elsewhere, and sends home what died here and is kept until a parcel is full.
    /// Allocation does this when it runs dry; a core that is about to sleep should do it, or others go
    /// without the few descriptors it still holds of theirs. Returns the number of descriptors taken back.
    pub fn drain_returns(&mut self) -> usize {
        self.local.send_parcels();
        self.local.drain_returns()
    }

    /// Packets of this pool that died elsewhere and were not yet taken back: true when there are some.
    #[must_use]
    pub fn has_returns(&self) -> bool {
        !self.local.home.returns.packets.is_empty()
    }

    /// What this pool has done so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let home = self.local.home;
        let stats = &home.stats;
        PoolStats {
            alloc_local: stats.alloc_local.load(),
            free_local: stats.free_local.load(),
            free_remote: stats.free_remote.load(),
            returned: home.returns.packets_count.load(core::sync::atomic::Ordering::Relaxed),
            returns_drained: stats.returns_drained.load(),
            slab_refill: stats.slab_refill.load(),
            alloc_failed: stats.alloc_failed.load(),
            pages_opened: stats.pages_opened.load(),
        }
    }

    /// An empty packet whose data starts at `data`.
    #[inline(always)]
    pub(crate) fn alloc_at(&mut self, data: u16, kind: Kind) -> Option<Packet> {
        let descriptor = match self.local.free.pop() {
            Some(descriptor) => descriptor,
            None => self.refill()?,
        };
        self.local.home.stats.alloc_local.add(1);
        Some(descriptor.start(data, kind))
    }

    /// The cursor that payload is copied through, with room for at least one byte.
    #[inline]
    pub(crate) fn cursor(&mut self) -> Option<&mut Cursor> {
        if self.local.cursor.as_ref().is_none_or(|cursor| cursor.room() == 0) {
            self.turn_page()?;
        }
        self.local.cursor.as_mut()
    }

    /// Gives a slice back, without an atomic when its page is being carved here.
    #[inline]
    pub(crate) fn put_slice(&mut self, slice: Slice) {
        self.local.put_slice(slice);
    }

    /// Another slice over the same bytes, without an atomic when its page is being carved here.
    #[inline]
    pub(crate) fn share(&mut self, slice: &Slice) -> Slice {
        let carving = self.local.cursor.as_mut().and_then(|cursor| cursor.share(slice));
        carving.unwrap_or_else(|| slice.share())
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self) -> Option<FreeDescriptor> {
        if self.drain_returns() == 0 && !self.local.grow_descriptors(&self.core) {
            self.local.home.stats.alloc_failed.add(1);
        }
        self.local.free.pop()
    }

    #[cold]
    #[inline(never)]
    fn turn_page(&mut self) -> Option<()> {
        if let Some(page) = self.local.cursor.take().and_then(Cursor::retire) {
            self.local.put_page(page);
        }
        self.local.cursor = Some(self.open_page()?);
        Some(())
    }

    /// Ends a cursor of [`open_page`](Self::open_page) through which nothing was carved.
    pub(crate) fn close_page(&mut self, cursor: Cursor) {
        if let Some(page) = cursor.retire() {
            self.local.put_page(page);
        }
    }

    /// A cursor over a whole free page.
    pub(crate) fn open_page(&mut self) -> Option<Cursor> {
        if self.local.pages.is_empty() {
            self.local.drain_pages();
            if self.local.pages.is_empty() && !self.local.grow_pages(&self.core) {
                self.local.home.stats.alloc_failed.add(1);
            }
        }
        let page = self.local.pages.pop()?;
        self.local.home.stats.pages_opened.add(1);
        Some(Cursor::open(page))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `local` is not used again: this is the drop of its only holder.
        let mut local = unsafe { ManuallyDrop::take(&mut self.local) };
        local.send_parcels();
        local.retire_cursors();
        self.core.abandon(local);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("free", &self.local.free.len())
            .field("pages", &self.local.pages.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A pool apart from its domain: what is abandoned and adopted.
pub(crate) struct Local {
    home: HomeRef,
    /// Descriptors of this home, last in, first out. Its capacity is `descriptors`, so that freeing never
    /// allocates.
    free: Vec<FreeDescriptor>,
    /// Pages of this home; as above.
    pages: Vec<FreePage>,
    /// Payload is copied into this page.
    cursor: Option<Cursor>,
    /// Pages that receive slots have left partly used.
    rx_cursors: ArrayVec<Cursor, RX_CURSORS>,
    /// Descriptors of other homes on their way there.
    parcels: ArrayVec<Parcel, PARCELS>,
    /// Descriptors ever made for this home.
    descriptors: usize,
    /// Pages ever made for this home.
    pages_made: usize,
}

impl Local {
    pub(crate) fn new(home: HomeRef) -> Self {
        Self {
            home,
            free: Vec::new(),
            pages: Vec::new(),
            cursor: None,
            rx_cursors: ArrayVec::new(),
            parcels: ArrayVec::new(),
            descriptors: 0,
            pages_made: 0,
        }
    }

    /// True when everything ever made for this home is on its free lists.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.drain_returns();
        self.drain_pages();
        self.free.len() == self.descriptors && self.pages.len() == self.pages_made
    }

    /// The end of a complete pool.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        {
            self.free.into_iter().for_each(FreeDescriptor::destroy);
            self.pages.into_iter().for_each(FreePage::destroy);
        }
    }

    fn drain_returns(&mut self) -> usize {
        // Called once per turn of a core: a load, where taking nothing would be a write to a shared line.
        if self.home.returns.packets.is_empty() {
            return 0;
        }
        let before = self.free.len();
        for parcel in self.home.returns.packets.take_all() {
            parcel.unpack(|descriptor| self.free.push(descriptor));
        }
        let drained = self.free.len() - before;
        self.home.stats.returns_drained.add(drained as u64);
        drained
    }

    fn drain_pages(&mut self) {
        for page in self.home.returns.pages.take_all() {
            self.pages.push(page);
        }
    }

    fn grow_descriptors(&mut self, core: &domain::Core) -> bool {
        let Some(fresh) = core.descriptors(self.home) else { return false };
        self.descriptors += fresh.len();
        self.free.reserve_exact(self.descriptors - self.free.len());
        self.free.extend(fresh);
        self.home.stats.slab_refill.add(1);
        true
    }

    fn grow_pages(&mut self, core: &domain::Core) -> bool {
        let Some(fresh) = core.pages(self.home) else { return false };
        self.pages_made += fresh.len();
        self.pages.reserve_exact(self.pages_made - self.pages.len());
        self.pages.extend(fresh);
        self.home.stats.slab_refill.add(1);
        true
    }

    /// Adds a descriptor to the parcel for its home.
    fn put_foreign(&mut self, descriptor: FreeDescriptor) {
        let home = descriptor.home();
        if let Some(index) = self.parcels.iter().position(|parcel| parcel.home() == home) {
            if self.parcels[index].push(descriptor) {
                home.return_parcel(self.parcels.swap_remove(index));
            }
            return;
        }
        if self.parcels.is_full() {
            self.send_parcels();
        }
        self.parcels.push(Parcel::new(descriptor));
    }

    /// Sends all parcels home, full or not.
    fn send_parcels(&mut self) {
        for parcel in self.parcels.drain(..) {
            parcel.home().return_parcel(parcel);
        }
    }

    fn put_page(&mut self, page: FreePage) {
        if page.home() == self.home {
            self.home.stats.pages_freed.add(1);
            self.pages.push(page);
        } else {
            page.home().return_page(page);
        }
    }

    /// Keeps the rest of a receive page for the next slot.
    fn put_rx_cursor(&mut self, cursor: Cursor) {
        // Whole pages are of use to anybody; one is kept open for the next slot.
        let spare = cursor.is_fresh() && !self.rx_cursors.is_empty();
        let full = if spare || cursor.room() == 0 {
            Some(cursor)
        } else {
            self.rx_cursors.try_push(cursor).err().map(arrayvec::CapacityError::element)
        };
        if let Some(page) = full.and_then(Cursor::retire) {
            self.put_page(page);
        }
    }

    fn retire_cursors(&mut self) {
        let cursors = self.cursor.take().into_iter().chain(self.rx_cursors.drain(..));
        let pages: ArrayVec<FreePage, { RX_CURSORS + 1 }> =
            cursors.filter_map(Cursor::retire).collect();
        for page in pages {
            self.put_page(page);
        }
    }
}

impl Recycle for Local {
    #[inline(always)]
    fn count_packet(&mut self, home: HomeRef) {
        if home == self.home {
            self.home.stats.free_local.add(1);
        } else {
            self.home.stats.free_remote.add(1);
            Elsewhere.count_packet(home);
        }
    }

    #[inline(always)]
    fn put_descriptor(&mut self, descriptor: FreeDescriptor) {
        if descriptor.home() == self.home {
            debug_assert!(self.free.len() < self.descriptors);
            self.free.push(descriptor);
        } else {
            self.put_foreign(descriptor);
        }
    }

    #[inline]
    fn put_slice(&mut self, slice: Slice) {
        let slice = match &mut self.cursor {
            Some(cursor) => cursor.release(slice),
            None => Some(slice),
        };
        if let Some(page) = slice.and_then(Slice::release) {
            self.put_page(page);
        }
    }
}
