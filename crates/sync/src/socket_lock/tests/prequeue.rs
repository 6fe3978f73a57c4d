//! The lock, its backlog and a prequeue together: a reader sleeps while softirq context queues for it, and a second owner
//! meets both queues. What `stack::socket::prequeue` and `TcpSocket::wake` do, without packets.
//!
//! Softirq context queues a batch packet by packet, and wakes at the end of it, in a flush that takes the lock anew and may find
//! somebody else holding it. So the news that somebody must be woken cannot lie under the lock ([`News::UnderLock`] is how it
//! was): who runs the flush in softirq's stead would have to know of it.

use std::sync::atomic::AtomicBool as Plain;
use std::time::Duration;

use super::*;
use crate::eventcount::{EventCount, WaitResult};
use crate::shim::AtomicBool;

/// The end of a batch.
const FLUSH: u8 = 1;

/// Where it is noted that the reader is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// In what the lock protects: the flush takes it, if it runs where it was called.
    UnderLock,
    /// Beside the lock: set under it, taken by whoever looks first.
    Beside,
}

/// What the lock protects.
#[derive(Debug, Default)]
struct Waited {
    /// A thread waits: softirq context queues for it.
    reader: bool,
    prequeue: Vec<(u32, u32)>,
    processed: Vec<(u32, u32)>,
    /// With [`News::UnderLock`].
    wake: bool,
}

/// A socket whose reader may sleep.
struct Socket {
    lock: SocketLock<Waited, Item>,
    /// Something waits for the reader, or has been processed for it. Written under the lock, read by the sleeper.
    due: AtomicBool,
    /// `due` has come true, and nobody was woken for it. Set under the lock.
    news: AtomicBool,
    readers: EventCount,
    protocol: News,
    /// The reader is asleep for good, and only whether somebody wakes it is of interest: in `woken`, which orders nothing.
    asleep: bool,
    woken: Plain,
    /// A thread has panicked: nobody will come any more.
    abandoned: AtomicBool,
}

impl Socket {
    fn new(protocol: News) -> Self {
        Self {
            lock: SocketLock::default(),
            due: AtomicBool::new(false),
            news: AtomicBool::new(false),
            readers: EventCount::new(),
            protocol,
            asleep: false,
            woken: Plain::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Under the lock.
    fn publish(&self, news: bool) {
        self.due.store(true, Ordering::Release);
        if news {
            self.news.fetch_or(true, Ordering::Release);
        }
    }

    /// Outside the lock.
    fn wake(&self) {
        if self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::AcqRel) {
            self.notify();
        }
    }

    fn notify(&self) {
        if self.asleep {
            self.woken.store(true, Ordering::Relaxed);
        } else {
            let _ = self.readers.notify_all();
        }
    }

    /// What waits is processed. Under the lock.
    fn drain(waited: &mut Waited) {
        waited.processed.append(&mut waited.prequeue);
        waited.wake = false;
    }

    /// The owner's side: what is older is processed first.
    fn owner(&self, waited: &mut Waited, work: Work<Item>) {
        if let Work::Item(item) | Work::Direct(item) = work {
            Self::drain(waited);
            waited.processed.push(item.id());
            self.publish(true);
        }
    }

    /// The softirq side.
    fn softirq(&self, waited: &mut Waited, work: Work<Item>) {
        let (Work::Item(item) | Work::Direct(item)) = work else { return };
        if waited.reader {
            waited.prequeue.push(item.id());
            if waited.prequeue.len() == 1 {
                waited.wake = true;
                self.publish(self.protocol == News::Beside);
            }
        } else {
            assert!(waited.prequeue.is_empty(), "nothing waits for nobody");
            waited.processed.push(item.id());
            self.publish(true);
        }
    }

    /// One packet of a batch. Nobody is woken yet.
    fn arrives(&self, item: Item) {
        let run = |waited: &mut Waited, work| self.softirq(waited, work);
        let entry = self.lock.softirq(item, 1, u32::MAX, |_| {}, run);
        assert!(!matches!(entry, Entry::Full(_)));
    }

    /// The end of a batch.
    fn flush(&self) {
        let mut due = false;
        let _ = self.lock.defer(FLUSH, |waited, work| {
            self.softirq(waited, work);
            due |= core::mem::take(&mut waited.wake);
        });
        self.wake();
        if due && self.protocol == News::UnderLock {
            self.notify();
        }
    }

    /// Another thread's call.
    fn owns(&self) {
        self.lock.own().release(|waited, work| self.owner(waited, work));
        self.wake();
    }

    /// One step of the reader, which is done when `count` items have been processed, and else waits.
    fn step(&self, count: usize) -> bool {
        let mut owned = self.lock.own();
        Self::drain(&mut owned);
        self.due.store(false, Ordering::Relaxed);
        self.news.fetch_and(false, Ordering::Relaxed);
        let done = owned.processed.len() == count;
        owned.reader = !done;
        owned.release(|waited, work| self.owner(waited, work));
        done
    }

    /// The reader between two steps.
    fn sleep(&self) {
        /// Longer than any machine needs for what the reader waits for.
        const LIMIT: Duration = Duration::from_secs(60);
        let token = self.readers.prepare();
        if self.due.load(Ordering::Acquire) {
            return self.readers.cancel(token);
        }
        let limit = if cfg!(loom) { None } else { Some(LIMIT) };
        let woken = self.readers.wait(token, limit);
        assert!(!self.abandoned.load(Ordering::Relaxed), "another thread has panicked");
        assert_eq!(woken, WaitResult::Notified, "nobody wakes the reader");
    }

    /// Reads until `count` items have been processed.
    fn reads(&self, count: usize) {
        while !self.step(count) {
            self.sleep();
        }
    }
}

/// Wakes the reader when its thread panics, so that the test fails and does not hang.
#[cfg(not(loom))]
struct Alarm<'a>(&'a Socket);

