//! Settings that choose one of several ways to do something: a closed enum each, and the settings of neighbors.
//!
//! Above: the steps that obey them, wherever they stand. Not here: how they are written (`codec`), the algorithms of TCP, which
//! are enums of `tcp`.

use std::time::Duration;

use sync::Counting;

use super::Sysctls;

/// `net.quietline.gro_exit`: what waits in the list, and what is counted until it goes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroExit {
    /// Nothing waits: every packet goes up by itself, as before Linux 5.4.
    Immediate,
    /// Packets that were not merged wait; completed ones go up by themselves. Linux 5.4 for `napi_gro_frags`. **It reorders**:
    /// a completed packet overtakes those of its flow that wait.
    NormalOnlyList,
    /// Everything waits, and each packet counts one, as in Linux 5.6.
    UnifiedListPackets,
    /// Everything waits, and a superframe counts its segments, as since Linux 5.11: a large one does not wait for others.
    #[default]
    UnifiedListSegments,
}

/// `net.quietline.busy_poll_flush`: what goes up at the end of a busy-poll cycle that goes on. Whatever is set, everything
/// goes up before the core is let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BusyPollFlush {
    /// Nothing: packets wait for a full list or the end of the polling. A slow trickle waits long.
    None,
    /// The list, as Linux does. What is held waits for PSH, the next segment, or the end of the polling.
    RxListPerCycle,
    /// What has been held since an earlier millisecond and the list, and everything held when a cycle found no packet.
    #[default]
    RxListAndOldGroPerCycle,
}

/// `net.core.default_qdisc`: what a device gets that needs a discipline and has been given none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultQdisc {
    /// Three bands.
    #[default]
    PfifoFast,
    /// Fair queueing with departure times.
    Fq,
    /// Fair queueing with controlled delay.
    FqCodel,
    /// None.
    NoQueue,
}

/// `net.quietline.dev_orphan`: when the socket of a packet is paid back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevOrphan {
    /// When the device has sent it: what waits in its rings counts as the socket's.
    #[default]
    Completion,
    /// When it is handed to the device, as drivers did that called `skb_orphan`: then nothing but BQL keeps the rings short.
    Xmit,
}

/// `net.quietline.dst_layout`: see the module head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstLayout {
    /// The count beside what is read for every packet.
    Packed,
    /// The count alone.
    Padded,
    /// The count beside what nobody reads.
    #[default]
    Filled,
}

/// `net.quietline.dst_ref`: how entries are counted, and which packets hold one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstRefMode {
    /// A packet over loopback holds its entry from the sender to the receiver, as in Linux, where loopback keeps the dst
    /// that others release (`IFF_XMIT_DST_RELEASE`). A get is a loop of compare-and-swap.
    CasIncNotZero,
    /// As `CasIncNotZero`, but a get is one addition.
    Rcuref,
    /// No packet holds an entry, except one that waits where there is no read section for a socket that has none yet.
    /// Sockets and caches hold theirs by `Rcuref`.
    #[default]
    Noref,
}

impl DstRefMode {
    /// How the entries of this mode are counted.
    pub(crate) const fn counting(self) -> Counting {
        match self {
            Self::CasIncNotZero => Counting::CasIncNotZero,
            Self::Rcuref | Self::Noref => Counting::Rcuref,
        }
    }

    /// Whether packets over a device that keeps their dst hold it.
    pub(crate) const fn counts_packets(self) -> bool {
        !matches!(self, Self::Noref)
    }
}

/// `net.quietline.rx_dst_mode`: what becomes of the dst of a packet that leaves the read section for a socket's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxDstMode {
    /// It is held: one get on the core that receives, one put on the thread that reads.
    Force,
    /// Dropped if the socket has any, since the only use of it would be to give the socket one; held otherwise.
    OptimisticDrop,
    /// As `OptimisticDrop`, but the socket's must still be valid, and for the device that the packet came by.
    #[default]
    RcuClearThenRelease,
}

/// Where TCP processes what arrives for a thread that waits in `recv` (`net.quietline.rx_context`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxContext {
    /// In the thread; each packet takes a reference to its path along. Linux until 3.17.
    PrequeueRef,
    /// In the thread; a packet leaves its path behind when the socket knows one. Linux from 3.18.
    PrequeueDrop,
    /// So too, and at most 31 packets wait: the 32nd ends it. Linux from 4.7 until 4.13.
    PrequeueDropLimited,
    /// In softirq, as it arrives. Linux from 4.14.
    #[default]
    Bh,
}

impl Sysctls {
    /// A thread that waits in `recv` becomes its socket's reader ([`Reader`](super::Reader)).
    #[must_use]
    pub fn has_prequeue(&self) -> bool {
        self.rx_context != RxContext::Bh && !self.tcp_low_latency
    }
}

/// Which requests for addresses of this host are answered, by Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpIgnore {
    /// 0: all of them, by whatever device they come.
    AnyDevice,
    /// 1: those that come by the device which has the address.
    OwnDevice,
    /// 2: as 1, if the sender's address is in the same subnet.
    OwnSubnet,
    /// 8: none.
    Never,
}

/// Settings of the state machine: `net.ipv4.neigh.default.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborConfig {
    /// `base_reachable_time_ms`: an answer is good for half to one and a half times this (RFC 4861 §6.3.2).
    pub base_reachable_time: Duration,
    /// `retrans_time_ms`: time between two probes.
    pub retrans_time: Duration,
    /// `delay_first_probe_time`: time that upper layers have to confirm a stale neighbor before it is probed.
    pub delay_first_probe_time: Duration,
    /// `ucast_solicit`: probes sent to the old link address before it is given up.
    pub ucast_solicit: u32,
    /// `mcast_solicit`: probes sent to everybody before resolution fails.
    pub mcast_solicit: u32,
    /// `unres_qlen`: packets that wait for one address.
    pub unres_qlen: u32,
    /// `unres_qlen_bytes`: their memory, `truesize` of each; one packet always fits.
    pub unres_qlen_bytes: u32,
    /// `gc_thresh3`: entries a table holds at most.
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
            gc_thresh3: 1024,
        }
    }
}

impl NeighborConfig {
    /// A reachable time for one neighbor: evenly between half and one and a half times the base, so that a network's
    /// hosts do not probe in step.
    #[must_use]
    pub fn reachable_time(&self, random: u32) -> Duration {
        let part = (self.base_reachable_time.as_nanos() * u128::from(random)) >> 32;
        let nanos = u64::try_from(part).unwrap_or(u64::MAX);
        self.base_reachable_time / 2 + Duration::from_nanos(nanos)
    }
}
