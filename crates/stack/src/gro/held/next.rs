//! The next segment of a flow, recognised by comparing its headers with those that are held, word by word.
//!
//! In a stream nearly every frame is one. What is said here of a packet is what `read::read` and `Held::accepts` say of it, who
//! are asked about every packet that is not recognised; tests ask them about the others too (`Table::receive`). Linux compares
//! in the same way what `skb_gro_header_fast` finds, but each layer for itself.

use pkt::{GsoKind, Packet, RxChecksum, Sum};
use tcp::{
    Flags, SeqNum,
    header::{CHECKSUM_OFFSET, HEADER_BYTES_MIN},
};

use super::{FLAGS, Held};
use crate::{
    counters::Counter,
    cx::Cx,
    gro::{
        GroMode,
        read::{self, Layout},
    },
    ip::header::{self, IPV4_HEADER_LEN, IPV6_HEADER_LEN},
    link::ethernet,
};

/// What matters of a segment once it is known to continue an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gro) struct Next {
    /// Where the payload begins.
    pub(in crate::gro) headers: u16,
    /// IPv4 identification.
    pub(in crate::gro) id: u16,
    /// Bytes of payload.
    pub(in crate::gro) payload: u32,
    pub(in crate::gro) flags: Flags,
}

impl Held {
    /// Recognises a frame, whose IP header begins `network` bytes in, as the next segment of this flow, which may join.
    /// `None` says nothing about it.
    #[inline]
    pub(in crate::gro) fn next_of(
        &self,
        packet: &Packet,
        network: usize,
        mode: &GroMode,
    ) -> Option<Next> {
        let headers = usize::from(self.headers);
        let new = packet.linear();
        let len = packet.len();
        if new.len() != headers
            || network != usize::from(self.network)
            || packet.meta().gso.kind != GsoKind::None
        {
            return None;
        }
        let held = self.packet.linear().get(..headers)?;
        let id = if self.v4 {
            next_ipv4(held.get(network..)?, new.get(network..)?, len - network)?
        } else {
            next_ipv6(held.get(network..)?, new.get(network..)?, len - network)?
        };
        let transport = usize::from(self.transport);
        let (seq, flags) = next_tcp(held.get(transport..)?, new.get(transport..)?)?;
        let payload = u32::try_from(len - headers).ok()?;
        let joins = same_link(held.get(..network)?, new.get(..network)?)
            && seq == self.next_seq
            && self.accepts_len(payload)
            && self.accepts_size(payload, mode.bytes_max(self.v4))
            && self.continues_ids(id);
        joins.then_some(Next { headers: self.headers, id, payload, flags })
    }

