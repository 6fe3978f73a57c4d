//! TCP receive: checks header length and checksum, and finds the socket of the four-tuple.
//!
//! Linux: `tcp_v4_rcv`, `tcp_v6_rcv` up to the socket lock. A segment for which early demux has
//! found the connection passes [`established`]. All others pass `input`: segments for listeners,
//! half-open connections and TIME-WAIT sockets, segments that a device intercepts
//! (`socket::flows`), segments without a socket, reassembled segments, and all segments if early
//! demux is off.

use pkt::{DropReason, Packet, PacketType, RxChecksum, Sum, Verdict, checksum};
use tcp::{FourTuple, SegmentHeader, wire::header::HEADER_BYTES_MIN};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::{
        ip::{IpHeader, protocol},
        strip,
    },
    socket::{
        demux::{Entry, FlowName},
        rx::{Rx, tuple_of},
    },
    transmit::packet_dst::OnceDst,
};

/// Delivers one segment, which still has its IP header, to the current connection: the fast path
/// after early demux.
#[inline]
pub(super) fn established(
    rx: &mut Rx<'_, '_>,
    dst: &OnceDst<'_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    match admit(rx, header, &mut packet) {
        Ok(()) => {
            rx.segment(dst.take(), packet);
            Verdict::Consumed
        }
        Err(reason) => Verdict::Drop(reason, packet),
    }
}

/// Delivers one TCP segment, which still has its IP header.
pub(super) fn input<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    dst: &OnceDst<'_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    // A broadcast or multicast segment cannot belong to a connection (RFC 9293 §3.9.2.3).
    if packet.meta().pkt_type != PacketType::Host {
        return Verdict::Drop(DropReason::TcpNoSocket, packet);
    }
    if let Err(reason) = admit(rx, header, &mut packet) {
        return Verdict::Drop(reason, packet);
    }
    let Some(ports) = SegmentHeader::ports(packet.linear()) else {
        return Verdict::Drop(DropReason::PacketTooShort, packet);
    };
    let device = DeviceIndex(packet.meta().rx_device);
    let tuple = tuple_of::<V4>(header, device, ports);
    let hash = rx.hash(&tuple);
    packet.meta_mut().flow_hash = hash;
    let over_loopback = rx.net.is_loopback_device(device);
    match rx.established(&tuple, hash) {
        // This case occurs if early demux is off, or the segment was reassembled.
        Some(Entry::Stream(socket))
            if socket.is_over_loopback() == over_loopback && socket.may_come_by(device) =>
        {
            rx.switch_to(socket);
            rx.segment(dst.take(), packet);
        }
        // A packet from outside must not reach a connection of this host with itself, nor a
        // loopback packet a connection with another host.
        Some(Entry::Stream(_)) => return Verdict::Drop(DropReason::IpSourceInvalid, packet),
        // The flow was intercepted by another device.
        Some(entry) if entry.via().is_some_and(|via| via != device) => {
            return Verdict::Drop(DropReason::IpSourceInvalid, packet);
        }
        found => {
            // Slow path: all remaining cases need the parsed header.
            let segment = match SegmentHeader::parse(packet.linear()) {
                Ok(segment) => segment,
                Err(reason) => {
                    rx.cx.counters().tcp.add(tcp::Counter::TcpInErrs, 1);
                    return Verdict::Drop(reason, packet);
                }
            };
            rx.flush();
            strip(&mut packet, usize::from(segment.header_len));
            match found {
                Some(Entry::Request(request)) => request.segment(rx, &segment, packet),
                Some(Entry::TimeWait(time_wait)) => time_wait.segment(rx, &segment, packet),
                _ => new_connection(rx, tuple, hash, device, &segment, packet),
            }
        }
    }
    Verdict::Consumed
}

fn new_connection(
    rx: &mut Rx<'_, '_>,
    tuple: FourTuple,
    hash: u32,
    device: DeviceIndex,
    segment: &SegmentHeader,
    packet: Packet,
) {
    let (net, core) = (rx.net, rx.net.core_for(rx.cx, hash));
    let name = FlowName { tuple, hash, core, via: None };
    let interceptor = net.flows().of(device);
    // A listener of all addresses is one of all addresses of this host.
    let is_ours = interceptor.is_none() || net.fib(rx.rcu).is_local(tuple.local.ip());
    let listener = || net.demux().listener(core, tuple.local, hash, rx.rcu);
    if is_ours && let Some(listener) = listener() {
        return listener.segment(rx, &name, None, segment, packet);
    }
    match interceptor {
        Some(interceptor) => {
            let name = FlowName { via: Some(device), ..name };
            interceptor.segment(rx, &name, None, segment, packet);
        }
        None => net.reply_with_reset(rx.cx, &name, segment, DropReason::TcpNoSocket, packet),
    }
}

/// Removes the IP header, counts the segment, and performs the checks that do not depend on a
/// connection.
#[inline]
fn admit(rx: &Rx<'_, '_>, header: &IpHeader, packet: &mut Packet) -> Result<(), DropReason> {
    rx.cx.counters().tcp.add(tcp::Counter::TcpInSegs, 1);
    strip(packet, usize::from(header.header_len));
    check_segment(rx.cx, header, packet).map_err(|reason| refuse(rx, header, packet, reason))
}

/// Counts a rejected segment, and distinguishes an unfinished checksum from a wrong one.
#[cold]
fn refuse(rx: &Rx<'_, '_>, header: &IpHeader, packet: &Packet, reason: DropReason) -> DropReason {
    rx.cx.counters().tcp.add(tcp::Counter::TcpInErrs, 1);
    if reason != DropReason::TcpCsum || !has_unfinished_checksum(header, packet) {
        return reason;
    }
    rx.net.report_unfinished_checksum(DeviceIndex(packet.meta().rx_device));
    DropReason::TcpCsumUnfinished
}

/// Whether the checksum field holds the sum of the pseudo-header alone, as written by a sender that
/// leaves the rest to its device (Linux: `CHECKSUM_PARTIAL`). A wrong checksum matches by chance
/// once in 65,536 times.
fn has_unfinished_checksum(header: &IpHeader, packet: &Packet) -> bool {
    let field = packet.linear().get(16..18).map(|field| u16::from_be_bytes([field[0], field[1]]));
    field == Some(pseudo_header(header, packet).fold())
}

/// Makes the whole TCP header linear and verifies the checksum.
fn check_segment(cx: &Cx, header: &IpHeader, packet: &mut Packet) -> Result<(), DropReason> {
    if !packet.require_linear(HEADER_BYTES_MIN) {
        return Err(DropReason::PacketTooShort);
    }
    let data_offset = usize::from(packet.linear()[12] >> 4) * 4;
    if data_offset < HEADER_BYTES_MIN {
        return Err(DropReason::TcpHeader);
    }
    if !packet.require_linear(data_offset) {
        return Err(DropReason::TcpHeader);
    }
    let good = match packet.meta().rx_checksum {
        RxChecksum::Unnecessary | RxChecksum::Partial { .. } => true,
        RxChecksum::None | RxChecksum::Complete(_) => {
            cx.count(Counter::RxChecksumSoftware, 1);
            let mut sum = pseudo_header(header, packet);
            sum.combine(packet.checksum(0, packet.len()), 0);
            sum.is_valid()
        }
    };
    if good {
        Ok(())
    } else {
        cx.counters().tcp.add(tcp::Counter::TcpInCsumErrors, 1);
        Err(DropReason::TcpCsum)
    }
}

fn pseudo_header(header: &IpHeader, packet: &Packet) -> Sum {
    let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    checksum::pseudo_header(header.src, header.dst, protocol::TCP, len)
}
