//! The free lists of one pool, apart from its domain.
//!
//! Above: pool.rs, whose `Pool` is one of these and the domain's address. Linux: the per-CPU arrays of a slab cache
//! (`array_cache`, refilled and flushed in batches) and `softnet_data`'s deferred frees.
//!
//! Not here: what other cores touch (home.rs), the depot (depot.rs).

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

/// Partly carved receive pages a pool keeps: as many receive queues can fill packets in turn without
/// wasting the rest of a page.
const RX_CURSORS: usize = 4;

/// Parcels a pool fills at once: a core usually frees for the few threads whose sockets it serves.
const PARCELS: usize = 4;

/// Free descriptors that a pool keeps in [`FreeMode::Unified`]: eight parcels, 182 KB. Two in models.
const MAGAZINE: usize = if cfg!(loom) { 2 * PARCEL_LEN } else { 8 * PARCEL_LEN };

/// A pool apart from its domain: what is abandoned and adopted.
pub(crate) struct Local {
    pub(super) home: HomeRef,
    /// What becomes of packets of other homes.
    pub(super) mode: FreeMode,
    /// What is too much here goes there.
    depot: DepotRef,
    /// Descriptors of this home, last in, first out. What does not fit goes to the depot, so that freeing never
    /// allocates.
    pub(super) free: Vec<FreeDescriptor>,
    /// Pages of this home; as above.
    pub(super) pages: Vec<FreePage>,
    /// Payload is copied into this page.
    pub(super) cursor: Option<Cursor>,
    /// Pages that receive slots have left partly used.
    pub(super) rx_cursors: ArrayVec<Cursor, RX_CURSORS>,
    /// Descriptors of other homes on their way there.
    parcels: ArrayVec<Parcel, PARCELS>,
    /// Most of `free`, within its capacity: a magazine, or whatever was made here.
    free_max: usize,
    /// Descriptors ever made for this home.
    descriptors: usize,
    /// Pages of this home, wherever they are.
    pub(super) pages_made: usize,
    /// Descriptors to take when it grows next.
    descriptors_next: usize,
    /// Pages to take when it grows next.
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

    /// It holds nothing, and grows again as a new pool does.
    pub(super) const fn begin_small(&mut self) {
        self.descriptors_next = DESCRIPTORS_FIRST;
        self.pages_next = PAGES_FIRST;
    }

    /// A thread takes the pool: packets may be sent home to it.
    pub(crate) fn open(&mut self) {
        // Freeing never allocates.
        self.free.reserve_exact(MAGAZINE.saturating_sub(self.free.len()));
        self.set_mode(FreeMode::default());
        self.home.reach.set_online(true);
    }

    /// The thread goes: what it holds is put where others find it, but for a magazine for whoever comes next, and what comes
    /// later dies where it is.
    pub(super) fn close(&mut self) {
        self.home.reach.set_kick(None);
        self.home.reach.set_online(false);
        // Whoever pushes after this look sees that nobody is online: the fences in `set_online` and `defer` pair.
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

    /// Descriptors and pages here, with what was on the way.
    pub(crate) fn collect(&mut self) -> (usize, usize) {
        self.drain_deferred();
        self.drain_returns();
        self.drain_pages();
        (self.free.len(), self.pages.len())
    }

    /// The end of a complete pool.
    pub(crate) fn destroy(self) {
        #[cfg(loom)]
        {
            self.free.into_iter().for_each(FreeDescriptor::destroy);
            self.pages.into_iter().for_each(FreePage::destroy);
        }
    }

    pub(super) fn drain_returns(&mut self) -> usize {
        // Called once per turn of a core: a load, where taking nothing would be a write to a shared line.
        if self.home.returns.packets.is_empty() {
            return 0;
        }
        self.take_returns_of(self.home)
    }

    /// What was sent to `home` stays here. Its owner misses nothing: it takes what it finds, or a slab.
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
        // It runs dry before it grows: a slab fits into a magazine.
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

    /// A parcel from the depot; false when it has none.
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

    /// The longest unused of a full magazine go to the depot.
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

    /// Sends a packet of another home there, to die, or ends it here if too many wait there already. Linux:
    /// `skb_attempt_defer_free`. The count goes up first and only the drain takes it back, so that it kicks once at most
    /// between two drains.
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
        // Who waits for its end learns of it now.
        packet.orphan();
        drop(packet.take_dst());
        // Nor may lent pages wait there: their owner may be asleep until the last one is back.
        if !home.reach.is_kickable() || packet.holds_lent() {
            packet.drop_payload(|slice| self.put_slice(slice));
        }
        self.home.stats.defer_pushed.add(1);
        home.deferred.packets.push(packet);
        if before == max >> 1 {
            self.home.stats.defer_kicks.add(1);
            home.reach.kick();
        }
        // The push before the look: either `close` finds the packet, or we find that nobody is there.
        fence(Ordering::SeqCst);
        if !home.reach.is_online() {
            self.end_deferred(home);
        }
    }

    /// Ends what came home to die; returns how many. Linux: `skb_defer_free_flush`.
    pub(super) fn drain_deferred(&mut self) -> usize {
        let deferred = &self.home.deferred;
        if deferred.count.load(Ordering::Relaxed) == 0 && deferred.packets.is_empty() {
            return 0;
        }
        deferred.count.store(0, Ordering::Relaxed);
        self.end_deferred(self.home)
    }

    /// Ends what waits for `home`: ours, or one that nobody lives in.
    fn end_deferred(&mut self, home: HomeRef) -> usize {
        let mut drained = 0;
        for packet in home.deferred.packets.take_all() {
            drained += 1;
            end(packet, self);
        }
        self.home.stats.defer_drained.add(drained as u64);
        drained
    }

    /// A descriptor of `home`, another one, stays here. Not that of another domain, which answers for its own memory.
    #[inline(always)]
    fn adopts(&self, home: HomeRef) -> bool {
        self.mode == FreeMode::Unified && home.domain == self.home.domain
    }

    /// Sends a descriptor home: alone, or in the parcel for its home.
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

    /// Sends all parcels home, full or not.
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
