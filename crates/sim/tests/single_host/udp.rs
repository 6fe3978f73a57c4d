//! UDP: datagrams in and out, the choice of the socket, limits and options.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno, Readiness,
    base::counters::Counter,
    header::{
        icmp::{IcmpMessage, Unreachable},
        ip::protocol,
    },
    socket::{
        DatagramSocket,
        datagram::{ReceiveMessage, Received, SendControl, SendMessage},
        options::{OptionValue, SocketOption, SocketSettings},
    },
    sysctl::Sysctls,
};

pub(crate) fn at(ip: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

pub(crate) fn bind(rig: &mut Rig, ip: Ipv4Addr, port: u16) -> Arc<DatagramSocket> {
    try_bind(rig, ip, port, &SocketSettings::default()).expect("a free port")
}

fn try_bind(
    rig: &mut Rig,
    ip: Ipv4Addr,
    port: u16,
    settings: &SocketSettings,
) -> Result<Arc<DatagramSocket>, Errno> {
    let host = rig.host();
    DatagramSocket::bind(&host, &mut rig.world.cx, at(ip, port), settings)
}

/// Delivers a datagram of the peer's port 1000.
pub(crate) fn give(rig: &mut Rig, port: u16, payload: &[u8]) {
    give_from(rig, 1000, port, payload);
}

fn give_from(rig: &mut Rig, from: u16, port: u16, payload: &[u8]) {
    let datagram = frame::udp(PEER_IP, HOST_IP, (from, port), payload);
    rig.give_from(PEER_IP, protocol::UDP, &datagram);
}

pub(crate) fn recv(rig: &mut Rig, socket: &DatagramSocket) -> Result<(Vec<u8>, Received), Errno> {
    let host = rig.host();
    let mut buf = vec![0; 65_536];
    let received = socket.recv(&host, &mut rig.world.cx, &mut buf, false)?;
    buf.truncate(received.len);
    Ok((buf, received))
}

pub(crate) fn send(
    rig: &mut Rig,
    socket: &DatagramSocket,
    message: &SendMessage<'_>,
) -> Result<(), Errno> {
    let host = rig.host();
    let sent = socket.send(&host, &mut rig.world.cx, message);
    rig.settle();
    sent
}

pub(crate) fn set(rig: &mut Rig, socket: &DatagramSocket, option: SocketOption, value: i32) {
    let host = rig.host();
    let value = OptionValue::Int(value);
    socket.set_option(&host, &mut rig.world.cx, option, &value).expect("a valid option");
}

pub(crate) fn close(rig: &mut Rig, socket: Arc<DatagramSocket>) {
    let host = rig.host();
    socket.close(&host, &mut rig.world.cx);
}

/// Returns ports and payloads of the datagrams that the host has sent.
pub(crate) fn sent(rig: &mut Rig) -> Vec<((u16, u16), Vec<u8>)> {
    let seen = rig.take_ip();
    let datagrams = seen.into_iter().map(|seen| match seen {
        Seen::Udp(_, udp, payload) => ((udp.src_port, udp.dst_port), payload),
        other => panic!("a datagram: {other:?}"),
    });
    datagrams.collect()
}

#[test]
fn a_datagram_arrives_with_its_addresses_and_marks() {
    for paged in [false, true] {
        let mut rig = Rig::new(RigConfig::default());
        rig.link.set_paged(paged);
        let socket = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 53);
        assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
        for len in [0, 1, 100, 183, 1000, 1472] {
            let payload: Vec<u8> = (0..=255).cycle().take(len).collect();
            give(&mut rig, 53, &payload);
            assert!(socket.readiness().contains(Readiness::READ));
            let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
            assert_eq!(bytes, payload);
            assert_eq!(received.source, at(PEER_IP, 1000));
            assert_eq!(received.destination, IpAddr::V4(HOST_IP));
            assert_eq!((received.ttl, received.tos, received.device.0), (64, 0, 1));
            assert_eq!((received.datagram_len, received.segment), (len, None));
            assert!(!socket.readiness().contains(Readiness::READ));
        }
        assert_eq!(rig.count(Counter::UdpInDatagrams), 6);
        close(&mut rig, socket);
        rig.finish();
    }
}

