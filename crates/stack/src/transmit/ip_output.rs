//! IP transmit: prepends the header to TCP segments and passes them on, still in the caller's
//! context.
//!
//! Linux: `__ip_queue_xmit`, `ip_finish_output`. DF is set on every TCP segment (RFC 1191 §3),
//! unless path MTU discovery is disabled or a report has shown a path MTU below the minimum.
//! Superframes and checksums that the device does not support are processed later (`tx_queue`).

use pkt::{DropReason, Packet, PacketList, TxChecksum};
use tcp::FourTuple;

use super::{
    dst::{Dst, DstHandle},
    fragment::fragment,
    link_output::{self, LinkAddresses},
    packet_dst::{PacketDst, leave_rcu},
    qdisc::NetXmit,
};
use crate::{
    base::{counters::Counter, ids::CoreId, limits::GSO_BYTES_MAX},
    cx::Cx,
    device::QueueId,
    header::{
        ethernet::{EthernetHeader, HEADER_LEN},
        ip::{
            ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Fragment, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHeader,
            protocol,
        },
    },
};

/// Offset of the data offset field in the TCP header.
const DATA_OFFSET: usize = 12;

/// IP header fields that a socket sets for its segments (RFC 9293 §3.9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// `IP_TOS`: the differentiated services field (RFC 2474 §3) without the two ECN bits, which
    /// TCP sets.
    pub tos: u8,
    /// `SO_PRIORITY`, also set by `IP_TOS`. Not part of the header; read by queueing disciplines.
    pub priority: u8,
    /// `IP_TTL`; `None` selects `ip_default_ttl`.
    pub ttl: Option<u8>,
    /// `IP_MTU_DISCOVER`; `None` selects the mode of `ip_no_pmtu_disc`.
    pub mtu_discover: Option<MtuDiscover>,
}

/// Path MTU discovery mode of a socket (RFC 1191), with Linux's numbers (`IP_PMTUDISC_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MtuDiscover {
    /// No discovery: DF is clear, and reports are ignored.
    Dont = 0,
    /// DF is set, unless a report has shown a path MTU below the minimum.
    Want = 1,
    /// DF is always set.
    Do = 2,
    /// DF is always set. Linux distinguishes this mode from `Do` only for datagrams.
    Probe = 3,
    /// DF is clear; the MTU is that of the device, and reports are ignored.
    Interface = 4,
    /// Same as `Interface`.
    Omit = 5,
}

impl MtuDiscover {
    /// All modes, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Dont, Self::Want, Self::Do, Self::Probe, Self::Interface, Self::Omit];

    /// Whether a report changes the size of segments (Linux: `ip_sk_accept_pmtu`,
    /// tcp_v4_mtu_reduced).
    pub(crate) const fn takes_reports(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }

    /// Whether segments carry DF. `locked`: the path MTU is below the minimum (Linux:
    /// `ip_dont_fragment`).
    const fn dont_fragment(self, locked: bool) -> bool {
        match self {
            Self::Do | Self::Probe => true,
            Self::Want => !locked,
            Self::Dont | Self::Interface | Self::Omit => false,
        }
    }
}

/// Sender of segments, with the values for their IP headers.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    /// Addresses and ports of both ends.
    pub tuple: &'a FourTuple,
    /// Fields that the socket sets.
    pub fields: IpFields,
    /// Next IPv4 identification of the connection; `None` for replies without a connection.
    pub ids: Option<&'a mut u16>,
}

/// Sends all segments in `cx.out` along `dst`. The segments start with their TCP header.
pub(crate) fn output(cx: &mut Cx, dst: DstHandle<'_>, tuple: &FourTuple, core: CoreId) {
    let Some(first) = cx.out.pop_front() else { return };
    let queue = dst.tx.pick_queue(cx, core, first.meta().flow_hash);
    cx.out.push_front(first);
    let sender = Sender { tuple, fields: IpFields::default(), ids: None };
    let _ = output_as(cx, dst, sender, queue);
}

/// Sends like [`output`], with the header fields and the queue of a socket. Returns the result for
/// the segments.
pub(crate) fn output_as(
    cx: &mut Cx,
    dst: DstHandle<'_>,
    mut sender: Sender<'_>,
    queue: QueueId,
) -> NetXmit {
    let mut list = PacketList::new();
    let frame = link_output::addresses(&dst);
    let mut bytes = 0;
    while let Some(mut segment) = cx.out.pop_front() {
        let len = if sender.tuple.is_ipv4() {
            push_headers::<true>(cx, &dst, &mut sender, frame, &mut segment)
        } else {
            push_headers::<false>(cx, &dst, &mut sender, frame, &mut segment)
        };
        bytes += len as u64;
        if segment.meta().gso.segs > 1 && len <= dst.tso_max_bytes as usize {
            cx.count(Counter::DeviceTxSuperframes, 1);
        }
        list.push_back(segment);
    }
    cx.count(Counter::IpOutRequests, list.len() as u64);
    cx.count(Counter::IpExtOutOctets, bytes);
    if dst.keeps_dst && cx.sysctls().dst_ref.counts_packets() {
        hold(cx, dst, &mut list);
    }
    cx.count(Counter::IpOutTransmits, list.len() as u64);
    match frame {
        Some(_) => dst.tx.xmit(cx, queue, &mut list),
        None => link_output::output(cx, &dst, queue, &mut list),
    }
}

