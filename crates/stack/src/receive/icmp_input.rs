//! ICMP input: replies to echo requests, sends errors about undeliverable packets, passes received
//! errors to connections and datagram sockets, passes echo replies to ping sockets, and applies
//! IPv4 redirects.
//!
//! RFC 792, RFC 4443, RFC 1122 §3.2.2, RFC 5927. Linux: net/ipv4/icmp.c, net/ipv6/icmp.c. Both
//! versions take the same steps; `V4` selects the numbers, and the checksum of IPv6 covers a
//! pseudo-header. Neighbor discovery and MLD, which IPv6 sends as ICMP, continue in `ndp_input`
//! and `group_query`.
//!
//! The rate of the ICMP types of `icmp_ratemask`, and of all ICMPv6 errors, is limited: for each
//! destination (`icmp_ratelimit`), and for the whole host, both versions together
//! (`icmp_msgs_per_sec`, `icmp_msgs_burst`). The limit of the host is randomized: an exact limit
//! shared by all peers tells each of them how many errors the others have caused, and thereby which
//! ports are open (CVE-2020-25705).

use std::net::{IpAddr, SocketAddr};

use pkt::{DropReason, Packet, PacketType, RxChecksum, Sum, TxChecksum, Verdict};
use sync::epoch::Section;
use tcp::{FourTuple, IcmpError, SeqNum, TcpError};

use super::{group_query, intercept, ndp_input};
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{CoreId, DeviceIndex},
    },
    cx::Cx,
    header::{
        ethernet::HEADER_LEN,
        icmp::{
            CHECKSUM_OFFSET, ICMP_HEADER_LEN, IcmpMessage, MLD_DONE, MLD_QUERY, MLD_V2_REPORT,
            Quote, Unreachable,
            checksum::{fill_checksum, sum_of},
            in_counter, may_answer_with_error, out_counter,
        },
        ip::{
            self, ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Fragment, IPV6_HEADER_LEN, IpHeader, protocol,
        },
        ndp, strip,
        udp::UDP_HEADER_LEN,
    },
    route::{exception::plateau_below, fib::MTU_MIN_V6, router::Destination},
    socket::{
        RouterAdvice,
        datagram::{ErrorOrigin, QueuedError, SocketKind, report::kind_of},
        demux::Entry,
        net::{IcmpLimits, Net},
        rx::{Rx, scoped},
    },
    transmit::ip_output::{self},
};

/// Lowest type of the ICMPv6 messages that are not errors.
const INFORMATIONAL_V6: u8 = 128;

/// Maximum bytes of the offending packet that an error quotes after its ICMP header.
/// RFC 1812 §4.3.2.3 allows 576 bytes in total; 548 leaves room for the IP and the ICMP header. An
/// ICMPv6 error must fit the smallest MTU (RFC 4443 §2.4 (c)).
const fn quote_bytes_max<const V4: bool>() -> usize {
    if V4 { 548 } else { MTU_MIN_V6 as usize - IPV6_HEADER_LEN - ICMP_HEADER_LEN }
}

/// Handles one ICMP message, which still has its IP header.
pub(super) fn input<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Verdict {
    rx.cx.count(Counter::IcmpInMsgs.of::<V4>(), 1);
    packet.set_network_header();
    strip(&mut packet, usize::from(header.header_len));
    let message = match check_message::<V4>(rx.cx, header, &mut packet) {
        Ok(message) => message,
        Err(reason) => {
            rx.cx.count(Counter::IcmpInErrors.of::<V4>(), 1);
            return Verdict::Drop(reason, packet);
        }
    };
    let kind = packet.linear()[0];
    if let Some(counter) = in_counter::<V4>(kind) {
        rx.cx.count(counter, 1);
    }
    let device = DeviceIndex(packet.meta().rx_device);
    if intercept::is_foreign(rx, device, header.dst, &packet) && !message.is_error() {
        return match message {
            IcmpMessage::EchoRequest { .. } => intercept::echo(rx, header, packet),
            // Advice and questions of other hosts do not concern this one.
            _ => Verdict::Drop(DropReason::IpForwardingOff, packet),
        };
    }
    match message {
        IcmpMessage::EchoRequest { .. } => echo_reply::<V4>(rx, header, packet),
        message if message.is_error() => report::<V4>(rx, header.src, message, packet),
        IcmpMessage::Redirect { code: 0..=3, gateway } => {
            redirect(rx, header.src, IpAddr::V4(gateway), packet)
        }
        IcmpMessage::EchoReply { id, .. } => to_ping_socket(rx, header, id, packet),
        _ if !V4 && matches!(kind, MLD_QUERY..=MLD_DONE | MLD_V2_REPORT) => {
            group_query::mld(rx, header, packet)
        }
        _ if !V4 && matches!(kind, ndp::ROUTER_SOLICITATION..=ndp::REDIRECT) => {
            ndp_input::input(rx, header, packet)
        }
        _ => Verdict::Drop(DropReason::IcmpUnknownType, packet),
    }
}

