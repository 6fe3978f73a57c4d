//! ARP packet for IPv4 over Ethernet (RFC 826), 28 bytes long.
//!
//! Above: `receive::arp_input`, which gets the packet without its Ethernet header, and
//! `transmit::link_output`, which sends it. Linux: net/ipv4/arp.c.
//!
//! Not here: any state, and any other pair of address families. A packet with another pair is
//! dropped as `ArpMalformed`.

use std::net::Ipv4Addr;

use pkt::{DropReason, EtherType};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::MacAddr;

/// Payload type of ARP in an Ethernet frame.
pub const ETHER_TYPE_ARP: EtherType = EtherType::ARP;

/// Length of an ARP packet for IPv4 over Ethernet. Frames are padded to 60 bytes, so padding may
/// follow.
pub const ARP_LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u16 = 0x0800;
const OPERATION_REQUEST: u16 = 1;
const OPERATION_REPLY: u16 = 2;

/// Packet on the wire, with the field names of RFC 826.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ArpWire {
    hrd: U16,
    pro: U16,
    hln: u8,
    pln: u8,
    op: U16,
    sha: MacAddr,
    spa: [u8; 4],
    tha: MacAddr,
    tpa: [u8; 4],
}

const _: () = assert!(size_of::<ArpWire>() == ARP_LEN);

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Request for the link address of `target_ip`.
    Request,
    /// Reply with the link address `sender_mac` of `sender_ip`.
    Reply,
}

