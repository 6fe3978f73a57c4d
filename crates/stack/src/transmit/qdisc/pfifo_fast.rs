//! `pfifo_fast`: three FIFO bands with strict priority.
//!
//! Linux: net/sched/sch_generic.c. A band holds as many packets as the device's `txqueuelen`. A
//! superframe (a packet of several segments) counts as one packet, so a band of 1,000 superframes
//! of 64 KB holds 64 MB. A packet that arrives at a full band is dropped.

use pkt::{Packet, PacketList};

use super::{Dequeued, NetXmit, QdiscStats, wire_bytes};

/// Number of bands, the most urgent first.
const BANDS: usize = 3;

/// Band of each priority (`prio2band`): interactive traffic and control first, bulk and filler
/// last.
const BAND_OF_PRIORITY: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Three FIFO bands.
#[derive(Debug)]
pub struct PfifoFast {
    bands: [PacketList; BANDS],
    /// Maximum number of packets in one band.
    limit: usize,
    stats: QdiscStats,
}

impl PfifoFast {
    /// Creates bands of `limit` packets each: the device's `txqueuelen`, 1000 by default.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { bands: Default::default(), limit: limit as usize, stats: QdiscStats::default() }
    }

    pub(super) fn enqueue(
        &mut self,
        packet: Packet,
        bytes: u32,
        dropped: &mut PacketList,
    ) -> NetXmit {
        let priority = usize::from(packet.meta().priority & 0xf);
        let band = &mut self.bands[usize::from(BAND_OF_PRIORITY[priority])];
        if band.len() >= self.limit {
            return NetXmit::dropped(packet, &mut self.stats, dropped);
        }
        band.push_back(packet);
        self.stats.on_enqueue(bytes);
        NetXmit::Success
    }

    pub(super) fn dequeue(&mut self, link_header: usize) -> Dequeued {
        let Some(packet) = self.bands.iter_mut().find_map(PacketList::pop_front) else {
            return Dequeued::Empty;
        };
        let bytes = wire_bytes(&packet, link_header);
        self.stats.on_dequeue(&packet, bytes);
        Dequeued::Packet(packet)
    }

    pub(super) const fn stats(&self) -> &QdiscStats {
        &self.stats
    }

    pub(super) const fn stats_mut(&mut self) -> &mut QdiscStats {
        &mut self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transmit::qdisc::testing::{Bench, Spec};

    fn pfifo_fast(limit: u32) -> Bench {
        Bench::new(crate::transmit::qdisc::Qdisc::PfifoFast(PfifoFast::new(limit)))
    }

    #[test]
    fn urgent_packets_overtake_and_packets_of_one_band_keep_their_order() {
        let mut bench = pfifo_fast(1000);
        for (number, priority) in [(1, 0), (2, 2), (3, 6), (4, 0), (5, 7), (6, 1)] {
            bench.enqueue(Spec { number, priority, ..Spec::default() });
        }
        assert_eq!(bench.drain(), [3, 5, 1, 4, 2, 6]);
        bench.finish();
    }

    #[test]
    fn a_full_band_drops_at_its_tail_and_does_not_affect_other_bands() {
        let mut bench = pfifo_fast(3);
        for number in 0..5 {
            bench.enqueue(Spec { number, ..Spec::default() });
        }
        bench.enqueue(Spec { number: 9, priority: 6, ..Spec::default() });
        assert_eq!(bench.dropped(), [3, 4]);
        assert_eq!(bench.qdisc.stats().drops, 2);
        assert_eq!(bench.qdisc.stats().qlen, 4);
        assert_eq!(bench.drain(), [9, 0, 1, 2]);
        assert_eq!(bench.qdisc.stats().backlog_bytes, 0);
        bench.finish();
    }
}