fn check_message<const V4: bool>(
    cx: &Cx,
    header: &IpHeader,
    packet: &mut Packet,
) -> Result<IcmpMessage, DropReason> {
    if !packet.require_linear(ICMP_HEADER_LEN) {
        return Err(DropReason::IcmpMalformed);
    }
    let trusted = packet.meta().rx_checksum == RxChecksum::Unnecessary;
    if !trusted && !sum_of::<V4>(header.src, header.dst, packet).is_valid() {
        cx.count(Counter::IcmpInCsumErrors.of::<V4>(), 1);
        return Err(DropReason::IcmpCsum);
    }
    IcmpMessage::parse::<V4>(packet.linear())
}

/// Answers an echo request to this host, unless the settings forbid it.
fn echo_reply<const V4: bool>(rx: &mut Rx<'_, '_>, header: &IpHeader, packet: Packet) -> Verdict {
    let (net, cx, rcu) = (rx.net, &mut *rx.cx, rx.rcu);
    let to_us_alone = packet.meta().pkt_type == PacketType::Host && net.is_local(cx, header.dst);
    let sysctls = cx.sysctls();
    let ignored = if V4 {
        sysctls.icmp_echo_ignore_all || (!to_us_alone && sysctls.icmp_echo_ignore_broadcasts)
    } else {
        sysctls.icmp6_echo_ignore_all || (!to_us_alone && sysctls.icmp6_echo_ignore_multicast)
    };
    if ignored {
        return Verdict::Drop(DropReason::IcmpEchoIgnored, packet);
    }
    if !V4 && header.src.is_unspecified() {
        return Verdict::Drop(DropReason::IpSourceInvalid, packet);
    }
    let source = to_us_alone.then_some(header.dst);
    answer_echo::<V4>(net, cx, rcu, header, source, packet)
}

/// Converts an echo request, whose IP header was removed, to its reply and sends the reply. It
/// comes from `source`, or from the address that the route selects.
pub(super) fn answer_echo<const V4: bool>(
    net: &Net,
    cx: &mut Cx,
    rcu: &Section<'_>,
    header: &IpHeader,
    source: Option<IpAddr>,
    mut packet: Packet,
) -> Verdict {
    let [kind, ..] = IcmpMessage::EchoReply { id: 0, seq: 0 }.header_bytes::<V4>();
    if !may_send::<V4>(net, cx, kind, header.src) {
        return Verdict::Drop(DropReason::IcmpRateLimit, packet);
    }
    let device = DeviceIndex(packet.meta().rx_device);
    let by = intercept::answers_by(net, cx, device, header.dst).filter(|_| source.is_some());
    let remote = Destination::of_answer(scoped(header.src, 0, device), by);
    let Ok(dst) = net.reply_dst(cx, remote, source, None, CoreId(0), rcu) else {
        cx.count(Counter::IpOutNoRoutes.of::<V4>(), 1);
        cx.count(Counter::IcmpOutErrors.of::<V4>(), 1);
        return Verdict::Drop(DropReason::IpNoRoute, packet);
    };
    let source = source.unwrap_or_else(|| dst.cold().source);
    if V4 {
        // Only the type and the addresses change, so the checksum is updated incrementally
        // (RFC 1624).
        let bytes = packet.linear_mut();
        let old = u16::from_be_bytes([bytes[0], bytes[1]]);
        bytes[0] = kind;
        let new = u16::from_be_bytes([bytes[0], bytes[1]]);
        let checksum = u16::from_be_bytes([bytes[2], bytes[3]]);
        // A checksum of zero is written as 0xffff, which has the same value in ones' complement.
        // The zero would be wrong if all other bytes are zero, too.
        let updated = match pkt::checksum::update(checksum, old, new) {
            0 => 0xffff,
            updated => updated,
        };
        bytes[2..4].copy_from_slice(&updated.to_be_bytes());
    } else {
        packet.linear_mut()[0] = kind;
        fill_checksum::<V4>(source, header.src, &mut packet);
    }
    if packet.headroom() < ip::fixed_len::<V4>() + HEADER_LEN {
        return Verdict::Drop(DropReason::NoMemory, packet);
    }
    count_sent::<V4>(cx, kind);
    send::<V4>(net, cx, &dst, source, header.src, packet);
    Verdict::Consumed
}

