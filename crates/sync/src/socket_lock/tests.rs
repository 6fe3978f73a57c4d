//! The properties in the head of the module, one by one.

use super::*;
use crate::test_item::Item;

mod prequeue;
#[cfg(loom)]
mod read_list;

/// The protected value of these tests: the work that has run, in order.
#[derive(Debug, Default)]
struct Socket {
    items: Vec<(u32, u32)>,
    deferred: u8,
}

fn run(socket: &mut Socket, work: Work<Item>) {
    match work {
        Work::Item(item) => socket.items.push(item.id()),
        Work::Deferred(bits) => socket.deferred |= bits,
    }
}

type Lock = SocketLock<Socket, Item>;

/// Softirq: brings one item as a socket does, and returns it if the limit refuses it.
fn softirq<T>(
    lock: &SocketLock<T, Item>,
    item: Item,
    bytes: u32,
    limit: u32,
    mut run: impl FnMut(&mut T, Work<Item>),
) -> Result<Queued, Item> {
    match lock.softirq(bytes, limit) {
        Entry::Free(mut held) => {
            held.run_older(&mut run);
            run(&mut held, Work::Item(item));
            held.leave(&mut run);
            Ok(Queued::Ran)
        }
        Entry::Held(place) => Ok(place.queue(item, &mut run)),
        Entry::Full => Err(item),
    }
}

#[cfg(not(loom))]
mod threads {
    use std::sync::Arc as Live;
    use std::time::Duration;

    use super::*;

    const LIMIT: u32 = 1000;

    fn bring(lock: &Lock, sequence: u32) -> Result<Queued, Item> {
        softirq(lock, Item::new(0, sequence, &Live::new(())), 100, LIMIT, run)
    }

    fn sequences(lock: &mut Lock) -> Vec<u32> {
        lock.get_mut().items.iter().map(|id| id.1).collect()
    }

    #[test]
    fn a_free_socket_runs_work_at_once() {
        let mut lock = Lock::default();
        assert!(matches!(bring(&lock, 0), Ok(Queued::Ran)));
        assert!(matches!(lock.defer(0b11, run), Queued::Ran));
        assert_eq!((sequences(&mut lock), lock.get_mut().deferred), (vec![0], 0b11));
        assert!(!lock.is_owned() && lock.try_own().is_some());
    }

    #[test]
    fn an_owned_socket_queues_work_until_release() {
        let mut lock = Lock::default();
        let owned = lock.own();
        assert!(lock.is_owned() && lock.try_own().is_none());
        assert!(matches!(bring(&lock, 0), Ok(Queued::ForHolder)));
        assert!(matches!(lock.defer(0b01, run), Queued::ForHolder));
        assert!(matches!(lock.defer(0b10, run), Queued::ForHolder));
        assert!(matches!(bring(&lock, 1), Ok(Queued::ForHolder)));
        assert!(owned.items.is_empty() && owned.has_backlog());
        assert_eq!(lock.backlog_bytes(), 200);
        let mut calls = 0;
        owned.release(|socket, work| {
            calls += 1;
            run(socket, work);
        });
        // Two items, then the deferred bits as one piece of work.
        assert_eq!((calls, sequences(&mut lock)), (3, vec![0, 1]));
        assert_eq!((lock.get_mut().deferred, lock.backlog_bytes()), (0b11, 0));
    }

    #[test]
    fn an_item_beyond_the_limit_is_given_back() {
        let lock = Lock::default();
        let owned = lock.own();
        for sequence in 0..10 {
            assert!(matches!(bring(&lock, sequence), Ok(Queued::ForHolder)));
        }
        let Err(item) = bring(&lock, 10) else { panic!("over the limit") };
        assert_eq!((item.id(), lock.backlog_bytes()), ((0, 10), LIMIT));
        let huge = softirq(&lock, item, u32::MAX, u32::MAX, run);
        assert!(huge.is_err());
        owned.release(run);
        assert!(matches!(bring(&lock, 11), Ok(Queued::Ran)));
    }

