//! Broadcast and multicast datagrams.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno,
    base::{counters::Counter, ids::DeviceIndex},
    header::ip::protocol,
    socket::{
        DatagramSocket,
        datagram::SendMessage,
        options::{OptionValue, SocketOption, SocketSettings},
    },
};

use crate::udp::{at, bind, close, recv, send, set};

const SUBNET: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 129, 2, 3);

fn share(rig: &mut Rig, ip: Ipv4Addr) -> Arc<DatagramSocket> {
    let host = rig.host();
    let settings = SocketSettings::default().reuse_address(true);
    DatagramSocket::bind(&host, &mut rig.world.cx, at(ip, 53), &settings).expect("shared")
}

fn give_to(rig: &mut Rig, dst: Ipv4Addr, payload: &[u8]) {
    let datagram = frame::udp(PEER_IP, dst, (1000, 53), payload);
    rig.give(&Ipv4::new(PEER_IP, dst, protocol::UDP).with(&datagram));
}

#[test]
fn a_broadcast_reaches_every_socket_of_the_port() {
    let mut rig = Rig::new(RigConfig::default());
    let sockets = [
        share(&mut rig, Ipv4Addr::UNSPECIFIED),
        share(&mut rig, Ipv4Addr::UNSPECIFIED),
        share(&mut rig, SUBNET),
        share(&mut rig, HOST_IP),
    ];
    give_to(&mut rig, SUBNET, &[5; 1000]);
    for socket in &sockets[..3] {
        let (bytes, received) = recv(&mut rig, socket).expect("a copy");
        assert_eq!((bytes, received.destination), (vec![5; 1000], IpAddr::V4(SUBNET)));
        assert_eq!(received.source, at(PEER_IP, 1000));
    }
    assert_eq!(recv(&mut rig, &sockets[3]).unwrap_err(), Errno::EAGAIN, "another address");
    for socket in sockets {
        close(&mut rig, socket);
    }
    give_to(&mut rig, SUBNET, b"nobody");
    assert_eq!(rig.count(Counter::UdpIgnoredMulti), 1);
    assert_eq!(rig.take_ip(), [], "no error is sent about a broadcast");
    rig.finish();
}

#[test]
fn a_broadcast_needs_permission_and_is_heard_by_this_host() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = share(&mut rig, Ipv4Addr::UNSPECIFIED);
    let socket = bind(&mut rig, HOST_IP, 54);
    let message = SendMessage::to(b"all", at(SUBNET, 53));
    assert_eq!(send(&mut rig, &socket, &message), Err(Errno::EACCES));
    set(&mut rig, &socket, SocketOption::Broadcast, 1);
    for dst in [SUBNET, Ipv4Addr::BROADCAST] {
        send(&mut rig, &socket, &SendMessage::to(b"all", at(dst, 53))).expect("allowed");
        let seen = rig.take_ip();
        let [Seen::Udp(ip, _, payload)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((ip.src, ip.dst), (IpAddr::V4(HOST_IP), IpAddr::V4(dst)));
        assert_eq!(payload, b"all");
        assert_eq!(recv(&mut rig, &listener).expect("a copy").0, b"all");
    }
    assert_eq!(rig.count(Counter::IpExtOutBcastPkts), 2);
    assert_eq!(rig.count(Counter::IpExtOutBcastOctets), 2 * 31);
    for socket in [listener, socket] {
        close(&mut rig, socket);
    }
    rig.finish();
}

