//! UDP over IPv6, and sockets for both families.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    sync::Arc,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_LINK, HOST_V6, PEER_IP, PEER_LINK, PEER_V6},
};
use stack::{
    Errno, Readiness,
    base::counters::Counter,
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::protocol,
    },
    socket::{
        DatagramSocket,
        datagram::{ErrorOrigin, SendControl, SendMessage},
        options::{OptionValue, SocketOption, SocketSettings},
    },
};

use crate::udp::{close, recv, send, set};

const ANY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1);

pub(crate) fn rig() -> Rig {
    Rig::new(RigConfig { ipv6: true, link_local: true, ..RigConfig::default() })
}

pub(crate) fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

/// Returns the address with the scope of the rig's link.
fn on_link(ip: Ipv6Addr, port: u16) -> SocketAddr {
    SocketAddr::V6(SocketAddrV6::new(ip, port, 0, 1))
}

fn mapped(ip: Ipv4Addr) -> IpAddr {
    ip.to_ipv6_mapped().into()
}

pub(crate) fn try_bind(
    rig: &mut Rig,
    local: SocketAddr,
    settings: &SocketSettings,
) -> Result<Arc<DatagramSocket>, Errno> {
    let host = rig.host();
    DatagramSocket::bind(&host, &mut rig.world.cx, local, settings)
}

pub(crate) fn bind(rig: &mut Rig, ip: impl Into<IpAddr>, port: u16) -> Arc<DatagramSocket> {
    try_bind(rig, at(ip, port), &SocketSettings::default()).expect("a free port")
}

fn connect(rig: &mut Rig, socket: &Arc<DatagramSocket>, to: SocketAddr) -> Result<(), Errno> {
    let host = rig.host();
    socket.connect(&host, &mut rig.world.cx, to)
}

/// Delivers a datagram of the peer's port 1000.
fn give(rig: &mut Rig, port: u16, payload: &[u8]) {
    give_from(rig, PEER_V6, 1000, port, payload);
}

fn give_from(rig: &mut Rig, src: Ipv6Addr, from: u16, port: u16, payload: &[u8]) {
    let datagram = frame::udp(src, HOST_V6, (from, port), payload);
    rig.give(&frame::ipv6(src, HOST_V6, protocol::UDP, &datagram));
}

fn give_v4(rig: &mut Rig, port: u16, payload: &[u8]) {
    let datagram = frame::udp(PEER_IP, HOST_IP, (1000, port), payload);
    rig.give_from(PEER_IP, protocol::UDP, &datagram);
}

#[test]
fn a_datagram_over_ipv6_arrives_with_its_addresses_and_marks() {
    for paged in [false, true] {
        let mut rig = rig();
        rig.link.set_paged(paged);
        let socket = bind(&mut rig, ANY, 53);
        for len in [0, 1, 100, 1000, 1452] {
            let payload: Vec<u8> = (0..=255).cycle().take(len).collect();
            let datagram = frame::udp(PEER_V6, HOST_V6, (1000, 53), &payload);
            let mut packet = frame::ipv6(PEER_V6, HOST_V6, protocol::UDP, &datagram);
            // Traffic class 0xb9 and a flow label.
            packet[..4].copy_from_slice(&[0x6b, 0x91, 0x23, 0x45]);
            rig.give(&packet);
            assert!(socket.readiness().contains(Readiness::READ));
            let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
            assert_eq!(bytes, payload);
            assert_eq!(received.source, at(PEER_V6, 1000));
            assert_eq!(received.destination, IpAddr::V6(HOST_V6));
            assert_eq!((received.ttl, received.tos, received.device.0), (64, 0xb9, 1));
        }
        assert_eq!(
            (rig.count(Counter::Udp6InDatagrams), rig.count(Counter::UdpInDatagrams)),
            (5, 0)
        );
        close(&mut rig, socket);
        rig.finish();
    }
}

