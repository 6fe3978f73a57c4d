//! The free lists of one pool, separate from its domain.
//!
//! Above: pool.rs, whose `Pool` is one of these and the domain's address. Linux: the per-CPU arrays
//! of a slab cache (`array_cache`, refilled and flushed in batches) and `softnet_data`'s deferred
//! frees.
//!
//! Not here: memory that other cores access (home.rs), the depot (depot.rs).

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::{
    FreeMode,
    depot::DepotRef,
    domain,
    home::{HomeRef, NoPool, Recycle},
    slab::{DESCRIPTORS_FIRST, DESCRIPTORS_PER_SLAB, PAGES_FIRST},
};
use crate::packet::{FreeDescriptor, PARCEL_LEN, Packet, Parcel, end};
use crate::page::{Cursor, FreePage, PAGES_PER_SLAB, Slice};
use crate::shim::fence;

/// Partly carved receive pages a pool keeps: that many receive queues can fill packets in turn
/// without wasting the rest of a page.
const RX_CURSORS: usize = 4;

/// Parcels a pool fills at the same time: a core usually frees packets for the few threads whose
/// sockets it handles.
const PARCELS: usize = 4;

/// Free descriptors that a pool keeps in [`FreeMode::Unified`]: eight parcels, 182 KB. Two parcels
/// in loom models.
const MAGAZINE: usize = if cfg!(loom) { 2 * PARCEL_LEN } else { 8 * PARCEL_LEN };

/// A pool without its domain: the part that a dropped pool leaves to the next thread.
pub(crate) struct Local {
    pub(super) home: HomeRef,
    /// Treatment of packets of other homes.
    pub(super) mode: FreeMode,
    /// Receives the descriptors beyond `free_max`.
    depot: DepotRef,
    /// Descriptors of this home, last in, first out. Descriptors that do not fit go to the depot,
    /// so that freeing never allocates.
    pub(super) free: Vec<FreeDescriptor>,
    /// Free pages of this home, with room reserved for all of them.
    pub(super) pages: Vec<FreePage>,
    /// Page that payload is copied into.
    pub(super) cursor: Option<Cursor>,
    /// Pages that receive slots have left partly used.
    pub(super) rx_cursors: ArrayVec<Cursor, RX_CURSORS>,
    /// Descriptors of other homes, collected for their return.
    parcels: ArrayVec<Parcel, PARCELS>,
    /// Upper bound of `free.len()`, within its capacity: a magazine, or all descriptors made for
    /// this home.
    free_max: usize,
    /// Descriptors ever made for this home.
    descriptors: usize,
    /// Pages of this home, wherever they are.
    pub(super) pages_made: usize,
    /// Number of descriptors to take at the next growth.
    descriptors_next: usize,
    /// Number of pages to take at the next growth.
    pages_next: usize,
}

impl Local {
    pub(crate) fn new(home: HomeRef, depot: DepotRef) -> Self {
        Self {
            home,
            mode: FreeMode::default(),
            depot,
            free: Vec::with_capacity(MAGAZINE),
            free_max: MAGAZINE,
            pages: Vec::new(),
            cursor: None,
            rx_cursors: ArrayVec::new(),
            parcels: ArrayVec::new(),
            descriptors: 0,
            pages_made: 0,
            descriptors_next: DESCRIPTORS_FIRST,
            pages_next: PAGES_FIRST,
        }
    }

    /// Makes an empty pool grow again as a new pool does.
    pub(super) const fn begin_small(&mut self) {
        self.descriptors_next = DESCRIPTORS_FIRST;
        self.pages_next = PAGES_FIRST;
    }

    /// Opens the pool for a thread: from now on packets may be sent to it whole.
    pub(crate) fn open(&mut self) {
        // Reserved here, because freeing never allocates.
        self.free.reserve_exact(MAGAZINE.saturating_sub(self.free.len()));
        self.set_mode(FreeMode::default());
        self.home.reach.set_online(true);
    }

