//! The bounded queue between the recording cores and the writer thread.
//!
//! Two buffers are exchanged: the cores fill one under a lock held for one copy, and the writer
//! drains the other without the lock. The steady state allocates nothing, and a slow disk delays no
//! core.
//!
//! Not here: the file format (`writer`).

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{CaptureLink, Direction};

/// Bytes of queued packets per wake of the writer, so that a recorded packet usually costs no wake.
const WAKE_BYTES: usize = 1 << 20;

/// Maximum time until queued packets reach the file, however few they are.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// A packet in a [`Buffer`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// Index of its interface.
    pub(super) interface: usize,
    /// Direction of the packet.
    pub(super) direction: Direction,
    /// Time since 1970.
    pub(super) timestamp: Duration,
    /// Original length in bytes.
    pub(super) original_len: usize,
    /// Length of the kept bytes, which follow in the buffer.
    pub(super) captured_len: usize,
    /// Packets of this interface omitted directly before this one. Set by the queue.
    pub(super) lost_before: u64,
}

/// An interface as the writer needs it.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) link: CaptureLink,
    /// Packets omitted since the last one that was queued.
    lost_since: u64,
    /// Packets omitted since the start.
    pub(super) lost: u64,
}

/// Records, and their bytes end to end in the same order.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub(super) records: Vec<Record>,
    pub(super) bytes: Vec<u8>,
}

impl Buffer {
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
    }

    /// Returns the memory in use. Records count, too: otherwise a flood of empty packets would not
    /// be bounded.
    fn memory(&self) -> usize {
        self.bytes.len() + self.records.len() * size_of::<Record>()
    }
}

#[derive(Debug, Default)]
struct State {
    filling: Buffer,
    interfaces: Vec<Interface>,
    closed: bool,
}

/// Result of [`Queue::take`] besides the records.
#[derive(Debug)]
pub(super) struct Taken {
    /// All interfaces, beginning with those of the previous call.
    pub(super) interfaces: Vec<Interface>,
    /// Whether the queue was closed: no further packets follow.
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake_writer: Condvar,
    bytes_max: usize,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), wake_writer: Condvar::new(), bytes_max }
    }

    pub(super) fn add_interface(&self, name: &str, link: CaptureLink) -> usize {
        let mut state = self.lock();
        state.interfaces.push(Interface { name: name.to_owned(), link, lost_since: 0, lost: 0 });
        state.interfaces.len() - 1
    }

    /// Queues `record`, whose bytes `fill` copies into its argument, or counts it as lost.
    pub(super) fn push(&self, mut record: Record, fill: impl FnOnce(&mut [u8])) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let State { filling, interfaces, .. } = &mut *state;
        let Some(interface) = interfaces.get_mut(record.interface) else { return };
        if filling.memory() + record.captured_len > self.bytes_max {
            interface.lost_since += 1;
            interface.lost += 1;
            return;
        }
        record.lost_before = mem::take(&mut interface.lost_since);
        let before = filling.memory();
        let at = filling.bytes.len();
        filling.bytes.resize(at + record.captured_len, 0);
        fill(&mut filling.bytes[at..]);
        filling.records.push(record);
        let wake = before / WAKE_BYTES != filling.memory() / WAKE_BYTES;
        drop(state);
        if wake {
            self.wake_writer.notify_one();
        }
    }

    /// Ends the capture. Queued packets are still written.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake_writer.notify_one();
    }

    /// Waits until enough is queued to be written, and exchanges it for `drained`, which must be
    /// empty.
    pub(super) fn take(&self, drained: &mut Buffer) -> Taken {
        debug_assert!(drained.records.is_empty(), "the writer drains before it takes");
        let state = self.lock();
        let wait = |state: &mut State| !state.closed && state.filling.memory() < WAKE_BYTES;
        let (mut state, _) = self
            .wake_writer
            .wait_timeout_while(state, FLUSH_INTERVAL, wait)
            .unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut state.filling, drained);
        Taken { interfaces: state.interfaces.clone(), closed: state.closed }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every step, so a panic of another thread under the lock
        // leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
