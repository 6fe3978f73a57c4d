//! Whether polling pays, and whether a sleep can be avoided: each thread records how its CPU is
//! shared, each worker how often frames arrive.
//!
//! Polling uses the CPU it runs on. That CPU time is wasted if the awaited thread needs the same
//! CPU, or if nothing arrives for a long time. Both are measured: a polling thread yields its CPU
//! at intervals and measures how long it was away; a worker measures how long it slept before a
//! frame. Linux: `need_resched` ends a busy loop; KVM grows and shrinks its `halt_poll_ns` by the
//! same rule as [`Window`].
//!
//! A sleep costs the sleeper two system calls and a timer, and the peer a wake. If both run on the
//! same CPU, one `sched_yield` replaces them: the peer answers before the thread returns
//! ([`yield_once`]). An unrelated thread may keep the CPU for milliseconds; after that has
//! happened, the thread does not yield for a number of waits.
//!
//! Not here: the polling itself (`wait`, `worker`).

use std::{cell::Cell, time::Duration};

use pkt::Instant;

use crate::{clock, handle::until};

/// Time that a thread polls before it yields its CPU. Well above the 1.3 µs of a request and its
/// answer between two CPUs: at 2 µs one late answer makes both ends yield, and then every answer is
/// late.
const YIELD_EVERY: Duration = Duration::from_micros(5);

/// A yield that took longer than this was not only a system call: another thread ran. Two context
/// switches take at least this time.
const SWITCH_MIN: Duration = Duration::from_nanos(1200);

/// First number of waits for which an attempt is skipped after a failure; doubled after each
/// further failure. Failed polling costs [`YIELD_EVERY`] and a yield, a third of a microsecond per
/// wait over 16 waits.
const HOLD_OFF_MIN: u32 = 16;

/// Largest number of waits without polling. A thread whose CPU is no longer shared polls again
/// after this many waits.
const HOLD_OFF_MAX: u32 = 512;

/// Largest number of waits without a yield. An unrelated thread may take three milliseconds, less
/// than one microsecond per wait over 4096 waits.
const YIELD_HOLD_OFF_MAX: u32 = 4096;

/// First number of waits without a yield after an unrelated thread took the CPU. Smaller than the
/// maximum, because such a thread may run rarely.
const YIELD_HOLD_OFF_MIN: u32 = 256;

/// Longest useful yield. A yield saves two microseconds, so a thread that was away for longer has
/// gained nothing: an unrelated thread probably ran.
const YIELD_MAX: Duration = Duration::from_micros(100);

/// Yields the CPU at intervals while a thread polls.
pub(crate) struct YieldTimer {
    next: Instant,
}

impl YieldTimer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now + YIELD_EVERY }
    }

    /// Yields the CPU if [`YIELD_EVERY`] has passed. Returns true if another thread ran.
    pub(crate) fn yield_if_due(&mut self, now: &mut Instant) -> bool {
        if *now < self.next {
            return false;
        }
        std::thread::yield_now();
        let back = clock::now();
        let taken = back.checked_duration_since(*now).is_some_and(|away| away > SWITCH_MIN);
        *now = back;
        self.next = back + YIELD_EVERY;
        taken
    }
}

/// Number of waits for which an attempt is skipped because it has failed lately.
#[derive(Clone, Copy, Debug, Default)]
struct HoldOff {
    /// Remaining waits to skip.
    left: u32,
    /// Length of the last hold-off, in waits.
    last: u32,
}

impl HoldOff {
    const NONE: Self = Self { left: 0, last: 0 };

    /// Counts one wait. Returns true if that wait should make the attempt.
    const fn is_over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        over
    }

    /// Records a failed attempt: skips twice as many waits as the last time, at most `max`.
    fn extend(&mut self, max: u32) {
        self.last = (self.last * 2).clamp(HOLD_OFF_MIN, max);
        self.left = self.last;
    }

    /// Records a yield that took `away`, after which the awaited event was `ready` or not. A
    /// useless yield costs a system call if no other thread wanted the CPU, and a whole time slice
    /// if an unrelated thread took it.
    fn note_yield(&mut self, ready: bool, away: Duration) {
        if away > YIELD_MAX {
            self.last = (self.last * 4).clamp(YIELD_HOLD_OFF_MIN, YIELD_HOLD_OFF_MAX);
            self.left = self.last;
        } else if ready {
            self.relax();
        } else {
            self.extend(YIELD_HOLD_OFF_MAX);
        }
    }

    /// Records a successful attempt: the hold-off after the next failure is shorter.
    const fn relax(&mut self) {
        self.last /= 2;
    }
}

thread_local! {
    /// Hold-off from polling, because the peer shares the CPU.
    static POLLING: Cell<HoldOff> = const { Cell::new(HoldOff::NONE) };
    /// Hold-off from yielding, because no thread or an unrelated thread takes the CPU.
    static YIELDING: Cell<HoldOff> = const { Cell::new(HoldOff::NONE) };
}

/// Returns whether the wait that begins should poll first.
pub(crate) fn should_poll() -> bool {
    let mut polling = POLLING.get();
    let over = polling.is_over();
    POLLING.set(polling);
    over
}

