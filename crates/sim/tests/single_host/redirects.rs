//! Redirects: routers that advise another next hop, over IPv4 (RFC 1122 §3.2.2.2) and IPv6
//! (RFC 4861 §8).

use std::{
    io::IoSlice,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Peer, Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_V6, PEER_IP, PEER_MAC, PEER_V6},
};
use stack::{
    base::counters::Counter,
    header::{
        ethernet::MacAddr,
        icmp::IcmpMessage,
        ip::protocol,
        ndp::{self, NdpMessage},
    },
    route::fib::RouteSpec,
    socket::Connection,
    sysctl::Sysctls,
    transmit::neighbor::NudState,
};
use tcp::Flags;

/// A host behind the routers.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
/// Another router of the link.
const BETTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const BETTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
const BETTER_MAC: MacAddr = MacAddr([0x52, 0x51, 0, 0, 0, 9]);

fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    Rig::new(RigConfig { ipv6: true, sysctls, ..RigConfig::default() })
}

/// Opens a connection of the host to `OUTSIDE`; returns it with the header of its SYN.
fn syn_sent(rig: &mut Rig) -> (Arc<Connection>, tcp::SegmentHeader) {
    let host = rig.host();
    let remote = SocketAddr::new(OUTSIDE.into(), 80);
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    let seen = rig.take_ip();
    let [Seen::Tcp(_, header, _)] = &seen[..] else { panic!("{seen:?}") };
    (socket, header.clone())
}

/// Builds a redirect of `router` to `gateway` that quotes a segment with this header.
fn redirect(router: Ipv4Addr, gateway: Ipv4Addr, quoted: &tcp::SegmentHeader) -> Vec<u8> {
    let segment = frame::tcp(HOST_IP, OUTSIDE, quoted, b"");
    let quoted = Ipv4::new(HOST_IP, OUTSIDE, protocol::TCP).with(&segment);
    let message = frame::icmp(&IcmpMessage::Redirect { code: 1, gateway }, &quoted[..28]);
    Ipv4::new(router, HOST_IP, protocol::ICMP).with(&message)
}

/// Returns the addresses that the host has asked for by ARP.
fn asked(seen: &[Seen]) -> Vec<Ipv4Addr> {
    let asked = seen.iter().filter_map(|seen| match seen {
        Seen::Arp(_, arp) => Some(arp.target_ip),
        _ => None,
    });
    asked.collect()
}

#[test]
fn a_redirect_diverts_the_packets_of_a_connection_to_the_better_router() {
    let mut rig = rig(&[("net.ipv4.conf.all.secure_redirects", "0")]);
    let (socket, syn) = syn_sent(&mut rig);
    rig.give(&redirect(PEER_IP, BETTER, &syn));
    assert_eq!(rig.count(Counter::IcmpInRedirects), 1);
    assert_eq!(rig.count(Counter::IcmpInErrors), 0);
    // The SYN is sent again after a second.
    rig.pass(Duration::from_millis(1500));
    assert_eq!(asked(&rig.take()), [BETTER]);
    // The redirect lasts five minutes, for all connections to the destination.
    let host = rig.host();
    let device = host.device_index("bytes").expect("the device");
    for (port, wait_s, is_diverted) in [(81, 290, true), (82, 20, false)] {
        host.set_neighbor(&mut rig.world.cx, device, BETTER.into(), BETTER_MAC)
            .expect("a neighbor");
        rig.pass(Duration::from_secs(wait_s));
        host.delete_neighbor(&mut rig.world.cx, device, BETTER.into()).expect("a neighbor");
        rig.take();
        let remote = SocketAddr::new(OUTSIDE.into(), port);
        let later = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
        assert_eq!(asked(&rig.take()).contains(&BETTER), is_diverted, "after {wait_s} seconds");
        later.abort(&host, &mut rig.world.cx);
    }
    drop((socket, host));
    rig.finish();
}

/// RFC 4861 §7.3.3.
#[test]
fn a_redirect_to_a_router_that_does_not_answer_is_forgotten() {
    let mut rig = rig(&[("net.ipv4.conf.all.secure_redirects", "0")]);
    let (socket, syn) = syn_sent(&mut rig);
    rig.give(&redirect(PEER_IP, BETTER, &syn));
    rig.pass(Duration::from_secs(10));
    assert_eq!(asked(&rig.take()), [BETTER; 3]);
    let host = rig.host();
    let remote = SocketAddr::new(OUTSIDE.into(), 81);
    let later = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    let seen = rig.take();
    assert!(matches!(seen[..], [Seen::Tcp(..)]), "to the router of the route: {seen:?}");
    drop((socket, later, host));
    rig.finish();
}