/// Attaches a counted dst to every packet, to be kept while the packet waits for its receiver
/// (Linux: `skb_dst_force` of a device without `IFF_XMIT_DST_RELEASE`).
fn hold(cx: &Cx, dst: DstHandle<'_>, list: &mut PacketList) {
    let mut packets = core::mem::take(list);
    while let Some(mut packet) = packets.pop_front() {
        leave_rcu(&mut packet, PacketDst::Noref(dst), false).count(cx);
        list.push_back(packet);
    }
}

/// Sends one complete IP packet along `dst`, such as an ICMP message. A packet above the MTU leaves
/// as fragments, or is dropped if it has DF. Linux: `ip_finish_output`.
pub(crate) fn send(cx: &mut Cx, dst: &Dst, packet: Packet) {
    let mut list = PacketList::new();
    cx.count(Counter::IpOutRequests, 1);
    if packet.len() > dst.mtu as usize {
        match fragment(cx, packet, dst.mtu) {
            Ok(fragments) => list = fragments,
            Err((reason, packet)) => return cx.drop_packet(reason, packet),
        }
    } else {
        list.push_back(packet);
    }
    cx.count(Counter::IpExtOutOctets, list.bytes() as u64);
    cx.count(Counter::IpOutTransmits, list.len() as u64);
    let _ = link_output::output(cx, dst, QueueId(0), &mut list);
}

/// Prepends the IP header and, if the link addresses are known, the link header. Returns the length
/// of the IP packet.
#[inline]
fn push_headers<const V4: bool>(
    cx: &mut Cx,
    dst: &Dst,
    sender: &mut Sender<'_>,
    frame: Option<LinkAddresses>,
    segment: &mut Packet,
) -> usize {
    let payload_len = u32::try_from(segment.len()).expect("a packet is shorter than 4 GB");
    let header_len = if V4 { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
    let segments = segment.meta().gso.segs.max(1);
    let Sender { tuple, fields, .. } = *sender;
    let dont = dont_fragment(cx, dst, fields);
    let header = IpHeader {
        src: tuple.local.ip(),
        dst: tuple.remote.ip(),
        protocol: protocol::TCP,
        hop_limit: fields.ttl.unwrap_or_else(|| cx.sysctls().ip_default_ttl),
        traffic_class: fields.tos | segment.meta().ecn.bits(),
        flow_label: 0,
        id: if V4 { identification(cx, &mut sender.ids, dont, segment) } else { 0 },
        fragment: Fragment { dont, ..Fragment::default() },
        header_len: len16(header_len),
        payload_len,
    };
    debug_assert!(
        header.total_len() <= GSO_BYTES_MAX as usize || segments > 1,
        "only a superframe may be that long"
    );
    let ether_type = if V4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
    match frame {
        Some(LinkAddresses { next_hop, own }) => {
            let (link, ip) = segment.push(HEADER_LEN + header_len).split_at_mut(HEADER_LEN);
            header.emit::<V4>(ip);
            EthernetHeader::new(next_hop, own, ether_type).emit(link);
        }
        None => header.emit::<V4>(segment.push(header_len)),
    }
    let meta = segment.meta_mut();
    meta.priority = fields.priority;
    meta.protocol = ether_type;
    if let TxChecksum::Partial { start, offset } = meta.tx_checksum {
        meta.tx_checksum = TxChecksum::Partial { start: start + len16(header_len), offset };
    }
    header.total_len()
}

/// Returns the IPv4 identification of a segment; see [`super::ident`]. A superframe consumes one
/// identification for each of its `gso.segs` segments.
#[inline]
fn identification(cx: &mut Cx, ids: &mut Option<&mut u16>, dont: bool, segment: &Packet) -> u16 {
    let Some(next) = ids else {
        return if dont { 0 } else { low_bits(cx.rng.next_u32()) };
    };
    let header_len = segment.linear().get(DATA_OFFSET).map_or(0, |byte| usize::from(byte >> 4) * 4);
    if dont && segment.len() <= header_len {
        return 0;
    }
    let id = **next;
    **next = id.wrapping_add(segment.meta().gso.segs.max(1));
    id
}

#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
const fn low_bits(number: u32) -> u16 {
    number as u16
}

/// Whether a segment carries DF: as its socket requests, otherwise by the path and the host's
/// setting.
fn dont_fragment(cx: &Cx, dst: &Dst, fields: IpFields) -> bool {
    // With path MTU discovery disabled on the host, a path without DF says nothing about its MTU.
    let locked = !dst.dont_fragment && matches!(cx.sysctls().ip_no_pmtu_disc, 0 | 3);
    fields.mtu_discover.map_or(dst.dont_fragment, |discover| discover.dont_fragment(locked))
}

/// Converts the length of a header.
fn len16(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a header has at most 60 bytes")
}

/// Drops and counts the segments in `cx.out`, because there is no route for them.
pub(crate) fn discard_unroutable(cx: &mut Cx) {
    while let Some(segment) = cx.out.pop_front() {
        cx.count(Counter::IpOutNoRoutes, 1);
        cx.drop_packet(DropReason::IpNoRoute, segment);
    }
}

/// Frees the segments in `cx.out`, on behalf of a socket that lost a race.
pub(crate) fn discard_output(cx: &mut Cx) {
    while let Some(segment) = cx.out.pop_front() {
        cx.pool.free(segment);
    }
}
