//! Operations of the network on the bytes of a frame: reads the destination, cuts superframes,
//! marks, forges.
//!
//! Checksums are computed by `frame`, whose implementation is independent, so that the stack's own
//! code does not verify itself.

use pkt::{Gso, GsoKind, Packet, TxChecksum};
use stack::header::{
    ip::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, protocol},
    udp::UDP_HEADER_LEN,
};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frame;

/// Offsets in the IPv4 header.
const TOS: usize = 1;
const TOTAL_LEN: usize = 2;
const ID: usize = 4;
const FLAGS_OFFSET: usize = 6;
const PROTOCOL: usize = 9;
const SRC: usize = 12;
const DST: usize = 16;

/// Offsets in the IPv6 header.
const PAYLOAD_LEN: usize = 4;
const NEXT_HEADER: usize = 6;
const SRC_V6: usize = 8;
const DST_V6: usize = 24;

/// Offsets in the TCP header.
const SEQ: usize = 4;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Returns the bytes of a packet that a host has sent, with the checksum that its device had to
/// fill in.
pub(super) fn completed(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if matches!(packet.meta().tx_checksum, TxChecksum::Partial { .. }) {
        sum(&mut bytes);
    }
    bytes
}

/// Returns the port of the host that the packet is addressed to.
pub(super) fn destination(packet: &[u8]) -> Option<usize> {
    if is_v6(packet) {
        let (network, last) = packet.get(DST_V6..DST_V6 + 16)?.split_at(15);
        let is_ours = network.starts_with(&[0xfd]) && network[1..].iter().all(|byte| *byte == 0);
        return usize::from(last[0]).checked_sub(1).filter(|_| is_ours);
    }
    match packet.get(DST..DST + 4)? {
        [10, 0, 0, last] => usize::from(*last).checked_sub(1),
        _ => None,
    }
}

/// Returns the size of the largest IP packet that this frame stands for.
pub(super) fn packet_bytes(packet: &[u8], gso: Gso) -> usize {
    match (gso.kind, headers(packet)) {
        (GsoKind::None, _) | (_, None) => packet.len(),
        (_, Some((_, payload))) => packet.len().min(payload + usize::from(gso.size)),
    }
}

/// Returns the offsets of the TCP header and the payload.
fn headers(packet: &[u8]) -> Option<(usize, usize)> {
    let (protocol, transport) = if is_v6(packet) {
        (*packet.get(NEXT_HEADER)?, IPV6_HEADER_LEN)
    } else {
        (*packet.get(PROTOCOL)?, usize::from(packet[0] & 0x0f) * 4)
    };
    let payload = transport + usize::from(packet.get(transport + DATA_OFFSET)? >> 4) * 4;
    let is_segment = protocol == protocol::TCP && transport >= IPV4_HEADER_LEN;
    (is_segment && payload <= packet.len()).then_some((transport, payload))
}

pub(super) fn is_v6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
}

/// Cuts a superframe into the segments that `gso` describes, as a network card does.
pub(crate) fn segments(packet: &[u8], gso: Gso) -> Vec<Vec<u8>> {
    let size = usize::from(gso.size);
    let Some((transport, payload)) = headers(packet) else { return vec![packet.to_vec()] };
    let (headers, data) = packet.split_at(payload);
    let count = data.chunks(size).count();
    let cut = data.chunks(size).enumerate().map(|(index, piece)| {
        let mut bytes = headers.to_vec();
        bytes.extend_from_slice(piece);
        let length = |bytes: usize| u16::try_from(bytes).expect("a segment").to_be_bytes();
        let at = u32::try_from(index * size).expect("inside a superframe");
        if is_v6(packet) {
            let length = length(bytes.len() - IPV6_HEADER_LEN);
            bytes[PAYLOAD_LEN..PAYLOAD_LEN + 2].copy_from_slice(&length);
        } else {
            let length = length(bytes.len());
            bytes[TOTAL_LEN..TOTAL_LEN + 2].copy_from_slice(&length);
            if !gso.fixed_id {
                add(&mut bytes[ID..ID + 2], u32::try_from(index).expect("few segments"));
            }
        }
        add(&mut bytes[transport + SEQ..transport + SEQ + 4], at);
        if index + 1 < count {
            bytes[transport + FLAGS] &= !FIN_PSH;
        }
        if index > 0 {
            bytes[transport + FLAGS] &= !CWR;
        }
        if !is_v6(packet) {
            frame::fix_ipv4_checksum(&mut bytes);
        }
        sum(&mut bytes);
        bytes
    });
    cut.collect()
}

/// Cuts an IPv4 packet into fragments of at most `mtu` bytes, as a router does. `None` if the
/// packet has DF or options, or is not IPv4.
pub(super) fn fragments(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let (header, data) = packet.split_at_checked(IPV4_HEADER_LEN)?;
    let field = u16::from_be_bytes([header[FLAGS_OFFSET], header[FLAGS_OFFSET + 1]]);
    if header[0] != 0x45 || field & 0x4000 != 0 {
        return None;
    }
    let size = (mtu - IPV4_HEADER_LEN) & !7;
    let count = data.len().div_ceil(size);
    let cut = data.chunks(size).enumerate().map(|(index, part)| {
        let mut bytes = [header, part].concat();
        let length = u16::try_from(bytes.len()).expect("shorter than the packet");
        bytes[TOTAL_LEN..TOTAL_LEN + 2].copy_from_slice(&length.to_be_bytes());
        let units = u16::try_from(index * size / 8).expect("inside the packet");
        let more = if index + 1 < count { 0x2000 } else { 0 };
        let field = (field + units) | more;
        bytes[FLAGS_OFFSET..FLAGS_OFFSET + 2].copy_from_slice(&field.to_be_bytes());
        frame::fix_ipv4_checksum(&mut bytes);
        bytes
    });
    Some(cut.collect())
}

