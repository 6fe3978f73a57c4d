//! Per-core packet memory: allocation and free without a lock or an atomic operation.
//!
//! Above: every core and every application thread owns one `Pool`. Linux: the slab caches with
//! per-CPU arrays, `napi_alloc_cache`, page_pool, and the deferred free lists of
//! `skb_attempt_defer_free`.
//!
//! ```text
//!        core A                                  core B
//!   ┌──────────────┐   packet travels A → B  ┌──────────────┐
//!   │ Pool         │ ──────────────────────► │ Pool         │
//!   │  free: Vec   │        freed on B       │  free: Vec   │──► kept, B is its home (Unified)
//!   │  pages: Vec  │   ┌─────────────────────┤  pages: Vec  │──► Depot, 33 at a time
//!   │  cursors     │   │                     └──────────────┘
//!   └──────▲───────┘   │ one CAS each (Home), a parcel, or the packet itself (Defer)
//!          │ one swap  ▼
//!   ┌──────┴─────────────────┐
//!   │ Home of A: return lists│
//!   └────────────────────────┘
//! ```
//!
//! One size class of descriptor serves sending, receiving and cloning. The memory a core frees for
//! one is therefore the memory it next uses for another (last in, first out: still in its cache).
//! The *home* of a descriptor or page is the pool it belongs to. The [`FreeMode`] decides where a
//! packet is freed that reaches another core than its home; its pages return to their home in every
//! mode.
//!
//! Lifetime: homes are freed only by `Core::drop` (domain.rs), which runs when no `Domain` and no
//! `Pool` is left, and only if every descriptor and every page is on a free list. Slabs are freed
//! there, and before that by `Domain::trim` (trim.rs), which first takes every descriptor or page
//! of the slab from a free list. The owner of a packet, a slice, a cursor or a free descriptor or
//! page may therefore use its memory and its home at any time: as long as it is owned, it is not on
//! a free list. A pool may use any home of its own domain, because the pool keeps the domain's
//! memory allocated.
//!
//! Not here: limits (domain.rs), slabs (slab.rs, trim.rs), memory that other cores access
//! (home.rs), the free lists (local.rs), locks (lock.rs).

use core::fmt;
use core::mem::ManuallyDrop;

use crate::meta::PacketMeta;
use crate::packet::{FreeDescriptor, HEADROOM, Kind, Packet, end};
use crate::page::{Cursor, Slice};
use crate::shim::Arc;

mod depot;
mod domain;
mod home;
mod local;
mod lock;
mod rx_slot;
mod slab;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod trim;

pub use domain::{Domain, DomainConfig, DomainStats};
pub use home::PoolKick;
pub(crate) use home::{HomeRef, NoPool, Recycle};
pub(crate) use local::Local;
pub use rx_slot::{RX_HEADROOM, RX_LEN_MAX, RxSlot};
pub use slab::{Heap, SlabSource};

/// Treatment of a packet that a pool frees and that belongs to another pool, its home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeMode {
    /// Frees the packet here and returns its descriptor to its home at once, by itself. Linux: the
    /// slab allocator's treatment of an object of another CPU.
    Home,
    /// Sends the packet whole to its home, which frees it, as long as fewer than `max` packets wait
    /// there (`net.core.skb_defer_max`). Beyond that it is freed here, and its descriptor is
    /// returned in a parcel. Linux: `skb_attempt_defer_free`.
    Defer {
        /// One more than the number of packets that may wait for their home: as in Linux, the
        /// packet that would be number `max` is freed here.
        max: u32,
    },
    /// Frees the packet here and keeps its descriptor: this pool becomes its home. Descriptors
    /// beyond a full magazine go to the domain's depot, for any pool.
    #[default]
    Unified,
}

/// The packet memory of one core or thread.
///
/// May move between threads but is used by one at a time. Dropping it leaves its memory, and memory
/// that is still being returned to it, to the next [`Domain::pool`].
pub struct Pool {
    local: ManuallyDrop<Local>,
    core: Arc<domain::Core>,
}

