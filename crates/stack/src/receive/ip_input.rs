//! IP receive: checks the header, decides whether the packet is for this host, and passes the
//! packet to its protocol.
//!
//! Above: `link_input`. Below: `tcp_input`, `udp_input`, `icmp_input`, `group_query`; for
//! fragments, `reassembly`. Linux: `ip_rcv`, `ip_local_deliver`, `ip_list_rcv`,
//! `ip_list_rcv_finish`, `ip_sublist_rcv_finish`, `ip_extract_route_hint`; `ipv6_rcv`,
//! `ip6_input_finish`. Packets of both IP versions pass the same functions; the parameter `V4`
//! selects the header. The steps have the order of RFC 1122 §3.2.1. A packet that is not for this
//! host is dropped, because this stack is a host and does not forward, unless its device intercepts
//! flows (`intercept`).
//!
//! After its header is checked, a packet takes one of three ways. If early demux finds its
//! connection, the packet joins the sublist of this connection. A datagram for which early demux
//! finds a connected socket goes to this socket. For any other packet, the route entry (dst) is
//! that of the hint or the result of a lookup, and the packet joins the sublist of this entry. A
//! packet over loopback may bring its route entry; then it joins no sublist.
//!
//! A **sublist** is a sequence of consecutive packets to one connection. Packets for which early
//! demux finds no connection form a sublist if they have the same route entry. In the sublist of a
//! connection, each further packet costs one comparison, and all packets together cause one output,
//! one ACK decision and one wake (`socket::rx`).
//!
//! The **hint** is the route entry of the previous packet whose route was looked up, if that packet
//! was for an address of this host. The next such packet uses the hint without a lookup if it has
//! the same destination and type of service. If its source address differs, the source is checked.
//!
//! Differs from Linux: each packet is delivered at once, whereas Linux takes the whole list through
//! IP before it delivers the first packet. Keeping packets and headers in between costs 3 to 5 %
//! more instructions per packet than it saves (`rx_list` bench), and the order of the effects is
//! the same. Early demux is tried even if the hint fits, because early demux also finds the
//! connection.

use std::net::{IpAddr, Ipv4Addr};

use pkt::{DropReason, Ecn, Packet, PacketType, Verdict};

use super::{
    early_demux::{self, Demuxed, early_demux},
    group_query, icmp_input, intercept, reassembly, tcp_input, udp_input,
};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::{
        extension::{self, Problem},
        icmp::{IcmpMessage, Unreachable},
        ip::{self, IpHeader, protocol},
        ndp,
    },
    route::fib::{Route, is_link_local},
    socket::rx::Rx,
    transmit::{
        dst::{DstHandle, RouteKind},
        packet_dst::{OnceDst, PacketDst},
    },
};

/// Offset of Next Header in the fixed IPv6 header.
const NEXT_HEADER: u16 = 6;

/// Sublist of the last packet whose connection or route entry was found. A packet that is dropped
/// before either is found ends no sublist (Linux: `ip_list_rcv_finish` continues with the next
/// one).
#[derive(Clone, Copy)]
enum Sublist<'s> {
    /// No sublist: there was no packet yet, or the last one carried a route entry with it
    /// (loopback), or was a datagram for a connected socket.
    None,
    /// Packets of one connection: the current connection of `Rx::flow`.
    Connection,
    /// Packets with this route entry.
    Route(DstHandle<'s>),
}

/// Route entry of the last packet whose route was looked up (Linux: the `hint` of
/// `ip_list_rcv_finish`).
struct Hint<'s> {
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    route: DstHandle<'s>,
}

/// State of one list of packets in the IP layer. [`push`](Self::push) takes each packet, and
/// [`finish`](Self::finish) ends the list.
pub(crate) struct ListInput<'s> {
    sublist: Sublist<'s>,
    hint: Option<Hint<'s>>,
    /// Counts of the list, added to the counters once at the end of the list.
    v4: ListCounts,
    v6: ListCounts,
    sublists: u64,
}

/// Packets and bytes of one IP version in a list.
#[derive(Clone, Copy, Default)]
struct ListCounts {
    packets: u64,
    bytes: u64,
}

