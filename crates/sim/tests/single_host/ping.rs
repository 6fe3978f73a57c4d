//! Ping sockets: echo requests and replies of both IP versions.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use pkt::DropReason;
use sim::{
    Rig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_V6, PEER_IP, PEER_V6},
};
use stack::{
    Errno,
    base::counters::Counter,
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::protocol,
    },
    socket::{
        DatagramSocket,
        datagram::{SendMessage, SocketKind},
        options::{SocketOption, SocketSettings},
    },
};

use crate::{
    udp::{close, recv, send, set},
    udp6::{at, rig},
};

const ID: u16 = 77;

fn open(rig: &mut Rig, local: IpAddr, id: u16) -> Result<Arc<DatagramSocket>, Errno> {
    let host = rig.host();
    let local = SocketAddr::new(local, id);
    let settings = SocketSettings::default();
    DatagramSocket::open(&host, &mut rig.world.cx, SocketKind::Ping, local, &settings)
}

/// Returns an echo request as an application writes it: with any identifier and checksum.
fn request(v4: bool, sequence: u16, data: &[u8]) -> Vec<u8> {
    let message = IcmpMessage::EchoRequest { id: 0x1234, seq: sequence };
    let header = if v4 { message.header_bytes::<true>() } else { message.header_bytes::<false>() };
    [&header[..], data].concat()
}

/// Delivers a message of the peer.
fn give(rig: &mut Rig, v4: bool, message: &IcmpMessage, data: &[u8]) {
    if v4 {
        let message = frame::icmp(message, data);
        rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
    } else {
        let message = frame::icmpv6(PEER_V6, HOST_V6, message, data);
        rig.give(&frame::ipv6(PEER_V6, HOST_V6, protocol::ICMPV6, &message));
    }
}

const fn ends(v4: bool) -> (IpAddr, IpAddr) {
    if v4 {
        (IpAddr::V4(HOST_IP), IpAddr::V4(PEER_IP))
    } else {
        (IpAddr::V6(HOST_V6), IpAddr::V6(PEER_V6))
    }
}

#[test]
fn a_ping_socket_sends_requests_with_its_identifier_and_receives_their_replies() {
    for v4 in [true, false] {
        let mut rig = rig();
        let (local, peer) = ends(v4);
        let socket = open(&mut rig, local, ID).expect("a free identifier");
        for (sequence, len) in [(1, 0), (2, 56), (3, 1400)] {
            let data = vec![0x5a; len];
            let message = request(v4, sequence, &data);
            // The port of the destination means nothing.
            send(&mut rig, &socket, &SendMessage::to(&message, at(peer, 0))).expect("a route");
            let seen = rig.take_ip();
            let [Seen::Icmp(ip, sent, payload)] = &seen[..] else { panic!("{seen:?}") };
            assert_eq!((ip.src, ip.dst, payload), (local, peer, &data));
            assert_eq!(*sent, IcmpMessage::EchoRequest { id: ID, seq: sequence });
            let reply = IcmpMessage::EchoReply { id: ID, seq: sequence };
            give(&mut rig, v4, &reply, &data);
            let (bytes, received) = recv(&mut rig, &socket).expect("a reply");
            assert_eq!((received.source, received.destination), (at(peer, 0), local));
            assert_eq!(
                (&bytes[4..6], &bytes[6..8]),
                (&ID.to_be_bytes()[..], &sequence.to_be_bytes()[..])
            );
            assert_eq!((bytes[0], &bytes[8..]), (if v4 { 0 } else { 129 }, &data[..]));
        }
        let sent = if v4 { Counter::IcmpOutEchos } else { Counter::Icmp6OutEchos };
        assert_eq!(rig.count(sent), 3);
        assert_eq!(rig.count(Counter::UdpOutDatagrams) + rig.count(Counter::Udp6OutDatagrams), 0);
        // Replies of another identifier, and requests, are not for the socket.
        give(&mut rig, v4, &IcmpMessage::EchoReply { id: ID + 1, seq: 1 }, b"");
        assert_eq!(rig.drops(DropReason::IcmpNoSocket), 1);
        give(&mut rig, v4, &IcmpMessage::EchoRequest { id: ID, seq: 1 }, b"");
        assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
        close(&mut rig, socket);
        rig.finish();
    }
}

