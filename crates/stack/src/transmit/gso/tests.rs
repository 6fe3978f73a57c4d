use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pkt::{GsoKind, TxChecksum};
use tcp::{Flags, FourTuple, Options, SegmentHeader, SeqNum};

use super::*;
use crate::{
    cx::Memory,
    header::{
        header_bytes,
        ip::{
            self, ETHER_TYPE_IPV6, Fragment, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHeader, protocol,
        },
    },
};

const SEQ: SeqNum = SeqNum(0xffff_f000);

struct Case {
    v4: bool,
    payload: usize,
    mss: u16,
    flags: Flags,
    options: Options,
    id: u16,
    /// True if the copy of the payload into the superframe has computed the sum of each segment.
    summed: bool,
}

impl Case {
    fn new(v4: bool, payload: usize, mss: u16) -> Self {
        Self {
            v4,
            payload,
            mss,
            flags: Flags::ACK,
            options: Options::default(),
            id: 0xfffe,
            summed: false,
        }
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

    fn ip_len(&self) -> usize {
        if self.v4 { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN }
    }

    fn tcp_header(&self) -> SegmentHeader {
        SegmentHeader {
            src_port: 80,
            dst_port: 2000,
            seq: SEQ,
            ack: SeqNum(7),
            flags: self.flags,
            window: 512,
            options: self.options.clone(),
            ..SegmentHeader::default()
        }
    }

    fn bytes(&self) -> Vec<u8> {
        (0..=250).cycle().take(self.payload).collect()
    }

    /// Builds the superframe as `ip_output` passes it on.
    fn superframe(&self, cx: &mut Cx) -> Packet {
        let mut packet = cx.pool.alloc().unwrap();
        let piece = if self.summed { self.mss } else { 0 };
        assert_eq!(packet.append_in_pieces(&mut cx.pool, &self.bytes(), piece), self.payload);
        let tcp_header = self.tcp_header();
        let (src, dst) = self.addresses();
        let header_bytes = tcp_header.header_bytes();
        tcp_header.emit(packet.push(header_bytes));
        let len = u32::try_from(packet.len()).unwrap();
        let partial = pkt::checksum::pseudo_header(src, dst, protocol::TCP, len).fold();
        tcp::wire::header::write_checksum(packet.linear_mut(), partial);
        let ip = IpHeader {
            src,
            dst,
            protocol: protocol::TCP,
            hop_limit: 64,
            traffic_class: 2,
            flow_label: 0,
            id: self.id,
            fragment: Fragment::DONT,
            header_len: 0,
            payload_len: len,
        };
        let bytes = packet.push(self.ip_len());
        if self.v4 {
            ip.emit::<true>(bytes)
        } else {
            ip.emit::<false>(bytes)
        }
        let start = u16::try_from(self.ip_len()).unwrap();
        let segs = u16::try_from(self.payload.div_ceil(usize::from(self.mss))).unwrap();
        let meta = packet.meta_mut();
        meta.protocol = if self.v4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
        meta.tx_checksum = TxChecksum::Partial { start, offset: 16 };
        let kind = if self.v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
        meta.gso = Gso { kind, ecn: false, fixed_id: false, size: self.mss, segs };
        packet
    }

    /// Segments the superframe and checks headers, checksum and payload of every segment, in three
    /// ways: the device completes checksums, or segmentation completes them, without or with
    /// precomputed sums.
    fn check(&mut self) {
        for (checksums, summed) in
            [(Checksums::Owed, false), (Checksums::Completed, false), (Checksums::Completed, true)]
        {
            self.summed = summed;
            self.check_cut(checksums);
        }
    }

    fn check_cut(&self, checksums: Checksums) {
        let memory = Memory::new(4 << 20);
        let mut cx = Cx::replay(&memory, 1);
        let superframe = self.superframe(&mut cx);
        let known = superframe.sum_of_pieces().is_some();
        let mut list = PacketList::new();
        segment(&mut cx, superframe, 0, checksums, &mut list);
        assert_eq!(list.len(), self.payload.div_ceil(usize::from(self.mss)));
        let mut stream = Vec::new();
        let mut index = 0;
        while let Some(packet) = list.pop_front() {
            let last = list.is_empty();
            stream.extend(self.check_segment(&packet, index, stream.len(), last));
            cx.pool.free(packet);
            index += 1;
        }
        assert_eq!(stream, self.bytes());
        let count = |counter| cx.counters().stack.value(counter);
        assert_eq!(count(Counter::GsoSegments), u64::from(index));
        let completed = if checksums == Checksums::Completed { u64::from(index) } else { 0 };
        assert_eq!(count(Counter::TxChecksumSoftware), completed);
        assert_eq!(count(Counter::TxChecksumCopied), if known { completed } else { 0 });
        assert_eq!(memory.packets.balance(), 0);
    }

    fn check_segment(&self, packet: &Packet, index: u16, offset: usize, last: bool) -> Vec<u8> {
        assert_eq!(packet.meta().gso, Gso::default());
        let bytes = completed(packet);
        let parsed = if self.v4 {
            ip::parse::<true>(&bytes, bytes.len())
        } else {
            ip::parse::<false>(&bytes, bytes.len())
        };
        let ip = parsed.expect("the lengths and the IPv4 checksum of a segment are valid");
        assert_eq!(ip.total_len(), bytes.len());
        assert_eq!((ip.src, ip.dst), self.addresses());
        assert_eq!(ip.id, if self.v4 { self.id.wrapping_add(index) } else { 0 });
        assert_eq!((ip.traffic_class, ip.hop_limit), (2, 64));
        assert_eq!(ip.fragment.dont, self.v4);

        let segment = &bytes[self.ip_len()..];
        let tuple = FourTuple::new((ip.src, 0).into(), (ip.dst, 0).into());
        let len = u32::try_from(segment.len()).unwrap();
        let (src, dst) = (tuple.local.ip(), tuple.remote.ip());
        let mut sum = pkt::checksum::pseudo_header(src, dst, protocol::TCP, len);
        sum.add_bytes(segment);
        assert!(sum.is_valid(), "segment {index}");

        let read = SegmentHeader::parse(segment).unwrap();
        let mut expected = self.tcp_header();
        expected.header_len = read.header_len;
        expected.seq = SEQ + u32::try_from(offset).unwrap();
        if !last {
            expected.flags -= Flags::FIN | Flags::PSH;
        }
        if index > 0 {
            expected.flags -= Flags::CWR;
        }
        assert_eq!(read, expected, "segment {index}");
        let payload = &segment[usize::from(read.header_len)..];
        assert!(payload.len() == usize::from(self.mss) || last);
        payload.to_vec()
    }
}

/// Completes a partial checksum, as a device does.
fn completed(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    let TxChecksum::Partial { start, offset } = packet.meta().tx_checksum else { return bytes };
    let (start, field) = (usize::from(start), usize::from(start + offset));
    let sum = Sum::of(&bytes[start..]).finish();
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn a_superframe_is_cut_into_segments_of_its_gso_size() {
    for v4 in [true, false] {
        for (payload, mss) in [(2, 1), (2920, 1460), (2921, 1460), (4379, 1460), (64_000, 1448)] {
            Case::new(v4, payload, mss).check();
        }
        Case::new(v4, 30_000, 537).check();
        // BIG TCP: superframes longer than a 16-bit length field can express, up to the maximum.
        for (payload, mss) in [(65_496, 1448), (65_536, 1448), (200_001, 8948), (524_200, 1448)] {
            Case::new(v4, payload, mss).check();
        }
        // An acknowledgment has shortened the superframe to less than one segment.
        Case::new(v4, 100, 1460).check();
    }
}

#[test]
fn options_are_repeated_in_every_segment() {
    for v4 in [true, false] {
        let mut case = Case::new(v4, 10_000, 1448);
        case.options.timestamps = Some((123_456, 654_321));
        case.check();
        case.options.sack_blocks.push((SeqNum(100), SeqNum(200)));
        case.check();
    }
}

#[test]
fn fin_and_psh_are_on_the_last_segment_and_cwr_on_the_first() {
    for v4 in [true, false] {
        let mut case = Case::new(v4, 5000, 1000);
        case.flags = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR | Flags::ECE;
        case.check();
    }
}

#[test]
fn checksums_are_valid_for_last_segments_of_1_to_100_bytes() {
    for payload in 1001..=1100 {
        Case::new(true, payload, 1000).check();
        Case::new(false, payload, 50).check();
    }
}

#[test]
fn the_rest_is_dropped_and_counted_when_memory_is_exhausted() {
    // The memory is enough for one slab of descriptors and one of pages.
    let memory = Memory::new(340 << 10);
    let mut cx = Cx::replay(&memory, 1);
    let superframe = Case::new(true, 60_000, 500).superframe(&mut cx);
    let mut list = PacketList::new();
    segment(&mut cx, superframe, 0, Checksums::Owed, &mut list);
    assert!(list.len() < 120, "{} of 120", list.len());
    assert_eq!(cx.counters().drops.value(DropReason::NoMemory), 1);
    list.free_all(&mut cx.pool);
    assert_eq!(memory.packets.balance(), 0);
}

#[test]
fn the_header_length_excludes_the_link_header() {
    let memory = Memory::new(4 << 20);
    let mut cx = Cx::replay(&memory, 1);
    let mut packet = Case::new(true, 3000, 1000).superframe(&mut cx);
    assert_eq!(header_bytes(&packet, 0), 40);
    packet.push(14).fill(0);
    assert_eq!(header_bytes(&packet, 14), 40);
    packet.truncate(20);
    assert_eq!(header_bytes(&packet, 14), 0, "the headers are not linear");
    cx.pool.free(packet);
    let packet = Case::new(false, 3000, 1000).superframe(&mut cx);
    assert_eq!(header_bytes(&packet, 0), 60);
    cx.pool.free(packet);
}
