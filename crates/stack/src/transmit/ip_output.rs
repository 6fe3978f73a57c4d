//! IP transmit: prepends the IP header to TCP segments and datagrams and passes them to the link
//! layer, in the caller's context.
//!
//! Linux: `__ip_queue_xmit`, `ip_finish_output`. DF is set on every packet (RFC 1191 §3), unless
//! the host or the socket disables path MTU discovery, the packet is to be sent in fragments, or a
//! report has shown a path MTU below the minimum. Superframes (packets of several segments) and
//! checksums that the device does not support are processed later (`tx_queue`). A datagram or an
//! ICMP message that is longer than the MTU is sent in fragments (`fragment`), unless it has DF.

use std::net::SocketAddr;

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
            self, ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Fragment, HeaderFields, IPV4_HEADER_LEN,
            IPV6_HEADER_LEN, protocol,
        },
    },
};

/// Offset of the data offset field in the TCP header.
const DATA_OFFSET: usize = 12;

/// IP header fields of the packets that a socket sends over one IP version (RFC 9293 §3.9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// `IP_TOS` or `IPV6_TCLASS`: the differentiated services field (RFC 2474 §3). For TCP, the two
    /// ECN bits are 0, because TCP sets them.
    pub tos: u8,
    /// `SO_PRIORITY`, which `IP_TOS` also sets. It is not part of the header, but queueing
    /// disciplines read it.
    pub priority: u8,
    /// `IP_TTL` or `IPV6_UNICAST_HOPS`; `None` selects `ip_default_ttl` or
    /// `net.ipv6.conf.all.hop_limit`.
    pub ttl: Option<u8>,
    /// `IP_MTU_DISCOVER` or `IPV6_MTU_DISCOVER`; `None` selects the mode of `ip_no_pmtu_disc`, and
    /// `Want` over IPv6.
    pub mtu_discover: Option<MtuDiscover>,
    /// For IPv6 packets: whether they carry a flow label. `None` selects the mode of
    /// `auto_flowlabels`.
    pub flow_label: Option<bool>,
}

/// Options of a socket for the IPv6 packets that it sends. The options for its IPv4 packets, and
/// the priority of both, are [`IpFields`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Fields {
    /// `IPV6_TCLASS`: the traffic class. For TCP, the two ECN bits are 0, because TCP sets them.
    pub traffic_class: u8,
    /// `IPV6_UNICAST_HOPS`; `None` selects `net.ipv6.conf.all.hop_limit`.
    pub hop_limit: Option<u8>,
    /// `IPV6_MTU_DISCOVER`; `None` selects `Want`.
    pub mtu_discover: Option<MtuDiscover>,
    /// `IPV6_AUTOFLOWLABEL`; `None` selects the mode of `net.ipv6.auto_flowlabels`.
    pub flow_label: Option<bool>,
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

    /// Whether an ICMP report of a path MTU changes the size of segments (Linux:
    /// `ip_sk_accept_pmtu`, tcp_v4_mtu_reduced).
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

/// Sender of segments or datagrams, with the values for their IP headers.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    /// Addresses and ports of both ends.
    pub tuple: &'a FourTuple,
    /// Protocol of the packets.
    pub protocol: u8,
    /// Fields that the socket sets.
    pub fields: IpFields,
    /// Next IPv4 identification of the socket. `None` for replies without a socket, and for
    /// datagrams to an address other than the socket's peer.
    pub ids: Option<&'a mut u16>,
}

/// Sends all segments in `cx.out` by the route entry `dst`. The segments begin with their TCP
/// header.
pub(crate) fn output(cx: &mut Cx, dst: DstHandle<'_>, tuple: &FourTuple, core: CoreId) {
    let Some(first) = cx.out.pop_front() else { return };
    let queue = dst.tx.pick_queue(cx, core, first.meta().flow_hash);
    cx.out.push_front(first);
    let fields = IpFields::default();
    let sender = Sender { tuple, protocol: protocol::TCP, fields, ids: None };
    let list = core::mem::take(&mut cx.out);
    let _ = output_as(cx, dst, sender, queue, list);
}

/// Sends the segments in `list` like [`output`], but with the header fields and the transmit queue
/// of a socket. Returns the combined result of all packets.
pub(crate) fn output_as(
    cx: &mut Cx,
    dst: DstHandle<'_>,
    sender: Sender<'_>,
    queue: QueueId,
    list: PacketList,
) -> NetXmit {
    let frame = link_output::addresses(&dst);
    let mut list = add_headers(cx, dst, sender, frame, list);
    pass_on(cx, &dst, frame, queue, &mut list)
}

