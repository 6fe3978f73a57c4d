//! Fast path for packets whose IP header repeats that of the previous packet, as within a flow.
//!
//! Between packets of one flow, the length, identification, TTL and checksum of the header may
//! differ. If all other bytes up to the ports are equal, the packet passes every check that the
//! previous packet has passed, except for the checks of these four fields. Any other packet is left
//! to `header::ip::parse`, which returns the exact error. IPv4 only: for IPv6, the comparison would
//! cover nearly twice as many bytes, 32 of them addresses. Linux has no direct counterpart, except
//! that `inet_gro_receive` compares the same words with those of held packets.
//!
//! Above: `receive::ip_input`, with the state of `socket::rx`, and the fuzz target `headers`.
//! Not here: the connection of the packet (`early_demux`).

use super::ip::{self, IPV4_HEADER_LEN, IpHeader};

/// Length of an IPv4 header without options, plus the ports.
const BYTES: usize = IPV4_HEADER_LEN + 4;

/// Masks of the bits that must be equal: version, header length, type of service and fragmentation;
/// protocol and source; destination and ports.
const MASKS: [u64; 3] = [
    u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff]),
    u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    !0,
];

/// Header of a packet that went to a connection, for comparison with later packets.
#[derive(Clone, Copy, Debug)]
pub struct SeenHeader {
    words: [u64; 3],
    header: IpHeader,
}

impl SeenHeader {
    /// Records the header of a packet whose linear bytes begin with `header`. Returns `None` if no
    /// later packet can repeat it.
    #[must_use]
    #[inline]
    pub fn new(linear: &[u8], header: &IpHeader) -> Option<Self> {
        let plain = header.src.is_ipv4() && usize::from(header.header_len) == IPV4_HEADER_LEN;
        let words = words(linear.first_chunk()?);
        (plain && !header.fragment.is_piece()).then_some(Self { words, header: *header })
    }

    /// Returns the header of a packet of `packet_len` bytes if it repeats this one and is valid.
    #[must_use]
    #[inline]
    pub fn repeated_in(&self, linear: &[u8], packet_len: usize) -> Option<IpHeader> {
        let bytes: &[u8; BYTES] = linear.first_chunk()?;
        let pairs = words(bytes).into_iter().zip(self.words);
        let differs = pairs.fold(0, |differs, (word, seen)| differs | (word ^ seen));
        let total_len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if differs != 0
            || total_len > packet_len
            || ip::header_checksum(&bytes[..IPV4_HEADER_LEN]) != 0
        {
            return None;
        }
        let payload_len = u32::try_from(total_len.checked_sub(IPV4_HEADER_LEN)?).ok()?;
        let id = u16::from_be_bytes([bytes[4], bytes[5]]);
        Some(IpHeader { id, hop_limit: bytes[8], payload_len, ..self.header })
    }
}

/// Returns the masked words for the comparison.
#[inline]
fn words(bytes: &[u8; BYTES]) -> [u64; 3] {
    let (chunks, _) = bytes.as_chunks::<8>();
    core::array::from_fn(|index| u64::from_ne_bytes(chunks[index]) & MASKS[index])
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::header::ip::{self, Fragment, protocol};

    fn packet(header: &IpHeader) -> [u8; 60] {
        let mut bytes = [7; 60];
        header.emit::<true>(&mut bytes);
        bytes
    }

    fn header() -> IpHeader {
        IpHeader {
            src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
            protocol: protocol::TCP,
            hop_limit: 64,
            traffic_class: 2,
            flow_label: 0,
            id: 1,
            fragment: Fragment::DONT,
            header_len: 20,
            payload_len: 40,
        }
    }

    /// Flips every bit of the 24 bytes in turn: a recognized header must equal the parsed one,
    /// including the ports.
    #[test]
    fn a_repeated_header_equals_the_parsed_header() {
        let first = packet(&header());
        let seen = SeenHeader::new(&first, &header()).expect("the header has no options");
        let mut recognized = 0;
        for bit in 0..8 * BYTES {
            let mut bytes = first;
            bytes[bit / 8] ^= 1 << (bit % 8);
            for sum in [false, true] {
                if sum {
                    bytes[10..12].fill(0);
                    let sum = ip::header_checksum(&bytes[..IPV4_HEADER_LEN]);
                    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                }
                for packet_len in [60, 59] {
                    let short = seen.repeated_in(&bytes[..packet_len], packet_len);
                    if let Some(short) = short {
                        recognized += 1;
                        assert_eq!(Ok(short), ip::parse::<true>(&bytes, packet_len));
                        assert_eq!(bytes[IPV4_HEADER_LEN..BYTES], first[IPV4_HEADER_LEN..BYTES]);
                    }
                }
            }
        }
        // Recognized with a valid checksum: every flipped bit of the identification, of the TTL and
        // of the checksum itself, and four shorter lengths for each of both packet lengths.
        assert_eq!(recognized, 16 + 8 + 16 + 2 * 4);
    }

    #[test]
    fn fragments_and_headers_with_options_are_not_recorded() {
        let plain = packet(&header());
        let piece = IpHeader { fragment: Fragment { more: true, ..Fragment::DONT }, ..header() };
        assert!(SeenHeader::new(&plain, &piece).is_none());
        assert!(SeenHeader::new(&plain, &IpHeader { header_len: 24, ..header() }).is_none());
        assert!(SeenHeader::new(&plain[..23], &header()).is_none(), "the ports are missing");
    }
}
