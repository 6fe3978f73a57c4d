//! ICMP input: replies to echo requests, reports undeliverable packets, passes reports of routers
//! to connections.
//!
//! RFC 792, RFC 1122 §3.2.2, RFC 5927. Linux: net/ipv4/icmp.c. The whole host sends at most 1,000
//! errors per second with bursts of 50 (`icmp_msgs_per_sec`, `icmp_msgs_burst`). Both limits are
//! randomized: an exact limit shared by all peers tells each of them how many errors the others
//! have caused, and thereby which ports are open (CVE-2020-25705).

use std::net::{IpAddr, SocketAddr};

use pkt::{DropReason, Packet, PacketType, RxChecksum, TxChecksum, Verdict};
use sync::epoch::Section;
use tcp::{FourTuple, IcmpError, SeqNum, TcpError};

use crate::{
    base::{counters::Counter, ids::CoreId},
    cx::Cx,
    header::{
        icmp::{
            ICMP_HEADER_LEN, IcmpMessage, Quote, Unreachable, in_counter, may_answer_with_error,
            out_counter,
        },
        ip::{ETHER_TYPE_IPV4, Fragment, IPV4_HEADER_LEN, IpHeader, protocol},
        strip,
    },
    route::exception::plateau_below,
    socket::{demux::Entry, net::Net, rx::Rx},
    transmit::ip_output::{self},
};

/// Maximum bytes of the offending packet that an error quotes after its ICMP header.
/// RFC 1812 §4.3.2.3 allows 576 bytes in total; 548 leaves room for the IP and the ICMP header.
const QUOTE_BYTES_MAX: usize = 548;

/// Handles one ICMP message, still with its IP header.
pub(super) fn input(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    rx.cx.count(Counter::IcmpInMsgs, 1);
    strip(&mut packet, usize::from(header.header_len));
    let message = match check_message(rx.cx, &mut packet) {
        Ok(message) => message,
        Err(reason) => {
            rx.cx.count(Counter::IcmpInErrors, 1);
            return Verdict::Drop(reason, packet);
        }
    };
    if let Some(counter) = in_counter(packet.linear()[0]) {
        rx.cx.count(counter, 1);
    }
    match message {
        IcmpMessage::EchoRequest { .. } => echo_reply(rx, header, packet),
        message if message.is_error() => report(rx, message, packet),
        IcmpMessage::EchoReply { .. } => Verdict::Drop(DropReason::IcmpNoSocket, packet),
        _ => Verdict::Drop(DropReason::IcmpUnknownType, packet),
    }
}

fn check_message(cx: &Cx, packet: &mut Packet) -> Result<IcmpMessage, DropReason> {
    if !packet.require_linear(ICMP_HEADER_LEN) {
        return Err(DropReason::IcmpMalformed);
    }
    let trusted = packet.meta().rx_checksum == RxChecksum::Unnecessary;
    if !trusted && !packet.checksum(0, packet.len()).is_valid() {
        cx.count(Counter::IcmpInCsumErrors, 1);
        return Err(DropReason::IcmpCsum);
    }
    IcmpMessage::parse::<true>(packet.linear())
}

/// Turns the request into the reply and sends it. Only the type and the addresses change, so the
/// checksum is updated incrementally (RFC 1624).
fn echo_reply(rx: &mut Rx<'_, '_>, header: &IpHeader, mut packet: Packet) -> Verdict {
    let (net, cx, rcu) = (rx.net, &mut *rx.cx, rx.rcu);
    let to_us_alone = packet.meta().pkt_type == PacketType::Host && net.is_local(cx, header.dst);
    let ignored = cx.sysctls().icmp_echo_ignore_all
        || (!to_us_alone && cx.sysctls().icmp_echo_ignore_broadcasts);
    if ignored {
        return Verdict::Drop(DropReason::IcmpEchoIgnored, packet);
    }
    let source = to_us_alone.then_some(header.dst);
    let Ok(dst) = net.reply_path(cx, header.src, source, None, CoreId(0), rcu) else {
        cx.count(Counter::IpOutNoRoutes, 1);
        cx.count(Counter::IcmpOutErrors, 1);
        return Verdict::Drop(DropReason::IpNoRoute, packet);
    };
    {
        let bytes = packet.linear_mut();
        let old = u16::from_be_bytes([bytes[0], bytes[1]]);
        bytes[0] = 0;
        let new = u16::from_be_bytes([bytes[0], bytes[1]]);
        let checksum = u16::from_be_bytes([bytes[2], bytes[3]]);
        // A checksum of zero is written as 0xffff, which equals it in ones' complement. Plain zero
        // is right only if all other bytes are zero, too.
        let updated = match pkt::checksum::update(checksum, old, new) {
            0 => 0xffff,
            updated => updated,
        };
        bytes[2..4].copy_from_slice(&updated.to_be_bytes());
    }
    if packet.headroom() < IPV4_HEADER_LEN + 14 {
        return Verdict::Drop(DropReason::NoMemory, packet);
    }
    count_sent(cx, 0);
    send(net, cx, &dst, dst.cold().source, header.src, packet);
    Verdict::Consumed
}

