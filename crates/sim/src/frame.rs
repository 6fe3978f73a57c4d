//! Frames as bytes: built for delivery to a host, and checked after a host has sent them.
//!
//! The checksum here is a plain RFC 1071 implementation, so that the stack's own code does not
//! verify itself.
//!
//! Not here: extension headers, the two ends (`rig`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pkt::EtherType;
use stack::header::{
    arp::{ARP_LEN, ArpPacket, ETHER_TYPE_ARP},
    ethernet::{EthernetHeader, HEADER_LEN, MacAddr},
    icmp::IcmpMessage,
    ip::{self, Fragment, IpHeader, protocol},
    ndp::{self, NdpMessage},
    udp::{UDP_HEADER_LEN, UdpHeader},
};
use tcp::{Flags, SegmentHeader, wire::header::HEADER_BYTES_MAX};

/// An IPv4 packet to be built; `Default` is a plain TCP packet without options.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Fragmentation fields.
    pub fragment: Fragment,
    /// Options, a multiple of four bytes, at most forty.
    pub options: Vec<u8>,
}

impl Ipv4 {
    /// A plain packet.
    #[must_use]
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8) -> Self {
        let options = Vec::new();
        Self { src, dst, protocol, ttl: 64, fragment: Fragment::DONT, options }
    }

    /// Returns the packet with this payload.
    ///
    /// # Panics
    /// When it would be longer than 65,535 bytes.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let header_len = ip::IPV4_HEADER_LEN + self.options.len();
        let fixed = IpHeader {
            src: IpAddr::V4(self.src),
            dst: IpAddr::V4(self.dst),
            protocol: self.protocol,
            hop_limit: self.ttl,
            traffic_class: 0,
            flow_label: 0,
            id: 1,
            fragment: self.fragment,
            header_len: 0,
            payload_len: 0,
        };
        let mut bytes = vec![0; ip::IPV4_HEADER_LEN];
        fixed.emit::<true>(&mut bytes);
        bytes.extend_from_slice(&self.options);
        bytes.extend_from_slice(payload);
        bytes[0] = 0x40 | u8::try_from(header_len / 4).expect("at most 15");
        let total_len = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
        bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
        fix_ipv4_checksum(&mut bytes);
        bytes
    }
}

/// Builds an IPv6 packet with a Fragment header (RFC 8200 §4.5). `next` is the number of the first
/// header in `part`; `offset` is in bytes.
#[must_use]
pub fn ipv6_fragment(
    src: Ipv6Addr,
    dst: Ipv6Addr,
    next: u8,
    (id, offset, more): (u32, u16, bool),
    part: &[u8],
) -> Vec<u8> {
    let field = (offset | u16::from(more)).to_be_bytes();
    let header = [&[next, 0][..], &field, &id.to_be_bytes()].concat();
    ipv6(src, dst, protocol::FRAGMENT, &[&header[..], part].concat())
}

/// Builds an IPv6 packet without extension headers, or with those that `payload` begins with.
///
/// # Panics
/// When the payload would be longer than 65,535 bytes.
#[must_use]
pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0x60, 0, 0, 0, 0, 0, next_header, 64];
    let payload_len = u16::try_from(payload.len()).expect("at most 65,535 bytes");
    header[4..6].copy_from_slice(&payload_len.to_be_bytes());
    [&header[..], &src.octets(), &dst.octets(), payload].concat()
}

