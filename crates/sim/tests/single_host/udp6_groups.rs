//! IPv6 multicast: memberships, datagrams to groups, and MLD.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Seen},
    rig::{HOST_LINK, HOST_V6, PEER_LINK, PEER_V6},
};
use stack::{
    Errno,
    base::{counters::Counter, ids::DeviceIndex},
    header::{
        ip::protocol,
        ndp::{self, NdpMessage},
    },
    socket::{
        DatagramSocket,
        datagram::SendMessage,
        options::{SocketOption, SocketSettings},
    },
};

use crate::{
    udp::{close, recv, send, set},
    udp6::{at, bind, rig, try_bind},
};

const ANY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x81, 2);
const DEVICE: Option<DeviceIndex> = Some(DeviceIndex(1));
const ALL_NODES: Ipv6Addr = ndp::ALL_NODES;

fn share(rig: &mut Rig) -> Arc<DatagramSocket> {
    let settings = SocketSettings::default().reuse_address(true);
    try_bind(rig, at(ANY, 53), &settings).expect("shared")
}

fn give_to(rig: &mut Rig, dst: Ipv6Addr, payload: &[u8]) {
    let datagram = frame::udp(PEER_V6, dst, (1000, 53), payload);
    rig.give(&frame::ipv6(PEER_V6, dst, protocol::UDP, &datagram));
}

fn join(rig: &mut Rig, socket: &Arc<DatagramSocket>, group: Ipv6Addr) -> Result<(), Errno> {
    let host = rig.host();
    let joined = socket.join(&host, &mut rig.world.cx, group.into(), DEVICE);
    rig.settle();
    joined
}

#[test]
fn an_ipv6_multicast_reaches_the_members_of_its_group() {
    let mut rig = rig();
    let host = rig.host();
    let (member, other) = (share(&mut rig), share(&mut rig));
    set(&mut rig, &other, SocketOption::MulticastAllV6, 0);
    give_to(&mut rig, GROUP, b"early");
    assert_eq!(rig.drops(DropReason::IpDestinationInvalid), 1, "the host is no member");
    assert_eq!(join(&mut rig, &member, HOST_V6), Err(Errno::EINVAL));
    let unknown = member.join(&host, &mut rig.world.cx, GROUP.into(), Some(DeviceIndex(9)));
    assert_eq!(unknown, Err(Errno::ENODEV));
    join(&mut rig, &member, GROUP).expect("a device");
    assert_eq!(join(&mut rig, &member, GROUP), Err(Errno::EADDRINUSE));
    rig.take_ip();
    give_to(&mut rig, GROUP, b"to the group");
    let (bytes, received) = recv(&mut rig, &member).expect("a datagram");
    assert_eq!((&bytes[..], received.destination), (&b"to the group"[..], IpAddr::V6(GROUP)));
    assert_eq!(recv(&mut rig, &other).unwrap_err(), Errno::EAGAIN, "no member");
    set(&mut rig, &other, SocketOption::MulticastAllV6, 1);
    give_to(&mut rig, GROUP, b"again");
    for socket in [&member, &other] {
        assert_eq!(recv(&mut rig, socket).expect("a datagram").0, b"again");
    }
    // Every host is a member of the group of all nodes.
    give_to(&mut rig, ALL_NODES, b"all");
    assert_eq!(recv(&mut rig, &member).expect("a datagram").0, b"all");
    member.leave(&host, &mut rig.world.cx, GROUP.into(), None).expect("a member");
    let again = member.leave(&host, &mut rig.world.cx, GROUP.into(), None);
    assert_eq!(again, Err(Errno::EADDRNOTAVAIL));
    give_to(&mut rig, GROUP, b"late");
    assert_eq!(recv(&mut rig, &member).unwrap_err(), Errno::EAGAIN);
    for socket in [member, other] {
        close(&mut rig, socket);
    }
    give_to(&mut rig, ALL_NODES, b"unheard");
    assert_eq!(rig.count(Counter::Udp6IgnoredMulti), 1);
    drop(host);
    rig.finish();
}