    /// Closes the pool when its thread leaves: moves its memory to where other pools find it,
    /// except for one magazine for the next thread. Packets of this home are from now on freed
    /// where they are.
    pub(super) fn close(&mut self) {
        self.home.reach.set_kick(None);
        self.home.reach.set_online(false);
        // A core that pushes a packet after this drain sees that no thread has the pool: the fences
        // in `set_online` and `defer` pair.
        self.drain_deferred();
        self.set_mode(FreeMode::Unified);
        self.retire_cursors();
    }

    pub(super) fn set_mode(&mut self, mode: FreeMode) {
        self.mode = mode;
        self.send_parcels();
        self.free_max = match mode {
            FreeMode::Unified => MAGAZINE,
            _ => self.free.capacity(),
        };
        while self.free.len() > self.free_max {
            self.flush();
        }
    }

    /// Returns the number of descriptors and pages here, including those on the return lists.
    pub(crate) fn collect(&mut self) -> (usize, usize) {
        self.drain_deferred();
        self.drain_returns();
        self.drain_pages();
        (self.free.len(), self.pages.len())
    }

    /// Ends a pool whose memory has all been returned.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        {
            self.free.into_iter().for_each(FreeDescriptor::destroy);
            self.pages.into_iter().for_each(FreePage::destroy);
        }
    }

    pub(super) fn drain_returns(&mut self) -> usize {
        // Called once per turn of a core, so it checks with a load first: taking an empty list
        // would write a shared line.
        if self.home.returns.packets.is_empty() {
            return 0;
        }
        self.take_returns_of(self.home)
    }

    /// Takes the descriptors that were returned to `home` for this pool. The owner of `home` needs
    /// none of them in particular: it takes those it finds, or a share of a slab.
    pub(super) fn take_returns_of(&mut self, home: HomeRef) -> usize {
        let mut drained = 0;
        for parcel in home.returns.packets.take_all() {
            parcel.unpack(|mut descriptor| {
                drained += 1;
                if home != self.home {
                    descriptor.set_home(self.home);
                }
                self.push_free(descriptor);
            });
        }
        self.home.stats.returns_drained.add(drained as u64);
        drained
    }

    pub(super) fn drain_pages(&mut self) {
        for page in self.home.returns.pages.take_all() {
            self.pages.push(page);
        }
    }

    pub(super) fn grow_descriptors(&mut self, core: &domain::Core) -> bool {
        let before = self.free.len();
        // A pool grows only when it has no descriptor left, and a slab fits into a magazine.
        let free = &mut self.free;
        let wanted = self.descriptors_next;
        if !core.descriptors(self.home, wanted, |descriptor| free.push(descriptor)) {
            return false;
        }
        self.descriptors += self.free.len() - before;
        self.descriptors_next = (2 * wanted).min(DESCRIPTORS_PER_SLAB);
        if self.mode != FreeMode::Unified {
            self.free.reserve_exact(self.descriptors.saturating_sub(self.free.len()));
            self.free_max = self.free.capacity();
        }
        true
    }

    pub(super) fn grow_pages(&mut self, core: &domain::Core) -> bool {
        let before = self.pages.len();
        let (pages, wanted) = (&mut self.pages, self.pages_next);
        if !core.pages(self.home, wanted, |page| pages.push(page)) {
            return false;
        }
        self.pages_made += self.pages.len() - before;
        self.pages.reserve_exact(self.pages_made - self.pages.len());
        self.pages_next = (2 * wanted).min(PAGES_PER_SLAB);
        true
    }

    /// Takes a parcel from the depot; returns false if it has none.
    pub(super) fn take_from_depot(&mut self) -> bool {
        let Some(parcel) = self.depot.take(&self.home.stats) else { return false };
        self.home.stats.magazine_refills.add(1);
        let home = self.home;
        parcel.unpack(|mut descriptor| {
            descriptor.set_home(home);
            self.push_free(descriptor);
        });
        true
    }

    /// Moves the descriptors of a full magazine that were unused for longest to the depot.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&mut self) {
        let mut coldest = self.free.drain(..PARCEL_LEN.min(self.free.len()));
        let Some(carrier) = coldest.next() else { return };
        let mut parcel = Parcel::new(carrier);
        for descriptor in coldest {
            parcel.push(descriptor);
        }
        self.home.stats.magazine_flushes.add(1);
        self.depot.put(parcel, &self.home.stats);
    }

    #[inline(always)]
    fn push_free(&mut self, descriptor: FreeDescriptor) {
        if self.free.len() >= self.free_max {
            self.flush();
        }
        self.free.push(descriptor);
    }

    /// Sends a packet to its home, another pool, to be freed there, or frees it here if too many
    /// wait there already. Linux: `skb_attempt_defer_free`. The count is raised first and only the
    /// drain resets it, so that there is at most one kick between two drains.
    pub(super) fn defer(&mut self, mut packet: Packet, max: u32) {
        let home = packet.home();
        if home.domain != self.home.domain {
            return end(packet, self);
        }
        let before = home.deferred.count.fetch_add(1, Ordering::Relaxed);
        if before.saturating_add(1) >= max || !home.reach.is_online() {
            self.home.stats.defer_overflow.add(1);
            return end(packet, self);
        }
        // The owner and the original are notified now, not when the home frees the packet.
        packet.orphan();
        drop(packet.take_dst());
        // Lent pages must not wait there either: their owner may be blocked until the last one is
        // returned.
        if !home.reach.is_kickable() || packet.holds_lent() {
            packet.drop_payload(|slice| self.put_slice(slice));
        }
        self.home.stats.defer_pushed.add(1);
        home.deferred.packets.push(packet);
        if before == max >> 1 {
            self.home.stats.defer_kicks.add(1);
            home.reach.kick();
        }
        // The push comes before this check: either `close` finds the packet, or this core finds
        // that no thread has the pool.
        fence(Ordering::SeqCst);
        if !home.reach.is_online() {
            self.end_deferred(home);
        }
    }

    /// Frees the packets that other cores sent here whole, and returns their number. Linux:
    /// `skb_defer_free_flush`.
    pub(super) fn drain_deferred(&mut self) -> usize {
        let deferred = &self.home.deferred;
        if deferred.count.load(Ordering::Relaxed) == 0 && deferred.packets.is_empty() {
            return 0;
        }
        deferred.count.store(0, Ordering::Relaxed);
        self.end_deferred(self.home)
    }

    /// Frees the packets that wait for `home`: this pool's own, or one that no thread has.
    fn end_deferred(&mut self, home: HomeRef) -> usize {
        let mut drained = 0;
        for packet in home.deferred.packets.take_all() {
            drained += 1;
            end(packet, self);
        }
        self.home.stats.defer_drained.add(drained as u64);
        drained
    }

    /// Returns whether a descriptor of `home`, another pool, stays here. A descriptor of another
    /// domain never does, because that domain accounts for its memory.
    #[inline(always)]
    fn adopts(&self, home: HomeRef) -> bool {
        self.mode == FreeMode::Unified && home.domain == self.home.domain
    }

    /// Returns a descriptor to its home: by itself, or in the parcel for its home.
    fn put_foreign(&mut self, descriptor: FreeDescriptor) {
        let home = descriptor.home();
        if self.mode == FreeMode::Home {
            return home.return_parcel(Parcel::new(descriptor));
        }
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

    /// Sends all parcels to their homes, full or not.
    pub(super) fn send_parcels(&mut self) {
        for parcel in self.parcels.drain(..) {
            parcel.home().return_parcel(parcel);
        }
    }

    pub(super) fn put_page(&mut self, page: FreePage) {
        if page.home() == self.home {
            self.home.stats.pages_freed.add(1);
            self.pages.push(page);
        } else {
            page.home().return_page(page);
        }
    }

    /// Keeps the rest of a receive page for the next slot.
    pub(super) fn put_rx_cursor(&mut self, cursor: Cursor) {
        // A whole page can be used for any purpose, so only one is kept open for the next slot.
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
        } else if self.adopts(home) {
            self.home.stats.free_local.add(1);
            self.home.stats.adopted.add(1);
        } else {
            self.home.stats.free_remote.add(1);
            NoPool.count_packet(home);
        }
    }

    #[inline(always)]
    fn put_descriptor(&mut self, mut descriptor: FreeDescriptor) {
        let home = descriptor.home();
        if home != self.home {
            if !self.adopts(home) {
                return self.put_foreign(descriptor);
            }
            descriptor.set_home(self.home);
        }
        self.push_free(descriptor);
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
