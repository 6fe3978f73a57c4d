//! A hierarchical timer wheel, the counterpart of Linux's per-CPU timers (kernel/time/timer.c).
//!
//! Above: `socket::core_sockets` keeps the wheel of a core, and a turn of the core (`core::turn`)
//! expires it. Time is an argument; nothing here sleeps.
//!
//! Each of the eight levels has 64 slots, for one base-64 digit of the deadline's tick. The eight
//! digits cover every representable time. An entry is at the level of the highest digit in which
//! its tick differs from the wheel's tick (`elapsed`), so every entry at a level is earlier than
//! every entry at the level above. When the wheel reaches a slot of a higher level, the slot's
//! entries move down. An entry moves at most seven times; an entry that is due within 67 ms moves
//! at most once.
//!
//! | level | length of each of its 64 slots |
//! |---|---|
//! | 0 | 1 tick (1.05 ms) |
//! | 1 | 64 ticks (67 ms) |
//! | 2 | 64² ticks (4.3 s) |
//!
//! Unlike Linux's wheel since 4.8, which rounds far deadlines to coarse slots, this wheel expires
//! an entry in its own tick.
//!
//! When an owner moves its deadline to a later time, the entry stays armed. When that entry
//! expires, the owner finds that nothing is due and arms a new entry. TCP moves its deadline with
//! every ACK, so a cancel each time would cost more than the rare stale expiry.
//! [`TimerWheel::remove`] is for owners that end, whose entries would otherwise stay for hours
//! (keepalive).
//!
//! Invariants: `elapsed` never falls; every stored tick is after `elapsed`, except in `due`; a
//! slot's bit in `occupied` is set exactly when its list is not empty. `TimerWheel::check` verifies
//! them.

mod check;

use std::{fmt, time::Duration};

use pkt::Instant;

use super::ids::CoreId;

/// Nanoseconds per tick, as a power of two: 2^20 ns = 1.05 ms, the resolution of Linux at HZ=1000.
/// Retransmission and delayed-ACK timeouts are tens of milliseconds and more, so a finer tick would
/// only cause more wakeups.
const TICK_SHIFT: u32 = 20;
/// Maximum delay of an expiry.
pub(crate) const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// Bits of one digit. 64 slots, so that one word holds the occupancy bits.
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;

/// Number of digits of the largest tick, which has 64 - 20 = 44 bits.
const LEVELS: usize = (u64::BITS - TICK_SHIFT).div_ceil(DIGIT_BITS) as usize;

/// End of a list of nodes.
const NIL: u32 = u32::MAX;

/// Entries of type `T` ordered by deadline, with the precision of a tick.
///
/// An entry expires on the first `expire` or `pop_due` whose `now` has reached its deadline rounded
/// up to a tick: never early, at most 1.05 ms late. Entries of one tick expire in the order of
/// their insertion; a tick that has passed at insertion counts as the current one.
pub struct TimerWheel<T> {
    /// Last tick that has expired.
    elapsed: u64,
    levels: [Level; LEVELS],
    /// Entries whose tick had passed when they were inserted, and entries of the tick being
    /// expired.
    due: List,
    nodes: Vec<Node<T>>,
    /// Unused nodes, linked by `next`.
    vacant: u32,
    len: usize,
}

struct Level {
    /// Occupancy bits: bit i is set if slot i has entries.
    occupied: u64,
    slots: [List; SLOTS],
}

/// First-in-first-out list of nodes, linked by index.
#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    /// Lower bound of the ticks in the list; `u64::MAX` when the list is empty. It is the smallest
    /// tick, unless the entry of that tick was removed or was taken from `due`.
    tick_min: u64,
}

/// Key of an entry, for [`TimerWheel::remove`]. Once the entry has expired or was removed, the key
/// refers to no entry; after 65,536 reuses of its node it may refer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey {
    pub(crate) index: u32,
    pub(crate) generation: u16,
}

struct Node<T> {
    tick: u64,
    next: u32,
    /// Previous node of the list.
    prev: u32,
    /// Number of entries that the node has held, modulo 2^16.
    generation: u16,
    /// `None` while the node is vacant.
    entry: Option<T>,
}

impl List {
    const EMPTY: Self = Self { head: NIL, tail: NIL, tick_min: u64::MAX };
}

