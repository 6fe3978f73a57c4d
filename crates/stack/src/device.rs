//! Network devices as the stack sees them: queues of frames, and a description of their
//! capabilities.
//!
//! Above: `core` polls the receive queues, and `transmit::tx_queue` passes transmit lists.
//! Implementations: [`loopback`] and [`wire`] in this crate, because they use no operating system
//! and the simulator drives them; tap and tun in crate `quietline`. Linux: `struct net_device`,
//! `ndo_start_xmit`, NAPI's `poll`.
//!
//! A call passes a batch of packets, so the cost of its dynamic dispatch is shared by the batch.

use core::{
    fmt::Debug,
    panic::{RefUnwindSafe, UnwindSafe},
};
use std::sync::Arc;

use pkt::{Batch, Instant, Packet, PacketList};
use sync::ring;

use crate::{
    base::{
        ids::NapiId,
        limits::{GRO_BYTES_MAX, GSO_BYTES_MAX, WEIGHT},
    },
    core::Core,
    cx::Cx,
    header::ethernet::MacAddr,
    host::Event,
};

pub(crate) mod attached;
pub mod loopback;
pub mod wire;

pub use loopback::Loopback;
pub use wire::{Impairment, PathMtu, TooBigReport, Waits, Wire, WireConfig};

/// Index of a queue pair of a device. One core polls one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueId(pub u16);

/// Header that the frames of a device start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header; addresses are resolved by ARP.
    Ethernet {
        /// MAC address of the device.
        mac: MacAddr,
    },
    /// The IP header (tun, loopback): there are no link addresses to resolve.
    Ip,
}

impl LinkType {
    /// Bytes of the link header in front of the IP header.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::Ethernet { .. } => 14,
            Self::Ip => 0,
        }
    }
}

/// Arrival signal of a receive queue, by which the polling core is notified of frames. The
/// counterpart of a device interrupt in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxSignal {
    /// Every received frame has rung the [`Doorbell`] first. The queue is polled only after a ring.
    Doorbell,
    /// A descriptor becomes readable, which the core's worker watches. While the worker does not
    /// watch it, the thread that runs the core polls the queue in every turn.
    Descriptor,
    /// No signal, or no reliable one: every turn polls the queue.
    None,
}

/// Properties of a device, fixed when it is created.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Interface name, for messages, captures and `--stats`.
    pub name: String,
    /// Largest IP packet in bytes, link header excluded, as in Linux.
    pub mtu: u32,
    /// Link layer.
    pub link: LinkType,
    /// The device completes a partial TCP or UDP checksum (`NETIF_F_HW_CSUM`).
    pub tx_checksum: bool,
    /// The device takes TCP superframes over IPv4 (`NETIF_F_TSO`).
    pub tso4: bool,
    /// The device takes TCP superframes over IPv6 (`NETIF_F_TSO6`).
    pub tso6: bool,
    /// Largest superframe that the device accepts, in bytes of IP packet (`tso_max_size`), at most
    /// [`BIG_TCP_BYTES_MAX`]. The size that TCP makes is a setting (`gso_max_size`).
    pub gso_max_bytes: u32,
    /// IPv6 superframes may be as large: the device needs no jumbo payload option (RFC 2675 §2).
    pub jumbo6: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Packets that the driver still owns after `transmit` complete later, and their destructor
    /// runs then. `false` means that `transmit` has finished with a packet when it returns, so no
    /// transmit accounting is attached.
    pub async_completion: bool,
}

impl Capabilities {
    /// Describes a device with one queue and no offloads that has finished with a packet when
    /// `transmit` returns.
    #[must_use]
    pub fn plain(name: impl Into<String>, mtu: u32, link: LinkType) -> Self {
        Self {
            name: name.into(),
            mtu,
            link,
            tx_checksum: false,
            tso4: false,
            tso6: false,
            gso_max_bytes: GSO_BYTES_MAX,
            jumbo6: true,
            queues: 1,
            async_completion: false,
        }
    }
}

/// Packets that a device has completed since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Number of packets as passed to `transmit`: a superframe counts once.
    pub packets: usize,
    /// Their lengths, link headers included.
    pub bytes: usize,
}

impl Completed {
    /// No packets.
    pub const NONE: Self = Self { packets: 0, bytes: 0 };

    /// Adds one packet of `bytes`.
    pub const fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

/// A network device. Any thread may transmit on any queue; only the owner of the queue's core
/// receives and completes.
///
/// The stack calls it mostly from a thread that owns a core. An implementation must not make a
/// socket call and must not wait for a thread that does: such a call may wait for the same core.
///
/// With a queueing discipline, one thread at a time transmits on a queue. Without one, several
/// threads may, and the device orders their packets.
pub trait Device: Send + Sync + Debug {
    /// Returns the device's capabilities.
    fn caps(&self) -> &Capabilities;