    /// A producer that is always faster than the drain is refused in the end, so the drain ends.
    #[test]
    fn a_flood_cannot_prevent_release() {
        let lock = Lock::default();
        let (mut next, mut refused) = (0, 0);
        let owned = lock.own();
        assert!(matches!(bring(&lock, next), Ok(Queued::ForHolder)));
        owned.release(|socket, work| {
            run(socket, work);
            for _ in 0..2 {
                next += 1;
                match bring(&lock, next) {
                    Ok(Queued::ForHolder) => assert!(lock.backlog_bytes() <= LIMIT),
                    Err(_) => refused += 1,
                    Ok(Queued::Ran) => panic!("the lock is held"),
                }
            }
        });
        assert_eq!((next, refused), (20, 11));
        let owned = lock.try_own().unwrap();
        assert_eq!((owned.items.len(), lock.backlog_bytes()), (10, 0));
    }

    #[test]
    fn run_backlog_keeps_the_lock() {
        let lock = Lock::default();
        let mut owned = lock.own();
        for sequence in 0..10 {
            assert!(matches!(bring(&lock, sequence), Ok(Queued::ForHolder)));
        }
        assert!(matches!(lock.defer(1, run), Queued::ForHolder));
        owned.run_backlog(run);
        assert_eq!((owned.items.len(), owned.deferred), (10, 1));
        // The backlog is empty, so the limit applies anew.
        assert!(!owned.has_backlog() && lock.is_owned());
        assert_eq!(lock.backlog_bytes(), 0);
        assert!(matches!(bring(&lock, 10), Ok(Queued::ForHolder)));
        owned.release(run);
    }

    #[test]
    fn a_dropped_owner_leaves_its_backlog_in_order() {
        let mut lock = Lock::default();
        let owned = lock.own();
        assert!(matches!(bring(&lock, 0), Ok(Queued::ForHolder)));
        assert!(matches!(lock.defer(1, run), Queued::ForHolder));
        drop(owned);
        assert_eq!((lock.backlog_bytes(), lock.get_mut().items.len()), (100, 0));
        assert!(matches!(bring(&lock, 1), Ok(Queued::Ran)));
        assert_eq!((sequences(&mut lock), lock.get_mut().deferred), (vec![0, 1], 1));
        assert_eq!(lock.backlog_bytes(), 0);
        // The same for a holder that has only deferred work.
        let owned = lock.own();
        assert!(matches!(bring(&lock, 2), Ok(Queued::ForHolder)));
        drop(owned);
        assert!(matches!(lock.defer(2, run), Queued::Ran));
        assert_eq!((sequences(&mut lock), lock.get_mut().deferred), (vec![0, 1, 2], 3));
    }

    #[test]
    fn a_panic_in_the_work_frees_the_socket() {
        let live = Live::new(());
        let lock = Lock::default();
        let thread = std::thread::scope(|scope| {
            let item = Item::new(0, 0, &live);
            scope.spawn(|| softirq(&lock, item, 1, 1, |_, _| panic!("in the work"))).join()
        });
        assert!(thread.is_err());
        assert!(lock.try_own().is_some());
        assert_eq!(Live::strong_count(&live), 1);
    }

    #[test]
    fn a_sleeper_is_woken_by_either_kind_of_holder() {
        let lock = Lock::default();
        std::thread::scope(|scope| {
            let owned = lock.own();
            let sleepers = [(); 2].map(|()| scope.spawn(|| lock.own().release(run)));
            std::thread::sleep(Duration::from_millis(10));
            owned.release(run);
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
            let item = Item::new(0, 0, &Live::new(()));
            let mut sleeper = None;
            let entry = softirq(&lock, item, 1, 1, |_, _| {
                sleeper = Some(scope.spawn(|| lock.own().release(run)));
                std::thread::sleep(Duration::from_millis(10));
            });
            assert!(matches!(entry, Ok(Queued::Ran)));
            sleeper.unwrap().join().unwrap();
        });
    }

