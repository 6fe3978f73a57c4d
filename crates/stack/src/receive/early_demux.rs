//! IP early demux: an established connection caches the input route of its packets, so the route
//! lookup is skipped.
//!
//! Linux: `tcp_v4_early_demux`, `net.ipv4.ip_early_demux`, `net.ipv4.tcp_early_demux`. A packet of
//! the previous packet's flow costs one comparison; a packet of another flow costs one lookup under
//! the RCU section. A packet without a connection takes the full path through `ip_input`. If the
//! connection has no valid cached route, only the route is looked up.

use std::net::SocketAddr;

use pkt::{Packet, PacketType};
use sync::epoch::Section;
use tcp::{FourTuple, SegmentHeader, wire::header::HEADER_BYTES_MIN};

use super::flow::Flow;
use crate::{
    header::ip::{IpHeader, protocol},
    socket::net::Net,
    socket::{Connection, demux::Entry},
};

/// Connection that a packet belongs to.
pub(super) enum Demuxed<'s> {
    /// Connection of the previous packet, which `flow` remembers.
    Current,
    /// Another connection.
    Stream(&'s Connection),
}

/// Returns the connection of `packet`, without a lookup if it is the current one of `flow`, or
/// `None` if no connection may receive it. `repeats`: header and ports equal those of the previous
/// packet ([`Flow::repeated_header`]) and need not be read.
#[inline]
pub(super) fn early_demux<'s>(
    net: &'s Net,
    rcu: &'s Section<'_>,
    flow: &mut Flow<'s>,
    header: &IpHeader,
    repeats: bool,
    packet: &mut Packet,
) -> Option<Demuxed<'s>> {
    let header_len = usize::from(header.header_len);
    if header.protocol != protocol::TCP
        || header.fragment.is_piece()
        || packet.meta().pkt_type != PacketType::Host
        || !packet.require_linear(header_len + HEADER_BYTES_MIN)
    {
        return None;
    }
    let over_loopback = net.is_loopback_device(packet.meta().rx_device);
    if repeats && let Some((tuple, hash)) = flow.repeated_tuple() {
        if flow.is(tuple, over_loopback) {
            return Some(Demuxed::Current);
        }
        return stream(net, rcu, (tuple, hash), over_loopback);
    }
    let (src_port, dst_port) = SegmentHeader::ports(&packet.linear()[header_len..])?;
    let tuple = FourTuple {
        local: SocketAddr::new(header.dst, dst_port),
        remote: SocketAddr::new(header.src, src_port),
    };
    if flow.is(&tuple, over_loopback) {
        return Some(Demuxed::Current);
    }
    let hash = flow.hash(net, &tuple);
    let found = stream(net, rcu, (&tuple, hash), over_loopback)?;
    flow.note_header(header, packet);
    Some(found)
}

/// Looks up the connection of a tuple with this hash.
#[inline]
fn stream<'s>(
    net: &'s Net,
    rcu: &'s Section<'_>,
    (tuple, hash): (&FourTuple, u32),
    over_loopback: bool,
) -> Option<Demuxed<'s>> {
    match net.demux().established(hash, tuple, rcu) {
        // A packet from outside must not reach a connection of this host with itself, nor a
        // loopback packet a connection with another host.
        Some(Entry::Stream(socket)) if socket.is_over_loopback() == over_loopback => {
            Some(Demuxed::Stream(socket))
        }
        _ => None,
    }
}