fn count_sent(cx: &Cx, kind: u8) {
    cx.count(Counter::IcmpOutMsgs, 1);
    if let Some(counter) = out_counter(kind) {
        cx.count(counter, 1);
    }
}

/// Prepends the IP header to a complete ICMP message and sends it.
fn send(
    net: &Net,
    cx: &mut Cx,
    dst: &crate::transmit::dst::Dst,
    src: IpAddr,
    to: IpAddr,
    mut packet: Packet,
) {
    let id = net.ip_ids().next(src, to, protocol::ICMP, cx.now, &mut cx.rng);
    let header = IpHeader {
        src,
        dst: to,
        protocol: protocol::ICMP,
        hop_limit: cx.sysctls().ip_default_ttl,
        traffic_class: 0,
        flow_label: 0,
        id,
        fragment: Fragment::default(),
        header_len: 0,
        payload_len: u32::try_from(packet.len()).expect("the message fits one IP packet"),
    };
    header.emit::<true>(packet.push(IPV4_HEADER_LEN));
    let meta = packet.meta_mut();
    meta.protocol = ETHER_TYPE_IPV4;
    meta.tx_checksum = TxChecksum::Done;
    meta.gso = pkt::Gso::default();
    ip_output::send(cx, dst, packet);
}

/// Passes an error about one of our packets to the connection of the quoted packet, which validates
/// it.
fn report(rx: &mut Rx<'_, '_>, message: IcmpMessage, mut packet: Packet) -> Verdict {
    let (net, cx) = (rx.net, &mut *rx.cx);
    // Enough for a quoted IP header of maximum length and the eight payload bytes that RFC 792
    // guarantees.
    let want = packet.len().min(ICMP_HEADER_LEN + 60 + 8);
    if !packet.require_linear(want) {
        return Verdict::Drop(DropReason::IcmpMalformed, packet);
    }
    let quote = match Quote::parse::<true>(&packet.linear()[ICMP_HEADER_LEN..]) {
        Ok(quote) => quote,
        Err(reason) => {
            cx.count(Counter::IcmpInErrors, 1);
            return Verdict::Drop(reason, packet);
        }
    };
    if quote.protocol != protocol::TCP {
        return Verdict::Drop(DropReason::IcmpNoSocket, packet);
    }
    let (src_port, dst_port) = quote.ports();
    let tuple = FourTuple {
        local: SocketAddr::new(quote.src, src_port),
        remote: SocketAddr::new(quote.dst, dst_port),
    };
    let hash = net.demux().hash(&tuple);
    let seq = SeqNum(quote.tcp_seq());
    let error = tcp_error(message, &quote, cx.sysctls().ip_no_pmtu_disc);
    match net.demux().established(hash, &tuple, rx.rcu) {
        Some(Entry::Stream(socket)) => socket.icmp_error(net, cx, error, seq),
        Some(Entry::Request(request)) => request.icmp_error(net, cx, error, seq),
        // A TIME-WAIT socket ignores errors: it acknowledges a repeated FIN, and sends nothing on
        // its own.
        Some(Entry::TimeWait(_)) => {}
        None => {
            cx.count(Counter::IcmpInErrors, 1);
            return Verdict::Drop(DropReason::IcmpNoSocket, packet);
        }
    }
    cx.pool.free(packet);
    Verdict::Consumed
}