/// Prepends the headers to all packets in `list`, and returns them. `frame` is the result of
/// `link_output::addresses`. The caller passes the list on ([`pass_on`]), possibly together with
/// packets of other calls that have the same `dst`, `frame` and queue.
#[inline]
pub(crate) fn add_headers(
    cx: &mut Cx,
    dst: DstHandle<'_>,
    sender: Sender<'_>,
    frame: Option<LinkAddresses>,
    list: PacketList,
) -> PacketList {
    if sender.tuple.is_ipv4() {
        add_headers_of::<true>(cx, dst, sender, frame, list)
    } else {
        add_headers_of::<false>(cx, dst, sender, frame, list)
    }
}

/// [`add_headers`] of one IP version.
#[inline]
fn add_headers_of<const V4: bool>(
    cx: &mut Cx,
    dst: DstHandle<'_>,
    mut sender: Sender<'_>,
    frame: Option<LinkAddresses>,
    list: PacketList,
) -> PacketList {
    // Linux: `skb_dst_force` for a device without `IFF_XMIT_DST_RELEASE`, which loopback is.
    let keeps_dst = dst.keeps_dst && cx.sysctls().dst_ref.counts_packets();
    let mut bytes = 0;
    let list = list.changed(|segment| {
        let len = push_headers::<V4>(cx, &dst, &mut sender, frame, segment);
        bytes += len as u64;
        if segment.meta().gso.segs > 1 && len <= dst.tso_max_bytes as usize {
            cx.count(Counter::DeviceTxSuperframes, 1);
        }
        if keeps_dst {
            leave_rcu(segment, PacketDst::Noref(dst), false).count(cx);
        }
    });
    let count = list.len() as u64;
    cx.count(Counter::IpOutRequests.of::<V4>(), count);
    cx.count(Counter::IpExtOutOctets.of::<V4>(), bytes);
    cx.count(Counter::IpOutTransmits.of::<V4>(), count);
    list
}

/// Passes on packets that have their headers: to the transmit queue if `frame` has given them a
/// link header, otherwise to `link_output`.
#[inline]
pub(crate) fn pass_on(
    cx: &mut Cx,
    dst: &Dst,
    frame: Option<LinkAddresses>,
    queue: QueueId,
    list: &mut PacketList,
) -> NetXmit {
    match frame {
        Some(_) => dst.tx.xmit(cx, queue, list),
        None => link_output::output(cx, dst, queue, list),
    }
}

/// Sends one complete IP packet, such as an ICMP message, by the route entry `dst`. A packet that
/// is longer than the MTU is sent in fragments, or dropped if it has DF. Linux: `ip_finish_output`.
pub(crate) fn send(cx: &mut Cx, dst: &Dst, packet: Packet) {
    let mut list = PacketList::new();
    cut(cx, dst, packet, &mut list);
    let _ = link_output::output(cx, dst, QueueId(0), &mut list);
}

/// Prepends the IP header to the datagrams in `cx.out`, some of which are longer than the MTU, and
/// moves them to `list`, as fragments if necessary. The caller clears DF (`fields.mtu_discover`).
pub(crate) fn add_headers_and_cut(
    cx: &mut Cx,
    dst: &Dst,
    mut sender: Sender<'_>,
    list: &mut PacketList,
) {
    let v4 = sender.tuple.is_ipv4();
    while let Some(mut datagram) = cx.out.pop_front() {
        if v4 {
            push_headers::<true>(cx, dst, &mut sender, None, &mut datagram);
        } else {
            push_headers::<false>(cx, dst, &mut sender, None, &mut datagram);
        }
        cut(cx, dst, datagram, list);
    }
}

/// Moves a complete IP packet to `list`, as fragments if it is longer than the MTU, and counts it.
fn cut(cx: &mut Cx, dst: &Dst, packet: Packet, list: &mut PacketList) {
    let v4 = packet.meta().protocol == ETHER_TYPE_IPV4;
    cx.count(Counter::IpOutRequests.of_version(v4), 1);
    let (mut bytes, mut count) = (packet.len(), 1);
    if packet.len() > dst.mtu as usize {
        match fragment(cx, packet, dst.mtu) {
            Ok(mut fragments) => {
                (bytes, count) = (fragments.bytes(), fragments.len());
                list.append(&mut fragments);
            }
            Err((reason, packet)) => return cx.drop_packet(reason, packet),
        }
    } else {
        list.push_back(packet);
    }
    cx.count(Counter::IpExtOutOctets.of_version(v4), bytes as u64);
    cx.count(Counter::IpOutTransmits.of_version(v4), count as u64);
}

