//! IP receive: checks the header, finds out whether the packet is ours, and hands it to its protocol.
//!
//! Above: `link_input`. Below: `tcp_input`, `icmp_input`. Linux: `ip_rcv`, `ip_local_deliver`, `ip_list_rcv`, `ip_list_rcv_finish`,
//! `ip_sublist_rcv_finish`, `ip_extract_route_hint`. The steps have the order of RFC 1122 §3.2.1. A packet that is not for us is
//! dropped: this stack is a host and does not forward.
//!
//! ```text
//!   packet ─► header ─► early demux ─► its connection ─► sublist of this connection
//!                           └─► hint, or routes ─► dst ─► sublist of this dst
//! ```
//!
//! A **sublist** is what goes to one connection in a row, or, of what early demux gave to nobody, along one dst. The packets of a
//! sublist share what was found for its first: the connection, by one comparison each, with one output, one ACK and one wake for
//! all (`receive::flow`); or the dst.
//!
//! The **hint**: a packet that early demux could not place has the route of such a packet before it in the list, if destination
//! and type of service are the same: the routes are not asked again. Who sends it is looked at if that is not the one before.
//!
//! Differs from Linux, which takes a whole list through IP before the first of its packets goes up: here each goes up at once. To
//! keep packets and headers in between costs 3 to 5 % more instructions a packet than the order saves (`rx_list` bench), and the
//! order of what happens is the same. A hint does not keep a packet from early demux, which also finds the connection.

use pkt::{DropReason, Ecn, Packet, PacketType, Verdict};
use std::net::IpAddr;
use sync::epoch::Section;

use super::{
    early_demux::{Demuxed, early_demux},
    flow::Flow,
    icmp_input, tcp_input,
};
use crate::{
    base::counters::Counter,
    cx::Cx,
    header::ip::{self, IpHeader, protocol},
    host::Host,
    transmit::{
        dst::{DstHandle, RouteKind},
        packet_dst::{OnceDst, PacketDst},
    },
};

/// Where the last packet that was not dropped has gone. One that is dropped ends no sublist (Linux: `ip_list_rcv_finish` goes on
/// with the next).
#[derive(Clone, Copy)]
enum Place<'s> {
    /// Nowhere yet, or along an entry that it brought itself.
    Nowhere,
    /// To the current connection of the flow.
    Connection,
    /// To whoever was found, along this entry.
    Route(DstHandle<'s>),
}

/// The route of the last packet that early demux could not place (Linux: the `hint` of `ip_list_rcv_finish`).
struct Hint<'s> {
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    route: DstHandle<'s>,
}

/// A list on its way through IP: [`push`](Self::push) for each packet, [`finish`](Self::finish) at the end.
pub(crate) struct ListInput<'s> {
    place: Place<'s>,
    hint: Option<Hint<'s>>,
    /// Counted once for the list.
    packets: u64,
    bytes: u64,
    sublists: u64,
}

impl<'s> ListInput<'s> {
    pub(crate) const fn new() -> Self {
        Self { place: Place::Nowhere, hint: None, packets: 0, bytes: 0, sublists: 0 }
    }

    /// The end of the list.
    #[inline]
    pub(crate) fn finish(self, cx: &Cx) {
        cx.count(Counter::IpInReceives, self.packets);
        cx.count(Counter::IpExtInOctets, self.bytes);
        cx.count(Counter::RxSublists, self.sublists);
    }

    /// The next packet of the list, link header removed.
    pub(crate) fn push<const V4: bool>(
        &mut self,
        host: &'s Host,
        cx: &mut Cx,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        mut packet: Packet,
    ) -> Verdict {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        let repeated = if V4 { flow.repeated_header(&packet) } else { None };
        let repeats = repeated.is_some();
        let header = match repeated {
            Some(header) => header,
            None => match check_header::<V4>(&mut packet) {
                Ok(header) => header,
                Err(reason) => {
                    count_header_error(cx, reason);
                    return Verdict::Drop(reason, packet);
                }
            },
        };
        packet.truncate(header.total_len());
        let ecn = Ecn::from_traffic_class(header.traffic_class);
        // Every segment of a superframe carried the mark.
        cx.count(ecn_counter(ecn), u64::from(packet.meta().gso.segs.max(1)));
        packet.meta_mut().ecn = ecn;
        let demux = cx.sysctls().ip_early_demux && cx.sysctls().tcp_early_demux;
        if demux && let Some(found) = early_demux(host, rcu, flow, &header, repeats, &mut packet) {
            let follows = matches!(self.place, Place::Connection);
            match found {
                Demuxed::Current => self.sublists += u64::from(!follows),
                Demuxed::Stream(socket) => {
                    flow.follow(host, cx, socket);
                    self.sublists += 1;
                }
            }
            self.place = Place::Connection;
            return established(host, cx, rcu, flow, &header, packet);
        }
        self.push_by_route::<V4>(host, cx, rcu, flow, &header, packet)
    }

