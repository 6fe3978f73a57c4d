//! ICMP: echo, errors that the host sends, errors that it receives.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Peer, Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno, Readiness,
    base::counters::Counter,
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::{Fragment, protocol},
    },
    socket::Connection,
    sysctl::Sysctls,
};
use tcp::{Flags, Options};

const REQUEST: IcmpMessage = IcmpMessage::EchoRequest { id: 0x1234, seq: 9 };
const REPLY: IcmpMessage = IcmpMessage::EchoReply { id: 0x1234, seq: 9 };
const SUBNET_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);

fn rig_with(name: &str, value: &str) -> Rig {
    let mut sysctls = Sysctls::default();
    sysctls.set(name, value).expect("a setting");
    Rig::new(RigConfig { sysctls, ..RigConfig::default() })
}

fn ping(src: Ipv4Addr, dst: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    Ipv4::new(src, dst, protocol::ICMP).with(&frame::icmp(&REQUEST, payload))
}

/// Builds an error of a router about a segment of the host on `peer`'s connection, `behind` bytes
/// before the newest.
pub(crate) fn error(peer: &Peer, message: &IcmpMessage, behind: u32) -> Vec<u8> {
    let header = tcp::SegmentHeader {
        src_port: peer.tuple.local.port(),
        dst_port: peer.tuple.remote.port(),
        seq: peer.rcv_nxt - behind,
        ..tcp::SegmentHeader::default()
    };
    let segment = frame::tcp(HOST_IP, PEER_IP, &header, b"");
    let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol::TCP).with(&segment);
    let message = frame::icmp(message, &quoted[..28]);
    Ipv4::new(Ipv4Addr::new(192, 0, 2, 1), HOST_IP, protocol::ICMP).with(&message)
}

#[test]
fn a_setting_changed_at_run_time_applies_at_once() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    rig.give(&ping(PEER_IP, HOST_IP, b"ttl"));
    let hop_limit = |seen: Vec<Seen>| match &seen[..] {
        [Seen::Icmp(ip, ..)] => ip.hop_limit,
        other => panic!("{other:?}"),
    };
    assert_eq!(hop_limit(rig.take_ip()), 64);
    host.set_sysctl("net.ipv4.ip_default_ttl", "17").unwrap();
    rig.give(&ping(PEER_IP, HOST_IP, b"ttl"));
    assert_eq!(hop_limit(rig.take_ip()), 17);
    host.set_sysctl("net.ipv4.icmp_echo_ignore_all", "1").unwrap();
    rig.give(&ping(PEER_IP, HOST_IP, b"ttl"));
    assert!(rig.take().is_empty(), "an ignored echo request");
    assert!(host.set_sysctl("net.ipv4.ip_default_ttl", "0").is_err());
    assert_eq!(host.sysctls().get("net.ipv4.ip_default_ttl").unwrap(), "17");
    drop(host);
    rig.finish();
}

#[test]
fn echo_returns_every_byte() {
    for paged in [false, true] {
        let mut rig = Rig::new(RigConfig::default());
        rig.link.set_paged(paged);
        for len in [0, 1, 7, 56, 182, 183, 1000, 1471, 1472] {
            let payload: Vec<u8> = (0..=255).cycle().skip(len).take(len).collect();
            rig.give(&ping(PEER_IP, HOST_IP, &payload));
            let seen = rig.take_ip();
            let [Seen::Icmp(ip, message, echoed)] = &seen[..] else { panic!("{len}: {seen:?}") };
            assert_eq!((ip.src, ip.dst), (IpAddr::V4(HOST_IP), IpAddr::V4(PEER_IP)));
            assert_eq!((*message, echoed), (REPLY, &payload));
            assert_eq!(ip.hop_limit, 64);
        }
        assert_eq!(rig.count(Counter::IcmpInEchos), 9);
        assert_eq!(rig.count(Counter::IcmpOutEchoReps), 9);
        assert_eq!(rig.count(Counter::IcmpOutMsgs), 9);
        rig.finish();
    }
}