/// Converts a message to a TCP error: RFC 1122 §4.2.3.9, RFC 1191 §4, Linux's `icmp_err_convert`.
/// `no_pmtu_disc` is the setting `ip_no_pmtu_disc`.
fn tcp_error(message: IcmpMessage, quote: &Quote, no_pmtu_disc: u8) -> IcmpError {
    match message {
        IcmpMessage::PacketTooBig { .. } if no_pmtu_disc == 2 => IcmpError::Other,
        // The reported MTU is not trusted; 0 is raised to the minimum path MTU.
        IcmpMessage::PacketTooBig { .. } if no_pmtu_disc == 1 => IcmpError::PacketTooBig { mtu: 0 },
        IcmpMessage::PacketTooBig { mtu: 0 } => {
            IcmpError::PacketTooBig { mtu: plateau_below(u32::from(quote.total_len)) }
        }
        IcmpMessage::PacketTooBig { mtu } => IcmpError::PacketTooBig { mtu },
        IcmpMessage::Unreachable(Unreachable::Network) => {
            IcmpError::PathBroken(TcpError::NetworkUnreachable)
        }
        IcmpMessage::Unreachable(Unreachable::Host) => {
            IcmpError::PathBroken(TcpError::HostUnreachable)
        }
        IcmpMessage::Unreachable(why) => match unreachable_error(why) {
            Some(error) => IcmpError::Unreachable(error),
            None => IcmpError::Other,
        },
        IcmpMessage::TimeExceeded { .. } => IcmpError::Unreachable(TcpError::HostUnreachable),
        IcmpMessage::ParameterProblem { .. } => IcmpError::Unreachable(TcpError::Protocol),
        _ => IcmpError::Other,
    }
}

/// Returns the errno of each code of RFC 792 and RFC 1122 §3.2.2.1. Codes beyond 15 are undefined.
fn unreachable_error(why: Unreachable) -> Option<TcpError> {
    Some(match why {
        Unreachable::Network => TcpError::NetworkUnreachable,
        Unreachable::Host => TcpError::HostUnreachable,
        Unreachable::Protocol => TcpError::ProtocolUnreachable,
        Unreachable::Port => TcpError::ConnectionRefused,
        Unreachable::Prohibited => TcpError::HostUnreachable,
        // Source route failed.
        Unreachable::Other(5) => TcpError::NotSupported,
        // Destination network unknown; network unreachable for this type of service.
        Unreachable::Other(6 | 11) => TcpError::NetworkUnreachable,
        // Destination host unknown.
        Unreachable::Other(7) => TcpError::HostDown,
        // Source host isolated.
        Unreachable::Other(8) => TcpError::NotOnNetwork,
        // Host unreachable for this type of service; precedence violation and cut-off.
        Unreachable::Other(12 | 14 | 15) => TcpError::HostUnreachable,
        Unreachable::Other(_) => return None,
    })
}

/// Sends a protocol unreachable error to the sender of a packet whose protocol this host does not
/// support.
pub(super) fn send_protocol_unreachable(rx: &mut Rx<'_, '_>, header: &IpHeader, packet: &Packet) {
    let message = IcmpMessage::Unreachable(Unreachable::Protocol);
    send_error(rx.net, rx.cx, rx.rcu, message, header, packet);
}

/// Sends an error about a received packet, which still has its IP header, to its sender, unless the
/// packet must not be answered or the limit of the host is reached. Linux: `icmp_send`.
pub(super) fn send_error(
    net: &Net,
    cx: &mut Cx,
    rcu: &Section<'_>,
    message: IcmpMessage,
    header: &IpHeader,
    packet: &Packet,
) {
    let header_len = usize::from(header.header_len);
    let payload = packet.linear().get(header_len..).unwrap_or_default();
    let link = packet.meta().pkt_type;
    if !header.dst.is_ipv4() || !may_answer_with_error::<true>(header, link, payload) {
        return;
    }
    if !net.icmp_limiter().allow(cx.now, &mut cx.rng) {
        cx.count(Counter::IcmpOutRateLimitGlobal, 1);
        return;
    }
    let source = Some(header.dst);
    let Ok(dst) = net.reply_path(cx, header.src, source, None, CoreId(0), rcu) else {
        return cx.count(Counter::IcmpOutErrors, 1);
    };
    let mut bytes = [0; ICMP_HEADER_LEN + QUOTE_BYTES_MAX];
    bytes[..ICMP_HEADER_LEN].copy_from_slice(&message.header_bytes::<true>());
    let quoted = packet.copy_to(0, &mut bytes[ICMP_HEADER_LEN..]);
    let bytes = &mut bytes[..ICMP_HEADER_LEN + quoted];
    let mut sum = pkt::Sum::default();
    sum.add_bytes(bytes);
    bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let Some(error) = cx.pool.alloc_from(bytes) else {
        cx.count(Counter::IpOutDiscards, 1);
        return cx.count(Counter::IcmpOutErrors, 1);
    };
    count_sent(cx, bytes[0]);
    send(net, cx, &dst, header.dst, header.src, error);
}