#[test]
fn a_redirect_that_breaks_a_rule_changes_nothing() {
    // The new router is no next hop of any route.
    refuses(&[], |syn| redirect(PEER_IP, BETTER, syn));
    let any = &[("net.ipv4.conf.all.secure_redirects", "0")];
    // Not from the present router; to a gateway off the link; to the host itself; to the router
    // itself; to a group.
    refuses(any, |syn| redirect(BETTER, PEER_IP, syn));
    refuses(any, |syn| redirect(PEER_IP, OUTSIDE, syn));
    refuses(any, |syn| redirect(PEER_IP, HOST_IP, syn));
    refuses(any, |syn| redirect(PEER_IP, PEER_IP, syn));
    refuses(any, |syn| redirect(PEER_IP, Ipv4Addr::new(224, 0, 0, 1), syn));
    refuses(any, |syn| redirect(PEER_IP, Ipv4Addr::new(10, 0, 0, 255), syn));
    // A guessed sequence number.
    refuses(any, |syn| {
        redirect(PEER_IP, BETTER, &tcp::SegmentHeader { seq: syn.seq + 9, ..syn.clone() })
    });
    // A connection that does not exist.
    refuses(any, |syn| {
        redirect(PEER_IP, BETTER, &tcp::SegmentHeader { src_port: 9, ..syn.clone() })
    });
    let off =
        &[("net.ipv4.conf.all.secure_redirects", "0"), ("net.ipv4.conf.all.accept_redirects", "0")];
    refuses(off, |syn| redirect(PEER_IP, BETTER, syn));
}

/// Checks that the repeated SYN goes to the router of the route after the packet that `make`
/// returns.
fn refuses(settings: &[(&str, &str)], make: impl Fn(&tcp::SegmentHeader) -> Vec<u8>) {
    let mut rig = rig(settings);
    let (socket, syn) = syn_sent(&mut rig);
    let packet = make(&syn);
    rig.give(&packet);
    rig.pass(Duration::from_millis(1500));
    let seen = rig.take();
    assert!(asked(&seen).is_empty(), "after {packet:02x?}: {seen:?}");
    assert!(seen.iter().any(|seen| matches!(seen, Seen::Tcp(..))), "{seen:?}");
    drop(socket);
    rig.finish();
}

#[test]
fn a_secure_redirect_leads_to_the_next_hop_of_another_route() {
    let mut rig = rig(&[]);
    let spare = RouteSpec {
        metric: 100,
        ..RouteSpec::via("192.0.2.0/24".parse().unwrap(), IpAddr::V4(BETTER))
    };
    let best = RouteSpec::via("192.0.2.0/24".parse().unwrap(), IpAddr::V4(PEER_IP));
    rig.host().add_route(&spare).expect("a route");
    rig.host().add_route(&best).expect("a route");
    let (socket, syn) = syn_sent(&mut rig);
    rig.give(&redirect(PEER_IP, BETTER, &syn));
    rig.pass(Duration::from_millis(1500));
    assert_eq!(asked(&rig.take()), [BETTER]);
    // A change of the route ends the effect: its next hop is another.
    rig.host().delete_route(&best).expect("it is there");
    rig.host().delete_route(&spare).expect("it is there");
    drop(socket);
    rig.finish();
}

