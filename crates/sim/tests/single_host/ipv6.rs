//! IPv6: neighbor discovery, ICMPv6, extension headers, path MTU, and TCP beside IPv4.

use std::{
    io::IoSlice,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::{DropReason, EtherType};
use sim::{
    Rig, RigConfig,
    frame::{self, Seen},
    peer::Peer,
    rig::{HOST_MAC, HOST_V6, PEER_MAC, PEER_V6, ndp_packet},
};
use stack::{
    base::counters::Counter,
    header::{
        ethernet::MacAddr,
        icmp::{IcmpMessage, Unreachable},
        ip::protocol,
        ndp::{self, NdpMessage},
    },
    socket::{Connection, ListenOptions, Listener, net::ClaimState},
    sysctl::Sysctls,
    transmit::neighbor::NudState,
};
use tcp::{Flags, Options};

const OTHER_MAC: MacAddr = MacAddr([0x52, 0x51, 0, 0, 0, 9]);
pub(crate) const STRANGER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);

pub(crate) fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    Rig::new(RigConfig { ipv6: true, sysctls, ..RigConfig::default() })
}

pub(crate) fn echo_request(src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    let message = IcmpMessage::EchoRequest { id: 7, seq: 1 };
    frame::ipv6(src, dst, protocol::ICMPV6, &frame::icmpv6(src, dst, &message, b"ping"))
}

/// Delivers an IPv6 packet in a frame to `dst`.
pub(crate) fn give_to(rig: &mut Rig, dst: MacAddr, packet: &[u8]) {
    rig.give_frame(&frame::ethernet(dst, PEER_MAC, EtherType::IPV6, packet));
}

pub(crate) fn solicitation(target: Ipv6Addr, src: Ipv6Addr, mac: Option<MacAddr>) -> Vec<u8> {
    let message = NdpMessage::NeighborSolicitation { target, source_mac: mac, nonce: None };
    ndp_packet(src, ndp::solicited_node(target), &message)
}

fn advertised(seen: &[Seen]) -> Vec<(IpAddr, bool)> {
    let told = seen.iter().filter_map(|seen| match seen {
        Seen::Ndp(ip, NdpMessage::NeighborAdvertisement { target, target_mac, solicited, .. }) => {
            assert_eq!((*target, *target_mac), (HOST_V6, Some(HOST_MAC)));
            Some((ip.dst, *solicited))
        }
        _ => None,
    });
    told.collect()
}

fn solicited(seen: &[Seen]) -> Vec<(IpAddr, Ipv6Addr)> {
    let asked = seen.iter().filter_map(|seen| match seen {
        Seen::Ndp(ip, NdpMessage::NeighborSolicitation { target, .. }) => Some((ip.dst, *target)),
        _ => None,
    });
    asked.collect()
}

