//! Packets for foreign addresses that a device brings and intercepts, and the answers that the
//! application gives to them by ICMP.
//!
//! Above: `ip_input`, which asks whether a packet is intercepted; crate `quietline`. Below:
//! `socket::flows`, `icmp_input`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use pkt::{DropReason, Packet, PacketType, Verdict};

use super::{icmp_input, udp_input};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::{self, Fragment, IpHeader, protocol},
        strip,
    },
    route::fib::Route,
    socket::{
        RequestSocket,
        flows::{FlowPacket, NewFlow},
        net::Net,
        rx::Rx,
    },
    transmit::dst::RouteKind,
};

/// Bytes of a TCP header without options.
const TCP_HEADER_LEN: usize = 20;

/// Returns whether `device` intercepts a packet: the packet is for one host that is not this one.
/// `found` is the route to its destination.
pub(super) fn takes(
    rx: &Rx<'_, '_>,
    device: DeviceIndex,
    header: &IpHeader,
    packet: &Packet,
    found: Option<&Route>,
) -> bool {
    rx.net.flows().of(device).is_some()
        && packet.meta().pkt_type == PacketType::Host
        && !found.is_some_and(|route| is_ours(route.kind))
        && is_host(header.dst)
        && is_host(header.src)
}

/// Returns whether a packet that was accepted is for a foreign address: `device` intercepts it.
pub(super) fn is_foreign(
    rx: &Rx<'_, '_>,
    device: DeviceIndex,
    dst: IpAddr,
    packet: &Packet,
) -> bool {
    rx.net.flows().intercepts(device)
        && packet.meta().pkt_type == PacketType::Host
        && !rx.net.fib(rx.rcu).is_local(dst)
}

/// Returns the device by which the answer to a packet for `dst` leaves: `device`, which has brought
/// the packet, if `dst` is a foreign address that the device intercepts; otherwise the routes
/// decide.
pub(super) fn answers_by(
    net: &Net,
    cx: &Cx,
    device: DeviceIndex,
    dst: IpAddr,
) -> Option<DeviceIndex> {
    (net.flows().intercepts(device) && !net.is_local(cx, dst)).then_some(device)
}

/// Whether packets by a route of this kind are for this host.
const fn is_ours(kind: RouteKind) -> bool {
    matches!(kind, RouteKind::Local | RouteKind::Broadcast | RouteKind::Multicast)
}

/// Whether an address names one host: RFC 1122 §3.2.1.3, RFC 4291 §2.5.
fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] != 0 && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
    }
}

/// Returns the prefix of the input route entry that all intercepted packets of a device share.
pub(super) fn anywhere<const V4: bool>() -> IpNet {
    let any: IpAddr = if V4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    IpNet::new_assert(any, 0)
}

/// Takes a packet for a foreign address that is neither TCP nor ICMP.
#[cold]
pub(super) fn foreign<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    packet: Packet,
) -> Verdict {
    rx.cx.count(Counter::IpInDelivers.of::<V4>(), 1);
    if header.protocol == protocol::UDP {
        return udp_input::foreign::<V4>(rx, header, packet);
    }
    rx.net.flows().hand_over(rx.cx, NewFlow::Other(FlowPacket { header: *header, packet }));
    Verdict::Consumed
}

/// Takes an echo request for a foreign address, whose IP header was removed.
#[cold]
pub(super) fn echo(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    packet.push(usize::from(header.header_len));
    rx.net.flows().hand_over(rx.cx, NewFlow::Echo(FlowPacket { header: *header, packet }));
    Verdict::Consumed
}

/// Answers an echo request in the place of its destination. The rate limits of ICMP apply.
pub fn answer_echo(net: &Net, cx: &mut Cx, request: FlowPacket) {
    let FlowPacket { header, mut packet } = request;
    let entered = cx.enter(net);
    strip(&mut packet, usize::from(header.header_len));
    let reader = cx.reader();
    let rcu = reader.pin();
    let source = Some(header.dst);
    let verdict = match header.dst {
        IpAddr::V4(_) => icmp_input::answer_echo::<true>(net, cx, &rcu, &header, source, packet),
        IpAddr::V6(_) => icmp_input::answer_echo::<false>(net, cx, &rcu, &header, source, packet),
    };
    if let Verdict::Drop(reason, packet) = verdict {
        cx.drop_packet(reason, packet);
    }
    cx.do_softirq();
    cx.leave(entered);
}

