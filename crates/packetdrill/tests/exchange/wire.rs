//! Segments of the peer as IP packets, and back.

use std::net::Ipv4Addr;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// The peer, as packetdrill's default.
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The peer's port.
    pub(crate) port: u16,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// A multiple of four bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Default for Segment {
    fn default() -> Self {
        Self { port: 5000, flags: 0, seq: 0, ack: 0, options: Vec::new(), payload: Vec::new() }
    }
}

impl Segment {
    /// The packet that carries the segment from the peer to our `port`.
    pub(crate) fn to_packet(&self, port: u16) -> Vec<u8> {
        let header = u8::try_from(20 + self.options.len()).unwrap();
        let mut tcp = Vec::new();
        tcp.extend(self.port.to_be_bytes());
        tcp.extend(port.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([header << 2, self.flags]);
        tcp.extend(60_000u16.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let length = u16::try_from(tcp.len()).unwrap();
        let mut pseudo = [PEER.octets(), LOCAL.octets()].concat();
        pseudo.extend([0, 6]);
        pseudo.extend(length.to_be_bytes());
        pseudo.extend(&tcp);
        let sum = checksum(&pseudo);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());

        let mut ip = vec![0x45, 0];
        ip.extend((20 + length).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(PEER.octets());
        ip.extend(LOCAL.octets());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend(tcp);
        ip
    }

    /// The segment in a packet of the stack, whose checksums must be right.
    pub(crate) fn from_packet(packet: &[u8]) -> Self {
        let (ip, tcp) = packet.split_at(20);
        assert_eq!((ip[0], ip[9], checksum(ip)), (0x45, 6, 0), "an IPv4 header of TCP");
        assert_eq!((&ip[12..16], &ip[16..20]), (&LOCAL.octets()[..], &PEER.octets()[..]));
        let mut pseudo = ip[12..20].to_vec();
        pseudo.extend([0, 6]);
        pseudo.extend(u16::try_from(tcp.len()).unwrap().to_be_bytes());
        pseudo.extend(tcp);
        assert_eq!(checksum(&pseudo), 0, "TCP's checksum");
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let header = usize::from(tcp[12] >> 4) * 4;
        Self {
            port: u16::from_be_bytes([tcp[2], tcp[3]]),
            flags: tcp[13],
            seq: number(4),
            ack: number(8),
            options: tcp[20..header].to_vec(),
            payload: tcp[header..].to_vec(),
        }
    }
}

/// RFC 1071: zero over what holds its own checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
