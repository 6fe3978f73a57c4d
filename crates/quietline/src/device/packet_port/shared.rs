//! State that both ends of a port share: a queue for each direction, and the signal of the port.
//!
//! # The signal
//!
//! The eventfd is written when the queue of the stack's frames gets its first frame, and read when
//! the application has emptied the queue. Neither happens under the lock, so that a woken thread
//! does not find the lock taken:
//!
//! ```text
//!  stack                                       application
//!  lock; add frames;                           lock; take frames; unlock
//!  first = !signaled; signaled = true          none left: read the eventfd
//!  unlock; if first: write the eventfd         lock; if frames are left: unlock, write the eventfd
//!                                                    else signaled = false; unlock
//! ```
//!
//! Frames that are added before the second lock are found there. Frames that are added after it
//! find `signaled` false. A write that comes late wakes the application once for nothing, and the
//! drain that finds no frame reads the eventfd.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Packet, PacketList};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{read, write},
};
use stack::{
    cx::Cx,
    device::{Capabilities, Completed, Doorbell},
};

use super::PortConfig;
use crate::clock;

/// Smallest number of bytes that a frame counts in a queue: the size of a descriptor.
const COST_MIN: usize = 512;

/// Bytes that a frame of `len` bytes counts in a queue.
pub(super) fn cost(len: usize) -> usize {
    len.max(COST_MIN)
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) caps: Capabilities,
    pub(super) link_len: u16,
    pub(super) superframe_max: Option<u32>,
    /// From the application to the stack.
    pub(super) incoming: Lock<Incoming>,
    /// From the stack to the application.
    pub(super) outgoing: Lock<Outgoing>,
    pub(super) doorbell: OnceLock<Doorbell>,
    pub(super) signal: Signal,
    /// Set when the port is dropped, read by the workers. Release and acquire: the drop of the
    /// port comes before the removal of the device.
    pub(super) port_gone: AtomicBool,
    /// Set when the device is dropped, read by the application.
    pub(super) device_gone: AtomicBool,
    /// Whether `outgoing.done` has packets, so that a turn without completions takes no lock. Set
    /// under that lock before the doorbell rings, which orders it before the turn.
    pub(super) has_done: AtomicBool,
}

/// A mutex whose poison is ignored: no closure of the application runs under it.
#[derive(Debug, Default)]
pub(super) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Frames of the application.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    pub(super) list: PacketList,
    /// Sum of the costs of the frames.
    pub(super) bytes: usize,
    pub(super) limit: usize,
    /// Whether the device is down: arrivals are dropped.
    pub(super) down: bool,
    /// Whether `inject` has left frames to its caller, who waits for room.
    pub(super) wants_room: bool,
    /// Drops that no turn has counted.
    pub(super) dropped: Drops,
}

/// Numbers of frames that the port has dropped outside of a turn, by the reasons of [`REASONS`].
#[derive(Debug, Default)]
pub(super) struct Drops([u64; REASONS.len()]);

/// Reasons for which the port drops frames.
const REASONS: [DropReason; 4] = [
    DropReason::PacketTooShort,
    DropReason::DeviceRxTruncated,
    DropReason::DeviceDown,
    // Last: the reason of any frame that contradicts its header.
    DropReason::VnetHeader,
];

impl Drops {
    pub(super) fn add(&mut self, reason: DropReason, count: usize) {
        let place = REASONS.iter().position(|known| *known == reason);
        self.0[place.unwrap_or(REASONS.len() - 1)] += count as u64;
    }

    fn merge(&mut self, other: Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own += other;
        }
    }

    /// Counts the drops in the stack of this turn.
    pub(super) fn count(&mut self, cx: &Cx) {
        for (reason, count) in REASONS.into_iter().zip(&mut self.0) {
            if *count > 0 {
                cx.counters().drops.add(reason, std::mem::take(count));
            }
        }
    }
}

impl Incoming {
    /// Reserves room for the first frames whose `costs` fit. Returns their number and the sum of
    /// their costs.
    pub(super) fn reserve(&mut self, costs: impl Iterator<Item = usize>) -> (usize, usize) {
        let mut room = Room::of(self.bytes, self.limit);
        let (mut count, mut reserved) = (0, 0);
        for cost in costs {
            if !room.fits(cost) {
                break;
            }
            room.take(cost);
            count += 1;
            reserved += cost;
        }
        self.bytes += reserved;
        (count, reserved)
    }
}

/// Frames of one `inject`.
#[derive(Default)]
pub(super) struct Arrival {
    list: PacketList,
    /// Sum of the costs of the frames in `list`.
    added: usize,
    /// Bytes reserved for these frames and others that were not made.
    reserved: usize,
    pub(super) dropped: Drops,
    /// Whether there was no room for more frames.
    is_short: bool,
}

