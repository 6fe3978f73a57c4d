//! The bounded queue between the cores that record and the thread that writes.
//!
//! Two buffers change places: the cores fill one under a lock held for one copy, the writer drains the other without
//! it. So the steady state allocates nothing, and a slow disk holds up nobody.
//!
//! Not here: the file format (`writer`).

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{CaptureLink, Direction};

/// The writer is woken once per this many queued bytes, so that recording a packet costs no wake of its own.
const WAKE_BYTES: usize = 1 << 20;

/// What is queued reaches the file after this time at the latest, however little it is.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// A packet in a [`Buffer`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// Index of its interface.
    pub(super) interface: usize,
    /// Which way it went.
    pub(super) direction: Direction,
    /// Since 1970.
    pub(super) timestamp: Duration,
    /// Bytes it had.
    pub(super) original_len: usize,
    /// Bytes kept, next in the buffer.
    pub(super) captured_len: usize,
    /// Packets of this interface left out just before this one. Filled in by the queue.
    pub(super) lost_before: u64,
}

/// An interface as the writer needs it.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) link: CaptureLink,
    /// Packets left out since the last one that was queued.
    lost_since: u64,
    /// Packets left out since the start.
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

    /// Memory in use: a record counts too, or a flood of empty packets would not be bounded.
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

/// What the writer gets from [`Queue::take`] beside the records.
#[derive(Debug)]
pub(super) struct Taken {
    /// Every interface that exists; the first ones are those of the call before.
    pub(super) interfaces: Vec<Interface>,
    /// Nothing more will come.
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

    /// Queues `record`, whose bytes `fill` copies into the slice it is given; or counts it as lost.
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

    /// Ends the capture: what is queued is still written.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake_writer.notify_one();
    }

    /// Waits until there is something worth writing, and exchanges it for `drained`, which must be empty.
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
        // The state is whole after every step, so a panic elsewhere while it was locked leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
