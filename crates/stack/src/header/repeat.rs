//! Fast path for packets whose IP header repeats that of the previous packet, as is common within a
//! flow.
//!
//! Between packets of one flow, the length, identification, TTL and checksum of an IPv4 header may
//! differ, and the length and hop limit of an IPv6 header. If all other bytes of the header and the
//! ports are equal, the packet passes every check that the previous packet has passed, except for
//! the checks of these fields. Any other packet is left to `header::ip::parse`, which returns the
//! exact error. Linux has no direct counterpart, except that `inet_gro_receive` compares the same
//! words with those of held packets (packets that wait for the next segment of their flow).
//!
//! Above: `receive::ip_input`, with the state of `socket::rx`, and the fuzz target `headers`. Not
//! here: the lookup of the connection of a packet (early demux).

use std::net::IpAddr;

use super::ip::{self, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHeader};

/// Length of an IPv4 header without options, plus the ports.
const BYTES: usize = IPV4_HEADER_LEN + 4;

/// Length of an IPv6 header without extension headers, plus the ports.
const BYTES_V6: usize = IPV6_HEADER_LEN + 4;

/// Masks of the bits that must be equal: version, header length, type of service and fragmentation;
/// protocol and source; destination and ports.
const MASKS: [u64; 3] = [
    u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff]),
    u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    !0,
];

/// Mask of the first word of an IPv6 header: version, traffic class, flow label and Next Header.
const MASK_V6: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0]);

/// Words that are compared: three of an IPv4 header, six of an IPv6 header.
type Words = [u64; 6];

/// Header of a packet that was delivered to a connection, for comparison with later packets. The
/// first byte differs between the IP versions, so no packet repeats a header of the other version.
#[derive(Clone, Copy, Debug)]
pub struct SeenHeader {
    words: Words,
    header: IpHeader,
}

impl SeenHeader {
    /// Records the header of a packet whose linear bytes begin with `header`. Returns `None` if no
    /// later packet can repeat it.
    ///
    /// Inlined, because otherwise the result is copied through memory twice.
    #[must_use]
    #[inline(always)]
    pub fn new<const V4: bool>(linear: &[u8], header: &IpHeader) -> Option<Self> {
        let plain = usize::from(header.header_len) == ip::fixed_len::<V4>()
            && !header.fragment.is_fragment()
            && !is_scoped(header.src)
            && !is_scoped(header.dst);
        let mut words = [0; 6];
        if V4 {
            words[..3].copy_from_slice(&words_v4(linear.first_chunk()?));
        } else {
            words = words_v6(linear.first_chunk()?);
        }
        plain.then_some(Self { words, header: *header })
    }

    /// Returns the header of a packet of `packet_len` bytes if it repeats this one and is valid.
    #[must_use]
    #[inline]
    pub fn repeated_in<const V4: bool>(
        &self,
        linear: &[u8],
        packet_len: usize,
    ) -> Option<IpHeader> {
        if V4 {
            self.repeated_in_v4(linear, packet_len)
        } else {
            self.repeated_in_v6(linear, packet_len)
        }
    }

    #[inline]
    fn repeated_in_v4(&self, linear: &[u8], packet_len: usize) -> Option<IpHeader> {
        let bytes: &[u8; BYTES] = linear.first_chunk()?;
        let pairs = words_v4(bytes).into_iter().zip(self.words);
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

    #[inline]
    fn repeated_in_v6(&self, linear: &[u8], packet_len: usize) -> Option<IpHeader> {
        let bytes: &[u8; BYTES_V6] = linear.first_chunk()?;
        let pairs = words_v6(bytes).into_iter().zip(self.words);
        let differs = pairs.fold(0, |differs, (word, seen)| differs | (word ^ seen));
        let payload_len = u16::from_be_bytes([bytes[4], bytes[5]]);
        // A packet with a length field of 0 may be a BIG TCP superframe (a packet of several
        // segments), whose length is not in the header.
        if differs != 0
            || payload_len == 0
            || IPV6_HEADER_LEN + usize::from(payload_len) > packet_len
        {
            return None;
        }
        let payload_len = u32::from(payload_len);
        Some(IpHeader { hop_limit: bytes[7], payload_len, ..self.header })
    }
}

/// Returns whether an address has another meaning on another device. The compared bytes do not
/// contain the device.
const fn is_scoped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the masked words for the comparison.
#[inline]
fn words_v4(bytes: &[u8; BYTES]) -> [u64; 3] {
    let (chunks, _) = bytes.as_chunks::<8>();
    core::array::from_fn(|index| u64::from_ne_bytes(chunks[index]) & MASKS[index])
}

/// Returns the masked words for the comparison. The last word overlaps the one before.
#[inline]
fn words_v6(bytes: &[u8; BYTES_V6]) -> Words {
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut words = [0; 6];
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_ne_bytes(*chunk);
    }
    words[0] &= MASK_V6;
    if let Some(last) = bytes.last_chunk() {
        words[5] = u64::from_ne_bytes(*last);
    }
    words
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

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

    /// Flips every bit of an IPv4 header and the ports in turn: a recognized header must equal the
    /// parsed one, and the ports must be unchanged.
    #[test]
    fn a_repeated_header_equals_the_parsed_header() {
        let first = packet(&header());
        let seen = SeenHeader::new::<true>(&first, &header()).expect("the header has no options");
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
                    let short = seen.repeated_in::<true>(&bytes[..packet_len], packet_len);
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

    /// As above, for the 44 bytes of an IPv6 header and the ports.
    #[test]
    fn a_repeated_ipv6_header_equals_the_parsed_header() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("the text is an address");
        let (src, dst) = (ip("2001:db8::1"), ip("fd00::2"));
        let fragment = Fragment::default();
        let header =
            IpHeader { src, dst, flow_label: 0x12345, id: 0, fragment, header_len: 40, ..header() };
        let mut first = [7; 80];
        header.emit::<false>(&mut first);
        let seen =
            SeenHeader::new::<false>(&first, &header).expect("the header has no extension header");
        let mut recognized = 0;
        for bit in 0..8 * BYTES_V6 {
            let mut bytes = first;
            bytes[bit / 8] ^= 1 << (bit % 8);
            for packet_len in [80, 79] {
                let short = seen.repeated_in::<false>(&bytes[..packet_len], packet_len);
                if let Some(short) = short {
                    recognized += 1;
                    assert_eq!(Ok(short), ip::parse::<false>(&bytes, packet_len));
                    assert_eq!(bytes[IPV6_HEADER_LEN..BYTES_V6], first[IPV6_HEADER_LEN..BYTES_V6]);
                }
            }
        }
        // Recognized: every flipped bit of the hop limit, for the packet that is long enough; and
        // the two shorter lengths 8 and 32, for both packet lengths.
        assert_eq!(recognized, 8 + 2 * 2);
        let link_local = IpHeader { src: ip("fe80::1"), ..header };
        assert!(SeenHeader::new::<false>(&first, &link_local).is_none());
        assert!(seen.repeated_in::<true>(&first, 80).is_none());
    }

    #[test]
    fn fragments_and_headers_with_options_are_not_recorded() {
        let plain = packet(&header());
        let piece = IpHeader { fragment: Fragment { more: true, ..Fragment::DONT }, ..header() };
        assert!(SeenHeader::new::<true>(&plain, &piece).is_none());
        assert!(
            SeenHeader::new::<true>(&plain, &IpHeader { header_len: 24, ..header() }).is_none()
        );
        assert!(
            SeenHeader::new::<true>(&plain[..23], &header()).is_none(),
            "a header without ports was accepted"
        );
    }
}
