//! Datagrams, echo requests and other packets to foreign addresses on a device that intercepts.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP, PEER_V6},
};
use stack::{
    Errno, Readiness,
    base::{counters::Counter, ids::DeviceIndex},
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::protocol,
    },
    receive::intercept::{answer_echo, reject},
    socket::flows::{FlowPacket, Intercept, NewFlow, UdpSession},
};

const TARGET: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);

fn rig_with(intercept: Intercept) -> Rig {
    Rig::new(RigConfig {
        ethernet: false,
        ipv6: true,
        default_route: false,
        intercept: Some(intercept),
        ..RigConfig::default()
    })
}

/// Delivers a datagram from a port of the peer.
fn send(rig: &mut Rig, port: u16, to: SocketAddr, payload: &[u8]) {
    let packet = match to.ip() {
        IpAddr::V4(ip) => {
            let datagram = frame::udp(PEER_IP, ip, (port, to.port()), payload);
            Ipv4::new(PEER_IP, ip, protocol::UDP).with(&datagram)
        }
        IpAddr::V6(ip) => {
            let datagram = frame::udp(PEER_V6, ip, (port, to.port()), payload);
            frame::ipv6(PEER_V6, ip, protocol::UDP, &datagram)
        }
    };
    rig.give(&packet);
}

fn to(port: u16) -> SocketAddr {
    SocketAddr::new(TARGET.into(), port)
}

fn next(rig: &Rig) -> Result<NewFlow, Errno> {
    rig.host().flow_queue().expect("the device intercepts").try_next()
}

fn session(rig: &Rig) -> Arc<UdpSession> {
    match next(rig) {
        Ok(NewFlow::Udp(session)) => session,
        other => panic!("{other:?} is no session"),
    }
}

fn packet(rig: &Rig) -> FlowPacket {
    match next(rig) {
        Ok(NewFlow::Echo(packet) | NewFlow::Other(packet)) => packet,
        other => panic!("{other:?} is no packet"),
    }
}

fn recv(rig: &mut Rig, session: &UdpSession) -> Result<(usize, SocketAddr), Errno> {
    let host = rig.host();
    session.recv(&host, &mut rig.world.cx, &mut [0; 2000])
}

#[test]
fn a_session_ends_when_it_was_idle_for_five_minutes() {
    let mut rig = rig_with(Intercept::all());
    send(&mut rig, 5000, to(4433), b"one");
    let session = session(&rig);
    assert_eq!(recv(&mut rig, &session), Ok((3, to(4433))));
    for _ in 0..3 {
        rig.pass(Duration::from_secs(299));
        let host = rig.host();
        // A datagram in either direction keeps it (RFC 4787, REQ-6).
        assert_eq!(session.send(&host, &mut rig.world.cx, b"answer", to(4433)), Ok(6));
        let sent = rig.take();
        assert!(
            matches!(&sent[..], [Seen::Udp(ip, udp, payload)] if ip.src == TARGET
            && (udp.src_port, udp.dst_port) == (4433, 5000) && payload == b"answer"),
            "{sent:?}"
        );
        rig.pass(Duration::from_secs(299));
        send(&mut rig, 5000, to(80), b"more");
        assert_eq!(recv(&mut rig, &session), Ok((4, to(80))));
    }
    rig.pass(Duration::from_secs(301));
    assert_eq!(recv(&mut rig, &session), Err(Errno::ETIMEDOUT));
    assert!(session.readiness().contains(Readiness::HUP));
    let host = rig.host();
    let sent = session.send(&host, &mut rig.world.cx, b"late", to(80));
    assert_eq!((sent, host.flow_sessions()), (Err(Errno::ETIMEDOUT), 0));
    assert_eq!((rig.count(Counter::FlowSessionsExpired), rig.settle()), (1, None));
}