impl<'s> ListInput<'s> {
    pub(crate) const fn new() -> Self {
        let none = ListCounts { packets: 0, bytes: 0 };
        Self { sublist: Sublist::None, hint: None, v4: none, v6: none, sublists: 0 }
    }

    /// Ends the list and adds its counts to the counters.
    #[inline]
    pub(crate) fn finish(self, cx: &Cx) {
        cx.count(Counter::IpInReceives, self.v4.packets);
        cx.count(Counter::IpExtInOctets, self.v4.bytes);
        if self.v6.packets != 0 {
            cx.count(Counter::Ip6InReceives, self.v6.packets);
            cx.count(Counter::Ip6InOctets, self.v6.bytes);
        }
        cx.count(Counter::RxSublists, self.sublists);
    }

    /// Handles the next packet of the list. Its link header has been removed.
    pub(crate) fn push<const V4: bool>(
        &mut self,
        rx: &mut Rx<'_, 's>,
        mut packet: Packet,
    ) -> Verdict {
        let counts = if V4 { &mut self.v4 } else { &mut self.v6 };
        counts.packets += 1;
        counts.bytes += packet.len() as u64;
        let repeated = rx.flow.repeated_header::<V4>(&packet);
        let repeats = repeated.is_some();
        let mut header = match repeated {
            Some(header) => header,
            None => match check_header::<V4>(&mut packet) {
                Ok(header) => header,
                Err(reason) => {
                    count_header_error::<V4>(rx.cx, reason);
                    return Verdict::Drop(reason, packet);
                }
            },
        };
        packet.truncate(header.total_len());
        let mut protocol_at = NEXT_HEADER;
        if !V4 && extension::is_extension(header.protocol) {
            match read_extensions(rx, &mut header, &mut packet) {
                Ok(at) => protocol_at = at,
                Err(reason) => return Verdict::Drop(reason, packet),
            }
        }
        let ecn = Ecn::from_traffic_class(header.traffic_class);
        // Every segment of a superframe (a packet of several segments) carries the same ECN mark.
        rx.cx.count(ecn_counter(ecn).of::<V4>(), u64::from(packet.meta().gso.segs.max(1)));
        packet.meta_mut().ecn = ecn;
        let sysctls = rx.cx.sysctls();
        let demux = sysctls.ip_early_demux && sysctls.tcp_early_demux;
        if demux && let Some(found) = early_demux::<V4>(rx, &header, repeats, &mut packet) {
            let follows = matches!(self.sublist, Sublist::Connection);
            match found {
                Demuxed::Current => self.sublists += u64::from(!follows),
                Demuxed::Stream(socket) => {
                    rx.switch_to(socket);
                    self.sublists += 1;
                }
            }
            self.sublist = Sublist::Connection;
            return established::<V4>(rx, &header, packet);
        }
        if header.protocol == protocol::UDP {
            return self.push_datagram::<V4>(rx, &header, repeats, protocol_at, packet);
        }
        self.push_by_route::<V4>(rx, &header, protocol_at, packet)
    }

    /// Delivers a datagram. If early demux finds a connected socket, the route is looked up only if
    /// the socket caches no valid route entry and the packet brings none.
    fn push_datagram<const V4: bool>(
        &mut self,
        rx: &mut Rx<'_, 's>,
        header: &IpHeader,
        repeats: bool,
        protocol_at: u16,
        mut packet: Packet,
    ) -> Verdict {
        let sysctls = rx.cx.sysctls();
        let demux = sysctls.ip_early_demux && sysctls.udp_early_demux;
        let found = match demux {
            true => early_demux::datagram::<V4>(rx, header, repeats, &mut packet),
            false => None,
        };
        let Some(socket) = found else {
            return self.push_by_route::<V4>(rx, header, protocol_at, packet);
        };
        self.sublist = Sublist::None;
        self.sublists += u64::from(!rx.is_current_datagram_socket(socket));
        let device = DeviceIndex(packet.meta().rx_device);
        let brought = PacketDst::taken_from(&mut packet);
        if !matches!(brought, PacketDst::None) {
            socket.cache_rx_dst(rx.net, rx.cx, device, brought);
        } else if socket.rx_dst(rx.net, device, rx.rcu).is_none() {
            match route::<V4>(rx, &mut packet, header) {
                Ok(found) => socket.cache_rx_dst(rx.net, rx.cx, device, PacketDst::Noref(found)),
                Err(reason) => return Verdict::Drop(reason, packet),
            }
        }
        rx.cx.count(Counter::IpInDelivers.of::<V4>(), 1);
        udp_input::connected::<V4>(rx, socket, header, packet)
    }