#[test]
fn a_multicast_reaches_the_members_of_its_group() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let (member, other) = (share(&mut rig, GROUP), share(&mut rig, Ipv4Addr::UNSPECIFIED));
    set(&mut rig, &other, SocketOption::MulticastAll, 0);
    give_to(&mut rig, GROUP, b"early");
    assert_eq!(rig.count(Counter::UdpIgnoredMulti), 1, "the host is no member");
    assert_eq!(rig.drops(DropReason::UdpNoSocket), 1);
    let cx = &mut rig.world.cx;
    let group = IpAddr::V4(GROUP);
    assert_eq!(member.join(&host, cx, HOST_IP.into(), None), Err(Errno::EINVAL));
    assert_eq!(member.join(&host, cx, group, Some(DeviceIndex(9))), Err(Errno::ENODEV));
    member.join(&host, cx, group, None).expect("a device");
    assert_eq!(member.join(&host, cx, group, None), Err(Errno::EADDRINUSE));
    rig.settle();
    rig.take_ip();
    give_to(&mut rig, GROUP, b"to the group");
    assert_eq!(recv(&mut rig, &member).expect("a datagram").0, b"to the group");
    assert_eq!(recv(&mut rig, &other).unwrap_err(), Errno::EAGAIN, "no member");
    set(&mut rig, &other, SocketOption::MulticastAll, 1);
    give_to(&mut rig, GROUP, b"again");
    for socket in [&member, &other] {
        assert_eq!(recv(&mut rig, socket).expect("a datagram").0, b"again");
    }
    member.leave(&host, &mut rig.world.cx, group, None).expect("a member");
    let again = member.leave(&host, &mut rig.world.cx, group, None);
    assert_eq!(again, Err(Errno::EADDRNOTAVAIL));
    give_to(&mut rig, GROUP, b"late");
    assert_eq!(recv(&mut rig, &member).unwrap_err(), Errno::EAGAIN);
    for socket in [member, other] {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

#[test]
fn a_sent_multicast_stays_on_the_link_and_is_looped_to_members() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let (member, socket) = (share(&mut rig, GROUP), bind(&mut rig, HOST_IP, 54));
    member.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    rig.settle();
    rig.take_ip();
    let counters = [Counter::IpExtOutMcastPkts, Counter::IpExtOutMcastOctets];
    let before = counters.map(|counter| rig.count(counter));
    for (looped, ttl) in [(1, 1), (0, 7)] {
        set(&mut rig, &socket, SocketOption::MulticastLoop, looped);
        set(&mut rig, &socket, SocketOption::MulticastTtl, ttl);
        send(&mut rig, &socket, &SendMessage::to(b"hi", at(GROUP, 53))).expect("a device");
        let seen = rig.take_ip();
        let [Seen::Udp(ip, _, _)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((ip.dst, i32::from(ip.hop_limit)), (IpAddr::V4(GROUP), ttl));
        assert_eq!(recv(&mut rig, &member).is_ok(), looped == 1);
    }
    let sent = counters.map(|counter| rig.count(counter));
    assert_eq!((sent[0] - before[0], sent[1] - before[1]), (2, 2 * 30));
    for socket in [member, socket] {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

/// Returns destination and content of the IGMP messages that the host has sent.
fn reports(rig: &mut Rig) -> Vec<(IpAddr, Vec<u8>)> {
    let seen = rig.take_ip();
    let messages = seen.into_iter().map(|seen| match seen {
        Seen::Igmp(ip, bytes) => (ip.dst, bytes),
        other => panic!("a report: {other:?}"),
    });
    messages.collect()
}

/// The version 3 report of one group.
fn v3_report(record: u8, group: Ipv4Addr) -> (IpAddr, Vec<u8>) {
    let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 1, record, 0, 0, 0];
    message.extend(group.octets());
    let sum = frame::checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 22)), message)
}

/// Delivers a query of a router, of `len` bytes.
fn query(rig: &mut Rig, ttl: u8, dst: Ipv4Addr, group: Ipv4Addr, len: usize) {
    query_within(rig, 20, ttl, (dst, group), len);
}

/// Delivers a query of a router with a response time of `tenths` of a second.
fn query_within(
    rig: &mut Rig,
    tenths: u8,
    ttl: u8,
    (dst, group): (Ipv4Addr, Ipv4Addr),
    len: usize,
) {
    let mut message = vec![0x11, tenths, 0, 0];
    message.extend(group.octets());
    message.resize(len, 0);
    let sum = frame::checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let carrier = Ipv4 { ttl, ..Ipv4::new(PEER_IP, dst, protocol::IGMP) };
    rig.give(&carrier.with(&message));
}

const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