#[test]
fn a_session_with_dns_servers_alone_ends_earlier() {
    let mut rig = rig_with(Intercept::all());
    send(&mut rig, 5000, to(53), b"query");
    send(&mut rig, 5001, to(53), b"query");
    send(&mut rig, 5001, to(4433), b"data");
    assert_eq!(rig.host().flow_sessions(), 2);
    rig.pass(Duration::from_secs(31));
    assert_eq!(rig.host().flow_sessions(), 1);
    rig.pass(Duration::from_secs(268));
    assert_eq!(rig.host().flow_sessions(), 1);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.host().flow_sessions(), 0);
    // Flows that have ended before they were taken are not handed over.
    assert!(next(&rig).is_err());
}

#[test]
fn six_hundred_sessions_a_second_keep_to_their_number() {
    let mut rig = rig_with(Intercept::all().max_sessions(100));
    let mut sessions = Vec::new();
    for number in 0..600_u16 {
        send(&mut rig, 5000 + number, to(4433), &number.to_be_bytes());
        sessions.push(session(&rig));
        // The first session is used all the time.
        send(&mut rig, 5000, to(4433), b"again");
        rig.pass(Duration::from_micros(1_000_000 / 600));
    }
    assert_eq!(rig.host().flow_sessions(), 100);
    assert_eq!(rig.count(Counter::FlowSessionsEvicted), 500);
    let alive = |session: &Arc<UdpSession>| !session.readiness().contains(Readiness::HUP);
    let positions: Vec<_> = (0..600).filter(|place| alive(&sessions[*place])).collect();
    assert_eq!(positions[0], 0, "the session that was used ended");
    assert_eq!(positions[1..], (501..600).collect::<Vec<_>>());
    assert_eq!(recv(&mut rig, &sessions[1]), Err(Errno::ECONNABORTED));
}

#[test]
fn a_full_queue_drops_the_oldest_datagrams() {
    let mut rig = rig_with(Intercept::all().session_bytes(20_000));
    for number in 0..100_u16 {
        send(&mut rig, 5000, to(4433), &number.to_be_bytes());
    }
    let session = session(&rig);
    let mut received = 0;
    let mut buf = [0; 2];
    let host = rig.host();
    while session.recv(&host, &mut rig.world.cx, &mut buf).is_ok() {
        received += 1;
    }
    assert_eq!(u16::from_be_bytes(buf), 99, "the newest is the last");
    assert!(received > 1 && received < 100, "{received} datagrams");
    assert_eq!(rig.count(Counter::FlowSessionDrops), 100 - received);
    assert_eq!(rig.drops(DropReason::FlowQueueFull), 100 - received);
}

#[test]
fn sockets_of_own_addresses_come_first_and_hear_no_foreign_address() {
    let mut rig = rig_with(Intercept::all());
    let host = rig.host();
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 53);
    let settings = stack::socket::options::SocketSettings::default();
    let socket =
        stack::socket::DatagramSocket::bind(&host, &mut rig.world.cx, any, &settings).unwrap();
    send(&mut rig, 5000, SocketAddr::new(HOST_IP.into(), 53), b"own");
    assert!(socket.readiness().contains(Readiness::READ) && next(&rig).is_err());
    send(&mut rig, 5000, to(53), b"foreign");
    let foreign = session(&rig);
    assert_eq!(recv(&mut rig, &foreign), Ok((7, to(53))));
    // An own address without a socket is intercepted, and not answered with an error.
    let own = SocketAddr::new(HOST_IP.into(), 54);
    send(&mut rig, 5001, own, b"own");
    let other = session(&rig);
    assert_eq!((recv(&mut rig, &other), rig.take()), (Ok((3, own)), vec![]));
}

