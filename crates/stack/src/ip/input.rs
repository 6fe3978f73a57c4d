//! IP receive: checks the header, finds out whether the packet is ours, and hands it to its protocol.
//!
//! Steps in the order of RFC 1122 §3.2.1 and Linux's `ip_rcv`, `ip_local_deliver`. A packet that is not for us is
//! dropped: this stack is a host and does not forward.

use pkt::{DropReason, Ecn, Packet, PacketType, Verdict};
use sync::epoch::Section;

use super::{
    early_demux::early_demux,
    header::{self, IpHeader, protocol},
    icmp, tcp_input,
};
use crate::{counters::Counter, cx::Cx, host::Host, route::fib::RouteKind, socket::Flow};

/// One IP packet, link header removed.
pub(crate) fn input<const V4: bool>(
    host: &Host,
    cx: &mut Cx,
    rcu: &Section<'_>,
    flow: &mut Flow,
    mut packet: Packet,
) -> Verdict {
    cx.count(Counter::IpInReceives, 1);
    cx.count(Counter::IpExtInOctets, packet.len() as u64);
    let header = match check_header::<V4>(&mut packet) {
        Ok(header) => header,
        Err(reason) => {
            count_header_error(cx, reason);
            return Verdict::Drop(reason, packet);
        }
    };
    packet.truncate(header.total_len());
    let ecn = Ecn::from_traffic_class(header.traffic_class);
    cx.count(ecn_counter(ecn), 1);
    packet.meta_mut().ecn = ecn;
    if early_demux(host, cx, rcu, flow, &header, &mut packet) {
        cx.count(Counter::IpInDelivers, 1);
        return tcp_input::established(host, cx, flow, &header, packet);
    }
    if let Err(reason) = check_destination(host, cx, &mut packet, &header) {
        return Verdict::Drop(reason, packet);
    }
    if header.fragment.is_piece() {
        cx.count(Counter::IpReasmReqds, 1);
        cx.count(Counter::IpReasmFails, 1);
        return Verdict::Drop(DropReason::IpFragment, packet);
    }
    deliver::<V4>(host, cx, rcu, flow, &header, packet)
}

fn check_header<const V4: bool>(packet: &mut Packet) -> Result<IpHeader, DropReason> {
    if !packet.require_linear(header::fixed_len::<V4>()) {
        return Err(DropReason::PacketTooShort);
    }
    let header_len = header::claimed_len::<V4>(packet.linear())?;
    if !packet.require_linear(header_len) {
        return Err(DropReason::PacketTooShort);
    }
    header::parse::<V4>(packet.linear(), packet.len())
}

fn count_header_error(cx: &Cx, reason: DropReason) {
    match reason {
        DropReason::IpCsum => cx.count(Counter::IpExtInCsumErrors, 1),
        DropReason::PacketTooShort => cx.count(Counter::IpExtInTruncatedPkts, 1),
        _ => {}
    }
    cx.count(Counter::IpInHdrErrors, 1);
}

/// The ECN field (RFC 3168 §5).
const fn ecn_counter(ecn: Ecn) -> Counter {
    match ecn {
        Ecn::NotEct => Counter::IpExtInNoECTPkts,
        Ecn::Ect1 => Counter::IpExtInECT1Pkts,
        Ecn::Ect0 => Counter::IpExtInECT0Pkts,
        Ecn::Ce => Counter::IpExtInCEPkts,
    }
}

/// Ours, by address and by the way it came?
fn check_destination(
    host: &Host,
    cx: &Cx,
    packet: &mut Packet,
    header: &IpHeader,
) -> Result<(), DropReason> {
    if !host.is_loopback_device(packet.meta().rx_device) {
        check_martian(host, header).inspect_err(|_| cx.count(Counter::IpInAddrErrors, 1))?;
    }
    let bytes = packet.len() as u64;
    match host.fib().lookup(header.dst).map(|route| route.kind) {
        Some(RouteKind::Local) => {
            // RFC 1122 §3.3.6: a unicast address in a link broadcast is not for us.
            if packet.meta().pkt_type == PacketType::Host {
                Ok(())
            } else {
                cx.count(Counter::IpInDiscards, 1);
                Err(DropReason::IpDestinationInvalid)
            }
        }
        // In whatever frame it came, and on links without frames: nobody is answered as if he had asked us alone.
        Some(RouteKind::Broadcast) => {
            packet.meta_mut().pkt_type = PacketType::Broadcast;
            cx.count(Counter::IpExtInBcastPkts, 1);
            cx.count(Counter::IpExtInBcastOctets, bytes);
            Ok(())
        }
        Some(RouteKind::Multicast) => {
            packet.meta_mut().pkt_type = PacketType::Multicast;
            cx.count(Counter::IpExtInMcastPkts, 1);
            cx.count(Counter::IpExtInMcastOctets, bytes);
            Ok(())
        }
        Some(_) => {
            cx.count(Counter::IpInAddrErrors, 1);
            Err(DropReason::IpForwardingOff)
        }
        None => {
            cx.count(Counter::IpExtInNoRoutes, 1);
            Err(DropReason::IpNoRoute)
        }
    }
}

/// Addresses that no honest packet brings in from a wire: 127/8 (RFC 1122 §3.2.1.3 (g)), and as its source an address of
/// ours, a broadcast or a multicast address.
fn check_martian(host: &Host, header: &IpHeader) -> Result<(), DropReason> {
    if host.fib().local_kind(header.src).is_some() {
        Err(DropReason::IpSourceInvalid)
    } else if header.dst.is_loopback() {
        Err(DropReason::IpDestinationInvalid)
    } else {
        Ok(())
    }
}

fn deliver<const V4: bool>(
    host: &Host,
    cx: &mut Cx,
    rcu: &Section<'_>,
    flow: &mut Flow,
    header: &IpHeader,
    packet: Packet,
) -> Verdict {
    match header.protocol {
        protocol::TCP => {
            cx.count(Counter::IpInDelivers, 1);
            tcp_input::input(host, cx, rcu, flow, header, packet)
        }
        protocol::ICMP if V4 => {
            cx.count(Counter::IpInDelivers, 1);
            icmp::input(host, cx, rcu, header, packet)
        }
        _ => {
            cx.count(Counter::IpInUnknownProtos, 1);
            icmp::send_protocol_unreachable(host, cx, header, &packet);
            Verdict::Drop(DropReason::IpNoProtocol, packet)
        }
    }
}
