//! Formats of headers and messages: Ethernet, ARP, IP with options and extension headers, ICMP,
//! NDP, UDP. Other modules read and write headers as the parsed values (structs and enums) of these
//! modules, except where a fast path or a short message needs only single bytes, for example in
//! receive offload and ICMP echo replies.
//!
//! Above: the receive and transmit steps, and devices that inspect frames. Below: `base`. The TCP
//! format is in `tcp::wire`.
//!
//! Not here: reactions to a header.

use pkt::{GsoKind, Packet};

pub mod arp;
pub(crate) mod ecn;
pub mod ethernet;
pub mod extension;
pub mod icmp;
pub mod ip;
pub mod ndp;
pub mod option;
pub mod repeat;
pub mod udp;

/// Removes a header that an earlier receive step has checked and made linear (contiguous at the
/// head of the packet).
pub(crate) fn strip(packet: &mut Packet, header_bytes: usize) {
    let stripped = packet.pull(header_bytes);
    debug_assert!(stripped, "a checked header is not linear");
}

/// Offset of the data offset field in the TCP header.
const DATA_OFFSET: usize = 12;

/// Returns the length of the IP and TCP headers of a packet whose IP header begins at offset
/// `network`, or of its IP and UDP headers if it is a superframe of datagrams; 0 if the fields with
/// the lengths are not linear.
pub(crate) fn header_bytes(packet: &Packet, network: usize) -> usize {
    let bytes = packet.linear();
    let Some(&first) = bytes.get(network) else { return 0 };
    let ip = if first >> 4 == 4 { usize::from(first & 0x0f) * 4 } else { ip::IPV6_HEADER_LEN };
    if packet.meta().gso.kind == GsoKind::Udp {
        return ip + udp::UDP_HEADER_LEN;
    }
    match bytes.get(network + ip + DATA_OFFSET) {
        Some(&data_offset) => ip + usize::from(data_offset >> 4) * 4,
        None => 0,
    }
}
