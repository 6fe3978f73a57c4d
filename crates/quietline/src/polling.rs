//! Whether polling pays, and whether sleeping can be spared: what a thread has learnt about its CPU, and a worker about its
//! frames.
//!
//! Polling costs the CPU it runs on. That is wasted when the thread that is waited for wants this very CPU, and when
//! nothing comes for a long time. Both are found out by doing: a thread that polls offers its CPU again and again, and
//! sees how long it was away; a worker that slept sees how soon it was woken. Linux: `need_resched` ends a busy loop;
//! KVM grows and shrinks its `halt_poll_ns` by the same rule as [`Window`].
//!
//! Sleeping costs the sleeper two system calls and a timer, and whoever answers a wake. Where the two share a CPU all of that
//! is for nothing: a thread that only lets the other run finds the answer there when it comes back ([`lend`]). Who wants the
//! CPU for something else keeps it for milliseconds, so it is not lent again for a while when that has happened.
//!
//! Not here: the polling itself (`wait`, `worker`).

use std::{cell::Cell, time::Duration};

use pkt::Instant;

use crate::{clock, handle::until};

/// How long a thread polls before it offers its CPU to others. Well above the 1.3 µs of a request and its answer between
/// two CPUs: at 2 µs one late answer makes both ends yield, and then every answer is late.
const YIELD_EVERY: Duration = Duration::from_micros(5);

/// A yield that took longer than this was no mere system call: another thread has run. Two switches take at least this.
const SWITCH_MIN: Duration = Duration::from_nanos(1200);

/// Waits that do without what has not paid; doubled each time it does not pay again. Polling in vain costs [`YIELD_EVERY`] and a
/// yield, so the first 16 make that a third of a microsecond a wait.
const HOLD_OFF_MIN: u32 = 16;

/// A thread that comes to have its CPU for itself polls again after this many waits.
const HOLD_OFF_MAX: u32 = 512;

/// One whose CPU others have wanted lends it again after this many: that has cost three milliseconds, so less than one microsecond
/// a wait.
const LEND_HOLD_OFF_MAX: u32 = 4096;

/// And after this many the first time: it may have been somebody who comes seldom.
const LEND_HOLD_OFF_MIN: u32 = 256;

/// A thread that lent its CPU and had to wait longer than this for it has gained nothing worth mentioning: what it spares is
/// two microseconds. It may have waited for somebody who has nothing to do with it.
const LENT_MAX: Duration = Duration::from_micros(100);

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

/// Waits that do without something that has not paid.
#[derive(Clone, Copy, Debug, Default)]
struct HoldOff {
    /// Waits to come.
    left: u32,
    /// How many it were the last time.
    last: u32,
}

impl HoldOff {
    const NONE: Self = Self { left: 0, last: 0 };

    /// A wait begins. Whether it should try.
    const fn is_over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        over
    }

    /// It has not paid: twice as many waits as the last time, at most `max`.
    fn extend(&mut self, max: u32) {
        self.last = (self.last * 2).clamp(HOLD_OFF_MIN, max);
        self.left = self.last;
    }

    /// The CPU was lent for so long, and what was waited for was `ready` then or not. In vain costs a system call, to somebody who
    /// wants the CPU for himself his whole time slice.
    fn note_lent(&mut self, ready: bool, away: Duration) {
        if away > LENT_MAX {
            self.last = (self.last * 4).clamp(LEND_HOLD_OFF_MIN, LEND_HOLD_OFF_MAX);
            self.left = self.last;
        } else if ready {
            self.relax();
        } else {
            self.extend(LEND_HOLD_OFF_MAX);
        }
    }

    /// It has paid: the next time that it does not is taken less seriously.
    const fn relax(&mut self) {
        self.last /= 2;
    }
}

thread_local! {
    /// From polling, because the CPU is shared with the peer.
    static POLLING: Cell<HoldOff> = const { Cell::new(HoldOff::NONE) };
    /// From lending the CPU, because nobody needs it, or somebody else does.
    static LENDING: Cell<HoldOff> = const { Cell::new(HoldOff::NONE) };
}

/// Whether the wait that begins should poll first.
pub(crate) fn should_poll() -> bool {
    let mut polling = POLLING.get();
    let over = polling.is_over();
    POLLING.set(polling);
    over
}

/// What was waited for came while another thread had this CPU: the peer runs here, too, and can only run while we do not.
pub(crate) fn on_shared_cpu() {
    let mut polling = POLLING.get();
    polling.extend(HOLD_OFF_MAX);
    POLLING.set(polling);
}

/// It came while this thread polled: the peer has a CPU of its own.
pub(crate) fn on_own_cpu() {
    POLLING.set(HoldOff::NONE);
}

/// Lets others have the CPU before a thread sleeps, unless that has not paid lately. True if it is `ready` by that.
pub(crate) fn lend(ready: impl Fn() -> bool) -> bool {
    let mut lending = LENDING.get();
    let tries = lending.is_over();
    let ready = tries && {
        let begin = clock::now();
        std::thread::yield_now();
        let ready = ready();
        lending.note_lent(ready, until(begin, clock::now()));
        ready
    };
    LENDING.set(lending);
    ready
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
    fn a_cpu_that_is_lent_in_vain_is_lent_again_later_and_later() {
        let mut lending = HoldOff::NONE;
        let gaps: Vec<_> = (0..10)
            .map(|_| {
                let gap = (0..).find(|_| lending.is_over());
                lending.note_lent(false, Duration::ZERO);
                gap.unwrap()
            })
            .collect();
        assert_eq!(gaps, [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]);
    }

    #[test]
    fn a_cpu_that_comes_back_in_time_and_with_the_answer_is_lent_again() {
        let mut lending = HoldOff::NONE;
        lending.note_lent(true, LENT_MAX);
        assert!(lending.is_over(), "it has paid");
        let gaps: Vec<_> = (0..4)
            .map(|_| {
                // It took too long, answer or not.
                lending.note_lent(true, LENT_MAX + Duration::from_nanos(1));
                (0..).find(|_| lending.is_over()).unwrap()
            })
            .collect();
        assert_eq!(gaps, [256, 1024, 4096, 4096]);
        let mut lending = HoldOff::NONE;
        lending.note_lent(false, Duration::ZERO);
        assert_eq!(lending.left, HOLD_OFF_MIN, "and no answer");
    }

    #[test]
    fn a_thread_that_lends_its_cpu_looks_when_it_is_back() {
        let looks = Cell::new(0);
        let ready = || looks.replace(looks.get() + 1) > 0;
        assert!(!lend(ready) && looks.get() == 1, "not yet");
        assert!(!lend(ready) && looks.get() == 1, "it is not lent again at once");
    }

    #[test]
    fn what_pays_again_is_held_off_for_half_as_long() {
        let mut hold_off = HoldOff::NONE;
        (0..4).for_each(|_| hold_off.extend(512));
        assert_eq!((hold_off.left, hold_off.last), (128, 128));
        assert_eq!((0..).find(|_| hold_off.is_over()), Some(128));
        (0..2).for_each(|_| hold_off.relax());
        assert!(hold_off.is_over(), "and is tried meanwhile");
        hold_off.extend(512);
        assert_eq!(hold_off.left, 64, "twice of a quarter");
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
