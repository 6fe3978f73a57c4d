//! IP early demux: an established connection remembers the input route of its packets, so the routes need not be asked.
//!
//! Linux: `tcp_v4_early_demux`, `net.ipv4.ip_early_demux`, `net.ipv4.tcp_early_demux`. A packet of the flow before it costs one
//! comparison; another flow costs one lookup under the RCU section. What is not found, or has no valid route to offer, takes
//! the long way through `ip_input`.

use std::net::SocketAddr;

use pkt::{Packet, PacketType};
use sync::epoch::Section;
use tcp::{FourTuple, SegmentHeader, wire::header::HEADER_BYTES_MIN};

use super::flow::Flow;
use crate::{
    header::ip::{IpHeader, protocol},
    host::Host,
    socket::{TcpSocket, demux::Entry},
};

/// Whose packet it is.
pub(super) enum Demuxed<'s> {
    /// The flow's current connection's.
    Current,
    /// This one's.
    Stream(&'s TcpSocket),
}

/// The connection of `packet`, without a look-up if it is the current one of `flow`; `None` if it belongs to none that may have it.
/// `repeats`: the header and the ports are those of the packet before ([`Flow::repeated_header`]) and need not be read.
#[inline]
pub(super) fn early_demux<'s>(
    host: &'s Host,
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
    let over_loopback = host.is_loopback_device(packet.meta().rx_device);
    if repeats && let Some((tuple, hash)) = flow.repeated_tuple() {
        if flow.is(tuple, over_loopback) {
            return Some(Demuxed::Current);
        }
        return stream(host, rcu, (tuple, hash), over_loopback);
    }
    let (src_port, dst_port) = SegmentHeader::ports(&packet.linear()[header_len..])?;
    let tuple = FourTuple {
        local: SocketAddr::new(header.dst, dst_port),
        remote: SocketAddr::new(header.src, src_port),
    };
    if flow.is(&tuple, over_loopback) {
        return Some(Demuxed::Current);
    }
    let hash = flow.hash(host, &tuple);
    let found = stream(host, rcu, (&tuple, hash), over_loopback)?;
    flow.note_header(header, packet);
    Some(found)
}

/// The connection of a tuple with this hash.
#[inline]
fn stream<'s>(
    host: &'s Host,
    rcu: &'s Section<'_>,
    (tuple, hash): (&FourTuple, u32),
    over_loopback: bool,
) -> Option<Demuxed<'s>> {
    match host.demux().established(hash, tuple, rcu) {
        // Nobody outside may speak for a connection of this host with itself, nor the other way round.
        Some(Entry::Stream(socket)) if socket.is_over_loopback() == over_loopback => {
            Some(Demuxed::Stream(socket))
        }
        _ => None,
    }
}