impl<T> TimerWheel<T> {
    /// Creates an empty wheel that starts at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            elapsed: tick_before(now),
            levels: [const { Level { occupied: 0, slots: [List::EMPTY; SLOTS] } }; LEVELS],
            due: List::EMPTY,
            nodes: Vec::new(),
            vacant: NIL,
            len: 0,
        }
    }

    /// Arms `entry` for `deadline`. O(1); allocates only when more entries are armed than ever
    /// before.
    pub fn insert(&mut self, deadline: Instant, entry: T) -> TimerKey {
        let tick = tick_after(deadline);
        let node = Node { tick, next: NIL, prev: NIL, generation: 0, entry: Some(entry) };
        let index = if self.vacant == NIL {
            let index = u32::try_from(self.nodes.len()).ok().filter(|&index| index != NIL);
            self.nodes.push(node);
            index.expect("a wheel has fewer than 2^32 nodes")
        } else {
            let index = self.vacant;
            let place = &mut self.nodes[index as usize];
            self.vacant = place.next;
            *place = Node { generation: place.generation, ..node };
            index
        };
        self.len += 1;
        self.link(index, tick);
        TimerKey { index, generation: self.nodes[index as usize].generation }
    }

    /// Removes an entry before its expiry; `None` when it has expired or was removed. O(1).
    /// Afterwards, `next_deadline` may still return the time of the removed entry once.
    pub fn remove(&mut self, key: TimerKey) -> Option<T> {
        let node = self.nodes.get(key.index as usize)?;
        if node.generation != key.generation || node.entry.is_none() {
            return None;
        }
        let Node { tick, next, prev, .. } = *node;
        let list = self.list_of(tick);
        if prev == NIL {
            list.head = next;
        }
        if next == NIL {
            list.tail = prev;
        }
        if list.head == NIL {
            *list = List::EMPTY;
            if tick > self.elapsed {
                let level = level_of(tick, self.elapsed);
                self.levels[level].occupied &= !(1 << digit(tick, level));
            }
        }
        if prev != NIL {
            self.nodes[prev as usize].next = next;
        }
        if next != NIL {
            self.nodes[next as usize].prev = prev;
        }
        self.vacate(key.index)
    }

    /// Passes all entries due at `now` to `on_due`, in order of ticks. To arm entries meanwhile,
    /// use [`pop_due`](Self::pop_due).
    pub fn expire(&mut self, now: Instant, mut on_due: impl FnMut(T)) {
        while let Some(entry) = self.pop_due(now) {
            on_due(entry);
        }
    }

    /// Returns the next entry that is due at `now`. Entries may be inserted between two calls. An
    /// entry inserted for a time that has passed is returned too, so a caller that re-arms must
    /// choose a time later than `now`, or its loop never ends.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        if self.due.head == NIL && !self.advance(tick_before(now)) {
            return None;
        }
        let index = self.due.head;
        self.due.head = self.nodes[index as usize].next;
        match self.due.head {
            NIL => self.due = List::EMPTY,
            head => self.nodes[head as usize].prev = NIL,
        }
        self.vacate(index)
    }

    /// Frees a node that is in no list, and returns its entry.
    fn vacate(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.next = self.vacant;
        self.vacant = index;
        self.len -= 1;
        node.entry.take()
    }

    /// Returns the earliest deadline, rounded up to its tick. A caller that sleeps until then finds
    /// at least one entry due, unless the earliest entry was removed. A caller that wakes earlier
    /// finds none. O(levels).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.due.head != NIL {
            return Some(instant_of(self.elapsed));
        }
        let level = self.levels.iter().find(|level| level.occupied != 0)?;
        let slot = level.occupied.trailing_zeros() as usize;
        Some(instant_of(level.slots[slot].tick_min))
    }

    /// Returns the number of entries armed and not yet expired.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no entry is armed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Advances the wheel to `target`, or only to the first tick with entries if that comes
    /// earlier; the entries are then in `due`. Returns whether there are any.
    fn advance(&mut self, target: u64) -> bool {
        loop {
            let Some(level) = self.levels.iter().position(|level| level.occupied != 0) else {
                self.elapsed = self.elapsed.max(target);
                return false;
            };
            let slot = self.levels[level].occupied.trailing_zeros() as usize;
            let start = self.slot_start(level, slot);
            if start > target {
                self.elapsed = self.elapsed.max(target);
                return false;
            }
            self.elapsed = start;
            let list = self.take_slot(level, slot);
            if level == 0 {
                self.due = list;
                return true;
            }
            self.cascade(list);
            if self.due.head != NIL {
                return true;
            }
        }
    }

    /// Moves every node of a higher slot to a lower level, now that the wheel has reached the slot.
    fn cascade(&mut self, list: List) {
        let mut index = list.head;
        while index != NIL {
            let Node { tick, next, .. } = self.nodes[index as usize];
            self.nodes[index as usize].next = NIL;
            self.link(index, tick);
            index = next;
        }
    }

    fn take_slot(&mut self, level: usize, slot: usize) -> List {
        let level = &mut self.levels[level];
        level.occupied &= !(1 << slot);
        std::mem::replace(&mut level.slots[slot], List::EMPTY)
    }

    /// Appends a node to the list that its tick belongs to.
    fn link(&mut self, index: u32, tick: u64) {
        if tick > self.elapsed {
            let level = level_of(tick, self.elapsed);
            self.levels[level].occupied |= 1 << digit(tick, level);
        }
        let list = self.list_of(tick);
        list.tick_min = list.tick_min.min(tick);
        let before = core::mem::replace(&mut list.tail, index);
        if before == NIL {
            list.head = index;
        } else {
            self.nodes[before as usize].next = index;
        }
        self.nodes[index as usize].prev = before;
    }

    /// Returns the list of a tick. A node stays in it until the wheel reaches the slot.
    fn list_of(&mut self, tick: u64) -> &mut List {
        if tick <= self.elapsed {
            return &mut self.due;
        }
        let level = level_of(tick, self.elapsed);
        &mut self.levels[level].slots[digit(tick, level)]
    }

    /// Returns the first tick of a slot: the digits of `elapsed` above the level, then the slot,
    /// then zeros.
    const fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let shift = shift_of(level);
        let above = (self.elapsed >> shift) & !(SLOTS as u64 - 1);
        (above | slot as u64) << shift
    }
}

