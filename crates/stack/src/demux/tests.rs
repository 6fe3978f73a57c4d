use std::net::Ipv4Addr;

use super::*;
use crate::{
    config::{DeviceConfig, HostConfig},
    cx::{Cx, Memory},
    device::{Wire, WireConfig},
    host::Host,
};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

struct Bench {
    cx: Cx,
    host: Arc<Host>,
}

impl Bench {
    fn new() -> Self {
        let memory = Memory::new(4 << 20);
        let mut cx = Cx::new(&memory, 1);
        cx.now = pkt::Instant::from_secs(1000);
        let (device, _) = Wire::pair(&WireConfig::default()).unwrap();
        let addresses = [OURS, SECOND].map(|ip| format!("{ip}/24").parse().unwrap()).to_vec();
        let devices = vec![DeviceConfig { device, addresses }];
        let config = HostConfig { devices, cores: 1, ..HostConfig::default() };
        Self { host: Host::new(&memory, config).unwrap(), cx }
    }

    fn listen(&mut self, ip: Ipv4Addr, port: u16) -> Result<Arc<Listener>, Errno> {
        Listener::listen(&self.host, &mut self.cx, (ip, port).into(), 8)
    }

    /// Where a SYN to this address and port ends.
    fn found(&self, ip: Ipv4Addr, port: u16) -> Option<IpAddr> {
        let reader = self.cx.reader();
        let rcu = reader.pin();
        let listener = self.host.demux().listener((ip, port).into(), &rcu);
        listener.map(|listener| listener.local().ip())
    }
}

#[test]
fn the_more_specific_listener_wins() {
    let mut bench = Bench::new();
    assert_eq!(bench.found(OURS, 80), None);
    let specific = bench.listen(OURS, 80).unwrap();
    assert_eq!(bench.found(OURS, 80), Some(OURS.into()));
    assert_eq!(bench.found(SECOND, 80), None);
    assert_eq!(bench.found(OURS, 81), None);
    let second = bench.listen(SECOND, 80).unwrap();
    assert_eq!(bench.found(SECOND, 80), Some(SECOND.into()));
    let any = bench.listen(ANY, 81).unwrap();
    assert_eq!(bench.found(SECOND, 81), Some(ANY.into()));
    for listener in [specific, second, any] {
        listener.close(&bench.host, &mut bench.cx);
    }
    assert_eq!(bench.found(OURS, 80), None);
    assert_eq!(bench.found(SECOND, 81), None);
}

#[test]
fn an_address_and_port_has_one_listener() {
    let mut bench = Bench::new();
    let first = bench.listen(OURS, 80).unwrap();
    assert_eq!(bench.listen(OURS, 80).unwrap_err(), Errno::EADDRINUSE);
    assert_eq!(bench.listen(ANY, 80).unwrap_err(), Errno::EADDRINUSE, "any includes ours");
    let any = bench.listen(ANY, 81).unwrap();
    assert_eq!(bench.listen(OURS, 81).unwrap_err(), Errno::EADDRINUSE);
    let foreign = Ipv4Addr::new(10, 0, 0, 2);
    assert_eq!(bench.listen(foreign, 82).unwrap_err(), Errno::EADDRNOTAVAIL);
    first.close(&bench.host, &mut bench.cx);
    any.close(&bench.host, &mut bench.cx);
    let again = bench.listen(ANY, 80).expect("the port may be used again");
    again.close(&bench.host, &mut bench.cx);
}

#[test]
fn port_zero_takes_a_free_port_of_the_range() {
    let mut bench = Bench::new();
    let listeners: Vec<_> = (0..200).map(|_| bench.listen(OURS, 0).unwrap()).collect();
    let mut ports: Vec<_> = listeners.iter().map(|listener| listener.local().port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 200, "all different");
    let range = bench.host.sysctls().ip_local_port_range.clone();
    assert!(ports.iter().all(|port| range.contains(port)));
    for listener in listeners {
        listener.close(&bench.host, &mut bench.cx);
    }
}

