//! The limit of connections per source address of a listener.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{Peer, Rig, RigConfig, rig::HOST_IP};
use stack::{
    base::counters::Counter,
    socket::{
        ListenOptions, Listener,
        options::{OptionValue, SocketOption},
    },
    sysctl::Sysctls,
};
use tcp::{Counter as TcpCounter, Flags, State};

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);
/// The address that reaches its limit.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

fn rig(settings: &[(&str, &str)]) -> Rig {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        sysctls.set(name, value).expect("a setting");
    }
    Rig::new(RigConfig { sysctls, cores: 2, ..RigConfig::default() })
}

/// Listens on port 80, for `max_per_source` connections of an address.
fn listen(rig: &mut Rig, options: &ListenOptions) -> Arc<Listener> {
    let (host, local) = (rig.host(), SocketAddr::new(HOST_IP.into(), 80));
    Listener::listen_with(&host, &mut rig.world.cx, local, options).expect("a free port")
}

fn limited(max_per_source: u32) -> ListenOptions {
    ListenOptions { max_per_source, ..ListenOptions::default() }
}

/// Shuts the host down, and with it every connection.
fn finish(mut rig: Rig, listener: Arc<Listener>) {
    rig.host().shut_down(&mut rig.world.cx);
    assert_eq!(listener.sources(), 0, "every place was returned");
    drop(listener);
    rig.finish();
}

/// Sends a SYN; returns whether it is answered by a SYN-ACK. No other answer is allowed.
fn syn(rig: &mut Rig, peer: &mut Peer) -> bool {
    rig.take();
    peer.send_next(rig, Flags::SYN, b"");
    let answer = peer.hear(&rig.take());
    assert!(answer.is_empty() || answer == [SYN_ACK], "{answer:?}");
    !answer.is_empty()
}

/// Performs a whole handshake.
fn open(rig: &mut Rig, source: Ipv4Addr, port: u16) -> Peer {
    let mut peer = Peer::at(source, 80, port);
    assert!(syn(rig, &mut peer), "the SYN of {source} is answered");
    peer.send_next(rig, Flags::ACK, b"");
    peer
}

fn held(listener: &Listener) -> u32 {
    listener.connections_of(IpAddr::V4(ATTACKER))
}

#[test]
fn an_address_at_its_limit_is_dropped_silently_while_others_connect() {
    // Both cores receive segments.
    let mut rig = rig(&[("net.quietline.dev.default.rps_cpus", "3")]);
    let listener = listen(&mut rig, &limited(4));
    let mut answered: Vec<_> = (2000..2100)
        .map(|port| Peer::at(ATTACKER, 80, port))
        .filter_map(|mut peer| syn(&mut rig, &mut peer).then_some(peer))
        .collect();
    assert_eq!((answered.len(), held(&listener), listener.requests()), (4, 4, 4));
    assert_eq!(rig.drops(DropReason::SourceLimit), 96);
    assert_eq!(rig.count(Counter::ListenSourceLimit), 96);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtListenDrops), 96);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtSyncookiesSent), 0);
    // Two of its handshakes are completed: the connection keeps the count of its request.
    for peer in &mut answered[..2] {
        peer.send_next(&mut rig, Flags::ACK, b"");
    }
    assert_eq!((held(&listener), listener.requests()), (4, 2));
    for host in 1..=20 {
        open(&mut rig, Ipv4Addr::new(198, 51, 100, host), 3000);
    }
    assert_eq!(listener.sources(), 21);
    let sockets: Vec<_> = (0..22).map(|_| listener.accept().expect("a connection")).collect();
    let cores: BTreeSet<_> = sockets.iter().map(|socket| socket.incoming_core().0).collect();
    assert_eq!(cores.len(), 2, "both cores made connections");
    // The other two requests are dropped after 63 s: they are no longer counted.
    rig.pass(Duration::from_secs(64));
    assert_eq!(held(&listener), 2);
    let host = rig.host();
    for socket in sockets {
        socket.abort(&host, &mut rig.world.cx);
        socket.close(&host, &mut rig.world.cx);
    }
    assert_eq!((held(&listener), listener.sources()), (0, 0));
    assert!(syn(&mut rig, &mut Peer::at(ATTACKER, 80, 2100)));
    drop(host);
    finish(rig, listener);
}

