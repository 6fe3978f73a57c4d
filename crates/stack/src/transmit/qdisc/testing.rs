//! Test bench of the queueing disciplines. It enqueues numbered packets, has a clock, and returns
//! the numbers of dequeued and dropped packets.

use std::{net::Ipv4Addr, time::Duration, vec::Vec};

use pkt::{Ecn, Instant, Packet, PacketList};

use super::{Dequeued, Qdisc};
use crate::{
    cx::{Cx, Memory},
    header::ip::{Fragment, IPV4_HEADER_LEN, IpHeader, protocol},
};

pub(crate) const START: Instant = Instant::from_secs(100);

/// Length of the link header: packets begin with their IP header.
pub(crate) const LINK_HEADER: usize = 0;

/// Description of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) number: u32,
    pub(crate) flow: u32,
    pub(crate) priority: u8,
    pub(crate) bytes: u16,
    /// Time from the enqueue to the departure time.
    pub(crate) delay: Duration,
    pub(crate) ect: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self { number: 0, flow: 1, priority: 0, bytes: 500, delay: Duration::ZERO, ect: false }
    }
}

/// Discipline under test with its packets.
pub(crate) struct Bench {
    pub(crate) qdisc: Qdisc,
    memory: Memory,
    cx: Cx,
    dropped: PacketList,
}

impl Bench {
    pub(crate) fn new(qdisc: Qdisc) -> Self {
        let memory = Memory::new(64 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = START;
        Self { qdisc, memory, cx, dropped: PacketList::new() }
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.cx.now += time;
    }

    pub(crate) fn enqueue(&mut self, spec: Spec) {
        let packet = self.packet(spec);
        let _ = self.qdisc.enqueue(packet, LINK_HEADER, self.cx.now, &mut self.dropped);
    }

    /// Dequeues the next packet that may leave now and returns its number.
    pub(crate) fn dequeue(&mut self) -> Option<u32> {
        self.next().map(|(number, _)| number)
    }

    /// Dequeues the next packet that may leave now and returns the time since its `meta.timestamp`.
    pub(crate) fn dequeue_waited(&mut self) -> Option<Duration> {
        self.next().map(|(_, waited)| waited)
    }

    fn next(&mut self) -> Option<(u32, Duration)> {
        match self.qdisc.dequeue(LINK_HEADER, self.cx.now, &mut self.dropped) {
            Dequeued::Packet(packet) => {
                let waited = self.cx.now.saturating_duration_since(packet.meta().timestamp);
                let number = number_of(&packet);
                self.cx.pool.free(packet);
                Some((number, waited))
            }
            Dequeued::Throttled(_) | Dequeued::Empty => None,
        }
    }

    /// Dequeues all packets and advances the clock as needed. Returns the departure time since the
    /// start and the number of each packet.
    pub(crate) fn drain_timed(&mut self) -> Vec<(Duration, u32)> {
        let mut out = Vec::new();
        loop {
            match self.qdisc.dequeue(LINK_HEADER, self.cx.now, &mut self.dropped) {
                Dequeued::Packet(packet) => {
                    out.push((self.cx.now.saturating_duration_since(START), number_of(&packet)));
                    self.cx.pool.free(packet);
                }
                Dequeued::Throttled(at) => {
                    assert!(
                        at > self.cx.now,
                        "a throttled discipline names a time that has passed"
                    );
                    self.cx.now = at;
                }
                Dequeued::Empty => return out,
            }
        }
    }

    pub(crate) fn drain(&mut self) -> Vec<u32> {
        self.drain_timed().into_iter().map(|(_, number)| number).collect()
    }

    /// Returns the numbers of the packets dropped since the last call.
    pub(crate) fn dropped(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.dropped).map(|packet| number_of(&packet)).collect()
    }

    /// Checks that the discipline is empty after all packets were dequeued, and that every packet
    /// was freed.
    pub(crate) fn finish(mut self) {
        self.drain();
        self.dropped();
        assert_eq!(self.memory.packets.balance(), 0);
        assert_eq!((self.qdisc.stats().qlen, self.qdisc.stats().backlog_bytes), (0, 0));
    }

    /// Frees a packet that a test has dequeued itself. Returns `None`, for use as the value of a
    /// match arm.
    pub(crate) fn free<T>(&mut self, packet: Packet) -> Option<T> {
        self.cx.pool.free(packet);
        None
    }

    fn packet(&mut self, spec: Spec) -> Packet {
        let payload_len = spec.bytes - 20;
        let mut packet = self.cx.pool.alloc().unwrap();
        let mut payload = vec![0; usize::from(payload_len)];
        payload[..4].copy_from_slice(&spec.number.to_be_bytes());
        packet.append(&mut self.cx.pool, &payload);
        let header = IpHeader {
            src: Ipv4Addr::new(10, 0, 0, 1).into(),
            dst: Ipv4Addr::new(10, 0, 0, 2).into(),
            protocol: protocol::UDP,
            hop_limit: 64,
            traffic_class: if spec.ect { Ecn::Ect0.bits() } else { 0 },
            flow_label: 0,
            id: 0,
            fragment: Fragment::DONT,
            header_len: 20,
            payload_len: payload_len.into(),
        };
        header.emit::<true>(packet.push(IPV4_HEADER_LEN));
        let meta = packet.meta_mut();
        meta.flow_hash = spec.flow;
        meta.priority = spec.priority;
        meta.timestamp = self.cx.now + spec.delay;
        packet
    }
}

fn number_of(packet: &Packet) -> u32 {
    let mut number = [0; 4];
    packet.copy_to(IPV4_HEADER_LEN, &mut number);
    u32::from_be_bytes(number)
}
