//! Old attacks by their names, over both IP versions: the reason for which the host drops each of
//! their packets, the packets that it sends in reply, and the memory that it keeps.
//!
//! Every test floods the host and ends with [`Flooded::ends`], which checks that no packet is left
//! in its memory.
//!
//! Not here: fragments; SYN floods (`syn_flood`); ARP (`arp`, `arp_strict`); the other device of
//! `rp_filter` (`rp_filter`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::{DropReason, EtherType};
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_MAC, HOST_V6, PEER_IP, PEER_MAC, PEER_V6, ndp_packet},
};
use stack::{
    base::counters::Counter,
    header::{
        ethernet::MacAddr,
        icmp::{IcmpMessage, Unreachable},
        ip::protocol,
        ndp::{self, NdpMessage},
    },
    socket::{ListenOptions, Listener},
    sysctl::Sysctls,
};
use tcp::{Flags, SegmentHeader};

const ECHO: IcmpMessage = IcmpMessage::EchoRequest { id: 7, seq: 1 };

/// Port of the listener for both versions.
const PORT: u16 = 80;

/// A host with addresses of both versions, a listener, and a resolved neighbor of each version.
struct Flooded {
    rig: Rig,
    listener: Arc<Listener>,
    sent: u64,
}

impl Flooded {
    fn new(settings: &[(&str, &str)]) -> Self {
        let mut sysctls = Sysctls::default();
        for (name, value) in settings {
            sysctls.set(name, value).expect("a setting");
        }
        let mut rig = Rig::new(RigConfig { ipv6: true, sysctls, ..RigConfig::default() });
        let host = rig.host();
        let local: SocketAddr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT);
        let options = ListenOptions::default();
        let listener = Listener::listen_with(&host, &mut rig.world.cx, local, &options);
        let listener = listener.expect("a free port");
        rig.give(&echo_v4(PEER_IP, HOST_IP));
        rig.give(&echo_v6(PEER_V6, HOST_V6));
        assert_eq!(replies(&rig.take()), 2);
        Self { rig, listener, sent: 0 }
    }

    /// Delivers a packet in a frame to the host.
    fn give(&mut self, packet: &[u8]) {
        self.give_to(HOST_MAC, packet);
    }

    /// Delivers a packet in a frame to `to`.
    fn give_to(&mut self, to: MacAddr, packet: &[u8]) {
        let kind = if packet[0] >> 4 == 6 { EtherType::IPV6 } else { EtherType::IPV4 };
        self.rig.give_frame(&frame::ethernet(to, PEER_MAC, kind, packet));
        self.sent += 1;
    }

    /// Checks that the packet is dropped for `reason` and that nothing is sent.
    fn refuse(&mut self, packet: &[u8], reason: DropReason) {
        let before = self.rig.drops(reason);
        self.give(packet);
        let dropped = self.rig.drops(reason) - before;
        assert_eq!(dropped, 1, "{reason}: {:?}", self.rig.host().counters());
        assert_eq!(self.rig.take(), [], "{reason}");
    }

    /// Checks that the host holds no packet, no connection and no request.
    fn ends(mut self) {
        assert_eq!(self.rig.world.packets_alive(), 0, "{} packets were sent", self.sent);
        assert!(self.listener.accept().is_err(), "a connection");
        assert_eq!(self.rig.count_tcp(tcp::Counter::TcpPassiveOpens), 0);
        drop(self.listener);
        self.rig.finish();
    }
}

/// Returns the number of echo replies.
fn replies(seen: &[Seen]) -> usize {
    let is_reply = |seen: &&Seen| matches!(seen, Seen::Icmp(_, IcmpMessage::EchoReply { .. }, _));
    seen.iter().filter(is_reply).count()
}

fn echo_v4(src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    Ipv4::new(src, dst, protocol::ICMP).with(&frame::icmp(&ECHO, b"ping"))
}

fn echo_v6(src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    frame::ipv6(src, dst, protocol::ICMPV6, &frame::icmpv6(src, dst, &ECHO, b"ping"))
}

fn syn_header(src_port: u16) -> SegmentHeader {
    SegmentHeader { flags: Flags::SYN, src_port, dst_port: PORT, ..SegmentHeader::default() }
}

fn syn_v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16) -> Vec<u8> {
    let segment = frame::tcp(src, dst, &syn_header(src_port), b"");
    Ipv4::new(src, dst, protocol::TCP).with(&segment)
}

