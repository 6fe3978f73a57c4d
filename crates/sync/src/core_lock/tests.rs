//! The lock has one owner at a time, and no event waits for the next one.

use super::*;

#[cfg(not(loom))]
mod threads {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_scheduled_run_is_claimed_once() {
        let core = CoreLock::new(0);
        assert!(core.claim().is_none());
        assert!(core.schedule(0));
        assert!(!core.schedule(0));
        let mut guard = core.claim().unwrap();
        *guard += 1;
        // An event scheduled before the run began is part of the run.
        guard.release().unwrap();
        assert!(!core.is_scheduled() && core.claim().is_none());
    }

    #[test]
    fn an_event_during_a_run_causes_one_further_run() {
        let core = CoreLock::new(());
        let guard = core.own_if_idle().unwrap();
        assert!(!core.schedule(0));
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
        assert!(!core.schedule(0));
        core.claim().unwrap().release().unwrap();
        // Busy polling may take an owed run; the scheduler that was told to claim it then finds
        // none.
        assert!(core.schedule(0));
        core.own_if_idle().unwrap().release().unwrap();
        assert!(core.claim().is_none());
        // An unwinding owner leaves the core idle.
        drop(core.try_own());
        assert!(core.schedule(0));
    }

    #[test]
    fn a_scheduled_queue_is_taken_before_the_core_is_released() {
        let core = CoreLock::new(());
        assert!(core.schedule(0b101));
        let guard = core.claim().unwrap();
        assert_eq!(guard.take_queues(0b001), 0b001);
        assert!(!core.schedule(0b010));
        // MISSED and queue bits both make `release` fail. The first failure clears MISSED; queue
        // bits stay until taken.
        let guard = guard.release().unwrap_err().release().unwrap_err();
        assert_eq!(guard.take_queues(!0 >> 3), 0b110);
        assert_eq!(guard.take_queues(!0 >> 3), 0);
        guard.put_back(0b100);
        // The budget is used up: the bit waits for the next owner, and no thread needs to schedule
        // the queue again.
        guard.reschedule();
        let guard = core.claim().unwrap();
        assert_eq!(guard.take_queues(!0 >> 3), 0b100);
        guard.release().unwrap();
        // A queue that is marked while the core has no owner does not request a run, but is part of
        // the next one.
        core.mark(1 << (QUEUES_MAX - 1));
        assert!(!core.is_scheduled());
        let guard = core.own_if_idle().unwrap();
        assert_eq!(guard.take_queues(!0 >> 3), 1 << (QUEUES_MAX - 1));
        guard.release().unwrap();
    }

    #[test]
    fn an_unwinding_owner_leaves_the_queues_to_the_next_owner() {
        let core = CoreLock::new(());
        assert!(core.schedule(0b1));
        drop(core.claim());
        assert!(!core.is_scheduled());
        let guard = core.try_own().unwrap();
        assert_eq!(guard.take_queues(0b1), 0b1);
        guard.release().unwrap();
    }

    #[test]
    fn a_claim_carries_ownership_and_queues() {
        let core = CoreLock::new(());
        let claim = core.own_or_schedule(0b1).expect("the core has no owner");
        assert!(core.own_if_idle().is_none() && core.claim().is_none(), "a claim owns the core");
        assert!(core.own_or_schedule(0b10).is_none(), "the owner will see the queue");
        let guard = core.adopt(claim);
        assert_eq!(guard.take_queues(0b1), 0b1);
        let guard = guard.release().unwrap_err();
        assert_eq!(guard.take_queues(!0 >> 3), 0b10);
        guard.release().unwrap();
        // A queue that came with a claim and was not checked goes to the next owner, however the
        // guard ends.
        let guard = core.adopt(core.own_or_schedule(0b100).unwrap()).release().unwrap_err();
        assert_eq!(guard.take_queues(!0 >> 3), 0b100);
        guard.release().unwrap();
        core.adopt(core.own_or_schedule(0b1000).unwrap()).reschedule();
        let guard = core.claim().unwrap();
        assert_eq!(guard.take_queues(!0 >> 3), 0b1000);
        drop(guard);
        drop(core.adopt(core.own_or_schedule(0b1).unwrap()));
        assert_eq!(core.own_if_idle().unwrap().take_queues(!0 >> 3), 0b1);
        // A run that is owed already is not the caller's to begin.
        assert!(core.schedule(0) && core.own_or_schedule(0b1).is_none());
        drop(core.claim());
    }

    #[test]
    fn a_polled_queue_needs_no_notification() {
        let core = CoreLock::new(());
        let guard = core.own_if_idle().unwrap();
        guard.poll_queues(0b101);
        assert!(core.own_or_schedule(0b001).is_none() && !guard.is_wanted());
        assert!(
            core.own_or_schedule(0b010).is_none() && guard.is_wanted(),
            "this queue is not polled"
        );
        assert_eq!(guard.take_queues(!0 >> 3), 0b010);
        assert_eq!((guard.stop_polling(), guard.stop_polling()), (0b101, 0));
        assert!(core.own_or_schedule(0b001).is_none());
        assert_eq!(guard.take_queues(!0 >> 3), 0b001);
        guard.release().unwrap_err().release().unwrap();
        // A poller that unwinds leaves all the queues it polled to the next owner.
        core.own_if_idle().unwrap().poll_queues(0b100);
        assert_eq!(core.adopt(core.own_or_schedule(0b1).unwrap()).take_queues(!0 >> 3), 0b101);
    }

