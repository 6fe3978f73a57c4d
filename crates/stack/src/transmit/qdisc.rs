//! Queueing disciplines: packets wait in a discipline for a busy device, and the discipline selects
//! the packet to send next.
//!
//! Above: `tx_queue`, which runs the disciplines. Below: the device queue and its byte limit
//! (`bql`). Linux: net/sched; the names, parameters and defaults are those of `tc qdisc`.
//!
//! A discipline orders and drops packets, and keeps the counters of `tc -s qdisc`. It returns
//! dropped packets in a list. The owner of the queue counts the drop reason and frees the packets,
//! so that no packet's destructor runs inside a discipline.
//!
//! Not here: running a queue (`tx_queue`), segmentation of superframes (packets of several
//! segments), checksums.

use pkt::{Instant, Packet, PacketList};

use crate::{header, sysctl::qdisc::QdiscConfig};

mod codel;
mod fq;
mod fq_codel;
mod pfifo_fast;
mod round_robin;
mod tbf;
#[cfg(test)]
mod testing;

pub use fq::Fq;
pub use fq_codel::FqCodel;
pub use pfifo_fast::PfifoFast;
pub use tbf::Tbf;

/// Priority of network control packets, such as ARP. Linux: `TC_PRIO_CONTROL`.
pub(crate) const PRIORITY_CONTROL: u8 = 7;

/// Result of a dequeue.
#[derive(Debug)]
#[must_use]
pub enum Dequeued {
    /// Packet to send now.
    Packet(Packet),
    /// No packet may leave before this time, unless another one is enqueued earlier.
    Throttled(Instant),
    /// No packet waits.
    Empty,
}

/// Result of sending packets, with Linux's names (`NET_XMIT_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub enum NetXmit {
    /// The device has the packets, they wait for it, or another thread sends them.
    #[default]
    Success,
    /// The packet was enqueued, but the discipline then dropped packets of the same queue to stay
    /// within its limits.
    Cn,
    /// Some packets were dropped. Their departure times (`meta.timestamp`) are this time or later.
    Drop(Instant),
}

impl NetXmit {
    /// Combines the results of two packets of one flow. Returns the worse result; of two drops, the
    /// one with the earlier time.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Drop(one), Self::Drop(two)) => Self::Drop(one.min(two)),
            (Self::Drop(_), _) | (_, Self::Success) => self,
            _ => other,
        }
    }

    /// Drops `packet` instead of enqueueing it.
    fn dropped(packet: Packet, stats: &mut QdiscStats, dropped: &mut PacketList) -> Self {
        stats.drops += 1;
        let departs = packet.meta().timestamp;
        dropped.push_back(packet);
        Self::Drop(departs)
    }
}

/// Counters that `tc -s qdisc` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QdiscStats {
    /// Bytes that left for the device, as on the link: a superframe (a packet of several segments)
    /// counts the headers of all its segments.
    pub bytes: u64,
    /// Packets that left for the device; a superframe counts as its segments.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// Number of dequeues that returned no packet although packets waited, because of a rate or of
    /// departure times.
    pub overlimits: u64,
    /// Packets marked CE instead of dropped (`ecn_mark`).
    pub ecn_marks: u64,
    /// Bytes that wait.
    pub backlog_bytes: u64,
    /// Packets that wait; a superframe counts once, as in Linux's `qlen`.
    pub qlen: u64,
}

impl QdiscStats {
    fn on_enqueue(&mut self, bytes: u32) {
        self.backlog_bytes += u64::from(bytes);
        self.qlen += 1;
    }

    /// Accounts for a packet that leaves the queue because it is sent or dropped.
    fn on_leave(&mut self, bytes: u32) {
        self.backlog_bytes -= u64::from(bytes);
        self.qlen -= 1;
    }

    fn on_dequeue(&mut self, packet: &Packet, bytes: u32) {
        self.on_leave(bytes);
        self.on_sent(packet, bytes);
    }

    fn on_sent(&mut self, packet: &Packet, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.packets += u64::from(packet.meta().gso.segs.max(1));
    }
}

/// Queueing discipline. `noqueue` is represented by its absence.
#[derive(Debug)]
pub enum Qdisc {
    /// Three FIFO bands with strict priority.
    PfifoFast(PfifoFast),
    /// Token bucket filter: a rate with bursts.
    Tbf(Tbf),
    /// Fair queueing with earliest departure times, which paces flows.
    Fq(Box<Fq>),
    /// Fair queueing with a CoDel delay controller for each flow.
    FqCodel(Box<FqCodel>),
}