fn syn_v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16) -> Vec<u8> {
    let segment = frame::tcp(src, dst, &syn_header(src_port), b"");
    frame::ipv6(src, dst, protocol::TCP, &segment)
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

/// A SYN from an open port of the host to the same port.
#[test]
fn a_land_packet_is_dropped() {
    let mut host = Flooded::new(&[]);
    for _ in 0..100 {
        host.refuse(&syn_v4(HOST_IP, HOST_IP, PORT), DropReason::IpSourceInvalid);
        host.refuse(&syn_v6(HOST_V6, HOST_V6, PORT), DropReason::IpSourceInvalid);
    }
    assert_eq!(host.rig.count(Counter::IpInAddrErrors), 100);
    assert_eq!(host.rig.count(Counter::Ip6InAddrErrors), 100);
    host.ends();
}

/// RFC 1122 §3.2.1.3 (g), RFC 4291 §2.5.3.
#[test]
fn loopback_addresses_from_a_link_are_dropped() {
    let mut host = Flooded::new(&[]);
    for local in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 1, 2, 3)] {
        host.refuse(&syn_v4(local, HOST_IP, 9), DropReason::IpSourceInvalid);
        host.refuse(&syn_v4(PEER_IP, local, 9), DropReason::IpDestinationInvalid);
    }
    host.refuse(&syn_v6(Ipv6Addr::LOCALHOST, HOST_V6, 9), DropReason::IpSourceInvalid);
    host.refuse(&syn_v6(PEER_V6, Ipv6Addr::LOCALHOST, 9), DropReason::IpDestinationInvalid);
    host.ends();
}

/// RFC 4291 §2.5.5.2, RFC 4942 §2.2: a v4-mapped address is one of a socket. On the wire it would
/// reach the rules for an IPv4 peer without being one.
#[test]
fn v4_mapped_addresses_from_a_link_are_dropped() {
    let mut host = Flooded::new(&[]);
    for mapped in ["::ffff:10.0.0.2", "::ffff:127.0.0.1", "::ffff:10.0.0.1"] {
        host.refuse(&syn_v6(v6(mapped), HOST_V6, 9), DropReason::IpSourceInvalid);
        host.refuse(&syn_v6(PEER_V6, v6(mapped), 9), DropReason::IpDestinationInvalid);
    }
    host.ends();
}

/// RFC 1122 §3.2.1.3, RFC 4291 §2.7.
#[test]
fn multicast_and_broadcast_sources_are_dropped() {
    let mut host = Flooded::new(&[]);
    for group in [Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        host.refuse(&syn_v4(group, HOST_IP, 9), DropReason::IpSourceInvalid);
        host.refuse(&echo_v4(group, HOST_IP), DropReason::IpSourceInvalid);
    }
    for group in ["ff02::1", "ff05::2", "ff0e::1"] {
        host.refuse(&syn_v6(v6(group), HOST_V6, 9), DropReason::IpSourceInvalid);
        host.refuse(&echo_v6(v6(group), HOST_V6), DropReason::IpSourceInvalid);
    }
    host.ends();
}

/// RFC 7126 §4.3 and §4.4, RFC 5095: loose and strict source routes of IPv4, and the routing header
/// of type 0. IPv6 reports the refused header to the sender, within the rate of errors.
#[test]
fn source_routes_are_refused() {
    let mut host = Flooded::new(&[]);
    for kind in [131, 137] {
        let options = vec![kind, 7, 4, 10, 0, 0, 9, 0];
        let ip = Ipv4 { options, ..Ipv4::new(PEER_IP, HOST_IP, protocol::TCP) };
        let segment = frame::tcp(PEER_IP, HOST_IP, &syn_header(9), b"");
        host.refuse(&ip.with(&segment), DropReason::IpOptions);
    }
    let segment = frame::tcp(PEER_V6, HOST_V6, &syn_header(9), b"");
    let mut routing = vec![protocol::TCP, 2, 0, 1, 0, 0, 0, 0];
    routing.extend(v6("fd00::9").octets());
    let packet = frame::ipv6(PEER_V6, HOST_V6, protocol::ROUTING, &[routing, segment].concat());
    for _ in 0..100 {
        host.give(&packet);
    }
    let seen = host.rig.take();
    let problem = IcmpMessage::ParameterProblem { code: 0, pointer: 42 };
    let is_problem = |seen: &Seen| matches!(seen, Seen::Icmp(_, message, _) if *message == problem);
    assert!(seen.len() <= 6 && seen.iter().all(is_problem), "{seen:?}");
    assert_eq!(host.rig.drops(DropReason::IpOptions), 102);
    host.ends();
}