    #[test]
    #[should_panic(expected = "the claim of another core")]
    fn a_claim_belongs_to_one_core() {
        let (core, other) = (CoreLock::new(()), CoreLock::new(()));
        drop(other.adopt(core.own_or_schedule(0).unwrap()));
    }

    #[test]
    fn stress_all_events_are_processed() {
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
                        } else if core.schedule(0) {
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
    use crate::shim::AtomicU32;

    /// A core whose queue is one flag for each producer, and whose state is the result of its last
    /// check.
    struct World {
        core: CoreLock<u32>,
        events: [AtomicU32; 2],
    }

    impl World {
        fn new() -> Arc<Self> {
            let events = [AtomicU32::new(0), AtomicU32::new(0)];
            Arc::new(Self { core: CoreLock::new(0), events })
        }

        /// Relaxed: the lock alone must order the event against the check.
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

        fn assert_last_check_saw(&self, events: u32) {
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
                if world.core.schedule(0) {
                    world.core.claim().into_iter().for_each(|guard| world.run(guard));
                }
            };
            let other = {
                let world = world.clone();
                thread::spawn(move || produce(&world, 0))
            };
            produce(&world, 1);
            other.join().unwrap();
            world.assert_last_check_saw(2);
        });
    }

    /// Two producers that run the core themselves, and a thread that polls it.
    #[test]
    fn loom_claims_against_each_other_and_a_poller() {
        crate::shim::model(|| {
            let world = World::new();
            let run = |world: &World, mut guard: CoreGuard<'_, u32>| {
                loop {
                    let _ = guard.take_queues(0b11);
                    *guard = world.events.iter().map(|event| event.load(Ordering::Relaxed)).sum();
                    match guard.release() {
                        Ok(()) => return,
                        Err(again) => guard = again,
                    }
                }
            };
            let produce = move |world: &World, producer| {
                world.event(producer);
                if let Some(claim) = world.core.own_or_schedule(1 << producer) {
                    run(world, world.core.adopt(claim));
                }
            };
            let other = {
                let world = world.clone();
                thread::spawn(move || produce(&world, 0))
            };
            produce(&world, 1);
            world.core.own_if_idle().into_iter().for_each(|guard| run(&world, guard));
            other.join().unwrap();
            world.assert_last_check_saw(2);
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
            if world.core.schedule(0) {
                world.core.claim().into_iter().for_each(|guard| world.run(guard));
            }
            poller.join().unwrap();
            pusher.join().unwrap();
            world.assert_last_check_saw(2);
        });
    }

    /// A worker releases the core before it wakes a reader, and leaves it a queue that no thread
    /// scheduled. The reader finds the core free, and the worker's writes.
    #[test]
    fn loom_a_reader_woken_by_the_worker_gets_the_core() {
        use crate::eventcount::{EventCount, Wakes};
        crate::shim::model(|| {
            let world = World::new();
            let readers = Arc::new(EventCount::new());
            let reader = {
                let (world, readers) = (world.clone(), readers.clone());
                thread::spawn(move || {
                    let token = readers.prepare();
                    if world.events[0].load(Ordering::Relaxed) == 0 {
                        let _ = readers.wait(token, None);
                        let guard = world.core.own_if_idle().expect("woken when the core is free");
                        assert_eq!(*guard, 1, "the worker's write");
                        world.run(guard);
                    } else {
                        readers.cancel(token);
                    }
                })
            };
            let mut wakes = Wakes::new();
            let mut guard = world.core.try_own().expect("the core has no owner");
            *guard = 1;
            world.event(0);
            readers.notify_all_later(&mut wakes);
            world.event(1);
            assert!(guard.release().is_ok(), "the second event was not scheduled");
            wakes.wake();
            reader.join().unwrap();
        });
    }

    /// The budget ends with an event missed: the next claimer sees it.
    #[test]
    fn loom_reschedule_passes_a_missed_event_on() {
        crate::shim::model(|| {
            let world = World::new();
            let guard = world.core.own_if_idle().unwrap();
            let pusher = {
                let world = world.clone();
                thread::spawn(move || {
                    world.event(0);
                    if world.core.schedule(0) {
                        world.core.claim().into_iter().for_each(|guard| world.run(guard));
                    }
                })
            };
            guard.reschedule();
            world.core.claim().into_iter().for_each(|guard| world.run(guard));
            pusher.join().unwrap();
            world.assert_last_check_saw(1);
        });
    }

    /// A core with two queues of one place each, whose state counts the items its polls have found.
    /// Only scheduled queues are polled.
    struct Queues {
        core: CoreLock<u32>,
        arrived: [AtomicU32; 2],
    }

    impl Queues {
        fn new() -> Arc<Self> {
            let arrived = [AtomicU32::new(0), AtomicU32::new(0)];
            Arc::new(Self { core: CoreLock::new(0), arrived })
        }

        /// Relaxed: the lock alone must order the arrival against the poll.
        fn arrive(&self, queue: usize) {
            self.arrived[queue].store(1, Ordering::Relaxed);
            if self.core.schedule(1 << queue) {
                self.core.claim().into_iter().for_each(|guard| self.run(guard));
            }
        }

        /// Polls scheduled queues, at most `budget` of them, and puts the rest back.
        fn poll(&self, guard: &mut CoreGuard<'_, u32>, budget: usize) {
            let due = guard.take_queues(0b11);
            let mut left = due;
            for queue in (0..2).filter(|queue| due & 1 << queue != 0).take(budget) {
                **guard += self.arrived[queue].swap(0, Ordering::Relaxed);
                left &= !(1 << queue);
            }
            if left != 0 {
                guard.put_back(left);
            }
        }

        fn run(&self, mut guard: CoreGuard<'_, u32>) {
            loop {
                self.poll(&mut guard, 2);
                match guard.release() {
                    Ok(()) => return,
                    Err(again) => guard = again,
                }
            }
        }

        fn assert_all_polled(&self) {
            self.assert_polled(2);
        }

        fn assert_polled(&self, queues: u32) {
            assert!(!self.core.is_scheduled());
            let guard = self.core.own_if_idle().unwrap();
            assert_eq!((*guard, guard.take_queues(0b11)), (queues, 0));
            drop(guard);
        }
    }

    #[test]
    fn loom_no_scheduled_queue_is_left_unpolled() {
        crate::shim::model(|| {
            let queues = Queues::new();
            let other = {
                let queues = queues.clone();
                thread::spawn(move || queues.arrive(0))
            };
            queues.arrive(1);
            other.join().unwrap();
            queues.assert_all_polled();
        });
    }

    /// A busy-polling thread takes the core while both queues are scheduled; each producer finds
    /// the core owned or polls it itself.
    #[test]
    fn loom_busy_poll_against_two_queues() {
        crate::shim::model(|| {
            let queues = Queues::new();
            let poller = {
                let queues = queues.clone();
                thread::spawn(move || {
                    queues.core.own_if_idle().into_iter().for_each(|guard| queues.run(guard));
                })
            };
            let other = {
                let queues = queues.clone();
                thread::spawn(move || queues.arrive(0))
            };
            queues.arrive(1);
            poller.join().unwrap();
            other.join().unwrap();
            queues.assert_all_polled();
        });
    }

    /// A poller that need not be notified finds the unannounced items when it stops polling.
    fn no_item_stays_in_a_polled_queue(senders: u32, rounds: usize) {
        crate::shim::model(move || {
            let queues = Queues::new();
            let arrive = |queues: &Queues, queue: u32| {
                queues.arrived[queue as usize].store(1, Ordering::Relaxed);
                if let Some(claim) = queues.core.own_or_schedule(1 << queue) {
                    queues.run(queues.core.adopt(claim));
                }
            };
            let others: Vec<_> = (0..senders)
                .map(|queue| {
                    let queues = queues.clone();
                    thread::spawn(move || arrive(&queues, queue))
                })
                .collect();
            for _ in 0..rounds {
                let Some(guard) = queues.core.own_if_idle() else { continue };
                guard.poll_queues(0b11);
                let polled = guard.stop_polling();
                let there = |queue: &usize| queues.arrived[*queue].load(Ordering::Relaxed) != 0;
                let found = (0..2).filter(there).map(|queue| 1 << queue).sum::<u64>();
                if found & polled != 0 {
                    guard.put_back(found & polled);
                }
                queues.run(guard);
            }
            others.into_iter().for_each(|other| other.join().unwrap());
            queues.assert_polled(senders);
        });
    }

    #[test]
    fn loom_no_item_stays_in_two_polled_queues() {
        no_item_stays_in_a_polled_queue(2, 1);
    }

    /// A bit left behind by the first round would show in the second.
    #[test]
    fn loom_no_item_stays_in_a_queue_polled_twice() {
        no_item_stays_in_a_polled_queue(1, 2);
    }

    /// The budget is used up after one queue: the other is put back and the run passed on, while a
    /// third thread schedules.
    #[test]
    fn loom_a_queue_put_back_is_polled_by_the_next_owner() {
        crate::shim::model(|| {
            let queues = Queues::new();
            queues.arrived[1].store(1, Ordering::Relaxed);
            assert!(queues.core.schedule(0b10));
            let other = {
                let queues = queues.clone();
                thread::spawn(move || queues.arrive(0))
            };
            if let Some(mut guard) = queues.core.claim() {
                queues.poll(&mut guard, 1);
                guard.reschedule();
                queues.core.claim().into_iter().for_each(|guard| queues.run(guard));
            }
            other.join().unwrap();
            queues.assert_all_polled();
        });
    }
}
