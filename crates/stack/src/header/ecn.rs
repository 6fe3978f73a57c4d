//! Congestion mark of a router: ECT becomes CE (RFC 3168 §5).
//!
//! Above: the queueing discipline `fq_codel`, and `device::wire`, which emulates a congested
//! router. Linux: `INET_ECN_set_ce`.
//!
//! Not here: the reaction of TCP (crate tcp), and the ECN field of sent packets
//! (`transmit::ip_output`).

use pkt::Ecn;

/// Offset of the IPv4 header checksum.
const IPV4_CHECKSUM: usize = 10;

/// Marks the IP packet at the start of `bytes` and updates its header checksum. Returns false, and
/// changes nothing, if the packet is not ECN-capable or not an IP packet.
pub(crate) fn set_ce(bytes: &mut [u8]) -> bool {
    match bytes.first().map(|first| first >> 4) {
        Some(4) if bytes.len() >= super::ip::IPV4_HEADER_LEN => set_ce_v4(bytes),
        Some(6) if bytes.len() >= super::ip::IPV6_HEADER_LEN => set_ce_v6(bytes),
        _ => false,
    }
}

fn set_ce_v4(bytes: &mut [u8]) -> bool {
    if Ecn::from_traffic_class(bytes[1]) == Ecn::NotEct {
        return false;
    }
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let before = word(bytes, 0);
    bytes[1] |= Ecn::Ce.bits();
    // RFC 1624 §3, equation 3.
    let sum =
        u32::from(!word(bytes, IPV4_CHECKSUM)) + u32::from(!before) + u32::from(word(bytes, 0));
    let sum = (sum >> 16) + (sum & 0xffff);
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
    bytes[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Marks an IPv6 packet. Its traffic class spans the first two bytes; the low four bits are the
/// high bits of the second byte.
fn set_ce_v6(bytes: &mut [u8]) -> bool {
    if Ecn::from_traffic_class(bytes[1] >> 4) == Ecn::NotEct {
        return false;
    }
    bytes[1] |= Ecn::Ce.bits() << 4;
    true
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::header::ip::{self, Fragment, IpHeader, protocol};

    fn header(src: IpAddr, dst: IpAddr, traffic_class: u8) -> IpHeader {
        IpHeader {
            src,
            dst,
            protocol: protocol::TCP,
            hop_limit: 64,
            traffic_class,
            flow_label: 0,
            id: 7,
            fragment: Fragment::DONT,
            header_len: if src.is_ipv4() { 20 } else { 40 },
            payload_len: 0,
        }
    }

    #[test]
    fn an_ect_packet_is_marked_and_its_checksum_stays_valid() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        for (class, marked) in [(0x02, 0x03), (0x01, 0x03), (0xba, 0xbb), (0x03, 0x03)] {
            let mut bytes = [0; 20];
            header(src.into(), dst.into(), class).emit::<true>(&mut bytes);
            assert!(set_ce(&mut bytes));
            let parsed = ip::parse::<true>(&bytes, bytes.len()).expect("the checksum is valid");
            assert_eq!(parsed.traffic_class, marked);
        }
    }

    #[test]
    fn a_marked_ipv6_packet_keeps_its_flow_label() {
        let mut bytes = [0; 40];
        let (src, dst) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let sent = IpHeader { flow_label: 0xf_1234, id: 0, ..header(src.into(), dst.into(), 0xa2) };
        sent.emit::<false>(&mut bytes);
        assert!(set_ce(&mut bytes));
        assert_eq!(bytes[0] << 4 | bytes[1] >> 4, 0xa3);
        assert_eq!(u32::from_be_bytes([0, bytes[1] & 0x0f, bytes[2], bytes[3]]), 0xf_1234);
    }

    #[test]
    fn a_packet_that_is_not_ecn_capable_stays_unchanged() {
        let mut bytes = [0; 20];
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        header(src.into(), dst.into(), 0xb8).emit::<true>(&mut bytes);
        let before = bytes;
        assert!(!set_ce(&mut bytes));
        assert_eq!(bytes, before);
        assert!(!set_ce(&mut []), "an empty slice was marked");
        assert!(!set_ce(&mut [0x45, 3]), "a slice of two bytes was marked");
    }
}
