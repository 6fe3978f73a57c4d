//! Recognition of the next segment of a flow, by comparing its headers with the held ones word by
//! word.
//!
//! Nearly every frame of a bulk transfer is recognized. All other frames are handled by
//! `read::read` and `Held::accepts`, which must give the same result for a recognized frame: a
//! debug assertion in `Table::receive_next` compares both. Linux compares in the same way after
//! `skb_gro_header_fast`, but each layer separately.

use core::ops::RangeInclusive;

use pkt::{GsoKind, Packet, RxChecksum, Sum};
use tcp::{
    Flags, SeqNum,
    wire::header::{CHECKSUM_OFFSET, HEADER_BYTES_MIN},
};

use super::{FLAGS, Held};
use crate::{
    base::counters::Counter,
    cx::Cx,
    header::ip::{IPV4_HEADER_LEN, IPV6_HEADER_LEN},
    receive::gro::{
        GroMode,
        read::{self, Candidate, Layout},
    },
};

/// Fields of a segment that matter once it is known to continue an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::receive::gro) struct Next {
    /// Offset of the payload.
    pub(in crate::receive::gro) headers: u16,
    /// IPv4 identification.
    pub(in crate::receive::gro) id: u16,
    /// Payload length in bytes.
    pub(in crate::receive::gro) payload: u32,
    pub(in crate::receive::gro) flags: Flags,
}

/// Total lengths of headers that can be compared. The headers of TCP over IPv4 without link header
/// and options have 40 bytes; Ethernet, IPv6 and TCP with timestamps have 86. A frame with longer
/// headers is parsed.
const COMPARED: RangeInclusive<usize> = 40..=COMPARED_MAX;
const COMPARED_MAX: usize = 96;

/// Offsets in the IPv4 header.
const TOTAL_LEN: usize = 2;
const ID: usize = 4;
const IP_CHECKSUM: usize = 10;

/// Offset of the payload length in the IPv6 header, and of the sequence number in the TCP header.
const PAYLOAD_LEN: usize = 4;
const SEQ: usize = 4;

/// Header contents that all segments of an aggregate share.
#[derive(Debug)]
pub(super) struct Common {
    /// Mask of the header bits that must equal those of the first frame.
    mask: [u8; COMPARED_MAX],
    /// Checksum sum of the IPv4 header without length, identification and checksum.
    ip_sum: Sum,
    /// Checksum sum of the pseudo-header without length, and of the TCP header without sequence
    /// number, control bits and checksum.
    tcp_sum: Sum,
}

impl Common {
    /// Derives mask and sums from the segment `new` at the start of `packet`.
    pub(super) fn of(packet: &Packet, new: &Candidate, pseudo_sum: Sum) -> Self {
        let (network, transport) = (usize::from(new.network), usize::from(new.transport));
        let headers = &packet.linear()[..usize::from(new.headers)];
        let mut mask = [0; COMPARED_MAX];
        if COMPARED.contains(&headers.len()) {
            mask[..headers.len()].fill(u8::MAX);
            if new.v4 {
                mask[network + TOTAL_LEN..network + ID + 2].fill(0);
                mask[network + IP_CHECKSUM..network + IP_CHECKSUM + 2].fill(0);
            } else {
                mask[network + PAYLOAD_LEN..network + PAYLOAD_LEN + 2].fill(0);
            }
            mask[transport + SEQ..transport + SEQ + 4].fill(0);
            mask[transport + FLAGS] = !Flags::FIN.union(Flags::PSH).bits();
            mask[transport + CHECKSUM_OFFSET..transport + CHECKSUM_OFFSET + 2].fill(0);
        }
        let (ip, tcp) = headers[network..].split_at(transport - network);
        let ip_own = ip.first_chunk().filter(|_| new.v4).map_or(Sum::ZERO, ip_own);
        Self {
            mask,
            ip_sum: without(Sum::of(ip), ip_own),
            tcp_sum: {
                let mut sum = without(Sum::of(tcp), tcp.first_chunk().map_or(Sum::ZERO, tcp_own));
                sum.add_sum(pseudo_sum);
                sum
            },
        }
    }

    /// Whether the headers `new` and `held`, which have the same length, are equal in all bits of
    /// the mask.
    #[inline]
    fn is_in(&self, held: &[u8], new: &[u8]) -> bool {
        match self.mask.get(..new.len()) {
            Some(mask) if new.len() >= 48 => is_same::<48>(held, new, mask),
            Some(mask) => is_same::<40>(held, new, mask),
            None => false,
        }
    }
}

/// Whether two slices of `N` to 2 × `N` bytes are equal in all bits of `mask`. Compares the first
/// and the last `N` bytes, which may overlap. Because the length is constant, the compiler compares
/// words without a loop.
#[inline(always)]
fn is_same<const N: usize>(held: &[u8], new: &[u8], mask: &[u8]) -> bool {
    let first = (held.first_chunk::<N>(), new.first_chunk(), mask.first_chunk());
    let last = (held.last_chunk::<N>(), new.last_chunk(), mask.last_chunk());
    match (first, last) {
        ((Some(held), Some(new), Some(mask)), (Some(held2), Some(new2), Some(mask2))) => {
            differ(held, new, mask) | differ(held2, new2, mask2) == 0
        }
        _ => false,
    }
}