    /// Delivers a packet for which early demux found no socket.
    #[inline]
    fn push_by_route<const V4: bool>(
        &mut self,
        rx: &mut Rx<'_, 's>,
        header: &IpHeader,
        protocol_at: u16,
        mut packet: Packet,
    ) -> Verdict {
        let dst = match PacketDst::taken_from(&mut packet) {
            PacketDst::None => match self.route::<V4>(rx, header, &mut packet) {
                Ok(found) => PacketDst::Noref(found),
                Err(reason) => return Verdict::Drop(reason, packet),
            },
            brought => {
                self.sublist = Sublist::None;
                self.sublists += 1;
                brought
            }
        };
        let dst = OnceDst::new(dst);
        let verdict = deliver::<V4>(rx, &dst, header, protocol_at, packet);
        dst.take().release(rx.cx, rx.rcu);
        verdict
    }

    /// Returns the route entry of the hint if the hint fits, or the result of a route lookup.
    /// Linux: `ip_can_use_hint`, `ip_route_use_hint`.
    fn route<const V4: bool>(
        &mut self,
        rx: &Rx<'_, 's>,
        header: &IpHeader,
        packet: &mut Packet,
    ) -> Result<DstHandle<'s>, DropReason> {
        let IpHeader { src, dst, traffic_class, .. } = *header;
        let found = match &self.hint {
            Some(hint) if hint.dst == dst && hint.traffic_class == traffic_class => {
                if hint.src != src {
                    check_source::<V4>(rx, DeviceIndex(packet.meta().rx_device), header)?;
                }
                accept::<V4>(rx, packet, header, RouteKind::Local)?;
                rx.cx.count(Counter::RxRouteHints, 1);
                hint.route
            }
            _ => route::<V4>(rx, packet, header)?,
        };
        // Only a local route becomes a hint: the route of each broadcast is looked up, as in Linux.
        self.hint = (found.tail().kind == RouteKind::Local).then_some(Hint {
            src,
            dst,
            traffic_class,
            route: found,
        });
        let follows = matches!(self.sublist, Sublist::Route(before) if core::ptr::eq(before.tail(), found.tail()));
        self.sublists += u64::from(!follows);
        self.sublist = Sublist::Route(found);
        Ok(found)
    }
}

/// Delivers a packet to the current connection. A packet that carries no route entry uses the one
/// that the connection has cached or, if that is not valid, the result of a lookup.
#[inline]
pub(super) fn established<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    let mut dst = PacketDst::taken_from(&mut packet);
    if matches!(dst, PacketDst::None) {
        let device = DeviceIndex(packet.meta().rx_device);
        dst = match rx.rx_dst(device) {
            Some(found) => PacketDst::Noref(found),
            None if !rx.may_come_by(device) => {
                return Verdict::Drop(DropReason::IpSourceInvalid, packet);
            }
            None => match route::<V4>(rx, &mut packet, header) {
                Ok(found) => PacketDst::Noref(found),
                Err(reason) => return Verdict::Drop(reason, packet),
            },
        };
    }
    rx.cx.count(Counter::IpInDelivers.of::<V4>(), 1);
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

/// Reads the extension headers of an IPv6 packet and includes them in `header`, as if they were
/// part of the fixed header. Returns the offset of the byte that holds the number of the protocol.
#[cold]
fn read_extensions(
    rx: &mut Rx<'_, '_>,
    header: &mut IpHeader,
    packet: &mut Packet,
) -> Result<u16, DropReason> {
    let fixed = usize::from(header.header_len);
    let wanted = packet.len().min(fixed + extension::CHAIN_BYTES_MAX);
    if !packet.require_linear(wanted) {
        count_header_error::<false>(rx.cx, DropReason::IpOptions);
        return Err(DropReason::IpOptions);
    }
    match extension::read(header.protocol, &packet.linear()[fixed..wanted]) {
        Ok(chain) => {
            header.protocol = chain.protocol;
            header.fragment = chain.fragment;
            header.header_len += chain.len;
            header.payload_len -= u32::from(chain.len);
            if chain.has_fragment && !chain.fragment.is_fragment() {
                // An atomic fragment is processed at once, even if other fragments have the same
                // identification (RFC 6946).
                rx.cx.count(Counter::Ip6ReasmReqds, 1);
                rx.cx.count(Counter::Ip6ReasmOKs, 1);
                check_not_discovery(header, packet)?;
            }
            Ok(chain.protocol_at)
        }
        Err(refusal) => {
            count_header_error::<false>(rx.cx, refusal.reason);
            if let Some(Problem { code, pointer }) = refusal.problem {
                let message = IcmpMessage::ParameterProblem { code, pointer };
                icmp_input::send_error::<false>(rx, header, message, packet);
            }
            Err(refusal.reason)
        }
    }
}

