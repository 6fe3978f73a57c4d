use std::net::Ipv4Addr;

use super::*;
use crate::{
    cx::{Cx, Memory},
    device::{Wire, WireConfig},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    socket::{ConnectOptions, ListenOptions},
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
        let mut cx = Cx::replay(&memory, 1);
        cx.now = pkt::Instant::from_secs(1000);
        let (device, _) = Wire::pair(&WireConfig::default()).unwrap();
        let addresses = [OURS, SECOND].map(|ip| format!("{ip}/24").parse().unwrap()).to_vec();
        let devices = vec![DeviceConfig { device, addresses }];
        let config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
        Self { host: Host::new(&memory, config).unwrap(), cx }
    }

    fn listen(&mut self, ip: Ipv4Addr, port: u16) -> Result<Arc<Listener>, Errno> {
        Listener::listen(&self.host, &mut self.cx, (ip, port).into(), 8)
    }

    /// Returns the address of the listener that a SYN to this address and port reaches.
    fn found(&self, ip: Ipv4Addr, port: u16) -> Option<IpAddr> {
        let reader = self.cx.reader();
        let rcu = reader.pin();
        let listener = self.host.demux().listener(CoreId(0), (ip, port).into(), 7, &rcu);
        listener.map(|listener| listener.local().ip())
    }

    fn may_connect_from(&self, port: u16) -> bool {
        self.host.demux().may_connect_from(port, &self.cx.reader().pin())
    }
}

#[test]
fn a_syn_reaches_the_listener_on_its_address_or_on_the_unspecified_address() {
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
fn a_second_listener_on_an_overlapping_address_and_port_is_refused() {
    let mut bench = Bench::new();
    let first = bench.listen(OURS, 80).unwrap();
    assert_eq!(bench.listen(OURS, 80).unwrap_err(), Errno::EADDRINUSE);
    assert_eq!(
        bench.listen(ANY, 80).unwrap_err(),
        Errno::EADDRINUSE,
        "a second listener was accepted on an address that includes the first one"
    );
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
    assert_eq!(ports.len(), 200, "two listeners have the same port");
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
) -> Result<Arc<Connection>, Errno> {
    connect_with(bench, remote, &bound(local, BindFlags::default()))
}

fn bound(local: Option<(Ipv4Addr, u16)>, flags: BindFlags) -> ConnectOptions {
    let local = local.map(Into::into);
    let options = ConnectOptions { local, ..ConnectOptions::default() };
    options.reuse_address(flags.reuse_address).reuse_port(flags.reuse_port)
}

fn connect_with(
    bench: &mut Bench,
    remote: u16,
    options: &ConnectOptions,
) -> Result<Arc<Connection>, Errno> {
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), remote);
    Connection::connect_with(&bench.host, &mut bench.cx, to, options)
}

const ADDRESS: BindFlags = BindFlags { reuse_address: true, reuse_port: false, family: Family::V4 };
const PORT: BindFlags = BindFlags { reuse_address: false, reuse_port: true, family: Family::V4 };

#[test]
fn a_bound_port_belongs_to_one_connection() {
    let mut bench = Bench::new();
    let local = Some((OURS, 4000));
    let first = connect(&mut bench, local, 80).unwrap();
    assert_eq!(connect(&mut bench, local, 81).unwrap_err(), Errno::EADDRINUSE);
    let shared = bound(local, ADDRESS);
    assert_eq!(connect_with(&mut bench, 81, &shared).unwrap_err(), Errno::EADDRINUSE);
    let second = connect(&mut bench, Some((SECOND, 4000)), 80).unwrap();
    for socket in [first, second] {
        socket.abort(&bench.host, &mut bench.cx);
    }
    assert_eq!(bench.host.established_len(), 0);
    connect(&mut bench, local, 80)
        .expect("the port is free again")
        .abort(&bench.host, &mut bench.cx);
}

#[test]
fn connections_that_allow_reuse_share_a_port_to_different_peers_only() {
    for flags in [ADDRESS, PORT] {
        let mut bench = Bench::new();
        let options = bound(Some((OURS, 4000)), flags);
        let first = connect_with(&mut bench, 80, &options).unwrap();
        assert_eq!(connect_with(&mut bench, 80, &options).unwrap_err(), Errno::EADDRNOTAVAIL);
        let second = connect_with(&mut bench, 81, &options).unwrap();
        assert_eq!(bench.host.established_len(), 2);
        for socket in [first, second] {
            socket.abort(&bench.host, &mut bench.cx);
        }
    }
}