#[test]
fn ping_is_answered_after_the_neighbor_is_resolved() {
    let mut rig = rig(&[]);
    rig.give(&echo_request(PEER_V6, HOST_V6));
    let seen = rig.take();
    let group = IpAddr::V6(ndp::solicited_node(PEER_V6));
    assert_eq!(solicited(&seen), [(group, PEER_V6)]);
    let replies: Vec<_> = seen.iter().filter(|seen| matches!(seen, Seen::Icmp(..))).collect();
    let [Seen::Icmp(ip, IcmpMessage::EchoReply { id: 7, seq: 1 }, payload)] = replies[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((ip.src, ip.dst, &payload[..]), (HOST_V6.into(), PEER_V6.into(), &b"ping"[..]));
    assert_eq!(rig.count(Counter::Icmp6OutEchoReplies), 1);
    assert_eq!(rig.count(Counter::IcmpInMsgs), 0, "counted as ICMPv6 only");
    rig.finish();
}

#[test]
fn a_corrupt_message_is_dropped() {
    let mut rig = rig(&[]);
    let mut packet = echo_request(PEER_V6, HOST_V6);
    *packet.last_mut().expect("payload") ^= 1;
    rig.give(&packet);
    assert_eq!(rig.take(), []);
    assert_eq!((rig.drops(DropReason::IcmpCsum), rig.count(Counter::Icmp6InCsumErrors)), (1, 1));
    rig.finish();
}

#[test]
fn a_neighbor_takes_the_same_states_as_with_arp() {
    let mut rig = rig(&[]);
    rig.answers_arp = false;
    rig.give(&echo_request(PEER_V6, HOST_V6));
    let state = |rig: &Rig| rig.host().neighbors().first().map(|info| info.state);
    assert_eq!(state(&rig), Some(NudState::Incomplete));
    rig.pass(Duration::from_secs(10));
    assert_eq!(solicited(&rig.take()).len(), 3, "three solicitations, as mcast_solicit says");
    assert_eq!(state(&rig), Some(NudState::Failed));
    assert_eq!(rig.drops(DropReason::NeighborFailed), 1);
    rig.answers_arp = true;
    rig.give(&echo_request(PEER_V6, HOST_V6));
    rig.take();
    assert_eq!(state(&rig), Some(NudState::Reachable));
    rig.pass(Duration::from_secs(100));
    rig.take();
    assert_eq!(state(&rig), Some(NudState::Stale));
    // Used again, it is confirmed by a solicitation to itself alone.
    rig.give(&echo_request(PEER_V6, HOST_V6));
    rig.pass(Duration::from_secs(6));
    assert_eq!(solicited(&rig.take()), [(PEER_V6.into(), PEER_V6)]);
    assert_eq!(state(&rig), Some(NudState::Reachable));
    rig.finish();
}

#[test]
fn solicitations_for_our_address_are_answered() {
    let mut rig = rig(&[]);
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    give_to(&mut rig, group, &solicitation(HOST_V6, PEER_V6, Some(PEER_MAC)));
    assert_eq!(advertised(&rig.take()), [(PEER_V6.into(), true)]);
    // The entry exists now, so that a packet to the peer needs no solicitation.
    rig.give(&echo_request(PEER_V6, HOST_V6));
    assert_eq!(solicited(&rig.take()), []);
    // A probe for a duplicate address is answered to all nodes.
    give_to(&mut rig, group, &solicitation(HOST_V6, Ipv6Addr::UNSPECIFIED, None));
    assert_eq!(advertised(&rig.take()), [(ndp::ALL_NODES.into(), false)]);
    rig.finish();
}

#[test]
fn invalid_discovery_messages_are_dropped_with_their_reasons() {
    let mut rig = rig(&[]);
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    let mut routed = solicitation(HOST_V6, PEER_V6, Some(PEER_MAC));
    routed[7] = 254;
    let claimed = solicitation(HOST_V6, HOST_V6, Some(OTHER_MAC));
    let foreign = solicitation(STRANGER, PEER_V6, Some(PEER_MAC));
    let to_host = |message| ndp_packet(PEER_V6, HOST_V6, &message);
    let to_us = to_host(NdpMessage::NeighborSolicitation {
        target: STRANGER,
        source_mac: None,
        nonce: None,
    });
    for (packet, reason) in [
        (&routed, DropReason::NdpHopLimit),
        // Our own address as source is a martian.
        (&claimed, DropReason::IpSourceInvalid),
        // To a group of which the host is no member.
        (&foreign, DropReason::IpDestinationInvalid),
    ] {
        let before = rig.drops(reason);
        give_to(&mut rig, group, packet);
        assert_eq!(rig.drops(reason) - before, 1, "{reason}");
    }
    rig.give(&to_us);
    assert_eq!(rig.drops(DropReason::NdpOtherHost), 1);
    assert_eq!(rig.take(), []);
    assert_eq!(rig.host().neighbors(), []);
    rig.finish();
}

#[test]
fn an_advertisement_changes_only_entries_that_exist() {
    let mut rig = rig(&[]);
    let told = |mac, solicited, replaces| {
        let message = NdpMessage::NeighborAdvertisement {
            target: PEER_V6,
            target_mac: Some(mac),
            router: false,
            solicited,
            replaces,
        };
        ndp_packet(PEER_V6, HOST_V6, &message)
    };
    rig.give(&told(OTHER_MAC, false, true));
    assert_eq!(rig.host().neighbors(), []);
    rig.give(&echo_request(PEER_V6, HOST_V6));
    rig.take();
    let entry = |rig: &Rig| {
        let neighbors = rig.host().neighbors();
        neighbors.first().map(|info| (info.mac, info.state)).expect("an entry")
    };
    assert_eq!(entry(&rig), (Some(PEER_MAC), NudState::Reachable));
    rig.give(&told(OTHER_MAC, false, false));
    assert_eq!(entry(&rig), (Some(PEER_MAC), NudState::Stale), "without Override");
    rig.give(&told(OTHER_MAC, false, true));
    assert_eq!(entry(&rig), (Some(OTHER_MAC), NudState::Stale));
    rig.finish();
}

/// RFC 4862 §5.4.
#[test]
fn an_address_is_probed_before_it_is_used() {
    let mut rig = rig(&[("net.ipv6.conf.all.dad_transmits", "2")]);
    rig.host().claim_addresses(&mut rig.world.cx);
    assert_eq!(rig.host().claim_state(), ClaimState::Probing);
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    give_to(&mut rig, group, &solicitation(HOST_V6, PEER_V6, Some(PEER_MAC)));
    assert_eq!(advertised(&rig.take()), [], "a tentative address is not answered for");
    rig.pass(Duration::from_secs(5));
    let probes: Vec<_> = rig
        .take()
        .into_iter()
        .filter(|seen| match seen {
            Seen::Ndp(ip, NdpMessage::NeighborSolicitation { target, source_mac, .. }) => {
                assert_eq!((ip.src, *source_mac), (Ipv6Addr::UNSPECIFIED.into(), None));
                *target == HOST_V6
            }
            _ => false,
        })
        .collect();
    assert_eq!(probes.len(), 2);
    assert_eq!(rig.host().claim_state(), ClaimState::Ready);
    rig.finish();
}

#[test]
fn an_address_of_another_station_is_refused() {
    let probe = solicitation(HOST_V6, Ipv6Addr::UNSPECIFIED, None);
    let owner = ndp_packet(
        STRANGER,
        ndp::ALL_NODES,
        &NdpMessage::NeighborAdvertisement {
            target: HOST_V6,
            target_mac: Some(OTHER_MAC),
            router: false,
            solicited: false,
            replaces: true,
        },
    );
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    for (to, packet) in [(group, probe), (ndp::multicast_mac(ndp::ALL_NODES), owner)] {
        let mut rig = rig(&[]);
        rig.host().claim_addresses(&mut rig.world.cx);
        give_to(&mut rig, to, &packet);
        let refused = rig.host().claim_state();
        let is_ours = |address: IpAddr| address == IpAddr::V6(HOST_V6);
        assert!(
            matches!(refused, ClaimState::Refused { address, .. } if is_ours(address)),
            "{refused:?}"
        );
        rig.finish();
    }
}

/// RFC 7527 §4.2. Without `enhanced_dad`, a probe that comes back refuses the address.
#[test]
fn a_probe_that_the_link_sends_back_refuses_no_address() {
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    let probes = |rig: &mut Rig| -> Vec<NdpMessage> {
        let sent = rig.take().into_iter().filter_map(|seen| match seen {
            Seen::Ndp(_, message @ NdpMessage::NeighborSolicitation { target: HOST_V6, .. }) => {
                Some(message)
            }
            _ => None,
        });
        sent.collect()
    };
    let give = |rig: &mut Rig, probe: &NdpMessage| {
        let dst = ndp::solicited_node(HOST_V6);
        give_to(rig, group, &ndp_packet(Ipv6Addr::UNSPECIFIED, dst, probe));
    };
    for enhanced in [true, false] {
        let value = if enhanced { "1" } else { "0" };
        let mut rig = rig(&[
            ("net.ipv6.conf.all.dad_transmits", "2"),
            ("net.ipv6.conf.all.enhanced_dad", value),
        ]);
        rig.host().claim_addresses(&mut rig.world.cx);
        rig.pass(Duration::from_secs(1));
        let sent = probes(&mut rig);
        let [NdpMessage::NeighborSolicitation { nonce, .. }] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(nonce.is_some(), enhanced);
        give(&mut rig, &sent[0]);
        if !enhanced {
            assert!(matches!(rig.host().claim_state(), ClaimState::Refused { .. }));
            rig.finish();
            continue;
        }
        assert_eq!(rig.host().claim_state(), ClaimState::Probing);
        rig.pass(Duration::from_secs(1));
        for probe in probes(&mut rig) {
            give(&mut rig, &probe);
        }
        rig.pass(Duration::from_secs(5));
        assert_eq!(rig.host().claim_state(), ClaimState::Ready);
        // A late copy gets no answer, and our own advertisement is no conflict.
        give(&mut rig, &sent[0]);
        assert_eq!(rig.drops(DropReason::NdpReflected), 3);
        assert_eq!(advertised(&rig.take()), []);
        rig.finish();
    }
}

#[test]
fn a_probe_with_another_number_is_that_of_another_station() {
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    let dst = ndp::solicited_node(HOST_V6);
    let mut rig = rig(&[]);
    rig.host().claim_addresses(&mut rig.world.cx);
    rig.pass(Duration::from_secs(1));
    let nonce = Some([7; 6]);
    let probe = NdpMessage::NeighborSolicitation { target: HOST_V6, source_mac: None, nonce };
    give_to(&mut rig, group, &ndp_packet(Ipv6Addr::UNSPECIFIED, dst, &probe));
    assert!(matches!(rig.host().claim_state(), ClaimState::Refused { .. }));
    rig.finish();
}

/// A loop in the link also sends back the announcements of addresses: packets from an address of
/// this host.
#[test]
fn an_advertisement_that_the_link_sends_back_is_no_conflict() {
    let mut rig = rig(&[]);
    rig.host().claim_addresses(&mut rig.world.cx);
    rig.pass(Duration::from_secs(5));
    rig.take();
    let message = NdpMessage::NeighborAdvertisement {
        target: HOST_V6,
        target_mac: Some(HOST_MAC),
        router: false,
        solicited: false,
        replaces: true,
    };
    let packet = ndp_packet(HOST_V6, ndp::ALL_NODES, &message);
    give_to(&mut rig, ndp::multicast_mac(ndp::ALL_NODES), &packet);
    assert_eq!(rig.drops(DropReason::IpSourceInvalid), 1);
    assert_eq!(advertised(&rig.take()), [], "the host defends its address against itself");
    rig.finish();
}

#[test]
fn extension_headers_are_skipped_and_unknown_ones_reported() {
    let mut rig = rig(&[]);
    rig.give(&echo_request(PEER_V6, HOST_V6));
    rig.take();
    let message = IcmpMessage::EchoRequest { id: 1, seq: 1 };
    let ping = frame::icmpv6(PEER_V6, HOST_V6, &message, b"");
    // Hop-by-hop options with padding, then destination options with padding.
    let chain = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[58, 0, 1, 4, 0, 0, 0, 0], &ping].concat();
    rig.give(&frame::ipv6(PEER_V6, HOST_V6, protocol::HOP_BY_HOP, &chain));
    let seen = rig.take_ip();
    assert!(matches!(seen[..], [Seen::Icmp(_, IcmpMessage::EchoReply { .. }, _)]), "{seen:?}");
    let problem = |rig: &mut Rig, next: u8, payload: &[u8]| {
        rig.give(&frame::ipv6(PEER_V6, HOST_V6, next, payload));
        match rig.take_ip()[..] {
            [Seen::Icmp(_, IcmpMessage::ParameterProblem { code, pointer }, _)] => {
                Some((code, pointer))
            }
            // An unknown next header at byte 6 reads as this.
            [Seen::Icmp(_, IcmpMessage::Unreachable(Unreachable::Protocol), _)] => Some((1, 0)),
            [] => None,
            ref other => panic!("{other:?}"),
        }
    };
    // A routing header with segments left, an unknown option, an unknown protocol.
    let route = [58, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(problem(&mut rig, protocol::ROUTING, &route), Some((0, 42)));
    let option = [58, 0, 0xc2, 4, 0, 0, 0, 0];
    assert_eq!(problem(&mut rig, protocol::DESTINATION_OPTIONS, &option), Some((2, 42)));
    assert_eq!(problem(&mut rig, 253, &[0; 8]), Some((1, 0)));
    assert_eq!(rig.drops(DropReason::IpOptions), 2);
    assert_eq!(rig.drops(DropReason::IpNoProtocol), 1);
    // Nothing follows, and nothing is reported.
    assert_eq!(problem(&mut rig, protocol::NO_NEXT_HEADER, &[]), None);
    // A first fragment without a header of its protocol.
    assert_eq!(problem(&mut rig, protocol::FRAGMENT, &[17, 0, 0, 1, 0, 0, 0, 7]), Some((3, 0)));
    assert_eq!(rig.drops(DropReason::FragmentMalformed), 1);
    rig.finish();
}

#[test]
fn one_destination_gets_an_icmpv6_error_a_second() {
    let mut rig = rig(&[]);
    rig.give(&echo_request(PEER_V6, HOST_V6));
    rig.take();
    let errors_for = |rig: &mut Rig, count: usize| {
        for _ in 0..count {
            rig.give(&frame::ipv6(PEER_V6, HOST_V6, 253, &[0; 8]));
        }
        rig.take_ip().len()
    };
    assert_eq!(errors_for(&mut rig, 20), 6, "a burst");
    rig.pass(Duration::from_secs(1));
    assert_eq!(errors_for(&mut rig, 20), 1);
    assert_eq!(rig.count(Counter::Icmp6OutRateLimitHost), 14 + 19);
    assert_eq!(rig.count(Counter::IcmpOutRateLimitHost), 0, "that of IPv4");
    for _ in 0..20 {
        rig.give(&echo_request(PEER_V6, HOST_V6));
    }
    assert_eq!(rig.take_ip().len(), 20, "echo replies have no limit");
    rig.finish();
}

#[test]
fn martians_are_dropped() {
    let mut rig = rig(&[]);
    let ip = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
    for (src, dst) in [
        (HOST_V6, HOST_V6),
        (ip("::1"), HOST_V6),
        (ip("ff02::1"), HOST_V6),
        (ip("::ffff:10.0.0.2"), HOST_V6),
        (PEER_V6, ip("::1")),
        (PEER_V6, ip("::ffff:10.0.0.1")),
        (PEER_V6, ip("ff01::1")),
        (PEER_V6, ip("fd00::77")),
        (PEER_V6, ip("ff02::2")),
    ] {
        rig.give(&echo_request(src, dst));
        assert_eq!(rig.take(), [], "{src} to {dst}");
    }
    assert_eq!(rig.count(Counter::Icmp6InMsgs), 0);
    assert_eq!(rig.count(Counter::Ip6InReceives), 9);
    rig.finish();
}

fn listen(rig: &mut Rig, local: &str, options: &ListenOptions) -> Arc<Listener> {
    let host = rig.host();
    let local: SocketAddr = local.parse().expect("an address");
    Listener::listen_with(&host, &mut rig.world.cx, local, options).expect("a free port")
}

/// Returns both ends of the connection that waits.
fn accepted(listener: &Listener) -> Option<(SocketAddr, SocketAddr)> {
    let socket = listener.accept().ok()?;
    Some((socket.local(), socket.remote()))
}

#[test]
fn one_listener_serves_both_families() {
    let mut rig = rig(&[]);
    let listener = listen(&mut rig, "[::]:80", &ListenOptions::default());
    let _v6 = Peer::new_v6(80, 1000).opened(&mut rig, Options::default());
    let ends = accepted(&listener).expect("a connection");
    assert_eq!(ends, ("[fd00::1]:80".parse().unwrap(), "[fd00::2]:1000".parse().unwrap()));
    let _v4 = Peer::new(80, 1001).opened(&mut rig, Options::default());
    let ends = accepted(&listener).expect("a connection");
    let mapped = ("[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.2]:1001");
    assert_eq!(ends, (mapped.0.parse().unwrap(), mapped.1.parse().unwrap()));
    drop(listener);
    rig.finish();
}

#[test]
fn v6only_leaves_the_port_to_an_ipv4_listener() {
    let mut rig = rig(&[]);
    let only = ListenOptions::default().v6_only(true);
    let v6 = listen(&mut rig, "[::]:80", &only);
    let v4 = listen(&mut rig, "0.0.0.0:80", &ListenOptions::default());
    let _peer = Peer::new(80, 1000).opened(&mut rig, Options::default());
    assert_eq!(accepted(&v6), None);
    let ends = accepted(&v4).expect("a connection");
    assert_eq!(ends.1, "10.0.0.2:1000".parse().unwrap());
    // A listener for both families owns the port of either.
    let host = rig.host();
    let again = Listener::listen_with(
        &host,
        &mut rig.world.cx,
        "[::]:80".parse().unwrap(),
        &ListenOptions::default(),
    );
    assert!(again.is_err());
    drop((v6, v4, host));
    rig.finish();
}

/// RFC 8201 §4.
#[test]
fn a_report_lowers_the_path_mtu_down_to_1280() {
    let mut rig = rig(&[]);
    let listener = listen(&mut rig, "[::]:80", &ListenOptions::default());
    let options = Options { mss: Some(1440), ..Options::default() };
    let mut peer = Peer::new_v6(80, 1000).opened(&mut rig, options);
    let host = rig.host();
    let socket = listener.accept().expect("a connection");
    let sent = |rig: &mut Rig, socket: &Connection, peer: &mut Peer| {
        let data = vec![1; 1440];
        socket.send(&host, &mut rig.world.cx, &[IoSlice::new(&data)]).expect("room");
        let seen = rig.take_ip();
        peer.hear(&seen);
        let longest = seen.iter().filter_map(|seen| match seen {
            Seen::Tcp(ip, ..) => Some(ip.total_len()),
            _ => None,
        });
        (longest.max().unwrap_or(0), seen)
    };
    let (longest, seen) = sent(&mut rig, &socket, &mut peer);
    assert_eq!(longest, 1500);
    let Some(Seen::Tcp(ip, header, payload)) = seen.first() else { panic!("{seen:?}") };
    let quote = {
        let segment = frame::tcp(HOST_V6, PEER_V6, header, payload);
        frame::ipv6(HOST_V6, PEER_V6, protocol::TCP, &segment)[..48 + 8].to_vec()
    };
    assert_eq!(ip.src, IpAddr::V6(HOST_V6));
    let report = |mtu| {
        let message = IcmpMessage::PacketTooBig { mtu };
        let message = frame::icmpv6(STRANGER, HOST_V6, &message, &quote);
        frame::ipv6(STRANGER, HOST_V6, protocol::ICMPV6, &message)
    };
    rig.give(&report(1279));
    assert_eq!(rig.take_ip(), [], "an MTU that no IPv6 link has");
    rig.give(&report(1400));
    rig.pass(Duration::from_secs(1));
    let again = rig.take_ip();
    let longest = again.iter().map(|seen| match seen {
        Seen::Tcp(ip, ..) => ip.total_len(),
        other => panic!("{other:?}"),
    });
    assert!(longest.max().is_some_and(|longest| longest <= 1400), "{again:?}");
    peer.hear(&again);
    peer.send_next(&mut rig, Flags::ACK, b"");
    assert!(sent(&mut rig, &socket, &mut peer).0 <= 1400);
    socket.abort(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
}

#[test]
fn segments_of_a_connection_have_one_flow_label() {
    let mut rig = rig(&[]);
    let listener = listen(&mut rig, "[::]:80", &ListenOptions::default());
    let mut labels = Vec::new();
    for port in [1000, 1001] {
        let mut peer = Peer::new_v6(80, port);
        rig.take();
        let syn = peer.header(Flags::SYN);
        peer.send(&mut rig, &syn, b"");
        let mut seen = rig.take_ip();
        peer.hear(&seen);
        peer.send_next(&mut rig, Flags::ACK | Flags::PSH, b"request");
        rig.pass(Duration::from_secs(1));
        seen.extend(rig.take_ip());
        let own: Vec<_> = seen
            .iter()
            .filter_map(|seen| match seen {
                Seen::Tcp(ip, ..) => Some(ip.flow_label),
                _ => None,
            })
            .collect();
        assert!(own.len() >= 2, "a SYN-ACK and an ACK");
        assert!(own.iter().all(|label| *label == own[0]), "{own:?}");
        labels.push(own[0]);
    }
    assert_ne!(labels[0], labels[1]);
    drop(listener);
    rig.finish();
}

/// A router advertisement of the peer, which is a router for half an hour, with one prefix.
pub(crate) fn router_advertisement(
    src: Ipv6Addr,
    lifetime_s: u16,
    prefix: Option<&str>,
) -> Vec<u8> {
    let mut message = vec![ndp::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0];
    message.extend(lifetime_s.to_be_bytes());
    message.extend([0; 8]);
    message.extend([1, 1]);
    message.extend(PEER_MAC.0);
    if let Some(prefix) = prefix {
        message.extend([3, 4, 64, 0xc0]);
        message.extend(3600_u32.to_be_bytes());
        message.extend(1800_u32.to_be_bytes());
        message.extend([0; 4]);
        message.extend(prefix.parse::<Ipv6Addr>().expect("a prefix").octets());
    }
    let message = frame::with_icmpv6_checksum(src, ndp::ALL_NODES, message);
    let mut packet = frame::ipv6(src, ndp::ALL_NODES, protocol::ICMPV6, &message);
    packet[7] = ndp::HOP_LIMIT;
    packet
}

#[test]
fn a_router_gives_an_address_and_a_default_route() {
    let router: Ipv6Addr = "fe80::ff".parse().unwrap();
    let to_all = ndp::multicast_mac(ndp::ALL_NODES);
    let mut rig = rig(&[("net.ipv6.conf.all.accept_ra", "1")]);
    rig.host().claim_addresses(&mut rig.world.cx);
    rig.pass(Duration::from_secs(20));
    let asked = rig.take().into_iter().filter(|seen| {
        let Seen::Ndp(ip, NdpMessage::RouterSolicitation { source_mac }) = seen else {
            return false;
        };
        // The first one waits until the link-local address is probed.
        assert_eq!(*source_mac, Some(HOST_MAC));
        assert!(matches!(ip.src, IpAddr::V6(src) if src.is_unicast_link_local()), "{ip:?}");
        ip.dst == IpAddr::V6(ndp::ALL_ROUTERS)
    });
    assert_eq!(asked.count(), 3);
    assert_eq!(rig.count(Counter::Icmp6OutRouterSolicits), 3);
    let outside: SocketAddr = "[2001:db8:ffff::9]:80".parse().unwrap();
    let connect = |rig: &mut Rig| {
        let host = rig.host();
        Connection::connect(&host, &mut rig.world.cx, None, outside)
    };
    assert!(connect(&mut rig).is_err(), "no route");
    let told = router_advertisement(router, 1800, Some("2001:db8:1::"));
    give_to(&mut rig, to_all, &told);
    rig.pass(Duration::from_secs(5));
    rig.take();
    let socket = connect(&mut rig).expect("a default route");
    let IpAddr::V6(source) = socket.local().ip() else { panic!("{}", socket.local()) };
    assert_eq!(source.segments()[..4], [0x2001, 0x0db8, 1, 0], "RFC 6724: the global address");
    // The advertisement has told the router's link address, so that the SYN leaves at once.
    let seen = rig.take();
    assert!(seen.iter().any(|seen| matches!(seen, Seen::Tcp(..))), "{seen:?}");
    socket.abort(&rig.host(), &mut rig.world.cx);
    drop(socket);
    // The same advertisement changes nothing; one with lifetime 0 removes the route.
    let routes = rig.host().routes();
    give_to(&mut rig, to_all, &told);
    assert_eq!(rig.host().routes(), routes);
    give_to(&mut rig, to_all, &router_advertisement(router, 0, None));
    rig.pass(Duration::from_secs(1));
    assert!(connect(&mut rig).is_err(), "no route again");
    rig.finish();
}

#[test]
fn advertisements_are_ignored_by_default_and_from_elsewhere() {
    let router: Ipv6Addr = "fe80::ff".parse().unwrap();
    let to_all = ndp::multicast_mac(ndp::ALL_NODES);
    let mut plain = rig(&[]);
    plain.host().claim_addresses(&mut plain.world.cx);
    give_to(&mut plain, to_all, &router_advertisement(router, 1800, Some("2001:db8:1::")));
    assert_eq!(plain.drops(DropReason::NdpIgnored), 1);
    plain.pass(Duration::from_secs(10));
    plain.finish();
    let mut rig = rig(&[("net.ipv6.conf.all.accept_ra", "1")]);
    rig.host().claim_addresses(&mut rig.world.cx);
    let before = rig.host().routes();
    give_to(&mut rig, to_all, &router_advertisement(STRANGER, 1800, Some("2001:db8:1::")));
    assert_eq!(rig.drops(DropReason::NdpInvalid), 1, "a router has a link-local address");
    assert_eq!(rig.host().routes(), before);
    rig.finish();
}