fn count_sent<const V4: bool>(cx: &Cx, kind: u8) {
    cx.count(Counter::IcmpOutMsgs.of::<V4>(), 1);
    if let Some(counter) = out_counter::<V4>(kind) {
        cx.count(counter, 1);
    }
}

/// Prepends the IP header to a complete ICMP message and sends it.
fn send<const V4: bool>(
    net: &Net,
    cx: &mut Cx,
    dst: &crate::transmit::dst::Dst,
    src: IpAddr,
    to: IpAddr,
    mut packet: Packet,
) {
    let id = if V4 { net.ip_ids().next(src, to, protocol::ICMP, cx.now, &mut cx.rng) } else { 0 };
    let header = IpHeader {
        src,
        dst: to,
        protocol: ip::icmp_protocol::<V4>(),
        hop_limit: ip_output::hop_limit::<V4>(cx),
        traffic_class: 0,
        flow_label: 0,
        id,
        fragment: Fragment::default(),
        header_len: 0,
        payload_len: u32::try_from(packet.len()).expect("the message fits one IP packet"),
    };
    header.emit::<V4>(packet.push(ip::fixed_len::<V4>()));
    let meta = packet.meta_mut();
    meta.protocol = if V4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
    meta.tx_checksum = TxChecksum::Done;
    meta.gso = pkt::Gso::default();
    ip_output::send(cx, dst, packet);
}

/// Passes an echo reply to the ping socket with the identifier of the reply. Linux: `ping_rcv`.
fn to_ping_socket(rx: &mut Rx<'_, '_>, header: &IpHeader, id: u16, packet: Packet) -> Verdict {
    let device = DeviceIndex(packet.meta().rx_device);
    let tuple =
        FourTuple { local: scoped(header.dst, id, device), remote: scoped(header.src, 0, device) };
    let hash = rx.net.demux().hash(&tuple);
    let core = rx.net.core_for(rx.cx, hash);
    let table = rx.net.table_of(SocketKind::Ping);
    let found = table
        .connected(hash, &tuple, rx.rcu)
        .or_else(|| table.open(core, tuple.local, hash, rx.rcu));
    match found {
        Some(socket) => {
            rx.datagram(socket, packet);
            Verdict::Consumed
        }
        None => Verdict::Drop(DropReason::IcmpNoSocket, packet),
    }
}

