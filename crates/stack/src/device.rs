//! Network devices as the stack sees them: queues of frames, and a description of their
//! capabilities.
//!
//! Above: `core` polls the receive queues, and `transmit::tx_queue` passes transmit lists.
//! Implementations: [`loopback`] and [`wire`] in this crate, because they use no operating system
//! and the simulator drives them; tap, tun, packet sockets and AF_XDP in crate `quietline`; any
//! other in the crate of an application. Linux: `struct net_device`, `ndo_start_xmit`, NAPI's
//! `poll`.
//!
//! A call passes a batch of packets, so the cost of its dynamic dispatch is shared by the batch.
//!
//! Not here: descriptors that a worker sleeps on, and interfaces that disappear
//! (`quietline::Attachment`).

use core::{
    fmt::Debug,
    panic::{RefUnwindSafe, UnwindSafe},
};
use std::sync::Arc;

use pkt::{Batch, Instant, Packet, PacketList};
use sync::{Attendance, ring};

use crate::{
    base::{
        ids::{DeviceIndex, NapiId},
        limits::{GRO_BYTES_MAX, GSO_BYTES_MAX, WEIGHT},
    },
    cx::event::Event,
    cx::{Cx, Owed, RunCore},
    header::ethernet::MacAddr,
};

pub(crate) mod attached;
pub mod loopback;
pub mod wire;

pub use loopback::Loopback;
pub use wire::{Impairment, PathMtu, TooBigReport, Waits, Wire, WireConfig};

/// Index of a queue pair of a device. One core polls one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueId(pub u16);

/// A queue pair of one of the devices of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceQueue {
    pub(crate) device: DeviceIndex,
    pub(crate) queue: QueueId,
}

/// Link layer of a device: the header that its frames start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header. ARP (IPv4) and neighbor discovery (IPv6) resolve link addresses.
    Ethernet {
        /// Address of this end of the link: unicast, and not zero.
        mac: MacAddr,
    },
    /// No link header: a frame starts with the IP header (tun, loopback), and there are no link
    /// addresses to resolve.
    Ip,
}

impl LinkType {
    /// Returns the number of bytes of the link header in front of the IP header.
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
    /// The device rings the [`Doorbell`] of the queue after each arrival. The queue is polled only
    /// after a ring, so if a ring is missing, the frame stays in the device until the next ring.
    Doorbell,
    /// A descriptor becomes readable and stays so until the queue is empty. The worker of the core
    /// watches it. Other threads that run the core poll the queue in every turn (one pass of a
    /// core's softirq work).
    Descriptor,
    /// The device has no signal, or does not signal every arrival. Every turn polls the queue; the
    /// device requests a turn with [`Doorbell::wake`], [`Doorbell::ring_at`] or
    /// [`Device::next_deadline`].
    None,
}

/// Properties of a device, fixed when it is created: the host reads them once.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Interface name, unique within a host: for routes, per-device settings, messages and
    /// captures.
    pub name: String,
    /// Largest IP packet in bytes, link header excluded, as in Linux. At least 88 (40 bytes of
    /// headers and the default of `tcp_min_snd_mss`), and at least 1,280 if the device has an IPv6
    /// address.
    pub mtu: u32,
    /// Link layer.
    pub link: LinkType,
    /// Whether the device completes a partial TCP or UDP checksum (`NETIF_F_HW_CSUM`). If false,
    /// every packet passed to it has its checksum in place.
    pub tx_checksum: bool,
    /// Whether the device accepts superframes (packets of several segments) of TCP over IPv4
    /// (`NETIF_F_TSO`). Needs `tx_checksum`.
    pub tso4: bool,
    /// Whether the device accepts superframes over IPv6 (`NETIF_F_TSO6`). Needs `tx_checksum`.
    pub tso6: bool,
    /// Whether the device accepts superframes of UDP datagrams over both IP versions
    /// (`NETIF_F_GSO_UDP_L4`). Needs `tx_checksum` and both kinds for TCP.
    pub uso: bool,
    /// Largest superframe that the device accepts, in bytes of IP packet (`tso_max_size`), at most
    /// [`BIG_TCP_BYTES_MAX`](crate::base::limits::BIG_TCP_BYTES_MAX). The size that TCP makes is a
    /// setting (`gso_max_size`).
    pub gso_max_bytes: u32,
    /// Whether IPv6 superframes beyond 65,535 bytes need no jumbo payload option (RFC 2675 §2).
    pub jumbo6: bool,
    /// Number of queue pairs, at least 1. They are distributed over the cores of the host; one core
    /// polls at most 60.
    pub queues: u16,
    /// Whether the device keeps packets after `transmit` has returned and reports their completion
    /// in `complete`. The stack then limits the bytes in flight (byte queue limits, TCP Small
    /// Queues). If false, the device has freed or orphaned every packet that it took when
    /// `transmit` returns.
    pub async_completion: bool,
}

