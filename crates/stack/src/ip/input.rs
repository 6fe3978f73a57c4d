//! IP receive: checks the header, finds out whether the packet is ours, and hands it to its protocol.
//!
//! Steps in the order of RFC 1122 §3.2.1 and Linux's `ip_rcv`, `ip_local_deliver`. A packet that is not for us is
//! dropped: this stack is a host and does not forward. `list` takes each packet through the steps here.

use pkt::{DropReason, Ecn, Packet, PacketType, Verdict};
use sync::epoch::Section;

use super::{
    header::{self, IpHeader, protocol},
    icmp, tcp_input,
};
use crate::{
    base::counters::Counter,
    cx::Cx,
    host::Host,
    route::{DstHandle, OnceDst, PacketDst, fib::RouteKind},
    socket::Flow,
};

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
    if !packet.require_linear(header::fixed_len::<V4>()) {
        return Err(DropReason::PacketTooShort);
    }
    let header_len = header::claimed_len::<V4>(packet.linear())?;
    if !packet.require_linear(header_len) {
        return Err(DropReason::PacketTooShort);
    }
    header::parse_packet::<V4>(packet, 0)
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
            icmp::input(host, cx, rcu, header, packet)
        }
        _ => {
            cx.count(Counter::IpInUnknownProtos, 1);
            icmp::send_protocol_unreachable(host, cx, header, &packet);
            Verdict::Drop(DropReason::IpNoProtocol, packet)
        }
    }
}
