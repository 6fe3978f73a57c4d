//! Local ports of connections (RFC 6056): a server that sees the ports of its own connections must
//! not infer from them how many connections the host opens to others (CVE-2022-32296,
//! CVE-2022-1012).

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use sim::{Rig, RigConfig, frame::Seen, rig::PEER_IP};
use stack::socket::Connection;

/// Local ports in the range of `ip_local_port_range`.
const PORTS: u32 = 60_999 - 32_768 + 1;

/// Returns the local port of a connection to port 80 of the peer, which ends before it is answered.
fn observe(rig: &mut Rig) -> u32 {
    let host = rig.host();
    let remote = SocketAddr::new(PEER_IP.into(), 80);
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a free port");
    rig.settle();
    let seen = rig.take_ip();
    let port = match &seen[..] {
        [Seen::Tcp(_, syn, _)] => syn.src_port,
        other => panic!("one SYN: {other:?}"),
    };
    socket.abort(&host, &mut rig.world.cx);
    rig.settle();
    rig.take_ip();
    u32::from(port)
}

/// Returns the distance from each port to the next one in the range.
fn steps(ports: &[u32]) -> Vec<u32> {
    ports.windows(2).map(|pair| (pair[1] + PORTS - pair[0]) % PORTS).collect()
}

#[test]
fn an_observed_port_does_not_tell_the_next_one() {
    let mut rig = Rig::new(RigConfig::default());
    let ports: Vec<u32> = (0..64).map(|_| observe(&mut rig)).collect();
    let steps = steps(&ports);
    let kinds: BTreeSet<u32> = steps.iter().copied().collect();
    assert!(kinds.len() > 3, "a guess of the step is right too often: {steps:?}");
    rig.finish();
}

#[test]
fn ports_of_one_destination_begin_elsewhere_after_a_while() {
    let mut rig = Rig::new(RigConfig::default());
    let before: Vec<u32> = (0..8).map(|_| observe(&mut rig)).collect();
    rig.pass(Duration::from_secs(21));
    let after = observe(&mut rig);
    let way = (after + PORTS - before[7]) % PORTS;
    assert!(way > 1000, "the sequence continued: {before:?}, then {after}");
    rig.finish();
}
