//! No notification is lost, none is repeated, and an observer that has left is not kept.

use super::*;

/// A watch and a waker that count.
#[derive(Debug, Default)]
struct Count {
    calls: core::sync::atomic::AtomicUsize,
}

impl Count {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }
}

impl Watch for Count {
    fn on_ready(&self, _bits: u8) {
        self.add();
    }

    fn on_removed(&self) {
        self.add();
    }
}

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.add();
    }
}

const READ: u8 = 1;
const WRITE: u8 = 2;

#[cfg(not(loom))]
mod threads {
    use super::*;

    #[test]
    fn a_watch_is_called_until_it_is_removed() {
        let (watchers, count, key) = (Watchers::new(), Arc::new(Count::default()), WatchKey::new());
        assert_eq!(watchers.notify(READ), 0);
        assert!(watchers.add(key, Arc::clone(&count) as _));
        assert!(!watchers.add(key, Arc::clone(&count) as _), "one watch for each key");
        assert_eq!((watchers.notify(READ), watchers.notify(WRITE)), (1, 1));
        assert!(watchers.remove(key) && !watchers.remove(key));
        assert_eq!((watchers.notify(READ), count.calls()), (0, 3), "two calls and the removal");
        assert_eq!(Arc::strong_count(&count), 1, "the list keeps no watch that was removed");
    }

    #[test]
    fn a_task_is_woken_once_for_its_bits() {
        let watchers = Watchers::new();
        let counts = [(); 3].map(|()| Arc::new(Count::default()));
        let [reader, second, writer] =
            counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
        watchers.set_task(WatchKey::new(), READ, &reader);
        watchers.set_task(WatchKey::new(), READ, &second);
        watchers.set_task(WatchKey::new(), WRITE, &writer);
        assert_eq!((watchers.notify(READ), watchers.notify(READ)), (2, 0));
        assert_eq!(counts.each_ref().map(|count| count.calls()), [1, 1, 0]);
        assert_eq!((watchers.notify(READ | WRITE), watchers.notify(WRITE)), (1, 0));
        assert!(!watchers.any.load(Ordering::Relaxed));
    }

    #[test]
    fn the_last_waker_of_a_key_is_woken() {
        let (watchers, key) = (Watchers::new(), WatchKey::new());
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        for count in &counts {
            watchers.set_task(key, READ, &Waker::from(Arc::clone(count)));
        }
        assert_eq!(Arc::strong_count(&counts[0]), 1, "the replaced waker is dropped");
        assert_eq!(watchers.notify(READ), 1);
        assert_eq!(counts.each_ref().map(|count| count.calls()), [0, 1]);
    }

    #[test]
    fn a_task_without_a_key_is_registered_once_for_each_waker() {
        let watchers = Watchers::new();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        for _ in 0..3 {
            watchers.set_task(WatchKey::BY_WAKER, READ, &waker);
        }
        let other = Arc::new(Count::default());
        watchers.set_task(WatchKey::BY_WAKER, READ, &Waker::from(Arc::clone(&other)));
        assert_eq!(watchers.notify(READ), 2);
        assert_eq!((count.calls(), other.calls()), (1, 1));
    }

