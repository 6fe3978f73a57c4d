//! Models of the worker of one core, with the core's own lock. There is no clock: a sleep until [`SOON`] ends by itself, and a
//! longer one only by a kick, so that a lost wake-up is a deadlock.

use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use super::*;
use crate::shim::{AtomicBool, model, model_within};
use crate::shutdown::Shutdown;

/// A deadline that is reached.
const SOON: u64 = MILLI;
/// A deadline that is not.
const LATE: u64 = 9 * MILLI;

/// Bit of the queue that a frame is in.
const FIRST_QUEUE: u64 = 1;

/// Remembers a kick until the worker has slept.
struct Eventfd {
    kicked: Mutex<bool>,
    wake: Condvar,
}

impl Kick for Eventfd {
    fn kick(&self) {
        *self.kicked.lock().unwrap() = true;
        self.wake.notify_one();
    }
}

impl Eventfd {
    /// Sleeps until kicked, if it `waits`, and forgets kicks.
    fn read(&self, waits: bool) {
        let mut kicked = self.kicked.lock().unwrap();
        while waits && !*kicked {
            kicked = self.wake.wait(kicked).unwrap();
        }
        *kicked = false;
    }
}

/// A core with its worker's eventfd.
struct World {
    core: CoreLock<()>,
    attendance: Attendance,
    eventfd: plain::Arc<Eventfd>,
    /// A frame lies in the first queue of the core.
    frame: AtomicBool,
    /// Deadline of a transmit queue of the core.
    transmit_ns: AtomicU64,
    shutdown: Shutdown,
    /// The worker is to end.
    stop: AtomicBool,
}

impl World {
    fn new() -> Arc<Self> {
        let eventfd = Eventfd { kicked: Mutex::new(false), wake: Condvar::new() };
        let world = Self {
            core: CoreLock::new(()),
            attendance: Attendance::default(),
            eventfd: plain::Arc::new(eventfd),
            frame: AtomicBool::new(false),
            transmit_ns: AtomicU64::new(NEVER),
            shutdown: Shutdown::default(),
            stop: AtomicBool::new(false),
        };
        world.attendance.set_kick(world.eventfd.clone());
        Arc::new(world)
    }

    /// Sleeps as the worker does.
    fn sleep(&self, sleep: Sleep, next: impl FnOnce() -> Option<u64>) {
        let until = self.attendance.prepare_sleep(&self.core, 0, sleep, next);
        let waits = until.is_none_or(|until| until > SOON);
        self.eventfd.read(waits);
        self.attendance.finish_sleep();
        if !waits {
            thread::yield_now();
        }
    }

    /// Runs the core if no thread does. Whether it has run, and found the frame.
    fn run(&self) -> (bool, bool) {
        let Some(mut guard) = self.core.try_own() else { return (false, false) };
        let mut found = false;
        loop {
            if guard.take_queues(FIRST_QUEUE) != 0 {
                found |= self.frame.swap(false, Ordering::Relaxed);
            }
            match guard.release() {
                Ok(()) => return (true, found),
                Err(still_owned) => guard = still_owned,
            }
        }
    }

    /// A core that is owed a run is to be run at once.
    fn next(&self) -> Option<u64> {
        self.core.is_owed().then_some(0)
    }
}

/// Runs `main` beside the worker that `work` is.
fn beside_worker(world: Arc<World>, work: fn(&World), main: impl FnOnce(&World)) {
    let worker = spawn(&world, work);
    main(&world);
    worker.join().unwrap();
}

fn spawn<R: 'static>(world: &Arc<World>, run: fn(&World) -> R) -> thread::JoinHandle<R> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

mod runs {
    use super::*;

    /// The worker, until it has found the frame.
    fn work(world: &World) {
        loop {
            let (ran, found) = world.run();
            if found {
                return;
            }
            world.sleep(if ran { Sleep::Watching } else { YIELD }, || world.next());
        }
    }

    /// As a backlog is kicked.
    #[test]
    fn loom_a_run_that_is_scheduled_wakes_the_worker() {
        model(|| {
            beside_worker(World::new(), work, |world| {
                world.frame.store(true, Ordering::Relaxed);
                if world.core.schedule(FIRST_QUEUE) {
                    assert!(world.attendance.kick_worker());
                }
            });
        });
    }

    /// A doorbell finds the core idle, or makes its owner run once more. A thread that has run it for long enough hands it over.
    #[test]
    fn loom_a_run_that_is_handed_over_wakes_the_worker() {
        model(|| {
            beside_worker(World::new(), work, |world| {
                world.frame.store(true, Ordering::Relaxed);
                if let Some(claim) = world.core.own_or_schedule(FIRST_QUEUE) {
                    world.core.adopt(claim).reschedule();
                    assert!(world.attendance.kick_worker());
                }
            });
        });
    }
}

mod deadlines {
    use super::*;

    /// The worker, until the timer is due that was moved forward.
    fn work(world: &World) {
        while !world.attendance.is_timer_due(SOON) {
            world.sleep(Sleep::Watching, || world.attendance.next_timer());
        }
    }