#[test]
fn a_short_buffer_truncates_and_a_peek_leaves_the_datagram() {
    let mut rig = Rig::new(RigConfig::default());
    let (host, socket) = (rig.host(), bind(&mut rig, HOST_IP, 53));
    give(&mut rig, 53, b"0123456789");
    let mut buf = [0; 4];
    for peek in [true, true, false] {
        let received = socket.recv(&host, &mut rig.world.cx, &mut buf, peek).expect("a datagram");
        assert_eq!((&buf, received.len, received.datagram_len), (b"0123", 4, 10));
    }
    assert_eq!(rig.count(Counter::UdpInDatagrams), 1, "a peek does not count");
    let again = socket.recv(&host, &mut rig.world.cx, &mut buf, false);
    assert_eq!(again, Err(Errno::EAGAIN), "the rest is lost");
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn malformed_datagrams_are_dropped_and_counted() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = bind(&mut rig, HOST_IP, 53);
    let good = frame::udp(PEER_IP, HOST_IP, (1000, 53), b"payload");
    let mut give = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut datagram = good.clone();
        change(&mut datagram);
        rig.give_from(PEER_IP, protocol::UDP, &datagram);
    };
    give(&|datagram| datagram.truncate(7));
    give(&|datagram| datagram[5] = 7);
    give(&|datagram| datagram[5] = 16);
    give(&|datagram| datagram[10] ^= 1);
    assert_eq!(rig.drops(DropReason::PacketTooShort), 1);
    assert_eq!(rig.drops(DropReason::UdpHeader), 2);
    assert_eq!(rig.drops(DropReason::UdpCsum), 1);
    assert_eq!(rig.count(Counter::UdpInErrors), 4);
    assert_eq!(rig.count(Counter::UdpInCsumErrors), 1);
    assert_eq!(rig.take(), [], "no error is sent");
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_datagram_without_a_checksum_and_one_with_trailing_bytes_are_accepted() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = bind(&mut rig, HOST_IP, 53);
    let mut datagram = frame::udp(PEER_IP, HOST_IP, (1000, 53), b"payload");
    datagram[6..8].fill(0);
    datagram[12] = b'X';
    rig.give_from(PEER_IP, protocol::UDP, &datagram);
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"paylXad");
    // RFC 768: the length of the header counts, not that of the IP packet.
    let mut datagram = frame::udp(PEER_IP, HOST_IP, (1000, 53), b"payload");
    datagram.extend(b"behind");
    rig.give_from(PEER_IP, protocol::UDP, &datagram);
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"payload");
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_closed_port_is_reported_with_a_quote_within_the_limit() {
    let mut rig = Rig::new(RigConfig::default());
    let datagram = frame::udp(PEER_IP, HOST_IP, (1000, 9), &[7; 700]);
    let packet = Ipv4::new(PEER_IP, HOST_IP, protocol::UDP).with(&datagram);
    rig.give(&packet);
    let seen = rig.take_ip();
    let [Seen::Icmp(ip, message, quoted)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(ip.dst, IpAddr::V4(PEER_IP));
    assert_eq!(*message, IcmpMessage::Unreachable(Unreachable::Port));
    assert_eq!(quoted[..], packet[..548]);
    assert_eq!(rig.count(Counter::UdpNoPorts), 1);
    assert_eq!(rig.drops(DropReason::UdpNoSocket), 1);
    for _ in 0..200 {
        rig.give(&packet);
    }
    let reports = rig.take_ip().len();
    assert!(reports < 100, "{reports} of 200: a flood is not reflected");
    rig.finish();
}

#[test]
fn a_sent_datagram_has_its_checksum_and_the_fields_of_its_socket() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 53);
    set(&mut rig, &socket, SocketOption::TypeOfService, 0xb9);
    set(&mut rig, &socket, SocketOption::TimeToLive, 9);
    for len in [0, 1, 2, 500, 1472] {
        let payload = vec![0xa5; len];
        let to = SendMessage::to(&payload, at(PEER_IP, 1000));
        send(&mut rig, &socket, &to).expect("room");
        let seen = rig.take_ip();
        let [Seen::Udp(ip, udp, sent)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((udp.src_port, udp.dst_port, sent), (53, 1000, &payload));
        assert_ne!(udp.checksum, 0);
        assert_eq!((ip.src, ip.traffic_class, ip.hop_limit), (IpAddr::V4(HOST_IP), 0xb9, 9));
        assert!(ip.fragment.dont);
    }
    set(&mut rig, &socket, SocketOption::NoCheck, 1);
    let control = SendControl { tos: Some(3), ttl: Some(1), ..SendControl::default() };
    let message = SendMessage { control, ..SendMessage::to(b"x", at(PEER_IP, 1000)) };
    send(&mut rig, &socket, &message).expect("room");
    let seen = rig.take_ip();
    let [Seen::Udp(ip, udp, _)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((udp.checksum, ip.traffic_class, ip.hop_limit), (0, 3, 1));
    assert_eq!(rig.count(Counter::UdpOutDatagrams), 6);
    close(&mut rig, socket);
    rig.finish();
}

/// A sum of zero would mean that there is no checksum (RFC 768).
#[test]
fn a_checksum_of_zero_is_sent_as_all_ones() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = bind(&mut rig, HOST_IP, 53);
    let first = SendMessage::to(&[0, 0], at(PEER_IP, 1000));
    send(&mut rig, &socket, &first).expect("room");
    let checksum = match &rig.take_ip()[..] {
        [Seen::Udp(_, udp, _)] => udp.checksum,
        other => panic!("{other:?}"),
    };
    // These two bytes take the rest of the sum.
    let payload = checksum.to_be_bytes();
    send(&mut rig, &socket, &SendMessage::to(&payload, at(PEER_IP, 1000))).expect("room");
    match &rig.take_ip()[..] {
        [Seen::Udp(_, udp, _)] => assert_eq!(udp.checksum, 0xffff),
        other => panic!("{other:?}"),
    }
    close(&mut rig, socket);
    rig.finish();
}

