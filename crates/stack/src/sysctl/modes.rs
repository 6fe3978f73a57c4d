//! Settings that select one of several modes, each as an enum, and the settings of neighbor
//! resolution.
//!
//! Above: the modules that implement the modes. Not here: the text of the modes (`codec`), and the
//! algorithms of TCP, which are enums of `tcp`.

use std::{net::IpAddr, time::Duration};

use sync::Counting;

use super::Sysctls;

/// `net.quietline.preset`: the version of Linux whose data path the host reproduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// The last version before TCP Small Queues and early demultiplexing.
    Linux3_5,
    /// The first version with TCP Small Queues.
    Linux3_6,
    /// The first version whose prequeue drops route references.
    Linux3_18,
    /// The first version whose sockets keep one packet for each direction.
    Linux5_2,
    /// The first version with a list of packets that leave receive offload.
    Linux5_4,
    /// The first version with `rcuref`, and with the reference count on a cache line that packets
    /// do not read.
    Linux6_4,
    /// The best known modes.
    #[default]
    Default,
}

/// `net.quietline.gro_exit`: how packets leave GRO, one by one or in a list, and whether a
/// superframe (a packet merged from several segments) counts as one packet or as its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroExit {
    /// No list: every packet is delivered alone, as before Linux 5.4.
    Immediate,
    /// Packets that were not merged wait in the list; completed superframes are delivered alone.
    /// Linux 5.4 for `napi_gro_frags`. **This mode reorders**: a completed superframe overtakes
    /// waiting packets of its flow.
    NormalOnlyList,
    /// All packets wait in the list, and each counts as one, as in Linux 5.5.
    UnifiedListPackets,
    /// All packets wait in the list, and a superframe counts as its segments, as since Linux 5.11:
    /// a large superframe does not wait for other packets.
    #[default]
    UnifiedListSegments,
}

/// `net.quietline.busy_poll_flush`: packets that are delivered at the end of a busy-poll cycle, if
/// another cycle follows. In every mode, all packets are delivered before the core is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BusyPollFlush {
    /// No packets: they wait for a full list or for the end of busy polling, which takes long if
    /// traffic is sparse.
    None,
    /// Packets in the list, as in Linux. Held packets wait for PSH, the next segment, or the end of
    /// busy polling.
    RxListPerCycle,
    /// Packets in the list and those held for merging since an earlier millisecond, or all of both
    /// if the cycle received no packet.
    #[default]
    RxListAndOldGroPerCycle,
}

/// `net.core.default_qdisc`: queueing discipline of a device that needs one and has none
/// configured.
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
    /// When the device has sent the packet: packets in the device's rings are charged to the
    /// socket.
    #[default]
    Completion,
    /// When the device accepts the packet, as with drivers that call `skb_orphan`. Then only byte
    /// queue limits (BQL) keep the device's rings short.
    Xmit,
}

/// `net.quietline.dst_check`: place from which the owner of a socket reads the validity of its
/// cached route entry (dst). Early demux reads the entry in both modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstCheck {
    /// The entry itself, as in Linux. Each check reads a cache line of the entry; with
    /// [`DstLayout::Packed`], this line also holds the reference count.
    Entry,
    /// A copy of the entry's generation, kept beside the pointer to the cached entry.
    #[default]
    Generation,
}

/// `net.quietline.dst_layout`: position of the reference count in a route entry (dst). See
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

/// `net.quietline.dst_ref`: how references to route entries (dst) are counted, and which packets
/// hold one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstRefMode {
    /// A packet over loopback holds a reference to its route entry from the sender to the receiver.
    /// As in Linux, loopback keeps the entry that other devices release (`IFF_XMIT_DST_RELEASE`).
    /// Taking a reference is a compare-and-swap loop.
    CasIncNotZero,
    /// As `CasIncNotZero`, but taking a reference is one addition.
    Rcuref,
    /// As `Rcuref`, but each CPU counts in its own word while a table holds the entry.
    Sharded,
    /// Packets hold no reference. The only exception is a packet that is queued on a socket,
    /// outside of an RCU read section, and keeps its entry ([`RxDstMode`]). Sockets and caches
    /// count as in `Rcuref`.
    #[default]
    Noref,
}

impl DstRefMode {
    /// Returns the counting scheme of this mode.
    pub(crate) const fn counting(self) -> Counting {
        match self {
            Self::CasIncNotZero => Counting::CasIncNotZero,
            Self::Rcuref | Self::Noref => Counting::Rcuref,
            Self::Sharded => Counting::Sharded,
        }
    }

    /// Whether a packet holds a reference on a device that keeps its route entry (loopback).
    pub(crate) const fn counts_packets(self) -> bool {
        !matches!(self, Self::Noref)
    }
}

/// `net.quietline.rx_dst_mode`: treatment of a packet's route entry (dst) when the packet is queued
/// on a socket and so leaves the read section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxDstMode {
    /// The packet takes a reference: the receiving core increments the count, the reading thread
    /// decrements it.
    Force,
    /// The packet drops its entry if the socket caches any, because the only use of the entry would
    /// be to cache it in the socket. Otherwise the packet takes a reference.
    OptimisticDrop,
    /// As `OptimisticDrop`, but the entry is dropped only if the socket's entry is still valid and
    /// belongs to the device on which the packet arrived.
    #[default]
    RcuClearThenRelease,
}

/// Context in which TCP processes segments for a thread that waits in `recv`
/// (`net.quietline.rx_context`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxContext {
    /// The waiting thread; each packet holds a reference to its route entry. Linux until 3.17.
    PrequeueRef,
    /// The waiting thread; a packet drops its route entry if the socket caches one. Linux from
    /// 3.18.
    PrequeueDrop,
    /// As `PrequeueDrop`, but at most 31 packets wait: the arrival of the 32nd causes the
    /// processing of all. Linux from 4.7 until 4.13.
    PrequeueDropLimited,
    /// Softirq, as segments arrive. Linux from 4.14.
    #[default]
    Bh,
}

impl Sysctls {
    /// Returns the settings of neighbors of the IP version of `ip`.
    pub(crate) const fn neigh_of(&self, ip: IpAddr) -> &NeighborConfig {
        match ip {
            IpAddr::V4(_) => &self.neigh,
            IpAddr::V6(_) => &self.neigh_v6,
        }
    }

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

/// Settings of the neighbor state machine: `net.ipv4.neigh.default.*`, and
/// `net.ipv6.neigh.default.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborConfig {
    /// `base_reachable_time_ms`: a neighbor counts as reachable for half to one and a half times
    /// this time after a confirmation (RFC 4861 §6.3.2).
    pub base_reachable_time: Duration,
    /// `retrans_time_ms`: time between two probes.
    pub retrans_time: Duration,
    /// `delay_first_probe_time`: time for which the probe of a used stale neighbor is delayed, so
    /// that upper layers can confirm the neighbor.
    pub delay_first_probe_time: Duration,
    /// `ucast_solicit`: number of unicast probes to the old link address before the entry fails.
    pub ucast_solicit: u32,
    /// `mcast_solicit`: number of broadcast requests (for IPv6: multicast solicitations) before
    /// resolution fails.
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
    /// `gc_thresh3`: number of entries in a table above which unused ones are removed. A table has
    /// at most eight times as many, permanent ones not counted.
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
