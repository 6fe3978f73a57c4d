//! Flow hash of a frame whose headers are not checked yet.
//!
//! Linux: `__skb_get_hash`, `skb_flow_dissect`. The hash is also the key of the connection lookup
//! (`demux`) and of the RFS socket table. Frames other than IP have no hash. A fragment, which may
//! lack ports, is hashed by its addresses only, as is a packet with IPv6 extension headers or of
//! another protocol than TCP and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pkt::{EtherType, Packet};
use tcp::FourTuple;

use crate::{
    device::LinkType,
    header::ip::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, protocol},
    socket::net::Net,
};

/// Length of both ports in bytes.
const PORTS_LEN: usize = 4;

/// Protocol number of UDP, whose header has the ports at the same offsets as that of TCP.
const UDP: u8 = 17;

/// Returns the flow hash of a frame that still has its link header.
pub(super) fn flow_hash(net: &Net, link: LinkType, packet: &mut Packet) -> Option<u32> {
    let start = link.header_bytes();
    // Every later step of the receive path needs linear headers, too.
    let wanted = (start + IPV6_HEADER_LEN + PORTS_LEN).min(packet.len());
    if !packet.require_linear(wanted) {
        return None;
    }
    let frame = packet.linear();
    let ip = frame.get(start..)?;
    let version = ip.first()? >> 4;
    if let LinkType::Ethernet { .. } = link {
        let ether_type = EtherType(u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]));
        match (ether_type, version) {
            (EtherType::IPV4, 4) | (EtherType::IPV6, 6) => {}
            _ => return None,
        }
    }
    let tuple = match version {
        4 => ipv4(ip)?,
        6 => ipv6(ip)?,
        _ => return None,
    };
    Some(net.demux().hash(&tuple))
}

fn ipv4(ip: &[u8]) -> Option<FourTuple> {
    let header: &[u8; IPV4_HEADER_LEN] = ip.first_chunk()?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let has_ports = !is_fragment && has_ports(header[9]);
    let address = |at: usize| {
        IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]))
    };
    Some(tuple(address(12), address(16), has_ports.then(|| ip.get(header_len..)).flatten()))
}

fn ipv6(ip: &[u8]) -> Option<FourTuple> {
    let header: &[u8; IPV6_HEADER_LEN] = ip.first_chunk()?;
    let address = |at: usize| {
        let bytes: [u8; 16] = header[at..at + 16].try_into().expect("the slice has 16 bytes");
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    let ports = if has_ports(header[6]) { ip.get(IPV6_HEADER_LEN..) } else { None };
    Some(tuple(address(8), address(24), ports))
}

const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | UDP)
}

/// Returns the four-tuple of a received packet: its destination is the local address.
fn tuple(src: IpAddr, dst: IpAddr, transport: Option<&[u8]>) -> FourTuple {
    let ports = transport.and_then(|bytes| bytes.first_chunk::<PORTS_LEN>()).unwrap_or(&[0; 4]);
    let [a, b, c, d] = *ports;
    FourTuple {
        local: SocketAddr::new(dst, u16::from_be_bytes([c, d])),
        remote: SocketAddr::new(src, u16::from_be_bytes([a, b])),
    }
}