#[test]
fn joins_and_leaves_are_reported_twice() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let (socket, second) = (share(&mut rig, GROUP), share(&mut rig, GROUP));
    for (number, socket) in (1..).zip([&socket, &second]) {
        socket.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
        rig.pass(Duration::from_secs(2));
        let expected = if number == 1 { vec![v3_report(4, GROUP); 2] } else { Vec::new() };
        assert_eq!(reports(&mut rig), expected, "the first member alone is reported");
    }
    socket.leave(&host, &mut rig.world.cx, GROUP.into(), None).expect("a member");
    rig.pass(Duration::from_secs(2));
    assert_eq!(reports(&mut rig), []);
    // A closed socket leaves its groups.
    close(&mut rig, second);
    rig.pass(Duration::from_secs(2));
    assert_eq!(reports(&mut rig), vec![v3_report(3, GROUP); 2]);
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn queries_are_answered_within_their_response_time() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = share(&mut rig, GROUP);
    socket.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    let any = Ipv4Addr::UNSPECIFIED;
    for (dst, group) in [(ALL_HOSTS, any), (GROUP, GROUP)] {
        query(&mut rig, 1, dst, group, 12);
        rig.pass(Duration::from_millis(2010));
        assert_eq!(reports(&mut rig), [v3_report(2, GROUP)]);
    }
    // Another group, a router beyond the link, and a message that is too short.
    let other = Ipv4Addr::new(239, 9, 9, 9);
    query(&mut rig, 1, other, other, 12);
    query(&mut rig, 2, ALL_HOSTS, any, 12);
    query(&mut rig, 1, ALL_HOSTS, any, 10);
    rig.pass(Duration::from_secs(3));
    assert_eq!(reports(&mut rig), []);
    assert_eq!(rig.drops(DropReason::IgmpIgnored), 1);
    assert_eq!(rig.drops(DropReason::IgmpMalformed), 1);
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

/// RFC 3376 §5.2: a query makes the answer to an earlier one at most earlier.
#[test]
fn several_queries_within_the_response_time_get_one_answer() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = share(&mut rig, GROUP);
    socket.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    for (dst, group) in [(ALL_HOSTS, Ipv4Addr::UNSPECIFIED), (GROUP, GROUP)] {
        // Random times: among 32 queries, some answers would be due before those of earlier
        // queries.
        for _ in 0..32 {
            query(&mut rig, 1, dst, group, 12);
        }
        rig.pass(Duration::from_millis(2010));
        assert_eq!(reports(&mut rig), [v3_report(2, GROUP)], "queries about {group}");
    }
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

/// A sender of many queries cannot make the host send as many reports.
#[test]
fn igmp_queries_without_a_response_time_are_answered_soon_but_not_one_for_one() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = share(&mut rig, GROUP);
    socket.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    for ends in [(ALL_HOSTS, Ipv4Addr::UNSPECIFIED), (GROUP, GROUP)] {
        query_within(&mut rig, 0, 1, ends, 12);
        assert_eq!(reports(&mut rig), [], "an answer at once");
        rig.pass(Duration::from_millis(20));
        assert_eq!(reports(&mut rig), [v3_report(2, GROUP)]);
        for _ in 0..1000 {
            query_within(&mut rig, 0, 1, ends, 12);
            rig.pass(Duration::from_micros(100));
        }
        rig.pass(Duration::from_millis(20));
        let count = reports(&mut rig).len();
        assert!((5..=11).contains(&count), "{count} reports in 100 ms");
    }
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