impl<T> fmt::Debug for TimerWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerWheel")
            .field("len", &self.len)
            .field("next_deadline", &self.next_deadline())
            .finish_non_exhaustive()
    }
}

/// Returns the last tick that has started at `now`.
const fn tick_before(now: Instant) -> u64 {
    now.as_nanos() >> TICK_SHIFT
}

/// Returns the first tick that starts at `deadline` or later.
const fn tick_after(deadline: Instant) -> u64 {
    deadline.as_nanos().div_ceil(1 << TICK_SHIFT)
}

/// Returns the start time of a tick. The tick after the last representable one is the end of time.
const fn instant_of(tick: u64) -> Instant {
    match tick.checked_mul(1 << TICK_SHIFT) {
        Some(nanos) => Instant::from_nanos(nanos),
        None => Instant::FAR_FUTURE,
    }
}

/// Returns the highest digit in which two different ticks differ.
const fn level_of(tick: u64, elapsed: u64) -> usize {
    ((u64::BITS - 1 - (tick ^ elapsed).leading_zeros()) / DIGIT_BITS) as usize
}

/// Returns the slot of `tick` at `level`.
const fn digit(tick: u64, level: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "one digit is left")]
    let digit = ((tick >> shift_of(level)) & (SLOTS as u64 - 1)) as usize;
    digit
}

#[expect(clippy::cast_possible_truncation, reason = "eight levels")]
const fn shift_of(level: usize) -> u32 {
    level as u32 * DIGIT_BITS
}

/// Handle of an entry in the wheel of a core, for owners that may end before the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerHandle {
    pub(crate) core: CoreId,
    pub(crate) key: TimerKey,
}

impl TimerHandle {
    /// Encodes the handle in one word, which is never `u64::MAX`, because core numbers are small.
    pub(crate) fn to_bits(self) -> u64 {
        let (core, generation) = (u64::from(self.core.0), u64::from(self.key.generation));
        core << 48 | generation << 32 | u64::from(self.key.index)
    }

    /// Decodes a handle.
    #[expect(clippy::cast_possible_truncation, reason = "the fields are taken apart")]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        let key = TimerKey { index: bits as u32, generation: (bits >> 32) as u16 };
        Self { core: CoreId((bits >> 48) as u16), key }
    }
}

#[cfg(test)]
mod tests;