/// Linux: `__ip_append_data`, `ip_sk_ignore_df`.
#[test]
fn a_datagram_above_the_mtu_is_sent_in_fragments_unless_df_is_required() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = bind(&mut rig, HOST_IP, 53);
    let payload: Vec<u8> = (0..4000_u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
    send(&mut rig, &socket, &SendMessage::to(&payload, at(PEER_IP, 9))).expect("a route");
    let mut datagram = Vec::new();
    let seen = rig.take_ip();
    for seen in &seen {
        let Seen::Fragment(ip, bytes) = seen else { panic!("not a fragment: {seen:?}") };
        assert_eq!((ip.protocol, usize::from(ip.fragment.offset)), (protocol::UDP, datagram.len()));
        datagram.extend_from_slice(bytes);
        assert_eq!(ip.fragment.more, datagram.len() < 4008);
    }
    assert_eq!(seen.len(), 3);
    assert_eq!(datagram, frame::udp(HOST_IP, PEER_IP, (53, 9), &payload));
    assert_eq!(rig.count(Counter::UdpOutDatagrams), 1);
    assert_eq!((rig.count(Counter::IpFragOKs), rig.count(Counter::IpFragCreates)), (1, 3));
    assert_eq!((rig.count(Counter::IpOutRequests), rig.count(Counter::IpOutTransmits)), (1, 3));
    // 2 to 4: IP_PMTUDISC_DO, PROBE and INTERFACE.
    for (mode, expected) in [
        (2, Err(Errno::EMSGSIZE)),
        (3, Err(Errno::EMSGSIZE)),
        (4, Err(Errno::EMSGSIZE)),
        (0, Ok(())),
        (5, Ok(())),
    ] {
        let mode = OptionValue::Int(mode);
        let set = socket.set_option(&host, &mut rig.world.cx, SocketOption::MtuDiscover, &mode);
        set.expect("a mode");
        let sent = send(&mut rig, &socket, &SendMessage::to(&payload, at(PEER_IP, 9)));
        assert_eq!(sent, expected);
    }
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn sends_that_cannot_work_fail_with_linuxs_errors() {
    let mut rig = Rig::new(RigConfig { default_route: false, ..RigConfig::default() });
    let socket = bind(&mut rig, HOST_IP, 53);
    let mut fails = |message: SendMessage<'_>| send(&mut rig, &socket, &message).unwrap_err();
    assert_eq!(fails(SendMessage::new(b"x")), Errno::EDESTADDRREQ);
    assert_eq!(fails(SendMessage::to(b"x", at(PEER_IP, 0))), Errno::EINVAL);
    let far = at(Ipv4Addr::new(203, 0, 113, 1), 9);
    assert_eq!(fails(SendMessage::to(b"x", far)), Errno::ENETUNREACH);
    assert_eq!(fails(SendMessage::to(&vec![0; 65_508], at(PEER_IP, 9))), Errno::EMSGSIZE);
    let control = SendControl { segment: Some(1473), ..SendControl::default() };
    let long = SendMessage { control, ..SendMessage::to(&[0; 2000], at(PEER_IP, 9)) };
    assert_eq!(fails(long), Errno::EMSGSIZE, "a segment is never fragmented");
    let everyone = at(Ipv4Addr::new(10, 0, 0, 255), 9);
    assert_eq!(fails(SendMessage::to(b"x", everyone)), Errno::EACCES);
    let v6 = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 9));
    assert_eq!(fails(SendMessage::to(b"x", v6)), Errno::EAFNOSUPPORT);
    let control = SendControl { segment: Some(1), ..SendControl::default() };
    let many = SendMessage { control, ..SendMessage::to(&[0; 129], at(PEER_IP, 9)) };
    assert_eq!(fails(many), Errno::EINVAL);
    let control = SendControl { source: Some(PEER_IP.into()), ..SendControl::default() };
    let foreign = SendMessage { control, ..SendMessage::to(b"x", at(PEER_IP, 9)) };
    assert_eq!(fails(foreign), Errno::EADDRNOTAVAIL);
    assert_eq!(rig.take_ip(), []);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_connected_socket_takes_datagrams_of_its_peer_alone() {
    for early in ["0", "1"] {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.udp_early_demux", early).expect("a setting");
        let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
        let host = rig.host();
        let open = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 53);
        let settings = SocketSettings::default().reuse_address(true);
        assert_eq!(try_bind(&mut rig, HOST_IP, 53, &settings).unwrap_err(), Errno::EADDRINUSE);
        let socket = bind(&mut rig, Ipv4Addr::UNSPECIFIED, 54);
        socket.connect(&host, &mut rig.world.cx, at(PEER_IP, 1000)).expect("a route");
        assert_eq!(socket.local(&host, &mut rig.world.cx), at(HOST_IP, 54));
        assert_eq!(socket.remote(&host, &mut rig.world.cx), Some(at(PEER_IP, 1000)));
        for number in 0..3 {
            give_from(&mut rig, 1000, 54, &[number]);
            assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, [number]);
        }
        let lookups = rig.count(Counter::RxRouteLookups);
        give_from(&mut rig, 1000, 54, b"known");
        let more = u64::from(early == "0");
        assert_eq!(rig.count(Counter::RxRouteLookups), lookups + more, "the route is cached");
        assert!(recv(&mut rig, &socket).is_ok());
        // Another port of the peer: there is no other socket on the port.
        give_from(&mut rig, 1001, 54, b"other");
        assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
        assert_eq!(rig.count(Counter::UdpNoPorts), 1);
        rig.take_ip();
        send(&mut rig, &socket, &SendMessage::new(b"to the peer")).expect("a peer");
        assert_eq!(sent(&mut rig), [((54, 1000), b"to the peer".to_vec())]);
        // A route change is noticed.
        host.invalidate_routes();
        give_from(&mut rig, 1000, 54, b"again");
        assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"again");
        for socket in [open, socket] {
            close(&mut rig, socket);
        }
        drop(host);
        rig.finish();
    }
}