#[test]
fn a_session_over_ipv6_sends_fragments_of_long_datagrams() {
    let mut rig = rig_with(Intercept::all());
    let target: SocketAddr = "[2001:db8::80]:4433".parse().unwrap();
    send(&mut rig, 5000, target, b"one");
    let session = session(&rig);
    assert_eq!((session.source().ip(), session.via()), (PEER_V6.into(), DeviceIndex(1)));
    assert_eq!(recv(&mut rig, &session), Ok((3, target)));
    let host = rig.host();
    assert_eq!(session.send(&host, &mut rig.world.cx, &[1; 2000], target), Ok(2000));
    let sent = rig.take();
    assert!(
        sent.len() == 2
            && sent.iter().all(|seen| matches!(seen, Seen::Fragment(ip, _)
        if ip.src == target.ip())),
        "{sent:?}"
    );
}

#[test]
fn an_echo_request_is_answered_by_the_application_alone() {
    let mut rig = rig_with(Intercept::all());
    let request = IcmpMessage::EchoRequest { id: 7, seq: 1 };
    let target_v6 = "2001:db8::80".parse().unwrap();
    let v4 = Ipv4::new(PEER_IP, TARGET, protocol::ICMP).with(&frame::icmp(&request, b"ping"));
    let message = frame::icmpv6(PEER_V6, target_v6, &request, b"ping");
    let v6 = frame::ipv6(PEER_V6, target_v6, protocol::ICMPV6, &message);
    for (bytes, target) in [(v4, IpAddr::V4(TARGET)), (v6, IpAddr::V6(target_v6))] {
        rig.give(&bytes);
        assert_eq!(rig.take(), []);
        let ping = packet(&rig);
        assert_eq!((ping.destination(), ping.payload().len()), (target, 12));
        let host = rig.host();
        answer_echo(&host, &mut rig.world.cx, ping);
        let sent = rig.take();
        assert!(
            matches!(&sent[..], [Seen::Icmp(ip, IcmpMessage::EchoReply { id: 7, seq: 1 }, data)]
            if ip.src == target && data == b"ping"),
            "{sent:?}"
        );
    }
    // The host itself answers for its own address.
    let own = Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&frame::icmp(&request, b"ping"));
    rig.give(&own);
    assert!(rig.take().len() == 1 && next(&rig).is_err());
}

#[test]
fn a_packet_of_another_protocol_is_reported_unreachable_on_demand() {
    let mut rig = rig_with(Intercept::all());
    rig.give(&Ipv4::new(PEER_IP, TARGET, 47).with(b"tunneled"));
    let other = packet(&rig);
    assert_eq!((other.protocol(), other.payload()), (47, b"tunneled".to_vec()));
    let host = rig.host();
    reject(&host, &mut rig.world.cx, other, Unreachable::Protocol);
    let sent = rig.take();
    let expected = IcmpMessage::Unreachable(Unreachable::Protocol);
    assert!(
        matches!(&sent[..], [Seen::Icmp(ip, message, _)]
        if ip.src == TARGET && *message == expected),
        "{sent:?}"
    );
}

#[test]
fn packets_that_wait_for_the_application_are_bounded() {
    let mut rig = rig_with(Intercept::all());
    for number in 0..600_u16 {
        rig.give(&Ipv4::new(PEER_IP, TARGET, 47).with(&number.to_be_bytes()));
    }
    let dropped = rig.drops(DropReason::FlowQueueFull);
    assert!(dropped > 0 && dropped < 600, "{dropped} packets");
    let first = u16::try_from(dropped).unwrap();
    assert_eq!(packet(&rig).payload(), first.to_be_bytes(), "the oldest are dropped");
}

/// Redirects, advertisements and questions that other hosts send to a foreign address do not
/// concern this host.
#[test]
fn advice_to_foreign_addresses_is_dropped() {
    let mut rig = rig_with(Intercept::all());
    let advice = IcmpMessage::Redirect { code: 1, gateway: PEER_IP };
    rig.give(&Ipv4::new(PEER_IP, TARGET, protocol::ICMP).with(&frame::icmp(&advice, &[0; 28])));
    assert_eq!(rig.drops(DropReason::IpForwardingOff), 1);
    assert!(next(&rig).is_err() && rig.take().is_empty());
}
