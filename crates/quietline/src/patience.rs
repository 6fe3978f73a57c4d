//! Whether polling pays: what a thread has learnt about its CPU, and a worker about its frames.
//!
//! Polling costs the CPU it runs on. That is wasted when the thread that is waited for wants this very CPU, and when
//! nothing comes for a long time. Both are found out by doing: a thread that polls offers its CPU again and again, and
//! sees how long it was away; a worker that slept sees how soon it was woken. Linux: `need_resched` ends a busy loop;
//! KVM grows and shrinks its `halt_poll_ns` by the same rule as [`Window`].
//!
//! Not here: the polling itself (`wait`, `worker`).

use std::{cell::Cell, time::Duration};

use pkt::Instant;

use crate::clock;

/// How long a thread polls before it offers its CPU to others. Well above the 1.3 µs of a request and its answer between
/// two CPUs: at 2 µs one late answer makes both ends yield, and then every answer is late.
const YIELD_EVERY: Duration = Duration::from_micros(5);

/// A yield that took longer than this was no mere system call: another thread has run. Two switches take at least this.
const SWITCH_MIN: Duration = Duration::from_nanos(1200);

/// Waits that sleep at once after the CPU has turned out to be shared; doubled up to [`HOLD_OFF_MAX`] each time it is still
/// so. Polling in vain costs [`YIELD_EVERY`] and a yield, so the first 16 make that a third of a microsecond a wait.
const HOLD_OFF_MIN: u32 = 16;

/// A thread that comes to have its CPU for itself polls again after this many waits.
const HOLD_OFF_MAX: u32 = 512;

/// Offers the CPU now and then.
pub(crate) struct Offer {
    next: Instant,
}

impl Offer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now + YIELD_EVERY }
    }

    /// Offers the CPU if it is time to. True if somebody took it.
    pub(crate) fn at(&mut self, now: &mut Instant) -> bool {
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

thread_local! {
    /// Waits of this thread that still sleep at once, and how many it were the last time.
    static HOLD_OFF: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Whether the wait that begins should poll first.
pub(crate) fn should_poll() -> bool {
    let (left, last) = HOLD_OFF.get();
    HOLD_OFF.set((left.saturating_sub(1), last));
    left == 0
}

/// What was waited for came while another thread had this CPU: the peer runs here, too, and can only run while we do not.
pub(crate) fn on_shared_cpu() {
    let (_, last) = HOLD_OFF.get();
    let next = (last * 2).clamp(HOLD_OFF_MIN, HOLD_OFF_MAX);
    HOLD_OFF.set((next, next));
}

/// It came while this thread polled: the peer has a CPU of its own.
pub(crate) fn on_own_cpu() {
    HOLD_OFF.set((0, 0));
}

/// How long a worker polls after its last frame: as long as it has paid lately.
#[derive(Debug, Default)]
pub(crate) struct Window {
    width: Duration,
}

/// The first width that is worth it: a sleep and a wake take about as long.
const WINDOW_MIN: Duration = Duration::from_micros(10);

impl Window {
    /// How long to poll.
    pub(crate) const fn width(&self) -> Duration {
        self.width
    }

    /// The worker has slept for `slept` until frames came. Had it polled for `limit`, it would have seen them in time, or not.
    pub(crate) fn on_wake(&mut self, slept: Duration, limit: Duration) {
        self.width = if slept <= limit {
            (self.width * 2).max(WINDOW_MIN).min(limit)
        } else {
            Duration::ZERO
        };
    }

    /// The CPU is wanted by others.
    pub(crate) const fn close(&mut self) {
        self.width = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_cpu_ends_polling_for_longer_and_longer() {
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
        assert_eq!((1..).find(|_| should_poll()), Some(17), "forgotten");
        on_own_cpu();
    }

    #[test]
    fn a_worker_polls_as_long_as_frames_come_often() {
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
        assert_eq!(window.width(), Duration::ZERO, "an idle stack costs nothing");
        window.on_wake(soon, Duration::ZERO);
        assert_eq!(window.width(), Duration::ZERO, "switched off");
    }
}