pub(super) fn count_header_error<const V4: bool>(cx: &Cx, reason: DropReason) {
    match reason {
        DropReason::IpCsum => cx.count(Counter::IpExtInCsumErrors, 1),
        DropReason::PacketTooShort => cx.count(Counter::IpExtInTruncatedPkts.of::<V4>(), 1),
        _ => {}
    }
    cx.count(Counter::IpInHdrErrors.of::<V4>(), 1);
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

/// Decides by addresses and receiving device whether the packet is for this host, and returns the
/// route entry. Linux: `ip_route_input_rcu`.
pub(super) fn route<'s, const V4: bool>(
    rx: &Rx<'_, 's>,
    packet: &mut Packet,
    header: &IpHeader,
) -> Result<DstHandle<'s>, DropReason> {
    check_source::<V4>(rx, DeviceIndex(packet.meta().rx_device), header)?;
    // The generation is read before the table. If the routes change in between, the new entry
    // carries the old generation and counts as stale. In the other order, an outdated entry could
    // count as current.
    let generation = rx.net.route_generation();
    let found = rx.net.fib(rx.rcu).lookup(header.dst);
    let device = DeviceIndex(packet.meta().rx_device);
    let (prefix, kind) = if intercept::takes(rx, device, header, packet, found.as_deref()) {
        (intercept::anywhere::<V4>(), RouteKind::Unicast)
    } else {
        let Some(found) = found else {
            rx.cx.count(Counter::IpExtInNoRoutes.of::<V4>(), 1);
            return Err(DropReason::IpNoRoute);
        };
        accept::<V4>(rx, packet, header, found.kind)?;
        if !V4 && is_of_other_link(rx, device, header, &found) {
            rx.cx.count(Counter::Ip6InAddrErrors, 1);
            return Err(DropReason::IpDestinationInvalid);
        }
        (found.prefix(header.dst), found.kind)
    };
    let routes = rx.net.input_routes();
    routes.entry(rx.net, rx.cx, device, (prefix, kind, generation), rx.rcu).ok_or_else(|| {
        rx.cx.count(Counter::IpInDiscards.of::<V4>(), 1);
        DropReason::NoMemory
    })
}

/// Whether the destination is a link-local address that this host has on another link than that of
/// the receiving `device` (RFC 4007 §9). A packet over loopback was on no link, so false is
/// returned.
fn is_of_other_link(
    rx: &Rx<'_, '_>,
    device: DeviceIndex,
    header: &IpHeader,
    found: &Route,
) -> bool {
    is_link_local(header.dst)
        && found.kind == RouteKind::Local
        && found.device != device
        && !rx.net.is_loopback_device(device)
}