/// Counters of one pool. Linux has no such counters; the first ones show on which cores packets are
/// freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Packets allocated or cloned here.
    pub alloc_local: u64,
    /// Packets that were freed here and whose descriptor stayed.
    pub free_local: u64,
    /// Packets counted in `free_local` that belonged to another pool until then.
    pub adopted: u64,
    /// Packets of other pools that were freed here and whose descriptor was returned to its home.
    pub free_remote: u64,
    /// Packets of this pool that were freed through another pool, or through none.
    pub returned: u64,
    /// Descriptors taken from the return list.
    pub returns_drained: u64,
    /// Packets of other pools sent to their home whole.
    pub defer_pushed: u64,
    /// Packets of other pools that were freed here because too many waited for their home, or no
    /// thread had the home pool.
    pub defer_overflow: u64,
    /// Kicks of a home pool because half of its limit of packets waited for it.
    pub defer_kicks: u64,
    /// Packets that were sent to this pool whole and freed here.
    pub defer_drained: u64,
    /// Parcels of descriptors given to the depot because this pool had too many.
    pub magazine_flushes: u64,
    /// Parcels of descriptors taken from the depot because this pool had none.
    pub magazine_refills: u64,
    /// Slabs taken from the system, for descriptors or pages.
    pub slab_refill: u64,
    /// Shares of slabs taken, from new slabs or others. A pool begins with a few descriptors and a
    /// page, and doubles its share each time.
    pub slab_shares: u64,
    /// Locks taken for parcels and slabs: the depot's and the domain's.
    pub locks: u64,
    /// Locks counted in `locks` that another thread held at that moment.
    pub locks_contended: u64,
    /// Allocations that failed at the domain's limit.
    pub alloc_failed: u64,
    /// Pages taken into use.
    pub pages_opened: u64,
}

impl PoolStats {
    /// Adds the counters of another pool.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            alloc_local,
            free_local,
            adopted,
            free_remote,
            returned,
            returns_drained,
            defer_pushed,
            defer_overflow,
            defer_kicks,
            defer_drained,
            magazine_flushes,
            magazine_refills,
            slab_refill,
            slab_shares,
            locks,
            locks_contended,
            alloc_failed,
            pages_opened,
        } = *other;
        self.alloc_local += alloc_local;
        self.free_local += free_local;
        self.adopted += adopted;
        self.free_remote += free_remote;
        self.returned += returned;
        self.returns_drained += returns_drained;
        self.defer_pushed += defer_pushed;
        self.defer_overflow += defer_overflow;
        self.defer_kicks += defer_kicks;
        self.defer_drained += defer_drained;
        self.magazine_flushes += magazine_flushes;
        self.magazine_refills += magazine_refills;
        self.slab_refill += slab_refill;
        self.slab_shares += slab_shares;
        self.locks += locks;
        self.locks_contended += locks_contended;
        self.alloc_failed += alloc_failed;
        self.pages_opened += pages_opened;
    }
}

impl Pool {
    pub(crate) fn new(local: Local, core: Arc<domain::Core>) -> Self {
        Self { local: ManuallyDrop::new(local), core }
    }

    /// Allocates an empty packet with [`HEADROOM`] for headers. `None` at the domain's limit.
    #[inline]
    pub fn alloc(&mut self) -> Option<Packet> {
        self.alloc_at(HEADROOM, Kind::Alone)
    }

    /// Allocates an empty packet whose next clone is tracked: [`Packet::clone_busy`] tells whether
    /// that clone is still alive. For packets that stay in a queue while their clones are sent.
    #[inline]
    pub fn alloc_fclone(&mut self) -> Option<Packet> {
        self.alloc_at(HEADROOM, Kind::Original)
    }

    /// Allocates a packet with a copy of `bytes`. `None` if they do not fit, or at the domain's
    /// limit.
    pub fn alloc_from(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = self.alloc()?;
        if packet.append(self, bytes) == bytes.len() {
            return Some(packet);
        }
        self.free(packet);
        None
    }

    /// Allocates memory for a device to receive up to `len_max` bytes into. `None` at the domain's
    /// limit.
    ///
    /// # Panics
    ///
    /// If `len_max` exceeds [`RX_LEN_MAX`].
    pub fn rx_slot(&mut self, len_max: usize) -> Option<RxSlot> {
        RxSlot::new(self, len_max)
    }

    /// Frees a packet. The memory of this pool's own packets is reused here; for others the
    /// [`FreeMode`] applies.
    #[inline]
    pub fn free(&mut self, packet: Packet) {
        if let FreeMode::Defer { max } = self.local.mode
            && packet.home() != self.local.home
        {
            return self.local.defer(packet, max);
        }
        end(packet, &mut *self.local);
    }

    /// Sets the treatment of packets of other pools from now on. Packets that wait under an earlier
    /// mode still return to their home.
    pub fn set_free_mode(&mut self, mode: FreeMode) {
        self.local.set_mode(mode);
    }

    /// Returns the treatment of packets of other pools.
    #[inline]
    #[must_use]
    pub fn free_mode(&self) -> FreeMode {
        self.local.mode
    }

    /// Sets the object that is kicked when packets wait for this pool. Without one, packets that
    /// wait here give up their payload first, because they may wait for long.
    pub fn set_kick(&mut self, kick: Option<home::KickRef>) {
        self.local.home.reach.set_kick(kick);
    }

    /// Reuses a packet that is no longer needed as an empty one, without freeing its descriptor:
    /// the result is as from [`alloc`](Self::alloc) or [`alloc_fclone`](Self::alloc_fclone),
    /// whichever allocated it. Its payload is released and its owner notified. Returns `Err` with
    /// the packet unchanged if its clone is still being sent.
    pub fn renew(&mut self, mut packet: Packet) -> Result<Packet, Packet> {
        if packet.clone_busy() {
            return Err(packet);
        }
        packet.drop_payload(|slice| self.local.put_slice(slice));
        drop(packet.take_dst());
        packet.orphan();
        Ok(packet.renew())
    }