/// Passes an error about a segment of ours to its connection or half-open connection, which
/// validates the error. An error about a datagram or an ICMP message goes to `report_datagram`.
fn report<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    offender: IpAddr,
    message: IcmpMessage,
    mut packet: Packet,
) -> Verdict {
    let (net, cx) = (rx.net, &mut *rx.cx);
    // Enough for a quoted IP header of maximum length and the eight payload bytes that RFC 792
    // guarantees.
    let want = packet.len().min(ICMP_HEADER_LEN + 60 + 8);
    if !packet.require_linear(want) {
        return Verdict::Drop(DropReason::IcmpMalformed, packet);
    }
    let quote = match Quote::parse::<V4>(&packet.linear()[ICMP_HEADER_LEN..]) {
        Ok(quote) => quote,
        Err(reason) => {
            cx.count(Counter::IcmpInErrors.of::<V4>(), 1);
            return Verdict::Drop(reason, packet);
        }
    };
    if let Some(kind) = kind_of(quote.protocol) {
        return report_datagram::<V4>(rx, kind, offender, message, &quote, packet);
    }
    if quote.protocol != protocol::TCP {
        return Verdict::Drop(DropReason::IcmpNoSocket, packet);
    }
    let (src_port, dst_port) = quote.ports();
    let device = DeviceIndex(packet.meta().rx_device);
    let tuple = FourTuple {
        local: scoped(quote.src, src_port, device),
        remote: scoped(quote.dst, dst_port, device),
    };
    let hash = net.demux().hash(&tuple);
    let seq = SeqNum(quote.tcp_seq());
    let error = if V4 {
        tcp_error(message, &quote, cx.sysctls().ip_no_pmtu_disc)
    } else {
        tcp_error_v6(message)
    };
    match net.demux().established(hash, &tuple, rx.rcu) {
        Some(Entry::Stream(socket)) => socket.icmp_error(net, cx, error, seq),
        Some(Entry::Request(request)) => request.icmp_error(net, cx, error, seq),
        // A TIME-WAIT socket ignores errors: it sends segments only in reply to received ones.
        Some(Entry::TimeWait(_)) => {}
        None => {
            cx.count(Counter::IcmpInErrors.of::<V4>(), 1);
            return Verdict::Drop(DropReason::IcmpNoSocket, packet);
        }
    }
    cx.pool.free(packet);
    Verdict::Consumed
}

/// Handles an IPv4 redirect. If the redirect quotes a segment, the connection of the segment
/// validates and applies the redirect. If it quotes a datagram or an echo request of an open
/// socket, this function applies it. RFC 1122 §3.2.2.2; Linux: `icmp_redirect`.
fn redirect(rx: &mut Rx<'_, '_>, router: IpAddr, gateway: IpAddr, mut packet: Packet) -> Verdict {
    let (net, cx) = (rx.net, &mut *rx.cx);
    if !cx.sysctls().accept_redirects {
        return Verdict::Drop(DropReason::IcmpRedirectIgnored, packet);
    }
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
    // An echo reply has no socket. No socket has port 0, so the lookup finds none.
    let (src_port, dst_port) = quote.socket_ports().unwrap_or_default();
    let tuple = FourTuple {
        local: SocketAddr::new(quote.src, src_port),
        remote: SocketAddr::new(quote.dst, dst_port),
    };
    let hash = net.demux().hash(&tuple);
    let device = DeviceIndex(packet.meta().rx_device);
    let advice = RouterAdvice { device, router, gateway };
    let is_known = match (quote.protocol, kind_of(quote.protocol)) {
        (protocol::TCP, _) => match net.demux().established(hash, &tuple, rx.rcu) {
            Some(Entry::Stream(socket)) => {
                socket.redirect(net, cx, advice, SeqNum(quote.tcp_seq()));
                true
            }
            _ => false,
        },
        (_, Some(kind)) => {
            net.has_datagram_socket(cx, kind, hash, &tuple, rx.rcu)
                && net.redirect(cx, device, (router, quote.dst, gateway))
        }
        _ => false,
    };
    if !is_known {
        cx.count(Counter::IcmpInErrors, 1);
        return Verdict::Drop(DropReason::IcmpNoSocket, packet);
    }
    cx.pool.free(packet);
    Verdict::Consumed
}

