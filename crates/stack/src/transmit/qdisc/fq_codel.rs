//! `fq_codel`: flows are served in turns, and CoDel limits the queueing delay of each flow
//! (RFC 8290).
//!
//! Linux: net/sched/sch_fq_codel.c, tc-fq_codel(8). Flows are hashed into a fixed number of queues.
//! If the packets of all queues exceed the limit of their number or of their memory, the longest
//! queue drops half of its bytes from its front, but at most [`DROP_BATCH`] packets.
//!
//! CoDel needs the time at which a packet was enqueued, which replaces the departure time in
//! `meta.timestamp`. Departure times are therefore ignored.

use std::vec::Vec;

use pkt::{Instant, Packet, PacketList};

use super::{
    Dequeued, NetXmit, QdiscStats,
    codel::{Codel, CodelParams, CodelVerdict},
    round_robin::RoundRobin,
    wire_bytes,
};
use crate::{header::ecn, sysctl::qdisc::FqCodelConfig};

/// Maximum number of packets dropped at once from the longest queue (`drop_batch`).
const DROP_BATCH: usize = 64;

#[derive(Debug, Default)]
struct Flow {
    queue: PacketList,
    /// Bytes in `queue`, as on the link ([`wire_bytes`]).
    bytes: u32,
    deficit: i64,
    active: bool,
    codel: Codel,
}

/// Fair queueing with controlled delay.
#[derive(Debug)]
pub struct FqCodel {
    config: FqCodelConfig,
    params: CodelParams,
    flows: Vec<Flow>,
    round_robin: RoundRobin,
    memory: u64,
    stats: QdiscStats,
    link_header: usize,
}

impl FqCodel {
    /// Creates an empty `fq_codel` for packets whose link header is `link_header` bytes long.
    #[must_use]
    pub fn new(config: FqCodelConfig, link_header: usize) -> Self {
        let flows = config.flows.max(1) as usize;
        Self {
            config,
            params: CodelParams {
                target: config.target,
                interval: config.interval,
                mtu: config.quantum,
            },
            flows: (0..flows).map(|_| Flow::default()).collect(),
            round_robin: RoundRobin::with_capacity(flows),
            memory: 0,
            stats: QdiscStats::default(),
            link_header,
        }
    }

    pub(super) fn enqueue(
        &mut self,
        mut packet: Packet,
        bytes: u32,
        now: Instant,
        dropped: &mut PacketList,
    ) -> NetXmit {
        let scaled = (u64::from(packet.meta().flow_hash) * self.flows.len() as u64) >> 32;
        let index = u32::try_from(scaled).expect("the index is below the number of flows");
        packet.meta_mut().timestamp = now;
        self.memory += u64::from(packet.truesize());
        let flow = &mut self.flows[index as usize];
        flow.queue.push_back(packet);
        flow.bytes += bytes;
        if !flow.active {
            flow.active = true;
            flow.deficit = i64::from(self.config.quantum);
            self.round_robin.begin(index);
        }
        self.stats.on_enqueue(bytes);
        let full = self.stats.qlen > u64::from(self.config.limit)
            || self.memory > self.config.memory_limit;
        if full && self.drop_from_longest(dropped) == Some(index) {
            return NetXmit::Cn;
        }
        NetXmit::Success
    }

    pub(super) fn dequeue(
        &mut self,
        link_header: usize,
        now: Instant,
        dropped: &mut PacketList,
    ) -> Dequeued {
        debug_assert_eq!(link_header, self.link_header);
        loop {
            let Some(index) = self.round_robin.first() else {
                return Dequeued::Empty;
            };
            let flow = &mut self.flows[index as usize];
            if flow.deficit <= 0 {
                flow.deficit += i64::from(self.config.quantum);
                self.round_robin.pass();
                continue;
            }
            match self.next_of(index, now, dropped) {
                Some((packet, bytes)) => {
                    self.flows[index as usize].deficit -= i64::from(bytes);
                    self.stats.on_dequeue(&packet, bytes);
                    return Dequeued::Packet(packet);
                }
                None => {
                    if self.round_robin.end() {
                        self.flows[index as usize].active = false;
                    }
                }
            }
        }
    }

    pub(super) const fn stats(&self) -> &QdiscStats {
        &self.stats
    }

    pub(super) const fn stats_mut(&mut self) -> &mut QdiscStats {
        &mut self.stats
    }

    /// Returns the first packet of a flow that CoDel forwards.
    fn next_of(
        &mut self,
        index: u32,
        now: Instant,
        dropped: &mut PacketList,
    ) -> Option<(Packet, u32)> {
        let flow = &mut self.flows[index as usize];
        loop {
            let Some(mut packet) = flow.queue.pop_front() else {
                flow.codel.on_empty();
                return None;
            };
            let bytes = wire_bytes(&packet, self.link_header);
            leave(&mut flow.bytes, bytes, &mut self.memory, &packet);
            let verdict = flow.codel.judge(&packet, flow.bytes, &self.params, now);
            if verdict == CodelVerdict::Forward {
                return Some((packet, bytes));
            }
            let header = packet.linear_mut().get_mut(self.link_header..).unwrap_or_default();
            if self.config.ecn && ecn::set_ce(header) {
                self.stats.ecn_marks += 1;
                return Some((packet, bytes));
            }
            self.stats.on_leave(bytes);
            self.stats.drops += 1;
            dropped.push_back(packet);
        }
    }

