//! `fq`: fair queueing. Flows are served in turns, and a packet leaves no earlier than its
//! departure time, unless it is a control packet.
//!
//! Linux: net/sched/sch_fq.c, tc-fq(8). Deficit round robin: each time a flow is served, it may
//! send `quantum` bytes. A new flow has a larger credit and is served first, so that short
//! exchanges do not wait behind bulk data. While the departure time of its first packet
//! (`meta.timestamp`, set by TCP's pacing) is in the future, a flow waits in a heap ordered by
//! time.
//!
//! `flow_hash`, with all its bits, identifies a flow. Two flows with the same hash are treated as
//! one.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration, vec::Vec};

use pkt::{Instant, Packet, PacketList};

use super::{Dequeued, NetXmit, PRIORITY_CONTROL, QdiscStats, round_robin::RoundRobin, wire_bytes};

use crate::sysctl::qdisc::FqConfig;

/// Number of chains of the flow table, a power of two (`buckets`).
const BUCKETS: usize = 1024;

/// Scheduling state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The flow has no packets; its entry may be reused for another flow.
    Detached,
    /// The flow is in the round-robin lists.
    Active,
    /// The flow is in `throttled`.
    Throttled,
}

#[derive(Debug)]
struct Flow {
    hash: u32,
    /// Next flow of the same bucket.
    next: Option<u32>,
    place: Place,
    credit: i64,
    queue: PacketList,
    /// Time of the flow's last enqueue or dequeue.
    used: Instant,
}

/// Fair queueing discipline.
#[derive(Debug)]
pub struct Fq {
    config: FqConfig,
    buckets: Vec<Option<u32>>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// Packets of [`PRIORITY_CONTROL`]. Pacing and flow limits do not apply to them. Linux:
    /// `internal`.
    control: PacketList,
    round_robin: RoundRobin,
    /// Throttled flows, ordered by the departure time of their first packets.
    throttled: BinaryHeap<Reverse<(Instant, u32)>>,
    stats: QdiscStats,
}

/// Time after which the entry of an idle flow, and with it the flow's credit, may be removed. While
/// there are more than [`FLOWS_MAX`] flows, an idle flow may be removed at once.
const FLOW_IDLE: Duration = Duration::from_secs(3);

/// Number of flows above which idle ones are removed at once: two per chain.
const FLOWS_MAX: usize = 2 * BUCKETS;

/// Maximum number of idle flows that one lookup removes. Linux: `FQ_GC_MAX`.
const COLLECT_MAX: usize = 8;

impl Fq {
    /// Creates an empty `fq`.
    #[must_use]
    pub fn new(config: FqConfig) -> Self {
        Self {
            config,
            buckets: vec![None; BUCKETS],
            flows: Vec::with_capacity(64),
            free: Vec::new(),
            control: PacketList::new(),
            round_robin: RoundRobin::with_capacity(64),
            throttled: BinaryHeap::with_capacity(64),
            stats: QdiscStats::default(),
        }
    }

    pub(super) fn enqueue(
        &mut self,
        mut packet: Packet,
        bytes: u32,
        now: Instant,
        dropped: &mut PacketList,
    ) -> NetXmit {
        if self.stats.qlen >= u64::from(self.config.limit) {
            return NetXmit::dropped(packet, &mut self.stats, dropped);
        }
        if packet.meta().priority == PRIORITY_CONTROL {
            self.control.push_back(packet);
            self.stats.on_enqueue(bytes);
            return NetXmit::Success;
        }
        let horizon = now + self.config.horizon;
        let beyond = packet.meta().timestamp > horizon;
        if beyond && self.config.horizon_drop {
            return NetXmit::dropped(packet, &mut self.stats, dropped);
        }
        if beyond {
            packet.meta_mut().timestamp = horizon;
        }
        let index = self.flow_of(packet.meta().flow_hash, now);
        let flow = &mut self.flows[index as usize];
        if flow.queue.len() >= self.config.flow_limit as usize {
            return NetXmit::dropped(packet, &mut self.stats, dropped);
        }
        if flow.place == Place::Detached {
            // A flow that was idle gets at least a full quantum, even if less of its credit
            // remains.
            flow.credit = flow.credit.max(i64::from(self.config.quantum));
            flow.place = Place::Active;
            self.round_robin.begin(index);
        }
        flow.used = now;
        flow.queue.push_back(packet);
        self.stats.on_enqueue(bytes);
        NetXmit::Success
    }

