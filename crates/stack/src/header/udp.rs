//! The UDP header (RFC 768), parsed and written.
//!
//! Above: `receive::udp_input`, `receive::early_demux` and the datagram sockets
//! (`socket::datagram`). Linux: net/ipv4/udp.c.
//!
//! Not here: the checksum, which covers a pseudo-header and a payload that may lie in pages.

use pkt::DropReason;
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header in bytes.
pub const UDP_HEADER_LEN: usize = 8;

/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_OFFSET: u16 = 6;

/// UDP header on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    src_port: U16,
    dst_port: U16,
    len: U16,
    checksum: U16,
}

const _: () = assert!(size_of::<Wire>() == UDP_HEADER_LEN);

/// Fields of a UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port; 0 if the sender expects no reply.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of the datagram, this header included.
    pub len: u16,
    /// Checksum; 0 if the sender computed none, which IPv4 allows.
    pub checksum: u16,
}

impl UdpHeader {
    /// Parses the header at the start of `linear`. The IP packet has `payload_len` bytes from there
    /// on.
    ///
    /// # Errors
    /// `PacketTooShort` below eight bytes, `UdpHeader` for a length below eight bytes or beyond the
    /// packet.
    pub fn parse(linear: &[u8], payload_len: usize) -> Result<Self, DropReason> {
        let (wire, _) = Wire::read_from_prefix(linear).map_err(|_| DropReason::PacketTooShort)?;
        let len = wire.len.get();
        if usize::from(len) < UDP_HEADER_LEN || usize::from(len) > payload_len {
            return Err(DropReason::UdpHeader);
        }
        Ok(Self {
            src_port: wire.src_port.get(),
            dst_port: wire.dst_port.get(),
            len,
            checksum: wire.checksum.get(),
        })
    }

    /// Returns source and destination port at the start of `linear`, or `None` if `linear` is
    /// shorter than both.
    #[inline]
    pub(crate) const fn ports(linear: &[u8]) -> Option<(u16, u16)> {
        match linear.first_chunk() {
            Some(&[a, b, c, d]) => Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))),
            None => None,
        }
    }

    /// Writes the header to the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        let wire = Wire {
            src_port: U16::new(self.src_port),
            dst_port: U16::new(self.dst_port),
            len: U16::new(self.len),
            checksum: U16::new(self.checksum),
        };
        bytes[..UDP_HEADER_LEN].copy_from_slice(wire.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_writing_and_parsing() {
        let header = UdpHeader { src_port: 53, dst_port: 0xfedc, len: 20, checksum: 0x1234 };
        let mut bytes = [0; 20];
        header.emit(&mut bytes);
        assert_eq!(bytes[..8], [0, 53, 0xfe, 0xdc, 0, 20, 0x12, 0x34]);
        assert_eq!(UdpHeader::parse(&bytes, 20), Ok(header));
        assert_eq!(UdpHeader::ports(&bytes), Some((53, 0xfedc)));
    }

    #[test]
    fn lengths_below_the_header_or_beyond_the_packet_are_refused() {
        let with = |len| {
            let mut bytes = [0; 12];
            UdpHeader { src_port: 1, dst_port: 2, len, checksum: 0 }.emit(&mut bytes);
            bytes
        };
        assert_eq!(UdpHeader::parse(&with(7), 12), Err(DropReason::UdpHeader));
        assert_eq!(UdpHeader::parse(&with(13), 12), Err(DropReason::UdpHeader));
        assert_eq!(UdpHeader::parse(&with(8), 12).map(|header| header.len), Ok(8));
        assert_eq!(UdpHeader::parse(&with(8)[..7], 12), Err(DropReason::PacketTooShort));
        assert_eq!(UdpHeader::ports(&[0, 1, 2]), None);
    }
}