    #[test]
    fn stress_no_item_is_lost_or_reordered() {
        const EACH: u32 = 30_000;
        let live = Live::new(());
        let mut lock = Lock::default();
        std::thread::scope(|scope| {
            for producer in 0..2 {
                let (lock, live) = (&lock, &live);
                scope.spawn(move || {
                    for sequence in 0..EACH {
                        let mut item = Item::new(producer, sequence, live);
                        while let Err(refused) = softirq(lock, item, 1, 64, run) {
                            item = refused;
                            std::thread::yield_now();
                        }
                        let _ = lock.defer(1 << producer, run);
                    }
                });
                scope.spawn(move || {
                    for round in 0..EACH / 4 {
                        let mut owned = lock.own();
                        if round % 3 == 0 {
                            owned.run_backlog(run);
                        }
                        owned.release(run);
                    }
                });
            }
        });
        let socket = lock.get_mut();
        for producer in 0..2 {
            let order = socket.items.iter().filter(|id| id.0 == producer).map(|id| id.1);
            assert!(order.eq(0..EACH));
        }
        assert_eq!((socket.deferred, Live::strong_count(&live)), (3, 1));
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
    }
}

#[cfg(loom)]
mod models {
    use std::sync::Arc as Live;

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    fn bring(lock: &Lock, producer: u32, count: u32) {
        for sequence in 0..count {
            let item = Item::new(producer, sequence, &Live::new(()));
            assert!(softirq(&lock, item, 1, 8, run).is_ok());
        }
    }

    /// Checks that every item of `producers` was run, in order, and that the word is as at the
    /// beginning.
    fn assert_all_ran(lock: &Lock, producers: &[(u32, u32)], deferred: u8) {
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
        let socket = lock.try_own().unwrap();
        for &(producer, count) in producers {
            let order = socket.items.iter().filter(|id| id.0 == producer).map(|id| id.1);
            assert!(order.eq(0..count), "{:?}", socket.items);
        }
        assert_eq!(socket.deferred, deferred);
    }