#[test]
fn a_second_connect_changes_the_peer_and_a_close_frees_the_port() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = bind(&mut rig, HOST_IP, 54);
    for port in [1000, 1001] {
        socket.connect(&host, &mut rig.world.cx, at(PEER_IP, port)).expect("a route");
    }
    give_from(&mut rig, 1000, 54, b"the former peer");
    give_from(&mut rig, 1001, 54, b"the peer");
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"the peer");
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    close(&mut rig, socket);
    let again = bind(&mut rig, HOST_IP, 54);
    give_from(&mut rig, 1001, 54, b"later");
    assert_eq!(recv(&mut rig, &again).expect("a datagram").0, b"later");
    close(&mut rig, again);
    drop(host);
    rig.finish();
}

#[test]
fn the_address_is_preferred_and_a_shared_port_goes_to_the_newest_socket() {
    let mut rig = Rig::new(RigConfig::default());
    let settings = SocketSettings::default().reuse_address(true);
    let any = try_bind(&mut rig, Ipv4Addr::UNSPECIFIED, 53, &settings).expect("free");
    let first = try_bind(&mut rig, HOST_IP, 53, &settings).expect("shared");
    let second = try_bind(&mut rig, HOST_IP, 53, &settings).expect("shared");
    give(&mut rig, 53, b"1");
    assert_eq!(recv(&mut rig, &second).expect("the newest").0, b"1");
    close(&mut rig, second);
    give(&mut rig, 53, b"2");
    assert_eq!(recv(&mut rig, &first).expect("the address").0, b"2");
    close(&mut rig, first);
    give(&mut rig, 53, b"3");
    assert_eq!(recv(&mut rig, &any).expect("any address").0, b"3");
    close(&mut rig, any);
    rig.finish();
}

