//! Frames of the suite: IPv4 packets that carry a number, the name of their run, and a pattern.
//!
//! A kernel or a router between two devices forwards them like any packet. Therefore a receiver
//! ignores all bytes that a router changes, and all other frames.

use std::net::Ipv4Addr;

use pkt::{Gso, GsoKind, Packet, Pool, RxChecksum, Sum, TxChecksum};

use crate::device::LinkType;

/// IP protocol of numbered frames: the first of the two for experiments.
const EXPERIMENT: u8 = 253;

/// IP protocol number of TCP.
pub(super) const TCP: u8 = 6;

/// IP protocol number of UDP.
pub(super) const UDP: u8 = 17;

/// Bytes of an IPv4 header without options.
pub(super) const IP_LEN: usize = 20;

/// Bytes of a TCP header without options.
pub(super) const TCP_LEN: usize = 20;

/// Bytes of a UDP header.
pub(super) const UDP_LEN: usize = 8;

/// Marks a payload of the suite.
const MAGIC: [u8; 4] = *b"qlcf";

/// Payload bytes in front of the pattern: magic and number.
const NUMBER_LEN: usize = 8;

/// Smallest numbered frame, in bytes of IP packet.
pub(super) const FRAME_MIN: usize = IP_LEN + NUMBER_LEN;

/// Makes frames from one device to another.
#[derive(Clone, Debug)]
pub(super) struct Maker {
    link: Vec<u8>,
    from: Ipv4Addr,
    to: Ipv4Addr,
}

impl Maker {
    pub(super) fn new(
        from: Ipv4Addr,
        to: Ipv4Addr,
        from_link: LinkType,
        to_link: LinkType,
    ) -> Self {
        let link = match (from_link, to_link) {
            (LinkType::Ethernet { mac: own }, LinkType::Ethernet { mac: peer }) => {
                [&peer.0[..], &own.0, &[0x08, 0x00]].concat()
            }
            _ => Vec::new(),
        };
        Self { link, from, to }
    }

    /// Makes a frame with a number and an IP packet of `ip_len` bytes. Returns `None` without
    /// packet memory.
    pub(super) fn numbered(&self, pool: &mut Pool, number: u32, ip_len: usize) -> Option<Packet> {
        let mut packet = pool.alloc()?;
        let payload = numbered_payload(number, ip_len - IP_LEN);
        append(pool, &mut packet, &payload)?;
        self.add_headers(&mut packet, EXPERIMENT);
        Some(packet)
    }

    /// Makes a UDP datagram whose checksum field contains only the sum of the pseudo-header.
    pub(super) fn partial(&self, pool: &mut Pool, number: u32, ip_len: usize) -> Option<Packet> {
        let mut packet = pool.alloc()?;
        let payload = numbered_payload(number, ip_len - IP_LEN - UDP_LEN);
        append(pool, &mut packet, &payload)?;
        let len = u16::try_from(packet.len() + UDP_LEN).ok()?;
        let sum = self.pseudo_sum(UDP, u32::from(len));
        let header = packet.push(UDP_LEN);
        header[..4].copy_from_slice(&[0xc0, 0, 0xc0, 1]);
        header[4..6].copy_from_slice(&len.to_be_bytes());
        header[6..8].copy_from_slice(&sum.to_be_bytes());
        packet.set_transport_header();
        self.add_headers(&mut packet, UDP);
        packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 6 };
        Some(packet)
    }

    /// Makes a TCP superframe of `payload` in segments of `size` bytes, with a checksum as in
    /// [`partial`](Self::partial).
    pub(super) fn superframe(&self, pool: &mut Pool, payload: &[u8], size: u16) -> Option<Packet> {
        let mut packet = pool.alloc()?;
        append(pool, &mut packet, payload)?;
        let len = u32::try_from(packet.len() + TCP_LEN).ok()?;
        let sum = self.pseudo_sum(TCP, len);
        let header = packet.push(TCP_LEN);
        header.fill(0);
        header[..4].copy_from_slice(&[0xc0, 0, 0xc0, 1]);
        // Header length of five words, and the flag ACK.
        header[12..14].copy_from_slice(&[0x50, 0x10]);
        header[14..16].copy_from_slice(&[0xff, 0xff]);
        header[16..18].copy_from_slice(&sum.to_be_bytes());
        packet.set_transport_header();
        self.add_headers(&mut packet, TCP);
        let segs = u16::try_from(payload.len().div_ceil(usize::from(size))).ok()?;
        packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 16 };
        packet.meta_mut().gso =
            Gso { kind: GsoKind::TcpV4, ecn: false, fixed_id: false, size, segs };
        Some(packet)
    }

    fn add_headers(&self, packet: &mut Packet, protocol: u8) {
        let len = u16::try_from(packet.len() + IP_LEN).unwrap_or(0);
        let header = packet.push(IP_LEN);
        header.fill(0);
        header[0] = 0x45;
        header[2..4].copy_from_slice(&len.to_be_bytes());
        (header[8], header[9]) = (64, protocol);
        header[12..16].copy_from_slice(&self.from.octets());
        header[16..20].copy_from_slice(&self.to.octets());
        let sum = !Sum::of(header).fold();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.set_network_header();
        packet.meta_mut().protocol = pkt::EtherType(0x0800);
        packet.push(self.link.len()).copy_from_slice(&self.link);
    }

    /// Returns the sum of the pseudo-header (RFC 9293 §3.1), folded and not complemented.
    fn pseudo_sum(&self, protocol: u8, len: u32) -> u16 {
        let bytes = [&self.from.octets()[..], &self.to.octets(), &[0, protocol]].concat();
        let len = len.to_be_bytes();
        Sum::of(&[&bytes[..], &len].concat()).fold()
    }
}