/// Builds a redirect for IPv6.
fn redirect_v6(src: Ipv6Addr, target: Ipv6Addr, destination: Ipv6Addr, mac: bool) -> Vec<u8> {
    let mut message = vec![ndp::REDIRECT, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend(destination.octets());
    if mac {
        message.extend([2, 1]);
        message.extend(BETTER_MAC.0);
    }
    let message = frame::with_icmpv6_checksum(src, HOST_V6, message);
    let mut packet = frame::ipv6(src, HOST_V6, protocol::ICMPV6, &message);
    packet[7] = ndp::HOP_LIMIT;
    packet
}

/// A rig whose host has a default route by `ROUTER_V6` and a connection in SYN-SENT.
fn routed_v6(settings: &[(&str, &str)]) -> (Rig, Arc<Connection>) {
    let mut rig = rig(settings);
    let host = rig.host();
    let device = host.device_index("bytes").expect("the device");
    let default = RouteSpec {
        device: Some(device),
        ..RouteSpec::via("::/0".parse().unwrap(), IpAddr::V6(ROUTER_V6))
    };
    host.add_route(&default).expect("a route");
    host.set_neighbor(&mut rig.world.cx, device, ROUTER_V6.into(), PEER_MAC).expect("a neighbor");
    let remote = SocketAddr::new(OUTSIDE_V6.into(), 80);
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    let seen = rig.take_ip();
    assert!(matches!(seen[..], [Seen::Tcp(..)]), "{seen:?}");
    (rig, socket)
}

/// Returns the targets of the host's solicitations.
fn solicited(seen: &[Seen]) -> Vec<Ipv6Addr> {
    let asked = seen.iter().filter_map(|seen| match seen {
        Seen::Ndp(_, NdpMessage::NeighborSolicitation { target, .. }) => Some(*target),
        _ => None,
    });
    asked.collect()
}

#[test]
fn an_ipv6_redirect_leads_to_a_router_or_onto_the_link() {
    for target in [BETTER_V6, OUTSIDE_V6] {
        let (mut rig, socket) = routed_v6(&[]);
        rig.give(&redirect_v6(ROUTER_V6, target, OUTSIDE_V6, false));
        assert_eq!(rig.count(Counter::Icmp6InRedirects), 1);
        rig.pass(Duration::from_millis(1500));
        assert_eq!(solicited(&rig.take()), [target]);
        drop(socket);
        rig.finish();
    }
}

/// RFC 4861 §8.3.
#[test]
fn the_link_address_in_a_redirect_is_stored_as_stale() {
    let (mut rig, socket) = routed_v6(&[]);
    rig.give(&redirect_v6(ROUTER_V6, BETTER_V6, OUTSIDE_V6, true));
    let neighbors = rig.host().neighbors();
    let entry = neighbors.iter().find(|info| info.address == IpAddr::V6(BETTER_V6));
    let told = entry.map(|info| (info.mac, info.state));
    assert_eq!(told, Some((Some(BETTER_MAC), NudState::Stale)));
    rig.pass(Duration::from_millis(1500));
    let seen = rig.take();
    assert!(seen.iter().any(|seen| matches!(seen, Seen::Tcp(..))), "it leaves at once: {seen:?}");
    drop(socket);
    rig.finish();
}

/// RFC 4861 §8.1.
#[test]
fn an_ipv6_redirect_that_breaks_a_rule_changes_nothing() {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for (src, target, destination) in [
        // The source is not link-local, or not the present router.
        (PEER_V6, BETTER_V6, OUTSIDE_V6),
        (BETTER_V6, ROUTER_V6, OUTSIDE_V6),
        // The target is neither link-local nor the destination.
        (ROUTER_V6, PEER_V6, OUTSIDE_V6),
        (ROUTER_V6, ROUTER_V6, OUTSIDE_V6),
        (ROUTER_V6, BETTER_V6, group),
        // The destination is on the link, so that no router leads to it.
        (ROUTER_V6, BETTER_V6, PEER_V6),
        (ROUTER_V6, HOST_V6, HOST_V6),
    ] {
        let (mut rig, socket) = routed_v6(&[]);
        rig.give(&redirect_v6(src, target, destination, true));
        assert_eq!(rig.drops(DropReason::NdpInvalid), 1, "{src} {target} {destination}");
        rig.pass(Duration::from_millis(1500));
        let seen = rig.take();
        assert!(solicited(&seen).is_empty(), "{src} {target} {destination}: {seen:?}");
        assert!(seen.iter().any(|seen| matches!(seen, Seen::Tcp(..))), "{seen:?}");
        drop(socket);
        rig.finish();
    }
    let (mut rig, socket) = routed_v6(&[("net.ipv6.conf.all.accept_redirects", "0")]);
    rig.give(&redirect_v6(ROUTER_V6, BETTER_V6, OUTSIDE_V6, true));
    assert_eq!(rig.drops(DropReason::NdpIgnored), 1);
    let mut routed = redirect_v6(ROUTER_V6, BETTER_V6, OUTSIDE_V6, true);
    routed[7] = 254;
    rig.give(&routed);
    assert_eq!(rig.drops(DropReason::NdpHopLimit), 1);
    drop(socket);
    rig.finish();
}

#[test]
fn an_established_connection_follows_a_redirect_too() {
    let mut rig = rig(&[("net.ipv4.conf.all.secure_redirects", "0")]);
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, tcp::Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    // The peer is on the link, so that its own address is the next hop and no redirect applies.
    let bytes = [IoSlice::new(b"answer")];
    socket.send(&host, &mut rig.world.cx, &bytes).expect("space");
    let seen = rig.take();
    peer.hear(&seen);
    let [.., Seen::Tcp(_, header, _)] = &seen[..] else { panic!("{seen:?}") };
    let segment = frame::tcp(HOST_IP, PEER_IP, header, b"");
    let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol::TCP).with(&segment);
    let advice = IcmpMessage::Redirect { code: 1, gateway: BETTER };
    let message = frame::icmp(&advice, &quoted[..28]);
    rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
    rig.pass(Duration::from_secs(1));
    assert!(asked(&rig.take()).is_empty(), "a destination on the link has no router");
    peer.send_next(&mut rig, Flags::ACK, b"");
    listener.close(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
}
