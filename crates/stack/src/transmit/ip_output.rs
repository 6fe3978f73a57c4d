//! IP transmit: puts the header in front of what TCP made and sends it down, still in the caller's context.
//!
//! Linux: `__ip_queue_xmit`, `ip_finish_output`. DF is set on every TCP segment (RFC 1191 §3), unless path MTU
//! discovery is off or was told of a path too narrow for it. What the device cannot do
//! itself, superframes and checksums, is done in front of it (`tx_queue`).

use pkt::{DropReason, Packet, PacketList, TxChecksum};
use tcp::FourTuple;

use super::{
    dst::{Dst, DstHandle},
    link_output,
    packet_dst::{PacketDst, leave_rcu},
    qdisc::NetXmit,
};
use crate::{
    base::{counters::Counter, ids::CoreId, limits::GSO_BYTES_MAX},
    cx::Cx,
    device::QueueId,
    header::{
        ethernet::{EthernetHeader, HEADER_LEN, MacAddr},
        ip::{
            ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Fragment, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpHeader,
            protocol,
        },
    },
    host::Host,
};

/// Offset of the data offset in the TCP header.
const DATA_OFFSET: usize = 12;

/// What a socket wants of the IP header of its segments (RFC 9293 §3.9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// `IP_TOS`: the differentiated services field (RFC 2474 §3) without the two bits of ECN, which are TCP's.
    pub tos: u8,
    /// `SO_PRIORITY`, which `IP_TOS` sets too: no part of the header, but of what a discipline looks at.
    pub priority: u8,
    /// `IP_TTL`; `None` is `ip_default_ttl`.
    pub ttl: Option<u8>,
    /// `IP_MTU_DISCOVER`; `None` is what `ip_no_pmtu_disc` says.
    pub mtu_discover: Option<MtuDiscover>,
}

/// Path MTU discovery of one socket (RFC 1191), by Linux's numbers (`IP_PMTUDISC_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MtuDiscover {
    /// None: without DF, and no report counts.
    Dont = 0,
    /// With DF, unless a report has shown a path too narrow for it.
    Want = 1,
    /// With DF always.
    Do = 2,
    /// With DF always. Linux tells it from the one before by datagrams only.
    Probe = 3,
    /// Without DF, at the MTU of the device whatever is reported.
    Interface = 4,
    /// As the one before.
    Omit = 5,
}

impl MtuDiscover {
    /// In the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Dont, Self::Want, Self::Do, Self::Probe, Self::Interface, Self::Omit];

    /// Whether a report changes the size of segments (Linux: `ip_sk_accept_pmtu`, tcp_v4_mtu_reduced).
    pub(crate) const fn takes_reports(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }

    /// Whether segments carry DF; `locked` says that the path is too narrow for it (Linux: `ip_dont_fragment`).
    const fn dont_fragment(self, locked: bool) -> bool {
        match self {
            Self::Do | Self::Probe => true,
            Self::Want => !locked,
            Self::Dont | Self::Interface | Self::Omit => false,
        }
    }
}

/// Whose segments are sent, and what their IP headers take from there.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    /// Both ends.
    pub tuple: &'a FourTuple,
    /// What the socket wants.
    pub fields: IpFields,
    /// Next IPv4 identification of the connection; `None` for answers that belong to none.
    pub ids: Option<&'a mut u16>,
}

/// Sends every segment in `cx.out` along `dst`. The segments start with their TCP header.
pub(crate) fn output(
    host: &Host,
    cx: &mut Cx,
    dst: DstHandle<'_>,
    tuple: &FourTuple,
    core: CoreId,
) {
    let Some(first) = cx.out.pop_front() else { return };
    let queue = dst.tx.pick_queue(cx, core, first.meta().flow_hash);
    cx.out.push_front(first);
    let sender = Sender { tuple, fields: IpFields::default(), ids: None };
    let _ = output_as(host, cx, dst, sender, queue);
}

/// As [`output`], with the header that a socket wants, by the queue that it sends by. Says what became of the segments.
pub(crate) fn output_as(
    host: &Host,
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
        Some(_) => dst.tx.xmit(host, cx, queue, &mut list),
        None => link_output::output(host, cx, &dst, queue, &mut list),
    }
}

/// Lets every packet hold its dst, which it keeps while it waits for its receiver (Linux: `skb_dst_force` of a device
/// without `IFF_XMIT_DST_RELEASE`).
fn hold(cx: &Cx, dst: DstHandle<'_>, list: &mut PacketList) {
    let mut packets = core::mem::take(list);
    while let Some(mut packet) = packets.pop_front() {
        leave_rcu(&mut packet, PacketDst::Noref(dst), false).count(cx);
        list.push_back(packet);
    }
}

/// Sends one finished IP packet along `dst`: ICMP messages. Nothing is cut into fragments here.
pub(crate) fn send(host: &Host, cx: &mut Cx, dst: &Dst, packet: Packet) {
    cx.count(Counter::IpOutRequests, 1);
    if packet.len() > dst.mtu as usize {
        cx.count(Counter::IpFragFails, 1);
        return cx.drop_packet(DropReason::PacketTooBig, packet);
    }
    cx.count(Counter::IpExtOutOctets, packet.len() as u64);
    cx.count(Counter::IpOutTransmits, 1);
    let mut list = PacketList::new();
    list.push_back(packet);
    let _ = link_output::output(host, cx, dst, QueueId(0), &mut list);
}

/// The IP header, and the link header if it is known what to put into it. Answers the length of the IP packet.
#[inline]
fn push_headers<const V4: bool>(
    cx: &mut Cx,
    dst: &Dst,
    sender: &mut Sender<'_>,
    frame: Option<(MacAddr, MacAddr)>,
    segment: &mut Packet,
) -> usize {
    let payload_len = u32::try_from(segment.len()).expect("a packet of 4 GB at most");
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
    debug_assert!(header.total_len() <= GSO_BYTES_MAX as usize || segments > 1, "a superframe");
    let ether_type = if V4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
    match frame {
        Some((next_hop, own)) => {
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

/// The IPv4 identification of a segment; see [`super::ident`]. A superframe is one packet of `gso.segs` segments, each with
/// an identification of its own.
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

#[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
const fn low_bits(number: u32) -> u16 {
    number as u16
}

/// Whether a segment carries DF: as its socket wants, else as the path and the host's setting say.
fn dont_fragment(cx: &Cx, dst: &Dst, fields: IpFields) -> bool {
    // A host without path MTU discovery has no path that says more than that.
    let locked = !dst.dont_fragment && matches!(cx.sysctls().ip_no_pmtu_disc, 0 | 3);
    fields.mtu_discover.map_or(dst.dont_fragment, |discover| discover.dont_fragment(locked))
}

/// The length of a header.
fn len16(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("at most 60")
}

/// What TCP wanted to send has no route any more.
pub(crate) fn discard_unroutable(cx: &mut Cx) {
    while let Some(segment) = cx.out.pop_front() {
        cx.count(Counter::IpOutNoRoutes, 1);
        cx.drop_packet(DropReason::IpNoRoute, segment);
    }
}

/// Takes back what was to be sent for a socket that has lost a race.
pub(crate) fn discard_output(cx: &mut Cx) {
    while let Some(segment) = cx.out.pop_front() {
        cx.pool.free(segment);
    }
}
