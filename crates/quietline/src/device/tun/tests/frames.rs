//! Builders and parsers of frames, with checksums computed in the simplest way.

use std::net::Ipv4Addr;

pub(super) const IPPROTO_TCP: u8 = 6;
pub(super) const IPPROTO_UDP: u8 = 17;

pub(super) const TCP_SYN: u8 = 0x02;
pub(super) const TCP_PSH: u8 = 0x08;
pub(super) const TCP_ACK: u8 = 0x10;

/// Returns the folded ones-complement sum of 16-bit words.
pub(super) fn sum(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    u16::try_from(total).expect("folded")
}

pub(super) fn pseudo_header(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: usize) -> Vec<u8> {
    let len = u16::try_from(len).expect("an IPv4 packet");
    let mut bytes = Vec::new();
    bytes.extend(src.octets());
    bytes.extend(dst.octets());
    bytes.extend([0, protocol]);
    bytes.extend(len.to_be_bytes());
    bytes
}

pub(super) fn ethernet(dst: [u8; 6], src: [u8; 6], ethertype: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(dst);
    bytes.extend(src);
    bytes.extend(ethertype.to_be_bytes());
    bytes
}

/// Returns the answer to an ARP request.
pub(super) fn arp_reply(request: &[u8], mac: [u8; 6]) -> Vec<u8> {
    let sender: [u8; 6] = request[22..28].try_into().expect("sender hardware address");
    let mut bytes = ethernet(sender, mac, 0x0806);
    bytes.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    bytes.extend(mac);
    bytes.extend(&request[38..42]);
    bytes.extend(&request[22..32]);
    bytes
}

/// Returns an IPv4 packet around `transport`.
pub(super) fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, transport: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + transport.len()).expect("an IPv4 packet");
    let mut bytes = vec![0x45, 0];
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    bytes.extend(src.octets());
    bytes.extend(dst.octets());
    let checksum = !sum(&bytes);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(transport);
    bytes
}

/// Returns a UDP datagram whose checksum field holds the sum of the pseudo header only.
pub(super) fn udp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + data.len()).expect("a datagram");
    let partial = sum(&pseudo_header(src.0, dst.0, IPPROTO_UDP, 8 + data.len()));
    let mut bytes = Vec::new();
    for field in [src.1, dst.1, len, partial] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

/// Fields of a TCP segment.
pub(super) struct Segment<'a> {
    pub(super) src: (Ipv4Addr, u16),
    pub(super) dst: (Ipv4Addr, u16),
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) mss: Option<u16>,
    pub(super) data: &'a [u8],
}

impl Segment<'_> {
    /// Returns the segment with the sum of the pseudo header only in its checksum field.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let header_len: u8 = if self.mss.is_some() { 24 } else { 20 };
        let mut bytes = Vec::new();
        bytes.extend(self.src.1.to_be_bytes());
        bytes.extend(self.dst.1.to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(header_len / 4) << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        if let Some(mss) = self.mss {
            bytes.extend([2, 4]);
            bytes.extend(mss.to_be_bytes());
        }
        bytes.extend(self.data);
        let partial = sum(&pseudo_header(self.src.0, self.dst.0, IPPROTO_TCP, bytes.len()));
        bytes[16..18].copy_from_slice(&partial.to_be_bytes());
        bytes
    }
}

/// Returns whether the transport checksum of an IPv4 packet is correct.
pub(super) fn checksum_is_good(ip: &[u8]) -> bool {
    let address =
        |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).expect("an IPv4 header"));
    let transport = &ip[20..];
    let mut bytes = pseudo_header(address(12), address(16), ip[9], transport.len());
    bytes.extend(transport);
    sum(&ip[..20]) == 0xffff && sum(&bytes) == 0xffff
}