/// Records that the awaited event arrived while this thread had yielded: the peer shares this CPU,
/// and polling only delays it.
pub(crate) fn on_shared_cpu() {
    let mut polling = POLLING.get();
    polling.extend(HOLD_OFF_MAX);
    POLLING.set(polling);
}

/// Records that the awaited event arrived while this thread polled: the peer has another CPU.
pub(crate) fn on_own_cpu() {
    POLLING.set(HoldOff::NONE);
}

/// Yields the CPU once before the thread sleeps, unless that has failed lately. Returns true if
/// `ready` is true afterwards.
pub(crate) fn yield_once(ready: impl Fn() -> bool) -> bool {
    let mut yielding = YIELDING.get();
    let tries = yielding.is_over();
    let ready = tries && {
        let begin = clock::now();
        std::thread::yield_now();
        let ready = ready();
        yielding.note_yield(ready, until(begin, clock::now()));
        ready
    };
    YIELDING.set(yielding);
    ready
}

/// Time that a worker polls after its last frame. Grows while polling would have avoided sleeps.
#[derive(Debug, Default)]
pub(crate) struct Window {
    width: Duration,
}

/// First width. A sleep and a wake take about as long.
const WINDOW_MIN: Duration = Duration::from_micros(10);

impl Window {
    /// Returns the time to poll.
    pub(crate) const fn width(&self) -> Duration {
        self.width
    }

    /// Records that the worker `slept` until frames arrived. If it slept no longer than `limit`,
    /// polling would have found the frames.
    pub(crate) fn on_wake(&mut self, slept: Duration, limit: Duration) {
        self.width = if slept <= limit {
            (self.width * 2).max(WINDOW_MIN).min(limit)
        } else {
            Duration::ZERO
        };
    }

    /// Stops polling, because other threads need the CPU.
    pub(crate) const fn close(&mut self) {
        self.width = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_cpu_suspends_polling_for_longer_and_longer() {
        assert!(should_poll() && should_poll());
        let mut asleep = Vec::new();
        for _ in 0..7 {
            on_shared_cpu();
            asleep.push((1..).find(|_| should_poll()).unwrap() - 1);
        }
        assert_eq!(asleep, [16, 32, 64, 128, 256, 512, 512]);
        on_own_cpu();
        assert!(should_poll());
        on_shared_cpu();
        assert_eq!((1..).find(|_| should_poll()), Some(17), "the hold-off starts again");
        on_own_cpu();
    }

    #[test]
    fn a_useless_yield_is_repeated_later_and_later() {
        let mut yielding = HoldOff::NONE;
        let gaps: Vec<_> = (0..10)
            .map(|_| {
                let gap = (0..).find(|_| yielding.is_over());
                yielding.note_yield(false, Duration::ZERO);
                gap.unwrap()
            })
            .collect();
        assert_eq!(gaps, [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]);
    }

    #[test]
    fn a_short_yield_that_brings_the_event_is_repeated() {
        let mut yielding = HoldOff::NONE;
        yielding.note_yield(true, YIELD_MAX);
        assert!(yielding.is_over(), "the yield was useful");
        let gaps: Vec<_> = (0..4)
            .map(|_| {
                // The yield took too long, even though the event arrived.
                yielding.note_yield(true, YIELD_MAX + Duration::from_nanos(1));
                (0..).find(|_| yielding.is_over()).unwrap()
            })
            .collect();
        assert_eq!(gaps, [256, 1024, 4096, 4096]);
        let mut yielding = HoldOff::NONE;
        yielding.note_yield(false, Duration::ZERO);
        assert_eq!(yielding.left, HOLD_OFF_MIN, "the event did not arrive");
    }

    #[test]
    fn a_thread_checks_for_the_event_after_a_yield() {
        let looks = Cell::new(0);
        let ready = || looks.replace(looks.get() + 1) > 0;
        assert!(!yield_once(ready) && looks.get() == 1, "the event has not arrived");
        assert!(!yield_once(ready) && looks.get() == 1, "the next wait does not yield");
    }

    #[test]
    fn a_successful_attempt_halves_the_next_hold_off() {
        let mut hold_off = HoldOff::NONE;
        (0..4).for_each(|_| hold_off.extend(512));
        assert_eq!((hold_off.left, hold_off.last), (128, 128));
        assert_eq!((0..).find(|_| hold_off.is_over()), Some(128));
        (0..2).for_each(|_| hold_off.relax());
        assert!(hold_off.is_over(), "the attempt is made meanwhile");
        hold_off.extend(512);
        assert_eq!(hold_off.left, 64, "the double of a quarter");
    }

    #[test]
    fn a_worker_polls_while_frames_arrive_often() {
        let (limit, soon) = (Duration::from_micros(50), Duration::from_micros(20));
        let mut window = Window::default();
        assert_eq!(window.width(), Duration::ZERO);
        let widths: Vec<_> = (0..4)
            .map(|_| {
                window.on_wake(soon, limit);
                window.width().as_micros()
            })
            .collect();
        assert_eq!(widths, [10, 20, 40, 50]);
        window.on_wake(Duration::from_millis(1), limit);
        assert_eq!(window.width(), Duration::ZERO, "an idle stack does not poll");
        window.on_wake(soon, Duration::ZERO);
        assert_eq!(window.width(), Duration::ZERO, "polling is switched off");
    }
}