/// The number of waiting reports is bounded: further changes are reported only at once.
#[test]
fn changes_of_many_groups_wait_in_bounded_memory() {
    const GROUPS: u8 = 240;
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let mut sockets = Vec::new();
    for third in 0..2 {
        for part in 0..GROUPS / 20 {
            let socket = share(&mut rig, Ipv4Addr::UNSPECIFIED);
            for last in part * 20..(part + 1) * 20 {
                let group = Ipv4Addr::new(239, 1, third, last).into();
                socket.join(&host, &mut rig.world.cx, group, None).expect("a device");
            }
            sockets.push(socket);
        }
    }
    let at_once = reports(&mut rig).len();
    assert_eq!(at_once, 2 * usize::from(GROUPS), "every change is reported at once");
    rig.pass(Duration::from_secs(2));
    assert_eq!(reports(&mut rig).len(), 256, "the reports that have waited");
    for socket in sockets {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

#[test]
fn a_ttl_of_zero_keeps_a_multicast_on_this_host() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let (member, socket) = (share(&mut rig, GROUP), bind(&mut rig, HOST_IP, 54));
    member.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    rig.settle();
    rig.take_ip();
    set(&mut rig, &socket, SocketOption::MulticastTtl, 0);
    send(&mut rig, &socket, &SendMessage::to(b"here", at(GROUP, 53))).expect("a device");
    assert_eq!(rig.take_ip(), []);
    assert_eq!(recv(&mut rig, &member).expect("a copy").0, b"here");
    for socket in [member, socket] {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

/// RFC 1112 §4: every host is a member of the group of all hosts.
#[test]
fn the_group_of_all_hosts_needs_no_join() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = share(&mut rig, Ipv4Addr::UNSPECIFIED);
    give_to(&mut rig, ALL_HOSTS, b"all");
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"all");
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn ip_multicast_if_selects_the_device_and_the_source() {
    let mut rig = Rig::new(RigConfig { second_link: true, ..RigConfig::default() });
    let host = rig.host();
    let other = rig.other.clone().expect("a second link");
    let socket = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 54);
    let second = Ipv4Addr::new(10, 0, 1, 1);
    let select = |rig: &mut Rig, bytes: &[u8]| {
        let value = OptionValue::Bytes(bytes.to_vec());
        let option = SocketOption::MulticastInterface;
        socket.set_option(&host, &mut rig.world.cx, option, &value)
    };
    assert_eq!(select(&mut rig, &[10, 9, 9, 9]), Err(Errno::EADDRNOTAVAIL));
    let index = 9_u32.to_ne_bytes();
    assert_eq!(select(&mut rig, &[[0; 8].as_slice(), &index].concat()), Err(Errno::ENODEV));
    assert_eq!(select(&mut rig, &[10, 0]), Err(Errno::EINVAL));
    select(&mut rig, &second.octets()).expect("an address of the second link");
    send(&mut rig, &socket, &SendMessage::to(b"x", at(GROUP, 53))).expect("a device");
    assert_eq!(rig.take_ip(), [], "nothing leaves by the first link");
    let frame = other.take().expect("a frame").bytes;
    assert_eq!(frame[26..30], second.octets());
    let read = socket.option(&host, &mut rig.world.cx, SocketOption::MulticastInterface);
    assert_eq!(read, Ok(OptionValue::Bytes(second.octets().to_vec())));
    // The index alone: the address follows from the device.
    select(&mut rig, &[[0; 8].as_slice(), &1_u32.to_ne_bytes()].concat()).expect("a device");
    send(&mut rig, &socket, &SendMessage::to(b"x", at(GROUP, 53))).expect("a device");
    let seen = rig.take_ip();
    assert!(
        matches!(&seen[..], [Seen::Udp(ip, _, _)] if ip.src == IpAddr::V4(HOST_IP)),
        "{seen:?}"
    );
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn a_router_of_igmpv2_gets_its_reports() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = share(&mut rig, GROUP);
    socket.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    rig.pass(Duration::from_secs(2));
    rig.take_ip();
    query(&mut rig, 1, ALL_HOSTS, Ipv4Addr::UNSPECIFIED, 8);
    rig.pass(Duration::from_millis(2010));
    let seen = reports(&mut rig);
    let [(to, report)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((*to, report[0], &report[4..]), (IpAddr::V4(GROUP), 0x16, &GROUP.octets()[..]));
    socket.leave(&host, &mut rig.world.cx, GROUP.into(), None).expect("a member");
    let seen = reports(&mut rig);
    let [(to, leave)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((*to, leave[0]), (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 2)), 0x17));
    // The router has been replaced by one of version 3.
    rig.pass(Duration::from_secs(300));
    rig.take_ip();
    socket.join(&host, &mut rig.world.cx, GROUP.into(), None).expect("a device");
    assert_eq!(reports(&mut rig)[0], v3_report(4, GROUP));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}