#[cfg(not(loom))]
impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandoned.store(true, Ordering::Relaxed);
            self.0.due.store(true, Ordering::Release);
            let _ = self.0.readers.notify_all();
        }
    }
}

#[cfg(not(loom))]
#[test]
fn stress_a_reader_with_a_prequeue_misses_nothing() {
    const EACH: u32 = 20_000;
    let live = std::sync::Arc::new(());
    let socket = Socket::new(News::Beside);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _alarm = Alarm(&socket);
            for sequence in 0..EACH {
                socket.arrives(Item::new(0, sequence, &live));
                // Batches of one to seven.
                if sequence % 7 == sequence % 3 || sequence + 1 == EACH {
                    socket.flush();
                }
                if sequence % 50 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            let _alarm = Alarm(&socket);
            (0..EACH / 10).for_each(|_| socket.owns());
        });
        socket.reads(EACH as usize);
    });
    let waited = socket.lock.into_inner();
    assert!(waited.processed.iter().map(|id| id.1).eq(0..EACH), "in order");
}

/// The stress test's own: a thread that dies does not leave the reader asleep.
#[cfg(not(loom))]
#[test]
fn a_reader_is_told_of_a_thread_that_panics() {
    let socket = Socket::new(News::Beside);
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| socket.reads(1));
        let dies = scope.spawn(|| {
            let _alarm = Alarm(&socket);
            // Not before the reader waits: it would find out by itself.
            while !socket.lock.own().reader {
                std::thread::yield_now();
            }
            panic!("on purpose");
        });
        assert!(dies.join().is_err());
        reader.join()
    });
    let message = read.expect_err("the reader fails, too");
    assert_eq!(message.downcast_ref(), Some(&"another thread has panicked"));
}

#[cfg(loom)]
mod models {
    use loom::{sync::Arc, thread};

    use super::*;

    fn arrive(socket: &Arc<Socket>, count: u32) -> thread::JoinHandle<()> {
        let socket = socket.clone();
        thread::spawn(move || {
            for sequence in 0..count {
                socket.arrives(Item::new(0, sequence, &std::sync::Arc::new(())));
            }
            socket.flush();
        })
    }

    /// Nothing is lost, nothing is out of order, and the reader does not sleep for ever: loom reports that as a deadlock.
    #[test]
    fn loom_a_reader_sleeps_on_its_prequeue() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(News::Beside));
            let core = arrive(&socket, 2);
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
            let socket = Arc::new(Socket::new(News::Beside));
            assert!(!socket.step(1));
            let core = arrive(&socket, 2);
            socket.owns();
            core.join().unwrap();
            let mut waited = socket.lock.try_own().unwrap();
            Socket::drain(&mut waited);
            assert_eq!(waited.processed, [(0, 0), (0, 1)]);
        });
    }

    /// The reader sleeps. A packet comes to wait for it, and another thread may hold the socket when it comes, when the batch
    /// ends, or both times.
    fn another_owner_against_a_batch(protocol: News) {
        shim::model(move || {
            let socket = Arc::new(Socket { asleep: true, ..Socket::new(protocol) });
            assert!(!socket.step(1));
            let core = arrive(&socket, 1);
            socket.owns();
            core.join().unwrap();
            assert!(socket.due.load(Ordering::Relaxed));
            assert!(socket.woken.load(Ordering::Relaxed), "nobody wakes the reader");
        });
    }

    #[test]
    fn loom_a_sleeping_reader_is_woken_whoever_holds_the_socket() {
        another_owner_against_a_batch(News::Beside);
    }

    /// The flush runs in the other thread, which does not know whom to wake.
    #[test]
    #[should_panic(expected = "nobody wakes the reader")]
    fn loom_news_under_the_lock_is_lost_on_another_owner() {
        another_owner_against_a_batch(News::UnderLock);
    }

    /// All three at once: a core with a batch, a thread that reads and one that owns.
    #[test]
    fn loom_a_batch_a_reader_and_another_owner() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(News::Beside));
            let core = arrive(&socket, 1);
            let other = {
                let socket = socket.clone();
                thread::spawn(move || socket.owns())
            };
            socket.reads(1);
            core.join().unwrap();
            other.join().unwrap();
            assert_eq!(socket.lock.try_own().unwrap().processed, [(0, 0)]);
        });
    }
}
