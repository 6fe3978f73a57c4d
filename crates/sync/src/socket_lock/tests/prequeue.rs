//! The lock, its backlog and a prequeue together: a reader sleeps while softirq context queues for
//! it, and a second owner finds both queues. These tests repeat the steps of
//! `stack::socket::prequeue` and `Connection::wake`, without packets.
//!
//! Softirq context queues a batch packet by packet, and wakes the reader at the end of the batch,
//! in a flush that takes the lock anew and may find another holder. So the note that a wake is due
//! must not be protected by the lock ([`WakeNote::UnderLock`], which loses it): another holder that
//! runs the flush in place of softirq context would have to know of it.

use std::sync::atomic::AtomicBool as Plain;
use std::time::Duration;

use super::*;
use crate::eventcount::{EventCount, WaitResult};
use crate::shim::AtomicBool;

/// Deferred work at the end of a batch.
const FLUSH: u8 = 1;

/// Place of the note that the reader must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeNote {
    /// In the protected value: the flush takes it, if it runs in the context that called it.
    UnderLock,
    /// In an atomic beside the lock: set under the lock, taken by the first thread that checks it.
    Atomic,
}

/// The protected value.
#[derive(Debug, Default)]
struct Waited {
    /// Whether a thread waits: softirq context queues for it.
    reader: bool,
    prequeue: Vec<(u32, u32)>,
    processed: Vec<(u32, u32)>,
    /// The note of [`WakeNote::UnderLock`].
    wake: bool,
}

/// A socket whose reader may sleep.
struct Socket {
    lock: SocketLock<Waited, Item>,
    /// Whether an item waits for the reader, or has been processed for it. Written under the lock,
    /// read by the sleeper.
    due: AtomicBool,
    /// Whether `due` has become true and the reader was not woken for it. Set under the lock.
    wake_due: AtomicBool,
    readers: EventCount,
    protocol: WakeNote,
    /// Whether the reader is taken to be asleep for good; then a wake only sets `woken`, which
    /// orders nothing.
    asleep: bool,
    woken: Plain,
    /// Whether a thread has panicked: no further item will arrive.
    abandoned: AtomicBool,
}

