//! Header fields that GRO needs to find the flow of a frame.
//!
//! Linux: `inet_gro_receive`, `ipv6_gro_receive`, `tcp4_gro_receive` up to the search among held
//! packets. Both address families share one algorithm: after `ip::parse` has checked the IP header,
//! the TCP header is read directly behind it.
//!
//! Within GRO, only this module makes headers linear (contiguous at the head of the packet). A
//! frame shorter than its headers claim is no candidate: it is passed on unchanged, and the layer
//! that drops it counts the drop.

use std::net::IpAddr;

use pkt::{EtherType, GsoKind, Packet, RxChecksum, Sum, checksum};
use tcp::{Flags, SegmentHeader, SeqNum, wire::header::HEADER_BYTES_MIN};

use super::held::Next;
use crate::{
    base::counters::Counter,
    cx::Cx,
    header::{
        ethernet::EthernetHeader,
        ip::{self, IpHeader, protocol},
    },
};

/// Control bits that end an aggregate: a segment with one of them is the last one of its aggregate,
/// or is not held at all.
const FINAL: Flags =
    Flags::FIN.union(Flags::SYN).union(Flags::RST).union(Flags::PSH).union(Flags::URG);

/// Connection of a segment, in the direction of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// Source and destination port.
    pub(super) ports: (u16, u16),
}

impl FlowKey {
    /// Returns the bucket of this flow, below `1 << bits`. A collision is harmless: the flows of
    /// one bucket only compete for its places.
    #[inline]
    pub(super) fn bucket(&self, bits: u32) -> usize {
        let (src, dst) = (fold(self.src), fold(self.dst));
        let ports = u32::from(self.ports.0) << 16 | u32::from(self.ports.1);
        // The high bits of a product depend on all bits of the factor (Knuth's multiplicative
        // hash).
        let hash = (src ^ dst.rotate_left(15) ^ ports).wrapping_mul(0x9e37_79b1);
        (hash >> (u32::BITS - bits)) as usize
    }
}

#[inline]
fn fold(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            #[expect(clippy::cast_possible_truncation, reason = "the four quarters, one by one")]
            let quarter = |index: u32| (bits >> (32 * index)) as u32;
            quarter(0) ^ quarter(1).rotate_left(11) ^ quarter(2) ^ quarter(3)
        }
    }
}

/// TCP segment that may continue a held packet. Its headers are linear.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) key: FlowKey,
    pub(super) v4: bool,
    /// Offset of the IP header: the length of the link header.
    pub(super) network: u16,
    /// Offset of the TCP header.
    pub(super) transport: u16,
    /// Offset of the payload.
    pub(super) headers: u16,
    /// Payload length in bytes.
    pub(super) payload: u32,
    pub(super) seq: SeqNum,
    pub(super) flags: Flags,
    /// IPv4 identification.
    pub(super) id: u16,
    /// True if the segment is neither merged nor held, regardless of its TCP header: because it has
    /// IP options, or a trailer after the IP packet, or is a superframe (a packet of several
    /// segments) made by the device.
    ///
    /// Differs from Linux: a superframe is not merged with others. Superframes of this stack end
    /// with PSH, so Linux would not merge them either.
    pub(super) alone: bool,
}

/// Whether a segment with these control bits ends the aggregate it is merged into.
pub(super) const fn is_final(flags: Flags) -> bool {
    flags.intersects(FINAL)
}

impl Candidate {
    /// Whether the segment may begin an aggregate.
    pub(super) const fn may_be_held(&self) -> bool {
        !self.alone && self.payload > 0 && !is_final(self.flags)
    }

    /// Returns the fields that matter once the segment is known to continue an aggregate.
    pub(super) const fn next(&self) -> Next {
        Next { headers: self.headers, id: self.id, payload: self.payload, flags: self.flags }
    }

    /// Returns the offsets of the headers.
    pub(super) const fn layout(&self) -> Layout {
        Layout { network: self.network, transport: self.transport }
    }

