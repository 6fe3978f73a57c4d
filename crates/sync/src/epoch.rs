//! Grace periods: when an object that was removed from a shared table may be freed.
//!
//! Below: the `shim`. Above: [`crate::rcu`], [`crate::rcu_map`], every lookup in `stack`. Linux:
//! RCU (`rcu_read_lock`, `call_rcu`, quiescent states); the counting is Fraser's three epochs.
//!
//! A reader may use an object it found while its [`Section`] is open, without a reference count and
//! without writing a shared line. A writer makes an object unreachable and then retires it; the
//! object is dropped when every section that might have seen it has ended.
//!
//! ```text
//!   global epoch   … 7 ──────► 8 ──────► 9   advances only when every online reader is at it
//!   reader A         [7      ]   [8 ]               online between the brackets
//!   reader B             [7        ]
//!   writer             × unlink, retire at 7           dropped from 9 on
//! ```
//!
//! *Why two steps suffice.* A reader that still uses the object passed the fence of its
//! announcement before the writer's fence in `retire`; otherwise it would have seen the object
//! unlinked. An advance whose own fence comes after the announcement sees that reader and stops
//! unless the reader is at the current epoch. An advance whose fence comes before it has read an
//! epoch no later than the one `retire` recorded. So with recorded epoch `e` the global epoch
//! reaches at most `e + 1` until the reader goes offline.
//!
//! There are three ways to read. An application thread pins around its lookups and is offline
//! otherwise, so it may sleep. A core calls [`Reader::stay_online`] once and [`Reader::quiescent`]
//! between turns: its pins then only change a counter in its own memory, but it must go offline
//! before it sleeps, or nothing is freed. A thread that [lingers](Reader::linger) is in between:
//! the first section of a call announces, and the end of the call withdraws the announcement.
//!
//! Every few retirements reclaim earlier retired objects. After the last retirement, the remaining
//! objects wait for a call of [`Domain::settle`]; the function set with [`Domain::set_on_waiting`]
//! is called when such a call is needed.
//!
//! Not here: exclusion of writers (each table has its locks), reference counts.

use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use std::collections::VecDeque;
use std::sync::OnceLock;

use crate::padded::Padded;
use crate::percore::PerCore;
use crate::shim::{self, Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, fence};

#[cfg(test)]
mod tests;

/// Announcement of a reader without an open section. Epochs start at 1.
const OFFLINE: u64 = 0;

/// Steps of the global epoch from retirement to drop, as the head of the module explains.
const GRACE: u64 = 2;

/// Retirements of one bag between two attempts at reclaiming: spreads the scan of all readers, one
/// cache line each, over many objects.
const RECLAIM_EVERY: u32 = if cfg!(loom) { 2 } else { 64 };

/// Objects dropped in one attempt: above `RECLAIM_EVERY`, so that a bag that fell behind catches
/// up, but bounded, because a packet may be waiting for this thread.
const RECLAIM_MAX: usize = 2 * RECLAIM_EVERY as usize;

/// Number of bags: with several of them, threads that retire at the same time seldom contend.
const BAGS: usize = if cfg!(loom) { 1 } else { 8 };

/// A set of readers and the retired objects that wait for them. Clones are the same domain.
#[derive(Clone)]
pub struct Domain {
    shared: Arc<Shared>,
}