#[test]
fn a_group_of_sockets_shares_the_flows_of_a_port() {
    let mut rig = Rig::new(RigConfig::default());
    let settings = SocketSettings::default().reuse_port(true);
    let group: Vec<_> =
        (0..4).map(|_| try_bind(&mut rig, HOST_IP, 53, &settings).expect("shared")).collect();
    assert!(try_bind(&mut rig, HOST_IP, 53, &SocketSettings::default()).is_err());
    for from in 2000..2064 {
        give_from(&mut rig, from, 53, b"a");
        give_from(&mut rig, from, 53, b"b");
    }
    let mut counts = Vec::new();
    for socket in &group {
        let mut ports = Vec::new();
        while let Ok((_, received)) = recv(&mut rig, socket) {
            ports.push(received.source.port());
        }
        assert!(ports.chunks(2).all(|pair| pair[0] == pair[1]), "a flow stays: {ports:?}");
        counts.push(ports.len());
    }
    assert_eq!(counts.iter().sum::<usize>(), 128);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    for socket in group {
        close(&mut rig, socket);
    }
    rig.finish();
}

#[test]
fn a_full_receive_buffer_drops_and_counts() {
    let mut rig = Rig::new(RigConfig::default());
    let (host, socket) = (rig.host(), bind(&mut rig, HOST_IP, 53));
    set(&mut rig, &socket, SocketOption::ReceiveBuffer, 10_000);
    for number in 0..100 {
        give(&mut rig, 53, &[number; 500]);
    }
    let dropped = rig.count(Counter::UdpRcvbufErrors);
    assert!((50..100).contains(&dropped), "{dropped}");
    assert_eq!(rig.count(Counter::UdpInErrors), dropped);
    assert_eq!(rig.drops(DropReason::SocketRcvBuff), dropped);
    assert_eq!(u64::from(socket.drops(&host, &mut rig.world.cx)), dropped);
    assert!(host.udp_memory_pages() > 0);
    let mut received = 0;
    while let Ok((bytes, _)) = recv(&mut rig, &socket) {
        assert_eq!(bytes, [received; 500], "the oldest are kept, in order");
        received += 1;
    }
    assert_eq!(u64::from(received) + dropped, 100);
    assert_eq!(host.udp_memory_pages(), 0);
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn all_sockets_together_keep_within_udp_mem() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.udp_mem", "4 6 8").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    let host = rig.host();
    let sockets = [bind(&mut rig, HOST_IP, 53), bind(&mut rig, HOST_IP, 54)];
    for _ in 0..50 {
        give(&mut rig, 53, &[1; 1000]);
        give(&mut rig, 54, &[1; 1000]);
    }
    assert!(rig.count(Counter::UdpMemErrors) > 50);
    assert!((1..=8).contains(&host.udp_memory_pages()), "{}", host.udp_memory_pages());
    for socket in sockets {
        close(&mut rig, socket);
    }
    assert_eq!(host.udp_memory_pages(), 0);
    drop(host);
    rig.finish();
}

