//! Receive offload tests on frames built from bytes. `rules` tests which segments merge; `next`,
//! that header comparison and parsing have the same result; `scenarios`, the order in which packets
//! leave; and `oracle`, that a superframe (a packet of several segments) is segmented into its
//! original segments.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pkt::{EtherType, Instant, Packet, RxChecksum, TxChecksum, checksum};
use tcp::{Flags, Options, SegmentHeader, SeqNum};

use super::*;
use crate::{
    base::limits::{BIG_TCP_BYTES_MAX, GRO_BYTES_MAX},
    cx::Memory,
    header::{
        ethernet::{EthernetHeader, MacAddr},
        ip::{Fragment, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHeader, protocol},
    },
    sysctl::modes::GroExit,
};

mod next;
mod oracle;
mod rules;
mod scenarios;

/// Length of the link header of the test frames.
const LINK: usize = 14;
const MSS: u32 = 1448;

/// Description of one segment.
#[derive(Clone, Debug)]
struct Frame {
    v4: bool,
    src_port: u16,
    seq: u32,
    len: u32,
    flags: Flags,
    ack: u32,
    window: u16,
    timestamps: Option<(u32, u32)>,
    id: u16,
    dont_fragment: bool,
    hop_limit: u8,
    traffic_class: u8,
}

impl Frame {
    /// Returns a frame with `len` payload bytes from sequence number `seq` on, of the flow with
    /// this source port.
    fn new(src_port: u16, seq: u32, len: u32) -> Self {
        Self {
            v4: true,
            src_port,
            seq,
            len,
            flags: Flags::ACK,
            ack: 77,
            window: 500,
            timestamps: Some((1000, 2000)),
            id: 0,
            dont_fragment: true,
            hop_limit: 64,
            traffic_class: 0,
        }
    }

    fn with(self, flags: Flags) -> Self {
        Self { flags: self.flags | flags, ..self }
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        if self.v4 {
            (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into())
        } else {
            (
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(),
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(),
            )
        }
    }

    /// Builds the frame with link header and checksums.
    fn bytes(&self) -> Vec<u8> {
        let tcp = SegmentHeader {
            src_port: self.src_port,
            dst_port: 80,
            seq: SeqNum(self.seq),
            ack: SeqNum(self.ack),
            flags: self.flags,
            window: self.window,
            options: Options { timestamps: self.timestamps, ..Options::default() },
            ..SegmentHeader::default()
        };
        let mut segment = vec![0; tcp.header_bytes()];
        tcp.emit(&mut segment);
        // The value of a payload byte is a function of its sequence number.
        segment.extend((0..self.len).map(|at| stream_byte(self.seq.wrapping_add(at))));
        let (src, dst) = self.addresses();
        let len = u32::try_from(segment.len()).unwrap();
        let mut sum = checksum::pseudo_header(src, dst, protocol::TCP, len);
        sum.add_bytes(&segment);
        tcp::wire::header::write_checksum(&mut segment, sum.finish());
        let ip = IpHeader {
            src,
            dst,
            protocol: protocol::TCP,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: 0,
            id: self.id,
            fragment: Fragment { dont: self.dont_fragment, ..Fragment::default() },
            header_len: 0,
            payload_len: len,
        };
        let ip_len = if self.v4 { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        let mut bytes = vec![0; LINK + ip_len];
        let ether_type = if self.v4 { EtherType::IPV4 } else { EtherType::IPV6 };
        EthernetHeader::new(MacAddr::local(1), MacAddr::local(2), ether_type).emit(&mut bytes);
        if self.v4 {
            ip.emit::<true>(&mut bytes[LINK..]);
        } else {
            ip.emit::<false>(&mut bytes[LINK..]);
        }
        bytes.extend(segment);
        bytes
    }
}

fn stream_byte(seq: u32) -> u8 {
    (seq.wrapping_mul(31) >> 3).to_be_bytes()[3]
}

/// NAPI instance without a device, and the packets it delivered.
struct Bench {
    memory: Memory,
    cx: Cx,
    gro: Gro,
    mode: GroMode,
    up: Vec<Packet>,
    /// Lengths of the delivered lists.
    lists: Vec<usize>,
}

impl Bench {
    fn new(exit: GroExit) -> Self {
        let memory = Memory::new(16 << 20);
        let cx = Cx::replay(&memory, 1);
        let (max_bytes, ipv4_max_bytes) = (GRO_BYTES_MAX, GRO_BYTES_MAX);
        let mode = GroMode { exit, batch: 8, merges: true, max_bytes, ipv4_max_bytes };
        Self { memory, cx, gro: Gro::default(), mode, up: Vec::new(), lists: Vec::new() }
    }

    /// Builds a packet as a tap device delivers it: all bytes of a long packet are in pages.
    fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.cx.pool.alloc().expect("the pool has memory");
        assert_eq!(packet.append(&mut self.cx.pool, bytes), bytes.len());
        packet
    }

    fn receive_bytes(&mut self, bytes: &[u8]) {
        let packet = self.packet(bytes);
        self.receive_packet(packet);
    }

    fn receive_packet(&mut self, packet: Packet) {
        self.gro.receive(&mut self.cx, &self.mode, LINK, packet);
        self.gro.table.check();
        self.drain();
    }

    fn receive(&mut self, frame: &Frame) {
        self.receive_bytes(&frame.bytes());
    }

    /// Ends a poll that emptied the queue: flushes everything.
    fn complete(&mut self) {
        self.gro.flush(&self.cx, &self.mode, false);
        self.drain();
        assert!(self.gro.is_empty(), "GRO3: a packet is held after a completed poll");
    }

    fn drain(&mut self) {
        let mut list = 0;
        while let Some(packet) = self.gro.ready().pop_front() {
            self.up.push(packet);
            list += 1;
        }
        if list > 0 {
            self.lists.push(list);
        }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.cx.counters().stack.value(counter)
    }

    /// Returns sequence number, payload length and declared number of segments of each delivered
    /// packet, in order.
    fn delivered(&self) -> Vec<(u32, u32, u16)> {
        self.up.iter().map(seen).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.up.clear();
        self.gro = Gro::default();
        if !std::thread::panicking() {
            assert_eq!(self.memory.packets.balance(), 0, "some packets were not freed");
        }
    }
}

/// Returns sequence number, payload length and number of segments of a packet.
fn seen(packet: &Packet) -> (u32, u32, u16) {
    let mut bytes = [0; 134];
    packet.copy_to(0, &mut bytes);
    let ip_len = if bytes[LINK] >> 4 == 4 { usize::from(bytes[LINK] & 15) * 4 } else { 40 };
    let tcp = &bytes[LINK + ip_len..];
    let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let headers = LINK + ip_len + usize::from(tcp[12] >> 4) * 4;
    let payload = u32::try_from(packet.len() - headers).unwrap();
    (seq, payload, packet.meta().gso.segs.max(1))
}

/// Whether a packet does not begin where the previous one ended, so that TCP would queue it out of
/// order.
fn is_reordered(delivered: &[(u32, u32, u16)]) -> bool {
    let mut next = None;
    delivered.iter().any(|&(seq, len, _)| {
        let early = next.is_some_and(|next| next != seq);
        next = Some(seq + len);
        early
    })
}
