//! Tests: which thread is the attendant, and that no event is missed by a worker that goes to
//! sleep.

use super::*;

const ME: Poller = Poller::new(0);
const OTHER: Poller = Poller::new(1);
const MILLI: u64 = 1_000_000;

/// Yielding without a limit.
const YIELD: Sleep = Sleep::Yielding { limit_ns: NEVER };

#[cfg(not(loom))]
mod transitions {
    use super::*;

    /// Counts kicks, as an eventfd does.
    #[derive(Default)]
    struct Eventfd(plain::Word);

    impl Kick for Eventfd {
        fn kick(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Attendance of an idle core with a worker.
    #[derive(Default)]
    struct Bench {
        core: CoreLock<()>,
        attendance: Attendance,
        eventfd: plain::Arc<Eventfd>,
    }

    impl Bench {
        fn new() -> Self {
            let bench = Self::default();
            bench.attendance.set_kick(bench.eventfd.clone());
            bench
        }

        fn is_free(&self) -> bool {
            self.attendance.is_free(&self.core)
        }

        fn is_kicked(&self) -> bool {
            self.eventfd.0.swap(0, Ordering::Relaxed) > 0
        }

        fn sleep(&self, now: u64, sleep: Sleep) -> Option<u64> {
            let Self { core, attendance, .. } = self;
            attendance.prepare_sleep(core, now, sleep, || attendance.next_timer())
        }
    }

    #[test]
    fn a_thread_that_polls_is_the_attendant_for_a_while() {
        let bench = Bench::new();
        let attendance = &bench.attendance;
        assert!(bench.is_free() && !attendance.is_polled(0));
        attendance.note_poll(ME, 3 * MILLI);
        assert!(attendance.is_polled(3 * MILLI - 1) && !attendance.is_polled(3 * MILLI));
        assert!(!bench.is_free(), "the time is over, but no thread has stopped polling");
        assert_eq!(bench.sleep(MILLI, Sleep::Yielding { limit_ns: 2 * MILLI }), Some(2 * MILLI));
        attendance.prefer_poll(ME, 4 * MILLI);
        assert_eq!(bench.sleep(MILLI, Sleep::Yielding { limit_ns: 2 * MILLI }), Some(4 * MILLI));
        attendance.finish_sleep();
        assert_eq!(attendance.sleeps(), 2);
    }

    #[test]
    fn the_last_thread_that_has_polled_stops() {
        let bench = Bench::new();
        let attendance = &bench.attendance;
        attendance.note_poll(ME, MILLI);
        attendance.note_poll(OTHER, MILLI);
        attendance.stop_polling(ME, 0);
        attendance.leave_polling(ME);
        assert!(attendance.is_polled(0), "another thread has polled since");
        attendance.stop_polling(OTHER, 0);
        assert!(bench.is_free());
        attendance.note_poll(OTHER, MILLI);
        attendance.leave_polling(OTHER);
        assert!(bench.is_free());
    }

    /// A thread that goes to sleep may end the expired polling of another thread. A thread that
    /// closes a socket may not, because it may never have polled.
    #[test]
    fn an_expired_attendant_is_replaced_when_any_thread_sleeps() {
        let bench = Bench::new();
        let attendance = &bench.attendance;
        attendance.note_poll(OTHER, MILLI);
        attendance.leave_polling(ME);
        assert!(!bench.is_free());
        attendance.stop_polling(ME, MILLI);
        assert!(bench.is_free());
        attendance.leave_to_reader(MILLI);
        attendance.stop_polling(ME, 0);
        assert!(bench.is_free(), "any thread may end it");
    }

    #[test]
    fn the_worker_is_kicked_once_for_each_sleep() {
        let bench = Bench::new();
        let attendance = &bench.attendance;
        attendance.note_poll(ME, MILLI);
        attendance.leave_polling(ME);
        assert!(!bench.is_kicked(), "the worker is awake");
        attendance.note_poll(ME, MILLI);
        let _ = bench.sleep(0, YIELD);
        assert!(!attendance.suspend_worker(ME, MILLI) && !bench.is_kicked());
        attendance.leave_polling(ME);
        assert!(bench.is_kicked());
        attendance.resume_worker();
        assert!(!bench.is_kicked(), "the worker was already kicked");
        attendance.finish_sleep();
        let _ = bench.sleep(0, Sleep::Watching);
        assert!(attendance.suspend_worker(ME, MILLI) && bench.is_kicked());
        assert!(!attendance.suspend_worker(ME, MILLI) && attendance.is_polled(0));
        attendance.leave_polling(ME);
        assert!(!bench.is_kicked(), "the worker does not yield");
        assert_eq!(attendance.kicks(), 2);
    }

    #[test]
    fn only_an_earlier_deadline_kicks_the_worker() {
        let bench = Bench::new();
        let attendance = &bench.attendance;
        attendance.set_timer(Some(5 * MILLI));
        attendance.wake_before(0);
        assert!(!bench.is_kicked(), "the worker is awake");
        assert_eq!(bench.sleep(0, Sleep::Watching), Some(5 * MILLI));
        attendance.wake_before(5 * MILLI);
        assert!(!bench.is_kicked(), "the worker wakes at that time anyway");
        attendance.wake_before(2 * MILLI);
        assert!(bench.is_kicked());
        attendance.wake_before(3 * MILLI);
        assert!(!bench.is_kicked(), "the worker was kicked for an earlier deadline");
        attendance.finish_sleep();
        attendance.set_napi_timer(Some(MILLI));
        assert_eq!(bench.sleep(0, Sleep::Watching), Some(MILLI));
        attendance.set_timer(None);
        attendance.set_napi_timer(None);
        assert_eq!(bench.sleep(0, Sleep::Watching), None);
        attendance.remove_kick();
        assert!(!attendance.kick_worker());
    }

    #[test]
    fn a_worker_that_yields_looks_at_a_free_core_at_once() {
        let bench = Bench::new();
        assert_eq!(bench.sleep(MILLI, YIELD), Some(MILLI));
        let guard = bench.core.try_own().unwrap();
        assert_eq!(bench.sleep(MILLI, Sleep::Yielding { limit_ns: 9 }), Some(9));
        bench.attendance.set_timer(Some(MILLI));
        assert_eq!(bench.sleep(3 * MILLI, YIELD), Some(3 * MILLI), "not in the past");
        drop(guard);
    }

    #[test]
    fn a_transmit_deadline_is_taken_once() {
        let attendance = Attendance::default();
        assert!(!attendance.is_transmit_due(NEVER - 1));
        attendance.note_transmit_deadline(MILLI);
        attendance.note_transmit_deadline(2 * MILLI);
        assert!(attendance.is_transmit_due(MILLI) && !attendance.is_transmit_due(MILLI - 1));
        attendance.take_transmit_deadline();
        assert!(!attendance.is_transmit_due(NEVER - 1));
    }

    #[test]
    fn poller_numbers_and_times_fit_into_the_word() {
        assert_ne!(Poller::new(0), Poller::ANY);
        assert_ne!(Poller::new(u64::from(u16::MAX)), Poller::ANY);
        assert_eq!(
            Poller::new(3),
            Poller::new(3 + u64::from(u16::MAX)),
            "two contexts share a number"
        );
        let years = 365 * 24 * 3600 * 1000 * MILLI;
        for (until, known) in [(4 * years, true), (5 * years, false), (u64::MAX, false)] {
            let attendant = Attendant::preferred(ME, until);
            assert!(attendant.is(ME));
            assert_eq!(attendant.until_ns() / 1000, if known { until / 1000 } else { 0 });
        }
    }
}

#[cfg(loom)]
mod models;