/// Decides whether a packet whose route is of this kind is accepted, and sets the packet type.
pub(super) fn accept<const V4: bool>(
    rx: &Rx<'_, '_>,
    packet: &mut Packet,
    header: &IpHeader,
    kind: RouteKind,
) -> Result<(), DropReason> {
    let (cx, bytes) = (&*rx.cx, packet.len() as u64);
    match kind {
        RouteKind::Local => {
            // A unicast IP packet in a broadcast or multicast frame is not accepted
            // (RFC 1122 §3.3.6).
            if packet.meta().pkt_type == PacketType::Host {
                Ok(())
            } else {
                cx.count(Counter::IpInDiscards.of::<V4>(), 1);
                Err(DropReason::IpDestinationInvalid)
            }
        }
        // The packet type is taken from the IP destination, because some links have no link header.
        // A packet to a broadcast address therefore never causes a reply, such as an ICMP error,
        // that only a unicast packet may cause.
        RouteKind::Broadcast => {
            packet.meta_mut().pkt_type = PacketType::Broadcast;
            cx.count(Counter::IpExtInBcastPkts, 1);
            cx.count(Counter::IpExtInBcastOctets, bytes);
            Ok(())
        }
        RouteKind::Multicast => {
            packet.meta_mut().pkt_type = PacketType::Multicast;
            cx.count(Counter::IpExtInMcastPkts.of::<V4>(), 1);
            cx.count(Counter::IpExtInMcastOctets.of::<V4>(), bytes);
            let device = DeviceIndex(packet.meta().rx_device);
            if !V4 && !rx.net.is_member(rx.rcu, device, header.dst) {
                cx.count(Counter::Ip6InAddrErrors, 1);
                return Err(DropReason::IpDestinationInvalid);
            }
            Ok(())
        }
        // A host reports nothing to the sender, not even for unreachable and prohibited
        // destinations (Linux: `ip_error` without forwarding).
        RouteKind::Unicast
        | RouteKind::Blackhole
        | RouteKind::Unreachable
        | RouteKind::Prohibit => {
            cx.count(Counter::IpInAddrErrors.of::<V4>(), 1);
            Err(DropReason::IpForwardingOff)
        }
    }
}

/// Checks the addresses of a packet that `device` has received: rejects addresses that are never
/// valid (martians), then applies `rp_filter`. Packets over loopback are not checked. Linux:
/// `fib_validate_source`.
///
/// Differs from Linux: the source is checked before the destination is looked up, because this
/// function also checks martian destinations. A packet with a spoofed source that is for another
/// host is counted as spoofed, not as a packet that would have to be forwarded.
pub(super) fn check_source<const V4: bool>(
    rx: &Rx<'_, '_>,
    device: DeviceIndex,
    header: &IpHeader,
) -> Result<(), DropReason> {
    if rx.net.is_loopback_device(device) {
        return Ok(());
    }
    check_martian::<V4>(rx, header)
        .inspect_err(|_| rx.cx.count(Counter::IpInAddrErrors.of::<V4>(), 1))?;
    if !V4 {
        // As in Linux, `rp_filter` is a setting of IPv4.
        return Ok(());
    }
    let expected = match rx.cx.sysctls().rp_filter {
        0 => return Ok(()),
        1 => Some(device),
        _ => None,
    };
    // A host without an address uses the source 0.0.0.0 to request one. No route leads to 0.0.0.0.
    if header.src.is_unspecified() || rx.net.fib(rx.rcu).has_route_back(header.src, expected) {
        return Ok(());
    }
    // Differs from Linux, where a DHCP client reads packets before this check: here a broadcast
    // passes while the device has no IPv4 address, because no route leads to a server that offers
    // one.
    if header.dst == IpAddr::V4(Ipv4Addr::BROADCAST)
        && rx.net.fib(rx.rcu).first_address(device, true).is_none()
    {
        return Ok(());
    }
    rx.cx.counters().tcp.add(tcp::Counter::TcpExtIPReversePathFilter, 1);
    Err(DropReason::IpRpFilter)
}

/// Rejects addresses that are never valid in a packet from a link: as destination 127/8
/// (RFC 1122 §3.2.1.3 (g)), ::1 (RFC 4291 §2.5.3), or a multicast group whose packets never leave a
/// host (RFC 4291 §2.7); as source one of our own addresses, a broadcast or a multicast address.
fn check_martian<const V4: bool>(rx: &Rx<'_, '_>, header: &IpHeader) -> Result<(), DropReason> {
    let stays_inside = match header.dst {
        IpAddr::V6(dst) if !V4 => dst.is_multicast() && dst.octets()[1] & 0x0f <= 1,
        _ => false,
    };
    if rx.net.fib(rx.rcu).local_kind(header.src).is_some() {
        Err(DropReason::IpSourceInvalid)
    } else if header.dst.is_loopback() || stays_inside {
        Err(DropReason::IpDestinationInvalid)
    } else {
        Ok(())
    }
}

