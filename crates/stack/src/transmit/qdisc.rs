//! Queueing disciplines: where packets wait for a device that is busy, and who goes first.
//!
//! Above: `tx_queue`, which runs them. Below: the device queue and its byte limit (`bql`). Linux: net/sched; the names, parameters
//! and defaults are those of `tc qdisc`.
//!
//! A discipline orders and drops; it neither frees nor counts. What it drops it hands back in a list, so that no
//! packet's destructor runs while its lock is held.
//!
//! Not here: who runs a queue and when (`tx_queue`), cutting superframes up, checksums.

use pkt::{Instant, Packet, PacketList};

use crate::{header, sysctl::qdisc::QdiscConfig};

mod codel;
mod fq;
mod fq_codel;
mod pfifo_fast;
mod tbf;
#[cfg(test)]
mod testing;
mod turns;

pub use fq::Fq;
pub use fq_codel::FqCodel;
pub use pfifo_fast::PfifoFast;
pub use tbf::Tbf;

/// The priority of what keeps the network going, ARP for one. Linux: `TC_PRIO_CONTROL`.
pub(crate) const PRIORITY_CONTROL: u8 = 7;

/// What a discipline answers when it is asked for the next packet.
#[derive(Debug)]
#[must_use]
pub enum Dequeued {
    /// This one goes now.
    Packet(Packet),
    /// Nothing may go before this moment, unless something is enqueued meanwhile.
    Throttled(Instant),
    /// Nothing waits.
    Empty,
}

/// What became of what was sent. Linux: `NET_XMIT_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub enum NetXmit {
    /// It is with the device, or waits for it.
    #[default]
    Success,
    /// It waits, but one of the same flow had to go for it.
    Cn,
    /// Some of it was dropped: of what departs at this moment or later (`meta.timestamp`).
    Drop(Instant),
}

impl NetXmit {
    /// Of two packets of one flow together: the worse, and of two drops the earlier.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Drop(one), Self::Drop(two)) => Self::Drop(one.min(two)),
            (Self::Drop(_), _) | (_, Self::Success) => self,
            _ => other,
        }
    }

    /// `packet` is dropped before it waits.
    fn dropped(packet: Packet, stats: &mut QdiscStats, dropped: &mut PacketList) -> Self {
        stats.drops += 1;
        let departs = packet.meta().timestamp;
        dropped.push_back(packet);
        Self::Drop(departs)
    }
}

/// What `tc -s qdisc` shows of a discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QdiscStats {
    /// Bytes that left towards the device, as the wire will see them: a superframe counts its segments' headers.
    pub bytes: u64,
    /// Packets that left; a superframe counts its segments.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// Times the discipline had packets and held them back for a rate.
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

    /// Leaves the queue, towards the device or to be dropped.
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

/// A queueing discipline. `noqueue` is the absence of one.
#[derive(Debug)]
pub enum Qdisc {
    /// Three first-in-first-out bands in strict order of priority.
    PfifoFast(PfifoFast),
    /// A token bucket: a rate with bursts.
    Tbf(Tbf),
    /// Fair queueing with earliest departure times: paces flows.
    Fq(Box<Fq>),
    /// Fair queueing with a delay controller for each flow.
    FqCodel(Box<FqCodel>),
}

impl Qdisc {
    /// The discipline that `config` describes. `None` is `noqueue`.
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

    /// Takes `packet`, whose link header is `link_header` bytes long. Whatever is dropped for it, itself included, is
    /// put into `dropped`.
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

    /// The next packet to go. A discipline that drops late (CoDel) puts what it drops into `dropped`.
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

    /// A packet may pass it by while it is empty (Linux: `TCQ_F_CAN_BYPASS`): it would come out at once, and nobody else
    /// would have gone first.
    #[must_use]
    pub const fn can_bypass(&self) -> bool {
        match self {
            Self::PfifoFast(qdisc) => qdisc.stats().qlen == 0,
            Self::FqCodel(qdisc) => qdisc.stats().qlen == 0,
            // They keep time, and must see every packet.
            Self::Tbf(_) | Self::Fq(_) => false,
        }
    }

    /// `packet` passes it by.
    pub fn on_bypass(&mut self, packet: &Packet, link_header: usize) {
        let stats = match self {
            Self::PfifoFast(qdisc) => qdisc.stats_mut(),
            Self::Tbf(qdisc) => qdisc.stats_mut(),
            Self::Fq(qdisc) => qdisc.stats_mut(),
            Self::FqCodel(qdisc) => qdisc.stats_mut(),
        };
        stats.on_sent(packet, wire_bytes(packet, link_header));
    }

    /// Everything that waits goes to `dropped`: the discipline ends.
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

    /// Largest packet it can ever let go; a larger superframe must be cut up before it is enqueued.
    #[must_use]
    pub const fn packet_bytes_max(&self) -> usize {
        match self {
            Self::Tbf(qdisc) => qdisc.packet_bytes_max(),
            Self::PfifoFast(_) | Self::Fq(_) | Self::FqCodel(_) => usize::MAX,
        }
    }

    /// Counters and what waits.
    #[must_use]
    pub const fn stats(&self) -> &QdiscStats {
        match self {
            Self::PfifoFast(qdisc) => qdisc.stats(),
            Self::Tbf(qdisc) => qdisc.stats(),
            Self::Fq(qdisc) => qdisc.stats(),
            Self::FqCodel(qdisc) => qdisc.stats(),
        }
    }

    /// Its name, as `tc` prints it.
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

/// Bytes of `packet` on the link: every segment of a superframe has headers of its own (`qdisc_pkt_len`).
#[must_use]
pub fn wire_bytes(packet: &Packet, link_header: usize) -> u32 {
    let segments = usize::from(packet.meta().gso.segs.max(1));
    let headers = match segments {
        1 => 0,
        _ => (segments - 1) * (link_header + header::header_bytes(packet, link_header)),
    };
    u32::try_from(packet.len() + headers).unwrap_or(u32::MAX)
}