/// Reports to the sender of a packet that its destination is unreachable, unless the rules or rate
/// limits of ICMP forbid it.
pub fn reject(net: &Net, cx: &mut Cx, request: FlowPacket, why: Unreachable) {
    let FlowPacket { header, packet } = request;
    let entered = cx.enter(net);
    let reader = cx.reader();
    let rcu = reader.pin();
    let message = IcmpMessage::Unreachable(why);
    let _sent = match header.dst {
        IpAddr::V4(_) => {
            icmp_input::report_to_sender::<true>(net, cx, &rcu, &header, message, &packet)
        }
        IpAddr::V6(_) => {
            icmp_input::report_to_sender::<false>(net, cx, &rcu, &header, message, &packet)
        }
    };
    cx.drop_packet(DropReason::IpNoProtocol, packet);
    cx.do_softirq();
    cx.leave(entered);
}

/// Drops a packet that the application does not answer.
pub fn ignore(net: &Net, cx: &mut Cx, request: FlowPacket) {
    let entered = cx.enter(net);
    cx.drop_packet(DropReason::FlowIgnored, request.packet);
    cx.leave(entered);
}

/// Refuses an intercepted connection with an ICMP error about its SYN. If the SYN was answered, or
/// the rate limit of ICMP forbids the error, the client gets a reset: with neither it would repeat
/// the SYN for a minute.
pub fn refuse_unreachable(net: &Net, cx: &mut Cx, request: &RequestSocket, why: Unreachable) {
    let entered = cx.enter(net);
    match request.dismiss_unanswered(net) {
        None => request.refuse(net, cx),
        Some(syn) => {
            let reported = match request.destination().is_ipv4() {
                true => report::<true>(net, cx, request, &syn, why),
                false => report::<false>(net, cx, request, &syn, why),
            };
            if !reported {
                request.reset_dismissed(net, cx);
            }
        }
    }
    cx.do_softirq();
    cx.leave(entered);
}

/// Sends the error, with a quote that is made anew: the packet of the SYN was freed when it became
/// a request. Returns whether the error was sent.
fn report<const V4: bool>(
    net: &Net,
    cx: &mut Cx,
    request: &RequestSocket,
    syn: &tcp::SegmentHeader,
    why: Unreachable,
) -> bool {
    let (client, target) = (request.source(), request.destination());
    let header_len = ip::fixed_len::<V4>();
    let header = IpHeader {
        src: client.ip(),
        dst: target.ip(),
        protocol: protocol::TCP,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        id: 0,
        fragment: Fragment { dont: true, ..Fragment::default() },
        header_len: u16::try_from(header_len).expect("an IP header has at most 60 bytes"),
        payload_len: 20,
    };
    let mut bytes = [0; ip::IPV6_HEADER_LEN + TCP_HEADER_LEN];
    let (head, segment) = bytes[..header_len + TCP_HEADER_LEN].split_at_mut(header_len);
    header.emit::<V4>(head);
    segment[0..2].copy_from_slice(&syn.src_port.to_be_bytes());
    segment[2..4].copy_from_slice(&syn.dst_port.to_be_bytes());
    segment[4..8].copy_from_slice(&syn.seq.0.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = tcp::Flags::SYN.bits();
    let Some(mut quoted) = cx.pool.alloc_from(&bytes[..header_len + TCP_HEADER_LEN]) else {
        return false;
    };
    quoted.meta_mut().rx_device = request.via().map_or(0, |device| device.0);
    cx.count(Counter::FlowRefused, 1);
    let reader = cx.reader();
    let rcu = reader.pin();
    let message = IcmpMessage::Unreachable(why);
    let sent = icmp_input::report_to_sender::<V4>(net, cx, &rcu, &header, message, &quoted);
    cx.pool.free(quoted);
    sent
}