#[test]
fn an_echo_of_zeros_has_a_checksum() {
    let mut rig = Rig::new(RigConfig::default());
    let request = frame::icmp(&IcmpMessage::EchoRequest { id: 0, seq: 0 }, &[0; 8]);
    rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&request));
    assert_eq!(rig.take_ip().len(), 1, "the rig has checked it");
    rig.finish();
}

#[test]
fn echo_with_a_bad_checksum_is_dropped() {
    let mut rig = Rig::new(RigConfig::default());
    let mut packet = ping(PEER_IP, HOST_IP, b"data");
    packet[30] ^= 1;
    rig.give(&packet);
    assert_eq!(rig.take(), []);
    assert_eq!(rig.drops(DropReason::IcmpCsum), 1);
    assert_eq!(rig.count(Counter::IcmpInCsumErrors), 1);
    assert_eq!(rig.count(Counter::IcmpInErrors), 1);
    rig.finish();
}

#[test]
fn a_broadcast_echo_request_is_ignored_by_default() {
    for ethernet in [true, false] {
        for dst in [SUBNET_BROADCAST, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
            let mut rig = Rig::new(RigConfig { ethernet, ..RigConfig::default() });
            rig.give(&ping(PEER_IP, dst, b""));
            assert_eq!(rig.take(), [], "{dst}");
            assert_eq!(rig.drops(DropReason::IcmpEchoIgnored), 1, "{dst}");
            rig.finish();
        }
    }
}

