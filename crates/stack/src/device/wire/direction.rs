//! One direction of a wire: what is on its way, and what its sender has not been told of yet.
//!
//! Not here: what happens to a packet on the way (`impair`).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pkt::{CloneMark, DropReason, Instant, Packet, PacketOwner};
use sync::Ring;

use super::{Impairment, path_mtu::PathMtuCell};
use crate::{cx::Cx, device::Doorbell};

/// The longest ring that is made for the packets of a direction.
pub(super) const RING_MAX: usize = 1 << 16;

/// One direction of one queue pair. Locked by the sender to push a list and by the receiver to take a batch, unless there is a
/// ring.
#[derive(Debug)]
pub(super) struct Direction {
    pub(super) impairment: Impairment,
    pub(super) direct: bool,
    /// Where all packets go while neither direction does anything to any: then `in_flight` stays empty.
    pub(super) ring: Option<Arc<Ring<Packet>>>,
    /// Packets ready or on their way, to find an empty direction without the lock. Written under it; whoever is rung
    /// after a push sees it, because the doorbell orders.
    pub(super) len: AtomicUsize,
    pub(super) path_mtu: PathMtuCell,
    /// The receiver's device is down: nothing has room. Relaxed: what passes it at the last moment is dropped by `stop`, or when the
    /// device comes up.
    pub(super) down: AtomicBool,
    pub(super) in_flight: Mutex<InFlight>,
    pub(super) doorbell: OnceLock<Doorbell>,
}

impl Direction {
    /// `straight` says that the other direction passes packets on as they are, too.
    pub(super) fn new(impairment: Impairment, seed: u64, straight: bool) -> Self {
        let has_ring = straight && impairment.is_straight();
        Self {
            impairment,
            direct: impairment.is_none(),
            ring: has_ring.then(|| Arc::new(Ring::new(impairment.queue_packets))),
            len: AtomicUsize::new(0),
            path_mtu: PathMtuCell::new(impairment.path_mtu),
            down: AtomicBool::new(false),
            in_flight: Mutex::new(InFlight {
                ready: VecDeque::new(),
                timed: VecDeque::new(),
                completions: VecDeque::new(),
                waits: Waits::default(),
                idle_at: Instant::ZERO,
                rng: tcp::Rng::new(seed),
            }),
            doorbell: OnceLock::new(),
        }
    }

    /// Packets that may be on their way.
    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.is_down() { 0 } else { self.impairment.queue_packets }
    }

    /// As a cable whose other end is down.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Why there is no room.
    pub(super) fn full(&self) -> DropReason {
        if self.is_down() { DropReason::DeviceDown } else { DropReason::WireQueueFull }
    }

    /// Something can be received now.
    #[inline]
    pub(super) fn ring_doorbell(&self, cx: &mut Cx) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring(cx);
        }
    }
}

/// The part of a direction that needs a lock.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Ready to be received, in order.
    pub(super) ready: VecDeque<Packet>,
    /// Not yet arrived, sorted by `due`.
    pub(super) timed: VecDeque<Timed>,
    pub(super) completions: VecDeque<Completion>,
    /// When the transmitter has sent everything it was given.
    pub(super) idle_at: Instant,
    pub(super) waits: Waits,
    pub(super) rng: tcp::Rng,
}

impl InFlight {
    /// What is due at `now` can be received.
    pub(super) fn arrive(&mut self, now: Instant) {
        while self.timed.front().is_some_and(|first| first.due <= now) {
            self.ready.extend(self.timed.pop_front().map(|first| first.packet));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.timed.len()
    }
}

/// A frame that waits for its moment.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) due: Instant,
    pub(super) packet: Packet,
}

/// A packet that is on its way out until `due`: its sender pays, and an original knows of it.
pub(super) struct Completion {
    pub(super) due: Instant,
    pub(super) bytes: usize,
    pub(super) owner: Option<(Arc<dyn PacketOwner>, u32)>,
    /// Held for its end.
    pub(super) _mark: Option<CloneMark>,
}

impl core::fmt::Debug for Completion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Completion").field("due", &self.due).finish_non_exhaustive()
    }
}

/// Times from a packet's transmission to the moment when its first bit is on the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Packets.
    pub packets: u64,
    /// Sum of their waits.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Waits {
    pub(super) fn count(&mut self, wait: Duration) {
        self.packets += 1;
        self.total += wait;
        self.longest = self.longest.max(wait);
    }

    /// Their mean; zero without packets.
    #[must_use]
    pub fn mean(&self) -> Duration {
        self.total / u32::try_from(self.packets).unwrap_or(u32::MAX).max(1)
    }
}

/// Keeps the queue sorted; equal moments keep their order of sending.
pub(super) fn insert_by_due(queue: &mut VecDeque<Timed>, timed: Timed) {
    let at = queue.partition_point(|other| other.due <= timed.due);
    queue.insert(at, timed);
}