/// Adds `n` to a number of two or four bytes, modulo its size.
fn add(field: &mut [u8], n: u32) {
    let mut carry = n;
    for byte in field.iter_mut().rev() {
        let sum = u32::from(*byte) + (carry & 0xff);
        *byte = (sum & 0xff) as u8;
        carry = (carry >> 8) + (sum >> 8);
    }
}

/// Sets Congestion Experienced in an ECN-capable packet (RFC 3168 §5); returns false if it is not
/// capable.
pub(super) fn mark_congestion(packet: &mut [u8]) -> bool {
    if is_v6(packet) {
        // The lower two bits of Traffic Class are in the upper half of byte 1.
        let is_capable = packet.len() >= IPV6_HEADER_LEN && packet[1] & 0x30 != 0;
        if is_capable {
            packet[1] |= 0x30;
        }
        return is_capable;
    }
    let is_capable = packet.len() >= IPV4_HEADER_LEN && packet[TOS] & 3 != 0;
    if is_capable {
        packet[TOS] |= 3;
        frame::fix_ipv4_checksum(packet);
    }
    is_capable
}

/// Changes the last byte of a payload and corrects the checksum; returns false if there is no
/// payload.
pub(super) fn forge(packet: &mut [u8]) -> bool {
    let payload = match headers(packet) {
        Some((_, payload)) => Some(payload),
        None => datagram(packet).map(|transport| transport + UDP_HEADER_LEN),
    };
    if payload.is_none_or(|payload| payload >= packet.len()) {
        return false;
    }
    if let Some(last) = packet.last_mut() {
        *last ^= 1;
    }
    sum(packet);
    true
}

/// Writes the correct checksum of TCP or UDP.
fn sum(packet: &mut [u8]) {
    let (src, dst) = addresses(packet);
    if let Some((transport, _)) = headers(packet) {
        frame::fix_tcp_checksum(src, dst, &mut packet[transport..]);
    } else if let Some(transport) = datagram(packet) {
        frame::fix_udp_checksum(src, dst, &mut packet[transport..]);
    }
}

/// Returns the offset of the UDP header of a packet that is no fragment.
fn datagram(packet: &[u8]) -> Option<usize> {
    if is_v6(packet) {
        return (*packet.get(NEXT_HEADER)? == protocol::UDP).then_some(IPV6_HEADER_LEN);
    }
    let is_fragment = packet.get(FLAGS_OFFSET)? & 0x3f != 0 || *packet.get(FLAGS_OFFSET + 1)? != 0;
    let is_udp = *packet.get(PROTOCOL)? == protocol::UDP && !is_fragment;
    is_udp.then(|| usize::from(packet[0] & 0x0f) * 4)
}

/// Returns source and destination of a packet with a complete header.
fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    fn at<const N: usize>(packet: &[u8], offset: usize) -> [u8; N] {
        packet[offset..offset + N].try_into().expect("so many bytes")
    }
    if is_v6(packet) {
        let address = |offset| Ipv6Addr::from(at::<16>(packet, offset)).into();
        (address(SRC_V6), address(DST_V6))
    } else {
        let address = |offset| Ipv4Addr::from(at::<4>(packet, offset)).into();
        (address(SRC), address(DST))
    }
}

#[cfg(test)]
mod tests {
    use stack::header::ip::protocol;
    use tcp::{Flags, SegmentHeader, SeqNum};

    use super::*;
    use crate::frame::{Ipv4, Seen, judge_ipv4};

    fn superframe(payload: &[u8]) -> Vec<u8> {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let flags = Flags::ACK | Flags::PSH | Flags::FIN;
        let header = SegmentHeader { flags, seq: SeqNum(u32::MAX), ..SegmentHeader::default() };
        let segment = frame::tcp(src, dst, &header, payload);
        Ipv4::new(src, dst, protocol::TCP).with(&segment)
    }

    #[test]
    fn segments_of_a_superframe_are_valid_and_hold_its_bytes() {
        let payload: Vec<u8> = (0..=255).cycle().take(2500).collect();
        let gso = Gso { kind: GsoKind::TcpV4, size: 1000, segs: 3, ..Gso::default() };
        let cut = segments(&superframe(&payload), gso);
        let mut joined = Vec::new();
        for (index, packet) in cut.iter().enumerate() {
            let Ok(Seen::Tcp(_, header, bytes)) = judge_ipv4(packet, 1500) else {
                panic!("segment {index} is invalid");
            };
            assert_eq!(header.seq, SeqNum(u32::MAX) + u32::try_from(joined.len()).unwrap());
            assert_eq!(header.has(Flags::FIN), index == 2);
            joined.extend_from_slice(&bytes);
        }
        assert_eq!(joined, payload);
    }

    #[test]
    fn marked_and_forged_packets_have_correct_checksums() {
        let mut packet = superframe(b"data");
        assert!(!mark_congestion(&mut packet), "not capable");
        packet[TOS] |= 2;
        frame::fix_ipv4_checksum(&mut packet);
        assert!(mark_congestion(&mut packet) && packet[TOS] & 3 == 3);
        assert!(judge_ipv4(&packet, 1500).is_ok());
        assert!(forge(&mut packet));
        let seen = judge_ipv4(&packet, 1500).expect("a valid packet");
        assert_eq!(seen.segment().map(|(_, payload)| payload), Some(&b"dat`"[..]));
    }
}