#[test]
fn a_broadcast_echo_request_is_answered_if_enabled() {
    let mut rig = rig_with("net.ipv4.icmp_echo_ignore_broadcasts", "0");
    rig.give(&ping(PEER_IP, SUBNET_BROADCAST, b"all"));
    let seen = rig.take_ip();
    let [Seen::Icmp(ip, REPLY, _)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(ip.src, IpAddr::V4(HOST_IP));
    rig.finish();
}

/// A host that has no address yet may send broadcasts (RFC 1122 §3.2.1.3 (a)), but cannot be
/// answered.
#[test]
fn an_echo_request_without_source_is_not_answered() {
    let mut rig = rig_with("net.ipv4.icmp_echo_ignore_broadcasts", "0");
    rig.give(&ping(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, b""));
    assert_eq!(rig.take(), []);
    assert_eq!(rig.drops(DropReason::IpNoRoute), 1);
    assert_eq!(rig.count(Counter::IcmpOutErrors), 1);
    rig.finish();
}

#[test]
fn echo_replies_can_be_disabled() {
    let mut rig = rig_with("net.ipv4.icmp_echo_ignore_all", "1");
    rig.give(&ping(PEER_IP, HOST_IP, b""));
    assert_eq!(rig.take(), []);
    assert_eq!(rig.drops(DropReason::IcmpEchoIgnored), 1);
    rig.finish();
}

#[test]
fn an_unsolicited_echo_reply_is_dropped() {
    let mut rig = Rig::new(RigConfig::default());
    rig.give_from(PEER_IP, protocol::ICMP, &frame::icmp(&REPLY, b""));
    assert_eq!(rig.drops(DropReason::IcmpNoSocket), 1);
    rig.give_from(PEER_IP, protocol::ICMP, &frame::icmp(&IcmpMessage::Other { kind: 13 }, b""));
    assert_eq!(rig.drops(DropReason::IcmpUnknownType), 1);
    rig.give_from(PEER_IP, protocol::ICMP, &[8, 0, 0xf7, 0xff]);
    assert_eq!(rig.drops(DropReason::IcmpMalformed), 1);
    assert_eq!(rig.take(), []);
    rig.finish();
}

#[test]
fn an_unknown_protocol_is_reported_with_a_quote() {
    let mut rig = Rig::new(RigConfig::default());
    for len in [0, 8, 300, 1400] {
        let packet = Ipv4::new(PEER_IP, HOST_IP, 132).with(&vec![0xa5; len]);
        rig.give(&packet);
        let seen = rig.take_ip();
        let [Seen::Icmp(ip, message, quoted)] = &seen[..] else { panic!("{len}: {seen:?}") };
        assert_eq!(ip.dst, IpAddr::V4(PEER_IP));
        assert_eq!(*message, IcmpMessage::Unreachable(Unreachable::Protocol));
        assert_eq!(quoted[..], packet[..packet.len().min(548)]);
        assert!(ip.total_len() <= 576, "RFC 1812 §4.3.2.3");
    }
    assert_eq!(rig.drops(DropReason::IpNoProtocol), 4);
    assert_eq!(rig.count(Counter::IcmpOutDestUnreachs), 4);
    rig.finish();
}

#[test]
fn no_error_is_sent_about_broadcasts_and_later_fragments() {
    let mut rig = Rig::new(RigConfig { ethernet: false, ..RigConfig::default() });
    for dst in [SUBNET_BROADCAST, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        rig.give(&Ipv4::new(PEER_IP, dst, 132).with(b"12345678"));
    }
    assert_eq!(rig.drops(DropReason::IpNoProtocol), 3);
    // A later fragment has no header that its sender could recognize.
    let mut piece = Ipv4::new(PEER_IP, HOST_IP, 132);
    piece.fragment = Fragment { dont: false, more: false, offset: 64 };
    rig.give(&piece.with(b"12345678"));
    assert_eq!(rig.take(), []);
    rig.finish();
}

#[test]
fn errors_are_limited_to_a_burst_and_a_rate() {
    let mut rig = rig_with("net.ipv4.icmp_ratelimit", "0");
    let errors_for = |rig: &mut Rig, count: usize| {
        for _ in 0..count {
            rig.give_from(PEER_IP, 132, b"12345678");
        }
        rig.take_ip().len()
    };
    let first = errors_for(&mut rig, 200);
    assert_eq!(rig.count(Counter::IcmpOutRateLimitGlobal), 200 - first as u64);
    // Exact on average only (CVE-2020-25705).
    let (mut rate, mut bursts) = (0, vec![first]);
    for _ in 0..100 {
        rig.pass(Duration::from_millis(10));
        rate += errors_for(&mut rig, 100);
    }
    assert!((900..1_100).contains(&rate), "icmp_msgs_per_sec: {rate} in a second");
    for _ in 0..19 {
        rig.pass(Duration::from_secs(60));
        bursts.push(errors_for(&mut rig, 200));
    }
    let sum: usize = bursts.iter().sum();
    assert!((900..1_100).contains(&sum), "icmp_msgs_burst: {bursts:?}");
    assert!(bursts.iter().any(|burst| *burst != 50), "{bursts:?}");
    rig.finish();
}

#[test]
fn one_destination_gets_an_error_a_second() {
    let mut rig = Rig::new(RigConfig::default());
    let errors_for = |rig: &mut Rig, count: usize| {
        for _ in 0..count {
            rig.give_from(PEER_IP, 132, b"12345678");
        }
        rig.take_ip().len()
    };
    let first = errors_for(&mut rig, 20);
    assert_eq!(first, 6, "a burst");
    rig.pass(Duration::from_secs(1));
    assert_eq!(errors_for(&mut rig, 20), 1);
    assert_eq!(rig.count(Counter::IcmpOutRateLimitHost), 14 + 19);
    // Echo replies are not limited by default.
    for _ in 0..20 {
        rig.give(&ping(PEER_IP, HOST_IP, b""));
    }
    assert_eq!(rig.take_ip().len(), 20);
    rig.host().set_sysctl("net.ipv4.icmp_ratemask", "1").unwrap();
    rig.pass(Duration::from_secs(10));
    for _ in 0..20 {
        rig.give(&ping(PEER_IP, HOST_IP, b""));
    }
    assert_eq!(rig.take_ip().len(), 6);
    assert_eq!(rig.drops(DropReason::IcmpRateLimit), 14);
    rig.finish();
}

#[test]
fn a_port_unreachable_refuses_a_connection_that_is_being_opened() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let remote = SocketAddr::new(PEER_IP.into(), 80);
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    rig.settle();
    let mut peer = Peer::new(socket.local().port(), 80);
    assert_eq!(peer.hear(&rig.take()), [Flags::SYN]);
    let port = IcmpMessage::Unreachable(Unreachable::Port);
    // An error with a guessed sequence number is ignored.
    rig.give(&error(&peer, &port, 1 << 20));
    assert_eq!(rig.count_tcp(tcp::Counter::TcpExtOutOfWindowIcmps), 1);
    assert!(!socket.readiness().contains(Readiness::ERROR));
    rig.give(&error(&peer, &port, 1));
    assert!(socket.readiness().contains(Readiness::ERROR));
    assert_eq!(socket.take_error(&host, &mut rig.world.cx), Some(Errno::ECONNREFUSED));
    assert_eq!(host.established_len(), 0);
    drop((socket, host));
    rig.finish();
}