    /// Moves up to `budget` frames that have arrived on `queue` into `out` and returns their
    /// number. A number below `budget` means that the queue is empty.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize;

    /// Returns the consumer end of the ring that `queue` receives from, if `receive` would only
    /// take frames from that ring. The core that polls `queue` asks once and then reads the ring
    /// itself. Most devices return `None`.
    fn take_receiver(&self, _queue: QueueId) -> Option<ring::Receiver<Packet>> {
        None
    }

    /// Maximum number of frames per poll. Fewer than [`WEIGHT`] where a frame may be a superframe:
    /// polled frames must be processed while their payload is in the cache. Linux:
    /// `netif_napi_add_weight`.
    fn weight(&self) -> usize {
        WEIGHT
    }

    /// Default of `gso_ipv4_max_size` and `gro_ipv4_max_size`, in bytes: the superframe size at
    /// which the device performs best over IPv4.
    fn gso_ipv4_size(&self) -> u32 {
        GRO_BYTES_MAX
    }

    /// Largest superframe that the device accepts now, in bytes of IP packet: its capability, or
    /// less after it had to refuse one. The device leaves a superframe that it refuses for its size
    /// in the list, as if there were no space, and lowers this value; the stack then segments it in
    /// software and makes no larger ones. Taking the device down and up again (`start`) resets the
    /// value. Linux: `netif_set_tso_max_size`, which a driver may call at any time.
    fn superframe_max(&self) -> u32 {
        self.caps().gso_max_bytes
    }

    /// Takes packets from the front of `list` while it has space and leaves the others there, in
    /// order. The caller keeps those and tries again after a completion or, if the device has none,
    /// a little later. A device notifies its hardware or kernel once per list. It never drops a
    /// packet because it is full; a packet that it can never send it drops with a counted reason.
    /// Linux: `ndo_start_xmit` with `xmit_more`, `NETDEV_TX_BUSY`.
    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList);

    /// Runs the destructors of packets sent since `transmit` returned, and returns their number and
    /// bytes: every packet taken from the queue counts, owned or not, sent or dropped. Called at
    /// the start of every turn of the queue's core. Devices without `async_completion` complete
    /// nothing here.
    fn complete(&self, _queue: QueueId, _cx: &mut Cx) -> Completed {
        Completed::NONE
    }

    /// Whether the device gets a queueing discipline by default, because packets may have to wait
    /// for it. False for a device that takes every packet at once (Linux: `IFF_NO_QUEUE`).
    fn needs_qdisc(&self) -> bool {
        self.caps().async_completion
    }

    /// Returns the next time at which `receive` or `complete` will have work without a doorbell.
    fn next_deadline(&self, _queue: QueueId) -> Option<Instant> {
        None
    }

    /// Returns the arrival signal of `queue`.
    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::None
    }

    /// Gives an in-process device the doorbell to ring when a frame arrives on `queue`.
    fn attach(&self, _queue: QueueId, _doorbell: Doorbell) {}

    /// Whether a host already has this device: a device belongs to one host for its lifetime, and
    /// building a second host with it fails.
    fn is_attached(&self) -> bool {
        false
    }

    /// Brings the device up again. Called by the owner of the queue's core. Linux: `ndo_open`.
    fn start(&self, _queue: QueueId) {}

    /// Takes the device down: drops the frames that have arrived on `queue` with reason
    /// `DeviceDown`, and completes the packets not yet sent. Called by the owner of the queue's
    /// core. Linux: `ndo_stop`.
    fn stop(&self, _queue: QueueId, _cx: &mut Cx) {}
}

/// Handle by which an in-process device signals a core that a frame has arrived.
#[derive(Clone, Debug)]
pub struct Doorbell {
    core: Arc<Core>,
    napi: NapiId,
}

// A panic that unwinds through `ring` releases the core (`sync::CoreGuard`), so devices with a
// doorbell, and types that contain them, may cross `catch_unwind`. The compiler does not derive
// this because a core contains cells.
impl UnwindSafe for Doorbell {}
impl RefUnwindSafe for Doorbell {}

impl Doorbell {
    /// Creates the doorbell of one queue of `core`.
    #[must_use]
    pub const fn new(core: Arc<Core>, napi: NapiId) -> Self {
        Self { core, napi }
    }

    /// Signals that a frame is ready: the core runs in the caller's context unless another thread
    /// owns it.
    pub fn ring(&self, cx: &mut Cx) {
        Core::schedule(&self.core, self.napi, cx);
    }

    /// Passes an event to the core's host.
    pub fn report(&self, event: Event) {
        self.core.report(event);
    }

    /// Signals that a frame becomes ready at `at`: a worker that sleeps past that time is woken
    /// earlier.
    pub fn ring_at(&self, at: Instant) {
        self.core.wake_before(at);
    }
}