impl Capabilities {
    /// Describes a device with one queue and no offloads that has freed a packet when `transmit`
    /// returns.
    #[must_use]
    pub fn plain(name: impl Into<String>, mtu: u32, link: LinkType) -> Self {
        Self {
            name: name.into(),
            mtu,
            link,
            tx_checksum: false,
            tso4: false,
            tso6: false,
            uso: false,
            gso_max_bytes: GSO_BYTES_MAX,
            jumbo6: true,
            queues: 1,
            async_completion: false,
        }
    }
}

/// Packets of a queue that a device has finished since the last call of [`Device::complete`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Number of packets as passed to `transmit`: a superframe counts once.
    pub packets: usize,
    /// Sum of their lengths when they were passed to `transmit`, link headers included.
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

/// A network device.
///
/// # Contract
///
/// The host calls a device from inside the stack, mostly on a thread that owns a core. So **no
/// method may block**, wait for another thread, or call a socket or a [`Host`](crate::host::Host):
/// that call could wait for the core that the caller owns. A lock held only for the length of a
/// copy is allowed.
///
/// | method | called by | when |
/// |---|---|---|
/// | [`caps`](Self::caps) and the other constants | the thread that builds the host | once; later values are not read |
/// | [`attach`](Self::attach) | the thread that builds the host | once for each queue, before the first frame |
/// | [`receive`](Self::receive), [`complete`](Self::complete) | the thread that owns the queue's core, one at a time | in turns of that core |
/// | [`transmit`](Self::transmit) | any thread; several at a time unless a queueing discipline is in front | whenever a packet leaves |
/// | [`next_deadline`](Self::next_deadline) | any thread | before a worker sleeps, and in `Stack::poll` |
/// | [`stop`](Self::stop), [`start`](Self::start) | the thread that owns the queue's core | when the device is taken down, and up again |
///
/// Every packet has exactly one owner. A device owns a packet from the time at which the device
/// takes the packet from the list of `transmit`, or allocates it, until the device frees the packet
/// (`cx.pool.free`), drops it with a counted reason (`cx.drop_packet`), or puts it into the batch
/// of `receive`. A device that is dropped frees all packets that it still owns. Any thread may drop
/// the device, after its host has ended or has removed the device.
///
/// A transmitted packet may be charged to a socket ([`PacketOwner`](pkt::PacketOwner)). Freeing the
/// packet ends the charge. A device without `async_completion` that passes on the packet itself,
/// instead of a copy of its bytes, calls `packet.orphan()` first.
///
/// The suite `quietline::device::conformance` checks these rules on a device.
///
/// # Errors
///
/// No method fails. A frame that cannot be received or sent is dropped with a
/// [`DropReason`](pkt::DropReason), which the host counts. A device that has failed permanently
/// reports the failure through its attachment (`quietline::Attachment::gone_when`).
pub trait Device: Send + Sync + Debug {
    /// Returns the device's capabilities: the same value in every call.
    fn caps(&self) -> &Capabilities;