    /// The same by reading the frame, for comparison.
    pub(in crate::gro) fn read_next(
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

    /// Whether the transport checksum of a recognised segment holds. Of its header only those words are read that may differ.
    #[inline]
    pub(in crate::gro) fn checksum_holds(&self, cx: &Cx, next: &Next, packet: &mut Packet) -> bool {
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
        let mut sum = self.header_sum;
        sum.add_u32(segment_bytes);
        if let Some(tcp) = packet.linear().get(usize::from(self.transport)..) {
            add_own(&mut sum, tcp);
        }
        sum.add_sum(packet.checksum(usize::from(self.headers), packet.len()));
        let holds = sum.is_valid();
        if holds {
            packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
        }
        holds
    }
}

/// The sum of a TCP header without the words that segments of one aggregate have of their own, added to `pseudo_sum`.
pub(super) fn common_sum(mut pseudo_sum: Sum, tcp: &[u8]) -> Sum {
    let mut own = Sum::ZERO;
    add_own(&mut own, tcp);
    pseudo_sum.add_sum(Sum::of(tcp));
    // Adding the complement is subtracting.
    pseudo_sum.add_u16(!own.fold());
    pseudo_sum
}

/// Adds sequence number, control bits and checksum of a TCP header.
#[inline]
fn add_own(sum: &mut Sum, tcp: &[u8]) {
    let Some(tcp) = tcp.first_chunk::<HEADER_BYTES_MIN>() else { return };
    let [_, _, _, _, seq @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *tcp;
    sum.add_u32(u32::from_be_bytes(seq));
    sum.add_u16(u16::from(tcp[FLAGS]));
    sum.add_u16(u16::from_be_bytes([tcp[CHECKSUM_OFFSET], tcp[CHECKSUM_OFFSET + 1]]));
}

/// Ethernet addresses and type.
#[inline]
fn same_link(held: &[u8], new: &[u8]) -> bool {
    // With a constant length no call is made.
    match (held.first_chunk::<{ ethernet::HEADER_LEN }>(), new.first_chunk()) {
        (Some(held), Some(new)) => held == new,
        _ => held == new,
    }
}

/// All but length, identification and checksum is the same, the checksum holds, and the packet of `len` bytes ends where the
/// datagram does. The identification.
#[inline]
fn next_ipv4(held: &[u8], new: &[u8], len: usize) -> Option<u16> {
    let held = held.first_chunk::<IPV4_HEADER_LEN>()?;
    let new = new.first_chunk::<IPV4_HEADER_LEN>()?;
    // Version and header length, TOS, fragmentation; TTL, protocol, source; destination.
    let differs = differ8(held, new, 0) & u64::to_be(0xffff_0000_0000_ffff)
        | differ8(held, new, 8) & u64::to_be(0xffff_0000_ffff_ffff)
        | differ(held, new, 16);
    let [_, _, high, low, id_high, id_low, ..] = *new;
    let ends = usize::from(u16::from_be_bytes([high, low])) == len;
    (differs == 0 && ends && header::header_checksum(new) == 0)
        .then_some(u16::from_be_bytes([id_high, id_low]))
}

/// The same for IPv6, whose header has neither identification nor checksum.
#[inline]
fn next_ipv6(held: &[u8], new: &[u8], len: usize) -> Option<u16> {
    let held = held.first_chunk::<IPV6_HEADER_LEN>()?;
    let new = new.first_chunk::<IPV6_HEADER_LEN>()?;
    let differs = differ8(held, new, 0) & u64::to_be(0xffff_ffff_0000_ffff);
    let ends = usize::from(u16::from_be_bytes([new[4], new[5]])) == len - IPV6_HEADER_LEN;
    (differs == 0 && ends && held[8..] == new[8..]).then_some(0)
}

/// All but sequence number, checksum and what may stand on the last segment only is the same. The sequence number and the
/// control bits.
#[inline]
fn next_tcp(held: &[u8], new: &[u8]) -> Option<(SeqNum, Flags)> {
    const LAST: u64 = (Flags::FIN.union(Flags::PSH).bits() as u64) << 16;
    let (held, held_options) = held.split_first_chunk::<HEADER_BYTES_MIN>()?;
    let (new, options) = new.split_first_chunk::<HEADER_BYTES_MIN>()?;
    // Ports; acknowledgment, data offset, control bits, window; urgent pointer.
    let differs = differ(held, new, 0)
        | differ8(held, new, 8) & u64::to_be(!LAST)
        | differ(held, new, 16) & u64::from(u32::to_be(0x0000_ffff));
    let (held_options, options) = (held_options.as_chunks::<4>().0, options.as_chunks::<4>().0);
    let same_options = held_options.len() == options.len()
        && held_options
            .iter()
            .zip(options)
            .all(|(held, new)| u32::from_ne_bytes(*held) == u32::from_ne_bytes(*new));
    let flags = Flags::from_bits_retain(new[FLAGS]);
    let joins = differs == 0 && same_options && !flags.contains(Flags::CWR);
    let [_, _, _, _, seq @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *new;
    joins.then_some((SeqNum(u32::from_be_bytes(seq)), flags))
}

/// The bits in which the four bytes at `at` differ.
#[inline(always)]
fn differ<const N: usize>(held: &[u8; N], new: &[u8; N], at: usize) -> u64 {
    let word = |bytes: &[u8; N]| {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    u64::from(word(held) ^ word(new))
}

/// The bits in which the eight bytes at `at` differ.
#[inline(always)]
fn differ8<const N: usize>(held: &[u8; N], new: &[u8; N], at: usize) -> u64 {
    let word =
        |bytes: &[u8; N]| u64::from_ne_bytes(core::array::from_fn(|index| bytes[at + index]));
    word(held) ^ word(new)
}
