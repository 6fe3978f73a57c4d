//! An item is listed once, its news is never lost, and the bell agrees with the list.

use super::*;

#[cfg(not(loom))]
mod threads {
    use core::sync::atomic::AtomicIsize;

    use super::*;

    const READ: u8 = 1;
    const WRITE: u8 = 2;

    fn listing(list: &Arc<ReadyList<u32>>, interest: u8, value: u32) -> Listing<u32> {
        Listing(Item::new(list, interest, value))
    }

    #[test]
    fn an_item_is_listed_once_until_it_is_taken() {
        let list = Arc::new(ReadyList::new());
        let (first, second) = (listing(&list, READ, 1), listing(&list, READ | WRITE, 2));
        first.on_ready(WRITE);
        assert!(list.is_empty(), "the news does not interest this item");
        second.on_ready(WRITE);
        first.on_ready(READ);
        second.on_ready(READ);
        assert_eq!(list.len(), 2);
        let taken = list.pop().unwrap();
        assert_eq!(taken.value, 2, "oldest first");
        second.on_ready(READ);
        list.put_back(&taken);
        assert_eq!([list.pop(), list.pop()].map(|item| item.unwrap().value), [1, 2]);
        assert!(list.pop().is_none());
        assert!(first.0.disarm() && !first.0.disarm(), "two threads made the only report");
        first.on_ready(READ);
        second.on_removed();
        assert!(list.is_empty() && !first.0.is_removed() && second.0.is_removed());
    }

    #[test]
    fn a_list_that_has_ended_drops_its_items() {
        let list = Arc::new(ReadyList::new());
        let item = listing(&list, READ, 1);
        item.on_ready(READ);
        list.close();
        item.on_ready(READ);
        assert!(list.is_empty());
        assert_eq!(Arc::strong_count(&item.0), 1);
    }

    #[derive(Debug)]
    struct Rung(Arc<AtomicIsize>);

    impl Bell for Rung {
        fn ring(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn silence(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_bell_rings_while_there_are_items() {
        let list = Arc::new(ReadyList::new());
        let rung = Arc::new(AtomicIsize::new(0));
        let sounds = || rung.load(Ordering::SeqCst);
        let items = [1, 2].map(|value| listing(&list, READ, value));
        items[0].on_ready(READ);
        assert!(list.set_bell(Box::new(Rung(Arc::clone(&rung)))));
        assert!(!list.set_bell(Box::new(Rung(Arc::clone(&rung)))));
        items[1].on_ready(READ);
        assert_eq!(sounds(), 1, "one signal for any number of items");
        let taken = list.pop().unwrap();
        let _ = list.pop();
        list.put_back(&taken);
        list.settle();
        assert_eq!(sounds(), 1, "an item was put back");
        let _ = list.pop();
        list.settle();
        list.settle();
        assert_eq!(sounds(), 0);
        items[0].on_ready(READ);
        list.close();
        assert_eq!(sounds(), 0);
    }

    #[test]
    fn a_thread_waits_until_there_is_an_item() {
        let list = Arc::new(ReadyList::new());
        assert!(!list.wait(Some(Duration::from_millis(1))));
        let item = listing(&list, READ, 1);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| list.wait(None));
            item.on_ready(READ);
            assert!(waits.join().unwrap());
        });
        assert!(list.wait(Some(Duration::ZERO)), "the item is still there");
        assert!(list.wakes() <= 1);
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc as LoomArc;
    use loom::thread;

    use super::*;
    use crate::conditions::{Conditions, NewlyReady};
    use crate::shim;
    use crate::socket_lock::{SocketLock, Work};
    use crate::test_item::Item as Segment;
    use crate::watchers::{WatchKey, Watchers};

    const READ: u8 = 1;

    struct Socket {
        lock: SocketLock<(NewlyReady, u8), Segment>,
        ready: Conditions,
        watchers: Watchers,
    }

    impl Socket {
        fn new() -> LoomArc<Self> {
            let lock = SocketLock::new((NewlyReady::default(), 0));
            let (ready, watchers) = (Conditions::new(0), Watchers::new());
            LoomArc::new(Self { lock, ready, watchers })
        }

        /// Brings the byte named by one bit: at once, or by the thread that holds the lock.
        fn receive(&self, byte: u8) {
            let mut newly_ready = 0;
            let _ = self.lock.defer(byte, |value, work| newly_ready |= self.add(value, work));
            self.watchers.notify(newly_ready);
        }

        /// Adds the bytes of `work`, which are news although READ may be set. Returns the news.
        fn add(&self, (state, bytes): &mut (NewlyReady, u8), work: Work<Segment>) -> u8 {
            if let Work::Deferred(added) = work {
                *bytes += u8::try_from(added.count_ones()).unwrap();
                self.ready.announce(READ, state);
            }
            state.take()
        }

        /// Takes all bytes, as an edge-triggered reader does.
        fn read(&self) -> u8 {
            let mut owned = self.lock.own();
            let (state, bytes) = &mut *owned;
            let taken = core::mem::take(bytes);
            self.ready.publish(0, state);
            let mut newly_ready = owned.0.take();
            assert_eq!(newly_ready, 0);
            owned.release(|value, work| newly_ready |= self.add(value, work));
            self.watchers.notify(newly_ready);
            taken
        }
    }

    /// Two bytes arrive while an edge-triggered loop registers, reads and sleeps. A lost event is a
    /// deadlock, which loom reports.
    #[test]
    fn loom_an_edge_triggered_loop_reads_everything() {
        shim::model_within(2, || {
            let (socket, list) = (Socket::new(), Arc::new(ReadyList::new()));
            let other = LoomArc::clone(&socket);
            let stack = thread::spawn(move || {
                other.receive(1);
                other.receive(2);
            });
            let item = Item::new(&list, READ, ());
            socket.watchers.add(WatchKey::new(), Arc::new(Listing(Arc::clone(&item))));
            socket.lock.pass();
            if socket.ready.load() & READ != 0 {
                list.push(&item);
            }
            let mut read = 0;
            while read < 2 {
                match list.pop() {
                    Some(_) if socket.ready.load() & READ != 0 => read += socket.read(),
                    Some(_) => {}
                    None => {
                        let _ = list.wait(None);
                    }
                }
            }
            stack.join().unwrap();
            assert_eq!(read, 2);
        });
    }
}