/// Passes an error about one of our datagrams or echo requests to its socket. The quote must be
/// plausible: its source is an address of this host, its length covers a header, and if the error
/// reports an MTU, the quoted packet exceeds it.
fn report_datagram<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    kind: SocketKind,
    offender: IpAddr,
    message: IcmpMessage,
    quote: &Quote,
    packet: Packet,
) -> Verdict {
    let (net, rcu) = (rx.net, rx.rcu);
    let device = DeviceIndex(packet.meta().rx_device);
    // An error about an echo reply has no socket.
    let (src_port, dst_port) = quote.socket_ports().unwrap_or_default();
    let tuple = FourTuple {
        local: scoped(quote.src, src_port, device),
        remote: scoped(quote.dst, dst_port, device),
    };
    let hash = net.demux().hash(&tuple);
    let len = match kind {
        SocketKind::Udp => usize::from(u16::from_be_bytes([quote.payload[4], quote.payload[5]])),
        SocketKind::Ping => usize::from(quote.total_len).saturating_sub(ip::fixed_len::<V4>()),
    };
    let is_ours = len >= UDP_HEADER_LEN && src_port != 0 && net.is_local(rx.cx, quote.src);
    let mut mtu = 0;
    if let IcmpMessage::PacketTooBig { mtu: reported } = message {
        mtu = match reported {
            0 if V4 => plateau_below(u32::from(quote.total_len)),
            reported => reported,
        };
        // RFC 5927 §7.2: an error that reports an MTU not smaller than the packet is forged.
        // RFC 8201 §4: every IPv6 link carries 1,280 bytes.
        let is_forged = len + ip::fixed_len::<V4>() <= mtu as usize || (!V4 && mtu < MTU_MIN_V6);
        if is_forged || (V4 && rx.cx.sysctls().ip_no_pmtu_disc == 2) {
            return refuse_report::<V4>(rx.cx, kind, packet);
        }
    }
    let (kind_of_message, code) = (packet.linear()[0], packet.linear()[1]);
    let origin = match V4 {
        true => ErrorOrigin::Icmp { kind: kind_of_message, code },
        false => ErrorOrigin::Icmp6 { kind: kind_of_message, code },
    };
    let found = if V4 { datagram_error(message) } else { datagram_error_v6(message) };
    let error = found.filter(|_| is_ours).map(|(errno, permanent)| QueuedError {
        errno,
        origin,
        mtu,
        offender: Some(offender),
        destination: tuple.remote,
        permanent,
    });
    let known = error.and_then(|error| {
        let found = net.report_datagram(rx.cx, kind, hash, &tuple, error, rcu);
        if found.is_some() && mtu != 0 {
            learn_path_mtu(rx, &tuple, mtu);
        }
        found
    });
    if known.is_none() {
        return refuse_report::<V4>(rx.cx, kind, packet);
    }
    rx.cx.pool.free(packet);
    Verdict::Consumed
}

/// Drops an error that is not plausible, not wanted or has no socket. As in Linux, an error about
/// an ICMP message is not counted.
fn refuse_report<const V4: bool>(cx: &Cx, kind: SocketKind, packet: Packet) -> Verdict {
    if kind == SocketKind::Udp {
        cx.count(Counter::IcmpInErrors.of::<V4>(), 1);
    }
    Verdict::Drop(DropReason::IcmpNoSocket, packet)
}

/// Records a smaller path MTU for all sockets that send to the destination of the quoted datagram.
fn learn_path_mtu(rx: &Rx<'_, '_>, tuple: &FourTuple, mtu: u32) {
    let (remote, source) = (tuple.remote, Some(tuple.local.ip()));
    let dst = rx.net.reply_dst(rx.cx, remote, source, None, CoreId(0), rx.rcu);
    if let Ok(dst) = dst {
        rx.net.learn_path_mtu(remote.ip(), &dst, mtu, rx.cx);
    }
}

/// Returns the error of a datagram socket for a message, and whether this error is permanent.
/// Linux: `__udp4_lib_err`, `icmp_err_convert`.
fn datagram_error(message: IcmpMessage) -> Option<(Errno, bool)> {
    match message {
        IcmpMessage::PacketTooBig { .. } => Some((Errno::EMSGSIZE, true)),
        IcmpMessage::Unreachable(why) => {
            let is_temporary = matches!(
                why,
                Unreachable::Network | Unreachable::Host | Unreachable::Other(5 | 11 | 12)
            );
            unreachable_error(why).map(|error| (Errno::from(error), !is_temporary))
        }
        IcmpMessage::TimeExceeded { .. } => Some((Errno::EHOSTUNREACH, false)),
        IcmpMessage::ParameterProblem { .. } => Some((Errno::EPROTO, true)),
        _ => None,
    }
}

