//! The reverse-path filter (`rp_filter`, RFC 3704): sources without a route back through the input
//! device.

use std::{io::IoSlice, net::Ipv4Addr, sync::Arc};

use pkt::{DropReason, EtherType};
use sim::{
    ByteLink, Peer, Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC},
};
use stack::{
    base::counters::Counter,
    header::{arp::ArpOperation, icmp::IcmpMessage, ip::protocol},
    sysctl::Sysctls,
};
use tcp::{Flags, Options};

const REQUEST: IcmpMessage = IcmpMessage::EchoRequest { id: 7, seq: 1 };

/// A station on the network of the first device, and one on that of the second, 10.0.1.0/24.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 9);
/// A source beyond both networks.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

/// Makes a host with two devices and this `rp_filter`; the default route leaves by the first
/// device.
fn rig(rp_filter: &str, default_route: bool) -> Rig {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.conf.all.rp_filter", rp_filter).expect("a setting");
    let config = RigConfig { second_link: true, default_route, sysctls, ..RigConfig::default() };
    let mut rig = Rig::new(config);
    rig.answers_arp = false;
    rig
}

fn ping(src: Ipv4Addr) -> Vec<u8> {
    Ipv4::new(src, HOST_IP, protocol::ICMP).with(&frame::icmp(&REQUEST, b"ping"))
}

/// Delivers a packet to the second device.
fn give_by_other(rig: &mut Rig, packet: &[u8]) {
    let other = other(rig);
    let bytes = frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV4, packet);
    assert!(other.deliver(&mut rig.world.cx, &bytes));
    rig.settle();
}

fn other(rig: &Rig) -> Arc<ByteLink> {
    Arc::clone(rig.other.as_ref().expect("two devices"))
}

/// Returns the addresses that the host resolves, on either device.
fn asked(rig: &mut Rig) -> Vec<Ipv4Addr> {
    let mut seen = rig.take();
    while let Some(sent) = other(rig).take() {
        seen.push(frame::judge_ethernet(&sent.bytes, HOST_MAC, 1500).expect("a valid frame"));
    }
    let target = |seen: &Seen| match seen {
        Seen::Arp(_, arp) if arp.operation == ArpOperation::Request => Some(arp.target_ip),
        _ => None,
    };
    seen.iter().filter_map(target).collect()
}

/// Returns the number of packets that the filter has dropped; both counters agree.
fn filtered(rig: &Rig) -> u64 {
    let drops = rig.drops(DropReason::IpRpFilter);
    assert_eq!(rig.count_tcp(tcp::Counter::TcpExtIPReversePathFilter), drops);
    drops
}

#[test]
fn without_the_filter_the_host_resolves_a_spoofed_source() {
    let mut rig = rig("0", true);
    give_by_other(&mut rig, &ping(NEAR));
    assert_eq!((asked(&mut rig), filtered(&rig)), (vec![NEAR], 0));
    rig.finish();
}

#[test]
fn a_spoofed_source_on_the_wrong_device_is_dropped_and_not_resolved() {
    let mut rig = rig("1", true);
    give_by_other(&mut rig, &ping(NEAR));
    give_by_other(&mut rig, &ping(FAR));
    rig.give(&ping(OTHER));
    assert_eq!((asked(&mut rig), filtered(&rig)), (vec![], 3));
    assert_eq!(rig.count(Counter::NeighAllocs), 0);
    assert_eq!(rig.count(Counter::IpInAddrErrors), 0, "as Linux");
    rig.finish();
}

#[test]
fn packets_on_the_device_of_their_route_pass_the_strict_filter() {
    let mut rig = rig("1", true);
    rig.give(&ping(NEAR));
    rig.give(&ping(FAR));
    give_by_other(&mut rig, &ping(OTHER));
    assert_eq!(asked(&mut rig), [NEAR, PEER_IP, OTHER], "the answers wait for their next hops");
    // A DHCP client has no address yet.
    let client = Ipv4::new(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, protocol::UDP);
    let request = frame::udp(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, (68, 67), b"");
    rig.give(&client.with(&request));
    assert_eq!((rig.drops(DropReason::UdpNoSocket), filtered(&rig)), (1, 0));
    rig.finish();
}

#[test]
fn the_loose_filter_accepts_any_route_back() {
    let mut rig = rig("2", false);
    give_by_other(&mut rig, &ping(NEAR));
    assert_eq!((asked(&mut rig), filtered(&rig)), (vec![NEAR], 0));
    give_by_other(&mut rig, &ping(FAR));
    rig.give(&ping(FAR));
    assert_eq!((asked(&mut rig), filtered(&rig)), (vec![], 2));
    rig.finish();
}

#[test]
fn martian_sources_are_refused_as_without_the_filter() {
    for rp_filter in ["0", "1", "2"] {
        let mut rig = rig(rp_filter, true);
        give_by_other(&mut rig, &ping(HOST_IP));
        rig.give(&ping(HOST_IP));
        assert_eq!(rig.drops(DropReason::IpSourceInvalid), 2);
        assert_eq!((rig.count(Counter::IpInAddrErrors), filtered(&rig)), (2, 0));
        rig.finish();
    }
}

/// The second packet of a list uses the route of the first: its source is checked nevertheless.
#[test]
fn every_packet_of_a_list_is_checked() {
    let mut rig = rig("1", true);
    for src in [NEAR, OTHER, FAR] {
        let bytes = rig.framed(&ping(src));
        rig.queue(&bytes);
    }
    rig.settle();
    assert_eq!((asked(&mut rig), filtered(&rig)), (vec![NEAR, PEER_IP], 1));
    assert_eq!(rig.count(Counter::RxRouteHints), 1, "one list");
    rig.finish();
}

/// A connection keeps the route that was checked: its segments need no lookup with any
/// filter.
#[test]
fn an_established_connection_is_checked_when_its_route_is_made() {
    let mut rig = rig("1", true);
    rig.answers_arp = true;
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    peer.send_next(&mut rig, Flags::ACK | Flags::PSH, b"a");
    let lookups = rig.count(Counter::RxRouteLookups);
    for _ in 0..3 {
        peer.send_next(&mut rig, Flags::ACK | Flags::PSH, b"b");
    }
    assert_eq!(rig.count(Counter::RxRouteLookups), lookups);
    // The same connection by the other device: another route, which is checked.
    let stray = peer.packet(&peer.header(Flags::ACK | Flags::PSH), b"c");
    give_by_other(&mut rig, &stray);
    assert_eq!(filtered(&rig), 1);
    // A change of the setting makes every route be looked up again.
    host.set_sysctl("net.ipv4.conf.all.rp_filter", "0").expect("a setting");
    give_by_other(&mut rig, &stray);
    host.set_sysctl("net.ipv4.conf.all.rp_filter", "2").expect("a setting");
    give_by_other(&mut rig, &stray);
    host.set_sysctl("net.ipv4.conf.all.rp_filter", "1").expect("a setting");
    give_by_other(&mut rig, &stray);
    assert_eq!(filtered(&rig), 2);
    let sent = socket.send(&host, &mut rig.world.cx, &[IoSlice::new(b"d")]);
    assert_eq!(sent, Ok(1), "the connection goes on");
    socket.abort(&host, &mut rig.world.cx);
    listener.close(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
}
