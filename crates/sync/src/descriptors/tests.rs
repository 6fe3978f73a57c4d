//! Who watches: the last note counts, and no frame waits for a worker that nobody wakes.

use super::*;

const ME: Poller = Poller(1);
const OTHER: Poller = Poller(2);
const MILLI: u64 = 1_000_000;

#[cfg(not(loom))]
mod notes {
    use super::*;

    #[test]
    fn a_note_holds_for_its_time() {
        let descriptors = Descriptors::default();
        assert!(descriptors.is_given_back() && !descriptors.is_left(0));
        descriptors.leave_to(ME, 3 * MILLI, false);
        assert!(descriptors.is_left(3 * MILLI - 1) && !descriptors.is_left(3 * MILLI));
        assert!(!descriptors.is_given_back(), "its time is over, and nobody has said so");
        assert_eq!(descriptors.requested_until(MILLI), None, "a guess");
        descriptors.leave_to(ME, 4 * MILLI, true);
        assert_eq!(descriptors.requested_until(MILLI), Some(4 * MILLI));
        assert_eq!(descriptors.requested_until(4 * MILLI), None);
    }

    #[test]
    fn the_last_thread_that_has_polled_gives_back() {
        let descriptors = Descriptors::default();
        descriptors.leave_to(ME, MILLI, false);
        descriptors.leave_to(OTHER, MILLI, false);
        let _ = (descriptors.give_back(ME, 0), descriptors.leave(ME));
        assert!(descriptors.is_left(0), "another has polled since");
        let _ = descriptors.give_back(OTHER, 0);
        assert!(descriptors.is_given_back());
        descriptors.leave_to(OTHER, MILLI, false);
        let _ = descriptors.leave(OTHER);
        assert!(descriptors.is_given_back());
    }

    /// One that sleeps may give back what another has let run out. One that closes a socket may not: it may never have polled.
    #[test]
    fn what_has_run_out_is_given_back_by_whoever_sleeps() {
        let descriptors = Descriptors::default();
        descriptors.leave_to(OTHER, MILLI, false);
        let _ = descriptors.leave(ME);
        assert!(!descriptors.is_given_back());
        let _ = descriptors.give_back(ME, MILLI);
        assert!(descriptors.is_given_back());
        descriptors.leave_to(Poller::ANYBODY, MILLI, true);
        let _ = descriptors.give_back(ME, 0);
        assert!(descriptors.is_given_back(), "whoever comes first");
    }

    #[test]
    fn the_worker_is_woken_once_for_each_sleep() {
        let descriptors = Descriptors::default();
        descriptors.leave_to(ME, MILLI, false);
        assert!(!descriptors.leave(ME), "it is awake");
        descriptors.leave_to(ME, MILLI, false);
        descriptors.begin_sleep(true);
        assert!(!descriptors.relieve() && descriptors.leave(ME) && !descriptors.resume());
        descriptors.end_sleep();
        descriptors.begin_sleep(false);
        descriptors.leave_to(ME, MILLI, false);
        assert!(descriptors.relieve() && !descriptors.relieve());
        assert!(!descriptors.leave(ME), "it sleeps on them");
    }

    #[test]
    fn numbers_and_times_fit() {
        assert_ne!(Poller::new(0), Poller::ANYBODY);
        assert_ne!(Poller::new(u64::from(u16::MAX)), Poller::ANYBODY);
        assert_eq!(Poller::new(3), Poller::new(3 + u64::from(u16::MAX)), "two of many");
        let years = 365 * 24 * 3600 * 1000 * MILLI;
        for (until, known) in [(4 * years, true), (5 * years, false), (u64::MAX, false)] {
            let note = Note::new(ME, until, true);
            assert!(note.is_by(ME) && note.is_by_request());
            assert_eq!(note.until() / 1000, if known { until / 1000 } else { 0 });
        }
    }
}

#[cfg(loom)]
mod models {
    use loom::{
        sync::{Arc, Condvar, Mutex},
        thread,
    };

    use super::*;
    use crate::core_lock::CoreLock;

    /// A core and its worker's eventfd.
    struct World {
        core: CoreLock<()>,
        descriptors: Descriptors,
        kicked: Mutex<bool>,
        kick: Condvar,
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                core: CoreLock::new(()),
                descriptors: Descriptors::default(),
                kicked: Mutex::new(false),
                kick: Condvar::new(),
            })
        }

        fn kick(&self) {
            *self.kicked.lock().unwrap() = true;
            self.kick.notify_one();
        }

        /// A thread that polls once, finds what it waits for, and says by `end` that it will not be back.
        fn poll(&self, me: Poller, end: impl Fn(&Descriptors) -> bool) {
            if let Some(guard) = self.core.own_if_idle() {
                self.descriptors.leave_to(me, MILLI, false);
                let mut owned = guard.release().err();
                while let Some(guard) = owned {
                    owned = guard.release().err();
                    // As whoever has run a core for another.
                    if owned.is_none() && self.descriptors.resume() {
                        self.kick();
                    }
                }
            }
            if end(&self.descriptors) {
                self.kick();
            }
        }

        /// The worker, until it sleeps on the descriptors. It has no time-out: a lost wake is a deadlock.
        fn work(&self) {
            loop {
                let ran = self.core.try_own().map(drop).is_some();
                let watches = ran && !self.descriptors.is_left(0);
                self.descriptors.begin_sleep(!watches);
                if watches {
                    return;
                }
                let free = self.descriptors.is_given_back() && !self.core.is_scheduled();
                let mut kicked = self.kicked.lock().unwrap();
                while !free && !*kicked {
                    kicked = self.kick.wait(kicked).unwrap();
                }
                *kicked = false;
                drop(kicked);
                self.descriptors.end_sleep();
            }
        }
    }

    #[test]
    fn loom_a_worker_watches_again_when_the_thread_that_polled_leaves() {
        crate::shim::model(|| {
            let world = World::new();
            let worker = {
                let world = world.clone();
                thread::spawn(move || world.work())
            };
            world.poll(ME, |descriptors| descriptors.leave(ME));
            worker.join().unwrap();
        });
    }

    /// The last of them speaks, whichever that is. Three pre-emptions take a minute and a half, and find nothing more.
    #[test]
    fn loom_a_worker_watches_again_when_two_threads_that_polled_leave() {
        crate::shim::model_within(2, || {
            let world = World::new();
            let spawn = |run: fn(&World)| {
                let world = world.clone();
                thread::spawn(move || run(&world))
            };
            let worker = spawn(World::work);
            let closes = spawn(|world| world.poll(ME, |descriptors| descriptors.leave(ME)));
            world.poll(OTHER, |descriptors| descriptors.give_back(OTHER, 0));
            closes.join().unwrap();
            worker.join().unwrap();
        });
    }
}