/// As [`datagram_error`], for ICMPv6. Linux: `__udp6_lib_err`, `icmpv6_err_convert`.
const fn datagram_error_v6(message: IcmpMessage) -> Option<(Errno, bool)> {
    Some(match message {
        IcmpMessage::PacketTooBig { .. } => (Errno::EMSGSIZE, true),
        IcmpMessage::Unreachable(Unreachable::Network) => (Errno::ENETUNREACH, false),
        // Code 2: the destination is beyond the scope of the source address.
        IcmpMessage::Unreachable(Unreachable::Host | Unreachable::Other(2))
        | IcmpMessage::TimeExceeded { .. } => (Errno::EHOSTUNREACH, false),
        IcmpMessage::Unreachable(Unreachable::Port) => (Errno::ECONNREFUSED, true),
        // Codes 5 and 6: the source address failed a policy, or the route rejects the destination.
        IcmpMessage::Unreachable(Unreachable::Prohibited | Unreachable::Other(5 | 6)) => {
            (Errno::EACCES, true)
        }
        IcmpMessage::Unreachable(Unreachable::Protocol) | IcmpMessage::ParameterProblem { .. } => {
            (Errno::EPROTO, true)
        }
        _ => return None,
    })
}

/// Converts a message to a TCP error: RFC 1122 §4.2.3.9, RFC 1191 §4, Linux's `icmp_err_convert`.
/// `no_pmtu_disc` is the setting `ip_no_pmtu_disc`.
fn tcp_error(message: IcmpMessage, quote: &Quote, no_pmtu_disc: u8) -> IcmpError {
    match message {
        IcmpMessage::PacketTooBig { .. } if no_pmtu_disc == 2 => IcmpError::Other,
        // With this setting the reported MTU is not trusted: the path MTU becomes its minimum.
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

/// Converts an ICMPv6 message to a TCP error: RFC 8201 §4, Linux's `icmpv6_err_convert`.
fn tcp_error_v6(message: IcmpMessage) -> IcmpError {
    match message {
        // RFC 8201 §4: every link carries 1,280 bytes, so a report of a smaller MTU is ignored.
        IcmpMessage::PacketTooBig { mtu } if mtu < MTU_MIN_V6 => IcmpError::Other,
        IcmpMessage::PacketTooBig { mtu } => IcmpError::PacketTooBig { mtu },
        IcmpMessage::Unreachable(Unreachable::Network) => {
            IcmpError::PathBroken(TcpError::NetworkUnreachable)
        }
        // Code 2: the destination is beyond the scope of the source address.
        IcmpMessage::Unreachable(Unreachable::Host | Unreachable::Other(2)) => {
            IcmpError::PathBroken(TcpError::HostUnreachable)
        }
        IcmpMessage::Unreachable(Unreachable::Port) => {
            IcmpError::Unreachable(TcpError::ConnectionRefused)
        }
        // Codes 5 and 6: the source address failed a policy, or the route rejects the destination.
        IcmpMessage::Unreachable(Unreachable::Prohibited | Unreachable::Other(5 | 6)) => {
            IcmpError::Unreachable(TcpError::Prohibited)
        }
        IcmpMessage::TimeExceeded { .. } => IcmpError::Unreachable(TcpError::HostUnreachable),
        IcmpMessage::Unreachable(Unreachable::Protocol) | IcmpMessage::ParameterProblem { .. } => {
            IcmpError::Unreachable(TcpError::Protocol)
        }
        _ => IcmpError::Other,
    }
}

/// Returns the error for a code of RFC 792, RFC 1122 §3.2.2.1 or RFC 1812. `None`: the code is
/// undefined.
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

/// Returns whether the rate limits allow a message of type `kind` to the address `to`, and counts a
/// refusal.
fn may_send<const V4: bool>(net: &Net, cx: &mut Cx, kind: u8, to: IpAddr) -> bool {
    let sysctls = cx.sysctls();
    let interval = sysctls.icmp_ratelimit;
    let limits =
        IcmpLimits { per_second: sysctls.icmp_msgs_per_sec, burst: sysctls.icmp_msgs_burst };
    // The types of ICMPv6 errors are below 128 (RFC 4443 §2.1).
    let is_limited =
        if V4 { sysctls.icmp_ratemask & (1 << kind) != 0 } else { kind < INFORMATIONAL_V6 };
    if !is_limited {
        return true;
    }
    if !net.icmp_limiter().allow(cx.now, limits, &mut cx.rng) {
        cx.count(Counter::IcmpOutRateLimitGlobal, 1);
        return false;
    }
    let end = SocketAddr::new(to, 0);
    let hash = net.demux().hash(&FourTuple { local: end, remote: end });
    let allowed = net.icmp_limiter().allow_to(hash, cx.now, interval);
    if !allowed {
        cx.count(Counter::IcmpOutRateLimitHost.of::<V4>(), 1);
    }
    allowed
}

/// Calls [`report_to_sender`] with the host, the context and the read section of `rx`.
pub(super) fn send_error<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    message: IcmpMessage,
    packet: &Packet,
) {
    let _sent = report_to_sender::<V4>(rx.net, rx.cx, rx.rcu, header, message, packet);
}

/// Sends an error to the sender of `packet`, which still has its IP header, unless the rules of
/// `may_answer_with_error` or the rate limits forbid the error or, for IPv6, the destination is no
/// address of this host. Returns whether the error was sent.
/// Linux: `icmp_send`.
pub(super) fn report_to_sender<const V4: bool>(
    net: &Net,
    cx: &mut Cx,
    rcu: &Section<'_>,
    header: &IpHeader,
    message: IcmpMessage,
    packet: &Packet,
) -> bool {
    let header_len = usize::from(header.header_len);
    let payload = packet.linear().get(header_len..).unwrap_or_default();
    let link = packet.meta().pkt_type;
    let device = DeviceIndex(packet.meta().rx_device);
    let by = intercept::answers_by(net, cx, device, header.dst);
    let is_ours = V4 || by.is_some() || net.is_local(cx, header.dst);
    if !is_ours || !may_answer_with_error::<V4>(header, link, payload) {
        return false;
    }
    let header_bytes = message.header_bytes::<V4>();
    if !may_send::<V4>(net, cx, header_bytes[0], header.src) {
        return false;
    }
    let source = Some(header.dst);
    let remote = Destination::of_answer(scoped(header.src, 0, device), by);
    let Ok(dst) = net.reply_dst(cx, remote, source, None, CoreId(0), rcu) else {
        cx.count(Counter::IcmpOutErrors.of::<V4>(), 1);
        return false;
    };
    let mut bytes = [0; ICMP_HEADER_LEN + quote_bytes_max::<false>()];
    bytes[..ICMP_HEADER_LEN].copy_from_slice(&header_bytes);
    let end = ICMP_HEADER_LEN + quote_bytes_max::<V4>();
    let quoted = packet.copy_to(0, &mut bytes[ICMP_HEADER_LEN..end]);
    let bytes = &mut bytes[..ICMP_HEADER_LEN + quoted];
    let len = u32::try_from(bytes.len()).expect("an error message has at most 1,240 bytes");
    let mut sum = match V4 {
        true => Sum::default(),
        false => pkt::checksum::pseudo_header(header.dst, header.src, protocol::ICMPV6, len),
    };
    sum.add_bytes(bytes);
    bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.finish().to_be_bytes());
    let Some(error) = cx.pool.alloc_from(bytes) else {
        cx.count(Counter::IpOutDiscards.of::<V4>(), 1);
        cx.count(Counter::IcmpOutErrors.of::<V4>(), 1);
        return false;
    };
    count_sent::<V4>(cx, bytes[0]);
    send::<V4>(net, cx, &dst, header.dst, header.src, error);
    true
}