    /// Returns the device that this one wraps. The methods below that have a default forward to the
    /// other device, except `take_receiver`: the wrapper must see every frame. Default: none.
    fn wrapped(&self) -> Option<&dyn Device> {
        None
    }

    /// Moves up to `budget` frames that have arrived on `queue` into `out`, and returns the number
    /// of frames taken, dropped ones included. The number is at most `budget`, and `out` has space
    /// for as many.
    ///
    /// A number below `budget` means that the queue was empty: the queue is polled again after the
    /// next signal ([`rx_signal`](Self::rx_signal)). A device that leaves frames behind because
    /// `cx.pool` has no memory therefore needs a signal that is repeated: a readable descriptor, or
    /// [`RxSignal::None`].
    ///
    /// `cx.now` is never earlier than in the previous poll of the queue, which another thread may
    /// have made.
    ///
    /// A frame starts with its link header. The device sets `meta().timestamp` to `cx.now`,
    /// `meta().rx_checksum` to the known state of the transport checksum, and `meta().gso` if the
    /// frame is a superframe.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize;

    /// Returns the consumer end of the ring that `queue` receives from, if `receive` would only
    /// take frames from that ring. The core that polls `queue` asks once and then reads the ring
    /// itself. Default: none.
    fn take_receiver(&self, _queue: QueueId) -> Option<ring::Receiver<Packet>> {
        None
    }

    /// Returns the maximum number of frames per poll, 1 to [`WEIGHT`]. A device whose frames may be
    /// superframes returns less, so that the frames of one poll fit into the cache. Linux:
    /// `netif_napi_add_weight`.
    fn weight(&self) -> usize {
        self.wrapped().map_or(WEIGHT, |device| device.weight())
    }

    /// Returns the default of `gso_ipv4_max_size` and `gro_ipv4_max_size`, in bytes of IP packet:
    /// the superframe size over IPv4 at which the device is fastest.
    fn gso_ipv4_size(&self) -> u32 {
        self.wrapped().map_or(GRO_BYTES_MAX, |device| device.gso_ipv4_size())
    }

    /// Returns the largest superframe that the device accepts now, in bytes of IP packet:
    /// `gso_max_bytes` of its capabilities, or less after it had to refuse one. A device that
    /// refuses a superframe for its size leaves it in the list of [`transmit`](Self::transmit) and
    /// returns a smaller value here; the stack then segments it in software and makes no larger
    /// ones. [`start`](Self::start) resets the value. Linux: `netif_set_tso_max_size`, which a
    /// driver may call at any time.
    fn superframe_max(&self) -> u32 {
        self.wrapped().map_or_else(|| self.caps().gso_max_bytes, |device| device.superframe_max())
    }

