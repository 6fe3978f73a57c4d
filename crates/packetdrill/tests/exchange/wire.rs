//! Segments of the peer as IP packets, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// Version of IP of the packets, and family of the sockets: packetdrill's `--ip_version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Ipv4,
    Ipv6,
    /// IPv4 packets of IPv6 sockets.
    Ipv4Mapped,
}

impl Version {
    /// Returns the host and the peer, as packetdrill's runner passes them.
    fn ends(self) -> [IpAddr; 2] {
        match self {
            Self::Ipv4 | Self::Ipv4Mapped => {
                [Ipv4Addr::new(192, 168, 0, 1).into(), Ipv4Addr::new(192, 0, 2, 1).into()]
            }
            Self::Ipv6 => {
                let ip = |a, b, c| Ipv6Addr::new(0xfd3d, a, b, 0, 0, 0, 0, c).into();
                [ip(0x0a0b, 0x17d6, 1), ip(0xfa7b, 0xd17d, 1)]
            }
        }
    }

    /// Returns the bytes of the peer's address in the address structure of a socket.
    pub(crate) fn socket_peer(self) -> Vec<u8> {
        let [_, peer] = self.ends();
        match peer {
            IpAddr::V4(ip) if self == Self::Ipv4Mapped => ip.to_ipv6_mapped().octets().to_vec(),
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        }
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

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
    pub(crate) fn to_packet(&self, version: Version, port: u16) -> Vec<u8> {
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
        let [local, peer] = version.ends();
        let sum = checksum(&pseudo(peer, local, &tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());

        let mut ip = Vec::new();
        if peer.is_ipv6() {
            ip.extend([0x60, 0, 0, 0]);
            ip.extend(length.to_be_bytes());
            ip.extend([6, 64]);
        } else {
            ip.extend([0x45, 0]);
            ip.extend((20 + length).to_be_bytes());
            ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        }
        ip.extend(octets(peer));
        ip.extend(octets(local));
        if peer.is_ipv4() {
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        ip.extend(tcp);
        ip
    }

    /// The segment in a packet of the stack, whose checksums must be right.
    pub(crate) fn from_packet(version: Version, packet: &[u8]) -> Self {
        let [local, peer] = version.ends();
        let ends = [octets(local), octets(peer)].concat();
        let tcp = if local.is_ipv6() {
            let (ip, tcp) = packet.split_at(40);
            assert_eq!((ip[0] >> 4, ip[6], &ip[8..]), (6, 6, &ends[..]), "an IPv6 header of TCP");
            let length = u16::from_be_bytes([ip[4], ip[5]]);
            assert_eq!(usize::from(length), tcp.len(), "the length of the payload");
            tcp
        } else {
            let (ip, tcp) = packet.split_at(20);
            assert_eq!((ip[0], ip[9], checksum(ip)), (0x45, 6, 0), "an IPv4 header of TCP");
            assert_eq!(&ip[12..], ends);
            tcp
        };
        assert_eq!(checksum(&pseudo(local, peer, tcp)), 0, "TCP's checksum");
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

/// The pseudo-header of a segment, and the segment. The sum over the pseudo-header of IPv6 is that
/// over the fields of IPv4's: its longer fields have more zeros.
fn pseudo(src: IpAddr, dst: IpAddr, tcp: &[u8]) -> Vec<u8> {
    let mut bytes = [octets(src), octets(dst)].concat();
    bytes.extend([0, 6]);
    bytes.extend(u16::try_from(tcp.len()).unwrap().to_be_bytes());
    bytes.extend(tcp);
    bytes
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
