//! IP receive: checks the header, decides whether the packet is for this host, and passes it to its
//! protocol.
//!
//! Above: `link_input`. Below: `tcp_input`, `icmp_input`. Linux: `ip_rcv`, `ip_local_deliver`,
//! `ip_list_rcv`, `ip_list_rcv_finish`, `ip_sublist_rcv_finish`, `ip_extract_route_hint`. The steps
//! have the order of RFC 1122 §3.2.1. A packet that is not for this host is dropped: this stack is
//! a host and does not forward.
//!
//! ```text
//!   packet ─► header ─► early demux ─► its connection ─► sublist of this connection
//!                           └─► hint, or routes ─► dst ─► sublist of this dst
//! ```
//!
//! A **sublist** is a run of consecutive packets to one connection or, for packets without a
//! connection, along one dst. The packets of a sublist share the result of its first packet. For a
//! connection, each further packet costs one comparison, and the sublist has one output, one ACK
//! decision and one wake (`socket::rx`).
//!
//! The **hint** is the route of the previous packet that early demux did not place. The next such
//! packet reuses it without a lookup if its destination and type of service are the same. The
//! source is checked if it differs.
//!
//! Differs from Linux: each packet is delivered at once, where Linux takes the whole list through
//! IP before it delivers the first packet. Keeping packets and headers in between costs 3 to 5 %
//! more instructions per packet than it saves (`rx_list` bench), and the order of the effects is
//! the same. A packet tries early demux even if a hint would fit, because early demux also finds
//! the connection.

use std::net::IpAddr;

use pkt::{DropReason, Ecn, Packet, PacketType, Verdict};

use super::{
    early_demux::{Demuxed, early_demux},
    icmp_input, reassembly, tcp_input,
};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::ip::{self, IpHeader, protocol},
    socket::rx::Rx,
    transmit::{
        dst::{DstHandle, RouteKind},
        packet_dst::{OnceDst, PacketDst},
    },
};

/// Destination of the last packet that was not dropped. A dropped packet does not end a sublist
/// (Linux: `ip_list_rcv_finish` continues with the next packet).
#[derive(Clone, Copy)]
enum Place<'s> {
    /// No packet yet, or one that carried its own dst.
    Nowhere,
    /// Connection of the previous packet, which `Flow` remembers.
    Connection,
    /// Local delivery along this dst.
    Route(DstHandle<'s>),
}

/// The route of the last packet that early demux could not place (Linux: the `hint` of
/// `ip_list_rcv_finish`).
struct Hint<'s> {
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    route: DstHandle<'s>,
}

/// State of one list in the IP layer: [`push`](Self::push) takes each packet,
/// [`finish`](Self::finish) ends the list.
pub(crate) struct ListInput<'s> {
    place: Place<'s>,
    hint: Option<Hint<'s>>,
    /// Packets of the list. This count and the two below are added to the counters once per list.
    packets: u64,
    bytes: u64,
    sublists: u64,
}

impl<'s> ListInput<'s> {
    pub(crate) const fn new() -> Self {
        Self { place: Place::Nowhere, hint: None, packets: 0, bytes: 0, sublists: 0 }
    }

    /// Ends the list and adds its counts.
    #[inline]
    pub(crate) fn finish(self, cx: &Cx) {
        cx.count(Counter::IpInReceives, self.packets);
        cx.count(Counter::IpExtInOctets, self.bytes);
        cx.count(Counter::RxSublists, self.sublists);
    }

    /// Handles the next packet of the list, without its link header.
    pub(crate) fn push<const V4: bool>(
        &mut self,
        rx: &mut Rx<'_, 's>,
        mut packet: Packet,
    ) -> Verdict {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        let repeated = if V4 { rx.flow.repeated_header(&packet) } else { None };
        let repeats = repeated.is_some();
        let header = match repeated {
            Some(header) => header,
            None => match check_header::<V4>(&mut packet) {
                Ok(header) => header,
                Err(reason) => {
                    count_header_error(rx.cx, reason);
                    return Verdict::Drop(reason, packet);
                }
            },
        };
        packet.truncate(header.total_len());
        let ecn = Ecn::from_traffic_class(header.traffic_class);
        // Every segment of a superframe carries the same ECN mark.
        rx.cx.count(ecn_counter(ecn), u64::from(packet.meta().gso.segs.max(1)));
        packet.meta_mut().ecn = ecn;
        let sysctls = rx.cx.sysctls();
        let demux = sysctls.ip_early_demux && sysctls.tcp_early_demux;
        if demux && let Some(found) = early_demux(rx, &header, repeats, &mut packet) {
            let follows = matches!(self.place, Place::Connection);
            match found {
                Demuxed::Current => self.sublists += u64::from(!follows),
                Demuxed::Stream(socket) => {
                    rx.follow(socket);
                    self.sublists += 1;
                }
            }
            self.place = Place::Connection;
            return established(rx, &header, packet);
        }
        self.push_by_route::<V4>(rx, &header, packet)
    }