    /// Takes packets from the front of `list` while the device has space, and leaves the others in
    /// the list, in order. The caller keeps the remaining packets and calls again after a
    /// completion or, for a device without completions, a little later.
    ///
    /// A device notifies its hardware or the kernel once per list. A full device never drops a
    /// packet; a packet that the device can never send is dropped with a counted reason. A packet
    /// has a partial checksum or is a superframe only if the capabilities allow that. Linux:
    /// `ndo_start_xmit` with `xmit_more`, `NETDEV_TX_BUSY`.
    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList);

    /// Frees the packets of `queue` that the device has completed since `transmit` returned, and
    /// returns their number and bytes: every packet taken by `transmit` counts exactly once, sent
    /// or dropped. Called at the start of every turn if `async_completion` is set. Other devices
    /// return [`Completed::NONE`].
    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        self.wrapped().map_or(Completed::NONE, |device| device.complete(queue, cx))
    }

    /// Returns whether the device gets a queueing discipline by default, because packets may have
    /// to wait for it. False for a device that takes every packet at once. Linux: `IFF_NO_QUEUE`.
    fn needs_qdisc(&self) -> bool {
        self.wrapped().map_or_else(|| self.caps().async_completion, |device| device.needs_qdisc())
    }

    /// Returns the next time at which `receive` or `complete` has work without a signal: an arrival
    /// that is due, or a completion. A worker sleeps no longer than that. Default: none.
    fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
        self.wrapped().and_then(|device| device.next_deadline(queue))
    }

    /// Returns the arrival signal of `queue`. Read once.
    fn rx_signal(&self, queue: QueueId) -> RxSignal {
        self.wrapped().map_or(RxSignal::None, |device| device.rx_signal(queue))
    }

    /// Gives the device the doorbell (the arrival signal of a device in this process) of the core
    /// that polls `queue`. A device that signals arrivals must keep the doorbell.
    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        if let Some(device) = self.wrapped() {
            device.attach(queue, doorbell);
        }
    }

    /// Returns whether [`attach`](Self::attach) was called. A device belongs to one host for its
    /// lifetime; building a host with the device of another one fails.
    fn is_attached(&self) -> bool {
        self.wrapped().is_some_and(|device| device.is_attached())
    }

    /// Brings `queue` up again after [`stop`](Self::stop). Not called before the first frame: an
    /// attached device is up. Linux: `ndo_open`.
    fn start(&self, queue: QueueId) {
        if let Some(device) = self.wrapped() {
            device.start(queue);
        }
    }

    /// Takes `queue` down. The device drops the frames that have arrived
    /// (`DropReason::DeviceDown`), and frees the packets not yet sent. Linux: `ndo_stop`.
    fn stop(&self, queue: QueueId, cx: &mut Cx) {
        if let Some(device) = self.wrapped() {
            device.stop(queue, cx);
        }
    }
}

/// Signal of a device to the core that polls one of its queues. Clones ring the same core. A
/// doorbell that outlives its host has no effect.
#[derive(Clone, Debug)]
pub struct Doorbell {
    core: Arc<dyn RunCore>,
    /// Attendance of `core`.
    attendance: Arc<Attendance>,
    napi: NapiId,
}

// A panic that unwinds through `ring` releases the core (`sync::CoreGuard`), so devices with a
// doorbell, and types that contain them, may cross `catch_unwind`. The compiler does not derive
// these traits, because a core has cells.
impl UnwindSafe for Doorbell {}
impl RefUnwindSafe for Doorbell {}

impl Doorbell {
    /// Creates the doorbell of one queue of `core`.
    pub(crate) fn new(core: Arc<dyn RunCore>, attendance: Arc<Attendance>, napi: NapiId) -> Self {
        Self { core, attendance, napi }
    }

    /// Signals an arrival from a caller inside the stack (in [`Device::transmit`] of the other end,
    /// for example): the caller's context runs the core at the end of the current call, unless
    /// another thread runs it.
    pub fn ring(&self, cx: &mut Cx) {
        if let Some(claim) = self.core.own_or_schedule(self.napi) {
            cx.raise(&self.core, Owed::Claim(claim));
        }
    }

    /// Signals an arrival or a completion from a thread without a running context: the worker of
    /// the core is woken and polls the queue, unless another thread runs the core and polls it. Any
    /// thread may call this at any rate; repeated calls before the core runs cost one atomic
    /// operation each.
    ///
    /// A stack without workers has no thread to wake: `Stack::poll` finds the queue due, and the
    /// application must call it.
    pub fn wake(&self) {
        self.core.schedule_on_worker(self.napi);
    }

    /// Signals that the device is gone: the worker of the core wakes and, if the attachment of the
    /// device confirms it (`quietline::Attachment::gone_when`), removes the device. Any thread may
    /// call this.
    pub fn wake_gone(&self) {
        self.attendance.wake_before(Instant::ZERO.as_nanos());
    }

    /// Signals that a frame or a completion becomes due at `at`: a worker that would sleep past
    /// that time is woken now and arms its timeout again. The device also reports the time in
    /// [`Device::next_deadline`].
    pub fn ring_at(&self, at: Instant) {
        self.attendance.wake_before(at.as_nanos());
    }

    /// Passes an event to the host of the core.
    pub fn report(&self, event: Event) {
        self.core.report(event);
    }
}
