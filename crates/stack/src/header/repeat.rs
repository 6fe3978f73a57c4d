//! Packets whose IP header repeats that of the one before them, as those of a flow do: what a few words say need not be read again.
//!
//! Between two packets of a flow the length, the identification, the TTL and the checksum of the header may differ. Where nothing
//! else does, up to the ports, the packet has passed every check that the one before it has passed, but for those of these four.
//! Whatever is odd about it is left to `header::ip::parse`, which says what. IPv4 only: the address words of IPv6 are half of all there is
//! to be read. Linux has no counterpart, or rather all of GRO (`inet_gro_receive` compares these words with those of what is held).
//!
//! Above: `receive::ip_input`, by what `receive::flow` remembers, and the fuzz target `headers`. Not here: whose packet it is (`early_demux`).

use super::ip::{self, IPV4_HEADER_LEN, IpHeader};

/// A header of 20 bytes, and the ports.
const BYTES: usize = IPV4_HEADER_LEN + 4;

/// What must not differ: version, header length, type of service and fragmentation; protocol and source; destination and ports.
const MASKS: [u64; 3] = [
    u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff]),
    u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    !0,
];

/// The header of a packet that went to a connection, as later ones are compared with it.
#[derive(Clone, Copy, Debug)]
pub struct SeenHeader {
    words: [u64; 3],
    header: IpHeader,
}

impl SeenHeader {
    /// Of a packet whose linear bytes begin with `header`; `None` unless it is one that others can repeat.
    #[must_use]
    #[inline]
    pub fn new(linear: &[u8], header: &IpHeader) -> Option<Self> {
        let plain = header.src.is_ipv4() && usize::from(header.header_len) == IPV4_HEADER_LEN;
        let words = words(linear.first_chunk()?);
        (plain && !header.fragment.is_piece()).then_some(Self { words, header: *header })
    }

    /// The header of a packet of `packet_len` bytes, if it repeats this one and is sound.
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

/// What is compared.
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

    /// Every bit of the 24 bytes by turns: what is recognised is what the long way reads, ports and all.
    #[test]
    fn what_repeats_is_read_as_the_long_way_reads_it() {
        let first = packet(&header());
        let seen = SeenHeader::new(&first, &header()).expect("a plain header");
        let mut recognised = 0;
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
                        recognised += 1;
                        assert_eq!(Ok(short), ip::parse::<true>(&bytes, packet_len));
                        assert_eq!(bytes[IPV4_HEADER_LEN..BYTES], first[IPV4_HEADER_LEN..BYTES]);
                    }
                }
            }
        }
        // With the right sum: the bits of the identification, of the TTL and of the sum itself, and four shorter lengths, which both
        // packets have.
        assert_eq!(recognised, 16 + 8 + 16 + 2 * 4);
    }

    #[test]
    fn other_headers_are_not_taken_as_an_example() {
        let plain = packet(&header());
        let piece = IpHeader { fragment: Fragment { more: true, ..Fragment::DONT }, ..header() };
        assert!(SeenHeader::new(&plain, &piece).is_none());
        assert!(SeenHeader::new(&plain, &IpHeader { header_len: 24, ..header() }).is_none());
        assert!(SeenHeader::new(&plain[..23], &header()).is_none(), "no ports");
    }
}