    #[test]
    fn loom_a_timer_that_is_moved_forward_wakes_the_worker() {
        model(|| {
            let world = World::new();
            world.attendance.set_timer(Some(LATE));
            beside_worker(world, work, |world| {
                world.attendance.set_timer(Some(SOON));
                world.attendance.wake_before(SOON);
            });
        });
    }

    /// The worker is kicked for the earlier of two, whichever thread comes first.
    #[test]
    fn loom_the_earlier_of_two_deadlines_wakes_the_worker() {
        model_within(2, || {
            let world = World::new();
            beside_worker(world.clone(), work, |_| {
                let other = spawn(&world, |world| {
                    world.attendance.set_napi_timer(Some(LATE));
                    world.attendance.wake_before(LATE);
                });
                world.attendance.set_timer(Some(SOON));
                world.attendance.wake_before(SOON);
                other.join().unwrap();
            });
        });
    }

    /// The worker, until its turn has found the transmit queue due. A turn that finds the deadline of the core finds that of
    /// the queue, too.
    fn transmit(world: &World) {
        let queue = || world.transmit_ns.load(Ordering::Relaxed);
        while !world.attendance.is_transmit_due(SOON) {
            world.sleep(Sleep::Watching, || Some(queue()).filter(|ns| *ns != NEVER));
        }
        world.attendance.take_transmit_deadline();
        assert_eq!(queue(), SOON);
    }

    #[test]
    fn loom_a_transmit_deadline_wakes_the_worker_and_names_a_queue() {
        model(|| {
            beside_worker(World::new(), transmit, |world| {
                world.transmit_ns.fetch_min(SOON, Ordering::Relaxed);
                world.attendance.note_transmit_deadline(SOON);
                world.attendance.wake_before(SOON);
            });
        });
    }
}

mod polling {
    use super::*;

    /// A thread that polls once, finds what it waits for, and stops by `end`.
    fn poll(world: &World, note: impl Fn(&Attendance), end: impl Fn(&Attendance)) {
        if let Some(guard) = world.core.own_if_idle() {
            note(&world.attendance);
            let mut owned = guard.release().err();
            while let Some(guard) = owned {
                owned = guard.release().err();
                // As a thread that has run the core for another.
                if owned.is_none() {
                    world.attendance.resume_worker();
                }
            }
        }
        end(&world.attendance);
    }

    /// The worker, until it sleeps on the descriptors.
    fn work(world: &World) {
        loop {
            let (ran, _) = world.run();
            let watches = ran && !world.attendance.is_polled(0);
            if watches {
                return;
            }
            world.sleep(YIELD, || None);
        }
    }

    #[test]
    fn loom_a_worker_watches_again_when_the_thread_that_polled_leaves() {
        model(|| {
            beside_worker(World::new(), work, |world| {
                poll(world, |core| core.note_poll(ME, LATE), |core| core.leave_polling(ME));
            });
        });
    }

    /// A thread that has asked for its time, and sleeps all the same.
    #[test]
    fn loom_a_worker_watches_again_when_a_thread_that_preferred_to_poll_sleeps() {
        model(|| {
            beside_worker(World::new(), work, |world| {
                poll(world, |core| core.prefer_poll(ME, LATE), |core| core.stop_polling(ME, 0));
            });
        });
    }

    /// The last of them stops, whichever that is. Three pre-emptions take a minute and a half, and find nothing more.
    #[test]
    fn loom_a_worker_watches_again_when_two_threads_that_polled_leave() {
        model_within(2, || {
            let world = World::new();
            beside_worker(world.clone(), work, |_| {
                let closes = spawn(&world, |world| {
                    poll(world, |core| core.note_poll(ME, LATE), |core| core.leave_polling(ME));
                });
                let note = |core: &Attendance| core.note_poll(OTHER, LATE);
                poll(&world, note, |core| core.stop_polling(OTHER, 0));
                closes.join().unwrap();
            });
        });
    }
}

mod end {
    use super::*;

    /// The worker, until it is stopped. It then runs what it was handed while the host was up.
    fn work(world: &World) {
        while !world.stop.load(Ordering::Acquire) {
            let (ran, _) = world.run();
            world.sleep(if ran { Sleep::Watching } else { YIELD }, || world.next());
        }
        let _ = world.run();
    }

    fn stop(world: &World) {
        assert!(world.shutdown.begin());
        world.stop.store(true, Ordering::Release);
        world.eventfd.kick();
    }

    /// A run is left to the worker only by a thread that has owed it first, and then finds the host up.
    #[test]
    fn loom_a_run_that_is_handed_over_while_the_host_goes_down_is_begun() {
        model(|| {
            let world = World::new();
            let thread = spawn(&world, |world| {
                world.frame.store(true, Ordering::Relaxed);
                let is_ours = world.core.schedule(FIRST_QUEUE);
                if is_ours && !(world.shutdown.check_up() && world.attendance.kick_worker()) {
                    let _ = world.run();
                }
            });
            beside_worker(world.clone(), work, stop);
            thread.join().unwrap();
            assert!(!world.frame.load(Ordering::Relaxed), "the run was lost");
        });
    }
}