/// The table of inet_bind_conflict: flags of the first socket, flags of the second, and whether the
/// second may listen on the port of the first if that is a connection, and if it is a listener.
#[test]
fn listening_on_an_owned_port_succeeds_as_in_linux() {
    let none = BindFlags::default();
    let both = BindFlags { reuse_address: true, reuse_port: true, family: Family::V4 };
    for (first, second, beside_connection, beside_listener) in [
        (none, none, false, false),
        (none, ADDRESS, false, false),
        (ADDRESS, none, false, false),
        (ADDRESS, ADDRESS, true, false),
        (PORT, ADDRESS, false, false),
        (PORT, PORT, true, true),
        (both, ADDRESS, true, false),
        (both, PORT, true, true),
    ] {
        let mut bench = Bench::new();
        let options = |flags: BindFlags| {
            ListenOptions::default().reuse_address(flags.reuse_address).reuse_port(flags.reuse_port)
        };
        let listen = |bench: &mut Bench, ip: Ipv4Addr, port: u16, flags| {
            let local = SocketAddr::from((ip, port));
            Listener::listen_with(&bench.host, &mut bench.cx, local, &options(flags))
        };
        let connection = connect_with(&mut bench, 80, &bound(Some((OURS, 4000)), first))
            .expect("the port is free");
        let listener = listen(&mut bench, OURS, 5000, first).expect("the port is free");
        for ip in [OURS, ANY] {
            for (port, allowed) in [(4000, beside_connection), (5000, beside_listener)] {
                let result = listen(&mut bench, ip, port, second);
                assert_eq!(result.is_ok(), allowed, "{first:?} {second:?} {ip}:{port}");
                if let Ok(listener) = result {
                    listener.close(&bench.host, &mut bench.cx);
                }
            }
        }
        let elsewhere =
            listen(&mut bench, SECOND, 5000, second).expect("the port is free on another address");
        for listener in [listener, elsewhere] {
            listener.close(&bench.host, &mut bench.cx);
        }
        connection.abort(&bench.host, &mut bench.cx);
    }
}

#[test]
fn the_flow_hash_spreads_connections_over_the_listeners_of_a_group() {
    let mut bench = Bench::new();
    let options = ListenOptions::default().reuse_port(true);
    let members: Vec<_> = (0..4)
        .map(|_| {
            let local = SocketAddr::from((OURS, 80));
            Listener::listen_with(&bench.host, &mut bench.cx, local, &options).unwrap()
        })
        .collect();
    let pick = |bench: &Bench, hash| {
        let reader = bench.cx.reader();
        let rcu = reader.pin();
        let demux = bench.host.demux();
        Arc::clone(demux.listener(CoreId(0), (OURS, 80).into(), hash, &rcu).unwrap())
    };
    let mut rng = tcp::Rng::new(1);
    let mut counts = [0; 4];
    for _ in 0..4000 {
        let hash = rng.next_u32();
        let chosen = pick(&bench, hash);
        assert!(Arc::ptr_eq(&chosen, &pick(&bench, hash)), "a flow selects two listeners");
        counts[members.iter().position(|member| Arc::ptr_eq(member, &chosen)).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    // A member that prefers the core of the flow gets all of that core's flows.
    let mine = Listener::listen_with(
        &bench.host,
        &mut bench.cx,
        (OURS, 80).into(),
        &options.incoming_core(0),
    )
    .unwrap();
    assert!(Arc::ptr_eq(&pick(&bench, 1 << 31), &mine));
    for listener in members.into_iter().chain([mine]) {
        listener.close(&bench.host, &mut bench.cx);
    }
    assert_eq!(bench.found(OURS, 80), None);
}

#[test]
fn connections_choose_different_ports_without_a_listener() {
    let mut bench = Bench::new();
    let sockets: Vec<_> = (0..100).map(|_| connect(&mut bench, None, 80).unwrap()).collect();
    let mut ports: Vec<_> = sockets.iter().map(|socket| socket.local().port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 100);
    for socket in &sockets {
        assert!(bench.may_connect_from(socket.local().port()));
    }
    let listener = bench.listen(OURS, 0).unwrap();
    assert!(!bench.may_connect_from(listener.local().port()));
    listener.close(&bench.host, &mut bench.cx);
    assert!(bench.may_connect_from(listener.local().port()));
    for socket in sockets {
        socket.abort(&bench.host, &mut bench.cx);
    }
}

#[test]
fn a_connect_fails_when_all_ports_of_the_range_are_used_to_the_peer() {
    let memory = Memory::new(4 << 20);
    let mut cx = Cx::replay(&memory, 1);
    let mut sysctls = crate::sysctl::Sysctls::default();
    sysctls.set("net.ipv4.ip_local_port_range", "5000 5003").unwrap();
    let (device, _) = Wire::pair(&WireConfig::default()).unwrap();
    let addresses = vec![format!("{OURS}/24").parse().unwrap()];
    let devices = vec![DeviceConfig { device, addresses }];
    let config = HostConfig { devices, cores: 1, sysctls, ..HostConfig::replay(0) };
    let mut bench = Bench { host: Host::new(&memory, config).unwrap(), cx: Cx::replay(&memory, 2) };
    cx.now = pkt::Instant::from_secs(1000);
    let sockets: Vec<_> = (0..4).map(|_| connect(&mut bench, None, 80).unwrap()).collect();
    assert_eq!(connect(&mut bench, None, 80).unwrap_err(), Errno::EADDRNOTAVAIL);
    let other = connect(&mut bench, None, 81).expect("the ports are free for another peer");
    for socket in sockets.into_iter().chain([other]) {
        socket.abort(&bench.host, &mut bench.cx);
    }
}

#[test]
fn the_hash_depends_on_each_part_of_the_four_tuple_and_on_the_secret() {
    let rcu = Domain::new();
    let demux = Demux::new(&rcu, HashKey([1; 16]));
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
    hashes.push(Demux::new(&rcu, HashKey([2; 16])).hash(&tuples[0]));
    let count = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}