impl Socket {
    fn new(protocol: WakeNote) -> Self {
        Self {
            lock: SocketLock::default(),
            due: AtomicBool::new(false),
            wake_due: AtomicBool::new(false),
            readers: EventCount::new(),
            protocol,
            asleep: false,
            woken: Plain::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Publishes that the reader has work. Under the lock.
    fn publish(&self, wake_due: bool) {
        self.due.store(true, Ordering::Release);
        if wake_due {
            self.wake_due.fetch_or(true, Ordering::Release);
        }
    }

    /// Wakes the reader if that is due. Outside the lock.
    fn wake(&self) {
        if self.wake_due.load(Ordering::Relaxed) && self.wake_due.swap(false, Ordering::AcqRel) {
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

    /// Processes the waiting items. Under the lock.
    fn drain(waited: &mut Waited) {
        waited.processed.append(&mut waited.prequeue);
        waited.wake = false;
    }

    /// Work of an owner: older items are processed first.
    fn owner(&self, waited: &mut Waited, work: Work<Item>) {
        if let Work::Item(item) = work {
            Self::drain(waited);
            waited.processed.push(item.id());
            self.publish(true);
        }
    }

    /// Work in softirq context.
    fn softirq(&self, waited: &mut Waited, work: Work<Item>) {
        let Work::Item(item) = work else { return };
        if waited.reader {
            waited.prequeue.push(item.id());
            if waited.prequeue.len() == 1 {
                waited.wake = true;
                self.publish(self.protocol == WakeNote::Atomic);
            }
        } else {
            assert!(waited.prequeue.is_empty(), "an item in the prequeue has a reader");
            waited.processed.push(item.id());
            self.publish(true);
        }
    }

    /// Brings one packet of a batch, without a wake.
    fn arrives(&self, item: Item) {
        let run = |waited: &mut Waited, work| self.softirq(waited, work);
        assert!(softirq(&self.lock, item, 1, u32::MAX, run).is_ok());
    }

    /// Ends a batch.
    fn flush(&self) {
        let mut due = false;
        let _ = self.lock.defer(FLUSH, |waited, work| {
            self.softirq(waited, work);
            due |= core::mem::take(&mut waited.wake);
        });
        self.wake();
        if due && self.protocol == WakeNote::UnderLock {
            self.notify();
        }
    }

    /// A call of another thread.
    fn owns(&self) {
        self.lock.own().release(|waited, work| self.owner(waited, work));
        self.wake();
    }

    /// One step of the reader, which is done if `count` items have been processed, and otherwise
    /// waits.
    fn step(&self, count: usize) -> bool {
        let mut owned = self.lock.own();
        Self::drain(&mut owned);
        self.due.store(false, Ordering::Relaxed);
        self.wake_due.fetch_and(false, Ordering::Relaxed);
        let done = owned.processed.len() == count;
        owned.reader = !done;
        owned.release(|waited, work| self.owner(waited, work));
        done
    }

    /// Sleeps between two steps of the reader.
    fn sleep(&self) {
        /// Longer than any machine needs for the awaited event.
        const LIMIT: Duration = Duration::from_secs(60);
        let token = self.readers.prepare();
        if self.due.load(Ordering::Acquire) {
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
            self.0.due.store(true, Ordering::Release);
            let _ = self.0.readers.notify_all();
        }
    }
}

#[cfg(not(loom))]
#[test]
fn stress_a_reader_with_a_prequeue_misses_no_item() {
    const EACH: u32 = 20_000;
    let live = std::sync::Arc::new(());
    let socket = Socket::new(WakeNote::Atomic);
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
    let socket = Socket::new(WakeNote::Atomic);
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
    /// as a deadlock.
    #[test]
    fn loom_a_reader_sleeps_on_its_prequeue() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(WakeNote::Atomic));
            let core = arrive(&socket, 2);
            socket.reads(2);
            core.join().unwrap();
            let waited = socket.lock.try_own().unwrap();
            assert_eq!(waited.processed, [(0, 0), (0, 1)]);
            assert!(waited.prequeue.is_empty() && !waited.reader);
        });
    }

    /// A second owner finds a prequeue and a backlog, and processes the older one first.
    #[test]
    fn loom_another_owner_keeps_the_order_of_the_queues() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(WakeNote::Atomic));
            assert!(!socket.step(1));
            let core = arrive(&socket, 2);
            socket.owns();
            core.join().unwrap();
            let mut waited = socket.lock.try_own().unwrap();
            Socket::drain(&mut waited);
            assert_eq!(waited.processed, [(0, 0), (0, 1)]);
        });
    }

    /// The reader sleeps. A packet is queued for it, and another thread may hold the socket when
    /// the packet arrives, when the batch ends, or both times.
    fn another_owner_against_a_batch(protocol: WakeNote) {
        shim::model(move || {
            let socket = Arc::new(Socket { asleep: true, ..Socket::new(protocol) });
            assert!(!socket.step(1));
            let core = arrive(&socket, 1);
            socket.owns();
            core.join().unwrap();
            assert!(socket.due.load(Ordering::Relaxed));
            assert!(socket.woken.load(Ordering::Relaxed), "no thread wakes the reader");
        });
    }

    #[test]
    fn loom_a_sleeping_reader_is_woken_while_another_thread_owns_the_socket() {
        another_owner_against_a_batch(WakeNote::Atomic);
    }

    /// The flush runs in the other thread, which does not see the note.
    #[test]
    #[should_panic(expected = "no thread wakes the reader")]
    fn loom_a_wake_note_under_the_lock_is_lost_with_another_owner() {
        another_owner_against_a_batch(WakeNote::UnderLock);
    }

    /// All three at once: a core with a batch, a thread that reads and one that owns.
    #[test]
    fn loom_a_batch_a_reader_and_another_owner() {
        shim::model(|| {
            let socket = Arc::new(Socket::new(WakeNote::Atomic));
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
