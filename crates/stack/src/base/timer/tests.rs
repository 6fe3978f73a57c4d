use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const TICK: u64 = 1 << TICK_SHIFT;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn expired<T>(wheel: &mut TimerWheel<T>, now: Instant) -> Vec<T> {
    let mut entries = Vec::new();
    wheel.expire(now, |entry| entries.push(entry));
    wheel.check();
    entries
}

#[test]
fn empty_wheel_has_no_deadline() {
    let mut wheel = TimerWheel::<u8>::new(at(5 * TICK));
    assert!(wheel.is_empty());
    assert_eq!(wheel.next_deadline(), None);
    assert_eq!(wheel.pop_due(Instant::from_secs(1 << 30)), None);
}

#[test]
fn an_entry_expires_never_early_and_at_most_a_tick_late() {
    let deadline = at(10 * TICK + 1);
    let mut wheel = TimerWheel::new(Instant::ZERO);
    wheel.insert(deadline, ());
    assert_eq!(
        expired(&mut wheel, deadline),
        [],
        "an entry of a tick that started before the deadline expired"
    );
    assert_eq!(wheel.next_deadline(), Some(at(11 * TICK)));
    assert_eq!(expired(&mut wheel, at(11 * TICK - 1)), []);
    assert_eq!(expired(&mut wheel, at(11 * TICK)), [()]);
    assert!(wheel.is_empty());
}

#[test]
fn passed_deadlines_are_due_at_once() {
    let now = Instant::from_secs(3);
    let mut wheel = TimerWheel::new(now);
    wheel.insert(Instant::ZERO, 'a');
    wheel.insert(now + Duration::from_millis(50), 'b');
    assert!(wheel.next_deadline().unwrap() <= now);
    assert_eq!(expired(&mut wheel, now), ['a']);
}

#[test]
fn entries_of_one_tick_expire_in_order_of_insertion_across_levels() {
    let deadline = at(5_000 * TICK);
    let mut wheel = TimerWheel::new(Instant::ZERO);
    wheel.insert(deadline, 0);
    for (index, before) in [4_000, 900, 70, 60, 1].into_iter().enumerate() {
        assert_eq!(expired(&mut wheel, at((5_000 - before) * TICK)), []);
        wheel.insert(deadline, index + 1);
    }
    assert_eq!(expired(&mut wheel, deadline), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn far_deadlines_cascade_and_stay_exact() {
    let deadlines = [1, 63, 64, 65, 4_095, 4_096, 262_144, 1 << 30, (1 << 43) + 7];
    let mut wheel = TimerWheel::new(Instant::ZERO);
    for tick in deadlines.into_iter().rev() {
        wheel.insert(at(tick * TICK), tick);
    }
    wheel.check();
    for tick in deadlines {
        assert_eq!(wheel.next_deadline(), Some(at(tick * TICK)));
        assert_eq!(expired(&mut wheel, at(tick * TICK - 1)), []);
        assert_eq!(expired(&mut wheel, at(tick * TICK)), [tick]);
    }
}

#[test]
fn an_entry_at_the_end_of_time_never_expires() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    wheel.insert(Instant::FAR_FUTURE, ());
    assert_eq!(wheel.next_deadline(), Some(Instant::FAR_FUTURE));
    assert_eq!(expired(&mut wheel, Instant::FAR_FUTURE), []);
    assert_eq!(wheel.len(), 1);
}

/// The loop of a worker: sleep until `next_deadline`, expire, repeat. Every wakeup finds an entry
/// due.
#[test]
fn sleeping_until_the_next_deadline_makes_progress() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    for entry in 0..1_000_u64 {
        wheel.insert(at(entry * entry * entry * 7_919_000), entry);
    }
    let mut order = Vec::new();
    while let Some(deadline) = wheel.next_deadline() {
        let found = expired(&mut wheel, deadline);
        assert!(!found.is_empty(), "no entry was due at {deadline:?}");
        order.extend(found);
    }
    assert!(order.is_sorted());
    assert_eq!(order.len(), 1_000);
}

#[test]
fn entries_may_be_armed_while_others_expire() {
    let now = at(100 * TICK);
    let mut wheel = TimerWheel::new(Instant::ZERO);
    wheel.insert(at(10 * TICK), 10);
    wheel.insert(at(90 * TICK), 90);
    let mut order = Vec::new();
    while let Some(entry) = wheel.pop_due(now) {
        order.push(entry);
        if entry == 10 {
            wheel.insert(at(50 * TICK), 50);
            wheel.insert(at(200 * TICK), 200);
        }
        wheel.check();
    }
    assert_eq!(order, [10, 50, 90]);
    assert_eq!(wheel.next_deadline(), Some(at(200 * TICK)));
}

