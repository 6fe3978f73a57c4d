//! Ethernet II frames: addresses and the 14-byte header.
//!
//! Above: `receive::link_input` and `transmit::link_output`. Linux: net/ethernet/eth.c.
//!
//! Not here: 802.1Q tags and 802.3 length fields. A frame that has one is dropped as
//! `EthernetType`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use pkt::{DropReason, EtherType, PacketType};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ndp;

/// Length of the header.
pub const HEADER_LEN: usize = 14;

/// Smallest value of the type field that names a protocol. Smaller values are 802.3 lengths.
const ETHER_TYPE_MIN: u16 = 0x0600;

const _: () = assert!(size_of::<EthernetHeader>() == HEADER_LEN);

/// Link address of 48 bits.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

/// Returns the link address of frames to a multicast group (RFC 1112 §6.4, RFC 2464 §7).
#[must_use]
pub(crate) const fn multicast_mac(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(group) => {
            let [_, a, b, c] = group.octets();
            MacAddr([0x01, 0x00, 0x5e, a & 0x7f, b, c])
        }
        IpAddr::V6(group) => ndp::multicast_mac(group),
    }
}

impl MacAddr {
    /// Address of all stations on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// Unspecified address, as in the target field of an ARP request.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Returns a locally administered unicast address: `02:00` and the four bytes of `tail`, most
    /// significant first.
    #[must_use]
    pub const fn local(tail: u32) -> Self {
        let [a, b, c, d] = tail.to_be_bytes();
        Self([0x02, 0x00, a, b, c, d])
    }

    /// Whether the address is all ones.
    #[must_use]
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// Whether the group bit is set. The broadcast address is a group address, too.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 0x01 != 0
    }

    /// Whether the address can belong to one station: it is neither a group address nor all zeros.
    #[must_use]
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// Returns the address as the low 48 bits of a word, so that an atomic can hold it.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Decodes a word of [`MacAddr::to_bits`]; the upper 16 bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        Self([a, b, c, d, e, f])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error for a text that is not six hexadecimal bytes separated by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddrParseError;

impl fmt::Display for MacAddrParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a link address; expected six hexadecimal bytes such as 02:00:00:00:00:01")
    }
}

impl std::error::Error for MacAddrParseError {}

impl FromStr for MacAddr {
    type Err = MacAddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(MacAddrParseError)?;
            let is_byte = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            if !is_byte {
                return Err(MacAddrParseError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacAddrParseError)?;
        }
        if parts.next().is_some() { Err(MacAddrParseError) } else { Ok(Self(bytes)) }
    }
}

/// Header of an Ethernet II frame.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct EthernetHeader {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    ether_type: U16,
}

impl EthernetHeader {
    /// Creates a header for a frame that carries `ether_type`.
    #[must_use]
    pub const fn new(dst: MacAddr, src: MacAddr, ether_type: EtherType) -> Self {
        Self { dst, src, ether_type: U16::new(ether_type.0) }
    }

    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    /// `PacketTooShort` below 14 bytes, `EthernetType` for an 802.3 length field.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| DropReason::PacketTooShort)?;
        if header.ether_type.get() < ETHER_TYPE_MIN {
            Err(DropReason::EthernetType)
        } else {
            Ok(header)
        }
    }

    /// Writes the header at the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`HEADER_LEN`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..HEADER_LEN].copy_from_slice(self.as_bytes());
    }

    /// Returns the protocol of the payload.
    #[must_use]
    #[inline]
    pub const fn ether_type(&self) -> EtherType {
        EtherType(self.ether_type.get())
    }

    /// Returns the packet type, as seen by a station with address `own`.
    #[must_use]
    #[inline]
    pub fn packet_type(&self, own: MacAddr) -> PacketType {
        if self.dst == own {
            PacketType::Host
        } else if self.dst.is_broadcast() {
            PacketType::Broadcast
        } else if self.dst.is_multicast() {
            PacketType::Multicast
        } else {
            PacketType::OtherHost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn a_header_survives_emit_and_parse() {
        let header = EthernetHeader::new(OWN, PEER, EtherType(0x0800));
        let mut bytes = [0xaa; 16];
        header.emit(&mut bytes);
        assert_eq!(bytes, [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0xaa, 0xaa]);
        assert_eq!(EthernetHeader::parse(&bytes), Ok(header));
        assert_eq!(header.ether_type(), EtherType(0x0800));
    }

    #[test]
    fn every_truncation_is_too_short() {
        let bytes = [0xff; HEADER_LEN];
        for len in 0..HEADER_LEN {
            assert_eq!(EthernetHeader::parse(&bytes[..len]), Err(DropReason::PacketTooShort));
        }
        assert!(EthernetHeader::parse(&bytes).is_ok());
    }

    #[test]
    fn a_length_field_is_not_taken_for_a_protocol() {
        let mut bytes = [0; HEADER_LEN];
        bytes[12..].copy_from_slice(&0x05ff_u16.to_be_bytes());
        assert_eq!(EthernetHeader::parse(&bytes), Err(DropReason::EthernetType));
        bytes[12..].copy_from_slice(&0x0600_u16.to_be_bytes());
        assert!(EthernetHeader::parse(&bytes).is_ok());
    }

    #[test]
    fn the_destination_decides_the_packet_type() {
        let to = |dst| EthernetHeader::new(dst, PEER, EtherType(0x0800)).packet_type(OWN);
        assert_eq!(to(OWN), PacketType::Host);
        assert_eq!(to(MacAddr::BROADCAST), PacketType::Broadcast);
        assert_eq!(to(MacAddr([1, 0, 0x5e, 0, 0, 1])), PacketType::Multicast);
        assert_eq!(to(MacAddr([2, 0, 0, 0, 0, 9])), PacketType::OtherHost);
    }

    #[test]
    fn addresses_are_parsed_and_printed() {
        assert_eq!("02:00:00:00:00:01".parse(), Ok(OWN));
        assert_eq!(
            "0A:ff:00:10:20:30".parse::<MacAddr>().unwrap().to_string(),
            "0a:ff:00:10:20:30"
        );
        for bad in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
            "g2:00:00:00:00:01",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(MacAddrParseError), "{bad:?}");
        }
    }

    #[test]
    fn the_kind_of_an_address_is_recognized() {
        assert!(OWN.is_unicast() && !OWN.is_multicast());
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(!MacAddr::UNSPECIFIED.is_unicast());
        assert!(MacAddr::local(7).is_unicast());
        assert_eq!(
            MacAddr::from_bits(MacAddr::local(0x0102_0304).to_bits()),
            MacAddr::local(0x0102_0304)
        );
    }
}
