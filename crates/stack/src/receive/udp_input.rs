//! UDP receive: checks the header and the checksum, and finds the socket.
//!
//! Above: `ip_input`. Below: `socket::rx`, which collects the datagrams of one socket. Linux:
//! `__udp4_lib_rcv`, `__udp4_lib_mcast_deliver`, `__udp6_lib_rcv`, `__udp6_lib_mcast_deliver`. Both
//! IP versions take the same steps; over IPv6 a checksum is mandatory (RFC 8200 §8.1). A datagram
//! for which early demux has found a connected socket passes [`connected`]. All others pass
//! `input`: datagrams for unconnected sockets and groups, reassembled datagrams, all datagrams if
//! early demux is off, and datagrams without a socket. A datagram without a socket that was sent to
//! this host alone is answered with an ICMP port unreachable error, or intercepted
//! (`socket::flows`).

use pkt::{DropReason, Packet, PacketType, RxChecksum, Verdict, checksum};

use super::icmp_input;
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::{IpHeader, protocol},
        strip,
        udp::{UDP_HEADER_LEN, UdpHeader},
    },
    socket::{
        DatagramSocket,
        rx::{Rx, scoped, tuple_of},
    },
};

/// Delivers one datagram, which still has its IP header, to the socket that early demux has found.
#[inline]
pub(super) fn connected<'s, const V4: bool>(
    rx: &mut Rx<'_, 's>,
    socket: &'s DatagramSocket,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    match admit::<V4>(rx.cx, header, &mut packet) {
        Ok(_) => {
            rx.datagram(socket, packet);
            Verdict::Consumed
        }
        Err(reason) => Verdict::Drop(reason, packet),
    }
}

/// Delivers one datagram, which still has its IP header.
pub(super) fn input<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    let udp = match admit::<V4>(rx.cx, header, &mut packet) {
        Ok(udp) => udp,
        Err(reason) => return Verdict::Drop(reason, packet),
    };
    if packet.meta().pkt_type != PacketType::Host {
        return to_group::<V4>(rx, header, &udp, packet);
    }
    let device = DeviceIndex(packet.meta().rx_device);
    let tuple = tuple_of::<V4>(header, device, (udp.src_port, udp.dst_port));
    let hash = rx.hash(&tuple);
    let (net, core) = (rx.net, rx.net.core_for(rx.cx, hash));
    let table = net.datagrams();
    let found = table
        .connected(hash, &tuple, rx.rcu)
        .or_else(|| table.open(core, tuple.local, hash, rx.rcu));
    match found {
        Some(socket) => {
            rx.datagram(socket, packet);
            Verdict::Consumed
        }
        None => match net.flows().of(device) {
            Some(interceptor) => {
                interceptor.datagram(rx, tuple.remote, udp.dst_port, packet);
                Verdict::Consumed
            }
            None => no_socket::<V4>(rx, header, packet),
        },
    }
}

/// Delivers one datagram for a foreign address, which still has its IP header, to its session
/// (`socket::flows`).
pub(super) fn foreign<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    let udp = match admit::<V4>(rx.cx, header, &mut packet) {
        Ok(udp) => udp,
        Err(reason) => return Verdict::Drop(reason, packet),
    };
    let device = DeviceIndex(packet.meta().rx_device);
    let source = scoped(header.src, udp.src_port, device);
    // RFC 768: port 0 means that no answer is expected.
    match rx.net.flows().of(device).filter(|_| udp.src_port != 0 && udp.dst_port != 0) {
        Some(interceptor) => {
            interceptor.datagram(rx, source, udp.dst_port, packet);
            Verdict::Consumed
        }
        None => Verdict::Drop(DropReason::UdpNoSocket, packet),
    }
}

/// Removes the IP and the UDP header, which stay readable in front of the payload, and checks the
/// datagram.
#[inline]
fn admit<const V4: bool>(
    cx: &Cx,
    header: &IpHeader,
    packet: &mut Packet,
) -> Result<UdpHeader, DropReason> {
    packet.set_network_header();
    strip(packet, usize::from(header.header_len));
    check::<V4>(cx, header, packet).inspect_err(|reason| {
        cx.count(Counter::UdpInErrors.of::<V4>(), 1);
        if *reason == DropReason::UdpCsum {
            cx.count(Counter::UdpInCsumErrors.of::<V4>(), 1);
        }
    })
}

