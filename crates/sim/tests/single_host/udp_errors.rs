//! ICMP errors about datagrams of the host: which socket gets them, and which are refused.

use std::net::{IpAddr, Ipv4Addr};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4},
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
        datagram::{ErrorOrigin, SendMessage},
        options::SocketOption,
    },
    sysctl::Sysctls,
};

use crate::udp::{at, bind, close, recv, send, set};

const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: IcmpMessage = IcmpMessage::Unreachable(Unreachable::Port);
const HOST: IcmpMessage = IcmpMessage::Unreachable(Unreachable::Host);

/// Delivers an error of a router about a datagram of `len` payload bytes to `to`.
fn give_error(rig: &mut Rig, message: &IcmpMessage, ports: (u16, u16), len: usize) {
    let datagram = frame::udp(HOST_IP, PEER_IP, ports, &vec![0; len]);
    let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol::UDP).with(&datagram);
    let message = frame::icmp(message, &quoted[..28]);
    rig.give(&Ipv4::new(ROUTER, HOST_IP, protocol::ICMP).with(&message));
}

fn connected(rig: &mut Rig) -> std::sync::Arc<DatagramSocket> {
    let host = rig.host();
    let socket = bind(rig, HOST_IP, 54);
    socket.connect(&host, &mut rig.world.cx, at(PEER_IP, 1000)).expect("a route");
    socket
}

#[test]
fn a_closed_port_refuses_the_next_call_of_a_connected_socket() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = connected(&mut rig);
    give_error(&mut rig, &PORT, (54, 1000), 5);
    assert!(socket.readiness().contains(Readiness::READ | Readiness::ERROR));
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::ECONNREFUSED);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN, "reported once");
    assert!(!socket.readiness().intersects(Readiness::READ | Readiness::ERROR));
    give_error(&mut rig, &PORT, (54, 1000), 5);
    let next = send(&mut rig, &socket, &SendMessage::new(b"x"));
    assert_eq!(next, Err(Errno::ECONNREFUSED));
    assert_eq!(send(&mut rig, &socket, &SendMessage::new(b"x")), Ok(()));
    give_error(&mut rig, &PORT, (54, 1000), 5);
    let host = rig.host();
    let taken = socket.take_error(&host, &mut rig.world.cx);
    assert_eq!(taken, Some(Errno::ECONNREFUSED));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn temporary_errors_and_unconnected_sockets_have_no_error() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = connected(&mut rig);
    let open = bind(&mut rig, HOST_IP, 55);
    let exceeded = IcmpMessage::TimeExceeded { reassembly: false };
    give_error(&mut rig, &HOST, (54, 1000), 5);
    give_error(&mut rig, &exceeded, (54, 1000), 5);
    give_error(&mut rig, &PORT, (55, 1000), 5);
    for socket in [&socket, &open] {
        assert_eq!(recv(&mut rig, socket).unwrap_err(), Errno::EAGAIN);
    }
    for socket in [socket, open] {
        close(&mut rig, socket);
    }
    rig.finish();
}

#[test]
fn ip_recverr_queues_every_report() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = bind(&mut rig, HOST_IP, 55);
    set(&mut rig, &socket, SocketOption::ReceiveError, 1);
    give_error(&mut rig, &HOST, (55, 1000), 5);
    give_error(&mut rig, &PORT, (55, 1001), 5);
    assert!(socket.readiness().contains(Readiness::ERROR));
    let cx = &mut rig.world.cx;
    let reports = [(Errno::EHOSTUNREACH, 1, 1000), (Errno::ECONNREFUSED, 3, 1001)];
    for (errno, code, port) in reports {
        let report = socket.take_report(&host, cx).expect("a report");
        assert_eq!(report.errno, errno);
        assert_eq!(report.origin, ErrorOrigin::Icmp { kind: 3, code });
        assert_eq!(report.offender, Some(IpAddr::V4(ROUTER)));
        assert_eq!(report.destination, at(PEER_IP, port));
    }
    assert_eq!(socket.take_report(&host, cx), None);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::ECONNREFUSED);
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn a_smaller_path_mtu_is_learned_and_reported() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let socket = connected(&mut rig);
    send(&mut rig, &socket, &SendMessage::new(&[0; 1472])).expect("it fits");
    give_error(&mut rig, &IcmpMessage::PacketTooBig { mtu: 1400 }, (54, 1000), 1472);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EMSGSIZE);
    let mtu = socket.option(&host, &mut rig.world.cx, SocketOption::PathMtu);
    assert_eq!(mtu.expect("connected").as_int(), Some(1400));
    rig.take_ip();
    let large = send(&mut rig, &socket, &SendMessage::new(&[0; 1373]));
    assert_eq!((large, rig.take_ip().len()), (Ok(()), 2), "two fragments");
    assert_eq!(send(&mut rig, &socket, &SendMessage::new(&[0; 1372])), Ok(()));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}