/// Corrects the header checksum of an IPv4 packet, if the header is complete.
pub fn fix_ipv4_checksum(packet: &mut [u8]) {
    let header_len = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    if header_len < ip::IPV4_HEADER_LEN {
        return;
    }
    let Some(header) = packet.get_mut(..header_len) else { return };
    header[10..12].fill(0);
    let sum = checksum(&[header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Puts an IP packet into an Ethernet frame.
#[must_use]
pub fn ethernet(dst: MacAddr, src: MacAddr, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    EthernetHeader::new(dst, src, ether_type).emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// Builds a TCP segment with its checksum, for an [`Ipv4`] or [`ipv6`] packet with the same
/// addresses.
#[must_use]
pub fn tcp(
    src: impl Into<IpAddr>,
    dst: impl Into<IpAddr>,
    header: &SegmentHeader,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES_MAX];
    let len = header.emit(&mut bytes);
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    fix_tcp_checksum(src, dst, &mut bytes);
    bytes
}

/// Corrects the checksum of a TCP segment, if the header is complete.
pub fn fix_tcp_checksum(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, segment: &mut [u8]) {
    if segment.len() < tcp::wire::header::HEADER_BYTES_MIN {
        return;
    }
    tcp::wire::header::write_checksum(segment, 0);
    let sum = tcp_checksum(src.into(), dst.into(), segment);
    tcp::wire::header::write_checksum(segment, sum);
}

/// Builds a UDP datagram with its checksum, for an [`Ipv4`] or [`ipv6`] packet with the same
/// addresses.
///
/// # Panics
/// When it would be longer than 65,535 bytes.
#[must_use]
pub fn udp(
    src: impl Into<IpAddr>,
    dst: impl Into<IpAddr>,
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let len = u16::try_from(UDP_HEADER_LEN + payload.len()).expect("at most 65,535 bytes");
    let mut bytes = vec![0; UDP_HEADER_LEN];
    UdpHeader { src_port: ports.0, dst_port: ports.1, len, checksum: 0 }.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    fix_udp_checksum(src, dst, &mut bytes);
    bytes
}

/// Corrects the checksum of a UDP datagram, if the header is complete.
pub fn fix_udp_checksum(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, datagram: &mut [u8]) {
    if datagram.len() < UDP_HEADER_LEN {
        return;
    }
    datagram[6..8].fill(0);
    // RFC 768: a sum of zero is sent as all ones.
    let sum = match pseudo_checksum(src.into(), dst.into(), protocol::UDP, datagram) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}

/// Builds an ICMP message with its checksum.
#[must_use]
pub fn icmp(message: &IcmpMessage, payload: &[u8]) -> Vec<u8> {
    let mut bytes = message.header_bytes::<true>().to_vec();
    bytes.extend_from_slice(payload);
    let sum = checksum(&[&bytes]);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Builds an ICMPv6 message with its checksum, which covers the addresses of its packet.
#[must_use]
pub fn icmpv6(src: Ipv6Addr, dst: Ipv6Addr, message: &IcmpMessage, payload: &[u8]) -> Vec<u8> {
    with_icmpv6_checksum(src, dst, [&message.header_bytes::<false>()[..], payload].concat())
}

/// Writes the checksum of an ICMPv6 message between these addresses.
///
/// # Panics
/// When the message is shorter than its checksum.
#[must_use]
pub fn with_icmpv6_checksum(src: Ipv6Addr, dst: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    message[2..4].fill(0);
    let sum = pseudo_checksum(src.into(), dst.into(), protocol::ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// RFC 1071 checksum over the concatenation of `parts`, each but the last of even length. Data that
/// contains its correct checksum yields 0.
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        // The folded sum of 32-bit words equals the folded sum of their halves.
        let (words, rest) = part.as_chunks::<4>();
        sum += words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum::<u64>();
        for pair in rest.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !u16::try_from(sum).expect("folded")
}

fn tcp_checksum(src: IpAddr, dst: IpAddr, segment: &[u8]) -> u16 {
    pseudo_checksum(src, dst, protocol::TCP, segment)
}

/// RFC 9293 §3.1: the pseudo-headers of both versions have the same sum.
fn pseudo_checksum(src: IpAddr, dst: IpAddr, protocol: u8, message: &[u8]) -> u16 {
    // Only a superframe needs more than 16 bits.
    let len = u32::try_from(message.len()).expect("in an IP packet");
    let pseudo = [&[0, protocol][..], &len.to_be_bytes()].concat();
    checksum(&[&octets(src), &octets(dst), &pseudo, message])
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A frame that a host has sent, checked byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// An ARP packet and its destination MAC address.
    Arp(MacAddr, ArpPacket),
    /// A TCP segment.
    Tcp(IpHeader, SegmentHeader, Vec<u8>),
    /// An ICMP message with the bytes behind its header.
    Icmp(IpHeader, IcmpMessage, Vec<u8>),
    /// A fragment of a datagram, never of a segment.
    Fragment(IpHeader, Vec<u8>),
    /// A UDP datagram.
    Udp(IpHeader, UdpHeader, Vec<u8>),
    /// A message of IGMP, with its bytes.
    Igmp(IpHeader, Vec<u8>),
    /// A message of MLD, with its bytes.
    Mld(IpHeader, Vec<u8>),
    /// A neighbor discovery message.
    Ndp(IpHeader, NdpMessage),
}

impl Seen {
    /// Returns the segment, if the frame is one.
    #[must_use]
    pub fn segment(&self) -> Option<(&SegmentHeader, &[u8])> {
        match self {
            Self::Tcp(_, header, payload) => Some((header, payload)),
            _ => None,
        }
    }
}

/// Parses an Ethernet frame sent by the station `own` and checks it.
///
/// # Errors
/// The fault found in the frame.
pub fn judge_ethernet(bytes: &[u8], own: MacAddr, mtu: u32) -> Result<Seen, String> {
    let header = EthernetHeader::parse(bytes).map_err(|reason| reason.to_string())?;
    if header.src != own {
        return Err(format!("source address {:?}", header.src));
    }
    let payload = &bytes[HEADER_LEN..];
    match header.ether_type() {
        EtherType::IPV4 => {
            let seen = judge_ipv4(payload, mtu)?;
            check_link_address(header.dst, payload)?;
            Ok(seen)
        }
        EtherType::IPV6 => {
            let seen = judge_ipv6(payload, mtu)?;
            let (Seen::Tcp(ip, ..)
            | Seen::Udp(ip, ..)
            | Seen::Icmp(ip, ..)
            | Seen::Mld(ip, _)
            | Seen::Ndp(ip, _)
            | Seen::Fragment(ip, _)) = &seen
            else {
                return Err(String::from("no IPv6"));
            };
            // RFC 2464 §7: a group has its own link address.
            let group = match ip.dst {
                IpAddr::V6(dst) if dst.is_multicast() => Some(ndp::multicast_mac(dst)),
                _ => None,
            };
            let is_right =
                group.map_or_else(|| header.dst.is_unicast(), |group| group == header.dst);
            if is_right { Ok(seen) } else { Err(format!("{ip:?} to {:?}", header.dst)) }
        }
        ETHER_TYPE_ARP if payload.len() == ARP_LEN => {
            let arp = ArpPacket::parse(payload).map_err(|reason| reason.to_string())?;
            Ok(Seen::Arp(header.dst, arp))
        }
        other => Err(format!("type {other:?} to {:?}, {} bytes", header.dst, bytes.len())),
    }
}

/// Checks that a packet for a group goes to the link address of the group, and any other packet to
/// a station (RFC 1112 §6.4).
fn check_link_address(link: MacAddr, packet: &[u8]) -> Result<(), String> {
    let ip = ip::parse::<true>(packet, packet.len()).map_err(|reason| reason.to_string())?;
    let IpAddr::V4(dst) = ip.dst else { return Ok(()) };
    let [_, b, c, d] = dst.octets();
    let fits = if dst.is_multicast() {
        link.0 == [0x01, 0x00, 0x5e, b & 0x7f, c, d]
    } else {
        link.is_unicast() || link == MacAddr::BROADCAST && d == 255
    };
    if fits { Ok(()) } else { Err(format!("{dst} sent to {link:?}")) }
}

/// Parses an IPv4 packet and checks it.
///
/// # Errors
/// The fault found in the packet.
pub fn judge_ipv4(packet: &[u8], mtu: u32) -> Result<Seen, String> {
    let ip = ip::parse::<true>(packet, packet.len()).map_err(|reason| reason.to_string())?;
    if ip.total_len() != packet.len() || packet.len() > mtu as usize {
        return Err(format!("{} bytes, MTU {mtu}: {ip:?}", packet.len()));
    }
    let (header, payload) = packet.split_at(usize::from(ip.header_len));
    if checksum(&[header]) != 0 {
        return Err(format!("IP checksum: {ip:?}"));
    }
    match ip.protocol {
        protocol::ICMP | protocol::UDP if ip.fragment.is_fragment() && !ip.fragment.dont => {
            Ok(Seen::Fragment(ip, payload.to_vec()))
        }
        protocol::TCP => judge_tcp(ip, payload),
        protocol::ICMP => judge_icmp(ip, payload),
        protocol::UDP => judge_udp(ip, payload),
        protocol::IGMP => judge_igmp(ip, payload),
        other => Err(format!("protocol {other}")),
    }
}

/// Parses an IPv6 packet without extension headers and checks it.
///
/// # Errors
/// The fault found in the packet.
pub fn judge_ipv6(packet: &[u8], mtu: u32) -> Result<Seen, String> {
    let ip = ip::parse::<false>(packet, packet.len()).map_err(|reason| reason.to_string())?;
    if ip.total_len() != packet.len() || packet.len() > mtu as usize {
        return Err(format!("{} bytes, MTU {mtu}: {ip:?}", packet.len()));
    }
    let payload = &packet[usize::from(ip.header_len)..];
    match ip.protocol {
        protocol::TCP => judge_tcp(ip, payload),
        protocol::UDP => judge_udp(ip, payload),
        protocol::HOP_BY_HOP => judge_mld(ip, payload),
        protocol::ICMPV6 => judge_icmpv6(ip, payload),
        protocol::FRAGMENT => judge_fragment_v6(ip, payload),
        other => Err(format!("protocol {other}")),
    }
}

/// RFC 8200 §4.5: the Fragment header, and the length of a fragment that others follow.
fn judge_fragment_v6(mut ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    let Some((header, part)) = bytes.split_at_checked(8) else {
        return Err(format!("a Fragment header of {} bytes", bytes.len()));
    };
    let field = u16::from_be_bytes([header[2], header[3]]);
    let (more, offset) = (field & 1 != 0, field & !7);
    ip.fragment = Fragment { dont: false, more, offset };
    ip.protocol = header[0];
    let is_whole = !more && offset == 0;
    if header[1] != 0 || field & 6 != 0 || header[4..] == [0; 4] || is_whole {
        return Err(format!("Fragment header {header:?}"));
    }
    if part.is_empty() || (more && !part.len().is_multiple_of(8)) {
        return Err(format!("a fragment of {} bytes: {ip:?}", part.len()));
    }
    match ip.protocol {
        protocol::ICMPV6 | protocol::UDP => Ok(Seen::Fragment(ip, part.to_vec())),
        other => Err(format!("a fragment of protocol {other}")),
    }
}

fn judge_icmpv6(ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    if pseudo_checksum(ip.src, ip.dst, protocol::ICMPV6, bytes) != 0 {
        return Err(String::from("ICMPv6 checksum"));
    }
    let kind = bytes.first().copied().unwrap_or_default();
    if matches!(kind, ndp::ROUTER_SOLICITATION..=ndp::REDIRECT) {
        let message = NdpMessage::parse(bytes).map_err(|reason| reason.to_string())?;
        if ip.hop_limit != ndp::HOP_LIMIT {
            return Err(format!("hop limit {}: {message:?}", ip.hop_limit));
        }
        return Ok(Seen::Ndp(ip, message));
    }
    let message = IcmpMessage::parse::<false>(bytes).map_err(|reason| reason.to_string())?;
    Ok(Seen::Icmp(ip, message, bytes[stack::header::icmp::ICMP_HEADER_LEN..].to_vec()))
}

fn judge_mld(ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    // RFC 3810 §5: hop limit 1, a link-local or no source, and the option Router Alert.
    let from_link =
        matches!(ip.src, IpAddr::V6(src) if src.is_unicast_link_local()) || ip.src.is_unspecified();
    let message = bytes.strip_prefix(&[protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
    match message {
        Some(message)
            if from_link
                && ip.hop_limit == 1
                && matches!(message.first(), Some(131 | 132 | 143))
                && pseudo_checksum(ip.src, ip.dst, protocol::ICMPV6, message) == 0 =>
        {
            Ok(Seen::Mld(ip, message.to_vec()))
        }
        _ => Err(format!("MLD: {ip:?}, {bytes:02x?}")),
    }
}

fn judge_tcp(ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    let header = SegmentHeader::parse(bytes).map_err(|reason| reason.to_string())?;
    if tcp_checksum(ip.src, ip.dst, bytes) != 0 {
        return Err(format!("TCP checksum: {header}"));
    }
    let payload = bytes[usize::from(header.header_len)..].to_vec();
    let flags = header.flags;
    let contradicts = flags.contains(Flags::SYN) && flags.intersects(Flags::FIN | Flags::RST)
        || flags.contains(Flags::RST) && !payload.is_empty()
        || !flags.intersects(Flags::SYN | Flags::ACK | Flags::RST)
        || flags.contains(Flags::URG);
    // RFC 1191 §3: DF is set, except on a path narrower than `net.ipv4.route.min_pmtu`.
    let may_be_cut = ip.src.is_ipv4() && !ip.fragment.dont && ip.total_len() > 552;
    if contradicts || may_be_cut || ip.fragment.is_fragment() {
        return Err(format!("{header}, {} bytes, {:?}", payload.len(), ip.fragment));
    }
    Ok(Seen::Tcp(ip, header, payload))
}

fn judge_udp(ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    let header = UdpHeader::parse(bytes, bytes.len()).map_err(|reason| reason.to_string())?;
    // RFC 8200 §8.1: over IPv6 a checksum is mandatory.
    let is_checked = header.checksum != 0 || ip.src.is_ipv6();
    if is_checked && pseudo_checksum(ip.src, ip.dst, protocol::UDP, bytes) != 0 {
        return Err(format!("UDP checksum: {header:?}"));
    }
    if usize::from(header.len) != bytes.len() || ip.fragment.is_fragment() {
        return Err(format!("{header:?}, {} bytes, {:?}", bytes.len(), ip.fragment));
    }
    Ok(Seen::Udp(ip, header, bytes[UDP_HEADER_LEN..].to_vec()))
}

fn judge_igmp(ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    // RFC 3376 §4: TTL 1, precedence of internetwork control, and the option Router Alert.
    if checksum(&[bytes]) != 0 || ip.hop_limit != 1 || ip.header_len != 24 {
        return Err(format!("IGMP: {ip:?}, {bytes:02x?}"));
    }
    Ok(Seen::Igmp(ip, bytes.to_vec()))
}

fn judge_icmp(ip: IpHeader, bytes: &[u8]) -> Result<Seen, String> {
    if checksum(&[bytes]) != 0 {
        return Err(String::from("ICMP checksum"));
    }
    let message = IcmpMessage::parse::<true>(bytes).map_err(|reason| reason.to_string())?;
    Ok(Seen::Icmp(ip, message, bytes[stack::header::icmp::ICMP_HEADER_LEN..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn checksum_matches_the_example_of_rfc_1071() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&[&data]), !0xddf2);
        assert_eq!(checksum(&[&data[..4], &data[4..]]), !0xddf2);
    }

    #[test]
    fn built_packets_pass_the_checks() {
        let header = SegmentHeader { flags: Flags::ACK, ..SegmentHeader::default() };
        let segment = tcp(PEER, US, &header, b"data");
        let mut packet = Ipv4::new(PEER, US, protocol::TCP).with(&segment);
        let seen = judge_ipv4(&packet, 1500).expect("a valid packet");
        assert_eq!(seen.segment().map(|(_, payload)| payload), Some(&b"data"[..]));
        for byte in 0..packet.len() {
            packet[byte] ^= 0x10;
            assert!(judge_ipv4(&packet, 1500).is_err(), "byte {byte}");
            packet[byte] ^= 0x10;
        }
    }
}