/// Prepends the IP header and, if the link addresses are known, the link header. Returns the length
/// of the IP packet.
#[inline(always)]
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
    let header = HeaderFields {
        protocol: sender.protocol,
        hop_limit: fields.ttl.unwrap_or_else(|| hop_limit::<V4>(cx)),
        traffic_class: fields.tos | segment.meta().ecn.bits(),
        flow_label: if V4 { 0 } else { flow_label(cx, fields, segment) },
        id: if V4 { identification(cx, sender, dont, segment, payload_len) } else { 0 },
        fragment: Fragment { dont, ..Fragment::default() },
        payload_len,
    };
    debug_assert!(
        payload_len <= GSO_BYTES_MAX || segments > 1,
        "a packet with a payload above 65,535 bytes is not a superframe"
    );
    let ether_type = if V4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
    match frame {
        Some(LinkAddresses { next_hop, own }) => {
            let (link, ip) = segment.push(HEADER_LEN + header_len).split_at_mut(HEADER_LEN);
            emit::<V4>(&header, tuple, ip);
            EthernetHeader::new(next_hop, own, ether_type).emit(link);
        }
        None => emit::<V4>(&header, tuple, segment.push(header_len)),
    }
    let meta = segment.meta_mut();
    meta.priority = fields.priority;
    meta.protocol = ether_type;
    if let TxChecksum::Partial { start, offset } = meta.tx_checksum {
        meta.tx_checksum = TxChecksum::Partial { start: start + len16(header_len), offset };
    }
    header_len + payload_len as usize
}

/// Writes a header between the addresses of `tuple`.
#[inline(always)]
fn emit<const V4: bool>(header: &HeaderFields, tuple: &FourTuple, bytes: &mut [u8]) {
    match (V4, tuple.local, tuple.remote) {
        (true, SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            header.emit_v4(*src.ip(), *dst.ip(), bytes);
        }
        (false, SocketAddr::V6(src), SocketAddr::V6(dst)) => {
            header.emit_v6(*src.ip(), *dst.ip(), bytes);
        }
        _ => ip::refuse_to_emit(tuple.local.ip(), tuple.remote.ip()),
    }
}

/// Returns the TTL or hop limit of packets whose socket sets none.
#[inline]
pub(crate) fn hop_limit<const V4: bool>(cx: &Cx) -> u8 {
    if V4 { cx.sysctls().ip_default_ttl } else { cx.sysctls().ip6_hop_limit }
}

/// Returns the flow label of a segment: 20 bits of the keyed hash of its four-tuple, so that
/// routers spread flows evenly and an outsider learns nothing about ports (RFC 6437 §3). Returns 0,
/// no label, for a segment whose `flow_hash` is 0, such as a reset without a socket.
#[inline]
fn flow_label(cx: &Cx, fields: IpFields, segment: &Packet) -> u32 {
    let is_labeled = match cx.sysctls().ip6_auto_flowlabels {
        0 => false,
        1 => fields.flow_label.unwrap_or(true),
        2 => fields.flow_label.unwrap_or(false),
        _ => true,
    };
    if is_labeled { segment.meta().flow_hash & 0x000f_ffff } else { 0 }
}

/// Returns the IPv4 identification of a segment; see [`super::ident`]. A superframe consumes one
/// identification for each of its `gso.segs` segments.
#[inline]
fn identification(
    cx: &mut Cx,
    sender: &mut Sender<'_>,
    dont: bool,
    segment: &Packet,
    len: u32,
) -> u16 {
    let Some(next) = &mut sender.ids else {
        return if dont { 0 } else { low_bits(cx.rng.next_u32()) };
    };
    if dont && sender.protocol == protocol::TCP {
        let data_offset = segment.linear().get(DATA_OFFSET).map_or(0, |byte| byte >> 4);
        if len <= u32::from(data_offset) * 4 {
            return 0;
        }
    }
    let id = **next;
    **next = id.wrapping_add(segment.meta().gso.segs.max(1));
    id
}

#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
const fn low_bits(number: u32) -> u16 {
    number as u16
}

/// Whether a packet carries DF: as its socket requests, otherwise as the route entry says.
fn dont_fragment(cx: &Cx, dst: &Dst, fields: IpFields) -> bool {
    // `dst.dont_fragment` is false if the path MTU is below the minimum, or if path MTU discovery
    // is disabled on the host. Only the former counts as `locked`.
    let locked = || !dst.dont_fragment && matches!(cx.sysctls().ip_no_pmtu_disc, 0 | 3);
    fields.mtu_discover.map_or(dst.dont_fragment, |discover| discover.dont_fragment(locked()))
}

/// Converts the length of a header.
fn len16(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a header has at most 60 bytes")
}

/// Drops and counts the segments of `tuple` in `cx.out`, because there is no route for them.
pub(crate) fn discard_unroutable(cx: &mut Cx, tuple: &FourTuple) {
    while let Some(segment) = cx.out.pop_front() {
        cx.count(Counter::IpOutNoRoutes.of_version(tuple.is_ipv4()), 1);
        cx.drop_packet(DropReason::IpNoRoute, segment);
    }
}

/// Frees the segments in `cx.out`, because the new socket or connection request that created them
/// is discarded.
pub(crate) fn discard_output(cx: &mut Cx) {
    while let Some(segment) = cx.out.pop_front() {
        cx.pool.free(segment);
    }
}