impl Qdisc {
    /// Creates the discipline of `config`. Returns `None` for `noqueue`.
    #[must_use]
    pub fn of(
        config: &QdiscConfig,
        tx_queue_len: u32,
        link_header: usize,
        now: Instant,
    ) -> Option<Self> {
        Some(match *config {
            QdiscConfig::NoQueue => return None,
            QdiscConfig::PfifoFast => Self::PfifoFast(PfifoFast::new(tx_queue_len)),
            QdiscConfig::Tbf(config) => Self::Tbf(Tbf::new(config, now)),
            QdiscConfig::Fq(config) => Self::Fq(Box::new(Fq::new(config))),
            QdiscConfig::FqCodel(config) => {
                Self::FqCodel(Box::new(FqCodel::new(config, link_header)))
            }
        })
    }

    /// Enqueues `packet`, whose link header is `link_header` bytes long. Adds all packets that are
    /// dropped because of it to `dropped`; `packet` may be one of them.
    pub fn enqueue(
        &mut self,
        packet: Packet,
        link_header: usize,
        now: Instant,
        dropped: &mut PacketList,
    ) -> NetXmit {
        let bytes = wire_bytes(&packet, link_header);
        match self {
            Self::PfifoFast(qdisc) => qdisc.enqueue(packet, bytes, dropped),
            Self::Tbf(qdisc) => qdisc.enqueue(packet, bytes, dropped),
            Self::Fq(qdisc) => qdisc.enqueue(packet, bytes, now, dropped),
            Self::FqCodel(qdisc) => qdisc.enqueue(packet, bytes, now, dropped),
        }
    }

    /// Dequeues the next packet. A discipline that drops at dequeue (CoDel) adds these packets to
    /// `dropped`.
    pub fn dequeue(
        &mut self,
        link_header: usize,
        now: Instant,
        dropped: &mut PacketList,
    ) -> Dequeued {
        match self {
            Self::PfifoFast(qdisc) => qdisc.dequeue(link_header),
            Self::Tbf(qdisc) => qdisc.dequeue(link_header, now),
            Self::Fq(qdisc) => qdisc.dequeue(link_header, now),
            Self::FqCodel(qdisc) => qdisc.dequeue(link_header, now, dropped),
        }
    }

    /// Whether a packet may bypass the discipline (Linux: `TCQ_F_CAN_BYPASS`): the discipline is
    /// empty and would return the packet at once.
    #[must_use]
    pub const fn can_bypass(&self) -> bool {
        match self {
            Self::PfifoFast(qdisc) => qdisc.stats().qlen == 0,
            Self::FqCodel(qdisc) => qdisc.stats().qlen == 0,
            // These disciplines measure time and must see every packet.
            Self::Tbf(_) | Self::Fq(_) => false,
        }
    }

    /// Counts a packet that bypasses the discipline as sent.
    pub fn on_bypass(&mut self, packet: &Packet, link_header: usize) {
        let stats = match self {
            Self::PfifoFast(qdisc) => qdisc.stats_mut(),
            Self::Tbf(qdisc) => qdisc.stats_mut(),
            Self::Fq(qdisc) => qdisc.stats_mut(),
            Self::FqCodel(qdisc) => qdisc.stats_mut(),
        };
        stats.on_sent(packet, wire_bytes(packet, link_header));
    }

    /// Moves all waiting packets to `dropped`, because the discipline is being replaced or removed.
    pub fn purge(&mut self, link_header: usize, now: Instant, dropped: &mut PacketList) {
        let mut at = now;
        loop {
            match self.dequeue(link_header, at, dropped) {
                Dequeued::Packet(packet) => dropped.push_back(packet),
                Dequeued::Throttled(next) => at = next,
                Dequeued::Empty => return,
            }
        }
    }

    /// Returns the length of the largest packet that can ever be dequeued. A larger superframe must
    /// be segmented before it is enqueued.
    #[must_use]
    pub const fn packet_bytes_max(&self) -> usize {
        match self {
            Self::Tbf(qdisc) => qdisc.packet_bytes_max(),
            Self::PfifoFast(_) | Self::Fq(_) | Self::FqCodel(_) => usize::MAX,
        }
    }

    /// Returns the counters and the backlog.
    #[must_use]
    pub const fn stats(&self) -> &QdiscStats {
        match self {
            Self::PfifoFast(qdisc) => qdisc.stats(),
            Self::Tbf(qdisc) => qdisc.stats(),
            Self::Fq(qdisc) => qdisc.stats(),
            Self::FqCodel(qdisc) => qdisc.stats(),
        }
    }

    /// Returns the name that `tc` prints.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::PfifoFast(_) => "pfifo_fast",
            Self::Tbf(_) => "tbf",
            Self::Fq(_) => "fq",
            Self::FqCodel(_) => "fq_codel",
        }
    }
}

/// Returns the bytes of `packet` on the link: every segment of a superframe has its own headers
/// (`qdisc_pkt_len`).
#[must_use]
pub fn wire_bytes(packet: &Packet, link_header: usize) -> u32 {
    let segments = usize::from(packet.meta().gso.segs.max(1));
    let headers = match segments {
        1 => 0,
        _ => (segments - 1) * (link_header + header::header_bytes(packet, link_header)),
    };
    u32::try_from(packet.len() + headers).unwrap_or(u32::MAX)
}