impl Arrival {
    pub(super) fn new(reserved: usize, is_short: bool) -> Self {
        Self { reserved, is_short, ..Self::default() }
    }

    pub(super) fn push(&mut self, packet: Packet) {
        self.added += cost(packet.len());
        self.list.push_back(packet);
    }
}

/// Room in a queue. An empty queue has room for any frame, so that no frame waits forever.
#[derive(Clone, Copy)]
pub(super) struct Room {
    left: usize,
    is_empty: bool,
}

impl Room {
    pub(super) const fn of(bytes: usize, limit: usize) -> Self {
        Self { left: limit.saturating_sub(bytes), is_empty: bytes == 0 }
    }

    pub(super) const fn fits(&self, cost: usize) -> bool {
        self.is_empty || cost <= self.left
    }

    pub(super) const fn take(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
        self.is_empty = false;
    }
}

/// Frames of the stack.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) list: PacketList,
    pub(super) bytes: usize,
    pub(super) limit: usize,
    /// Frames that the application has taken; the next turn frees them.
    pub(super) done: PacketList,
    /// Whether the signal was given for the frames in the list.
    signaled: bool,
    /// Number of times that the device was taken down. Frames that were lent before are not
    /// reported as completed.
    pub(super) stops: u64,
}

/// Frames that `drain` has taken out of the queue. Its end returns those that are left, also when
/// the closure of the application panics.
pub(super) struct Batch<'a> {
    shared: &'a Shared,
    list: PacketList,
    /// The frame that is lent.
    current: Option<Packet>,
    done: PacketList,
    pub(super) drained: usize,
    /// Sum of the costs of the frames in `done`.
    freed: usize,
    stops: u64,
}

impl<'a> Batch<'a> {
    /// Takes up to `max` frames. They count in the queue until they are done.
    pub(super) fn take(shared: &'a Shared, max: usize) -> Self {
        let mut outgoing = shared.outgoing.lock();
        let waiting = &mut outgoing.list;
        let list = if waiting.len() <= max {
            std::mem::take(waiting)
        } else {
            std::iter::from_fn(|| waiting.pop_front()).take(max).collect()
        };
        let stops = outgoing.stops;
        let done = PacketList::new();
        Self { shared, list, current: None, done, drained: 0, freed: 0, stops }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the next frame to lend.
    pub(super) fn next(&mut self) -> Option<&Packet> {
        let packet = self.list.pop_front()?;
        Some(self.current.insert(packet))
    }

    /// Puts the frame that was lent back to the front.
    pub(super) fn put_back(&mut self) {
        if let Some(packet) = self.current.take() {
            self.list.push_front(packet);
        }
    }

    /// Notes that the application is done with the frame that was lent.
    pub(super) fn finish(&mut self) {
        if let Some(packet) = self.current.take() {
            self.freed += cost(packet.len());
            self.done.push_back(packet);
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.finish();
        self.shared.finish(self);
    }
}

impl Outgoing {
    pub(super) fn room(&self) -> Room {
        Room::of(self.bytes, self.limit)
    }

    /// Notes that frames were added. Returns whether the signal must be given.
    pub(super) const fn note_added(&mut self) -> bool {
        !std::mem::replace(&mut self.signaled, true)
    }
}

impl Shared {
    pub(super) fn new(config: &PortConfig, caps: Capabilities, link_len: u16) -> io::Result<Self> {
        let limit = config.queue_bytes;
        Ok(Self {
            caps,
            link_len,
            superframe_max: config.superframes,
            incoming: Lock(Mutex::new(Incoming { limit, ..Incoming::default() })),
            outgoing: Lock(Mutex::new(Outgoing { limit, ..Outgoing::default() })),
            doorbell: OnceLock::new(),
            signal: Signal::new()?,
            port_gone: AtomicBool::new(false),
            device_gone: AtomicBool::new(false),
            has_done: AtomicBool::new(false),
        })
    }

    /// Adds the frames of one `inject`, and runs the stack.
    pub(super) fn arrive(&self, cx: &mut Cx, arrival: Arrival) {
        let Arrival { mut list, added, reserved, dropped, is_short } = arrival;
        let signals = {
            let mut incoming = self.incoming.lock();
            incoming.dropped.merge(dropped);
            // A device that was taken down meanwhile has no reservations.
            incoming.bytes = (incoming.bytes + added).saturating_sub(reserved);
            if incoming.down {
                incoming.dropped.add(DropReason::DeviceDown, list.len());
                incoming.bytes = incoming.bytes.saturating_sub(added);
            } else {
                incoming.list.append(&mut list);
            }
            // A queue that has become empty meanwhile gives no signal later.
            let is_empty = incoming.list.is_empty();
            incoming.wants_room |= is_short && !is_empty;
            is_short && is_empty
        };
        list.free_all(&mut cx.pool);
        if signals {
            self.signal.raise();
        }
        self.run(cx);
    }

    /// Runs the core of the device on this thread, unless another thread runs it.
    fn run(&self, cx: &mut Cx) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring(cx);
            cx.do_softirq();
        }
    }