#[inline]
fn check<const V4: bool>(
    cx: &Cx,
    header: &IpHeader,
    packet: &mut Packet,
) -> Result<UdpHeader, DropReason> {
    if !packet.require_linear(UDP_HEADER_LEN) {
        return Err(DropReason::PacketTooShort);
    }
    let udp = UdpHeader::parse(packet.linear(), packet.len())?;
    packet.truncate(usize::from(udp.len));
    // RFC 768: zero means that the sender has computed no checksum. RFC 8200 §8.1 forbids that,
    // because an IPv6 header has no checksum of its own.
    if !V4 && udp.checksum == 0 {
        return Err(DropReason::UdpCsum);
    }
    let is_known = (V4 && udp.checksum == 0)
        || matches!(
            packet.meta().rx_checksum,
            RxChecksum::Unnecessary | RxChecksum::Partial { .. }
        );
    if !is_known {
        cx.count(Counter::RxChecksumSoftware, 1);
        let len = u32::from(udp.len);
        let mut sum = checksum::pseudo_header(header.src, header.dst, protocol::UDP, len);
        sum.combine(packet.checksum(0, packet.len()), 0);
        if !sum.is_valid() {
            return Err(DropReason::UdpCsum);
        }
    }
    packet.set_transport_header();
    strip(packet, UDP_HEADER_LEN);
    Ok(udp)
}

/// Delivers a broadcast or multicast datagram to every socket whose addresses and group memberships
/// match.
fn to_group<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    udp: &UdpHeader,
    mut packet: Packet,
) -> Verdict {
    let (net, rcu) = (rx.net, rx.rcu);
    let headers = usize::from(header.header_len) + UDP_HEADER_LEN;
    // The headers become part of the packet again, because a copy would not contain them otherwise.
    packet.push(headers);
    let multicast = packet.meta().pkt_type == PacketType::Multicast;
    let device = DeviceIndex(packet.meta().rx_device);
    let remote = scoped(header.src, udp.src_port, device);
    // `ip_input` has checked the membership of IPv6 packets.
    let is_member = (!V4 || net.is_member(rcu, device, header.dst))
        && net.groups().allows(device, header.dst, header.src, rcu);
    let group = (header.dst, header.src);
    // Socket found last, which gets the packet itself. Every socket before it gets a copy.
    let mut last: Option<&DatagramSocket> = None;
    net.datagrams().for_each_on_port(udp.dst_port, rcu, |bound| {
        let wants = bound.covers(header.dst)
            && bound.remote.is_none_or(|peer| peer == remote)
            && (!multicast || (is_member && bound.socket.takes_group(device, group, rcu)));
        if wants && let Some(before) = last.replace(&bound.socket) {
            match packet.clone_apart(&mut rx.cx.pool) {
                Some(mut copy) => {
                    strip(&mut copy, headers);
                    rx.datagram(before, copy);
                }
                None => {
                    rx.cx.count(Counter::UdpInErrors.of::<V4>(), 1);
                    rx.cx.count(Counter::UdpRcvbufErrors.of::<V4>(), 1);
                }
            }
        }
    });
    strip(&mut packet, headers);
    match last {
        Some(socket) => {
            rx.datagram(socket, packet);
            Verdict::Consumed
        }
        None => {
            rx.cx.count(Counter::UdpIgnoredMulti.of::<V4>(), 1);
            Verdict::Drop(DropReason::UdpNoSocket, packet)
        }
    }
}

/// Drops a datagram without a socket and sends an ICMP error to its sender.
fn no_socket<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    rx.cx.count(Counter::UdpNoPorts.of::<V4>(), 1);
    // The ICMP error quotes the headers, which are still in front of the payload.
    packet.push(usize::from(header.header_len) + UDP_HEADER_LEN);
    let message = IcmpMessage::Unreachable(Unreachable::Port);
    icmp_input::send_error::<V4>(rx, header, message, &packet);
    Verdict::Drop(DropReason::UdpNoSocket, packet)
}