/// RFC 8200 §8.1: an IPv6 header has no checksum, so that of UDP is mandatory.
#[test]
fn a_datagram_over_ipv6_without_a_checksum_is_dropped_and_counted() {
    let mut rig = rig();
    let socket = bind(&mut rig, ANY, 53);
    let good = frame::udp(PEER_V6, HOST_V6, (1000, 53), b"payload");
    let no_checksum = [(6, 0), (7, 0)];
    let other_payload = [(10, good[10] ^ 1); 2];
    let short_length = [(5, 7); 2];
    for changes in [no_checksum, other_payload, short_length] {
        let mut datagram = good.clone();
        for (at, byte) in changes {
            datagram[at] = byte;
        }
        rig.give(&frame::ipv6(PEER_V6, HOST_V6, protocol::UDP, &datagram));
    }
    assert_eq!((rig.drops(DropReason::UdpCsum), rig.drops(DropReason::UdpHeader)), (2, 1));
    assert_eq!(rig.count(Counter::Udp6InCsumErrors), 2);
    assert_eq!(rig.count(Counter::Udp6InErrors), 3);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_datagram_behind_extension_headers_is_delivered() {
    let mut rig = rig();
    let socket = bind(&mut rig, HOST_V6, 53);
    let datagram = frame::udp(PEER_V6, HOST_V6, (1000, 53), b"behind");
    let options = [protocol::UDP, 0, 1, 4, 0, 0, 0, 0];
    let payload = [&options[..], &datagram].concat();
    for connected in [false, true] {
        if connected {
            connect(&mut rig, &socket, at(PEER_V6, 1000)).expect("a route");
        }
        rig.give(&frame::ipv6(PEER_V6, HOST_V6, protocol::DESTINATION_OPTIONS, &payload));
        let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
        assert_eq!((&bytes[..], received.source), (&b"behind"[..], at(PEER_V6, 1000)));
    }
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_dual_stack_socket_has_peers_of_both_families() {
    let mut rig = rig();
    let socket = bind(&mut rig, ANY, 53);
    give_v4(&mut rig, 53, b"four");
    let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
    assert_eq!((&bytes[..], received.source), (&b"four"[..], at(mapped(PEER_IP), 1000)));
    assert_eq!(received.destination, mapped(HOST_IP));
    for to in [at(mapped(PEER_IP), 9), at(PEER_IP, 9)] {
        send(&mut rig, &socket, &SendMessage::to(b"x", to)).expect("a route");
        let seen = rig.take_ip();
        let [Seen::Udp(ip, udp, _)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((ip.src, ip.dst), (IpAddr::V4(HOST_IP), IpAddr::V4(PEER_IP)));
        assert_eq!((udp.src_port, udp.dst_port), (53, 9));
    }
    send(&mut rig, &socket, &SendMessage::to(b"x", at(PEER_V6, 9))).expect("a route");
    let seen = rig.take_ip();
    assert!(matches!(&seen[..], [Seen::Udp(ip, ..)] if ip.src == IpAddr::V6(HOST_V6)), "{seen:?}");
    let counts = [Counter::UdpInDatagrams, Counter::UdpOutDatagrams, Counter::Udp6OutDatagrams];
    assert_eq!(counts.map(|counter| rig.count(counter)), [1, 2, 1]);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn ipv6_v6only_separates_the_families() {
    let mut rig = rig();
    let only = SocketSettings::default().v6_only(true);
    let six = try_bind(&mut rig, at(ANY, 53), &only).expect("a free port");
    let four = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 53);
    let dual = try_bind(&mut rig, at(ANY, 53), &SocketSettings::default());
    assert_eq!(dual.unwrap_err(), Errno::EADDRINUSE, "both families are taken");
    give_v4(&mut rig, 53, b"four");
    give(&mut rig, 53, b"six");
    assert_eq!(recv(&mut rig, &four).expect("a datagram").0, b"four");
    assert_eq!(recv(&mut rig, &six).expect("a datagram").0, b"six");
    let to_v4 = SendMessage::to(b"x", at(mapped(PEER_IP), 9));
    assert_eq!(send(&mut rig, &six, &to_v4), Err(Errno::ENETUNREACH));
    assert_eq!(connect(&mut rig, &six, at(PEER_IP, 9)), Err(Errno::ENETUNREACH));
    let to_v6 = SendMessage::to(b"x", at(PEER_V6, 9));
    assert_eq!(send(&mut rig, &four, &to_v6), Err(Errno::EAFNOSUPPORT));
    assert_eq!(connect(&mut rig, &four, at(PEER_V6, 9)), Err(Errno::EAFNOSUPPORT));
    let mapped_bind = try_bind(&mut rig, at(mapped(HOST_IP), 54), &only);
    assert_eq!(mapped_bind.unwrap_err(), Errno::EINVAL);
    for socket in [six, four] {
        close(&mut rig, socket);
    }
    rig.finish();
}

#[test]
fn a_connected_socket_receives_only_from_its_peer_and_shows_mapped_addresses() {
    let mut rig = rig();
    let host = rig.host();
    for (peer, local) in
        [(IpAddr::V6(PEER_V6), IpAddr::V6(HOST_V6)), (mapped(PEER_IP), mapped(HOST_IP))]
    {
        let socket = bind(&mut rig, ANY, 53);
        connect(&mut rig, &socket, at(peer, 1000)).expect("a route");
        assert_eq!(socket.local(&host, &mut rig.world.cx), at(local, 53));
        assert_eq!(socket.remote(&host, &mut rig.world.cx), Some(at(peer, 1000)));
        for round in 0..3 {
            give(&mut rig, 53, b"six");
            give_v4(&mut rig, 53, b"four");
            let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
            assert_eq!(received.source, at(peer, 1000), "round {round}");
            let expected: &[u8] = if peer == IpAddr::V6(PEER_V6) { b"six" } else { b"four" };
            assert_eq!(bytes, expected);
            assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
        }
        rig.take_ip();
        send(&mut rig, &socket, &SendMessage::new(b"x")).expect("a peer");
        let seen = rig.take_ip();
        assert!(
            matches!(&seen[..], [Seen::Udp(ip, ..)] if ip.dst == peer.to_canonical()),
            "{seen:?}"
        );
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

#[test]
fn a_closed_port_over_ipv6_is_reported() {
    let mut rig = rig();
    give(&mut rig, 9, &[7; 100]);
    let seen = rig.take_ip();
    let [Seen::Icmp(ip, message, _)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(
        (ip.dst, *message),
        (IpAddr::V6(PEER_V6), IcmpMessage::Unreachable(Unreachable::Port))
    );
    let counts = [Counter::Udp6NoPorts, Counter::UdpNoPorts, Counter::Icmp6OutDestUnreachs];
    assert_eq!(counts.map(|counter| rig.count(counter)), [1, 0, 1]);
    assert_eq!(rig.drops(DropReason::UdpNoSocket), 1);
    rig.finish();
}

/// `IP_TTL` and `IP_TOS` are fields of IPv4; IPv6 packets have `IPV6_UNICAST_HOPS` and
/// `IPV6_TCLASS`.
#[test]
fn each_family_has_its_own_ttl_and_traffic_class() {
    let mut rig = rig();
    let socket = bind(&mut rig, ANY, 53);
    let fields = |rig: &mut Rig, control: SendControl| {
        [at(PEER_V6, 9), at(PEER_IP, 9)].map(|to| {
            let message = SendMessage { control, ..SendMessage::to(&[5; 700], to) };
            send(rig, &socket, &message).expect("a route");
            let seen = rig.take_ip();
            let [Seen::Udp(ip, udp, _)] = &seen[..] else { panic!("{seen:?}") };
            assert_ne!(udp.checksum, 0);
            (ip.hop_limit, ip.traffic_class)
        })
    };
    assert_eq!(fields(&mut rig, SendControl::default()), [(64, 0), (64, 0)]);
    set(&mut rig, &socket, SocketOption::TimeToLive, 9);
    set(&mut rig, &socket, SocketOption::TypeOfService, 0xb9);
    assert_eq!(fields(&mut rig, SendControl::default()), [(64, 0), (9, 0xb9)]);
    set(&mut rig, &socket, SocketOption::UnicastHops, 7);
    set(&mut rig, &socket, SocketOption::TrafficClass, 3);
    assert_eq!(fields(&mut rig, SendControl::default()), [(7, 3), (9, 0xb9)]);
    let control = SendControl { tos: Some(1), ttl: Some(2), ..SendControl::default() };
    assert_eq!(fields(&mut rig, control), [(2, 1), (2, 1)]);
    set(&mut rig, &socket, SocketOption::UnicastHops, -1);
    set(&mut rig, &socket, SocketOption::TrafficClass, -1);
    assert_eq!(fields(&mut rig, SendControl::default()), [(64, 0), (9, 0xb9)]);
    // A checksum is sent in any case.
    set(&mut rig, &socket, SocketOption::NoCheck, 1);
    send(&mut rig, &socket, &SendMessage::to(b"x", at(PEER_V6, 9))).expect("a route");
    let seen = rig.take_ip();
    assert!(matches!(&seen[..], [Seen::Udp(_, udp, _)] if udp.checksum != 0), "{seen:?}");
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn options_of_ipv6_belong_to_ipv6_sockets() {
    let mut rig = rig();
    let host = rig.host();
    let (six, four) = (bind(&mut rig, ANY, 53), bind(&mut rig, HOST_IP, 54));
    let cx = &mut rig.world.cx;
    let number = OptionValue::Int(1);
    let set = four.set_option(&host, cx, SocketOption::UnicastHops, &number);
    assert_eq!(set, Err(Errno::ENOPROTOOPT));
    // In Linux, `getsockopt` of an IPv4 socket has another error.
    for foreign in [SocketOption::V6Only, SocketOption::NoDelay] {
        assert_eq!(four.option(&host, cx, foreign), Err(Errno::EOPNOTSUPP));
    }
    assert_eq!(six.option(&host, cx, SocketOption::NoDelay), Err(Errno::ENOPROTOOPT));
    for value in [-2, 256] {
        let value = OptionValue::Int(value);
        for option in [SocketOption::UnicastHops, SocketOption::TrafficClass] {
            assert_eq!(six.set_option(&host, cx, option, &value), Err(Errno::EINVAL));
        }
    }
    // The family is decided when the socket is bound.
    let late = six.set_option(&host, cx, SocketOption::V6Only, &number);
    assert_eq!(late, Err(Errno::EINVAL));
    let mut int = |socket: &DatagramSocket, option| {
        socket.option(&host, cx, option).expect("readable").as_int().expect("a number")
    };
    assert_eq!((int(&six, SocketOption::Domain), int(&four, SocketOption::Domain)), (10, 2));
    assert_eq!(int(&six, SocketOption::V6Only), 0);
    assert_eq!(int(&six, SocketOption::Protocol), 17);
    for socket in [six, four] {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

#[test]
fn a_link_local_address_needs_its_scope() {
    let mut rig = rig();
    let host = rig.host();
    let unscoped = try_bind(&mut rig, at(HOST_LINK, 53), &SocketSettings::default());
    assert_eq!(unscoped.unwrap_err(), Errno::EINVAL);
    let socket = try_bind(&mut rig, on_link(HOST_LINK, 53), &SocketSettings::default())
        .expect("an address of the device");
    let datagram = frame::udp(PEER_LINK, HOST_LINK, (1000, 53), b"near");
    rig.give(&frame::ipv6(PEER_LINK, HOST_LINK, protocol::UDP, &datagram));
    let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
    assert_eq!((&bytes[..], received.source), (&b"near"[..], on_link(PEER_LINK, 1000)));
    send(&mut rig, &socket, &SendMessage::to(b"back", received.source)).expect("a route");
    let seen = rig.take_ip();
    assert!(
        matches!(&seen[..], [Seen::Udp(ip, ..)] if ip.dst == IpAddr::V6(PEER_LINK)),
        "{seen:?}"
    );
    close(&mut rig, socket);
    // A device named by the message or by `connect` supplies the scope.
    let socket = bind(&mut rig, ANY, 54);
    let near = SendMessage::to(b"x", at(PEER_LINK, 9));
    assert_eq!(send(&mut rig, &socket, &near), Err(Errno::EINVAL));
    let control = SendControl { device: Some(received.device), ..SendControl::default() };
    send(&mut rig, &socket, &SendMessage { control, ..near }).expect("a route");
    connect(&mut rig, &socket, on_link(PEER_LINK, 9)).expect("a route");
    assert_eq!(socket.local(&host, &mut rig.world.cx), on_link(HOST_LINK, 54));
    send(&mut rig, &socket, &near).expect("a route");
    assert_eq!(rig.take_ip().len(), 2);
    let datagram = frame::udp(PEER_LINK, HOST_LINK, (9, 54), b"to the connection");
    rig.give(&frame::ipv6(PEER_LINK, HOST_LINK, protocol::UDP, &datagram));
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"to the connection");
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

/// Delivers an ICMPv6 error of a router about a datagram of `len` payload bytes to the peer.
fn give_error(rig: &mut Rig, message: &IcmpMessage, ports: (u16, u16), len: usize) {
    let datagram = frame::udp(HOST_V6, PEER_V6, ports, &vec![0; len]);
    let quoted = frame::ipv6(HOST_V6, PEER_V6, protocol::UDP, &datagram);
    let message = frame::icmpv6(ROUTER, HOST_V6, message, &quoted[..48]);
    rig.give(&frame::ipv6(ROUTER, HOST_V6, protocol::ICMPV6, &message));
}

#[test]
fn icmpv6_errors_reach_the_socket_of_the_datagram() {
    let mut rig = rig();
    let host = rig.host();
    let socket = bind(&mut rig, HOST_V6, 54);
    connect(&mut rig, &socket, at(PEER_V6, 1000)).expect("a route");
    let unreachable = |why| IcmpMessage::Unreachable(why);
    let permanent = [
        (unreachable(Unreachable::Port), Errno::ECONNREFUSED),
        (unreachable(Unreachable::Prohibited), Errno::EACCES),
        (IcmpMessage::ParameterProblem { code: 0, pointer: 6 }, Errno::EPROTO),
    ];
    for (message, errno) in permanent {
        give_error(&mut rig, &message, (54, 1000), 5);
        assert_eq!(recv(&mut rig, &socket).unwrap_err(), errno);
    }
    // Temporary errors need IPV6_RECVERR; IP_RECVERR is for IPv4 datagrams.
    set(&mut rig, &socket, SocketOption::ReceiveError, 1);
    give_error(&mut rig, &unreachable(Unreachable::Host), (54, 1000), 5);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    set(&mut rig, &socket, SocketOption::ReceiveErrorV6, 1);
    give_error(&mut rig, &unreachable(Unreachable::Host), (54, 1000), 5);
    let report = socket.take_report(&host, &mut rig.world.cx).expect("a report");
    assert_eq!((report.errno, report.offender), (Errno::EHOSTUNREACH, Some(ROUTER.into())));
    assert_eq!(report.origin, ErrorOrigin::Icmp6 { kind: 1, code: 3 });
    assert_eq!(report.destination, at(PEER_V6, 1000));
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EHOSTUNREACH);
    // Another port, and an address that the host does not have.
    let errors = rig.count(Counter::Icmp6InErrors);
    give_error(&mut rig, &unreachable(Unreachable::Port), (54, 1001), 5);
    let datagram = frame::udp(PEER_V6, HOST_V6, (54, 1000), b"");
    let quoted = frame::ipv6(PEER_V6, HOST_V6, protocol::UDP, &datagram);
    let message = frame::icmpv6(ROUTER, HOST_V6, &unreachable(Unreachable::Port), &quoted);
    rig.give(&frame::ipv6(ROUTER, HOST_V6, protocol::ICMPV6, &message));
    assert_eq!(rig.count(Counter::Icmp6InErrors), errors + 2);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn a_dual_stack_socket_gets_ipv4_errors_with_mapped_addresses() {
    let mut rig = rig();
    let host = rig.host();
    let socket = bind(&mut rig, ANY, 54);
    set(&mut rig, &socket, SocketOption::ReceiveError, 1);
    let datagram = frame::udp(HOST_IP, PEER_IP, (54, 1000), b"");
    let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol::UDP).with(&datagram);
    let message = frame::icmp(&IcmpMessage::Unreachable(Unreachable::Port), &quoted);
    rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
    let report = socket.take_report(&host, &mut rig.world.cx).expect("a report");
    assert_eq!(report.origin, ErrorOrigin::Icmp { kind: 3, code: 3 });
    assert_eq!(report.destination, at(mapped(PEER_IP), 1000));
    assert_eq!(report.offender, Some(mapped(PEER_IP)));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn a_packet_too_big_over_ipv6_is_learned_unless_it_is_forged() {
    let mut rig = rig();
    let host = rig.host();
    let socket = bind(&mut rig, HOST_V6, 54);
    connect(&mut rig, &socket, at(PEER_V6, 1000)).expect("a route");
    set(&mut rig, &socket, SocketOption::MtuDiscoverV6, 2);
    send(&mut rig, &socket, &SendMessage::new(&[0; 1452])).expect("it fits");
    assert_eq!(send(&mut rig, &socket, &SendMessage::new(&[0; 1453])), Err(Errno::EMSGSIZE));
    // RFC 8201 §4: every link carries 1,280 bytes. RFC 5927 §7.2: the quoted packet exceeds the
    // MTU.
    give_error(&mut rig, &IcmpMessage::PacketTooBig { mtu: 1279 }, (54, 1000), 1452);
    give_error(&mut rig, &IcmpMessage::PacketTooBig { mtu: 1400 }, (54, 1000), 1352);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    give_error(&mut rig, &IcmpMessage::PacketTooBig { mtu: 1400 }, (54, 1000), 1452);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EMSGSIZE);
    for option in [SocketOption::PathMtu, SocketOption::PathMtuV6] {
        let mtu = socket.option(&host, &mut rig.world.cx, option).expect("connected");
        assert_eq!(mtu.as_int(), Some(1400));
    }
    assert_eq!(send(&mut rig, &socket, &SendMessage::new(&[0; 1353])), Err(Errno::EMSGSIZE));
    assert_eq!(send(&mut rig, &socket, &SendMessage::new(&[0; 1352])), Ok(()));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn a_datagram_above_the_mtu_is_sent_in_fragments_and_reassembled() {
    let mut rig = rig();
    let socket = bind(&mut rig, ANY, 53);
    let payload: Vec<u8> = (0..=255).cycle().take(3000).collect();
    send(&mut rig, &socket, &SendMessage::to(&payload, at(PEER_V6, 9))).expect("a route");
    let fragments = rig.take_ip();
    let is_fragment = |seen: &Seen| matches!(seen, Seen::Fragment(..));
    assert!(fragments.len() == 3 && fragments.iter().all(is_fragment), "{fragments:?}");
    send(&mut rig, &socket, &SendMessage::to(&payload, at(HOST_V6, 53))).expect("a route");
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, payload);
    // The fragments of a datagram of the peer.
    let datagram = frame::udp(PEER_V6, HOST_V6, (1000, 53), &payload);
    for (offset, part) in (0_u16..).step_by(1448).zip(datagram.chunks(1448)) {
        let more = u16::from(usize::from(offset) + part.len() < datagram.len());
        let mut header = vec![protocol::UDP, 0];
        header.extend((offset | more).to_be_bytes());
        header.extend([0, 0, 0, 7]);
        let fragment = [&header[..], part].concat();
        rig.give(&frame::ipv6(PEER_V6, HOST_V6, protocol::FRAGMENT, &fragment));
    }
    let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
    assert_eq!((bytes, received.source), (payload, at(PEER_V6, 1000)));
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn segmentation_and_receive_offload_work_over_ipv6() {
    let mut rig = rig();
    let socket = bind(&mut rig, ANY, 53);
    let payload: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let control = SendControl { segment: Some(300), ..SendControl::default() };
    let message = SendMessage { control, ..SendMessage::to(&payload, at(PEER_V6, 9)) };
    send(&mut rig, &socket, &message).expect("a route");
    let sent: Vec<_> = rig
        .take_ip()
        .into_iter()
        .map(|seen| match seen {
            Seen::Udp(_, _, payload) => payload,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [300, 300, 300, 100]);
    assert_eq!(sent.concat(), payload);
    set(&mut rig, &socket, SocketOption::ReceiveOffload, 1);
    for part in payload.chunks(300) {
        give(&mut rig, 53, part);
    }
    // Another port of the peer, and another address.
    give_from(&mut rig, PEER_V6, 1001, 53, b"port");
    let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
    give_from(&mut rig, other, 1001, 53, b"addr");
    let (bytes, received) = recv(&mut rig, &socket).expect("datagrams");
    assert_eq!((bytes, received.segment), (payload, Some(300)));
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"port");
    let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
    assert_eq!((&bytes[..], received.source), (&b"addr"[..], at(other, 1001)));
    assert_eq!(rig.count(Counter::Udp6InDatagrams), 6);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_host_sends_to_itself_over_ipv6() {
    let mut rig = rig();
    let (server, client) = (bind(&mut rig, ANY, 53), bind(&mut rig, ANY, 54));
    let own = [at(Ipv6Addr::LOCALHOST, 53), at(HOST_V6, 53), at(ANY, 53), on_link(HOST_LINK, 53)];
    for to in own {
        send(&mut rig, &client, &SendMessage::to(b"self", to)).expect("a route");
        let (bytes, received) = recv(&mut rig, &server).expect("a datagram");
        assert_eq!(bytes, b"self");
        send(&mut rig, &server, &SendMessage::to(b"back", received.source)).expect("a route");
        assert_eq!(recv(&mut rig, &client).expect("a datagram").0, b"back");
    }
    let to_v4 = SendMessage::to(b"four", at(mapped(Ipv4Addr::LOCALHOST), 53));
    send(&mut rig, &client, &to_v4).expect("a route");
    let source = recv(&mut rig, &server).expect("a datagram").1.source;
    assert_eq!(source, at(mapped(Ipv4Addr::LOCALHOST), 54));
    assert_eq!(rig.take_ip(), []);
    for socket in [server, client] {
        close(&mut rig, socket);
    }
    rig.finish();
}

#[test]
fn a_disconnected_socket_has_peers_of_both_families_again() {
    let mut rig = rig();
    let host = rig.host();
    let socket = bind(&mut rig, ANY, 53);
    connect(&mut rig, &socket, at(mapped(PEER_IP), 1000)).expect("a route");
    // The local address is one of IPv4 now.
    assert_eq!(connect(&mut rig, &socket, at(PEER_V6, 1000)), Err(Errno::EAFNOSUPPORT));
    let to_v6 = SendMessage::to(b"x", at(PEER_V6, 9));
    assert_eq!(send(&mut rig, &socket, &to_v6), Err(Errno::EAFNOSUPPORT));
    socket.disconnect(&host, &mut rig.world.cx);
    assert_eq!(socket.local(&host, &mut rig.world.cx), at(ANY, 53));
    assert_eq!(socket.remote(&host, &mut rig.world.cx), None);
    give(&mut rig, 53, b"six");
    give_v4(&mut rig, 53, b"four");
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"six");
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"four");
    assert_eq!(send(&mut rig, &socket, &to_v6), Ok(()));
    connect(&mut rig, &socket, at(PEER_V6, 1000)).expect("a route");
    close(&mut rig, socket);
    // A socket that is bound to an address of one family reaches no peer of the other.
    let socket = bind(&mut rig, HOST_V6, 53);
    assert_eq!(connect(&mut rig, &socket, at(mapped(PEER_IP), 9)), Err(Errno::ENETUNREACH));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}