#[test]
fn ip_no_pmtu_disc_selects_the_path_mtu_that_a_report_sets() {
    for (mode, learned) in [("0", 1400), ("1", 552), ("2", 1500), ("3", 1500)] {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.ip_no_pmtu_disc", mode).expect("a setting");
        let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
        let host = rig.host();
        let socket = connected(&mut rig);
        send(&mut rig, &socket, &SendMessage::new(&[0; 1472])).expect("it fits");
        give_error(&mut rig, &IcmpMessage::PacketTooBig { mtu: 1400 }, (54, 1000), 1472);
        let error = if learned == 1500 { Errno::EAGAIN } else { Errno::EMSGSIZE };
        assert_eq!(recv(&mut rig, &socket).unwrap_err(), error, "mode {mode}");
        let mtu = socket.option(&host, &mut rig.world.cx, SocketOption::PathMtu);
        assert_eq!(mtu.expect("connected").as_int(), Some(learned), "mode {mode}");
        close(&mut rig, socket);
        drop(host);
        rig.finish();
    }
}

#[test]
fn errors_that_quote_no_datagram_of_a_socket_are_refused() {
    let mut rig = Rig::new(RigConfig::default());
    let socket = connected(&mut rig);
    let errors = rig.count(Counter::IcmpInErrors);
    // Another peer, another port, and an MTU that the quoted datagram does not exceed.
    give_error(&mut rig, &PORT, (54, 1001), 5);
    give_error(&mut rig, &PORT, (53, 1000), 5);
    give_error(&mut rig, &IcmpMessage::PacketTooBig { mtu: 600 }, (54, 1000), 500);
    // An address that the host does not have.
    let datagram = frame::udp(PEER_IP, HOST_IP, (54, 1000), b"");
    let quoted = Ipv4::new(PEER_IP, HOST_IP, protocol::UDP).with(&datagram);
    let message = frame::icmp(&PORT, &quoted);
    rig.give(&Ipv4::new(ROUTER, HOST_IP, protocol::ICMP).with(&message));
    assert_eq!(rig.count(Counter::IcmpInErrors), errors + 4);
    assert_eq!(rig.drops(DropReason::IcmpNoSocket), 4);
    assert_eq!(recv(&mut rig, &socket).unwrap_err(), Errno::EAGAIN);
    close(&mut rig, socket);
    rig.finish();
}

#[test]
fn an_unresolved_neighbor_is_reported_to_the_error_queue() {
    let mut rig = Rig::new(RigConfig::default());
    rig.answers_arp = false;
    let host = rig.host();
    let socket = bind(&mut rig, HOST_IP, 55);
    set(&mut rig, &socket, SocketOption::ReceiveError, 1);
    send(&mut rig, &socket, &SendMessage::to(b"x", at(PEER_IP, 9))).expect("queued");
    rig.pass(std::time::Duration::from_secs(10));
    let report = socket.take_report(&host, &mut rig.world.cx).expect("a report");
    assert_eq!((report.errno, report.origin), (Errno::EHOSTUNREACH, ErrorOrigin::Local));
    close(&mut rig, socket);
    drop(host);
    rig.finish();
}