/// Echo requests and datagrams to broadcast addresses and groups, in the name of the victim. A
/// closed port and an unknown protocol are not reported either.
#[test]
fn smurf_and_fraggle_get_no_answer() {
    let mut host = Flooded::new(&[]);
    for dst in [Ipv4Addr::new(10, 0, 0, 255), Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        host.refuse(&echo_v4(PEER_IP, dst), DropReason::IcmpEchoIgnored);
        let datagram = frame::udp(PEER_IP, dst, (7, 7), b"echo");
        let packet = Ipv4::new(PEER_IP, dst, protocol::UDP).with(&datagram);
        host.refuse(&packet, DropReason::UdpNoSocket);
        host.refuse(&Ipv4::new(PEER_IP, dst, 253).with(&[0; 8]), DropReason::IpNoProtocol);
    }
    host.refuse(&echo_v6(PEER_V6, ndp::ALL_NODES), DropReason::IcmpEchoIgnored);
    let unknown = frame::ipv6(PEER_V6, ndp::ALL_NODES, 253, &[0; 8]);
    host.refuse(&unknown, DropReason::IpNoProtocol);
    host.ends();
}

/// Datagrams to closed ports in the name of a victim. One error of at most 576 bytes a second and a
/// burst of six reach the victim, and all victims together get at most 1,000 a second and a burst
/// of 50.
#[test]
fn a_flood_to_closed_ports_is_not_reflected() {
    const VICTIM: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    let mut host = Flooded::new(&[]);
    let query = |src, port| {
        let datagram = frame::udp(src, HOST_IP, (53, port), &[0; 1400]);
        Ipv4::new(src, HOST_IP, protocol::UDP).with(&datagram)
    };
    for port in 1000..2000 {
        host.give(&query(VICTIM, port));
    }
    let seen = host.rig.take_ip();
    assert!((1..=6).contains(&seen.len()), "{} errors to one victim", seen.len());
    for report in &seen {
        let Seen::Icmp(ip, message, _) = report else { panic!("{report:?}") };
        assert_eq!(*message, IcmpMessage::Unreachable(Unreachable::Port));
        assert!(ip.dst == IpAddr::V4(VICTIM) && ip.total_len() <= 576, "{ip:?}");
    }
    host.rig.pass(Duration::from_secs(1));
    for victim in 0..1000_u32 {
        host.give(&query(Ipv4Addr::from_bits(VICTIM.to_bits() + 256 + victim), 1000));
    }
    let reports = host.rig.take_ip().len();
    assert!(reports <= 2 * 50, "{reports} errors at one moment");
    assert_eq!(host.rig.drops(DropReason::UdpNoSocket), 2000);
    host.ends();
}

/// RFC 4861 §6.1 and §7.1: a message with another hop limit has crossed a router.
#[test]
fn neighbor_discovery_from_beyond_the_link_is_dropped() {
    let mut host = Flooded::new(&[("net.ipv6.conf.all.accept_ra", "1")]);
    host.rig.host().claim_addresses(&mut host.rig.world.cx);
    host.rig.pass(Duration::from_secs(30));
    host.rig.take();
    let router = v6("fe80::ff");
    let (routes, neighbors) = (host.rig.host().routes(), host.rig.host().neighbors());
    let link = Some(PEER_MAC);
    let messages = [
        (
            PEER_V6,
            NdpMessage::NeighborSolicitation { target: HOST_V6, source_mac: link, nonce: None },
        ),
        (
            PEER_V6,
            NdpMessage::NeighborAdvertisement {
                target: PEER_V6,
                target_mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
                router: false,
                solicited: true,
                replaces: true,
            },
        ),
        (router, NdpMessage::RouterSolicitation { source_mac: link }),
    ];
    let mut packets: Vec<_> =
        messages.iter().map(|(src, message)| ndp_packet(*src, HOST_V6, message)).collect();
    packets.push(advertisement(router, HOST_V6, 0));
    for packet in &mut packets {
        for hop_limit in [254, 64, 1] {
            packet[7] = hop_limit;
            host.refuse(packet, DropReason::NdpHopLimit);
        }
    }
    assert_eq!(host.rig.host().routes(), routes);
    assert_eq!(host.rig.host().neighbors().len(), neighbors.len());
    host.ends();
}