#[test]
fn an_address_at_its_limit_gets_no_cookie_and_its_cookies_are_refused() {
    let mut rig = rig(&[("net.ipv4.tcp_syncookies", "2")]);
    let listener = listen(&mut rig, &limited(1));
    let (mut first, mut second) = (Peer::at(ATTACKER, 80, 2000), Peer::at(ATTACKER, 80, 2001));
    // A cookie leaves no request and is not counted.
    assert!(syn(&mut rig, &mut first) && syn(&mut rig, &mut second));
    assert_eq!((held(&listener), rig.count_tcp(TcpCounter::TcpExtSyncookiesSent)), (0, 2));
    first.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(held(&listener), 1);
    rig.take();
    let again = second.header(Flags::ACK);
    second.send(&mut rig, &again, b"");
    assert_eq!(second.hear(&rig.take()), [], "no reset: a repetition may find a free place");
    assert_eq!((held(&listener), rig.drops(DropReason::SourceLimit)), (1, 1));
    assert!(!syn(&mut rig, &mut Peer::at(ATTACKER, 80, 2002)));
    let counts = [TcpCounter::TcpExtSyncookiesSent, TcpCounter::TcpExtTCPReqQFullDoCookies];
    assert_eq!(counts.map(|counter| rig.count_tcp(counter)), [2, 2], "no third cookie");
    assert_eq!(rig.count(Counter::ListenSourceLimit), 2);
    // The first connection ends by a reset of its peer.
    let socket = listener.accept().expect("the first");
    let mut reset = first.header(Flags::RST);
    reset.ack = first.rcv_nxt;
    first.send(&mut rig, &reset, b"");
    assert_eq!(
        (socket.with_tcb(&rig.host(), &mut rig.world.cx, |tcb, _| tcb.state())),
        State::Close
    );
    assert_eq!(held(&listener), 0, "an application may still hold the socket");
    second.send(&mut rig, &again, b"");
    assert_eq!(held(&listener), 1);
    drop((socket, listener.accept().expect("the second")));
    finish(rig, listener);
}

#[test]
fn a_time_wait_socket_is_not_counted_and_not_reopened_at_the_limit() {
    let mut rig = rig(&[]);
    let listener = listen(&mut rig, &limited(1));
    let mut peer = open(&mut rig, ATTACKER, 2000);
    let socket = listener.accept().expect("a connection");
    rig.take();
    socket.close(&rig.host(), &mut rig.world.cx);
    assert_eq!(peer.hear(&rig.take()), [FIN_ACK]);
    assert_eq!(held(&listener), 1, "in FIN-WAIT-1");
    peer.send_next(&mut rig, FIN_ACK, b"");
    assert_eq!((held(&listener), rig.host().established_len()), (0, 1));
    let _other = open(&mut rig, ATTACKER, 2001);
    // A SYN that would reopen the connection exceeds the limit, and TIME-WAIT continues.
    peer.snd_nxt += 1000;
    assert!(!syn(&mut rig, &mut peer));
    assert_eq!((rig.drops(DropReason::SourceLimit), rig.host().established_len()), (1, 2));
    drop(listener.accept().expect("the other"));
    drop(socket);
    finish(rig, listener);
}

#[test]
fn a_fast_open_connection_is_counted() {
    let mut rig = rig(&[("net.ipv4.tcp_fastopen", "514")]);
    let listener = listen(&mut rig, &ListenOptions { fast_open: 8, ..limited(1) });
    let early = |rig: &mut Rig, port| {
        let mut peer = Peer::at(ATTACKER, 80, port);
        rig.take();
        peer.send_next(rig, Flags::SYN, b"data");
        (peer.hear(&rig.take()), peer)
    };
    let (answer, mut peer) = early(&mut rig, 2000);
    assert_eq!((answer, held(&listener)), (vec![SYN_ACK], 1));
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPFastOpenPassive), 1);
    assert_eq!(early(&mut rig, 2001).0, []);
    assert_eq!(rig.drops(DropReason::SourceLimit), 1);
    peer.send_next(&mut rig, Flags::RST, b"");
    assert_eq!(held(&listener), 0);
    assert_eq!(early(&mut rig, 2002).0, [SYN_ACK]);
    finish(rig, listener);
}

#[test]
fn the_limit_is_a_socket_option_of_a_listener() {
    let mut rig = rig(&[]);
    let listener = listen(&mut rig, &ListenOptions::default());
    let set = |rig: &Rig, max: i32| {
        listener.set_option(&rig.host(), SocketOption::MaxPerSource, &OptionValue::Int(max))
    };
    open(&mut rig, ATTACKER, 2000);
    assert_eq!(held(&listener), 0, "without a limit nothing is counted");
    assert!(set(&rig, -1).is_err());
    set(&rig, 1).expect("allowed");
    let got = listener.option(&rig.host(), &rig.world.cx, SocketOption::MaxPerSource);
    assert_eq!(got, Ok(OptionValue::Int(1)));
    // The limit applies to connections that begin under it.
    open(&mut rig, ATTACKER, 2001);
    assert!(!syn(&mut rig, &mut Peer::at(ATTACKER, 80, 2002)));
    set(&rig, 0).expect("allowed");
    open(&mut rig, ATTACKER, 2003);
    assert_eq!(held(&listener), 1);
    finish(rig, listener);
}
