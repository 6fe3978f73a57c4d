//! Counters of IPv6 and ICMPv6, under the names of /proc/net/snmp6.

use sim::{
    Rig, RigConfig, frame,
    rig::{HOST_V6, PEER_MAC, PEER_V6},
};
use stack::{
    Errno,
    base::counters::Counter,
    header::{icmp::IcmpMessage, ip::protocol, ndp},
    route::fib::RouteSpec,
    socket::{datagram::SendMessage, options::SocketOption},
};

use super::{
    ipv6::{STRANGER, echo_request, give_to, rig, solicitation},
    udp::{close, send, set},
    udp6::{at, bind},
};

/// An ICMPv6 message of this type to the host, with a quote of its packet, which hop limit 255
/// makes valid for neighbor discovery, too.
fn message_of(kind: u8) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(frame::ipv6(HOST_V6, PEER_V6, protocol::TCP, &[0; 8]));
    let message = frame::with_icmpv6_checksum(PEER_V6, HOST_V6, message);
    let mut packet = frame::ipv6(PEER_V6, HOST_V6, protocol::ICMPV6, &message);
    packet[7] = ndp::HOP_LIMIT;
    packet
}

#[test]
fn every_type_is_counted_by_its_name() {
    let mut rig = rig(&[]);
    let types = [
        (1, Counter::Icmp6InDestUnreachs),
        (2, Counter::Icmp6InPktTooBigs),
        (3, Counter::Icmp6InTimeExcds),
        (4, Counter::Icmp6InParmProblems),
        (128, Counter::Icmp6InEchos),
        (129, Counter::Icmp6InEchoReplies),
        (130, Counter::Icmp6InGroupMembQueries),
        (131, Counter::Icmp6InGroupMembResponses),
        (132, Counter::Icmp6InGroupMembReductions),
        (133, Counter::Icmp6InRouterSolicits),
        (134, Counter::Icmp6InRouterAdvertisements),
        (135, Counter::Icmp6InNeighborSolicits),
        (137, Counter::Icmp6InRedirects),
        (143, Counter::Icmp6InMLDv2Reports),
    ];
    for (kind, counter) in types {
        let (messages, replies) =
            (rig.count(Counter::Icmp6InMsgs), rig.count(Counter::Icmp6InNeighborAdvertisements));
        rig.give(&message_of(kind));
        assert_eq!(rig.count(counter), 1, "{}", counter.name());
        // The echo reply needs a solicitation, whose answer is a message, too.
        let replies = rig.count(Counter::Icmp6InNeighborAdvertisements) - replies;
        assert_eq!(rig.count(Counter::Icmp6InMsgs) - messages - replies, 1, "{}", counter.name());
    }
    assert_eq!(rig.count(Counter::Icmp6InNeighborAdvertisements), 1);
    // The four errors quote no connection.
    assert_eq!(rig.count(Counter::Icmp6InErrors), 4);
    assert_eq!(rig.count(Counter::Icmp6OutEchoReplies), 1);
    assert_eq!(rig.count(Counter::Icmp6OutNeighborSolicits), 1);
    assert_eq!(rig.count(Counter::Icmp6OutMsgs), 2);
    rig.finish();
}

#[test]
fn packets_of_both_directions_are_counted() {
    let mut rig = rig(&[]);
    rig.give(&echo_request(PEER_V6, HOST_V6));
    let group = ndp::multicast_mac(ndp::solicited_node(HOST_V6));
    give_to(&mut rig, group, &solicitation(HOST_V6, PEER_V6, Some(PEER_MAC)));
    rig.take();
    // An echo request of 52 bytes, an advertisement and a solicitation of 72 bytes each.
    assert_eq!(rig.count(Counter::Ip6InOctets), 52 + 72 + 72);
    assert_eq!(rig.count(Counter::Ip6InDelivers), 3);
    assert_eq!(rig.count(Counter::Ip6InMcastPkts), 1);
    assert_eq!(rig.count(Counter::Ip6InMcastOctets), 72);
    // A solicitation, the echo reply, and an advertisement.
    assert_eq!(rig.count(Counter::Ip6OutRequests), 3);
    assert_eq!(rig.count(Counter::Ip6OutTransmits), 3);
    assert_eq!(rig.count(Counter::Ip6OutOctets), 72 + 52 + 72);
    assert_eq!(rig.count(Counter::Ip6OutMcastPkts), 1);
    assert_eq!(rig.count(Counter::Ip6OutMcastOctets), 72);
    assert_eq!(rig.count(Counter::Icmp6OutNeighborAdvertisements), 1);
    assert_eq!(rig.count(Counter::IpInReceives), 0, "those of IPv4 count nothing");
    for (ecn, counter) in
        [(1, Counter::Ip6InECT1Pkts), (2, Counter::Ip6InECT0Pkts), (3, Counter::Ip6InCEPkts)]
    {
        let mut marked = echo_request(PEER_V6, HOST_V6);
        marked[1] |= ecn << 4;
        rig.give(&marked);
        assert_eq!(rig.count(counter), 1, "{}", counter.name());
    }
    assert_eq!(rig.count(Counter::Ip6InNoECTPkts), 3);
    rig.finish();
}