#[test]
fn a_connected_ping_socket_receives_only_from_its_peer() {
    for v4 in [true, false] {
        let mut rig = rig();
        let host = rig.host();
        let (local, peer) = ends(v4);
        let any: IpAddr =
            if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = open(&mut rig, any, 0).expect("an identifier");
        socket.connect(&host, &mut rig.world.cx, at(peer, 9)).expect("a route");
        let own = socket.local(&host, &mut rig.world.cx);
        assert_eq!((own.ip(), socket.remote(&host, &mut rig.world.cx)), (local, Some(at(peer, 0))));
        assert_ne!(own.port(), 0);
        let message = request(v4, 1, b"ping");
        send(&mut rig, &socket, &SendMessage::new(&message)).expect("a peer");
        assert_eq!(rig.take_ip().len(), 1);
        give(&mut rig, v4, &IcmpMessage::EchoReply { id: own.port(), seq: 1 }, b"ping");
        assert_eq!(recv(&mut rig, &socket).expect("a reply").0.len(), 12);
        // The same identifier from the host itself.
        send(&mut rig, &socket, &SendMessage::to(&message, at(local, 0))).expect("a route");
        assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
        close(&mut rig, socket);
        drop(host);
        rig.finish();
    }
}

#[test]
fn a_ping_socket_sends_nothing_but_echo_requests_of_its_family() {
    let mut rig = rig();
    let four = open(&mut rig, HOST_IP.into(), ID).expect("a free identifier");
    let six = open(&mut rig, HOST_V6.into(), ID).expect("another protocol");
    assert_eq!(open(&mut rig, HOST_IP.into(), ID).unwrap_err(), Errno::EADDRINUSE);
    let mut fails = |socket: &DatagramSocket, bytes: &[u8], to: IpAddr| {
        send(&mut rig, socket, &SendMessage::to(bytes, at(to, 0))).unwrap_err()
    };
    let good = request(true, 1, b"");
    let changed = |at: usize, byte: u8| {
        let mut message = good.clone();
        message[at] = byte;
        message
    };
    assert_eq!(fails(&four, &good[..7], PEER_IP.into()), Errno::EINVAL);
    assert_eq!(fails(&four, &changed(0, 0), PEER_IP.into()), Errno::EINVAL, "a reply");
    assert_eq!(fails(&four, &changed(0, 128), PEER_IP.into()), Errno::EINVAL);
    assert_eq!(fails(&four, &changed(1, 1), PEER_IP.into()), Errno::EINVAL, "a code");
    assert_eq!(fails(&four, &good, PEER_V6.into()), Errno::EAFNOSUPPORT);
    assert_eq!(fails(&six, &good, PEER_V6.into()), Errno::EINVAL);
    assert_eq!(fails(&six, &good, PEER_IP.into()), Errno::ENETUNREACH);
    let large = request(true, 1, &[0; 65_508]);
    assert_eq!(fails(&four, &large, PEER_IP.into()), Errno::EMSGSIZE);
    let host = rig.host();
    let segment = four.option(&host, &mut rig.world.cx, SocketOption::Segment);
    assert_eq!(segment, Err(Errno::EOPNOTSUPP), "an option of UDP");
    for (socket, number) in [(&four, 1), (&six, 58)] {
        let protocol = socket.option(&host, &mut rig.world.cx, SocketOption::Protocol);
        assert_eq!(protocol.expect("readable").as_int(), Some(number));
    }
    assert_eq!(rig.take_ip(), []);
    for socket in [four, six] {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

#[test]
fn errors_about_requests_reach_their_ping_socket() {
    let mut rig = rig();
    let host = rig.host();
    for v4 in [true, false] {
        let (local, peer) = ends(v4);
        let socket = open(&mut rig, local, ID).expect("a free identifier");
        let option = if v4 { SocketOption::ReceiveError } else { SocketOption::ReceiveErrorV6 };
        set(&mut rig, &socket, option, 1);
        let about = |id: u16| {
            let sent = IcmpMessage::EchoRequest { id, seq: 1 };
            if v4 {
                let sent = frame::icmp(&sent, b"data");
                Ipv4::new(HOST_IP, PEER_IP, protocol::ICMP).with(&sent)
            } else {
                let sent = frame::icmpv6(HOST_V6, PEER_V6, &sent, b"data");
                frame::ipv6(HOST_V6, PEER_V6, protocol::ICMPV6, &sent)
            }
        };
        give(&mut rig, v4, &IcmpMessage::TimeExceeded { reassembly: false }, &about(ID));
        give(&mut rig, v4, &IcmpMessage::Unreachable(Unreachable::Host), &about(ID + 1));
        let report = socket.take_report(&host, &mut rig.world.cx).expect("a report");
        assert_eq!((report.errno, report.destination), (Errno::EHOSTUNREACH, at(peer, 0)));
        assert_eq!(report.offender, Some(peer));
        assert_eq!(socket.take_report(&host, &mut rig.world.cx), None);
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}
