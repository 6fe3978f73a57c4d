//! What a core's timer wheel holds for one owner, so that the owner arms what is missing and no more.
//!
//! Above: connections and neighbors, whose deadlines move with every packet. Below: [`crate::base::timer`]. A deadline that moves away
//! leaves its entry behind, which fires, finds nothing due and arms anew. If every entry that fires armed another, each move to
//! an earlier deadline would add one for good.
//!
//! Two entries are remembered. The nearer one is for the present deadline or comes before it. The farther one is what
//! was armed when an earlier deadline came up; it is of use again once the nearer has fired, so that a keepalive hours
//! away is armed once and not after every exchange. Any third entry is forgotten and ends when it fires. An owner that ends
//! takes those that are remembered out of the wheel.
//!
//! Not here: the deadlines themselves, and what is done when they come.

use std::sync::atomic::{AtomicU64, Ordering};

use pkt::Instant;

use super::timer::TimerHandle;

/// No entry.
const NONE: u64 = u64::MAX;

/// See the module head. Nanoseconds throughout.
#[derive(Debug)]
pub(crate) struct Armed {
    /// Entries up to here have fired. Written by the core that runs the wheel, before it brings the owner to look at
    /// its deadline under its lock, which is what orders it.
    fired_ns: AtomicU64,
    /// The earliest entry that is known. Written under the owner's lock, as the next.
    near_ns: AtomicU64,
    /// A later one, kept for when the first has fired.
    far_ns: AtomicU64,
    /// The handles of both, as `TimerHandle::to_bits` has them.
    near: AtomicU64,
    far: AtomicU64,
}

impl Armed {
    pub(crate) const fn new() -> Self {
        Self {
            fired_ns: AtomicU64::new(0),
            near_ns: AtomicU64::new(NONE),
            far_ns: AtomicU64::new(NONE),
            near: AtomicU64::new(NONE),
            far: AtomicU64::new(NONE),
        }
    }

    /// The wheel has handed over an entry of this owner at `now`. The owner's next look at its deadline must follow.
    pub(crate) fn fired(&self, now: Instant) {
        self.fired_ns.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether `deadline` needs an entry of its own: then it counts as armed. Under the owner's lock.
    pub(crate) fn must_arm(&self, deadline: Instant) -> bool {
        let deadline = deadline.as_nanos();
        let near = self.near_ns.load(Ordering::Relaxed);
        let fired = self.fired_ns.load(Ordering::Relaxed);
        if deadline >= near && near > fired {
            return false;
        }
        let pending = |ns: &AtomicU64, handle: &AtomicU64| {
            let (ns, handle) = (ns.load(Ordering::Relaxed), handle.load(Ordering::Relaxed));
            if ns > fired { (ns, handle) } else { (NONE, NONE) }
        };
        let far = pending(&self.far_ns, &self.far);
        let (near, far) = match pending(&self.near_ns, &self.near) {
            (NONE, _) => (far, (NONE, NONE)),
            near => (near, far),
        };
        let must = deadline < near.0;
        let (near, far) = match (must, far) {
            (true, (NONE, _)) => ((deadline, NONE), near),
            (true, far) => ((deadline, NONE), far),
            (false, far) => (near, far),
        };
        self.remember(near, far);
        must
    }

    fn remember(&self, near: (u64, u64), far: (u64, u64)) {
        self.near_ns.store(near.0, Ordering::Relaxed);
        self.near.store(near.1, Ordering::Relaxed);
        self.far_ns.store(far.0, Ordering::Relaxed);
        self.far.store(far.1, Ordering::Relaxed);
    }

    /// The entry that [`must_arm`](Self::must_arm) has asked for. Under the owner's lock.
    pub(crate) fn armed(&self, handle: TimerHandle) {
        self.near.store(handle.to_bits(), Ordering::Relaxed);
    }

    /// The owner ends: the entries to be taken out of the wheel, those included that have fired meanwhile. Under the owner's lock.
    pub(crate) fn take_handles(&self) -> [Option<TimerHandle>; 2] {
        let handles = [&self.near, &self.far].map(|handle| handle.load(Ordering::Relaxed));
        self.remember((NONE, NONE), (NONE, NONE));
        handles.map(|bits| (bits != NONE).then(|| TimerHandle::from_bits(bits)))
    }

    /// Whether an entry is pending that fires at `deadline` or before. Under the owner's lock.
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
    fn a_later_deadline_needs_no_entry() {
        let armed = Armed::new();
        assert!(armed.must_arm(at(200)));
        assert!(!armed.must_arm(at(200)) && !armed.must_arm(at(240)));
        armed.fired(at(201));
        assert!(armed.must_arm(at(240)));
    }

    #[test]
    fn what_an_earlier_deadline_left_behind_is_used_again() {
        let armed = Armed::new();
        assert!(armed.must_arm(at(7_200_000)) && armed.must_arm(at(200)) && armed.must_arm(at(40)));
        armed.fired(at(40));
        assert!(!armed.must_arm(at(7_300_000)), "the far entry comes first");
        // The entry at 200 was forgotten: it fires and changes nothing.
        armed.fired(at(200));
        assert!(!armed.must_arm(at(7_300_000)));
        armed.fired(at(7_200_000));
        assert!(armed.must_arm(at(7_300_000)));
    }

    /// Whatever the deadlines do, one entry fires at or before each of them, and few are pending at once.
    #[test]
    fn no_deadline_is_missed_and_entries_do_not_pile_up() {
        let mut rng = tcp::Rng::new(1);
        let armed = Armed::new();
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
            assert!(first <= deadline, "at {now}: {deadline} is not watched");
            assert!(entries.len() < 100, "{} entries at {now}", entries.len());
        }
    }
}
