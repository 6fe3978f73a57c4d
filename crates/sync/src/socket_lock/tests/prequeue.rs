//! The lock, its backlog and a prequeue together: a reader sleeps while softirq context queues for
//! it, and a second owner finds both queues. The types are those of the product ([`Conditions`],
//! [`NewlyReady`], [`SocketLock::pass`], [`EventCount::notify_all_behind`]). The tests repeat the
//! steps of `stack::socket` without packets: `StreamState::enqueue`, `Connection::flush`,
//! `backlog::release`, and the wait of `quietline::stream`.
//!
//! Softirq context queues a batch packet by packet, and wakes the reader at the end of the batch,
//! in a flush that takes the lock anew and may find another holder. Meanwhile the lock protects the
//! newly ready bits, and the thread that releases the socket takes them. [`Protocol`] has the two
//! rules that this needs, each with a model that shows which wake is lost without it.

use std::sync::atomic::AtomicBool as Plain;
use std::time::Duration;

use super::*;
use crate::conditions::{Conditions, NewlyReady};
use crate::eventcount::{EventCount, WaitResult};
use crate::shim::AtomicBool;

/// Deferred work at the end of a batch.
const FLUSH: u8 = 1;

/// The receive queue has items for the reader (`Readiness::READ`).
const READ: u8 = 1 << 0;
/// Items wait for the reader in the prequeue.
const PREQUEUED: u8 = 1 << 7;

/// Rules of the protocol that a model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// All rules.
    Product,
    /// A waiter does not pass the lock before it checks.
    NoPass,
    /// An owner leaves the newly ready bits to softirq context.
    OwnerTakesNoBits,
}

/// The protected value (`StreamState`).
#[derive(Debug, Default)]
struct Waited {
    /// Whether a thread waits: softirq context queues for it.
    reader: bool,
    prequeue: Vec<(u32, u32)>,
    /// Whether softirq context has processed an item although there is a reader.
    touched: bool,
    processed: Vec<(u32, u32)>,
    /// Processed items that the reader has seen.
    read: usize,
    newly_ready: NewlyReady,
}

impl Waited {
    /// Processes the waiting items.
    fn drain(&mut self) {
        if !self.prequeue.is_empty() {
            self.processed.append(&mut self.prequeue);
            self.newly_ready.retract(PREQUEUED);
        }
    }
}

/// A socket whose reader may sleep.
struct Socket {
    lock: SocketLock<Waited, Item>,
    ready: Conditions,
    readers: EventCount,
    /// Number of items that fill the prequeue: then softirq context processes all of them.
    full: usize,
    protocol: Protocol,
    /// Whether the reader is taken to be asleep for good; then a wake only sets `woken`, which
    /// orders nothing.
    asleep: bool,
    woken: Plain,
    /// Whether a thread has panicked: no further item will arrive.
    abandoned: AtomicBool,
}

impl Socket {
    fn new(full: usize, protocol: Protocol) -> Self {
        Self {
            lock: SocketLock::default(),
            ready: Conditions::new(0),
            readers: EventCount::new(),
            full,
            protocol,
            asleep: false,
            woken: Plain::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Publishes what the socket is ready for. Under the lock (`StreamState::settle`).
    fn settle(&self, waited: &mut Waited) {
        let read = if waited.processed.len() > waited.read { READ } else { 0 };
        let prequeued = if waited.prequeue.is_empty() { 0 } else { PREQUEUED };
        self.ready.publish(read | prequeued, &mut waited.newly_ready);
    }

    /// Wakes the reader for these bits. Outside the lock.
    fn wake(&self, newly_ready: u8) {
        if newly_ready == 0 {
            return;
        }
        if self.asleep {
            self.woken.store(true, Ordering::Relaxed);
        } else {
            self.readers.notify_all_behind();
        }
    }

    /// Last work of an owner before the lock is free (`backlog::process_late`).
    fn process_late(&self, waited: &mut Waited, work: Work<Item>) {
        match work {
            Work::Item(item) => {
                // Older items are processed first.
                waited.drain();
                waited.processed.push(item.id());
                self.lock.defer_to_holder(FLUSH);
            }
            Work::Deferred(_) => self.settle(waited),
        }
    }

    /// Work in softirq context (`StreamState::softirq`).
    fn softirq(&self, waited: &mut Waited, work: Work<Item>) {
        match work {
            Work::Item(item) if waited.reader => {
                waited.prequeue.push(item.id());
                if waited.prequeue.len() >= self.full {
                    waited.drain();
                    waited.touched = true;
                } else if waited.prequeue.len() == 1 {
                    self.ready.announce(PREQUEUED, &mut waited.newly_ready);
                }
            }
            Work::Item(item) => {
                assert!(waited.prequeue.is_empty(), "an item in the prequeue has a reader");
                waited.processed.push(item.id());
            }
            // The batch is the reader's altogether.
            Work::Deferred(_) if !waited.prequeue.is_empty() && !waited.touched => {}
            Work::Deferred(_) => {
                waited.touched = false;
                self.settle(waited);
            }
        }
    }

    /// Brings one packet of a batch, without a wake (`Connection::segment`).
    fn arrives(&self, item: Item) {
        let run = |waited: &mut Waited, work| self.softirq(waited, work);
        assert!(softirq(&self.lock, item, 1, u32::MAX, run).is_ok());
    }

    /// Ends a batch (`Connection::flush`).
    fn flush(&self) {
        let mut newly_ready = 0;
        let _ = self.lock.defer(FLUSH, |waited, work| {
            self.softirq(waited, work);
            newly_ready |= waited.newly_ready.take();
        });
        self.wake(newly_ready);
    }

    /// Ends the call of an owner (`backlog::release`).
    fn release(&self, mut owned: Owned<'_, Waited, Item>) {
        let takes = self.protocol != Protocol::OwnerTakesNoBits;
        let mut newly_ready = if takes { owned.newly_ready.take() } else { 0 };
        owned.release(|waited, work| {
            self.process_late(waited, work);
            if takes {
                newly_ready |= waited.newly_ready.take();
            }
        });
        self.wake(newly_ready);
    }

    /// A call of another thread.
    fn owns(&self) {
        self.release(self.lock.own());
    }

    /// One step of the reader, which is done if `count` items have been processed, and otherwise
    /// waits.
    fn step(&self, count: usize) -> bool {
        let mut owned = self.lock.own();
        owned.drain();
        owned.read = owned.processed.len();
        let done = owned.read == count;
        owned.reader = !done;
        self.settle(&mut owned);
        self.release(owned);
        done
    }

    /// Sleeps between two steps of the reader, until a condition holds.
    fn sleep(&self) {
        /// Longer than any machine needs for the awaited event.
        const LIMIT: Duration = Duration::from_secs(60);
        let token = self.readers.prepare();
        if self.protocol != Protocol::NoPass {
            self.lock.pass();
        }
        if self.ready.load() != 0 {
            return self.readers.cancel(token);
        }
        let limit = if cfg!(loom) { None } else { Some(LIMIT) };
        let woken = self.readers.wait(token, limit);
        assert!(!self.abandoned.load(Ordering::Relaxed), "another thread has panicked");
        assert_eq!(woken, WaitResult::Notified, "no thread wakes the reader");
    }

    /// Reads until `count` items have been processed.
    fn reads(&self, count: usize) {
        while !self.step(count) {
            self.sleep();
        }
    }
}

/// Wakes the reader when its own thread panics, so that the test fails instead of hanging.
#[cfg(not(loom))]
struct Alarm<'a>(&'a Socket);

#[cfg(not(loom))]
impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandoned.store(true, Ordering::Relaxed);
            let mut owned = self.0.lock.own();
            self.0.ready.announce(READ, &mut owned.newly_ready);
            drop(owned);
            self.0.readers.notify_all();
        }
    }
}