struct Shared {
    /// Global epoch. Written by the thread that advances it, under the lock of `readers`; read by
    /// every announcement.
    epoch: Padded<AtomicU64>,
    /// Announcement of each reader: the epoch it is at, or `OFFLINE`.
    readers: Mutex<Vec<Arc<Padded<AtomicU64>>>>,
    bags: PerCore<Mutex<Bag>>,
    /// Whether objects were retired since [`Domain::settle`] last began. Read by every retirement,
    /// written once between two calls of `settle`.
    waiting: Padded<AtomicBool>,
    on_waiting: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Domain {
    /// Makes a domain without readers.
    pub fn new() -> Self {
        let shared = Shared {
            epoch: Padded::new(AtomicU64::new(OFFLINE + 1)),
            readers: Mutex::new(Vec::new()),
            bags: PerCore::new(BAGS, |_| Mutex::new(Bag::default())),
            waiting: Padded::new(AtomicBool::new(false)),
            on_waiting: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes a reader, offline. One for each execution context, kept as long as the context exists.
    pub fn reader(&self) -> Reader {
        let announced = Arc::new(Padded::new(AtomicU64::new(OFFLINE)));
        self.shared.readers.lock().push(Arc::clone(&announced));
        Reader {
            domain: self.clone(),
            announced,
            depth: Cell::new(0),
            online: Cell::new(false),
            lingers: Cell::new(false),
            kept: Cell::new(false),
        }
    }

    /// Drops `object` once all sections open now have ended, on the thread that reclaims it.
    pub fn retire<T: Send + 'static>(&self, object: Box<T>) {
        let object = NonNull::from(Box::leak(object));
        // SAFETY: the object came out of a box that has no other owner.
        unsafe { self.retire_raw(object) };
    }

    /// Tries to end a grace period and drops all objects whose grace period is over. For idle
    /// moments and for shutdown; otherwise every few calls of `retire` do it. Returns the number of
    /// objects that still wait.
    pub fn reclaim(&self) -> usize {
        for _ in 0..GRACE {
            self.try_advance();
        }
        for bag in self.shared.bags.iter() {
            self.drop_due(bag, usize::MAX);
        }
        self.pending()
    }

    /// Sets the function to call when the first object is retired after a [`settle`](Self::settle),
    /// on the thread that retires it. The function must arrange for another `settle` a moment
    /// later. A domain has one such function for good; returns false if it has one already.
    pub fn set_on_waiting(&self, notify: impl Fn() + Send + Sync + 'static) -> bool {
        self.shared.on_waiting.set(Box::new(notify)).is_ok()
    }

    /// Returns whether objects were retired since [`settle`](Self::settle) last began, or it left
    /// some behind.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// As [`reclaim`](Self::reclaim), for the thread that handles the last objects when retirements
    /// have ceased. Returns true if some still wait for readers; then it must be called again a
    /// moment later.
    pub fn settle(&self) -> bool {
        // Cleared before the bags are scanned: an object that is retired too late for the scan,
        // under a bag's lock, finds the flag clear and sets it.
        self.shared.waiting.store(false, Ordering::Relaxed);
        let left = self.reclaim() > 0;
        if left {
            self.shared.waiting.store(true, Ordering::Relaxed);
        }
        left
    }

    /// Waits for a grace period, after which every object retired before this call has been
    /// dropped. `wait` lets time pass between two checks of the readers; if it returns false, the
    /// remaining objects are dropped later. The caller must not be in a section.
    pub fn synchronize(&self, mut wait: impl FnMut() -> bool) {
        let mark = self.mark();
        loop {
            // Checked first, so that the reclaim after the grace period drops all of the objects.
            let passed = self.has_passed(mark);
            self.reclaim();
            if passed || !wait() {
                return;
            }
        }
    }

    /// Returns the number of objects retired and not yet dropped.
    pub fn pending(&self) -> usize {
        self.shared.bags.iter().map(|bag| bag.lock().objects.len()).sum()
    }

    /// As `retire`, for an object that readers may still refer to.
    ///
    /// # Safety
    ///
    /// `object` came from a box, no reader that pins from here on can reach it, and no other code
    /// frees it.
    pub(crate) unsafe fn retire_raw<T: Send + 'static>(&self, object: NonNull<T>) {
        // The caller's unlinking comes before the read of the epoch (see "Why two steps suffice").
        fence(Ordering::SeqCst);
        let (place, mut bag) = self.lock_bag();
        let epoch = self.shared.epoch.load(Ordering::Relaxed);
        bag.objects.push_back(Retired { epoch, object: object.cast(), drop: drop_box::<T> });
        bag.since_reclaim += 1;
        let due = bag.since_reclaim >= RECLAIM_EVERY;
        if due {
            bag.since_reclaim = 0;
        }
        drop(bag);
        if due {
            self.try_advance();
            self.drop_due(place, RECLAIM_MAX);
        }
        // Checked after the bag's lock was held, which orders this with `settle`.
        let waiting = &self.shared.waiting;
        if !waiting.load(Ordering::Relaxed)
            && !waiting.swap(true, Ordering::Relaxed)
            && let Some(notify) = self.shared.on_waiting.get()
        {
            notify();
        }
    }

    /// Returns the current moment for [`has_passed`](Self::has_passed): an object that the caller
    /// unpublished before this call is out of every reader's reach once that returns true.
    pub(crate) fn mark(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.shared.epoch.load(Ordering::Relaxed)
    }

    /// Returns true if a grace period has passed since `mark`.
    pub(crate) fn has_passed(&self, mark: u64) -> bool {
        // Acquire: the reads of the sections that ended come before the caller's following writes.
        self.shared.epoch.load(Ordering::Acquire) >= mark + GRACE
    }

    /// Advances the epoch if every online reader is at it. If another thread is advancing it,
    /// returns instead of waiting.
    pub(crate) fn try_advance(&self) {
        let Some(readers) = self.shared.readers.try_lock() else { return };
        let epoch = self.shared.epoch.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Acquire: the reads of a reader before it went offline or moved to this epoch come before
        // the drop.
        let behind = |announced: &Arc<Padded<AtomicU64>>| {
            let at = announced.load(Ordering::Acquire);
            at != OFFLINE && at != epoch
        };
        if !readers.iter().any(behind) {
            self.shared.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// Locks a bag that is not in use, starting with this thread's; waits for its own if all are in
    /// use.
    fn lock_bag(&self) -> (&Mutex<Bag>, MutexGuard<'_, Bag>) {
        let bags = &self.shared.bags;
        let own = shim::thread_slot() % BAGS;
        let mut places = (own..own + BAGS).map(|place| &bags[place % BAGS]);
        let free = places.find_map(|bag| Some((bag, bag.try_lock()?)));
        free.unwrap_or_else(|| (&bags[own], bags[own].lock()))
    }

    /// Drops up to `max` objects of `bag` whose grace period is over, after releasing the lock: a
    /// drop may retire further objects.
    fn drop_due(&self, bag: &Mutex<Bag>, max: usize) {
        let mut bag = bag.lock();
        // Epochs in a bag never decrease, because each was read under its lock.
        let due = bag.objects.iter().take(max).take_while(|it| self.has_passed(it.epoch)).count();
        let objects: Vec<_> = bag.objects.drain(..due).collect();
        drop(bag);
        drop(objects);
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Domain {}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("epoch", &self.shared.epoch.load(Ordering::Relaxed))
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

/// The right to open sections, for one thread at a time.
pub struct Reader {
    domain: Domain,
    announced: Arc<Padded<AtomicU64>>,
    /// Number of open sections, plus one while `online`.
    depth: Cell<u32>,
    /// Whether the reader stays announced between sections until it goes offline.
    online: Cell<bool>,
    /// Whether the reader stays announced after its first section until it rests.
    lingers: Cell<bool>,
    /// Whether the reader is announced now without an open section.
    kept: Cell<bool>,
}

impl Reader {
    /// Opens a section. The first one announces (a store and a fence); inside another one, or while
    /// online, it costs an increment of this reader's own counter.
    #[inline]
    pub fn pin(&self) -> Section<'_> {
        self.enter();
        Section { reader: self }
    }

    /// Stays announced between sections until [`go_offline`](Self::go_offline): for a core. The
    /// caller must call [`quiescent`](Self::quiescent) once a turn.
    pub fn stay_online(&self) {
        if !self.online.replace(true) {
            self.enter();
        }
    }

    /// Ends `stay_online`; required before sleeping.
    pub fn go_offline(&self) {
        if self.online.replace(false) {
            self.leave();
        }
        self.rest();
    }

    /// Keeps the announcement of a section for the following ones, until [`rest`](Self::rest) or
    /// [`quiescent`](Self::quiescent): for a thread that opens several sections in one call, and
    /// rests at its end.
    pub fn linger(&self) {
        self.lingers.set(true);
    }

    /// Withdraws a kept announcement at the end of a call, when the thread uses no object any more.
    /// One store if there was a section.
    #[inline]
    pub fn rest(&self) {
        if self.kept.take() {
            // Release: all reads of the sections come before the advance of a thread that sees this
            // reader offline.
            self.announced.store(OFFLINE, Ordering::Release);
        }
    }

    /// Announces that no object found so far is in use any more. A load if the epoch has not moved.
    /// Does nothing, and returns false, while a section is open.
    #[inline]
    pub fn quiescent(&self) -> bool {
        if self.depth.get() != u32::from(self.online.get()) {
            return false;
        }
        if self.online.get() {
            // Relaxed: an old value delays the advance until the next turn.
            let epoch = self.domain.shared.epoch.load(Ordering::Relaxed);
            if self.announced.load(Ordering::Relaxed) != epoch {
                announce(&self.announced, epoch);
            }
        } else {
            self.rest();
        }
        true
    }

    /// Returns the domain of this reader.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    #[inline]
    fn enter(&self) {
        let depth = self.depth.get();
        // A kept announcement protects the objects this section finds as it protected those of the
        // section before.
        if depth == 0 && !self.kept.take() {
            let epoch = self.domain.shared.epoch.load(Ordering::Relaxed);
            announce(&self.announced, epoch);
        }
        // Overflow would need four billion leaked sections, and would end in a use after free.
        self.depth.set(depth.checked_add(1).expect("sections leaked"));
    }

    #[inline]
    fn leave(&self) {
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        if depth == 0 {
            self.kept.set(true);
            if !self.lingers.get() {
                self.rest();
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.domain.shared.readers.lock();
        readers.retain(|announced| !Arc::ptr_eq(announced, &self.announced));
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("depth", &self.depth.get())
            .field("online", &self.online.get())
            .finish_non_exhaustive()
    }
}

/// An open section: objects found in tables of its domain stay allocated until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Section<'a> {
    reader: &'a Reader,
}

impl Section<'_> {
    /// Returns true if this section keeps objects of `domain` allocated.
    #[inline]
    pub fn covers(&self, domain: &Domain) -> bool {
        self.reader.domain == *domain
    }
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        self.reader.leave();
    }
}

/// Retired objects, oldest first.
#[derive(Default)]
struct Bag {
    objects: VecDeque<Retired>,
    since_reclaim: u32,
}

/// A box without its type, dropped together with this value.
struct Retired {
    /// Global epoch, read after the object was unlinked.
    epoch: u64,
    object: NonNull<()>,
    /// `drop_box` for the type of `object`.
    drop: unsafe fn(NonNull<()>),
}

// SAFETY: `retire_raw` takes `T: Send` only, and a `Retired` is the only owner of its object.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: `object` is a leaked box of the type `drop` was made for. It is dropped here
        // only: after its grace period, or with the domain, which no reader outlives.
        unsafe { (self.drop)(self.object) };
    }
}

/// # Safety
/// `object` is a leaked `Box<T>` that no thread uses any more.
unsafe fn drop_box<T>(object: NonNull<()>) {
    // SAFETY: by the caller's promise.
    drop(unsafe { Box::from_raw(object.cast::<T>().as_ptr()) });
}

/// Makes a reader's announcement visible before its following reads. The store is also a Release:
/// the reads of earlier sections come before the advance of a thread that sees this announcement.
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
#[inline]
fn announce(announced: &AtomicU64, epoch: u64) {
    announced.store(epoch, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// As above. On x86 a locked exchange orders as the fence does, at half the cost of `mfence`.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
fn announce(announced: &AtomicU64, epoch: u64) {
    announced.swap(epoch, Ordering::SeqCst);
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}