    /// Ends a drain: frames that are left return to the front of the queue, and those that are done
    /// go to the stack.
    fn finish(&self, batch: &mut Batch<'_>) {
        let Batch { list, done, freed, stops, .. } = batch;
        let (has_done, signals) = {
            let mut outgoing = self.outgoing.lock();
            let mut signals = false;
            if outgoing.stops == *stops {
                outgoing.bytes = outgoing.bytes.saturating_sub(*freed);
                outgoing.done.append(done);
                // Another drain may have found the queue empty meanwhile.
                signals = !list.is_empty() && outgoing.note_added();
                list.append(&mut outgoing.list);
                outgoing.list = std::mem::take(list);
            }
            let has_done = !outgoing.done.is_empty();
            self.has_done.store(has_done, Ordering::Release);
            (has_done, signals)
        };
        if signals {
            self.signal.raise();
        }
        let ended = self.device_gone.load(Ordering::Acquire);
        if has_done || !list.is_empty() || !done.is_empty() {
            clock::with_cx(|cx| {
                // Frames of a device that was taken down meanwhile.
                list.free_all(&mut cx.pool);
                done.free_all(&mut cx.pool);
                if ended {
                    let mut rest = std::mem::take(&mut self.outgoing.lock().done);
                    rest.free_all(&mut cx.pool);
                } else {
                    self.run(cx);
                }
            });
        }
    }

    /// Makes the descriptor unreadable, unless frames have arrived meanwhile.
    pub(super) fn settle_signal(&self) {
        if !self.signal.is_watched() || self.device_gone.load(Ordering::Acquire) {
            return;
        }
        self.signal.clear();
        let raises = {
            let mut outgoing = self.outgoing.lock();
            outgoing.signaled = !outgoing.list.is_empty();
            outgoing.signaled
        };
        // The device may have been dropped before the eventfd was read.
        if raises || self.device_gone.load(Ordering::Acquire) {
            self.signal.raise();
        }
    }

    /// Takes the packets that the application has taken, for the turn that frees them.
    pub(super) fn take_done(&self) -> (Completed, PacketList) {
        if !self.has_done.load(Ordering::Acquire) {
            return (Completed::NONE, PacketList::new());
        }
        let done = {
            let mut outgoing = self.outgoing.lock();
            self.has_done.store(false, Ordering::Relaxed);
            std::mem::take(&mut outgoing.done)
        };
        (Completed { packets: done.len(), bytes: done.bytes() }, done)
    }

    /// Ends the port: its stack removes the device.
    pub(super) fn close_port(&self) {
        self.port_gone.store(true, Ordering::Release);
        let (incoming, outgoing, done) = {
            let (mut incoming, mut outgoing) = (self.incoming.lock(), self.outgoing.lock());
            (incoming.bytes, outgoing.bytes) = (0, 0);
            outgoing.stops += 1;
            self.has_done.store(false, Ordering::Relaxed);
            let Outgoing { list, done, .. } = &mut *outgoing;
            (std::mem::take(&mut incoming.list), std::mem::take(list), std::mem::take(done))
        };
        drop((incoming, outgoing, done));
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.wake_gone();
        }
    }
}

/// The descriptor on which the application waits.
#[derive(Debug)]
pub(super) struct Signal {
    fd: OwnedFd,
    /// Whether the application has asked for the descriptor. Sequentially consistent: either the
    /// stack sees that it is watched, or the application finds the descriptor written at its first
    /// wait, because `watch` writes it.
    watched: AtomicBool,
}

impl Signal {
    fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, watched: AtomicBool::new(false) })
    }

    /// Returns the descriptor, which is written from now on. The first call makes it readable.
    pub(super) fn watch(&self) -> BorrowedFd<'_> {
        if !self.watched.swap(true, Ordering::SeqCst) {
            self.raise();
        }
        self.fd.as_fd()
    }

    fn is_watched(&self) -> bool {
        self.watched.load(Ordering::SeqCst)
    }

    pub(super) fn raise(&self) {
        if self.is_watched() {
            // The counter cannot reach its limit of 2^64 - 1, so the write does not fail.
            let _ = write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    fn clear(&self) {
        let _ = read(&self.fd, &mut [0; 8]);
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let limit = timeout.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.watch(), PollFlags::IN)];
        Ok(poll(&mut fds, limit.as_ref())? > 0)
    }
}