#[cfg(not(loom))]
#[test]
fn stress_a_reader_with_a_prequeue_misses_no_item() {
    const EACH: u32 = 20_000;
    let live = std::sync::Arc::new(());
    // A prequeue of four items is full within some of the batches.
    let socket = Socket::new(4, Protocol::Product);
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

/// A check of the stress test itself: a panicking thread does not leave the reader asleep.
#[cfg(not(loom))]
#[test]
fn a_reader_is_woken_when_another_thread_panics() {
    let socket = Socket::new(4, Protocol::Product);
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| socket.reads(1));
        let failing = scope.spawn(|| {
            let _alarm = Alarm(&socket);
            // Waits for the reader: otherwise it would find the panic by itself.
            while !socket.lock.own().reader {
                std::thread::yield_now();
            }
            panic!("on purpose");
        });
        assert!(failing.join().is_err());
        reader.join()
    });
    let message = read.expect_err("the reader fails too");
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

    /// No item is lost or out of order, and the reader does not sleep for ever, which loom reports
    /// as a deadlock. The prequeue is never full, or with the second item.
    #[test]
    fn loom_a_reader_sleeps_on_its_prequeue() {
        for full in [3, 2] {
            shim::model(move || {
                let socket = Arc::new(Socket::new(full, Protocol::Product));
                let core = arrive(&socket, 2);
                socket.reads(2);
                core.join().unwrap();
                let waited = socket.lock.try_own().unwrap();
                assert_eq!(waited.processed, [(0, 0), (0, 1)]);
                assert!(waited.prequeue.is_empty() && !waited.reader);
            });
        }
    }

    /// A holder that notifies without a fence, and a waiter that does not pass the lock, miss each
    /// other.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_waiter_that_does_not_pass_the_lock_sleeps_for_ever() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(3, Protocol::NoPass));
            let core = arrive(&socket, 1);
            socket.reads(1);
            core.join().unwrap();
        });
    }

    /// A second owner finds a prequeue and a backlog, and processes the older one first.
    #[test]
    fn loom_another_owner_keeps_the_order_of_the_queues() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(3, Protocol::Product));
            assert!(!socket.step(1));
            let core = arrive(&socket, 2);
            socket.owns();
            core.join().unwrap();
            let mut waited = socket.lock.try_own().unwrap();
            waited.drain();
            assert_eq!(waited.processed, [(0, 0), (0, 1)]);
        });
    }

    /// The reader sleeps. A packet is queued for it, and another thread may hold the socket when
    /// the packet arrives, when the batch ends, or both times.
    fn another_owner_against_a_batch(protocol: Protocol) {
        shim::model(move || {
            let socket = Arc::new(Socket { asleep: true, ..Socket::new(3, protocol) });
            assert!(!socket.step(1));
            let core = arrive(&socket, 1);
            socket.owns();
            core.join().unwrap();
            assert!(socket.ready.load() != 0);
            assert!(socket.woken.load(Ordering::Relaxed), "no thread wakes the reader");
        });
    }

    #[test]
    fn loom_a_sleeping_reader_is_woken_while_another_thread_owns_the_socket() {
        another_owner_against_a_batch(Protocol::Product);
    }

    /// The flush runs in the other thread, which does not wake for what softirq context has noted.
    #[test]
    #[should_panic(expected = "no thread wakes the reader")]
    fn loom_news_that_an_owner_leaves_behind_are_lost() {
        another_owner_against_a_batch(Protocol::OwnerTakesNoBits);
    }

    /// All three at once: a core with a batch, a thread that reads and one that owns.
    #[test]
    fn loom_a_batch_a_reader_and_another_owner() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(3, Protocol::Product));
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
