//! Cuts a superframe of UDP datagrams (`UDP_SEGMENT`) into its datagrams.
//!
//! Above: `gso`. Linux: `__udp_gso_segment`.
//!
//! All datagrams have the ports, addresses and options of the superframe; length, IPv4
//! identification and checksums are their own.

use pkt::{DropReason, Gso, HEADROOM, HeadTemplate, Packet, PacketList, Sum, TxChecksum};

use super::{Checksums, Shares, put_u16, u16_at};
use crate::{
    base::counters::Counter,
    cx::Cx,
    header::{
        ip::{self, ETHER_TYPE_IPV4},
        udp::{CHECKSUM_OFFSET, UDP_HEADER_LEN},
    },
};

/// Offset of the length in the UDP header.
const LEN: usize = 4;
const CHECKSUM: usize = CHECKSUM_OFFSET as usize;

/// Cuts `packet`, whose IP header begins at offset `network`, and appends the datagrams to `list`.
/// If packet memory is exhausted, the remaining datagrams are dropped and counted as one packet.
pub(super) fn segment(
    cx: &mut Cx,
    mut packet: Packet,
    network: usize,
    checksums: Checksums,
    list: &mut PacketList,
) {
    let size = usize::from(packet.meta().gso.size);
    let headers = Headers::of(&packet, network);
    let meta = packet.meta_mut();
    let completes = checksums == Checksums::Completed && meta.tx_checksum != TxChecksum::Done;
    // Datagrams inherit the metadata of the superframe (`Cutter::next_piece`).
    meta.gso = Gso::default();
    if completes {
        meta.tx_checksum = TxChecksum::Done;
    }
    // No underflow: the headers were copied from the linear part of the packet.
    let datagrams = (packet.len() - headers.len).div_ceil(size);
    let mut shares = Shares::of(&mut packet, datagrams);
    let mut index = 0_u16;
    let mut cutter = packet.cut(&mut cx.pool, headers.len, size);
    while let Some((mut piece, sum)) = cutter.next_piece(&mut cx.pool) {
        let payload = piece.len();
        let sum = completes.then(|| sum.unwrap_or_else(|| piece.checksum(0, payload)));
        headers.write(&mut piece, index, sum);
        shares.give(&mut piece);
        list.push_back(piece);
        index = index.wrapping_add(1);
    }
    let whole = cutter.left() == 0;
    if completes {
        cx.count(Counter::TxChecksumSoftware, u64::from(index));
    }
    if !whole {
        return cx.drop_packet(DropReason::NoMemory, packet);
    }
    cx.count(Counter::GsoSegments, u64::from(index));
    cx.pool.free(packet);
}

/// Header template for all datagrams, without length and checksum of UDP.
struct Headers {
    template: HeadTemplate,
    /// Length of all headers. They are at the end of the template.
    len: usize,
    /// Offsets of the IP and the UDP header in them.
    network: usize,
    udp: usize,
    v4: bool,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    /// Sum of the ports.
    ports: Sum,
}

impl Headers {
    fn of(packet: &Packet, network: usize) -> Self {
        let v4 = packet.meta().protocol == ETHER_TYPE_IPV4;
        let udp = match v4 {
            true => network + usize::from(packet.linear()[network] & 0x0f) * 4,
            false => network + ip::IPV6_HEADER_LEN,
        };
        let len = udp + UDP_HEADER_LEN;
        let mut template = [0; HEADROOM as usize];
        let start = template.len() - len;
        template[start..].copy_from_slice(&packet.linear()[..len]);
        // The checksum field of a partial packet holds the sum of the pseudo-header.
        let fields = &mut template[start + udp..];
        let mut pseudo = Sum::from_folded(u16_at(fields, CHECKSUM));
        pseudo.add_u16(!u16_at(fields, LEN));
        put_u16(fields, LEN, 0);
        put_u16(fields, CHECKSUM, 0);
        let ports = Sum::of(fields);
        Self { template, len, network, udp, v4, pseudo, ports }
    }

