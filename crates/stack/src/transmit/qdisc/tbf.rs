//! `tbf`: token bucket filter behind one queue.
//!
//! Linux: net/sched/sch_tbf.c, tc-tbf(8). Tokens are measured in time: the bucket gains one
//! nanosecond per nanosecond, and a packet takes the time that its transmission needs at the
//! configured rate. The discipline makes a fast link behave like a slower one (for example
//! 100 Mbit/s), so that packets queue on this host and not in a later device.

use std::time::Duration;

use pkt::{Instant, Packet, PacketList};

use super::{Dequeued, NetXmit, QdiscStats, wire_bytes};

use crate::sysctl::qdisc::TbfConfig;

/// Token bucket filter.
#[derive(Debug)]
pub struct Tbf {
    config: TbfConfig,
    /// Transmission time of `burst_bytes` at the rate: the capacity of the bucket.
    depth: Duration,
    tokens: Duration,
    /// Time to which `tokens` refers.
    as_of: Instant,
    queue: PacketList,
    stats: QdiscStats,
}

impl Tbf {
    /// Creates a full bucket.
    #[must_use]
    pub fn new(config: TbfConfig, now: Instant) -> Self {
        let depth = transmission_time(config.burst_bytes, config.rate_bps);
        Self {
            config,
            depth,
            tokens: depth,
            as_of: now,
            queue: PacketList::new(),
            stats: QdiscStats::default(),
        }
    }

    pub(super) fn enqueue(
        &mut self,
        packet: Packet,
        bytes: u32,
        dropped: &mut PacketList,
    ) -> NetXmit {
        let full = self.stats.backlog_bytes + u64::from(bytes) > self.config.limit_bytes;
        if full || packet.len() > self.packet_bytes_max() {
            return NetXmit::dropped(packet, &mut self.stats, dropped);
        }
        self.queue.push_back(packet);
        self.stats.on_enqueue(bytes);
        NetXmit::Success
    }

    pub(super) fn dequeue(&mut self, link_header: usize, now: Instant) -> Dequeued {
        let Some(packet) = self.queue.pop_front() else { return Dequeued::Empty };
        let bytes = wire_bytes(&packet, link_header);
        let cost = transmission_time(bytes, self.config.rate_bps);
        // The thread that owns the queue may have a clock behind that of the previous owner. Time
        // that was credited before is not credited again.
        let now = now.max(self.as_of);
        let filled = self.tokens + now.saturating_duration_since(self.as_of);
        let tokens = filled.min(self.depth);
        // A superframe (a packet of several segments) as long as the burst may cost more than the
        // bucket's capacity, because the headers of its segments count too. It then takes all
        // tokens.
        let Some(left) = tokens.checked_sub(cost.min(self.depth)) else {
            self.queue.push_front(packet);
            self.stats.overlimits += 1;
            return Dequeued::Throttled(now + (cost.min(self.depth) - tokens));
        };
        self.tokens = left;
        self.as_of = now;
        self.stats.on_dequeue(&packet, bytes);
        Dequeued::Packet(packet)
    }

    pub(super) const fn packet_bytes_max(&self) -> usize {
        self.config.burst_bytes as usize
    }

    pub(super) const fn stats(&self) -> &QdiscStats {
        &self.stats
    }

    pub(super) const fn stats_mut(&mut self) -> &mut QdiscStats {
        &mut self.stats
    }
}

/// Returns the transmission time of `bytes` at `rate_bps`, rounded up.
fn transmission_time(bytes: u32, rate_bps: u64) -> Duration {
    let ns = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(rate_bps.max(1)));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sysctl::qdisc::TbfConfig,
        transmit::qdisc::{
            Qdisc,
            testing::{Bench, START, Spec},
        },
    };

    /// Bench at 100 Mbit/s, where 1,000 bytes take 80 µs.
    fn tbf(burst_bytes: u32, limit_bytes: u64) -> Bench {
        let config = TbfConfig { rate_bps: 100_000_000, burst_bytes, limit_bytes };
        Bench::new(Qdisc::Tbf(Tbf::new(config, START)))
    }

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_the_rate() {
        let mut bench = tbf(3000, 1_000_000);
        for number in 0..10 {
            bench.enqueue(Spec { number, bytes: 1000, ..Spec::default() });
        }
        let times: Vec<_> = bench.drain_timed().into_iter().map(|(at, _)| at.as_micros()).collect();
        assert_eq!(times, [0, 0, 0, 80, 160, 240, 320, 400, 480, 560]);
        assert_eq!(bench.qdisc.stats().overlimits, 7);
        bench.finish();
    }

    #[test]
    fn a_long_pause_earns_tokens_for_one_burst() {
        let mut bench = tbf(2000, 1_000_000);
        bench.advance(Duration::from_secs(60));
        for number in 0..4 {
            bench.enqueue(Spec { number, bytes: 1000, ..Spec::default() });
        }
        let times: Vec<_> = bench.drain_timed().into_iter().map(|(at, _)| at.as_micros()).collect();
        assert_eq!(times, [60_000_000, 60_000_000, 60_000_080, 60_000_160]);
        bench.finish();
    }

    #[test]
    fn a_queue_owner_whose_clock_is_behind_gains_no_tokens() {
        let mut bench = tbf(1000, 1_000_000);
        for number in 0..4 {
            bench.enqueue(Spec { number, bytes: 1000, ..Spec::default() });
        }
        let ahead = START + Duration::from_micros(80);
        let mut dropped = PacketList::new();
        let mut throttled_until =
            |bench: &mut Bench, at| match bench.qdisc.dequeue(0, at, &mut dropped) {
                Dequeued::Packet(packet) => bench.free(packet),
                Dequeued::Throttled(at) => Some(at),
                Dequeued::Empty => unreachable!("four packets wait"),
            };
        assert_eq!(throttled_until(&mut bench, START), None);
        assert_eq!(throttled_until(&mut bench, ahead), None);
        let next = Some(START + Duration::from_micros(160));
        assert_eq!(
            throttled_until(&mut bench, START),
            next,
            "an owner whose clock is behind gained tokens"
        );
        assert_eq!(throttled_until(&mut bench, ahead), next);
        bench.finish();
    }

    #[test]
    fn packets_above_the_limit_or_the_burst_are_dropped() {
        let mut bench = tbf(1500, 3000);
        for number in 0..4 {
            bench.enqueue(Spec { number, bytes: 1000, ..Spec::default() });
        }
        bench.enqueue(Spec { number: 9, bytes: 1501, ..Spec::default() });
        assert_eq!(bench.dropped(), [3, 9]);
        assert_eq!(bench.drain(), [0, 1, 2]);
        bench.finish();
    }
}
