//! Invariants of a timer wheel.
//!
//! Above: the simulator and tests.

use super::{List, NIL, TimerWheel, digit, level_of};

impl<T> TimerWheel<T> {
    /// Verifies every invariant of the wheel.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        let mut seen = self.check_list(&self.due, |tick| tick <= self.elapsed);
        for (at, level) in self.levels.iter().enumerate() {
            for (slot, list) in level.slots.iter().enumerate() {
                let occupied = level.occupied & (1 << slot) != 0;
                assert_eq!(
                    occupied,
                    list.head != NIL,
                    "the occupancy bit of level {at}, slot {slot} is wrong"
                );
                seen += self.check_list(list, |tick| {
                    tick > self.elapsed
                        && level_of(tick, self.elapsed) == at
                        && digit(tick, at) == slot
                });
            }
        }
        assert_eq!(seen, self.len, "an entry is in no list or in two");
    }

    fn check_list(&self, list: &List, belongs: impl Fn(u64) -> bool) -> usize {
        let (mut index, mut count, mut tick_min, mut last) = (list.head, 0, u64::MAX, NIL);
        while index != NIL {
            let node = &self.nodes[index as usize];
            assert!(node.entry.is_some() && belongs(node.tick), "node {index} is misplaced");
            assert_eq!(node.prev, last, "node {index} has a wrong predecessor");
            tick_min = tick_min.min(node.tick);
            last = index;
            index = node.next;
            count += 1;
        }
        assert_eq!(last, list.tail);
        // `tick_min` is a lower bound: `due` keeps its smallest tick until it is empty, and other
        // lists keep the tick of a removed entry.
        assert!(list.tick_min <= tick_min);
        count
    }
}