#[test]
fn nodes_of_expired_entries_are_reused() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    for round in 1..1_000 {
        wheel.insert(at(round * TICK), round);
        wheel.insert(at(round * TICK), round);
        assert_eq!(expired(&mut wheel, at(round * TICK)), [round, round]);
    }
    assert_eq!(wheel.nodes.len(), 2);
}

#[test]
fn removed_entries_do_not_expire_and_their_nodes_are_reused() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    let hours = at(7_200_000_000_000);
    for round in 0..1_000_u64 {
        let [one, two, three] = [0, 1, 2].map(|number| wheel.insert(hours, 10 * round + number));
        assert_eq!(wheel.remove(two), Some(10 * round + 1));
        assert_eq!(wheel.remove(two), None, "an entry was removed twice");
        wheel.check();
        assert_eq!(wheel.remove(three), Some(10 * round + 2));
        assert_eq!(wheel.remove(one), Some(10 * round));
        wheel.check();
    }
    assert_eq!((wheel.nodes.len(), wheel.len(), wheel.next_deadline()), (3, 0, None));
    let key = wheel.insert(at(TICK), 7);
    assert_eq!(expired(&mut wheel, at(TICK)), [7]);
    assert_eq!(wheel.remove(key), None, "an expired entry was removed");
}

/// After the first entry of a slot is removed, `next_deadline` returns its time at most once.
#[test]
fn a_removed_deadline_is_reported_at_most_once() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    let early = wheel.insert(at(5_000 * TICK), 1);
    wheel.insert(at(6_000 * TICK), 2);
    wheel.remove(early);
    let mut wakes = 0;
    while let Some(deadline) = wheel.next_deadline() {
        wakes += 1;
        if expired(&mut wheel, deadline) == [2] {
            assert_eq!(deadline, at(6_000 * TICK));
        }
        wheel.check();
    }
    assert_eq!(wakes, 2);
}

#[derive(Clone, Debug)]
enum Step {
    Remove { nth: usize },
    Insert { ahead_ns: u64 },
    InsertPast { behind_ns: u64 },
    Sleep { ns: u64 },
    SleepToDeadline,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Shifts spread the times over all levels instead of only the highest.
    let spread = (0_u32..56, any::<u64>()).prop_map(|(shift, random)| random >> shift >> 8);
    let step = prop_oneof![
        2 => any::<usize>().prop_map(|nth| Step::Remove { nth }),
        4 => spread.clone().prop_map(|ahead_ns| Step::Insert { ahead_ns }),
        1 => spread.clone().prop_map(|behind_ns| Step::InsertPast { behind_ns }),
        2 => spread.prop_map(|ns| Step::Sleep { ns }),
        3 => Just(Step::SleepToDeadline),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// The wheel must behave like a heap of (tick, insertion number).
    #[test]
    fn the_wheel_agrees_with_a_heap(steps in steps()) {
        let mut now = Instant::from_secs(1_000);
        let mut wheel = TimerWheel::new(now);
        let mut heap = BinaryHeap::new();
        let (mut keys, mut removed) = (Vec::new(), false);
        for (number, step) in steps.into_iter().enumerate() {
            let insert = match step {
                Step::Insert { ahead_ns } => Some(now + Duration::from_nanos(ahead_ns)),
                Step::InsertPast { behind_ns } => Some(now - Duration::from_nanos(behind_ns)),
                Step::Sleep { ns } => {
                    now += Duration::from_nanos(ns >> 8);
                    None
                }
                Step::Remove { nth } => {
                    if !keys.is_empty() {
                        let (key, number) = keys.swap_remove(nth % keys.len());
                        let is_armed = heap.iter().any(|Reverse((_, armed))| *armed == number);
                        prop_assert_eq!(wheel.remove(key), is_armed.then_some(number));
                        heap.retain(|Reverse((_, armed))| *armed != number);
                        wheel.check();
                        removed = true;
                    }
                    None
                }
                Step::SleepToDeadline => {
                    now = now.max(wheel.next_deadline().unwrap_or(now));
                    None
                }
            };
            if let Some(deadline) = insert {
                keys.push((wheel.insert(deadline, number), number));
                heap.push(Reverse((tick_after(deadline).max(tick_before(now)), number)));
                wheel.check();
            } else {
                let mut expected = Vec::new();
                while heap.peek().is_some_and(|Reverse((tick, _))| *tick <= tick_before(now)) {
                    expected.extend(heap.pop().map(|Reverse((_, number))| number));
                }
                prop_assert_eq!(expired(&mut wheel, now), expected);
            }
            prop_assert_eq!(wheel.len(), heap.len());
            let next = heap.peek().map(|Reverse((tick, _))| instant_of(*tick));
            // Possibly too early after a removal, but never too late.
            let found = wheel.next_deadline();
            prop_assert_eq!(found.is_some(), next.is_some());
            prop_assert!(
                found <= next && (removed || found == next),
                "next_deadline is {:?}, but the heap has {:?}",
                found,
                next
            );
        }
    }
}
