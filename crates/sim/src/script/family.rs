//! Address families of a script. A script is written for IPv4; the interpreter can play it over
//! IPv6, or over IPv4 with an IPv6 socket.
//!
//! Everything between the script and the wire speaks IPv4, and this module translates at both ends:
//! packets where they enter and leave the host, and addresses where the process calls. The MTU of
//! an IPv6 link is 20 bytes larger, so that segments have the same size and every expectation of a
//! script holds. Checksums are computed anew by `frame`; a wrong one stays wrong.
//!
//! Not here: ICMP, whose messages differ. A script with them is played over IPv4 only
//! ([`Family::plays`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use stack::header::ip::{self, IPV4_HEADER_LEN, IPV6_HEADER_LEN, protocol};

use super::packet::ip_packet;
use crate::frame;

/// Difference between the lengths of the two headers.
const LONGER: u32 = 20;

/// Addresses of the sockets and packets of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 sockets and packets.
    #[default]
    V4,
    /// IPv6 sockets and packets.
    V6,
    /// IPv6 sockets with v4-mapped addresses, and IPv4 packets.
    Mapped,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Mapped];

    /// Whether a script means the same in this family. Addresses that a script names have no
    /// translation. Over IPv6, ICMP messages, narrow MTUs, counters of IPv4, the default MSS,
    /// the table of SYN cookies and Fast Open cookies differ.
    #[must_use]
    pub fn plays(self, text: &str) -> bool {
        const NAMED: [&str; 2] = ["sin_addr", "SO_DOMAIN"];
        const V4: [&str; 9] =
            ["icmp", "[src", "--mtu", "pmtu", "Ip", "IP_MTU", "536", "syncookies", "fastopen_key"];
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match self {
            Self::V4 => true,
            Self::Mapped => !has(&NAMED),
            Self::V6 => !has(&NAMED) && !has(&V4),
        }
    }

    /// Returns the IP address of the host's device for an address of the script.
    pub(super) fn of_wire(self, ip: Ipv4Addr) -> IpAddr {
        match self {
            Self::V4 | Self::Mapped => ip.into(),
            Self::V6 => v6(ip).into(),
        }
    }

    /// Returns the address that the process uses for an address of the script.
    pub(super) fn of_process(self, end: SocketAddr) -> SocketAddr {
        let IpAddr::V4(ip) = end.ip() else { return end };
        let ip = match self {
            Self::V4 => IpAddr::V4(ip),
            _ if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED.into(),
            Self::V6 => v6(ip).into(),
            Self::Mapped => ip.to_ipv6_mapped().into(),
        };
        SocketAddr::new(ip, end.port())
    }

    /// Returns the address of the script for an address of the process.
    pub(super) fn to_script(self, end: SocketAddr) -> SocketAddr {
        let IpAddr::V6(ip) = end.ip() else { return end };
        SocketAddr::new(IpAddr::V4(v4(ip)), end.port())
    }

    /// Returns the MTU of the host's device.
    pub(super) const fn mtu(self, mtu: u32) -> u32 {
        match self {
            Self::V6 => mtu + LONGER,
            Self::V4 | Self::Mapped => mtu,
        }
    }

    /// Returns the packet of the wire for one of the script.
    pub(super) fn inbound(self, packet: Vec<u8>) -> Vec<u8> {
        if self != Self::V6 || packet.len() < IPV4_HEADER_LEN {
            return packet;
        }
        let (header, payload) = packet.split_at(IPV4_HEADER_LEN);
        let address =
            |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        let (src, dst) = (address(12), address(16));
        let mut segment = payload.to_vec();
        frame::fix_tcp_checksum(src, dst, &mut segment);
        let is_wrong = segment != payload;
        frame::fix_tcp_checksum(v6(src), v6(dst), &mut segment);
        if is_wrong {
            segment[16] ^= 0x55;
        }
        let mut bytes = frame::ipv6(v6(src), v6(dst), header[9], &segment);
        bytes[0] |= header[1] >> 4;
        bytes[1] |= header[1] << 4;
        bytes[7] = header[8];
        bytes
    }

    /// Returns the packet of the script for one that the host has sent.
    ///
    /// # Errors
    /// The reason for which no host may send the packet.
    pub(super) fn outbound(self, packet: Vec<u8>) -> Result<Vec<u8>, String> {
        if self != Self::V6 {
            return Ok(packet);
        }
        let read =
            ip::parse::<false>(&packet, packet.len()).map_err(|reason| reason.to_string())?;
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (read.src, read.dst) else {
            return Err(String::from("no IPv6 addresses"));
        };
        if read.protocol != protocol::TCP || read.total_len() != packet.len() {
            return Err(format!("{} bytes are no segment: {read:?}", packet.len()));
        }
        let payload = &packet[IPV6_HEADER_LEN..];
        let mut segment = payload.to_vec();
        frame::fix_tcp_checksum(src, dst, &mut segment);
        if segment != payload {
            return Err(String::from("TCP checksum"));
        }
        let (src, dst) = (v4(src), v4(dst));
        frame::fix_tcp_checksum(src, dst, &mut segment);
        Ok(ip_packet(src, dst, protocol::TCP, read.traffic_class, read.hop_limit, &segment))
    }
}

/// Returns the IPv6 address that stands for an address of the script.
const fn v6(ip: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = ip.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, high, low)
}

const fn v4(ip: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = ip.octets();
    Ipv4Addr::new(a, b, c, d)
}
