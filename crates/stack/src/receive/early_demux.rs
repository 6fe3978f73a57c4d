//! IP early demux: finds the socket of a packet before the route. An established connection and a
//! connected datagram socket cache the route entry (dst) of their received packets, so that no
//! route lookup is needed.
//!
//! Linux: `tcp_v4_early_demux`, `tcp_v6_early_demux`, `udp_v4_early_demux`, `udp_v6_early_demux`,
//! `net.ipv4.ip_early_demux`, `net.ipv4.tcp_early_demux`, `net.ipv4.udp_early_demux`. For both IP
//! versions, a cached route entry is valid while its generation equals the route generation of the
//! host; Linux has a generation for IPv4 and `rx_dst_cookie` for IPv6. A segment of the previous
//! segment's connection costs one comparison; any other segment, and every datagram, costs one
//! lookup in the RCU read section. If early demux finds no socket, `ip_input` looks up the route,
//! and the protocol looks up the socket. If early demux finds a socket without a valid route entry,
//! `ip_input` looks up only the route.

use pkt::{Packet, PacketType};
use tcp::{FourTuple, SegmentHeader, wire::header::HEADER_BYTES_MIN};

use crate::{
    base::ids::DeviceIndex,
    header::{
        ip::{IpHeader, protocol},
        udp::{UDP_HEADER_LEN, UdpHeader},
    },
    socket::{
        Connection, DatagramSocket,
        demux::Entry,
        rx::{Rx, tuple_of},
    },
};

/// Connection that a packet belongs to.
pub(super) enum Demuxed<'s> {
    /// Connection of the previous packet: the current one of `Rx::flow`.
    Current,
    /// Another connection.
    Stream(&'s Connection),
}

/// Returns the connection of `packet`, or `None` if no connection may receive the packet. The
/// current connection of `rx` is found without a lookup. `repeats` is true if the header repeats
/// that of the last flow on this core
/// ([`Flow::repeated_header`](crate::socket::rx::Flow::repeated_header)), so that addresses and
/// ports need not be read.
#[inline]
pub(super) fn early_demux<'s, const V4: bool>(
    rx: &mut Rx<'_, 's>,
    header: &IpHeader,
    repeats: bool,
    packet: &mut Packet,
) -> Option<Demuxed<'s>> {
    let header_len = usize::from(header.header_len);
    if header.protocol != protocol::TCP
        || header.fragment.is_fragment()
        || packet.meta().pkt_type != PacketType::Host
        || !packet.require_linear(header_len + HEADER_BYTES_MIN)
    {
        return None;
    }
    let device = DeviceIndex(packet.meta().rx_device);
    let over_loopback = rx.net.is_loopback_device(device);
    if repeats && let Some(known) = rx.flow.repeated() {
        if rx.flow.is(&known.tuple, over_loopback) {
            return Some(Demuxed::Current);
        }
        return stream(rx, &known.tuple, known.hash, over_loopback);
    }
    let ports = SegmentHeader::ports(&packet.linear()[header_len..])?;
    let tuple = tuple_of::<V4>(header, device, ports);
    if rx.flow.is(&tuple, over_loopback) {
        return Some(Demuxed::Current);
    }
    let hash = rx.hash(&tuple);
    let found = stream(rx, &tuple, hash, over_loopback)?;
    rx.flow.note_header::<V4>(header, packet);
    Some(found)
}

/// Returns the connected socket of a datagram, or `None` if there is none. `repeats` is as for
/// [`early_demux`].
#[inline]
pub(super) fn datagram<'s, const V4: bool>(
    rx: &mut Rx<'_, 's>,
    header: &IpHeader,
    repeats: bool,
    packet: &mut Packet,
) -> Option<&'s DatagramSocket> {
    let header_len = usize::from(header.header_len);
    if header.fragment.is_fragment()
        || packet.meta().pkt_type != PacketType::Host
        || !packet.require_linear(header_len + UDP_HEADER_LEN)
    {
        return None;
    }
    let packet = &*packet;
    rx.connected::<V4>(header, repeats, packet, || {
        let ports = UdpHeader::ports(&packet.linear()[header_len..])?;
        Some(tuple_of::<V4>(header, DeviceIndex(packet.meta().rx_device), ports))
    })
}

/// Returns the connection of `tuple`, whose hash is `hash`.
#[inline]
fn stream<'s>(
    rx: &Rx<'_, 's>,
    tuple: &FourTuple,
    hash: u32,
    over_loopback: bool,
) -> Option<Demuxed<'s>> {
    match rx.established(tuple, hash) {
        // A packet from outside must not reach a connection of this host with itself, nor a
        // loopback packet a connection with another host.
        Some(Entry::Stream(socket)) if socket.is_over_loopback() == over_loopback => {
            Some(Demuxed::Stream(socket))
        }
        _ => None,
    }
}