#[test]
fn a_sent_ipv6_multicast_has_its_own_hop_limit_and_is_looped_to_members() {
    let mut rig = rig();
    let (member, socket) = (share(&mut rig), bind(&mut rig, ANY, 54));
    join(&mut rig, &member, GROUP).expect("a device");
    rig.take_ip();
    for (looped, hops) in [(1, 1), (0, 7)] {
        set(&mut rig, &socket, SocketOption::MulticastLoopV6, looped);
        set(&mut rig, &socket, SocketOption::MulticastHopsV6, hops);
        send(&mut rig, &socket, &SendMessage::to(b"hi", at(GROUP, 53))).expect("a device");
        let seen = rig.take_ip();
        let [Seen::Udp(ip, _, _)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((ip.dst, i32::from(ip.hop_limit)), (IpAddr::V6(GROUP), hops));
        assert_eq!(ip.src, IpAddr::V6(HOST_V6), "a source of the scope of the group");
        assert_eq!(recv(&mut rig, &member).is_ok(), looped == 1);
    }
    assert_eq!(rig.count(Counter::Ip6OutMcastPkts), 2 + 1, "with the report");
    // With a hop limit of zero, and to a group of the interface, it stays on this host.
    set(&mut rig, &socket, SocketOption::MulticastLoopV6, 1);
    let inside = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 9);
    join(&mut rig, &member, inside).expect("a device");
    for (group, hops) in [(GROUP, 0), (inside, 1)] {
        set(&mut rig, &socket, SocketOption::MulticastHopsV6, hops);
        send(&mut rig, &socket, &SendMessage::to(b"here", at(group, 53))).expect("a device");
        assert_eq!(rig.take_ip(), [], "a group of the interface is not reported either");
        assert_eq!(recv(&mut rig, &member).expect("a copy").0, b"here");
    }
    for socket in [member, socket] {
        close(&mut rig, socket);
    }
    rig.finish();
}