    /// Delivers a packet that early demux did not place.
    #[inline]
    fn push_by_route<const V4: bool>(
        &mut self,
        rx: &mut Rx<'_, 's>,
        header: &IpHeader,
        mut packet: Packet,
    ) -> Verdict {
        let dst = match PacketDst::taken_from(&mut packet) {
            PacketDst::None => match self.route(rx, header, &mut packet) {
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
        let verdict = deliver::<V4>(rx, &dst, header, packet);
        dst.take().release(rx.cx, rx.rcu);
        verdict
    }

    /// Returns the hint's route if it fits, or the result of a route lookup. Linux:
    /// `ip_can_use_hint`, `ip_route_use_hint`.
    fn route(
        &mut self,
        rx: &Rx<'_, 's>,
        header: &IpHeader,
        packet: &mut Packet,
    ) -> Result<DstHandle<'s>, DropReason> {
        let IpHeader { src, dst, traffic_class, .. } = *header;
        let found = match &self.hint {
            Some(hint) if hint.dst == dst && hint.traffic_class == traffic_class => {
                if hint.src != src {
                    check_source(rx, DeviceIndex(packet.meta().rx_device), header)?;
                }
                accept(rx.cx, packet, RouteKind::Local)?;
                rx.cx.count(Counter::RxRouteHints, 1);
                hint.route
            }
            _ => route(rx, packet, header)?,
        };
        // Only local routes become hints: broadcasts are looked up one by one, as in Linux.
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

/// Delivers a packet to the current connection. A packet without a dst takes the
/// connection's cached route.
#[inline]
pub(super) fn established(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    let mut dst = PacketDst::taken_from(&mut packet);
    if matches!(dst, PacketDst::None) {
        dst = match rx.rx_dst(DeviceIndex(packet.meta().rx_device)) {
            Some(found) => PacketDst::Noref(found),
            None => match route(rx, &mut packet, header) {
                Ok(found) => PacketDst::Noref(found),
                Err(reason) => return Verdict::Drop(reason, packet),
            },
        };
    }
    rx.cx.count(Counter::IpInDelivers, 1);
    let dst = OnceDst::new(dst);
    let verdict = tcp_input::established(rx, &dst, header, packet);
    dst.take().release(rx.cx, rx.rcu);
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

/// Returns the counter of an ECN field (RFC 3168 §5).
pub(super) const fn ecn_counter(ecn: Ecn) -> Counter {
    match ecn {
        Ecn::NotEct => Counter::IpExtInNoECTPkts,
        Ecn::Ect1 => Counter::IpExtInECT1Pkts,
        Ecn::Ect0 => Counter::IpExtInECT0Pkts,
        Ecn::Ce => Counter::IpExtInCEPkts,
    }
}

/// Decides by addresses and receiving device whether the packet is for this host. Linux:
/// `ip_route_input_rcu`.
pub(super) fn route<'s>(
    rx: &Rx<'_, 's>,
    packet: &mut Packet,
    header: &IpHeader,
) -> Result<DstHandle<'s>, DropReason> {
    check_source(rx, DeviceIndex(packet.meta().rx_device), header)?;
    // Read before the table: a concurrent change then makes the new entry look stale, never valid
    // for too long.
    let generation = rx.net.route_generation();
    let Some(found) = rx.net.fib(rx.rcu).lookup(header.dst) else {
        rx.cx.count(Counter::IpExtInNoRoutes, 1);
        return Err(DropReason::IpNoRoute);
    };
    accept(rx.cx, packet, found.kind)?;
    let device = DeviceIndex(packet.meta().rx_device);
    let routes = rx.net.input_routes();
    routes.entry(rx.net, rx.cx, device, header.dst, found, generation, rx.rcu).ok_or_else(|| {
        rx.cx.count(Counter::IpInDiscards, 1);
        DropReason::NoMemory
    })
}

/// Decides whether a packet with a route of this kind may arrive in its link frame, and notes the
/// packet type.
pub(super) fn accept(cx: &Cx, packet: &mut Packet, kind: RouteKind) -> Result<(), DropReason> {
    let bytes = packet.len() as u64;
    match kind {
        RouteKind::Local => {
            // A unicast IP address in a link broadcast is not accepted (RFC 1122 §3.3.6).
            if packet.meta().pkt_type == PacketType::Host {
                Ok(())
            } else {
                cx.count(Counter::IpInDiscards, 1);
                Err(DropReason::IpDestinationInvalid)
            }
        }
        // The IP destination decides, not the link frame, which some links do not have: a
        // broadcast never gets the reply of a unicast packet.
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
        // A host reports nothing to the sender, not even for unreachable and prohibited
        // destinations (Linux: `ip_error` without forwarding).
        RouteKind::Unicast
        | RouteKind::Blackhole
        | RouteKind::Unreachable
        | RouteKind::Prohibit => {
            cx.count(Counter::IpInAddrErrors, 1);
            Err(DropReason::IpForwardingOff)
        }
    }
}

/// Checks the addresses of a packet received on `device`: martians, then `rp_filter`. Packets over
/// loopback are not checked. Linux: `fib_validate_source`.
///
/// Differs from Linux: the source is checked before the destination lookup, because martian
/// destinations are checked here, too. A packet that is both spoofed and for another host is
/// counted as spoofed, not as unforwardable.
pub(super) fn check_source(
    rx: &Rx<'_, '_>,
    device: DeviceIndex,
    header: &IpHeader,
) -> Result<(), DropReason> {
    if rx.net.is_loopback_device(device) {
        return Ok(());
    }
    check_martian(rx, header).inspect_err(|_| rx.cx.count(Counter::IpInAddrErrors, 1))?;
    let expected = match rx.cx.sysctls().rp_filter {
        0 => return Ok(()),
        1 => Some(device),
        _ => None,
    };
    // A host without an address uses the source 0.0.0.0 to request one, and no route leads back
    // there.
    if header.src.is_unspecified() || rx.net.fib(rx.rcu).has_route_back(header.src, expected) {
        return Ok(());
    }
    rx.cx.counters().tcp.add(tcp::Counter::TcpExtIPReversePathFilter, 1);
    Err(DropReason::IpRpFilter)
}

/// Rejects addresses that are never valid from a wire: the destination 127/8 (RFC 1122 §3.2.1.3
/// (g)), and as source one of our own addresses, a broadcast or a multicast address.
fn check_martian(rx: &Rx<'_, '_>, header: &IpHeader) -> Result<(), DropReason> {
    if rx.net.fib(rx.rcu).local_kind(header.src).is_some() {
        Err(DropReason::IpSourceInvalid)
    } else if header.dst.is_loopback() {
        Err(DropReason::IpDestinationInvalid)
    } else {
        Ok(())
    }
}

pub(super) fn deliver<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    dst: &OnceDst<'_>,
    header: &IpHeader,
    packet: Packet,
) -> Verdict {
    if header.fragment.is_piece() {
        return match reassembly::input::<V4>(rx, header, packet) {
            Ok(Some((header, packet))) => deliver::<V4>(rx, dst, &header, packet),
            Ok(None) => Verdict::Consumed,
            Err((reason, packet)) => Verdict::Drop(reason, packet),
        };
    }
    match header.protocol {
        protocol::TCP => {
            rx.cx.count(Counter::IpInDelivers, 1);
            tcp_input::input(rx, dst, header, packet)
        }
        protocol::ICMP if V4 => {
            rx.cx.count(Counter::IpInDelivers, 1);
            icmp_input::input(rx, header, packet)
        }
        _ => {
            rx.cx.count(Counter::IpInUnknownProtos, 1);
            icmp_input::send_protocol_unreachable(rx, header, &packet);
            Verdict::Drop(DropReason::IpNoProtocol, packet)
        }
    }
}
