//! A hash table that is read without a lock and grows without stopping its readers.
//!
//! Below: [`crate::epoch`]. Above: `demux` (established, listeners, bound), neighbors. Linux: the
//! ehash and rhashtable; growing by a second link in each entry is Herbert Xu's scheme for the
//! bridge multicast table.
//!
//! The table is split by hash into **stripes**. Each stripe is a table of its own with its own lock
//! for writers, so that writers seldom contend and growing one stripe moves only its share of the
//! entries.
//!
//! ```text
//!  tables[stripe] ──► Table { side: 0, buckets: [ · ┐ · · ] }
//!                                                   └► Node ─next[0]─► Node ─next[0]─► null
//!                                                       │               │
//!                                                     next[1]         next[1]   links of
//!                                                       ▼               ▼       another table
//! ```
//!
//! *Growing.* The writer links all entries into a table of twice the buckets, through the links
//! that the current readers do not use, and publishes it with one store. Entries neither move nor
//! are copied, and a reader in the middle of an old chain continues in it. The old links may be
//! written again only after a grace period. Until then the stripe does not grow and its chains are
//! longer; all operations still work.
//!
//! *Entries a reader may miss.* A reader walks the table it loaded. An entry inserted or removed
//! after that load may be missed or still found; an entry that is present all the time is always
//! found.
//!
//! An entry costs its key and value, 24 bytes, the allocator's header, and one to two bucket words:
//! below 64 bytes of overhead.
//!
//! Not here: the hash function, shrinking (partial walks rely on its absence), iteration in any
//! order.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::epoch::{Domain, Section};
use crate::padded::Padded;
use crate::shim::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering};

#[cfg(test)]
mod tests;

/// Upper bound of the number of stripes. Writers are the cores and the threads that open and close
/// sockets: with 64 stripes even a dozen of them seldom contend, and at 10^6 entries growing a
/// stripe touches 16,000 of them.
const STRIPES_MAX: usize = 64;

/// Inserts into an overfull stripe between two attempts to end the grace period that forbids
/// growing.
const ADVANCE_EVERY: usize = 32;

/// Buckets that one part of a walk checks per entry it may visit.
const SPARSE: usize = 16;

/// Position at which a partial walk continues ([`RcuMap::for_each_from`]); the default is the
/// start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    stripe: usize,
    bucket: usize,
}

/// A map from `K` to `V` whose lookups write no shared memory. The caller supplies the hash of each
/// key.
pub struct RcuMap<K, V> {
    /// Current table of each stripe: never null, leaked boxes. Read by every lookup, written only
    /// when a stripe grows, hence separate from `stripes`.
    tables: Box<[AtomicPtr<Table<K, V>>]>,
    stripes: Box<[Padded<Stripe>]>,
    domain: Domain,
    owns: PhantomData<(K, V)>,
}

/// State of a stripe that writers use.
struct Stripe {
    /// Lock that a writer holds.
    writer: Mutex<Growth>,
    /// Number of entries. Written under `writer`, read by `len`; Relaxed: a count orders nothing.
    count: AtomicUsize,
}

/// Time at which the current table was published, unless it is the first one: the links of the
/// previous table are free a grace period later.
type Growth = Option<u64>;

struct Table<K, V> {
    /// Index of the link in each node that this table uses.
    side: usize,
    /// First node of each chain; a power of two of them. Release by the writer, Acquire by readers.
    buckets: Box<[AtomicPtr<Node<K, V>>]>,
}

struct Node<K, V> {
    /// Next node, one link per side. Release by the writer, Acquire by readers: a reader that
    /// reaches a node sees all of it.
    next: [AtomicPtr<Self>; 2],
    hash: u32,
    key: K,
    value: V,
}

impl<K, V> RcuMap<K, V> {
    /// Makes an empty map with room for about `buckets` entries before it grows for the first time.
    /// Removed entries are retired to `domain`.
    pub fn new(domain: &Domain, buckets: usize) -> Self {
        let buckets = buckets.max(1).next_power_of_two();
        let stripes = (buckets / 4).clamp(1, STRIPES_MAX);
        let table = || AtomicPtr::new(Box::into_raw(Box::new(Table::new(0, buckets / stripes))));
        let stripe = || {
            let writer = Mutex::new(None);
            Padded::new(Stripe { writer, count: AtomicUsize::new(0) })
        };
        Self {
            tables: (0..stripes).map(|_| table()).collect(),
            stripes: (0..stripes).map(|_| stripe()).collect(),
            domain: domain.clone(),
            owns: PhantomData,
        }
    }