    /// Returns the length of the TCP segment, including its header.
    pub(super) fn segment_bytes(&self) -> u32 {
        self.payload + u32::from(self.headers - self.transport)
    }
}

/// Whether a frame can be neither merged nor held, so that it needs no further reading while no
/// packet is held. Reads linear bytes only. The header is unchecked: for a malformed frame the
/// answer may be wrong, which only prevents or delays a merge.
#[inline]
pub(super) fn cannot_merge(packet: &Packet, network: usize) -> bool {
    if packet.meta().gso.kind != GsoKind::None {
        return true;
    }
    let Some(bytes) = packet.linear().get(network..) else { return false };
    let (transport, protocol, total) = match bytes {
        [first, _, high, low, _, _, _, _, _, protocol, ..] if first >> 4 == 4 => {
            let header_len = usize::from(first & 0x0f) * 4;
            (header_len, *protocol, usize::from(u16::from_be_bytes([*high, *low])))
        }
        [first, _, _, _, high, low, protocol, ..] if first >> 4 == 6 => {
            let payload_len = usize::from(u16::from_be_bytes([*high, *low]));
            (ip::IPV6_HEADER_LEN, *protocol, ip::IPV6_HEADER_LEN + payload_len)
        }
        _ => return false,
    };
    if protocol != protocol::TCP {
        return true;
    }
    let (Some(data_offset), Some(flags)) = (bytes.get(transport + 12), bytes.get(transport + 13))
    else {
        return false;
    };
    Flags::from_bits_retain(*flags).intersects(FINAL)
        || total <= transport + usize::from(data_offset >> 4) * 4
}

/// Reads the headers of a frame whose IP header begins at offset `network`. Returns `None` unless
/// the frame holds a whole TCP segment, directly after an IP header without IPv6 extension headers.
pub(super) fn read(packet: &mut Packet, network: usize) -> Option<Candidate> {
    match ether_type(packet, network)? {
        EtherType::IPV4 => read_ip::<true>(packet, network),
        EtherType::IPV6 => read_ip::<false>(packet, network),
        _ => None,
    }
}

/// Addresses of a fragment, whose ports may be unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Between {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

/// Returns the addresses of a frame that is an IPv4 fragment of a TCP segment. Only the first
/// fragment has the ports, so the flow of a fragment counts as unknown.
#[cold]
pub(super) fn fragment(packet: &mut Packet, network: usize) -> Option<Between> {
    if ether_type(packet, network)? != EtherType::IPV4
        || !packet.require_linear(network + ip::IPV4_HEADER_LEN)
    {
        return None;
    }
    let header_len = ip::claimed_len::<true>(&packet.linear()[network..]).ok()?;
    if !packet.require_linear(network + header_len) {
        return None;
    }
    let ip = ip::parse_packet::<true>(packet, network).ok()?;
    (ip.protocol == protocol::TCP && ip.fragment.is_fragment())
        .then_some(Between { src: ip.src, dst: ip.dst })
}

fn ether_type(packet: &mut Packet, network: usize) -> Option<EtherType> {
    if !packet.require_linear(network + 1) {
        return None;
    }
    if network > 0 {
        return EthernetHeader::parse(packet.linear()).ok().map(|header| header.ether_type());
    }
    match packet.linear()[0] >> 4 {
        4 => Some(EtherType::IPV4),
        6 => Some(EtherType::IPV6),
        _ => None,
    }
}

#[inline]
fn read_ip<const V4: bool>(packet: &mut Packet, network: usize) -> Option<Candidate> {
    // Nearly every IP header has no options; its bytes and the TCP header are then made linear by
    // one copy.
    if !packet.require_linear(network + ip::fixed_len::<V4>() + HEADER_BYTES_MIN) {
        return None;
    }
    let claimed = ip::claimed_len::<V4>(&packet.linear()[network..]).ok()?;
    if !packet.require_linear(network + claimed + HEADER_BYTES_MIN) {
        return None;
    }
    let ip = ip::parse_packet::<V4>(packet, network).ok()?;
    if ip.protocol != protocol::TCP || ip.fragment.is_fragment() {
        return None;
    }
    read_tcp(packet, network, &ip)
}