    /// Takes back descriptors that other cores returned, frees packets that they sent here whole
    /// (`FreeMode::Defer`), and sends this pool's unfilled parcels to their homes. Allocation does
    /// this when the pool has no descriptor left. A core that is about to sleep should do it too:
    /// otherwise the pools that own the descriptors in its parcels lack them. Returns the number of
    /// descriptors taken back.
    pub fn drain_returns(&mut self) -> usize {
        self.local.send_parcels();
        self.local.drain_deferred() + self.local.drain_returns()
    }

    /// Frees packets that other cores sent here whole. For a thread that enters the stack without a
    /// whole turn.
    #[inline]
    pub fn drain_deferred(&mut self) {
        if matches!(self.local.mode, FreeMode::Defer { .. }) {
            self.local.drain_deferred();
        }
    }

    /// Returns true if packets that other cores sent here whole wait to be freed.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        !self.local.home.deferred.packets.is_empty()
    }

    /// Returns true if descriptors wait to be taken back, or packets to be freed here.
    #[must_use]
    pub fn has_returns(&self) -> bool {
        let home = self.local.home;
        !home.returns.packets.is_empty() || !home.deferred.packets.is_empty()
    }

    /// Returns the counters of this pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.local.home.stats()
    }

    /// Allocates an empty packet whose data starts at `data`.
    #[inline(always)]
    pub(crate) fn alloc_at(&mut self, data: u16, kind: Kind) -> Option<Packet> {
        self.alloc_with(data, kind, &PacketMeta::default())
    }

    /// Allocates an empty packet with this `meta` whose data starts at `data`.
    #[inline(always)]
    pub(crate) fn alloc_with(
        &mut self,
        data: u16,
        kind: Kind,
        meta: &PacketMeta,
    ) -> Option<Packet> {
        let descriptor = match self.local.free.pop() {
            Some(descriptor) => descriptor,
            None => self.refill()?,
        };
        self.local.home.stats.alloc_local.add(1);
        Some(descriptor.start(data, kind, meta))
    }

    /// Prefetches the descriptor that is allocated next, for a caller that makes many packets which
    /// share their payload.
    #[inline]
    pub(crate) fn fetch_next(&self) {
        if let Some(next) = self.local.free.last() {
            next.fetch();
        }
    }

    /// Returns the cursor that payload is copied through, with room for at least one byte.
    #[inline]
    pub(crate) fn cursor(&mut self) -> Option<&mut Cursor> {
        if self.local.cursor.as_ref().is_none_or(|cursor| cursor.room() == 0) {
            self.turn_page()?;
        }
        self.local.cursor.as_mut()
    }

    /// Returns the cursor that payload is copied through, with room for `len` bytes, at most a
    /// page.
    pub(crate) fn cursor_for(&mut self, len: usize) -> Option<&mut Cursor> {
        if self.local.cursor.as_ref().is_none_or(|cursor| cursor.room() < len) {
            self.turn_page()?;
        }
        self.local.cursor.as_mut()
    }

    /// Returns the number of allocations that this pool refused at the domain's limit.
    #[inline]
    #[must_use]
    pub fn alloc_failed(&self) -> u64 {
        self.local.home.stats.alloc_failed.load()
    }

    /// Releases a slice, without an atomic if its page is being carved here.
    #[inline]
    pub(crate) fn put_slice(&mut self, slice: Slice) {
        self.local.put_slice(slice);
    }

    /// Returns another slice over the same bytes, without an atomic if its page is being carved
    /// here.
    #[inline]
    pub(crate) fn share(&mut self, slice: &Slice) -> Slice {
        let carving = self.local.cursor.as_mut().and_then(|cursor| cursor.share(slice));
        carving.unwrap_or_else(|| slice.share())
    }

    /// Takes `count` more references for `slice` to pass on, without an atomic if its page is being
    /// carved here.
    #[inline]
    pub(crate) fn hold(&mut self, slice: &mut Slice, count: u32) {
        if !self.local.cursor.as_mut().is_some_and(|cursor| cursor.hold(slice, count)) {
            slice.hold(count);
        }
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self) -> Option<FreeDescriptor> {
        // The free list is checked again, because the packets freed by the drain need not leave a
        // descriptor: that of an original stays until its clone is freed.
        self.drain_returns();
        if self.local.free.is_empty()
            && !self.local.take_from_depot()
            && !self.local.grow_descriptors(&self.core)
            && !self.core.collect_returns(&mut self.local)
        {
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

    /// Returns a cursor over a whole free page.
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
        local.close();
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