#[test]
fn an_unreachable_does_not_end_an_established_connection() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    let bytes = [std::io::IoSlice::new(b"answer")];
    socket.send(&host, &mut rig.world.cx, &bytes).expect("room");
    peer.hear(&rig.take());
    rig.give(&error(&peer, &IcmpMessage::Unreachable(Unreachable::Host), 6));
    rig.give(&error(&peer, &IcmpMessage::TimeExceeded { reassembly: false }, 6));
    assert!(!socket.readiness().contains(Readiness::ERROR));
    peer.send_next(&mut rig, Flags::ACK, b"more");
    let mut buf = [0; 8];
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(4));
    listener.close(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
}

#[test]
fn an_error_that_quotes_no_connection_is_dropped() {
    let mut rig = Rig::new(RigConfig::default());
    let peer = Peer::new(80, 2000);
    rig.give(&error(&peer, &IcmpMessage::Unreachable(Unreachable::Port), 0));
    assert_eq!(rig.drops(DropReason::IcmpNoSocket), 1);
    let short = frame::icmp(&IcmpMessage::Unreachable(Unreachable::Port), &[0x45; 27]);
    rig.give_from(PEER_IP, protocol::ICMP, &short);
    assert_eq!(rig.drops(DropReason::IcmpMalformed), 1);
    rig.finish();
}

#[test]
fn an_unreachable_ends_a_half_open_connection_if_it_quotes_its_syn_ack() {
    for (behind, ends) in [(1, true), (0, false), (2, false)] {
        let mut rig = Rig::new(RigConfig::default());
        let listener = rig.listen(80, 8);
        let host = rig.host();
        let mut peer = Peer::new(80, 2000);
        peer.send_next(&mut rig, Flags::SYN, b"");
        assert_eq!(peer.hear(&rig.take()), [Flags::SYN | Flags::ACK]);
        assert_eq!(host.established_len(), 1);
        rig.give(&error(&peer, &IcmpMessage::Unreachable(Unreachable::Host), behind));
        assert_eq!(host.established_len(), usize::from(!ends), "{behind} behind");
        let out_of_window = rig.count_tcp(tcp::Counter::TcpExtOutOfWindowIcmps);
        assert_eq!(out_of_window, u64::from(!ends));
        listener.close(&host, &mut rig.world.cx);
        drop((listener, host));
        rig.finish();
    }
}

/// Every code of RFC 792 and RFC 1122 §3.2.2.1 has its errno for a connection in SYN-SENT.
#[test]
fn each_unreachable_code_has_its_errno() {
    let codes = [
        (0, Errno::ENETUNREACH),
        (1, Errno::EHOSTUNREACH),
        (2, Errno::ENOPROTOOPT),
        (3, Errno::ECONNREFUSED),
        (5, Errno::EOPNOTSUPP),
        (6, Errno::ENETUNREACH),
        (7, Errno::EHOSTDOWN),
        (8, Errno::ENONET),
        (9, Errno::EHOSTUNREACH),
        (10, Errno::EHOSTUNREACH),
        (11, Errno::ENETUNREACH),
        (12, Errno::EHOSTUNREACH),
        (13, Errno::EHOSTUNREACH),
        (14, Errno::EHOSTUNREACH),
        (15, Errno::EHOSTUNREACH),
    ];
    for (code, errno) in codes {
        let (mut rig, socket, peer) = syn_sent();
        give_unreachable(&mut rig, &peer, code);
        let host = rig.host();
        assert_eq!(socket.take_error(&host, &mut rig.world.cx), Some(errno), "code {code}");
        drop((socket, host));
        rig.finish();
    }
}