    pub(super) fn dequeue(&mut self, link_header: usize, now: Instant) -> Dequeued {
        if let Some(packet) = self.control.pop_front() {
            self.stats.on_dequeue(&packet, wire_bytes(&packet, link_header));
            return Dequeued::Packet(packet);
        }
        self.release(now);
        loop {
            let Some(index) = self.round_robin.first() else {
                return self.nothing_now();
            };
            let flow = &mut self.flows[index as usize];
            if flow.credit <= 0 {
                flow.credit += i64::from(self.config.quantum);
                self.round_robin.pass();
                continue;
            }
            let Some(packet) = flow.queue.pop_front() else {
                if self.round_robin.end() {
                    self.flows[index as usize].place = Place::Detached;
                }
                continue;
            };
            if packet.meta().timestamp > now {
                let due = packet.meta().timestamp;
                flow.queue.push_front(packet);
                flow.place = Place::Throttled;
                self.round_robin.remove_first();
                self.throttled.push(Reverse((due, index)));
                continue;
            }
            let bytes = wire_bytes(&packet, link_header);
            flow.credit -= i64::from(bytes);
            flow.used = now;
            self.stats.on_dequeue(&packet, bytes);
            return Dequeued::Packet(packet);
        }
    }

    pub(super) const fn stats(&self) -> &QdiscStats {
        &self.stats
    }

    pub(super) const fn stats_mut(&mut self) -> &mut QdiscStats {
        &mut self.stats
    }

    /// Returns throttled flows to the round-robin lists once their departure time has come.
    fn release(&mut self, now: Instant) {
        while let Some(&Reverse((due, index))) = self.throttled.peek() {
            if due > now {
                return;
            }
            self.throttled.pop();
            self.flows[index as usize].place = Place::Active;
            self.round_robin.resume(index);
        }
    }

    fn nothing_now(&mut self) -> Dequeued {
        match self.throttled.peek() {
            Some(&Reverse((due, _))) => {
                self.stats.overlimits += 1;
                Dequeued::Throttled(due)
            }
            None => Dequeued::Empty,
        }
    }

    /// Returns the flow of `hash`, and creates it if necessary.
    fn flow_of(&mut self, hash: u32, now: Instant) -> u32 {
        let bucket = hash as usize % BUCKETS;
        let mut at = self.buckets[bucket];
        while let Some(index) = at {
            let flow = &self.flows[index as usize];
            if flow.hash == hash {
                return index;
            }
            at = flow.next;
        }
        self.collect(bucket, now);
        let flow = Flow {
            hash,
            next: self.buckets[bucket],
            place: Place::Detached,
            credit: i64::from(self.config.initial_quantum),
            queue: PacketList::new(),
            used: now,
        };
        let index = if let Some(index) = self.free.pop() {
            self.flows[index as usize] = flow;
            index
        } else {
            let index =
                u32::try_from(self.flows.len()).expect("there are fewer flows than packets");
            self.flows.push(flow);
            index
        };
        self.buckets[bucket] = Some(index);
        index
    }

    /// Removes some of a bucket's flows that have been idle for [`FLOW_IDLE`] or, if there are too
    /// many flows, that are idle at all. Linux: `fq_gc`.
    fn collect(&mut self, bucket: usize, now: Instant) {
        let flooded = self.flows.len() - self.free.len() > FLOWS_MAX;
        let (mut kept, mut left) = (None, COLLECT_MAX);
        let mut at = self.buckets[bucket].take();
        while let Some(index) = at {
            let flow = &mut self.flows[index as usize];
            at = flow.next;
            let idle = flooded || now.saturating_duration_since(flow.used) > FLOW_IDLE;
            if left > 0 && flow.place == Place::Detached && idle {
                left -= 1;
                self.free.push(index);
            } else {
                flow.next = kept;
                kept = Some(index);
            }
        }
        self.buckets[bucket] = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sysctl::qdisc::FqConfig,
        transmit::qdisc::{
            Qdisc,
            testing::{Bench, Spec},
        },
    };

    fn fq(config: FqConfig) -> Bench {
        Bench::new(Qdisc::Fq(Box::new(Fq::new(config))))
    }

