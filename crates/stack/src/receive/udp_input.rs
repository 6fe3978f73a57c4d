//! UDP receive over IPv4: checks the header and the checksum, and finds the socket.
//!
//! Above: `ip_input`. Below: `socket::rx`, which collects the datagrams of one socket. Linux:
//! `__udp4_lib_rcv`, `__udp4_lib_mcast_deliver`. A datagram for which early demux has found a
//! connected socket passes [`connected`]. All others pass `input`: datagrams for unconnected
//! sockets and groups, and datagrams without a socket, which are answered with an ICMP port
//! unreachable error.

use std::net::SocketAddr;

use pkt::{DropReason, Packet, PacketType, RxChecksum, Verdict, checksum};
use tcp::FourTuple;

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
    socket::{DatagramSocket, rx::Rx},
};

/// Delivers one datagram, which still has its IP header, to the socket that early demux has found.
#[inline]
pub(super) fn connected<'s>(
    rx: &mut Rx<'_, 's>,
    socket: &'s DatagramSocket,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    match admit(rx.cx, header, &mut packet) {
        Ok(_) => {
            rx.datagram(socket, packet);
            Verdict::Consumed
        }
        Err(reason) => Verdict::Drop(reason, packet),
    }
}

/// Delivers one datagram, which still has its IP header.
pub(super) fn input(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    let udp = match admit(rx.cx, header, &mut packet) {
        Ok(udp) => udp,
        Err(reason) => return Verdict::Drop(reason, packet),
    };
    if packet.meta().pkt_type != PacketType::Host {
        return to_group(rx, header, &udp, packet);
    }
    let tuple = tuple(header, &udp);
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
        None => no_socket(rx, header, packet),
    }
}

fn tuple(header: &IpHeader, udp: &UdpHeader) -> FourTuple {
    FourTuple {
        local: SocketAddr::new(header.dst, udp.dst_port),
        remote: SocketAddr::new(header.src, udp.src_port),
    }
}

/// Removes the IP and the UDP header, which stay readable in front of the payload, and checks the
/// datagram.
#[inline]
fn admit(cx: &Cx, header: &IpHeader, packet: &mut Packet) -> Result<UdpHeader, DropReason> {
    packet.set_network_header();
    strip(packet, usize::from(header.header_len));
    check(cx, header, packet).inspect_err(|reason| {
        cx.count(Counter::UdpInErrors, 1);
        if *reason == DropReason::UdpCsum {
            cx.count(Counter::UdpInCsumErrors, 1);
        }
    })
}

#[inline]
fn check(cx: &Cx, header: &IpHeader, packet: &mut Packet) -> Result<UdpHeader, DropReason> {
    if !packet.require_linear(UDP_HEADER_LEN) {
        return Err(DropReason::PacketTooShort);
    }
    let udp = UdpHeader::parse(packet.linear(), packet.len())?;
    packet.truncate(usize::from(udp.len));
    // RFC 768: zero means that the sender has computed no checksum.
    let is_known = udp.checksum == 0
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
fn to_group(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    udp: &UdpHeader,
    mut packet: Packet,
) -> Verdict {
    let (net, rcu) = (rx.net, rx.rcu);
    let headers = usize::from(header.header_len) + UDP_HEADER_LEN;
    // The headers become part of the packet again, because a copy would not contain them otherwise.
    packet.push(headers);
    let remote = SocketAddr::new(header.src, udp.src_port);
    let multicast = packet.meta().pkt_type == PacketType::Multicast;
    let device = DeviceIndex(packet.meta().rx_device);
    let is_member = multicast && net.groups().is_member(device, header.dst, rcu);
    // Socket found last, which gets the packet itself. Every socket before it gets a copy.
    let mut last: Option<&DatagramSocket> = None;
    net.datagrams().for_each_on_port(udp.dst_port, rcu, |bound| {
        let wants = (bound.local.ip().is_unspecified() || bound.local.ip() == header.dst)
            && bound.remote.is_none_or(|peer| peer == remote)
            && (!multicast || (is_member && bound.socket.takes_group(device, header.dst, rcu)));
        if wants && let Some(before) = last.replace(&bound.socket) {
            match packet.clone_apart(&mut rx.cx.pool) {
                Some(mut copy) => {
                    strip(&mut copy, headers);
                    rx.datagram(before, copy);
                }
                None => {
                    rx.cx.count(Counter::UdpInErrors, 1);
                    rx.cx.count(Counter::UdpRcvbufErrors, 1);
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
            rx.cx.count(Counter::UdpIgnoredMulti, 1);
            Verdict::Drop(DropReason::UdpNoSocket, packet)
        }
    }
}

/// Drops a datagram without a socket and sends an ICMP error to its sender.
fn no_socket(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    rx.cx.count(Counter::UdpNoPorts, 1);
    // The ICMP error quotes the headers, which are still in front of the payload.
    packet.push(usize::from(header.header_len) + UDP_HEADER_LEN);
    let message = IcmpMessage::Unreachable(Unreachable::Port);
    icmp_input::send_error::<true>(rx, header, message, &packet);
    Verdict::Drop(DropReason::UdpNoSocket, packet)
}