#[test]
fn a_send_without_memory_fails_and_is_counted() {
    let mut rig = Rig::new(RigConfig { memory_bytes: 1 << 20, ..RigConfig::default() });
    let socket = bind(&mut rig, HOST_IP, 53);
    let held: Vec<_> = std::iter::from_fn(|| rig.world.cx.pool.alloc()).collect();
    let message = SendMessage::to(b"x", at(PEER_IP, 9));
    assert_eq!(send(&mut rig, &socket, &message), Err(Errno::ENOBUFS));
    assert_eq!(rig.count(Counter::UdpSndbufErrors), 1);
    drop(held);
    assert_eq!(send(&mut rig, &socket, &message), Ok(()));
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_batch_moves_many_datagrams_in_one_call() {
    let mut rig = Rig::new(RigConfig::default());
    let (host, socket) = (rig.host(), bind(&mut rig, HOST_IP, 53));
    let payloads: Vec<_> = (0..8_u8).map(|number| vec![number; 10]).collect();
    let messages: Vec<_> = payloads
        .iter()
        .zip([1000, 1000, 1001, 1000, 1002, 1002, 1002, 1000])
        .map(|(payload, port)| SendMessage::to(payload, at(PEER_IP, port)))
        .collect();
    let count = socket.send_batch(&host, &mut rig.world.cx, &messages);
    assert_eq!(count, Ok(8));
    rig.settle();
    let seen = sent(&mut rig);
    assert!(seen.iter().map(|(_, payload)| payload).eq(&payloads), "{seen:?}");
    // The third message fails: the others before it are sent.
    let too_long = vec![0; 65_508];
    let messages = [
        SendMessage::to(b"1", at(PEER_IP, 1)),
        SendMessage::to(b"2", at(PEER_IP, 2)),
        SendMessage::to(&too_long, at(PEER_IP, 3)),
        SendMessage::to(b"4", at(PEER_IP, 4)),
    ];
    assert_eq!(socket.send_batch(&host, &mut rig.world.cx, &messages), Ok(2));
    assert_eq!(sent(&mut rig).len(), 2);
    for number in 0..5 {
        give(&mut rig, 53, &[number; 20]);
    }
    let mut bufs = [[0; 20]; 8];
    let mut messages: Vec<_> = bufs.iter_mut().map(|buf| ReceiveMessage::new(buf)).collect();
    assert_eq!(socket.recv_batch(&host, &mut rig.world.cx, &mut messages), Ok(5));
    assert!(messages[..5].iter().all(|message| message.received.is_some_and(|it| it.len == 20)));
    assert!(messages[5..].iter().all(|message| message.received.is_none()));
    let none = socket.recv_batch(&host, &mut rig.world.cx, &mut messages);
    assert_eq!(none, Err(Errno::EAGAIN));
    drop(messages);
    assert!((0..5).zip(&bufs).all(|(number, buf)| *buf == [number; 20]));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn udp_segment_cuts_one_send_into_datagrams() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = bind(&mut rig, HOST_IP, 53);
    set(&mut rig, &socket, SocketOption::Segment, 1000);
    let payload: Vec<u8> = (0..=255).cycle().take(3500).collect();
    send(&mut rig, &socket, &SendMessage::to(&payload, at(PEER_IP, 9))).expect("room");
    let datagrams = sent(&mut rig);
    let lengths: Vec<_> = datagrams.iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!(lengths, [1000, 1000, 1000, 500]);
    assert_eq!(datagrams.into_iter().flat_map(|(_, part)| part).collect::<Vec<_>>(), payload);
    assert_eq!(rig.count(Counter::UdpOutDatagrams), 4);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn udp_gro_joins_waiting_datagrams_of_one_size() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = bind(&mut rig, HOST_IP, 53);
    set(&mut rig, &socket, SocketOption::ReceiveOffload, 1);
    for number in 0..5_u8 {
        give(&mut rig, 53, &vec![number; if number == 4 { 300 } else { 1000 }]);
    }
    give_from(&mut rig, 1001, 53, b"another sender");
    let (bytes, received) = recv(&mut rig, &socket).expect("joined datagrams");
    assert_eq!((bytes.len(), received.segment), (4300, Some(1000)));
    assert!((0..5).all(|number| bytes[usize::from(number) * 1000] == number));
    let (bytes, received) = recv(&mut rig, &socket).expect("a datagram");
    assert_eq!((&bytes[..], received.segment), (&b"another sender"[..], None));
    assert_eq!(rig.count(Counter::UdpInDatagrams), 6);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn a_datagram_that_arrives_during_a_call_is_delivered_by_its_owner() {
    let mut rig = Rig::new(RigConfig::default());
    let (host, socket) = (rig.host(), bind(&mut rig, HOST_IP, 53));
    socket.hold(&host, &mut rig.world.cx, |_| {});
    let datagram = frame::udp(PEER_IP, HOST_IP, (1000, 53), b"late");
    let packet = rig.framed(&Ipv4::new(PEER_IP, HOST_IP, protocol::UDP).with(&datagram));
    rig.queue(&packet);
    socket.hold(&host, &mut rig.world.cx, |cx| {
        let _ = host.poll(cx);
        assert!(!socket.readiness().contains(Readiness::READ), "it waits in the backlog");
    });
    assert!(socket.readiness().contains(Readiness::READ));
    assert_eq!(recv(&mut rig, &socket).expect("a datagram").0, b"late");
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn chosen_ports_are_in_the_range_and_differ() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.ip_local_port_range", "40000 40003").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    let host = rig.host();
    let sockets: Vec<_> = (0..4).map(|_| bind(&mut rig, HOST_IP, 0)).collect();
    let mut ports: Vec<_> =
        sockets.iter().map(|socket| socket.local(&host, &mut rig.world.cx).port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [40_000, 40_001, 40_002, 40_003]);
    let none = try_bind(&mut rig, HOST_IP, 0, &SocketSettings::default());
    assert_eq!(none.unwrap_err(), Errno::EADDRINUSE);
    let foreign = try_bind(&mut rig, PEER_IP, 53, &SocketSettings::default());
    assert_eq!(foreign.unwrap_err(), Errno::EADDRNOTAVAIL);
    for socket in sockets {
        close(&mut rig, socket);
    }
    drop(host);
    rig.finish();
}

#[test]
fn a_host_that_shuts_down_ends_its_sockets() {
    let mut rig = Rig::new(RigConfig::default());
    let (host, socket) = (rig.host(), bind(&mut rig, HOST_IP, 53));
    give(&mut rig, 53, b"waits");
    host.shut_down(&mut rig.world.cx);
    assert!(socket.readiness().contains(Readiness::READ | Readiness::HUP));
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::ENETDOWN);
    let message = SendMessage::to(b"x", at(PEER_IP, 9));
    assert_eq!(send(&mut rig, &socket, &message), Err(Errno::ENETDOWN));
    assert_eq!(rig.drops(DropReason::SocketClosed), 1);
    drop((socket, host));
    rig.finish();
}

/// Polls of many frames: flows of two connected sockets and of an open one, some damaged, some with
/// another TTL or to a closed port.
#[test]
fn a_datagram_that_repeats_the_last_header_reaches_the_socket_of_its_flow() {
    let run = |early: &str| {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.udp_early_demux", early).expect("a setting");
        let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
        let host = rig.host();
        let sockets = [53, 54, 55].map(|port| bind(&mut rig, HOST_IP, port));
        for (socket, port) in sockets.iter().zip([1000, 1001]) {
            socket.connect(&host, &mut rig.world.cx, at(PEER_IP, port)).expect("a route");
        }
        let mut rng = tcp::Rng::new(7);
        let (mut expected, mut received) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for number in 0..200_u32 {
            // Frames of one poll.
            let mut flow = 0;
            for part in 0..1 + rng.below(20) {
                if rng.below(3) == 0 {
                    flow = rng.below(4) as usize;
                }
                let ports = [(1000, 53), (1001, 54), (1002, 55), (1003, 99)][flow];
                let payload = [number.to_be_bytes(), part.to_be_bytes()].concat();
                let mut datagram = frame::udp(PEER_IP, HOST_IP, ports, &payload);
                let is_damaged = rng.below(8) == 0;
                datagram[9] ^= u8::from(is_damaged);
                let ttl = if rng.below(4) == 0 { 9 } else { 64 };
                let carrier = Ipv4 { ttl, ..Ipv4::new(PEER_IP, HOST_IP, protocol::UDP) };
                let bytes = rig.framed(&carrier.with(&datagram));
                rig.queue(&bytes);
                if !is_damaged && flow < 3 {
                    expected[flow].push((payload, ttl));
                }
            }
            rig.settle();
            for (socket, received) in sockets.iter().zip(&mut received) {
                while let Ok((bytes, of)) = recv(&mut rig, socket) {
                    received.push((bytes, of.ttl));
                }
            }
        }
        assert_eq!(received, expected);
        let counters = [
            Counter::UdpInDatagrams,
            Counter::UdpInCsumErrors,
            Counter::UdpNoPorts,
            Counter::IpInReceives,
            Counter::IpInDelivers,
        ];
        let counts = counters.map(|counter| rig.count(counter));
        for socket in sockets {
            close(&mut rig, socket);
        }
        drop(host);
        rig.finish();
        counts
    };
    assert_eq!(run("1"), run("0"), "the same counters with and without early demux");
}
