//! No wake-up is lost, and none goes to two waiters.

use super::*;

#[cfg(not(loom))]
mod threads {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Repeated sleeps allocate nothing, unless another thread still holds the waiter of the last
    /// sleep.
    #[test]
    fn a_waiter_is_reused() {
        let event = EventCount::new();
        let first = event.prepare();
        let waiter = Arc::as_ptr(&first.waiter);
        event.cancel(first);
        let second = event.prepare();
        assert_eq!(Arc::as_ptr(&second.waiter), waiter);
        assert!(event.notify_one());
        let (held, address) = (Arc::clone(&second.waiter), Arc::as_ptr(&second.waiter));
        assert_eq!(event.wait(second, None), WaitResult::Notified);
        let third = event.prepare();
        assert_ne!(Arc::as_ptr(&third.waiter), address, "the notifier may still use the waiter");
        assert!(!third.waiter.is_notified());
        drop(held);
        event.cancel(third);
        let fourth = event.prepare();
        assert!(!fourth.waiter.is_notified());
        assert_eq!(event.wait(fourth, Some(Duration::from_millis(1))), WaitResult::TimedOut);
    }

    #[test]
    fn without_waiters_a_notification_does_nothing() {
        let event = EventCount::new();
        assert!(!event.notify_one() && !event.notify_all());
        event.cancel(event.prepare());
        assert!(!event.notify_one());
    }

    #[test]
    fn chosen_waiters_are_woken_later() {
        let (event, mut wakes) = (EventCount::new(), Wakes::new());
        assert!(!event.notify_all_later(&mut wakes), "there is no waiter");
        let tokens = [event.prepare(), event.prepare()];
        assert!(event.notify_all_later(&mut wakes));
        assert_eq!(event.waiting.load(Ordering::Relaxed), 0, "the queue is empty");
        assert!(!event.notify_one(), "both waiters were chosen before");
        assert!(tokens.iter().all(|token| !token.waiter.is_notified()));
        wakes.wake();
        for token in tokens {
            assert_eq!(event.wait(token, None), WaitResult::Notified);
        }
        let last = event.prepare();
        assert!(event.notify_all_later(&mut wakes));
        drop(wakes);
        assert_eq!(
            event.wait(last, None),
            WaitResult::Notified,
            "dropping the set wakes its waiters"
        );
    }

    #[test]
    fn a_timeout_leaves_the_queue() {
        let event = EventCount::new();
        let timeout = Some(Duration::from_millis(5));
        assert_eq!(event.wait(event.prepare(), timeout), WaitResult::TimedOut);
        assert!(!event.notify_one());
    }

    #[test]
    fn a_notification_before_the_wait_ends_it_at_once() {
        let event = EventCount::new();
        let token = event.prepare();
        assert!(event.notify_one());
        assert_eq!(event.wait(token, Some(Duration::ZERO)), WaitResult::Notified);
        // The longest timeout means no deadline, not an overflow.
        let token = event.prepare();
        assert!(event.notify_all());
        assert_eq!(event.wait(token, Some(Duration::MAX)), WaitResult::Notified);
    }

    #[test]
    fn the_first_waiter_is_woken_first_and_cancel_passes_the_notification_on() {
        let event = EventCount::new();
        let (first, second) = (event.prepare(), event.prepare());
        assert!(event.notify_one());
        assert!(!second.waiter.is_notified());
        event.cancel(first);
        assert!(second.waiter.is_notified());
        assert_eq!(event.wait(second, None), WaitResult::Notified);
    }

    #[test]
    fn stress_every_item_is_taken() {
        const ITEMS: u32 = 20_000;
        let (event, ready, taken) = (EventCount::new(), AtomicU32::new(0), AtomicU32::new(0));
        let take = || {
            ready.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1))
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < ITEMS {
                        let token = event.prepare();
                        if take().is_ok() {
                            event.cancel(token);
                            if taken.fetch_add(1, Ordering::Relaxed) + 1 == ITEMS {
                                event.notify_all();
                            }
                        } else if taken.load(Ordering::Relaxed) < ITEMS {
                            let _ = event.wait(token, None);
                        }
                    }
                });
            }
            for _ in 0..ITEMS {
                ready.fetch_add(1, Ordering::Relaxed);
                event.notify_one();
            }
        });
        assert_eq!((taken.into_inner(), ready.into_inner()), (ITEMS, 0));
    }
}

#[cfg(loom)]
mod models {
    use loom::thread;

    use super::*;

    /// Waits until `ready` gives an item, following the protocol in the head of the module.
    fn take(event: &EventCount, ready: &AtomicUsize) {
        loop {
            let token = event.prepare();
            let taken = ready
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
            if taken.is_ok() {
                return event.cancel(token);
            }
            let _ = event.wait(token, None);
        }
    }

    /// Relaxed accesses to the condition: the event count alone must prevent the lost wake-up,
    /// which loom would report as a deadlock.
    #[test]
    fn loom_one_sleeper_is_woken() {
        shim::model(|| {
            let both = Arc::new((EventCount::new(), AtomicUsize::new(0)));
            let sleeper = {
                let both = both.clone();
                thread::spawn(move || take(&both.0, &both.1))
            };
            both.1.store(1, Ordering::Relaxed);
            both.0.notify_one();
            sleeper.join().unwrap();
        });
    }

    /// A waiter is chosen while it goes to sleep, and woken after its notifier has released the
    /// resource that both want.
    #[test]
    fn loom_a_sleeper_that_was_chosen_is_woken_later() {
        shim::model(|| {
            let both = Arc::new((EventCount::new(), AtomicUsize::new(0)));
            let sleeper = {
                let both = both.clone();
                thread::spawn(move || take(&both.0, &both.1))
            };
            let mut wakes = Wakes::new();
            both.1.store(1, Ordering::Relaxed);
            both.0.notify_all_later(&mut wakes);
            thread::yield_now();
            wakes.wake();
            sleeper.join().unwrap();
        });
    }

    #[test]
    fn loom_two_items_wake_two_sleepers() {
        shim::model(|| {
            let both = Arc::new((EventCount::new(), AtomicUsize::new(0)));
            let sleepers = [(); 2].map(|()| {
                let both = both.clone();
                thread::spawn(move || take(&both.0, &both.1))
            });
            for _ in 0..2 {
                both.1.fetch_add(1, Ordering::Relaxed);
                both.0.notify_one();
            }
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        });
    }

    /// A waiter that gives up, by `cancel` or at its deadline, never takes the notification with
    /// it.
    #[test]
    fn loom_giving_up_passes_the_notification_on() {
        shim::model(|| {
            let both = Arc::new((EventCount::new(), AtomicUsize::new(0)));
            let sleeper = {
                let both = both.clone();
                thread::spawn(move || take(&both.0, &both.1))
            };
            let fickle = {
                let both = both.clone();
                thread::spawn(move || both.0.cancel(both.0.prepare()))
            };
            both.1.store(1, Ordering::Relaxed);
            both.0.notify_one();
            sleeper.join().unwrap();
            fickle.join().unwrap();
        });
    }

    #[test]
    fn loom_timeout_against_notify_all() {
        shim::model(|| {
            let event = Arc::new(EventCount::new());
            let sleeper = {
                let event = event.clone();
                thread::spawn(move || event.wait(event.prepare(), Some(Duration::ZERO)))
            };
            let woken = event.notify_all();
            let result = sleeper.join().unwrap();
            assert!(woken || result == WaitResult::TimedOut);
            assert!(!event.notify_all());
        });
    }
}