    /// A packet that early demux could not place.
    #[inline]
    fn push_by_route<const V4: bool>(
        &mut self,
        host: &'s Host,
        cx: &mut Cx,
        rcu: &'s Section<'_>,
        flow: &mut Flow<'s>,
        header: &IpHeader,
        mut packet: Packet,
    ) -> Verdict {
        let dst = match PacketDst::taken_from(&mut packet) {
            PacketDst::None => match self.route(host, cx, rcu, header, &mut packet) {
                Ok(found) => PacketDst::Noref(found),
                Err(reason) => return Verdict::Drop(reason, packet),
            },
            brought => {
                self.place = Place::Nowhere;
                self.sublists += 1;
                brought
            }
        };
        let dst = OnceDst::new(dst);
        let verdict = deliver::<V4>(host, cx, rcu, flow, &dst, header, packet);
        dst.take().release(cx, rcu);
        verdict
    }

    /// The hint's route, or what the routes say. Linux: `ip_can_use_hint`, `ip_route_use_hint`.
    fn route(
        &mut self,
        host: &'s Host,
        cx: &Cx,
        rcu: &'s Section<'_>,
        header: &IpHeader,
        packet: &mut Packet,
    ) -> Result<DstHandle<'s>, DropReason> {
        let IpHeader { src, dst, traffic_class, .. } = *header;
        let found = match &self.hint {
            Some(hint) if hint.dst == dst && hint.traffic_class == traffic_class => {
                if hint.src != src {
                    check_source(host, cx, rcu, packet.meta().rx_device, header)?;
                }
                accept(cx, packet, RouteKind::Local)?;
                cx.count(Counter::RxRouteHints, 1);
                hint.route
            }
            _ => route(host, cx, rcu, packet, header)?,
        };
        // Broadcasts are looked up one by one, as in Linux.
        self.hint = (found.tail().kind == RouteKind::Local).then_some(Hint {
            src,
            dst,
            traffic_class,
            route: found,
        });
        let follows = matches!(self.place, Place::Route(before) if core::ptr::eq(before.tail(), found.tail()));
        self.sublists += u64::from(!follows);
        self.place = Place::Route(found);
        Ok(found)
    }
}

/// A packet of the current connection of `flow`, which offers its route where the packet brings none.
#[inline]
pub(super) fn established<'s>(
    host: &'s Host,
    cx: &mut Cx,
    rcu: &'s Section<'_>,
    flow: &Flow<'s>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    let mut dst = PacketDst::taken_from(&mut packet);
    if matches!(dst, PacketDst::None) {
        dst = match flow.rx_dst(host, packet.meta().rx_device, rcu) {
            Some(found) => PacketDst::Noref(found),
            None => match route(host, cx, rcu, &mut packet, header) {
                Ok(found) => PacketDst::Noref(found),
                Err(reason) => return Verdict::Drop(reason, packet),
            },
        };
    }
    cx.count(Counter::IpInDelivers, 1);
    let dst = OnceDst::new(dst);
    let verdict = tcp_input::established(host, cx, rcu, flow, &dst, header, packet);
    dst.take().release(cx, rcu);
    verdict
}

pub(super) fn check_header<const V4: bool>(packet: &mut Packet) -> Result<IpHeader, DropReason> {
    if !packet.require_linear(ip::fixed_len::<V4>()) {
        return Err(DropReason::PacketTooShort);
    }
    let header_len = ip::claimed_len::<V4>(packet.linear())?;
    if !packet.require_linear(header_len) {
        return Err(DropReason::PacketTooShort);
    }
    ip::parse_packet::<V4>(packet, 0)
}

pub(super) fn count_header_error(cx: &Cx, reason: DropReason) {
    match reason {
        DropReason::IpCsum => cx.count(Counter::IpExtInCsumErrors, 1),
        DropReason::PacketTooShort => cx.count(Counter::IpExtInTruncatedPkts, 1),
        _ => {}
    }
    cx.count(Counter::IpInHdrErrors, 1);
}

/// The ECN field (RFC 3168 §5).
pub(super) const fn ecn_counter(ecn: Ecn) -> Counter {
    match ecn {
        Ecn::NotEct => Counter::IpExtInNoECTPkts,
        Ecn::Ect1 => Counter::IpExtInECT1Pkts,
        Ecn::Ect0 => Counter::IpExtInECT0Pkts,
        Ecn::Ce => Counter::IpExtInCEPkts,
    }
}