/// A checked ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// ar$sha: link address of the sender; always unicast.
    pub sender_mac: MacAddr,
    /// ar$spa: address of the sender; 0.0.0.0 in a probe for a duplicate address (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// ar$tha: link address of the target; meaningless in a request.
    pub target_mac: MacAddr,
    /// ar$tpa: the requested address, or in a reply the address of the requester.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Creates a request for `target_ip`.
    #[must_use]
    pub const fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        Self {
            operation: ArpOperation::Request,
            sender_mac,
            sender_ip,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip,
        }
    }

    /// Creates an announcement of an address of this host to all stations (RFC 5227 §3): a request
    /// for the sender's own address.
    #[must_use]
    pub const fn announcement(mac: MacAddr, ip: Ipv4Addr) -> Self {
        Self::request(mac, ip, ip)
    }

    /// Creates the reply of the station `own` to this request. The requested address becomes the
    /// sender's address.
    #[must_use]
    pub const fn reply(&self, own: MacAddr) -> Self {
        Self {
            operation: ArpOperation::Reply,
            sender_mac: own,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Parses the packet at the start of `bytes`; padding after it is ignored.
    ///
    /// # Errors
    /// `PacketTooShort` below 28 bytes. `ArpMalformed` for other address families or lengths, an
    /// unknown operation, a sender that is not a single station, or addresses that ARP never
    /// resolves.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let (wire, _) = ArpWire::read_from_prefix(bytes).map_err(|_| DropReason::PacketTooShort)?;
        let families = (wire.hrd.get(), wire.pro.get(), wire.hln, wire.pln);
        if families != (HARDWARE_ETHERNET, PROTOCOL_IPV4, 6, 4) {
            return Err(DropReason::ArpMalformed);
        }
        let operation = match wire.op.get() {
            OPERATION_REQUEST => ArpOperation::Request,
            OPERATION_REPLY => ArpOperation::Reply,
            _ => return Err(DropReason::ArpMalformed),
        };
        let packet = Self {
            operation,
            sender_mac: wire.sha,
            sender_ip: Ipv4Addr::from(wire.spa),
            target_mac: wire.tha,
            target_ip: Ipv4Addr::from(wire.tpa),
        };
        // RFC 1812 §3.3.2: a packet that maps a sender to a group address is rejected. Differs from
        // Linux, which accepts it: with such an entry, packets to one station would go to a whole
        // group.
        let sender_is_station = packet.sender_mac.is_unicast()
            && !packet.sender_ip.is_multicast()
            && !packet.sender_ip.is_broadcast()
            && !packet.sender_ip.is_loopback();
        let target_is_resolvable =
            !packet.target_ip.is_multicast() && !packet.target_ip.is_loopback();
        if sender_is_station && target_is_resolvable {
            Ok(packet)
        } else {
            Err(DropReason::ArpMalformed)
        }
    }

    /// Writes the packet at the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`ARP_LEN`].
    pub fn emit(&self, bytes: &mut [u8]) {
        let operation = match self.operation {
            ArpOperation::Request => OPERATION_REQUEST,
            ArpOperation::Reply => OPERATION_REPLY,
        };
        let wire = ArpWire {
            hrd: U16::new(HARDWARE_ETHERNET),
            pro: U16::new(PROTOCOL_IPV4),
            hln: 6,
            pln: 4,
            op: U16::new(operation),
            sha: self.sender_mac,
            spa: self.sender_ip.octets(),
            tha: self.target_mac,
            tpa: self.target_ip.octets(),
        };
        bytes[..ARP_LEN].copy_from_slice(wire.as_bytes());
    }

    /// Whether the sender announces its own address without a request (RFC 5227 §3).
    #[must_use]
    pub fn is_gratuitous(&self) -> bool {
        self.sender_ip == self.target_ip
    }

    /// Whether the sender probes for an address conflict. The sender has no address yet, so the
    /// neighbor table ignores the packet.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.sender_ip.is_unspecified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const IP_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const IP_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn bytes_of(packet: &ArpPacket) -> [u8; ARP_LEN] {
        let mut bytes = [0; ARP_LEN];
        packet.emit(&mut bytes);
        bytes
    }

    #[test]
    fn request_bytes_are_those_of_rfc_826() {
        let bytes = bytes_of(&ArpPacket::request(A, IP_A, IP_B));
        let expected = [
            0, 1, 8, 0, 6, 4, 0, 1, // Ethernet, IPv4, 6, 4, request
            2, 0, 0, 0, 0, 1, 10, 0, 0, 1, // sender
            0, 0, 0, 0, 0, 0, 10, 0, 0, 2, // target
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_reply_swaps_sender_and_target() {
        let reply = ArpPacket::request(A, IP_A, IP_B).reply(B);
        let parsed = ArpPacket::parse(&bytes_of(&reply)).unwrap();
        assert_eq!(parsed, reply);
        assert_eq!(parsed.operation, ArpOperation::Reply);
        assert_eq!((parsed.sender_mac, parsed.sender_ip), (B, IP_B));
        assert_eq!((parsed.target_mac, parsed.target_ip), (A, IP_A));
    }

    #[test]
    fn padding_is_ignored_and_truncated_packets_are_refused() {
        let mut frame = [0; 46];
        ArpPacket::request(A, IP_A, IP_B).emit(&mut frame);
        assert!(ArpPacket::parse(&frame).is_ok());
        for len in 0..ARP_LEN {
            assert_eq!(ArpPacket::parse(&frame[..len]), Err(DropReason::PacketTooShort));
        }
    }

    #[test]
    fn other_families_and_operations_are_malformed() {
        let good = bytes_of(&ArpPacket::request(A, IP_A, IP_B));
        for (at, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16), (7, 0), (7, 3), (7, 8)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(
                ArpPacket::parse(&bytes),
                Err(DropReason::ArpMalformed),
                "a packet with the value {value} in byte {at} was not refused"
            );
        }
    }

    #[test]
    fn packets_from_a_group_or_to_an_unresolvable_address_are_malformed() {
        let bad = [
            ArpPacket::request(MacAddr::BROADCAST, IP_A, IP_B),
            ArpPacket::request(MacAddr([1, 0, 0x5e, 0, 0, 1]), IP_A, IP_B),
            ArpPacket::request(MacAddr::UNSPECIFIED, IP_A, IP_B),
            ArpPacket::request(A, Ipv4Addr::new(224, 0, 0, 1), IP_B),
            ArpPacket::request(A, Ipv4Addr::BROADCAST, IP_B),
            ArpPacket::request(A, Ipv4Addr::LOCALHOST, IP_B),
            ArpPacket::request(A, IP_A, Ipv4Addr::LOCALHOST),
            ArpPacket::request(A, IP_A, Ipv4Addr::new(239, 1, 1, 1)),
        ];
        for packet in bad {
            assert_eq!(
                ArpPacket::parse(&bytes_of(&packet)),
                Err(DropReason::ArpMalformed),
                "{packet:?}"
            );
        }
    }

    #[test]
    fn probes_and_announcements_are_recognized() {
        assert!(ArpPacket::announcement(A, IP_A).is_gratuitous());
        let probe = ArpPacket::request(A, Ipv4Addr::UNSPECIFIED, IP_B);
        assert!(probe.is_probe() && !probe.is_gratuitous());
        assert!(ArpPacket::parse(&bytes_of(&probe)).is_ok());
    }
}
