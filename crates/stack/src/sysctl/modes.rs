//! Settings that select one of several modes, as a closed enum each, and the settings of neighbors.
//!
//! Above: the modules that implement the modes. Not here: the text of the modes (`codec`), and the
//! algorithms of TCP, which are enums of `tcp`.

use std::time::Duration;

use sync::Counting;

use super::Sysctls;

/// `net.quietline.preset`: the version of Linux whose data path the host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// The last version before TCP Small Queues and early demultiplexing.
    Linux3_5,
    /// The first version with TCP Small Queues.
    Linux3_6,
    /// The first version whose prequeue drops route references.
    Linux3_18,
    /// The version whose sockets keep one packet for each direction.
    Linux5_2,
    /// The first version with a list of packets that leave receive offload.
    Linux5_4,
    /// The first version with `rcuref`, and with the count apart from what packets read.
    Linux6_4,
    /// The best known modes.
    #[default]
    Default,
}

/// `net.quietline.gro_exit`: how packets leave GRO, one by one or in a list, and whether a
/// superframe counts as one packet or as its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroExit {
    /// No list: every packet is delivered by itself, as before Linux 5.4.
    Immediate,
    /// Packets that were not merged wait in the list; completed ones are delivered by themselves.
    /// Linux 5.4 for `napi_gro_frags`. **This mode reorders**: a completed packet overtakes waiting
    /// packets of its flow.
    NormalOnlyList,
    /// All packets wait in the list, and each counts as one, as in Linux 5.6.
    UnifiedListPackets,
    /// All packets wait in the list, and a superframe counts as its segments, as since Linux 5.11:
    /// a large one does not wait for others.
    #[default]
    UnifiedListSegments,
}

/// `net.quietline.busy_poll_flush`: packets that are delivered at the end of a busy-poll cycle that
/// is followed by another. In every mode, all packets are delivered before the core is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BusyPollFlush {
    /// No packets: they wait for a full list or for the end of busy polling, which takes long if
    /// traffic is sparse.
    None,
    /// Packets in the list, as in Linux. Held packets wait for PSH, the next segment, or the end of
    /// busy polling.
    RxListPerCycle,
    /// Packets in the list and those held since an earlier millisecond, or all held packets if the
    /// cycle received no packet.
    #[default]
    RxListAndOldGroPerCycle,
}

/// `net.core.default_qdisc`: discipline of a device that needs one and has none configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultQdisc {
    /// Three FIFO bands with strict priority.
    #[default]
    PfifoFast,
    /// Fair queueing with departure times.
    Fq,
    /// Fair queueing with controlled delay.
    FqCodel,
    /// No discipline.
    NoQueue,
}

/// `net.quietline.dev_orphan`: when a packet is uncharged from its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevOrphan {
    /// When the device has sent it: packets in the device's rings count against the socket.
    #[default]
    Completion,
    /// When it is passed to the device, as by drivers that call `skb_orphan`: then only BQL keeps
    /// the rings short.
    Xmit,
}

/// `net.quietline.dst_check`: source of the validity of a cached dst entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstCheck {
    /// The entry itself, as in Linux: each check reads the line that, with
    /// [`DstLayout::Packed`], the count shares.
    Entry,
    /// A copy of the generation beside the cached entry.
    #[default]
    Generation,
}

/// `net.quietline.dst_layout`: position of the reference count in a dst entry. See
/// [`dst`](crate::transmit::dst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstLayout {
    /// The count shares a cache line with fields that are read for every packet.
    Packed,
    /// The count has its own cache lines.
    Padded,
    /// The count shares a cache line with rarely read fields only.
    #[default]
    Filled,
}

/// `net.quietline.dst_ref`: how dst entries are counted, and which packets hold a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstRefMode {
    /// A packet over loopback holds its dst from the sender to the receiver, as in Linux, where
    /// loopback keeps the dst that other devices release (`IFF_XMIT_DST_RELEASE`). Taking a
    /// reference is a compare-and-swap loop.
    CasIncNotZero,
    /// As `CasIncNotZero`, but taking a reference is one addition.
    Rcuref,
    /// Packets hold no reference, except a packet that is queued outside of a read section for a
    /// socket without a cached dst. Sockets and caches count as in `Rcuref`.
    #[default]
    Noref,
}

impl DstRefMode {
    /// Returns the counting scheme of this mode.
    pub(crate) const fn counting(self) -> Counting {
        match self {
            Self::CasIncNotZero => Counting::CasIncNotZero,
            Self::Rcuref | Self::Noref => Counting::Rcuref,
        }
    }