#[test]
fn the_scope_or_ipv6_multicast_if_selects_the_device() {
    let config =
        RigConfig { ipv6: true, link_local: true, second_link: true, ..RigConfig::default() };
    let mut rig = Rig::new(config);
    let other = rig.other.clone().expect("a second link");
    let host = rig.host();
    let socket = bind(&mut rig, ANY, 54);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0x81, 2);
    let scoped = |scope| SocketAddr::V6(SocketAddrV6::new(group, 53, 0, scope));
    send(&mut rig, &socket, &SendMessage::to(b"x", scoped(1))).expect("a device");
    let seen = rig.take_ip();
    let [Seen::Udp(ip, ..)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((ip.src, ip.dst), (IpAddr::V6(HOST_LINK), IpAddr::V6(group)));
    // The second link has no IPv6 address.
    let second = SendMessage::to(b"x", scoped(2));
    assert_eq!(send(&mut rig, &socket, &second), Err(Errno::EADDRNOTAVAIL));
    let value = 9.into();
    let unknown = SocketOption::MulticastInterfaceV6;
    let refused = socket.set_option(&host, &mut rig.world.cx, unknown, &value);
    assert_eq!(refused, Err(Errno::ENODEV));
    set(&mut rig, &socket, SocketOption::MulticastInterfaceV6, 2);
    let anywhere = SendMessage::to(b"x", at(group, 53));
    assert_eq!(send(&mut rig, &socket, &anywhere), Err(Errno::EADDRNOTAVAIL));
    set(&mut rig, &socket, SocketOption::MulticastInterfaceV6, 1);
    send(&mut rig, &socket, &anywhere).expect("a device");
    assert_eq!(rig.take_ip().len(), 1);
    assert!(other.take().is_none());
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

/// Returns source, destination and content of the MLD messages that the host has sent.
fn reports(rig: &mut Rig) -> Vec<(IpAddr, IpAddr, Vec<u8>)> {
    let messages = rig.take_ip().into_iter().map(|seen| match seen {
        Seen::Mld(ip, bytes) => (ip.src, ip.dst, bytes),
        other => panic!("a report: {other:?}"),
    });
    messages.collect()
}

/// The version 2 report of some groups in order.
fn v2_report(record: u8, groups: &[Ipv6Addr]) -> (IpAddr, IpAddr, Vec<u8>) {
    let count = u8::try_from(groups.len()).expect("few groups");
    let mut message = vec![143, 0, 0, 0, 0, 0, 0, count];
    for group in groups {
        message.extend([record, 0, 0, 0]);
        message.extend(group.octets());
    }
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    (HOST_LINK.into(), routers.into(), frame::with_icmpv6_checksum(HOST_LINK, routers, message))
}

/// Delivers a query of a router with a response time of two seconds. `alert` is the value of the
/// option Router Alert.
fn query(rig: &mut Rig, src: Ipv6Addr, hops: u8, alert: u8, group: Ipv6Addr, len: usize) {
    query_within(rig, 2000, (src, hops, alert), group, len);
}

/// Delivers a query of a router with a response time of `millis`.
fn query_within(
    rig: &mut Rig,
    millis: u16,
    (src, hops, alert): (Ipv6Addr, u8, u8),
    group: Ipv6Addr,
    len: usize,
) {
    let dst = if group.is_unspecified() { ALL_NODES } else { group };
    let mut message = vec![130, 0, 0, 0];
    message.extend(millis.to_be_bytes());
    message.extend([0, 0]);
    message.extend(group.octets());
    message.resize(len, 0);
    let message = frame::with_icmpv6_checksum(src, dst, message);
    let payload = [&[protocol::ICMPV6, 0, 5, 2, 0, alert, 1, 0][..], &message].concat();
    let mut packet = frame::ipv6(src, dst, protocol::HOP_BY_HOP, &payload);
    packet[7] = hops;
    rig.give(&packet);
}

#[test]
fn joins_and_leaves_of_ipv6_groups_are_reported_twice() {
    let mut rig = rig();
    let (socket, second) = (share(&mut rig), share(&mut rig));
    join(&mut rig, &socket, GROUP).expect("a device");
    rig.pass(Duration::from_secs(2));
    assert_eq!(reports(&mut rig), vec![v2_report(4, &[GROUP]); 2]);
    join(&mut rig, &second, GROUP).expect("a device");
    close(&mut rig, socket);
    rig.pass(Duration::from_secs(2));
    assert_eq!(reports(&mut rig), [], "the first and the last member alone are reported");
    close(&mut rig, second);
    rig.pass(Duration::from_secs(2));
    assert_eq!(reports(&mut rig), vec![v2_report(3, &[GROUP]); 2]);
    assert_eq!(rig.count(Counter::Icmp6OutMLDv2Reports), 4);
    rig.finish();
}

#[test]
fn mld_queries_are_answered_once_with_the_groups_of_sockets_and_addresses() {
    let mut rig = rig();
    let socket = share(&mut rig);
    join(&mut rig, &socket, GROUP).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    // Both addresses of the host have the same solicited-node group.
    let solicited = ndp::solicited_node(HOST_V6);
    assert_eq!(solicited, ndp::solicited_node(HOST_LINK));
    for _ in 0..32 {
        query(&mut rig, PEER_LINK, 1, 0, ANY, 28);
    }
    rig.pass(Duration::from_millis(2010));
    assert_eq!(reports(&mut rig), [v2_report(2, &[solicited, GROUP])]);
    for group in [GROUP, solicited] {
        query(&mut rig, PEER_LINK, 1, 0, group, 28);
        query(&mut rig, PEER_LINK, 1, 0, group, 28);
        rig.pass(Duration::from_millis(2010));
        assert_eq!(reports(&mut rig), [v2_report(2, &[group])]);
    }
    assert_eq!(rig.count(Counter::Icmp6InGroupMembQueries), 36);
    // From beyond the link, without the option, from a global address, and malformed.
    query(&mut rig, PEER_LINK, 64, 0, ANY, 28);
    query(&mut rig, PEER_LINK, 1, 1, ANY, 28);
    query(&mut rig, PEER_V6, 1, 0, ANY, 28);
    query(&mut rig, PEER_LINK, 1, 0, ANY, 26);
    rig.pass(Duration::from_secs(3));
    assert_eq!(reports(&mut rig), []);
    assert_eq!(rig.drops(DropReason::IgmpIgnored), 3);
    assert_eq!(rig.drops(DropReason::IgmpMalformed), 1);
    close(&mut rig, socket);
    rig.finish();
}

/// A sender of many queries cannot make the host send as many reports.
#[test]
fn mld_queries_without_a_response_time_are_answered_soon_but_not_one_for_one() {
    let mut rig = rig();
    let socket = share(&mut rig);
    join(&mut rig, &socket, GROUP).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    for millis in [0, 1] {
        query_within(&mut rig, millis, (PEER_LINK, 1, 0), GROUP, 28);
        assert_eq!(reports(&mut rig), [], "an answer at once");
        rig.pass(Duration::from_millis(20));
        assert_eq!(reports(&mut rig), [v2_report(2, &[GROUP])]);
        for _ in 0..1000 {
            query_within(&mut rig, millis, (PEER_LINK, 1, 0), GROUP, 28);
            rig.pass(Duration::from_micros(100));
        }
        rig.pass(Duration::from_millis(20));
        let count = reports(&mut rig).len();
        assert!((5..=11).contains(&count), "{count} reports in 100 ms");
    }
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_router_of_mldv1_gets_its_reports() {
    let mut rig = rig();
    let host = rig.host();
    let socket = share(&mut rig);
    join(&mut rig, &socket, GROUP).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    query(&mut rig, PEER_LINK, 1, 0, GROUP, 24);
    rig.pass(Duration::from_millis(2010));
    let seen = reports(&mut rig);
    let [(_, to, report)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((*to, report[0], &report[8..]), (IpAddr::V6(GROUP), 131, &GROUP.octets()[..]));
    socket.leave(&host, &mut rig.world.cx, GROUP.into(), DEVICE).expect("a member");
    let seen = reports(&mut rig);
    let [(_, to, done)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((*to, done[0]), (IpAddr::V6(ndp::ALL_ROUTERS), 132));
    let counters = [Counter::Icmp6OutGroupMembResponses, Counter::Icmp6OutGroupMembReductions];
    assert_eq!(counters.map(|counter| rig.count(counter)), [1, 1]);
    // The router has been replaced by one of version 2.
    rig.pass(Duration::from_secs(300));
    rig.take_ip();
    join(&mut rig, &socket, GROUP).expect("a device");
    assert_eq!(reports(&mut rig)[0], v2_report(4, &[GROUP]));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn a_report_while_the_link_local_address_is_probed_has_no_source() {
    let mut rig = Rig::new(RigConfig { ipv6: true, ..RigConfig::default() });
    rig.host().claim_addresses(&mut rig.world.cx);
    let socket = share(&mut rig);
    join(&mut rig, &socket, GROUP).expect("a device");
    let seen = reports(&mut rig);
    assert!(matches!(&seen[..], [(src, ..)] if src.is_unspecified()), "{seen:?}");
    close(&mut rig, socket);
    rig.finish();
}

/// RFC 4862 §5.4.2: a switch that observes MLD must forward the solicitations for the address.
#[test]
fn the_solicited_node_group_of_an_address_is_reported_before_its_first_probe() {
    let mut rig = Rig::new(RigConfig { ipv6: true, ..RigConfig::default() });
    let host = rig.host();
    host.claim_addresses(&mut rig.world.cx);
    rig.pass(Duration::from_secs(3));
    let seen = rig.take();
    let group = ndp::solicited_node(HOST_V6).octets();
    let reported = seen.iter().position(
        |seen| matches!(seen, Seen::Mld(_, bytes) if bytes[8] == 4 && bytes[12..28] == group),
    );
    let probed = seen
        .iter()
        .position(|seen| matches!(seen, Seen::Ndp(_, NdpMessage::NeighborSolicitation { target, .. }) if *target == HOST_V6));
    assert!(reported.is_some() && reported < probed, "{seen:?}");
    drop(host);
    rig.finish();
}