/// Appends all bytes. Returns `None` if packet memory is exhausted.
fn append(pool: &mut Pool, packet: &mut Packet, bytes: &[u8]) -> Option<()> {
    (packet.append(pool, bytes) == bytes.len()).then_some(())
}

fn numbered_payload(number: u32, len: usize) -> Vec<u8> {
    let mut payload = [&MAGIC[..], &number.to_be_bytes()].concat();
    payload.extend((NUMBER_LEN..len).map(|at| pattern(number, at)));
    payload
}

/// Byte of the pattern of frame `number` at offset `at`.
pub(super) fn pattern(number: u32, at: usize) -> u8 {
    (at as u64 * 31 + u64::from(number)).to_le_bytes()[0]
}

/// Returns the IP packet of a frame, if it is an IPv4 packet to `to`. Padding after it is cut off.
/// In a superframe longer than the length field can express, the field is zero.
pub(super) fn ip_packet(frame: &[u8], link_len: usize, to: Ipv4Addr) -> Option<&[u8]> {
    let ip = frame.get(link_len..)?;
    if ip.len() < IP_LEN || ip[0] != 0x45 || ip[16..20] != to.octets() {
        return None;
    }
    match usize::from(u16::from_be_bytes([ip[2], ip[3]])) {
        0 => Some(ip),
        len => ip.get(..len),
    }
}

/// Returns number and length of an IP packet of [`Maker::numbered`] or [`Maker::partial`]: `Err` if
/// its pattern is damaged, `None` for another packet.
pub(super) fn number_of(ip: &[u8]) -> Option<Result<(u32, usize), String>> {
    let header = match ip[9] {
        EXPERIMENT => IP_LEN,
        UDP => IP_LEN + UDP_LEN,
        _ => return None,
    };
    let payload = ip.get(header..)?;
    if payload.get(..4)? != MAGIC {
        return None;
    }
    let number = u32::from_be_bytes(payload.get(4..8)?.try_into().ok()?);
    let differs = |at: &usize| payload[*at] != pattern(number, *at);
    if let Some(at) = (NUMBER_LEN..payload.len()).find(differs) {
        return Some(Err(format!("frame {number} arrived with another byte at offset {at}")));
    }
    Some(Ok((number, ip.len())))
}

/// Returns the error in the transport checksum of an IP packet that arrived with the checksum state
/// `known`.
pub(super) fn checksum_fault(ip: &[u8], known: RxChecksum, offset: usize) -> Option<String> {
    let transport = &ip[IP_LEN..];
    let len = u32::try_from(transport.len()).ok()?.to_be_bytes();
    let pseudo = Sum::of(&[&ip[12..20], &[0, ip[9]], &len[..]].concat()).fold();
    match known {
        RxChecksum::Unnecessary | RxChecksum::Complete(_) => None,
        RxChecksum::Partial { .. } => {
            let field = u16::from_be_bytes([transport[offset], transport[offset + 1]]);
            (field != pseudo).then(|| {
                format!("it arrived as partial, and its field is {field:#x} instead of {pseudo:#x}")
            })
        }
        RxChecksum::None => {
            let even = [&ip[12..20], &[0, ip[9]], &len[..], transport].concat();
            let sum = Sum::of(&even).fold();
            (sum != 0xffff).then(|| format!("its checksum is bad: the sum is {sum:#x}"))
        }
    }
}