    /// Whether packets over a device that keeps their dst hold a reference.
    pub(crate) const fn counts_packets(self) -> bool {
        !matches!(self, Self::Noref)
    }
}

/// `net.quietline.rx_dst_mode`: treatment of the dst of a packet that leaves the read section for a
/// socket's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxDstMode {
    /// A reference is taken: one get on the receiving core, one put in the reading thread.
    Force,
    /// The dst is dropped if the socket has any, because its only use would be to cache it in the
    /// socket; otherwise a reference is taken.
    OptimisticDrop,
    /// As `OptimisticDrop`, but only if the socket's dst is still valid, and for the device on
    /// which the packet arrived.
    #[default]
    RcuClearThenRelease,
}

/// Context in which TCP processes segments for a thread that waits in `recv`
/// (`net.quietline.rx_context`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxContext {
    /// The waiting thread; each packet holds a reference to its dst. Linux until 3.17.
    PrequeueRef,
    /// The waiting thread; a packet drops its dst if the socket has one. Linux from 3.18.
    PrequeueDrop,
    /// As `PrequeueDrop`, but at most 31 packets wait: the 32nd causes their processing. Linux from
    /// 4.7 until 4.13.
    PrequeueDropLimited,
    /// Softirq, as segments arrive. Linux from 4.14.
    #[default]
    Bh,
}

impl Sysctls {
    /// Whether a thread that waits in `recv` becomes its socket's reader
    /// ([`Reader`](crate::socket::Reader)).
    #[must_use]
    pub fn has_prequeue(&self) -> bool {
        self.rx_context != RxContext::Bh && !self.tcp_low_latency
    }
}

/// ARP requests for addresses of this host that get a reply, with Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpIgnore {
    /// 0: all requests, on any device.
    AnyDevice,
    /// 1: requests received on the device that has the address.
    OwnDevice,
    /// 2: as 1, if the sender's address is in the same subnet.
    OwnSubnet,
    /// 8: none.
    Never,
}

/// Settings of the neighbor state machine: `net.ipv4.neigh.default.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborConfig {
    /// `base_reachable_time_ms`: a reply is valid for half to one and a half times this time
    /// (RFC 4861 §6.3.2).
    pub base_reachable_time: Duration,
    /// `retrans_time_ms`: time between two probes.
    pub retrans_time: Duration,
    /// `delay_first_probe_time`: time that upper layers have to confirm a stale neighbor before it
    /// is probed.
    pub delay_first_probe_time: Duration,
    /// `ucast_solicit`: number of unicast probes to the old link address before it fails.
    pub ucast_solicit: u32,
    /// `mcast_solicit`: number of broadcast requests before resolution fails.
    pub mcast_solicit: u32,
    /// `unres_qlen`: maximum number of packets that wait for one address.
    pub unres_qlen: u32,
    /// `unres_qlen_bytes`: maximum memory of these packets, the sum of their `truesize`; one packet
    /// always fits.
    pub unres_qlen_bytes: u32,
    /// `gc_interval`: time between two collections of entries that are not used.
    pub gc_interval: Duration,
    /// `gc_stale_time`: time without use after which such a collection removes an entry.
    pub gc_stale_time: Duration,
    /// `gc_thresh1`: number of entries below which none is removed because of its age.
    pub gc_thresh1: u32,
    /// `gc_thresh2`: number of entries that the table may have for more than five seconds.
    pub gc_thresh2: u32,
    /// `gc_thresh3`: maximum number of entries in a table.
    pub gc_thresh3: u32,
}

impl Default for NeighborConfig {
    fn default() -> Self {
        Self {
            base_reachable_time: Duration::from_secs(30),
            retrans_time: Duration::from_secs(1),
            delay_first_probe_time: Duration::from_secs(5),
            ucast_solicit: 3,
            mcast_solicit: 3,
            unres_qlen: 101,
            unres_qlen_bytes: 212_992,
            gc_interval: Duration::from_secs(30),
            gc_stale_time: Duration::from_secs(60),
            gc_thresh1: 128,
            gc_thresh2: 512,
            gc_thresh3: 1024,
        }
    }
}

impl NeighborConfig {
    /// Returns a reachable time for one neighbor, uniformly between half and one and a half times
    /// the base, so that the hosts of a network do not probe at the same time.
    #[must_use]
    pub fn reachable_time(&self, random: u32) -> Duration {
        let part = (self.base_reachable_time.as_nanos() * u128::from(random)) >> 32;
        let nanos = u64::try_from(part).unwrap_or(u64::MAX);
        self.base_reachable_time / 2 + Duration::from_nanos(nanos)
    }
}