    /// Finds the value of `key`, which stays allocated as long as `section`.
    ///
    /// # Panics
    ///
    /// If `section` is of another domain.
    #[inline]
    pub fn lookup<'s>(&'s self, hash: u32, key: &K, section: &'s Section<'_>) -> Option<&'s V>
    where
        K: Eq,
    {
        self.lookup_where(hash, |candidate, _| candidate == key, section)
    }

    /// Finds a value with this `hash` for which `matches` returns true: for keys that are compared
    /// in part, or not stored as `K`.
    ///
    /// # Panics
    ///
    /// If `section` is of another domain.
    #[inline]
    pub fn lookup_where<'s>(
        &'s self,
        hash: u32,
        matches: impl Fn(&K, &V) -> bool,
        section: &'s Section<'_>,
    ) -> Option<&'s V> {
        assert!(section.covers(&self.domain), "section of another domain");
        let spread = Spread::of(hash);
        // SAFETY: never null, and a replaced table is retired: it may be dropped only after
        // `section` has ended.
        let table =
            unsafe { &*self.tables[spread.stripe(self.tables.len())].load(Ordering::Acquire) };
        let mut next = table.bucket(spread);
        // SAFETY: a node found in a table of the map is retired only after it was unlinked, so
        // `section` keeps it.
        while let Some(node) = unsafe { next.load(Ordering::Acquire).as_ref() } {
            if node.hash == hash && matches(&node.key, &node.value) {
                return Some(&node.value);
            }
            next = &node.next[table.side];
        }
        None
    }

    /// Returns the number of entries. Exact when no writer is active.
    pub fn len(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.count.load(Ordering::Relaxed)).sum()
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` for every entry. An entry inserted or removed meanwhile may be left out.
    ///
    /// # Panics
    ///
    /// If `section` is of another domain.
    pub fn for_each(&self, section: &Section<'_>, visit: impl FnMut(&K, &V)) {
        let _ = self.for_each_from(section, Place::default(), usize::MAX, visit);
    }

    /// Does a part of such a walk, so that each part may use a section of its own. `visit` is
    /// called for about `entries` entries from `from` on (the last chain is visited to its end), or
    /// fewer where the table is sparse. Returns the position to continue at, `None` at the end. If
    /// the table grows between two parts, an entry may be visited twice, but no entry that is
    /// present all the time is left out.
    ///
    /// # Panics
    ///
    /// If `section` is of another domain.
    pub fn for_each_from(
        &self,
        section: &Section<'_>,
        from: Place,
        entries: usize,
        mut visit: impl FnMut(&K, &V),
    ) -> Option<Place> {
        assert!(section.covers(&self.domain), "section of another domain");
        let buckets_max = entries.saturating_mul(SPARSE);
        let (mut visited, mut walked) = (0, 0);
        let mut first = from.bucket;
        for (stripe, table) in self.tables.iter().enumerate().skip(from.stripe) {
            // A stripe with an entry that is present all the time is not skipped: a writer updates
            // the count before it unlocks the stripe.
            if self.stripes[stripe].count.load(Ordering::Relaxed) == 0 {
                first = 0;
                continue;
            }
            // SAFETY: as in `lookup_where`.
            let table = unsafe { &*table.load(Ordering::Acquire) };
            // In a grown table, the entries of a bucket are in the same bucket or a later one.
            for (bucket, head) in table.buckets.iter().enumerate().skip(core::mem::take(&mut first))
            {
                if visited >= entries || walked >= buckets_max {
                    return Some(Place { stripe, bucket });
                }
                walked += 1;
                let mut next = head;
                // SAFETY: as in `lookup_where`.
                while let Some(node) = unsafe { next.load(Ordering::Acquire).as_ref() } {
                    visit(&node.key, &node.value);
                    visited += 1;
                    next = &node.next[table.side];
                }
            }
        }
        None
    }
}

impl<K, V> RcuMap<K, V>
where
    K: Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Adds an entry; `Err` gives it back if the key is present.
    pub fn insert(&self, hash: u32, key: K, value: V) -> Result<(), (K, V)> {
        let mut writer = self.write(hash);
        if writer.find(hash, &key).is_some() {
            return Err((key, value));
        }
        let table = writer.table;
        let bucket = table.bucket(writer.spread);
        let next = bucket.load(Ordering::Relaxed);
        bucket.store(Node::leak(hash, key, value, table.side, next), Ordering::Release);
        let count = writer.stripe.change_count(|count| count + 1);
        let outgrown =
            if count > table.buckets.len() { self.grow(&mut writer, count) } else { None };
        drop(writer);
        self.retire(outgrown);
        Ok(())
    }

    /// Replaces the value of `key` by `value` if `replaceable` returns true for the current value;
    /// `Err` gives both back if there is no such value. A reader always finds the old value or the
    /// new one.
    pub fn replace_if(
        &self,
        hash: u32,
        key: K,
        value: V,
        replaceable: impl FnOnce(&V) -> bool,
    ) -> Result<(), (K, V)> {
        let writer = self.write(hash);
        let Some(found) = writer.find(hash, &key).filter(|found| replaceable(&found.node().value))
        else {
            return Err((key, value));
        };
        let side = writer.table.side;
        let next = found.node().next[side].load(Ordering::Relaxed);
        found.place.store(Node::leak(hash, key, value, side, next), Ordering::Release);
        let replaced = found.pointer;
        drop(writer);
        self.retire(Some(replaced));
        Ok(())
    }

    /// Adds an entry or replaces the current one. Returns true if it replaced one.
    pub fn insert_or_replace(&self, hash: u32, key: K, value: V) -> bool {
        let mut entry = (key, value);
        loop {
            entry = match self.replace_if(hash, entry.0, entry.1, |_| true) {
                Ok(()) => return true,
                Err(absent) => match self.insert(hash, absent.0, absent.1) {
                    Ok(()) => return false,
                    Err(present) => present,
                },
            };
        }
    }

    /// Removes an entry. Returns false if there was none.
    pub fn remove(&self, hash: u32, key: &K) -> bool {
        self.remove_if(hash, key, |_| true)
    }

    /// Removes an entry if `removable` returns true for its value, for example not for a successor
    /// that another thread has inserted since.
    pub fn remove_if(&self, hash: u32, key: &K, removable: impl FnOnce(&V) -> bool) -> bool {
        let writer = self.write(hash);
        let Some(found) = writer.find(hash, key).filter(|found| removable(&found.node().value))
        else {
            return false;
        };
        let next = found.node().next[writer.table.side].load(Ordering::Relaxed);
        // Release: a reader may reach the successor by this store alone.
        found.place.store(next, Ordering::Release);
        writer.stripe.change_count(|count| count - 1);
        let removed = found.pointer;
        drop(writer);
        self.retire(Some(removed));
        true
    }

    /// Takes the writer lock of the stripe of `hash`.
    fn write(&self, hash: u32) -> Writer<'_, K, V> {
        let spread = Spread::of(hash);
        let index = spread.stripe(self.stripes.len());
        let (place, stripe) = (&self.tables[index], &*self.stripes[index]);
        let growth = stripe.writer.lock();
        // SAFETY: never null; a table is replaced, and then retired, only under the lock just
        // taken.
        let table = unsafe { &*place.load(Ordering::Relaxed) };
        Writer { place, table, stripe, spread, growth }
    }

    /// Doubles a stripe's table if the links for it are free. Returns the old table, for `retire`.
    #[cold]
    fn grow(&self, writer: &mut Writer<'_, K, V>, count: usize) -> Option<NonNull<Table<K, V>>> {
        if let Some(mark) = *writer.growth
            && !self.domain.has_passed(mark)
        {
            if !count.is_multiple_of(ADVANCE_EVERY) {
                return None;
            }
            self.domain.try_advance();
            if !self.domain.has_passed(mark) {
                return None;
            }
        }
        let old = writer.table;
        let new = Table::new(old.side ^ 1, old.buckets.len() * 2);
        for bucket in &old.buckets {
            let mut next = bucket;
            while let Some(pointer) = NonNull::new(next.load(Ordering::Relaxed)) {
                // SAFETY: nodes are unlinked, and then retired, only under the stripe's lock.
                let node = unsafe { pointer.as_ref() };
                let bucket = new.bucket(Spread::of(node.hash));
                node.next[new.side].store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
                bucket.store(pointer.as_ptr(), Ordering::Relaxed);
                next = &node.next[old.side];
            }
        }
        // Release: the links of the new table are visible with it.
        let outgrown = writer.place.swap(Box::into_raw(Box::new(new)), Ordering::Release);
        *writer.growth = Some(self.domain.mark());
        NonNull::new(outgrown)
    }

    /// Retires a node or table that this thread has just unlinked. Called after the stripe's lock
    /// was released, because the drops it may run can use the map.
    fn retire<T: Send + 'static>(&self, unlinked: Option<NonNull<T>>) {
        if let Some(unlinked) = unlinked {
            // SAFETY: a leaked box that this thread alone unlinked, under the stripe's lock, from
            // the current table. Readers of an older table began before that was replaced, hence
            // before this.
            unsafe { self.domain.retire_raw(unlinked) };
        }
    }
}

impl<K, V> Drop for RcuMap<K, V> {
    fn drop(&mut self) {
        for table in &self.tables {
            // SAFETY: a leaked box; `&mut self` excludes readers and writers of the current table.
            let table = unsafe { Box::from_raw(table.load(Ordering::Relaxed)) };
            for bucket in &table.buckets {
                let mut node = bucket.load(Ordering::Relaxed);
                while !node.is_null() {
                    // SAFETY: a leaked box in exactly one chain of the current table. Readers of
                    // older tables borrow the map while they use them, so there are none.
                    let linked = unsafe { Box::from_raw(node) };
                    node = linked.next[table.side].load(Ordering::Relaxed);
                }
            }
        }
    }
}

impl<K, V> fmt::Debug for RcuMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcuMap")
            .field("len", &self.len())
            .field("stripes", &self.stripes.len())
            .finish_non_exhaustive()
    }
}

impl Stripe {
    /// Changes the count, by the holder of `writer`. Returns the new count.
    fn change_count(&self, change: impl FnOnce(usize) -> usize) -> usize {
        let count = change(self.count.load(Ordering::Relaxed));
        self.count.store(count, Ordering::Relaxed);
        count
    }
}

impl<K, V> Table<K, V> {
    fn new(side: usize, buckets: usize) -> Self {
        let empty = || AtomicPtr::new(ptr::null_mut());
        Self { side, buckets: (0..buckets).map(|_| empty()).collect() }
    }

    #[inline]
    fn bucket(&self, spread: Spread) -> &AtomicPtr<Node<K, V>> {
        &self.buckets[spread.bucket(self.buckets.len())]
    }
}

impl<K, V> Node<K, V> {
    /// Makes a node whose link on `side` is `next`; the other link is not in use.
    fn leak(hash: u32, key: K, value: V, side: usize, next: *mut Self) -> *mut Self {
        let link = |at| AtomicPtr::new(if at == side { next } else { ptr::null_mut() });
        Box::into_raw(Box::new(Self { next: [link(0), link(1)], hash, key, value }))
    }
}

/// A stripe, locked for writing.
struct Writer<'a, K, V> {
    place: &'a AtomicPtr<Table<K, V>>,
    table: &'a Table<K, V>,
    stripe: &'a Stripe,
    spread: Spread,
    growth: MutexGuard<'a, Growth>,
}

impl<K: Eq, V> Writer<'_, K, V> {
    fn find(&self, hash: u32, key: &K) -> Option<Found<'_, K, V>> {
        let mut place = self.table.bucket(self.spread);
        loop {
            let found = Found { place, pointer: NonNull::new(place.load(Ordering::Relaxed))? };
            // SAFETY: nodes are unlinked, and then retired, only under the lock that `self` holds.
            let node = unsafe { &*found.pointer.as_ptr() };
            if node.hash == hash && node.key == *key {
                return Some(found);
            }
            place = &node.next[self.table.side];
        }
    }
}

/// A node, and the link that points to it. Used only while the stripe's lock is held.
struct Found<'a, K, V> {
    place: &'a AtomicPtr<Node<K, V>>,
    pointer: NonNull<Node<K, V>>,
}

impl<K, V> Found<'_, K, V> {
    fn node(&self) -> &Node<K, V> {
        // SAFETY: nodes are unlinked, and then retired, only under the lock that the finder holds.
        unsafe { self.pointer.as_ref() }
    }
}

/// A hash multiplied once more, so that entries spread evenly over stripes and buckets even if the
/// caller's hash is poor.
#[derive(Clone, Copy)]
struct Spread(u32);

impl Spread {
    #[inline]
    fn of(hash: u32) -> Self {
        // Fibonacci hashing: 2^64 divided by the golden ratio; the upper half depends on every bit.
        let product = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(u32::try_from(product >> 32).expect("half a word"))
    }

    /// Returns the stripe, from the top bits; `count` is a power of two.
    #[inline]
    fn stripe(self, count: usize) -> usize {
        self.0.rotate_left(8) as usize & (count - 1)
    }

    /// Returns the bucket, from the low bits; `count` is a power of two.
    #[inline]
    fn bucket(self, count: usize) -> usize {
        self.0 as usize & (count - 1)
    }
}
