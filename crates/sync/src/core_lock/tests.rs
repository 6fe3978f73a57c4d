//! One owner at a time, and no event waits for the next.

use super::*;

#[cfg(not(loom))]
mod threads {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn schedule_claim_release() {
        let core = CoreLock::new(0);
        assert!(core.claim().is_none());
        assert!(core.schedule());
        assert!(!core.schedule());
        let mut guard = core.claim().unwrap();
        *guard += 1;
        // What was scheduled before the run began is part of the run.
        guard.release().unwrap();
        assert!(!core.is_scheduled() && core.claim().is_none());
    }

    #[test]
    fn an_event_during_the_run_is_missed_once() {
        let core = CoreLock::new(());
        let guard = core.own_if_idle().unwrap();
        assert!(!core.schedule());
        let guard = guard.release().unwrap_err();
        assert!(core.own_if_idle().is_none() && core.claim().is_none());
        guard.release().unwrap();
        let guard = core.try_own().unwrap();
        assert!(core.try_own().is_none());
        guard.release().unwrap_err().release().unwrap();
    }

    #[test]
    fn reschedule_leaves_a_run_owed() {
        let core = CoreLock::new(());
        core.own_if_idle().unwrap().reschedule();
        assert!(!core.schedule());
        core.claim().unwrap().release().unwrap();
        // Busy polling may take an owed run; the one who was told then finds nothing to claim.
        assert!(core.schedule());
        core.own_if_idle().unwrap().release().unwrap();
        assert!(core.claim().is_none());
        // An unwinding owner leaves the core idle.
        drop(core.try_own());
        assert!(core.schedule());
    }

    #[test]
    fn stress_all_events_are_worked_off() {
        const EVENTS: u64 = 50_000;
        let queue = AtomicU64::new(0);
        let core = CoreLock::new(0);
        let run = |mut guard: CoreGuard<'_, u64>| {
            loop {
                *guard += queue.swap(0, Ordering::Relaxed);
                match guard.release() {
                    Ok(()) => return,
                    Err(again) => guard = again,
                }
            }
        };
        std::thread::scope(|scope| {
            for producer in 0..3 {
                let (queue, core, run) = (&queue, &core, &run);
                scope.spawn(move || {
                    for _ in 0..EVENTS {
                        queue.fetch_add(1, Ordering::Relaxed);
                        if producer == 0 {
                            core.try_own().into_iter().for_each(run);
                        } else if core.schedule() {
                            core.claim().into_iter().for_each(run);
                        }
                    }
                });
            }
        });
        assert_eq!(*core.own_if_idle().unwrap(), 3 * EVENTS);
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A core whose queue is one flag for each producer, and whose state is what its last look saw.
    struct World {
        core: CoreLock<u32>,
        events: [AtomicU32; 2],
    }

    impl World {
        fn new() -> Arc<Self> {
            let events = [AtomicU32::new(0), AtomicU32::new(0)];
            Arc::new(Self { core: CoreLock::new(0), events })
        }

        /// Relaxed: the lock alone must order the event against the look.
        fn event(&self, producer: usize) {
            self.events[producer].store(1, Ordering::Relaxed);
        }

        fn run(&self, mut guard: CoreGuard<'_, u32>) {
            loop {
                *guard = self.events.iter().map(|event| event.load(Ordering::Relaxed)).sum();
                match guard.release() {
                    Ok(()) => return,
                    Err(again) => guard = again,
                }
            }
        }

        fn assert_last_look_saw(&self, events: u32) {
            assert!(!self.core.is_scheduled());
            assert_eq!(*self.core.own_if_idle().unwrap(), events);
        }
    }

    #[test]
    fn loom_no_event_is_lost_between_schedulers() {
        crate::shim::model(|| {
            let world = World::new();
            let produce = |world: &World, producer| {
                world.event(producer);
                if world.core.schedule() {
                    world.core.claim().into_iter().for_each(|guard| world.run(guard));
                }
            };
            let other = {
                let world = world.clone();
                thread::spawn(move || produce(&world, 0))
            };
            produce(&world, 1);
            other.join().unwrap();
            world.assert_last_look_saw(2);
        });
    }

    #[test]
    fn loom_busy_poll_against_scheduler_and_worker() {
        crate::shim::model(|| {
            let world = World::new();
            let poller = {
                let world = world.clone();
                thread::spawn(move || {
                    world.core.own_if_idle().into_iter().for_each(|guard| world.run(guard));
                })
            };
            let pusher = {
                let world = world.clone();
                thread::spawn(move || {
                    world.event(0);
                    world.core.try_own().into_iter().for_each(|guard| world.run(guard));
                })
            };
            world.event(1);
            if world.core.schedule() {
                world.core.claim().into_iter().for_each(|guard| world.run(guard));
            }
            poller.join().unwrap();
            pusher.join().unwrap();
            world.assert_last_look_saw(2);
        });
    }

    /// The budget ends with an event missed: the claimer that follows sees it.
    #[test]
    fn loom_reschedule_hands_a_missed_event_on() {
        crate::shim::model(|| {
            let world = World::new();
            let guard = world.core.own_if_idle().unwrap();
            let pusher = {
                let world = world.clone();
                thread::spawn(move || {
                    world.event(0);
                    if world.core.schedule() {
                        world.core.claim().into_iter().for_each(|guard| world.run(guard));
                    }
                })
            };
            guard.reschedule();
            world.core.claim().into_iter().for_each(|guard| world.run(guard));
            pusher.join().unwrap();
            world.assert_last_look_saw(1);
        });
    }
}