/// Solicitations from, and packets from, more addresses of the link than the table has room for
/// (RFC 6583). Packets of the host to silent addresses wait until resolution fails.
#[test]
fn a_flood_of_neighbors_fills_a_bounded_table() {
    // The default of `gc_thresh3`.
    const ROOM: usize = 1024;
    let mut host = Flooded::new(&[]);
    let stranger = |number: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, number);
    for number in 0..2000_u16 {
        let [high, low] = number.to_be_bytes();
        let source_mac = Some(MacAddr([2, 0, 0, 0, high, low]));
        let message = NdpMessage::NeighborSolicitation { target: HOST_V6, source_mac, nonce: None };
        host.give(&ndp_packet(stranger(number), HOST_V6, &message));
    }
    host.rig.take();
    let known = host.rig.host().neighbors().len();
    assert!(known <= ROOM + 2, "{known} neighbors");
    for number in 0..9000 {
        host.give(&echo_v6(stranger(0x8000 + number), HOST_V6));
    }
    let known = host.rig.host().neighbors().len();
    // The peer is in the table of IPv4.
    assert!(known <= 8 * ROOM + 1, "{known} neighbors, all in use");
    let waiting = host.rig.world.packets_alive();
    assert!(
        usize::try_from(waiting).is_ok_and(|waiting| waiting <= known),
        "{waiting} packets wait"
    );
    assert!(host.rig.count(Counter::NeighTableFulls) > 0);
    assert!(host.rig.drops(DropReason::IpNoRoute) > 0, "a reply that finds no room");
    // Resolution fails, and the waiting replies are dropped.
    host.rig.pass(Duration::from_secs(10));
    host.rig.take();
    assert!(host.rig.drops(DropReason::NeighborFailed) > 0);
    host.give(&echo_v6(PEER_V6, HOST_V6));
    assert_eq!(replies(&host.rig.take()), 1, "the peer is found again");
    host.ends();
}

/// Builds a router advertisement with six prefixes, which no other number has.
fn advertisement(router: Ipv6Addr, dst: Ipv6Addr, number: u16) -> Vec<u8> {
    let mut message = vec![ndp::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0];
    message.extend(9000_u16.to_be_bytes());
    message.extend([0; 8]);
    for part in 0..6 {
        message.extend([3, 4, 64, 0xc0]);
        message.extend(86_400_u32.to_be_bytes());
        message.extend(86_400_u32.to_be_bytes());
        message.extend([0; 4]);
        message.extend(Ipv6Addr::new(0x2001, 0xdb8, number, part, 0, 0, 0, 0).octets());
    }
    let message = frame::with_icmpv6_checksum(router, dst, message);
    let mut packet = frame::ipv6(router, dst, protocol::ICMPV6, &message);
    packet[7] = ndp::HOP_LIMIT;
    packet
}

/// Advertisements of routers and prefixes that change without end (CVE-2010-4669). The numbers of
/// default routes, prefixes and addresses are bounded, and so is the rate at which routes change.
#[test]
fn a_flood_of_router_advertisements_is_bounded() {
    let mut host = Flooded::new(&[("net.ipv6.conf.all.accept_ra", "1")]);
    host.rig.host().claim_addresses(&mut host.rig.world.cx);
    host.rig.pass(Duration::from_secs(30));
    let before = host.rig.host().routes().len();
    for number in 0..1000_u16 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xff, number);
        let packet = advertisement(router, ndp::ALL_NODES, number);
        host.give_to(ndp::multicast_mac(ndp::ALL_NODES), &packet);
        if number % 100 == 0 {
            host.rig.pass(Duration::from_secs(1));
        }
    }
    host.rig.pass(Duration::from_secs(10));
    let routes = host.rig.host().routes();
    let defaults = routes.iter().filter(|route| route.prefix.prefix_len() == 0);
    assert!(defaults.count() <= 2, "one default route of each version");
    // Eight prefixes, sixteen addresses, and one default route.
    assert!(routes.len() - before <= 8 + 16 + 1, "{} routes", routes.len() - before);
    host.ends();
}

/// RFC 3704: the strict filter needs a route back through the same device. A source without any
/// route is refused by the loose filter, too.
#[test]
fn spoofed_sources_are_dropped_by_rp_filter() {
    for (filter, source) in [("1", Ipv4Addr::new(10, 0, 1, 9)), ("2", Ipv4Addr::new(240, 0, 0, 1))]
    {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.conf.all.rp_filter", filter).expect("a setting");
        let config = RigConfig { second_link: true, default_route: false, ..RigConfig::default() };
        let mut rig = Rig::new(RigConfig { sysctls, ..config });
        for _ in 0..100 {
            rig.give(&syn_v4(source, HOST_IP, 9));
        }
        assert_eq!(rig.drops(DropReason::IpRpFilter), 100, "{filter}");
        assert_eq!(rig.count_tcp(tcp::Counter::TcpExtIPReversePathFilter), 100);
        assert_eq!(rig.take(), []);
        assert_eq!(rig.world.packets_alive(), 0);
        rig.finish();
    }
}