/// Ours, by address and by the way it came? Linux: `ip_route_input_rcu`.
pub(super) fn route<'s>(
    host: &'s Host,
    cx: &Cx,
    rcu: &'s Section<'_>,
    packet: &mut Packet,
    header: &IpHeader,
) -> Result<DstHandle<'s>, DropReason> {
    check_source(host, cx, rcu, packet.meta().rx_device, header)?;
    // Before the table: a change in between makes the entry too old, never too young.
    let generation = host.route_generation();
    let Some(found) = host.fib(rcu).lookup(header.dst) else {
        cx.count(Counter::IpExtInNoRoutes, 1);
        return Err(DropReason::IpNoRoute);
    };
    accept(cx, packet, found.kind)?;
    let device = packet.meta().rx_device;
    host.input_routes().entry(host, cx, device, (found, generation), rcu).ok_or_else(|| {
        cx.count(Counter::IpInDiscards, 1);
        DropReason::NoMemory
    })
}

/// May a packet that is routed as `kind` come in the frame it came in? Notes how it came.
pub(super) fn accept(cx: &Cx, packet: &mut Packet, kind: RouteKind) -> Result<(), DropReason> {
    let bytes = packet.len() as u64;
    match kind {
        RouteKind::Local => {
            // RFC 1122 §3.3.6: a unicast address in a link broadcast is not for us.
            if packet.meta().pkt_type == PacketType::Host {
                Ok(())
            } else {
                cx.count(Counter::IpInDiscards, 1);
                Err(DropReason::IpDestinationInvalid)
            }
        }
        // In whatever frame it came, and on links without frames: nobody is answered as if he had asked us alone.
        RouteKind::Broadcast => {
            packet.meta_mut().pkt_type = PacketType::Broadcast;
            cx.count(Counter::IpExtInBcastPkts, 1);
            cx.count(Counter::IpExtInBcastOctets, bytes);
            Ok(())
        }
        RouteKind::Multicast => {
            packet.meta_mut().pkt_type = PacketType::Multicast;
            cx.count(Counter::IpExtInMcastPkts, 1);
            cx.count(Counter::IpExtInMcastOctets, bytes);
            Ok(())
        }
        RouteKind::Unicast | RouteKind::Blackhole | RouteKind::Unreachable => {
            cx.count(Counter::IpInAddrErrors, 1);
            Err(DropReason::IpForwardingOff)
        }
    }
}

/// Checks the addresses of a packet that came by `device`: martians, then `rp_filter`. Packets over loopback are not checked.
/// Linux: `fib_validate_source`.
///
/// Differs from Linux: the source is checked before the destination is looked up, because martians are checked there already. A
/// packet that is both spoofed and for another host counts as spoofed, not as one that is not forwarded.
pub(super) fn check_source(
    host: &Host,
    cx: &Cx,
    rcu: &Section<'_>,
    device: u32,
    header: &IpHeader,
) -> Result<(), DropReason> {
    if host.is_loopback_device(device) {
        return Ok(());
    }
    check_martian(host, header, rcu).inspect_err(|_| cx.count(Counter::IpInAddrErrors, 1))?;
    let expected = match cx.sysctls().rp_filter {
        0 => return Ok(()),
        1 => Some(device),
        _ => None,
    };
    // A host without an address asks for one from 0.0.0.0, to which no route leads.
    if header.src.is_unspecified() || host.fib(rcu).has_route_back(header.src, expected) {
        return Ok(());
    }
    cx.counters().tcp.add(tcp::Counter::TcpExtIPReversePathFilter, 1);
    Err(DropReason::IpRpFilter)
}

/// Addresses that no honest packet brings in from a wire: 127/8 (RFC 1122 §3.2.1.3 (g)), and as its source an address of
/// ours, a broadcast or a multicast address.
fn check_martian(host: &Host, header: &IpHeader, rcu: &Section<'_>) -> Result<(), DropReason> {
    if host.fib(rcu).local_kind(header.src).is_some() {
        Err(DropReason::IpSourceInvalid)
    } else if header.dst.is_loopback() {
        Err(DropReason::IpDestinationInvalid)
    } else {
        Ok(())
    }
}

pub(super) fn deliver<'s, const V4: bool>(
    host: &'s Host,
    cx: &mut Cx,
    rcu: &'s Section<'_>,
    flow: &mut Flow<'s>,
    dst: &OnceDst<'_>,
    header: &IpHeader,
    packet: Packet,
) -> Verdict {
    if header.fragment.is_piece() {
        cx.count(Counter::IpReasmReqds, 1);
        cx.count(Counter::IpReasmFails, 1);
        return Verdict::Drop(DropReason::IpFragment, packet);
    }
    match header.protocol {
        protocol::TCP => {
            cx.count(Counter::IpInDelivers, 1);
            tcp_input::input(host, cx, rcu, flow, dst, header, packet)
        }
        protocol::ICMP if V4 => {
            cx.count(Counter::IpInDelivers, 1);
            icmp_input::input(host, cx, rcu, header, packet)
        }
        _ => {
            cx.count(Counter::IpInUnknownProtos, 1);
            icmp_input::send_protocol_unreachable(host, cx, header, &packet);
            Verdict::Drop(DropReason::IpNoProtocol, packet)
        }
    }
}