    /// Prepends the headers of datagram number `index` to its payload. If `sum`, the sum of the
    /// payload, is given, the checksum is complete, otherwise partial.
    fn write(&self, piece: &mut Packet, index: u16, sum: Option<Sum>) {
        let len = u16::try_from(UDP_HEADER_LEN + piece.len()).unwrap_or(u16::MAX);
        let (before, fields) = piece.push_template(&self.template, self.len).split_at_mut(self.udp);
        if self.v4 {
            ip::set_segment::<true>(&mut before[self.network..], len, index);
        } else {
            ip::set_segment::<false>(&mut before[self.network..], len, index);
        }
        put_u16(fields, LEN, len);
        let mut checksum = self.pseudo;
        checksum.add_u16(len);
        let checksum = match sum {
            Some(payload) => {
                checksum.add_sum(self.ports);
                checksum.add_u16(len);
                checksum.add_sum(payload);
                // A field of zero means that there is no checksum (RFC 768).
                match checksum.finish() {
                    0 => 0xffff,
                    sum => sum,
                }
            }
            None => checksum.fold(),
        };
        put_u16(fields, CHECKSUM, checksum);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use pkt::{GsoKind, checksum};

    use super::*;
    use crate::{
        cx::Memory,
        header::{
            ip::{ETHER_TYPE_IPV6, Fragment, IpHeader, fixed_len, parse, protocol},
            udp::UdpHeader,
        },
        transmit::gso,
    };

    const LINK: usize = 14;

    fn addresses(v4: bool) -> (IpAddr, IpAddr) {
        match v4 {
            true => (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into()),
            false => {
                (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into())
            }
        }
    }

    /// Returns a superframe whose checksum is partial.
    fn superframe<const V4: bool>(cx: &mut Cx, payload: &[u8], size: u16) -> Packet {
        let (src, dst) = addresses(V4);
        let mut packet = cx.pool.alloc_from(payload).expect("memory");
        let len = u16::try_from(UDP_HEADER_LEN + payload.len()).expect("short");
        let pseudo = checksum::pseudo_header(src, dst, protocol::UDP, len.into()).fold();
        let udp = UdpHeader { src_port: 7, dst_port: 9, len, checksum: pseudo };
        udp.emit(packet.push(UDP_HEADER_LEN));
        let header = IpHeader {
            src,
            dst,
            protocol: protocol::UDP,
            hop_limit: 3,
            traffic_class: 2,
            flow_label: 0,
            id: 0xffff,
            fragment: if V4 { Fragment::DONT } else { Fragment::default() },
            header_len: 0,
            payload_len: len.into(),
        };
        header.emit::<V4>(packet.push(fixed_len::<V4>()));
        packet.push(LINK).fill(0xee);
        let segs = u16::try_from(payload.len().div_ceil(size.into())).expect("few");
        let start = u16::try_from(fixed_len::<V4>()).expect("short");
        let meta = packet.meta_mut();
        meta.protocol = if V4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
        meta.tx_checksum = TxChecksum::Partial { start, offset: CHECKSUM_OFFSET };
        meta.gso = Gso { kind: GsoKind::Udp, size, segs, ..Gso::default() };
        packet
    }

    fn check<const V4: bool>(len: usize, size: u16, checksums: Checksums) {
        let memory = Memory::new(16 << 20);
        let mut cx = Cx::replay(&memory, 1);
        let payload: Vec<u8> = (0..=255).cycle().take(len).collect();
        let packet = superframe::<V4>(&mut cx, &payload, size);
        let mut list = PacketList::new();
        gso::segment(&mut cx, packet, LINK, checksums, &mut list);
        let mut joined = Vec::new();
        let mut index = 0;
        while let Some(piece) = list.pop_front() {
            let bytes = piece.to_vec();
            assert_eq!(bytes[..LINK], [0xee; LINK]);
            let ip = parse::<V4>(&bytes[LINK..], bytes.len() - LINK).expect("a valid header");
            assert_eq!((ip.src, ip.dst), addresses(V4));
            assert_eq!(ip.id, if V4 { 0xffff_u16.wrapping_add(index) } else { 0 });
            let datagram = &bytes[LINK + fixed_len::<V4>()..];
            let udp = UdpHeader::parse(datagram, datagram.len()).expect("a valid header");
            assert_eq!(usize::from(udp.len), datagram.len());
            let pseudo = checksum::pseudo_header(ip.src, ip.dst, protocol::UDP, udp.len.into());
            match checksums {
                Checksums::Owed => assert_eq!(udp.checksum, pseudo.fold()),
                Checksums::Completed => {
                    let mut sum = pseudo;
                    sum.add_bytes(datagram);
                    assert!(sum.is_valid() && piece.meta().tx_checksum == TxChecksum::Done);
                }
            }
            assert_eq!(piece.meta().gso, Gso::default());
            joined.extend_from_slice(&datagram[UDP_HEADER_LEN..]);
            index += 1;
            cx.pool.free(piece);
        }
        assert_eq!(usize::from(index), len.div_ceil(size.into()));
        assert_eq!(joined, payload);
    }

    #[test]
    fn datagrams_of_a_superframe_are_valid_and_hold_its_bytes() {
        for checksums in [Checksums::Owed, Checksums::Completed] {
            for (len, size) in [(2500, 1000), (3000, 1000), (129, 64), (100, 1)] {
                check::<true>(len, size, checksums);
                check::<false>(len, size, checksums);
            }
        }
    }
}
