//! Network devices as the stack sees them: queues of frames, and a struct that says what they can do.
//!
//! Above: `core` polls the receive queues, `transmit::tx_queue` hands over transmit lists. Implementations: [`loopback`] and
//! [`wire`] here, because they touch no operating system and the simulator drives them; tap and tun in crate
//! `quietline`. Linux: `struct net_device`, `ndo_start_xmit`, NAPI's `poll`.
//!
//! A call moves a batch, never one packet, so that the one dynamic dispatch per call does not matter.

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

/// What the frames of a device start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header; addresses are resolved by ARP.
    Ethernet {
        /// Our own address on the link.
        mac: MacAddr,
    },
    /// The IP header itself (tun, loopback): no link addresses, nothing to resolve.
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

/// How the core that polls a queue hears that frames have arrived: what a device's interrupt is in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxSignal {
    /// Every frame that can be received has rung the [`Doorbell`] before. The queue is polled only then.
    Doorbell,
    /// A descriptor becomes readable, which the core's worker watches. Whoever runs the core while the worker does not
    /// watch polls the queue in every turn.
    Descriptor,
    /// It does not, or not always: every turn polls the queue.
    None,
}

/// Everything the stack may ask of a device, fixed when it is created.
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
    /// Largest superframe in bytes of IP packet that it can be asked for (`tso_max_size`), at most [`BIG_TCP_BYTES_MAX`]. How
    /// large TCP makes them is a setting (`gso_max_size`).
    pub gso_max_bytes: u32,
    /// Superframes of IPv6 may be as large, too: what takes them does not ask for a jumbo payload option (RFC 2675 §2).
    pub jumbo6: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Packets the driver still owns after `transmit` complete later and run their destructor then. `false` means
    /// that `transmit` is done with a packet when it returns, so no transmit accounting is attached.
    pub async_completion: bool,
}

impl Capabilities {
    /// Those of a device with one queue that offloads nothing, and is done with a packet when `transmit` returns.
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

/// What a device has sent since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Packets, counted as they were handed over: a superframe is one.
    pub packets: usize,
    /// Their lengths, link headers included.
    pub bytes: usize,
}

impl Completed {
    /// Nothing.
    pub const NONE: Self = Self { packets: 0, bytes: 0 };

    /// One more packet of `bytes`.
    pub const fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

/// A network device. Any thread may transmit on any queue; only the holder of the queue's core receives and completes.
///
/// It is called from inside the stack, mostly by a thread that owns a core: it must not make a socket call of its own, nor wait for a
/// thread that does, for such a call may wait for that very core.
///
/// Behind a queueing discipline one thread at a time transmits on a queue. Without one several may, and the device orders them.
pub trait Device: Send + Sync + Debug {
    /// What the device can do.
    fn caps(&self) -> &Capabilities;

    /// Takes up to `budget` frames that have arrived on `queue` into `out`; returns how many. Fewer than `budget`
    /// means that the queue was empty.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize;

    /// The end of the ring that frames come by, where `receive` would do nothing but take them from there: for the core that polls
    /// `queue`, which asks once and from then on takes them itself. None for most devices.
    fn take_receiver(&self, _queue: QueueId) -> Option<ring::Receiver<Packet>> {
        None
    }

    /// Frames that one poll takes at most. Fewer than [`WEIGHT`] where a frame may be a superframe: what is polled has to go up
    /// while its payload is in the cache. Linux: `netif_napi_add_weight`.
    fn weight(&self) -> usize {
        WEIGHT
    }

    /// Bytes that superframes over IPv4 stay below unless `gso_ipv4_max_size` and `gro_ipv4_max_size` say otherwise: what the device
    /// does best with.
    fn gso_ipv4_size(&self) -> u32 {
        GRO_BYTES_MAX
    }

    /// Bytes of IP packet of the largest superframe that it takes at this moment: what its capabilities say, or less since it has had to
    /// refuse one. A superframe that it does not take for its size it leaves in the list as if it had no room, and says so here: the
    /// stack cuts it up and makes none so large any more. Whoever takes the device down and up again (`start`) has it try once more.
    /// Linux: `netif_set_tso_max_size`, which a driver may call at any time.
    fn superframe_max(&self) -> u32 {
        self.caps().gso_max_bytes
    }

    /// Takes packets from the front of `list` for as long as it has room and leaves the others in it, in their order: the
    /// caller keeps them and comes again after a completion, or, where there are none, a little later. A device tells its
    /// hardware, or the kernel, once per list. It never drops for want of room; what it cannot send whatever happens it drops
    /// with a counted reason. Linux: `ndo_start_xmit` with `xmit_more`, `NETDEV_TX_BUSY`.
    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList);

    /// Runs the destructors of packets that it has sent since `transmit` returned, and says how much that was: every packet of
    /// the queue that it has taken, owned or not, sent or dropped. Called at the beginning of every turn of the queue's core.
    /// Devices that are through with a packet when `transmit` returns (`async_completion` is false) complete nothing here.
    fn complete(&self, _queue: QueueId, _cx: &mut Cx) -> Completed {
        Completed::NONE
    }

    /// Packets may have to wait for it, so that it gets a queueing discipline if nobody says which. False for a device that takes
    /// everything at once (Linux: `IFF_NO_QUEUE`).
    fn needs_qdisc(&self) -> bool {
        self.caps().async_completion
    }

    /// The next moment at which `receive` or `complete` will have something to do without anybody ringing.
    fn next_deadline(&self, _queue: QueueId) -> Option<Instant> {
        None
    }

    /// How the core of `queue` hears of arrivals.
    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::None
    }

    /// Tells an in-process device which core to wake when a frame arrives on `queue`.
    fn attach(&self, _queue: QueueId, _doorbell: Doorbell) {}

    /// Whether a host has it already: a device belongs to one host for its life. A host refuses to be built with such a device.
    fn is_attached(&self) -> bool {
        false
    }

    /// It is taken up again. Called by the holder of the queue's core. Linux: `ndo_open`.
    fn start(&self, _queue: QueueId) {}

    /// It is taken down: gives up what it holds of `queue`, frames that have arrived with the reason `DeviceDown`, and packets
    /// that it has not sent with their destructors. Called by the holder of the queue's core. Linux: `ndo_stop`.
    fn stop(&self, _queue: QueueId, _cx: &mut Cx) {}
}

/// The way an in-process device tells a core that a frame has arrived.
#[derive(Clone, Debug)]
pub struct Doorbell {
    core: Arc<Core>,
    napi: NapiId,
}

// A panic that unwinds through a ring releases the core (`sync::CoreGuard`), so that devices with a doorbell, and what embeds
// them, may cross `catch_unwind`. The compiler does not derive it, because a core has cells.
impl UnwindSafe for Doorbell {}
impl RefUnwindSafe for Doorbell {}

impl Doorbell {
    /// The doorbell of one queue of `core`.
    #[must_use]
    pub const fn new(core: Arc<Core>, napi: NapiId) -> Self {
        Self { core, napi }
    }

    /// A frame is ready now: the core runs on the caller's context unless somebody runs it already.
    pub fn ring(&self, cx: &mut Cx) {
        Core::schedule(&self.core, self.napi, cx);
    }

    /// Passes an event to the host of the core.
    pub fn report(&self, event: Event) {
        self.core.report(event);
    }

    /// A frame becomes ready at `at`: a worker that sleeps past that moment is woken early.
    pub fn ring_at(&self, at: Instant) {
        self.core.wake_before(at);
    }
}