    /// Drops half of the bytes of the longest queue from its front, but at most [`DROP_BATCH`]
    /// packets (RFC 8290 §4.1). Returns the index of the queue.
    fn drop_from_longest(&mut self, dropped: &mut PacketList) -> Option<u32> {
        let (index, flow) = (0..).zip(&mut self.flows).max_by_key(|(_, flow)| flow.bytes)?;
        let enough = flow.bytes / 2;
        let mut bytes_dropped = 0;
        for _ in 0..DROP_BATCH {
            let Some(packet) = flow.queue.pop_front() else { break };
            let bytes = wire_bytes(&packet, self.link_header);
            leave(&mut flow.bytes, bytes, &mut self.memory, &packet);
            bytes_dropped += bytes;
            self.stats.on_leave(bytes);
            self.stats.drops += 1;
            dropped.push_back(packet);
            if bytes_dropped >= enough {
                break;
            }
        }
        Some(index)
    }
}

/// Subtracts a packet that leaves its queue from the sums of bytes and memory. Packets do not
/// change while they wait, so the sums cannot become negative. If one did and wrapped around, the
/// queue would seem full forever; therefore the subtraction saturates.
fn leave(queue_bytes: &mut u32, bytes: u32, memory: &mut u64, packet: &Packet) {
    let truesize = u64::from(packet.truesize());
    debug_assert!(
        *queue_bytes >= bytes && *memory >= truesize,
        "a packet of {bytes} bytes ({truesize} of memory) leaves {queue_bytes} ({memory})"
    );
    *queue_bytes = queue_bytes.saturating_sub(bytes);
    *memory = memory.saturating_sub(truesize);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sysctl::qdisc::FqCodelConfig,
        transmit::qdisc::{
            Qdisc,
            testing::{Bench, LINK_HEADER, Spec},
        },
    };
    use std::time::Duration;

    fn fq_codel(config: FqCodelConfig) -> Bench {
        Bench::new(Qdisc::FqCodel(Box::new(FqCodel::new(config, LINK_HEADER))))
    }

    /// Sends two packets per millisecond over a link of one packet per millisecond, for four
    /// seconds.
    fn overload(bench: &mut Bench, ect: bool) {
        let mut number = 0;
        for _ in 0..4000 {
            for _ in 0..2 {
                number += 1;
                bench.enqueue(Spec { number, flow: 1, bytes: 1000, ect, ..Spec::default() });
            }
            assert!(bench.dequeue().is_some());
            bench.advance(Duration::from_millis(1));
        }
    }

    /// A burst leaves a queue that the following packets, which arrive as fast as the link sends
    /// them, would keep forever.
    #[test]
    fn codel_shortens_a_standing_queue_to_its_target() {
        let config = FqCodelConfig::default();
        let target = config.target;
        let mut bench = fq_codel(config);
        let arrives = |bench: &mut Bench, number| {
            bench.enqueue(Spec { number, flow: 1, bytes: 1000, ..Spec::default() });
        };
        (0..50).for_each(|number| arrives(&mut bench, number));
        let mut waits = Vec::new();
        for number in 50..3050 {
            arrives(&mut bench, number);
            waits.push(bench.dequeue_waited().expect("the queue is not empty"));
            bench.advance(Duration::from_millis(1));
        }
        assert_eq!(waits.iter().max(), Some(&Duration::from_millis(50)));
        assert!(waits[2900..].iter().all(|wait| *wait <= target), "{:?}", &waits[2900..]);
        bench.finish();
    }

    #[test]
    fn codel_drops_packets_of_a_standing_queue() {
        let mut bench = fq_codel(FqCodelConfig::default());
        overload(&mut bench, false);
        let stats = *bench.qdisc.stats();
        assert!(stats.drops > 100, "{stats:?}");
        assert_eq!(stats.ecn_marks, 0);
        assert_eq!(stats.drops, bench.dropped().len() as u64);
        bench.finish();
    }

    #[test]
    fn ecn_capable_packets_are_marked_and_not_dropped() {
        let config = FqCodelConfig { limit: 100_000, memory_limit: 1 << 40, ..Default::default() };
        let mut bench = fq_codel(config);
        overload(&mut bench, true);
        let stats = *bench.qdisc.stats();
        assert_eq!(stats.drops, 0, "{stats:?}");
        assert!(stats.ecn_marks > 100, "{stats:?}");
        bench.finish();
    }

    #[test]
    fn codel_drops_no_packets_of_a_short_queue() {
        let mut bench = fq_codel(FqCodelConfig::default());
        for number in 0..1000 {
            bench.enqueue(Spec { number, bytes: 1000, ..Spec::default() });
            bench.advance(Duration::from_millis(1));
            assert_eq!(bench.dequeue(), Some(number));
        }
        assert_eq!(bench.qdisc.stats().drops, 0);
        bench.finish();
    }

    #[test]
    fn a_sparse_flow_does_not_wait_behind_bulk() {
        let mut bench = fq_codel(FqCodelConfig::default());
        for number in 0..100 {
            bench.enqueue(Spec { number, flow: 1, bytes: 1500, ..Spec::default() });
        }
        for _ in 0..10 {
            bench.dequeue();
        }
        bench.enqueue(Spec { number: 999, flow: u32::MAX, bytes: 100, ..Spec::default() });
        assert_eq!(bench.dequeue(), Some(999));
        bench.finish();
    }

    #[test]
    fn the_longest_queue_drops_half_of_its_bytes_when_the_limit_is_exceeded() {
        let mut bench = fq_codel(FqCodelConfig { limit: 100, ..Default::default() });
        for number in 0..10 {
            bench.enqueue(Spec { number, flow: u32::MAX, bytes: 100, ..Spec::default() });
        }
        for number in 100..191 {
            bench.enqueue(Spec { number, flow: 1, bytes: 1500, ..Spec::default() });
        }
        let dropped = bench.dropped();
        assert_eq!(dropped, (100..146).collect::<Vec<_>>());
        assert_eq!(bench.qdisc.stats().qlen, 55);
        bench.finish();
    }
}