/// Passes a packet to its protocol. `protocol_at` is the offset of the byte of an IPv6 packet that
/// holds the number of the protocol.
pub(super) fn deliver<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    dst: &OnceDst<'_>,
    header: &IpHeader,
    protocol_at: u16,
    packet: Packet,
) -> Verdict {
    if header.fragment.is_fragment() {
        return deliver_fragment::<V4>(rx, dst, header, packet);
    }
    let device = DeviceIndex(packet.meta().rx_device);
    let is_icmp = header.protocol == ip::icmp_protocol::<V4>();
    if header.protocol != protocol::TCP
        && !is_icmp
        && intercept::is_foreign(rx, device, header.dst, &packet)
    {
        return intercept::foreign::<V4>(rx, header, packet);
    }
    match header.protocol {
        protocol::TCP => {
            rx.cx.count(Counter::IpInDelivers.of::<V4>(), 1);
            tcp_input::input::<V4>(rx, dst, header, packet)
        }
        protocol::UDP => {
            rx.cx.count(Counter::IpInDelivers.of::<V4>(), 1);
            udp_input::input::<V4>(rx, header, packet)
        }
        protocol::IGMP if V4 => {
            rx.cx.count(Counter::IpInDelivers, 1);
            group_query::igmp(rx, header, packet)
        }
        number if number == ip::icmp_protocol::<V4>() => {
            rx.cx.count(Counter::IpInDelivers.of::<V4>(), 1);
            icmp_input::input::<V4>(rx, header, packet)
        }
        number => {
            rx.cx.count(Counter::IpInUnknownProtos.of::<V4>(), 1);
            if V4 {
                let message = IcmpMessage::Unreachable(Unreachable::Protocol);
                icmp_input::send_error::<V4>(rx, header, message, &packet);
            } else if number != protocol::NO_NEXT_HEADER {
                // RFC 8200 §4: the Next Header value is unrecognized.
                let message =
                    IcmpMessage::ParameterProblem { code: 1, pointer: u32::from(protocol_at) };
                icmp_input::send_error::<V4>(rx, header, message, &packet);
            }
            Verdict::Drop(DropReason::IpNoProtocol, packet)
        }
    }
}

/// Adds a fragment to its datagram, and delivers the datagram if the fragment completes it.
#[cold]
fn deliver_fragment<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    dst: &OnceDst<'_>,
    header: &IpHeader,
    packet: Packet,
) -> Verdict {
    let mut whole = match reassembly::input::<V4>(rx, header, packet) {
        Ok(Some(whole)) => whole,
        Ok(None) => return Verdict::Consumed,
        Err((reason, packet)) => return Verdict::Drop(reason, packet),
    };
    match read_whole::<V4>(rx, &mut whole) {
        Ok((header, protocol_at)) => deliver::<V4>(rx, dst, &header, protocol_at, whole),
        Err(reason) => Verdict::Drop(reason, whole),
    }
}

/// Reads the headers of a reassembled datagram.
fn read_whole<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    whole: &mut Packet,
) -> Result<(IpHeader, u16), DropReason> {
    let mut header =
        check_header::<V4>(whole).inspect_err(|reason| count_header_error::<V4>(rx.cx, *reason))?;
    let mut protocol_at = NEXT_HEADER;
    if !V4 && extension::is_extension(header.protocol) {
        protocol_at = read_extensions(rx, &mut header, whole)?;
    }
    if header.fragment.is_fragment() {
        // A reassembled datagram that is itself a fragment is dropped. Otherwise a sender could
        // nest datagrams to any depth.
        count_header_error::<V4>(rx.cx, DropReason::IpOptions);
        return Err(DropReason::IpOptions);
    }
    if !V4 {
        check_not_discovery(&header, whole)?;
    }
    Ok((header, protocol_at))
}

/// Rejects a neighbor discovery message that had a Fragment header (RFC 6980 §5).
fn check_not_discovery(header: &IpHeader, packet: &Packet) -> Result<(), DropReason> {
    let mut kind = [0];
    packet.copy_to(usize::from(header.header_len), &mut kind);
    let is_discovery = matches!(kind[0], ndp::ROUTER_SOLICITATION..=ndp::REDIRECT);
    if header.protocol == protocol::ICMPV6 && is_discovery {
        return Err(DropReason::NdpFragment);
    }
    Ok(())
}