#[test]
fn unknown_codes_and_source_quench_change_nothing() {
    let (mut rig, socket, peer) = syn_sent();
    give_unreachable(&mut rig, &peer, 16);
    // RFC 6633 §3.
    rig.give(&error(&peer, &IcmpMessage::Other { kind: 4 }, 1));
    assert_eq!(rig.count(Counter::IcmpInSrcQuenchs), 1);
    assert!(!socket.readiness().contains(Readiness::ERROR));
    assert_eq!(rig.host().established_len(), 1);
    drop(socket);
    rig.finish();
}

/// Makes a connection of the host in SYN-SENT.
fn syn_sent() -> (Rig, std::sync::Arc<Connection>, Peer) {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let remote = SocketAddr::new(PEER_IP.into(), 80);
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    rig.settle();
    let mut peer = Peer::new(socket.local().port(), 80);
    assert_eq!(peer.hear(&rig.take()), [Flags::SYN]);
    (rig, socket, peer)
}

fn give_unreachable(rig: &mut Rig, peer: &Peer, code: u8) {
    let mut packet = error(peer, &IcmpMessage::Unreachable(Unreachable::Network), 1);
    packet[21] = code;
    packet[22..24].fill(0);
    let sum = frame::checksum(&[&packet[20..]]).to_be_bytes();
    packet[22..24].copy_from_slice(&sum);
    rig.give(&packet);
}

#[test]
fn every_type_is_counted_by_its_name() {
    let mut rig = Rig::new(RigConfig::default());
    let types = [
        (0, Counter::IcmpInEchoReps),
        (3, Counter::IcmpInDestUnreachs),
        (4, Counter::IcmpInSrcQuenchs),
        (5, Counter::IcmpInRedirects),
        (8, Counter::IcmpInEchos),
        (11, Counter::IcmpInTimeExcds),
        (12, Counter::IcmpInParmProbs),
        (13, Counter::IcmpInTimestamps),
        (14, Counter::IcmpInTimestampReps),
        (17, Counter::IcmpInAddrMasks),
        (18, Counter::IcmpInAddrMaskReps),
    ];
    for (kind, counter) in types {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        // The quoted packet of an error: a datagram of the host.
        message.extend(Ipv4::new(HOST_IP, PEER_IP, protocol::UDP).with(&[0; 8]));
        let sum = frame::checksum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        rig.give_from(PEER_IP, protocol::ICMP, &message);
        assert_eq!(rig.count(counter), 1, "{}", counter.name());
    }
    assert_eq!(rig.count(Counter::IcmpInMsgs), 11);
    assert_eq!(rig.take_ip().len(), 1, "the echo alone is answered");
    rig.finish();
}

#[test]
fn bytes_of_both_directions_are_counted_with_their_headers() {
    let mut rig = Rig::new(RigConfig::default());
    rig.give(&ping(PEER_IP, HOST_IP, &[7; 100]));
    assert_eq!(rig.take_ip().len(), 1);
    assert_eq!(rig.count(Counter::IpExtInOctets), 128);
    assert_eq!(rig.count(Counter::IpExtOutOctets), 128);
    assert_eq!(rig.count(Counter::IpOutTransmits), 1);
    rig.finish();
}

#[test]
fn an_error_without_memory_is_counted() {
    let mut rig = Rig::new(RigConfig { memory_bytes: 1 << 20, ..RigConfig::default() });
    let packet = rig.framed(&Ipv4::new(PEER_IP, HOST_IP, 200).with(b"what is this"));
    rig.queue(&packet);
    let held: Vec<_> = std::iter::from_fn(|| rig.world.cx.pool.alloc()).collect();
    rig.settle();
    assert_eq!(rig.count(Counter::IpOutDiscards), 1);
    assert_eq!(rig.count(Counter::IcmpOutErrors), 1);
    drop(held);
    rig.finish();
}