fn connect(
    bench: &mut Bench,
    local: Option<(Ipv4Addr, u16)>,
    remote: u16,
) -> Result<Arc<TcpSocket>, Errno> {
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), remote);
    TcpSocket::connect(&bench.host, &mut bench.cx, local.map(Into::into), to)
}

#[test]
fn connections_share_a_port_to_different_peers_only() {
    let mut bench = Bench::new();
    let bound = Some((OURS, 4000));
    let first = connect(&mut bench, bound, 80).unwrap();
    assert_eq!(connect(&mut bench, bound, 80).unwrap_err(), Errno::EADDRNOTAVAIL);
    let second = connect(&mut bench, bound, 81).unwrap();
    let third = connect(&mut bench, Some((SECOND, 4000)), 80).unwrap();
    assert_eq!(bench.host.established_len(), 3);
    for socket in [first, second, third] {
        socket.abort(&bench.host, &mut bench.cx);
    }
    assert_eq!(bench.host.established_len(), 0);
    connect(&mut bench, bound, 80).expect("free again").abort(&bench.host, &mut bench.cx);
}

#[test]
fn chosen_ports_are_those_nobody_listens_on() {
    let mut bench = Bench::new();
    let sockets: Vec<_> = (0..100).map(|_| connect(&mut bench, None, 80).unwrap()).collect();
    let mut ports: Vec<_> = sockets.iter().map(|socket| socket.local().port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 100);
    for socket in &sockets {
        assert!(bench.host.demux().may_connect_from(socket.local().port()));
    }
    let listener = bench.listen(OURS, 0).unwrap();
    assert!(!bench.host.demux().may_connect_from(listener.local().port()));
    listener.close(&bench.host, &mut bench.cx);
    assert!(bench.host.demux().may_connect_from(listener.local().port()));
    for socket in sockets {
        socket.abort(&bench.host, &mut bench.cx);
    }
}

#[test]
fn ports_of_the_range_run_out() {
    let memory = Memory::new(4 << 20);
    let mut cx = Cx::new(&memory, 1);
    let mut sysctls = crate::sysctl::Sysctls::default();
    sysctls.set("net.ipv4.ip_local_port_range", "5000 5003").unwrap();
    let (device, _) = Wire::pair(&WireConfig::default()).unwrap();
    let addresses = vec![format!("{OURS}/24").parse().unwrap()];
    let devices = vec![DeviceConfig { device, addresses }];
    let config = HostConfig { devices, cores: 1, sysctls, ..HostConfig::default() };
    let mut bench = Bench { host: Host::new(&memory, config).unwrap(), cx: Cx::new(&memory, 2) };
    cx.now = pkt::Instant::from_secs(1000);
    let sockets: Vec<_> = (0..4).map(|_| connect(&mut bench, None, 80).unwrap()).collect();
    assert_eq!(connect(&mut bench, None, 80).unwrap_err(), Errno::EADDRNOTAVAIL);
    let other = connect(&mut bench, None, 81).expect("to another peer they are free");
    for socket in sockets.into_iter().chain([other]) {
        socket.abort(&bench.host, &mut bench.cx);
    }
}

#[test]
fn the_hash_depends_on_each_part_and_on_the_secret() {
    let rcu = Domain::new();
    let demux = Demux::new(&rcu, (1, 2));
    let at = |tail, port| SocketAddr::new(Ipv4Addr::new(10, 0, 0, tail).into(), port);
    let tuples = [
        FourTuple::new(at(1, 80), at(2, 2000)),
        FourTuple::new(at(1, 81), at(2, 2000)),
        FourTuple::new(at(1, 80), at(2, 2001)),
        FourTuple::new(at(3, 80), at(2, 2000)),
        FourTuple::new(at(1, 80), at(3, 2000)),
        FourTuple::new(at(2, 2000), at(1, 80)),
    ];
    let mut hashes = tuples.map(|tuple| demux.hash(&tuple)).to_vec();
    hashes.push(Demux::new(&rcu, (1, 3)).hash(&tuples[0]));
    let count = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}
