//! The lock, its backlog and a prequeue together: a reader sleeps while softirq context queues for it, and a second owner
//! meets both queues. What `stack::socket::prequeue` does, without packets.

use super::*;
use crate::eventcount::EventCount;
use crate::shim::AtomicBool;

/// What the lock protects.
#[derive(Debug, Default)]
struct Waited {
    /// A thread waits: softirq context queues for it.
    reader: bool,
    prequeue: Vec<(u32, u32)>,
    processed: Vec<(u32, u32)>,
}

/// A socket whose reader may sleep.
struct Socket {
    lock: SocketLock<Waited, Item>,
    /// Something waits for the reader, or has been processed for it. Written under the lock, read by the sleeper.
    due: AtomicBool,
    readers: EventCount,
}

impl Waited {
    fn drain(&mut self) {
        self.processed.append(&mut self.prequeue);
    }

    /// The owner's side: what is older is processed first.
    fn owner(&mut self, due: &AtomicBool, work: Work<Item>) {
        if let Work::Item(item) | Work::Direct(item) = work {
            self.drain();
            self.processed.push(item.id());
            due.store(true, Ordering::Release);
        }
    }

    /// The softirq side.
    fn softirq(&mut self, due: &AtomicBool, work: Work<Item>) {
        let (Work::Item(item) | Work::Direct(item)) = work else { return };
        if self.reader {
            self.prequeue.push(item.id());
        } else {
            assert!(self.prequeue.is_empty(), "nothing waits for nobody");
            self.processed.push(item.id());
        }
        due.store(true, Ordering::Release);
    }
}

impl Socket {
    fn new() -> Self {
        Self {
            lock: SocketLock::default(),
            due: AtomicBool::new(false),
            readers: EventCount::new(),
        }
    }

    fn arrives(&self, item: Item) {
        let entry = self.lock.softirq(
            item,
            1,
            u32::MAX,
            |_| {},
            |waited, work| waited.softirq(&self.due, work),
        );
        assert!(!matches!(entry, Entry::Full(_)));
        if self.due.load(Ordering::Acquire) {
            let _ = self.readers.notify_all();
        }
    }

    /// Another thread's call.
    fn owns(&self) {
        self.lock.own().release(|waited, work| waited.owner(&self.due, work));
        if self.due.load(Ordering::Acquire) {
            let _ = self.readers.notify_all();
        }
    }

    /// Reads until `count` items have been processed.
    fn reads(&self, count: usize) {
        loop {
            let mut owned = self.lock.own();
            owned.drain();
            self.due.store(false, Ordering::Relaxed);
            let done = owned.processed.len() == count;
            owned.reader = !done;
            owned.release(|waited, work| waited.owner(&self.due, work));
            if done {
                return;
            }
            let token = self.readers.prepare();
            if self.due.load(Ordering::Acquire) {
                self.readers.cancel(token);
            } else {
                let _ = self.readers.wait(token, None);
            }
        }
    }
}

#[cfg(not(loom))]
#[test]
fn stress_a_reader_with_a_prequeue_misses_nothing() {
    const EACH: u32 = 20_000;
    let live = std::sync::Arc::new(());
    let socket = Socket::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 0..EACH {
                socket.arrives(Item::new(0, sequence, &live));
                if sequence % 50 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| (0..EACH / 10).for_each(|_| socket.owns()));
        socket.reads(EACH as usize);
    });
    let waited = socket.lock.into_inner();
    assert!(waited.processed.iter().map(|id| id.1).eq(0..EACH), "in order");
}

#[cfg(loom)]
mod models {
    use loom::{sync::Arc, thread};

    use super::*;

    /// Nothing is lost, nothing is out of order, and the reader does not sleep for ever: loom reports that as a deadlock.
    #[test]
    fn loom_a_reader_sleeps_on_its_prequeue() {
        shim::model(|| {
            let socket = Arc::new(Socket::new());
            let core = {
                let socket = socket.clone();
                thread::spawn(move || {
                    for sequence in 0..2 {
                        socket.arrives(Item::new(0, sequence, &std::sync::Arc::new(())));
                    }
                })
            };
            socket.reads(2);
            core.join().unwrap();
            let waited = socket.lock.try_own().unwrap();
            assert_eq!(waited.processed, [(0, 0), (0, 1)]);
            assert!(waited.prequeue.is_empty() && !waited.reader);
        });
    }

    /// A second owner finds a prequeue and a backlog, and processes them in the order of their age.
    #[test]
    fn loom_another_owner_keeps_the_order_of_the_queues() {
        shim::model(|| {
            let socket = Arc::new(Socket::new());
            {
                let mut owned = socket.lock.own();
                owned.reader = true;
                owned.release(|waited, work| waited.owner(&socket.due, work));
            }
            let core = {
                let socket = socket.clone();
                thread::spawn(move || {
                    for sequence in 0..2 {
                        socket.arrives(Item::new(0, sequence, &std::sync::Arc::new(())));
                    }
                })
            };
            socket.owns();
            core.join().unwrap();
            let mut waited = socket.lock.try_own().unwrap();
            waited.drain();
            assert_eq!(waited.processed, [(0, 0), (0, 1)]);
        });
    }
}