    #[test]
    fn loom_two_cores_in_softirq() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let other = {
                let lock = lock.clone();
                thread::spawn(move || bring(&lock, 1, 2))
            };
            bring(&lock, 2, 2);
            other.join().unwrap();
            assert_all_ran(&lock, &[(1, 2), (2, 2)], 0);
        });
    }

    #[test]
    fn loom_release_against_softirq_and_defer() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let core = {
                let lock = lock.clone();
                thread::spawn(move || bring(&lock, 1, 2))
            };
            let timer = {
                let lock = lock.clone();
                thread::spawn(move || {
                    let _ = lock.defer(1, run);
                })
            };
            lock.own().release(run);
            core.join().unwrap();
            timer.join().unwrap();
            assert_all_ran(&lock, &[(1, 2)], 1);
        });
    }

    /// A waiter that passes the lock before it checks is woken without a fence on the other side:
    /// by a holder in softirq or in a call, and also by a holder that finds threads waiting for the
    /// lock.
    #[test]
    fn loom_a_waiter_that_passes_the_lock_is_woken_without_a_fence() {
        for softirq in [true, false] {
            shim::model(move || {
                let lock = Arc::new(Lock::default());
                let ready = Arc::new(AtomicU32::new(0));
                let waiters = Arc::new(EventCount::new());
                let holder = {
                    let (lock, ready, waiters) = (lock.clone(), ready.clone(), waiters.clone());
                    thread::spawn(move || {
                        if softirq {
                            let _ = lock.defer(1, |_, _| ready.store(1, Ordering::Relaxed));
                        } else {
                            let owned = lock.own();
                            ready.store(1, Ordering::Relaxed);
                            owned.release(run);
                        }
                        waiters.notify_all_behind();
                    })
                };
                loop {
                    let token = waiters.prepare();
                    lock.pass();
                    if ready.load(Ordering::Relaxed) == 1 {
                        waiters.cancel(token);
                        break;
                    }
                    let _ = waiters.wait(token, None);
                }
                holder.join().unwrap();
            });
        }
    }

    #[test]
    fn loom_run_backlog_against_softirq() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let mut owned = lock.own();
            let core = {
                let lock = lock.clone();
                thread::spawn(move || bring(&lock, 1, 2))
            };
            owned.run_backlog(run);
            owned.release(run);
            core.join().unwrap();
            assert_all_ran(&lock, &[(1, 2)], 0);
        });
    }

    /// The owner is dropped, not released: the next holder runs the work it leaves, before newer
    /// items.
    #[test]
    fn loom_dropped_owner_against_softirq() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let mut owned = lock.own();
            let core = {
                let lock = lock.clone();
                thread::spawn(move || bring(&lock, 1, 2))
            };
            owned.items.push((9, 0));
            drop(owned);
            core.join().unwrap();
            lock.own().release(run);
            assert_all_ran(&lock, &[(1, 2)], 0);
        });
    }

    /// Loom reports a lost wake-up as a deadlock, and two holders at once as a racing access.
    #[test]
    fn loom_owners_and_softirq_exclude_and_wake_each_other() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let owner = {
                let lock = lock.clone();
                thread::spawn(move || {
                    let mut owned = lock.own();
                    owned.items.push((9, 0));
                    owned.release(run);
                })
            };
            let core = {
                let lock = lock.clone();
                thread::spawn(move || bring(&lock, 1, 1))
            };
            let mut owned = lock.own();
            owned.items.push((9, 0));
            owned.release(run);
            owner.join().unwrap();
            core.join().unwrap();
            assert_eq!(lock.try_own().unwrap().items.len(), 3);
            assert_all_ran(&lock, &[(1, 1)], 0);
        });
    }

    #[test]
    fn loom_three_owners_wake_each_other() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let owned = lock.own();
            let owners = [(); 2].map(|()| {
                let lock = lock.clone();
                thread::spawn(move || lock.own().release(run))
            });
            owned.release(run);
            owners.into_iter().for_each(|owner| owner.join().unwrap());
            assert_all_ran(&lock, &[], 0);
        });
    }

    /// The data that a deferred bit stands for is written before, without ordering of its own; the
    /// run that takes the bit sees it.
    #[test]
    fn loom_deferred_work_sees_its_cause() {
        shim::model(|| {
            let both = Arc::new((Lock::default(), AtomicU32::new(0)));
            let timer = {
                let both = both.clone();
                thread::spawn(move || {
                    both.1.fetch_add(1, Ordering::Relaxed);
                    let _ = both.0.defer(1, |socket, _| look(socket, &both.1));
                })
            };
            both.1.fetch_add(1, Ordering::Relaxed);
            let _ = both.0.defer(1, |socket, _| look(socket, &both.1));
            both.0.own().release(|socket, _| look(socket, &both.1));
            timer.join().unwrap();
            assert_eq!(both.0.try_own().unwrap().items, [(2, 0)]);
        });
    }

    fn look(socket: &mut Socket, cause: &AtomicU32) {
        socket.items = vec![(cause.load(Ordering::Relaxed), 0)];
    }

    /// The limit holds against the drain that empties the backlog: an item is refused or run, never
    /// lost.
    #[test]
    fn loom_limit_against_release() {
        shim::model(|| {
            let lock = Arc::new(Lock::default());
            let owned = lock.own();
            let core = {
                let lock = lock.clone();
                thread::spawn(move || {
                    let mut refused = 0;
                    for sequence in 0..3 {
                        let item = Item::new(1, sequence, &Live::new(()));
                        if let Err(item) = softirq(&lock, item, 1, 1, run) {
                            assert_eq!(item.id(), (1, sequence));
                            refused += 1;
                        }
                    }
                    refused
                })
            };
            owned.release(run);
            let refused = core.join().unwrap();
            assert_eq!(lock.word.load(Ordering::Relaxed), 0);
            assert_eq!(lock.try_own().unwrap().items.len() + refused, 3);
        });
    }
}