/// Inlined for the same reason as `ip::parse`.
#[inline(always)]
fn read_tcp(packet: &mut Packet, network: usize, ip: &IpHeader) -> Option<Candidate> {
    let transport = network + usize::from(ip.header_len);
    let tcp_len = usize::from(packet.linear()[transport + 12] >> 4) * 4;
    let headers = transport + tcp_len;
    if tcp_len < HEADER_BYTES_MIN || !packet.require_linear(headers) {
        return None;
    }
    let payload = (ip.payload_len as usize).checked_sub(tcp_len)?;
    let bytes = &packet.linear()[transport..];
    let ports = SegmentHeader::ports(bytes)?;
    let seq = SeqNum(u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
    let flags = Flags::from_bits_retain(bytes[13]);
    let v4 = ip.src.is_ipv4();
    let has_options = v4 && usize::from(ip.header_len) > ip::IPV4_HEADER_LEN;
    let has_trailer = packet.len() != network + ip.total_len();
    Some(Candidate {
        key: FlowKey { src: ip.src, dst: ip.dst, ports },
        v4,
        network: position(network),
        transport: position(transport),
        headers: position(headers),
        payload: u32::try_from(payload).ok()?,
        seq,
        flags,
        id: ip.id,
        alone: has_options || has_trailer || packet.meta().gso.kind != GsoKind::None,
    })
}

/// Returns an offset in the headers of a frame.
#[expect(clippy::cast_possible_truncation, reason = "headers have at most 14 + 60 + 60 bytes")]
const fn position(bytes: usize) -> u16 {
    debug_assert!(bytes < 256);
    bytes as u16
}

/// Offsets of the IP header and the TCP header of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) network: u16,
    pub(super) transport: u16,
}

/// Whether the TCP checksum is valid, according to the device or by summing the segment. A valid
/// checksum is marked in the packet, so that no later layer verifies it again. Linux:
/// `skb_gro_checksum_validate`.
#[inline]
pub(super) fn checksum_holds(
    cx: &Cx,
    layout: Layout,
    packet: &mut Packet,
    pseudo_header: impl FnOnce() -> Sum,
) -> bool {
    let complete = match packet.meta().rx_checksum {
        RxChecksum::Unnecessary | RxChecksum::Partial { .. } => return true,
        RxChecksum::Complete(sum) => Some(sum),
        RxChecksum::None => None,
    };
    let pseudo_sum = pseudo_header();
    let holds =
        complete.is_some_and(|sum| complete_sum(pseudo_sum, layout, packet, sum).is_valid());
    let holds = holds || {
        cx.count(Counter::RxChecksumSoftware, 1);
        let mut sum = pseudo_sum;
        sum.add_sum(packet.checksum(usize::from(layout.transport), packet.len()));
        sum.is_valid()
    };
    if holds {
        packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
    }
    holds
}

/// Returns the sum of pseudo-header and segment, from the device's sum `folded`. The device's sum
/// includes the IP header, which is subtracted by adding its complement.
#[cold]
fn complete_sum(mut sum: Sum, layout: Layout, packet: &Packet, folded: u16) -> Sum {
    let ip = &packet.linear()[usize::from(layout.network)..usize::from(layout.transport)];
    sum.add_u16(folded);
    sum.add_u16(!Sum::of(ip).fold());
    sum
}

/// Returns the sum of a segment's pseudo-header.
pub(super) fn pseudo_header(new: &Candidate) -> Sum {
    checksum::pseudo_header(new.key.src, new.key.dst, protocol::TCP, new.segment_bytes())
}