/// Returns nonzero if `held` and `new` differ in a bit of `mask`.
#[inline(always)]
fn differ<const N: usize>(held: &[u8; N], new: &[u8; N], mask: &[u8; N]) -> u64 {
    let words = held.as_chunks::<8>().0.iter().zip(new.as_chunks::<8>().0);
    words.zip(mask.as_chunks::<8>().0).fold(0, |bits, ((held, new), mask)| {
        let [held, new, mask] = [held, new, mask].map(|word| u64::from_ne_bytes(*word));
        bits | (held ^ new) & mask
    })
}

/// Subtracts `part` from a checksum sum by adding its complement.
fn without(mut sum: Sum, part: Sum) -> Sum {
    sum.add_u16(!part.fold());
    sum
}

/// Sums the fields in which IPv4 headers of an aggregate differ: length, identification and
/// checksum.
#[inline]
fn ip_own(ip: &[u8; IPV4_HEADER_LEN]) -> Sum {
    let mut sum = Sum::from_folded(be16(ip, TOTAL_LEN));
    sum.add_u16(be16(ip, ID));
    sum.add_u16(be16(ip, IP_CHECKSUM));
    sum
}

/// Sums the fields in which TCP headers of an aggregate differ: sequence number, control bits and
/// checksum.
#[inline]
fn tcp_own(tcp: &[u8; HEADER_BYTES_MIN]) -> Sum {
    let mut sum = Sum::from_folded(be16(tcp, CHECKSUM_OFFSET));
    sum.add_u16(u16::from(tcp[FLAGS]));
    sum.add_u32(seq_of(tcp));
    sum
}

#[inline]
fn seq_of(tcp: &[u8; HEADER_BYTES_MIN]) -> u32 {
    u32::from_be_bytes([tcp[SEQ], tcp[SEQ + 1], tcp[SEQ + 2], tcp[SEQ + 3]])
}

#[inline(always)]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

impl Held {
    /// Returns the fields of a frame, whose IP header begins at offset `network`, if the frame is
    /// recognized as the next segment of this flow and may be merged. After `None` the caller must
    /// parse the frame, which may still be the next segment.
    #[inline]
    pub(in crate::receive::gro) fn next_of(
        &self,
        packet: &Packet,
        network: usize,
        mode: &GroMode,
    ) -> Option<Next> {
        let headers = usize::from(self.headers);
        let (held, new) = (self.packet.linear(), packet.linear());
        let len = packet.len();
        if new.len() != headers
            || network != usize::from(self.network)
            || packet.meta().gso.kind != GsoKind::None
            || !self.common.is_in(held.get(..headers)?, new)
        {
            return None;
        }
        let ip = new.get(network..)?;
        let (ip_bytes, id) = if self.v4 {
            let ip = ip.first_chunk()?;
            let mut sum = self.common.ip_sum;
            sum.add_sum(ip_own(ip));
            if !sum.is_valid() {
                return None;
            }
            (usize::from(be16(ip, TOTAL_LEN)), be16(ip, ID))
        } else {
            let ip = ip.first_chunk::<IPV6_HEADER_LEN>()?;
            (usize::from(be16(ip, PAYLOAD_LEN)) + IPV6_HEADER_LEN, 0)
        };
        let tcp = new.get(usize::from(self.transport)..)?.first_chunk()?;
        let flags = Flags::from_bits_retain(tcp[FLAGS]);
        let payload = u32::try_from(len - headers).ok()?;
        // `network + ip_bytes == len`: the frame has no trailer after the IP packet.
        let joins = network + ip_bytes == len
            && SeqNum(seq_of(tcp)) == self.next_seq
            && !flags.contains(Flags::CWR)
            && self.accepts_len(payload)
            && self.accepts_size(payload, mode.bytes_max(self.v4))
            && self.continues_ids(id);
        joins.then_some(Next { headers: self.headers, id, payload, flags })
    }

    /// Does the same as [`next_of`](Self::next_of) by parsing the frame, for the debug assertion
    /// that compares both results.
    pub(in crate::receive::gro) fn read_next(
        &self,
        packet: &mut Packet,
        network: usize,
        mode: &GroMode,
    ) -> Option<Next> {
        let new = read::read(packet, network)?;
        let joins =
            self.is_of(&new.key) && self.accepts(&new, packet, mode.bytes_max(new.v4)).is_ok();
        joins.then(|| new.next())
    }

    /// Whether the transport checksum of a recognized segment is valid. Without a sum or verdict of
    /// the device, only the payload and the header words that may differ are summed.
    #[inline]
    pub(in crate::receive::gro) fn checksum_holds(
        &self,
        cx: &Cx,
        next: &Next,
        packet: &mut Packet,
    ) -> bool {
        let segment_bytes = next.payload + u32::from(self.headers - self.transport);
        if packet.meta().rx_checksum != RxChecksum::None {
            let layout = Layout { network: self.network, transport: self.transport };
            return read::checksum_holds(cx, layout, packet, || {
                let mut sum = self.pseudo_sum;
                sum.add_u32(segment_bytes);
                sum
            });
        }
        cx.count(Counter::RxChecksumSoftware, 1);
        let mut sum = self.common.tcp_sum;
        sum.add_u32(segment_bytes);
        let tcp = packet.linear().get(usize::from(self.transport)..);
        if let Some(tcp) = tcp.and_then(|tcp| tcp.first_chunk()) {
            sum.add_sum(tcp_own(tcp));
        }
        sum.add_sum(packet.checksum(usize::from(self.headers), packet.len()));
        let holds = sum.is_valid();
        if holds {
            packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
        }
        holds
    }
}