#[test]
fn refused_packets_are_counted_with_the_reason() {
    let mut rig = rig(&[]);
    let good = echo_request(PEER_V6, HOST_V6);
    let mut long = good.clone();
    long[5] += 1;
    rig.give(&long);
    assert_eq!(rig.count(Counter::Ip6InTruncatedPkts), 1);
    assert_eq!(rig.count(Counter::Ip6InHdrErrors), 1);
    let nowhere = "2001:db8::1".parse().expect("an address");
    rig.give(&echo_request(PEER_V6, nowhere));
    assert_eq!(rig.count(Counter::Ip6InNoRoutes), 1);
    rig.give(&echo_request(PEER_V6, STRANGER));
    assert_eq!(rig.count(Counter::Ip6InAddrErrors), 1);
    // A packet to this host alone in the frame of a group.
    give_to(&mut rig, ndp::multicast_mac(ndp::ALL_NODES), &good);
    assert_eq!(rig.count(Counter::Ip6InDiscards), 1);
    // No route leads back.
    rig.give(&echo_request(nowhere, HOST_V6));
    assert_eq!(rig.count(Counter::Ip6OutNoRoutes), 1);
    assert_eq!(rig.count(Counter::Icmp6OutErrors), 1);
    assert_eq!(rig.take(), []);
    // An error of the host, and one for which there is no memory.
    rig.give(&frame::ipv6(PEER_V6, HOST_V6, 253, &[0; 8]));
    rig.take();
    assert_eq!(rig.count(Counter::Icmp6OutParmProblems), 1);
    assert_eq!(rig.count(Counter::Ip6InUnknownProtos), 1);
    rig.finish();
}

#[test]
fn an_error_without_memory_is_counted() {
    let (ipv6, memory_bytes) = (true, 1 << 20);
    let mut rig = Rig::new(RigConfig { ipv6, memory_bytes, ..RigConfig::default() });
    let packet = rig.framed(&frame::ipv6(PEER_V6, HOST_V6, 253, b"what is this"));
    rig.queue(&packet);
    let held: Vec<_> = std::iter::from_fn(|| rig.world.cx.pool.alloc()).collect();
    rig.settle();
    assert_eq!(rig.count(Counter::Ip6OutDiscards), 1);
    drop(held);
    rig.finish();
}

/// A reply longer than the path allows is fragmented, which needs memory.
#[test]
fn a_reply_that_cannot_be_fragmented_is_counted() {
    let (ipv6, memory_bytes) = (true, 1 << 20);
    let mut rig = Rig::new(RigConfig { ipv6, memory_bytes, ..RigConfig::default() });
    rig.give(&echo_request(PEER_V6, HOST_V6));
    rig.take();
    let device = rig.host().device_index("bytes").expect("the device");
    let narrow = RouteSpec {
        mtu: Some(1280),
        ..RouteSpec::on_link("fd00::2/128".parse().expect("a prefix"), device)
    };
    rig.host().add_route(&narrow).expect("a route");
    let message = IcmpMessage::EchoRequest { id: 7, seq: 1 };
    let request = frame::icmpv6(PEER_V6, HOST_V6, &message, &[0; 1300]);
    let request = frame::ipv6(PEER_V6, HOST_V6, protocol::ICMPV6, &request);
    let request = rig.framed(&request);
    rig.queue(&request);
    let held: Vec<_> = std::iter::from_fn(|| rig.world.cx.pool.alloc()).collect();
    rig.settle();
    assert_eq!(rig.count(Counter::Ip6FragFails), 1);
    drop(held);
    rig.finish();
}

/// A datagram of 500 bytes for port 53.
fn datagram() -> Vec<u8> {
    let datagram = frame::udp(PEER_V6, HOST_V6, (1000, 53), &[0; 500]);
    frame::ipv6(PEER_V6, HOST_V6, protocol::UDP, &datagram)
}

#[test]
fn datagrams_without_room_are_counted() {
    let mut rig = rig(&[]);
    let socket = bind(&mut rig, HOST_V6, 53);
    set(&mut rig, &socket, SocketOption::ReceiveBuffer, 10_000);
    for _ in 0..100 {
        rig.give(&datagram());
    }
    let dropped = rig.count(Counter::Udp6RcvbufErrors);
    assert!((50..100).contains(&dropped), "{dropped}");
    assert_eq!(rig.count(Counter::Udp6InErrors), dropped);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn datagrams_above_udp_mem_are_counted() {
    let mut rig = rig(&[("net.ipv4.udp_mem", "4 6 8")]);
    let socket = bind(&mut rig, HOST_V6, 53);
    for _ in 0..100 {
        rig.give(&datagram());
    }
    let dropped = rig.count(Counter::Udp6MemErrors);
    assert!((50..100).contains(&dropped), "{dropped}");
    assert_eq!(rig.count(Counter::Udp6InErrors), dropped);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_datagram_that_is_not_sent_for_lack_of_memory_is_counted() {
    let (ipv6, memory_bytes) = (true, 1 << 20);
    let mut rig = Rig::new(RigConfig { ipv6, memory_bytes, ..RigConfig::default() });
    let socket = bind(&mut rig, HOST_V6, 53);
    let held: Vec<_> = std::iter::from_fn(|| rig.world.cx.pool.alloc()).collect();
    let message = SendMessage::to(b"x", at(PEER_V6, 9));
    assert_eq!(send(&mut rig, &socket, &message), Err(Errno::ENOBUFS));
    assert_eq!(rig.count(Counter::Udp6SndbufErrors), 1);
    drop(held);
    close(&mut rig, socket);
    rig.finish();
}
