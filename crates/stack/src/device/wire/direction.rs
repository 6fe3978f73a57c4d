//! One direction of a wire (the in-process link between two hosts): packets in flight, and packets
//! not yet completed to their sender.
//!
//! Not here: the impairments of a packet in flight (`impair`).

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

/// Maximum number of packets in the ring of a direction.
pub(super) const RING_MAX: usize = 1 << 16;

/// One direction of one pair of queues: a transmit queue of one end and the receive queue of the
/// other. Without a ring, both ends lock `in_flight`: the sender to push a list, the receiver to
/// take a batch.
#[derive(Debug)]
pub(super) struct Direction {
    pub(super) impairment: Impairment,
    /// Whether the direction has no impairments except a queue limit and a path MTU.
    pub(super) direct: bool,
    /// Ring of all packets, present if both directions are `direct` and have a queue limit of at
    /// most [`RING_MAX`]; `in_flight` then stays empty.
    pub(super) ring: Option<Arc<Ring<Packet>>>,
    /// Number of packets ready or in flight, to find an empty direction without the lock. Written
    /// under the lock. A core whose doorbell (the arrival signal of a device in this process) rings
    /// after a push sees the new number, because the doorbell orders the store before the core's
    /// load.
    pub(super) len: AtomicUsize,
    pub(super) path_mtu: PathMtuCell,
    /// Whether the receiving device is down: the direction then takes no packets. Relaxed: a packet
    /// that is sent at the same time and still enters is dropped by `stop`, or when the device
    /// comes up.
    pub(super) down: AtomicBool,
    pub(super) in_flight: Mutex<InFlight>,
    pub(super) doorbell: OnceLock<Doorbell>,
}

impl Direction {
    /// Creates a direction. `straight` is true if the opposite direction can use a ring.
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

    /// Returns the maximum number of packets in flight, 0 while the receiving device is down.
    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.is_down() { 0 } else { self.impairment.queue_packets }
    }

    /// Returns whether the receiving device is down.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Returns the drop reason of a packet that the direction does not take.
    pub(super) fn full(&self) -> DropReason {
        if self.is_down() { DropReason::DeviceDown } else { DropReason::WireQueueFull }
    }

    /// Signals the receiver that a packet can be received now.
    #[inline]
    pub(super) fn ring_doorbell(&self, cx: &mut Cx) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring(cx);
        }
    }
}

/// State of a direction that needs the lock.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Packets that can be received, in order.
    pub(super) ready: VecDeque<Packet>,
    /// Packets in flight, sorted by `due`.
    pub(super) timed: VecDeque<Timed>,
    pub(super) completions: VecDeque<Completion>,
    /// Time at which the transmitter becomes idle.
    pub(super) idle_at: Instant,
    pub(super) waits: Waits,
    pub(super) rng: tcp::Rng,
}

impl InFlight {
    /// Makes the packets due at `now` receivable.
    pub(super) fn arrive(&mut self, now: Instant) {
        while self.timed.front().is_some_and(|first| first.due <= now) {
            self.ready.extend(self.timed.pop_front().map(|first| first.packet));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.timed.len()
    }
}

/// A frame in flight until `due`.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) due: Instant,
    pub(super) packet: Packet,
}

/// A sent packet that occupies a slot of the sender's emulated transmit ring
/// (`Impairment::ring_packets`) until `due`. Until then its owner is charged for it, and the packet
/// that it was cloned from counts as cloned.
pub(super) struct Completion {
    pub(super) due: Instant,
    pub(super) bytes: usize,
    pub(super) owner: Option<(Arc<dyn PacketOwner>, u32)>,
    /// Mark of the clone, held until completion.
    pub(super) _mark: Option<CloneMark>,
}

impl core::fmt::Debug for Completion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Completion").field("due", &self.due).finish_non_exhaustive()
    }
}

/// Waiting times of packets from `transmit` to the start of transmission on the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Number of packets.
    pub packets: u64,
    /// Sum of their waiting times.
    pub total: Duration,
    /// Longest waiting time.
    pub longest: Duration,
    /// Number of packets by waiting time: element `n` counts those from 2^(n-1) to below 2^n
    /// microseconds, element 0 those below one microsecond, and the last also all longer ones.
    pub histogram: [u64; WAITS_BUCKETS],
}

/// Number of elements of [`Waits::histogram`]; the last one begins at 2^24 microseconds
/// (about 17 seconds).
const WAITS_BUCKETS: usize = 26;

impl Waits {
    pub(super) fn count(&mut self, wait: Duration) {
        self.packets += 1;
        self.total += wait;
        self.longest = self.longest.max(wait);
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.histogram[bucket.min(WAITS_BUCKETS - 1)] += 1;
    }

    /// Returns an upper bound of the waiting times of this percentage of the packets: a power of
    /// two in microseconds, or the longest waiting time if that is less.
    #[must_use]
    pub fn quantile(&self, percent: u64) -> Duration {
        let wanted = (self.packets * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, packets) in self.histogram[..WAITS_BUCKETS - 1].iter().enumerate() {
            seen += packets;
            if seen >= wanted {
                return Duration::from_micros(1 << bucket).min(self.longest);
            }
        }
        self.longest
    }

    /// Returns the mean waiting time; zero without packets.
    #[must_use]
    pub fn mean(&self) -> Duration {
        self.total / u32::try_from(self.packets).unwrap_or(u32::MAX).max(1)
    }
}

/// Inserts a packet in order of `due`; packets with equal times keep their order of sending.
pub(super) fn insert_by_due(queue: &mut VecDeque<Timed>, timed: Timed) {
    let at = queue.partition_point(|other| other.due <= timed.due);
    queue.insert(at, timed);
}
