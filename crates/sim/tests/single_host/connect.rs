//! Active opens in rare cases, and the IP fields that an application may set.

use std::{io::IoSlice, net::SocketAddr, time::Duration};

use sim::{
    Peer, Rig, RigConfig, World,
    frame::Seen,
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno, Readiness,
    device::{Impairment, WireConfig},
    socket::{
        Connection, ShutdownHow,
        options::{OptionValue, SocketOption},
    },
};
use tcp::{Flags, Options};

/// RFC 9293 §3.5, figure 8: both ends connect, without a listener.
#[test]
fn two_hosts_that_connect_to_each_other_have_one_connection() {
    let delay = Impairment { delay: Duration::from_millis(5), ..Impairment::default() };
    let config = WireConfig { forward: delay, backward: delay, ..WireConfig::default() };
    let mut world = World::pair(1, &config).expect("a wire");
    let ends = [0, 1].map(|host| SocketAddr::new(world.version().address(host), 7000));
    let hosts = world.hosts.clone();
    let open = |world: &mut World, own: usize| {
        Connection::connect(&hosts[own], &mut world.cx, Some(ends[own]), ends[1 - own])
            .expect("a route")
    };
    let (left, right) = (open(&mut world, 0), open(&mut world, 1));
    world.pass(Duration::from_secs(1));
    for socket in [&left, &right] {
        assert!(socket.readiness().contains(Readiness::WRITE));
    }
    let sent = left.send(&hosts[0], &mut world.cx, &[IoSlice::new(b"here")]);
    assert_eq!(sent, Ok(4));
    world.pass(Duration::from_secs(1));
    let mut buf = [0; 8];
    assert_eq!(right.recv(&hosts[1], &mut world.cx, &mut buf, false), Ok(4));
    assert_eq!(hosts[0].established_len() + hosts[1].established_len(), 2);
    left.close(&hosts[0], &mut world.cx);
    right.close(&hosts[1], &mut world.cx);
    drop((left, right));
    world.pass(Duration::from_secs(200));
    assert_eq!(world.packets_alive(), 0);
}

/// A socket whose two ends are the same performs a simultaneous open with itself, as on Linux.
#[test]
fn a_socket_may_connect_to_itself() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let end: SocketAddr = "127.0.0.1:7000".parse().expect("an address");
    let socket = Connection::connect(&host, &mut rig.world.cx, Some(end), end).expect("a route");
    rig.pass(Duration::from_secs(1));
    assert!(socket.readiness().contains(Readiness::WRITE));
    assert_eq!((socket.local(), socket.remote()), (end, end));
    let sent = socket.send(&host, &mut rig.world.cx, &[IoSlice::new(b"echo")]);
    assert_eq!(sent, Ok(4));
    rig.pass(Duration::from_millis(100));
    let mut buf = [0; 8];
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(4));
    socket.shutdown(&host, &mut rig.world.cx, ShutdownHow::Write).expect("connected");
    rig.pass(Duration::from_millis(100));
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(0), "its own FIN");
    socket.close(&host, &mut rig.world.cx);
    drop((socket, host));
    rig.finish();
}

/// Returns hop limit and traffic class of the newest segment on `peer`'s connection.
fn header_of_newest(rig: &mut Rig, peer: &mut Peer) -> (u8, u8) {
    let seen = rig.take();
    peer.hear(&seen);
    let newest = seen.iter().rev().find_map(|seen| match seen {
        Seen::Tcp(ip, ..) => Some((ip.hop_limit, ip.traffic_class)),
        _ => None,
    });
    newest.expect("a segment")
}

/// RFC 9293 §3.9.2 (MUST-48, MUST-49): the application sets the differentiated services field and
/// the TTL.
#[test]
fn an_application_chooses_type_of_service_and_ttl() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    let bytes = [IoSlice::new(b"data")];
    socket.send(&host, &mut rig.world.cx, &bytes).expect("room");
    assert_eq!(header_of_newest(&mut rig, &mut peer), (64, 0));
    peer.send_next(&mut rig, Flags::ACK, b"");
    let mut set = |option, value: i32| {
        socket.set_option(&host, &mut rig.world.cx, option, &OptionValue::Int(value))
    };
    assert_eq!(set(SocketOption::TypeOfService, 0xb9), Ok(()));
    assert_eq!(set(SocketOption::TimeToLive, 0), Err(Errno::EINVAL));
    assert_eq!(set(SocketOption::TimeToLive, 5), Ok(()));
    socket.send(&host, &mut rig.world.cx, &bytes).expect("room");
    assert_eq!(header_of_newest(&mut rig, &mut peer), (5, 0xb8));
    let tos = socket.option(&host, &mut rig.world.cx, SocketOption::TypeOfService);
    assert_eq!(tos, Ok(OptionValue::Int(0xb8)), "the ECN bits belong to TCP");
    listener.close(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
}

/// RFC 9293 §3.9.1.1 (MUST-43 to MUST-46): the application or IP chooses the local address, and it
/// does not change.
#[test]
fn the_source_address_is_chosen_once_and_must_be_ours() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let remote = SocketAddr::new(PEER_IP.into(), 80);
    let foreign = Some("10.0.0.77:0".parse().expect("an address"));
    let refused = Connection::connect(&host, &mut rig.world.cx, foreign, remote).map(drop);
    assert_eq!(refused, Err(Errno::EADDRNOTAVAIL));
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    assert_eq!(socket.local().ip(), HOST_IP);
    let own = SocketAddr::new(HOST_IP.into(), 5555);
    let bound = Connection::connect(&host, &mut rig.world.cx, Some(own), remote).expect("a route");
    assert_eq!(bound.local(), own);
    let group = SocketAddr::new([224, 0, 0, 1].into(), 80);
    let refused = Connection::connect(&host, &mut rig.world.cx, None, group).map(drop);
    assert!(refused.is_err(), "MUST-57: not the address of a host");
    drop((socket, bound, host));
    rig.finish();
}