    #[test]
    fn each_flow_sends_one_quantum_in_turn() {
        let config = FqConfig { quantum: 2000, initial_quantum: 2000, ..FqConfig::default() };
        let mut bench = fq(config);
        for number in 0..6 {
            bench.enqueue(Spec { number, flow: 1, bytes: 1000, ..Spec::default() });
        }
        for number in 10..14 {
            bench.enqueue(Spec { number, flow: 2, bytes: 1000, ..Spec::default() });
        }
        assert_eq!(bench.drain(), [0, 1, 10, 11, 2, 3, 12, 13, 4, 5]);
        bench.finish();
    }

    #[test]
    fn a_new_flow_is_served_before_a_bulk_flow() {
        let mut bench = fq(FqConfig::default());
        for number in 0..40 {
            bench.enqueue(Spec { number, flow: 1, bytes: 1514, ..Spec::default() });
        }
        for _ in 0..20 {
            bench.dequeue();
        }
        bench.enqueue(Spec { number: 99, flow: 2, bytes: 100, ..Spec::default() });
        assert_eq!(bench.dequeue(), Some(99));
        bench.finish();
    }

    #[test]
    fn packets_leave_at_their_departure_times_and_delay_no_other_flow() {
        let mut bench = fq(FqConfig::default());
        for number in 0..3 {
            let delay = Duration::from_millis(10 * u64::from(number) + 10);
            bench.enqueue(Spec { number, flow: 1, delay, ..Spec::default() });
        }
        bench.enqueue(Spec { number: 9, flow: 2, ..Spec::default() });
        let times: Vec<_> =
            bench.drain_timed().into_iter().map(|(at, number)| (at.as_millis(), number)).collect();
        assert_eq!(times, [(0, 9), (10, 0), (20, 1), (30, 2)]);
        bench.finish();
    }

    #[test]
    fn packets_beyond_the_limits_are_dropped_and_those_beyond_the_horizon_dropped_or_advanced() {
        let config = FqConfig { limit: 5, flow_limit: 3, ..FqConfig::default() };
        let mut bench = fq(config);
        for number in 0..4 {
            bench.enqueue(Spec { number, flow: 1, ..Spec::default() });
        }
        for number in 10..14 {
            bench.enqueue(Spec { number, flow: number, ..Spec::default() });
        }
        assert_eq!(bench.dropped(), [3, 12, 13]);
        bench.finish();
        let mut bench = fq(FqConfig::default());
        let delay = Duration::from_secs(11);
        bench.enqueue(Spec { number: 1, delay, ..Spec::default() });
        assert_eq!(bench.dropped(), [1]);
        bench.finish();
        let mut bench = fq(FqConfig { horizon_drop: false, ..FqConfig::default() });
        bench.enqueue(Spec { number: 1, delay, ..Spec::default() });
        assert_eq!(bench.drain_timed(), [(Duration::from_secs(10), 1)]);
        bench.finish();
    }

    #[test]
    fn control_packets_leave_first_without_pacing_or_flow_limit() {
        let mut bench = fq(FqConfig { flow_limit: 1, ..FqConfig::default() });
        bench.enqueue(Spec { number: 1, ..Spec::default() });
        let delay = Duration::from_secs(20);
        for number in 2..4 {
            bench.enqueue(Spec { number, priority: 7, delay, ..Spec::default() });
        }
        assert_eq!(bench.dropped(), []);
        assert_eq!(
            [bench.dequeue(), bench.dequeue(), bench.dequeue()],
            [Some(2), Some(3), Some(1)]
        );
        bench.finish();
    }

    #[test]
    fn the_flow_table_is_bounded_under_a_flood_of_flows() {
        let mut bench = fq(FqConfig::default());
        for flow in 0..20_000 {
            bench.enqueue(Spec { number: flow, flow, ..Spec::default() });
            bench.dequeue();
        }
        let Qdisc::Fq(fq) = &bench.qdisc else { unreachable!() };
        assert!(fq.flows.len() <= FLOWS_MAX + BUCKETS, "{}", fq.flows.len());
        bench.finish();
    }

    #[test]
    fn idle_flows_are_removed() {
        let mut bench = fq(FqConfig::default());
        for flow in 0..200 {
            bench.enqueue(Spec { number: flow, flow: flow * 1024, ..Spec::default() });
            bench.drain();
            bench.advance(Duration::from_secs(1));
        }
        let Qdisc::Fq(fq) = &bench.qdisc else { unreachable!() };
        assert!(fq.flows.len() < 10, "{}", fq.flows.len());
        bench.finish();
    }
}
