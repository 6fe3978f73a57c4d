//! Entries in a core's timer wheel that belong to one owner, tracked so that the owner arms no more
//! entries than it needs.
//!
//! Above: connections and neighbors, whose deadlines move with every packet, and the address
//! claims, group reports and autoconfiguration of a host. Below: [`crate::base::timer`]. When a
//! deadline moves to a later time, its entry stays in the wheel. When that entry fires, the owner
//! finds that nothing is due and arms a new entry. A move to an earlier deadline arms a second
//! entry. If the owner armed a new entry for every entry that fires, each such move would add an
//! entry permanently.
//!
//! An owner therefore remembers two entries. The nearer one covers the current deadline. The
//! farther one was armed before an earlier deadline was set, and is used again once the nearer one
//! has fired, so a keepalive deadline hours away needs one entry and not one per exchange. Any
//! third entry is forgotten: it fires without effect. An owner that ends removes the remembered
//! entries from the wheel.
//!
//! Not here: the deadlines themselves, and the work done when they expire.

use std::sync::atomic::{AtomicU64, Ordering};

use pkt::Instant;

use super::timer::TimerHandle;

/// Value of "no entry".
const NONE: u64 = u64::MAX;

/// One remembered entry.
#[derive(Clone, Copy)]
struct Entry {
    at_ns: u64,
    /// Handle of the entry, encoded by `TimerHandle::to_bits`.
    handle: u64,
}

impl Entry {
    const NONE: Self = Self { at_ns: NONE, handle: NONE };
}

/// The two remembered entries of one owner. All times are in nanoseconds.
#[derive(Debug)]
pub(crate) struct ArmedTimers {
    /// Time up to which entries have fired. The core that runs the wheel writes it before the
    /// owner's lock is taken to check the deadline; the lock makes the value visible to later
    /// holders.
    fired_ns: AtomicU64,
    /// Time of the earliest known entry. This and the following fields are written under the
    /// owner's lock.
    near_ns: AtomicU64,
    /// Time of a later entry, used again after the nearer one has fired.
    far_ns: AtomicU64,
    /// Handles of both entries, encoded by `TimerHandle::to_bits`.
    near: AtomicU64,
    far: AtomicU64,
}

impl ArmedTimers {
    pub(crate) const fn new() -> Self {
        Self {
            fired_ns: AtomicU64::new(0),
            near_ns: AtomicU64::new(NONE),
            far_ns: AtomicU64::new(NONE),
            near: AtomicU64::new(NONE),
            far: AtomicU64::new(NONE),
        }
    }

    /// Records that the wheel has fired an entry of this owner at `now`. The owner must check its
    /// deadline afterwards.
    pub(crate) fn fired(&self, now: Instant) {
        self.fired_ns.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns whether `deadline` needs a new entry, and in that case records the entry as armed.
    /// Called under the owner's lock.
    pub(crate) fn must_arm(&self, deadline: Instant) -> bool {
        let deadline = deadline.as_nanos();
        let near = self.near_ns.load(Ordering::Relaxed);
        let fired = self.fired_ns.load(Ordering::Relaxed);
        if deadline >= near && near > fired {
            return false;
        }
        let pending = |ns: &AtomicU64, handle: &AtomicU64| {
            let (at_ns, handle) = (ns.load(Ordering::Relaxed), handle.load(Ordering::Relaxed));
            if at_ns > fired { Entry { at_ns, handle } } else { Entry::NONE }
        };
        let far = pending(&self.far_ns, &self.far);
        let (near, far) = match pending(&self.near_ns, &self.near) {
            Entry { at_ns: NONE, .. } => (far, Entry::NONE),
            near => (near, far),
        };
        let must = deadline < near.at_ns;
        let new = Entry { at_ns: deadline, handle: NONE };
        let (near, far) = match (must, far) {
            (true, Entry { at_ns: NONE, .. }) => (new, near),
            (true, far) => (new, far),
            (false, far) => (near, far),
        };
        self.remember(near, far);
        must
    }

    fn remember(&self, near: Entry, far: Entry) {
        self.near_ns.store(near.at_ns, Ordering::Relaxed);
        self.near.store(near.handle, Ordering::Relaxed);
        self.far_ns.store(far.at_ns, Ordering::Relaxed);
        self.far.store(far.handle, Ordering::Relaxed);
    }

    /// Stores the handle of the entry that [`must_arm`](Self::must_arm) asked for. Called under the
    /// owner's lock.
    pub(crate) fn record(&self, handle: TimerHandle) {
        self.near.store(handle.to_bits(), Ordering::Relaxed);
    }

    /// Ends the owner: returns the remembered entries, which the caller removes from the wheel.
    /// Some may have fired already. Called under the owner's lock.
    pub(crate) fn take_handles(&self) -> [Option<TimerHandle>; 2] {
        let handles = [&self.near, &self.far].map(|handle| handle.load(Ordering::Relaxed));
        self.remember(Entry::NONE, Entry::NONE);
        handles.map(|bits| (bits != NONE).then(|| TimerHandle::from_bits(bits)))
    }

    /// Returns whether an entry is pending that fires at `deadline` or earlier. Called under the
    /// owner's lock.
    pub(crate) fn covers(&self, deadline: Instant) -> bool {
        let fired = self.fired_ns.load(Ordering::Relaxed);
        [&self.near_ns, &self.far_ns].into_iter().any(|entry| {
            let entry = entry.load(Ordering::Relaxed);
            entry > fired && entry <= deadline.as_nanos()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn a_later_deadline_needs_no_entry_until_the_armed_one_has_fired() {
        let armed = ArmedTimers::new();
        assert!(armed.must_arm(at(200)));
        assert!(!armed.must_arm(at(200)) && !armed.must_arm(at(240)));
        armed.fired(at(201));
        assert!(armed.must_arm(at(240)));
    }

    #[test]
    fn the_farther_entry_is_used_again_after_the_nearer_has_fired() {
        let armed = ArmedTimers::new();
        assert!(armed.must_arm(at(7_200_000)) && armed.must_arm(at(200)) && armed.must_arm(at(40)));
        armed.fired(at(40));
        assert!(
            !armed.must_arm(at(7_300_000)),
            "an entry is armed although the farther entry fires before this deadline"
        );
        // The entry at 200 ms was forgotten: its firing changes nothing.
        armed.fired(at(200));
        assert!(!armed.must_arm(at(7_300_000)));
        armed.fired(at(7_200_000));
        assert!(armed.must_arm(at(7_300_000)));
    }

    /// For any sequence of deadlines, an entry fires at or before each of them, and few entries are
    /// pending at once.
    #[test]
    fn no_deadline_is_missed_and_entries_do_not_accumulate() {
        let mut rng = tcp::Rng::new(1);
        let armed = ArmedTimers::new();
        let mut entries = BTreeSet::new();
        let mut number = 0;
        for now in 0..100_000u64 {
            while let Some(entry) = entries.first().copied().filter(|&(due, _)| due <= now) {
                entries.remove(&entry);
                armed.fired(at(now));
            }
            let deadline = now + 1 + [5, 40, 200, 7200][rng.below(4) as usize];
            if armed.must_arm(at(deadline)) {
                number += 1;
                entries.insert((deadline, number));
            }
            let first = entries.first().expect("an entry is pending").0;
            assert!(first <= deadline, "at {now}: no entry covers {deadline}");
            assert!(entries.len() < 100, "{} entries are pending at {now}", entries.len());
        }
    }
}