    #[test]
    fn a_task_that_waits_for_data_and_then_for_space_is_woken_by_either() {
        for news in [READ, WRITE] {
            let watchers = Watchers::new();
            let count = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&count));
            watchers.set_task(WatchKey::BY_WAKER, READ, &waker);
            watchers.set_task(WatchKey::BY_WAKER, WRITE, &waker);
            assert_eq!((watchers.notify(news), count.calls()), (1, 1));
        }
    }

    #[test]
    fn a_task_that_gives_up_is_not_woken() {
        let (watchers, key) = (Watchers::new(), WatchKey::new());
        let count = Arc::new(Count::default());
        watchers.set_task(key, READ, &Waker::from(Arc::clone(&count)));
        watchers.remove_task(key);
        watchers.remove_task(key);
        assert_eq!((watchers.notify(READ), count.calls()), (0, 0));
        assert_eq!(Arc::strong_count(&count), 1);
        watchers.set_task(key, READ, &Waker::from(Arc::clone(&count)));
        assert!(watchers.add(key, Arc::clone(&count) as _));
        watchers.clear();
        watchers.clear();
        assert_eq!((watchers.notify(READ), Arc::strong_count(&count), count.calls()), (0, 1, 1));
    }

    /// Removes itself and adds another watch from inside of the call.
    #[derive(Debug)]
    struct Successor(Arc<Watchers>, WatchKey, Arc<Count>);

    impl Watch for Successor {
        fn on_ready(&self, _bits: u8) {
            assert!(self.0.remove(self.1));
            assert!(self.0.add(WatchKey::new(), Arc::clone(&self.2) as _));
        }
    }

    #[test]
    fn an_observer_may_change_the_list() {
        let watchers = Arc::new(Watchers::new());
        let (count, key) = (Arc::new(Count::default()), WatchKey::new());
        let successor = Successor(Arc::clone(&watchers), key, Arc::clone(&count));
        assert!(watchers.add(key, Arc::new(successor)));
        assert_eq!((watchers.notify(READ), count.calls()), (1, 0));
        assert_eq!((watchers.notify(READ), count.calls()), (1, 1));
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc as LoomArc;
    use loom::thread;

    use super::*;
    use crate::conditions::{Conditions, NewlyReady};
    use crate::shim;
    use crate::socket_lock::SocketLock;
    use crate::test_item::Item;

    /// A socket of the product: conditions under the lock, observers beside it.
    struct Socket {
        lock: SocketLock<NewlyReady, Item>,
        ready: Conditions,
        watchers: Watchers,
    }

    impl Socket {
        fn new() -> LoomArc<Self> {
            let lock = SocketLock::new(NewlyReady::default());
            let (ready, watchers) = (Conditions::new(0), Watchers::new());
            LoomArc::new(Self { lock, ready, watchers })
        }

        /// Publishes `bits` as softirq context or as an owner does, and notifies.
        fn publish(&self, bits: u8, softirq: bool) {
            let mut newly_ready = 0;
            if softirq {
                let _ = self.lock.defer(1, |state, _| {
                    self.ready.publish(bits, state);
                    newly_ready |= state.take();
                });
            } else {
                let mut owned = self.lock.own();
                self.ready.publish(bits, &mut owned);
                newly_ready |= owned.take();
                owned.release(|_, _| {});
            }
            if newly_ready != 0 {
                self.watchers.notify(newly_ready);
            }
        }
    }

    /// A task that registers and then finds nothing is woken.
    #[test]
    fn loom_a_task_that_waits_is_woken() {
        for softirq in [true, false] {
            shim::model(move || {
                let socket = Socket::new();
                let other = LoomArc::clone(&socket);
                let stack = thread::spawn(move || other.publish(READ, softirq));
                let count = Arc::new(Count::default());
                socket.watchers.set_task(WatchKey::BY_WAKER, READ, &Waker::from(count.clone()));
                socket.lock.pass();
                let waits = socket.ready.load() & READ == 0;
                stack.join().unwrap();
                assert!(!waits || count.calls() == 1, "the wake was lost");
            });
        }
    }

    /// A watch is called for a condition that becomes true after it was checked, although another
    /// task leaves the list at the same time.
    #[test]
    fn loom_a_watch_is_called_while_a_task_leaves() {
        shim::model(|| {
            let socket = Socket::new();
            let (stays, leaves) = (Arc::new(Count::default()), Arc::new(Count::default()));
            let key = WatchKey::new();
            socket.watchers.set_task(key, READ, &Waker::from(leaves));
            let other = LoomArc::clone(&socket);
            let stack = thread::spawn(move || other.publish(READ, true));
            let other = LoomArc::clone(&socket);
            let task = thread::spawn(move || other.watchers.remove_task(key));
            socket.watchers.add(WatchKey::new(), stays.clone());
            socket.lock.pass();
            let waits = socket.ready.load() & READ == 0;
            stack.join().unwrap();
            task.join().unwrap();
            assert!(!waits || stays.calls() == 1, "the call was lost");
        });
    }

    /// Without passing the lock the wake can be lost: the model would find that.
    #[test]
    #[should_panic(expected = "the wake was lost")]
    fn loom_a_task_that_does_not_pass_the_lock_may_sleep_for_ever() {
        shim::model(|| {
            let socket = Socket::new();
            let other = LoomArc::clone(&socket);
            let stack = thread::spawn(move || other.publish(READ, true));
            let count = Arc::new(Count::default());
            socket.watchers.set_task(WatchKey::BY_WAKER, READ, &Waker::from(count.clone()));
            let waits = socket.ready.load() & READ == 0;
            stack.join().unwrap();
            assert!(!waits || count.calls() == 1, "the wake was lost");
        });
    }
}
