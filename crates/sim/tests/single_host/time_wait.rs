//! TIME-WAIT: the answers of a TIME-WAIT socket, and when it ends.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pkt::DropReason;
use sim::{
    Peer, Rig, RigConfig,
    frame::Seen,
    rig::{HOST_IP, PEER_IP},
};
use stack::{
    Errno, Readiness,
    socket::{ConnectOptions, Connection, Listener, ShutdownHow},
    sysctl::Sysctls,
};
use tcp::{Counter as TcpCounter, Flags, Options, SegmentHeader};

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

fn timestamps(value: u32) -> Options {
    Options { timestamps: Some((value, 0)), ..Options::default() }
}

/// Opens a connection that the host closes first and the peer second.
fn closed_by_host(rig: &mut Rig, options: Options) -> (Arc<Listener>, Peer) {
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(rig, 80, 2000, options);
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    socket.shutdown(&host, &mut rig.world.cx, ShutdownHow::Write).expect("connected");
    rig.settle();
    assert_eq!(peer.hear(&rig.take()), [Flags::FIN | Flags::ACK]);
    peer.send_next(rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::ACK]);
    socket.close(&host, &mut rig.world.cx);
    assert_eq!(rig.host().established_len(), 1, "the TIME-WAIT socket");
    (listener, peer)
}

fn finish(mut rig: Rig, listener: Arc<Listener>) {
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn time_wait_ends_after_a_minute() {
    let mut rig = Rig::new(RigConfig::default());
    let (listener, _) = closed_by_host(&mut rig, Options::default());
    rig.pass(Duration::from_secs(59));
    assert_eq!(rig.host().established_len(), 1);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.host().established_len(), 0);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTW), 1);
    finish(rig, listener);
}

#[test]
fn a_repeated_fin_is_acknowledged_and_restarts_the_minute() {
    let mut rig = Rig::new(RigConfig::default());
    let (listener, mut peer) = closed_by_host(&mut rig, Options::default());
    rig.pass(Duration::from_secs(50));
    peer.snd_nxt -= 1;
    peer.send_next(&mut rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::ACK]);
    assert_eq!(peer.snd_una, peer.snd_nxt);
    rig.pass(Duration::from_secs(50));
    assert_eq!(rig.host().established_len(), 1);
    rig.pass(Duration::from_secs(11));
    assert_eq!(rig.host().established_len(), 0);
    finish(rig, listener);
}

#[test]
fn a_new_syn_with_later_numbers_opens_a_new_connection() {
    for (syn_options, peer_options) in
        [(Options::default(), Options::default()), (timestamps(500), timestamps(1))]
    {
        let mut rig = Rig::new(RigConfig::default());
        let (listener, old) = closed_by_host(&mut rig, peer_options);
        let mut peer = Peer::new(80, 2000);
        peer.snd_nxt = old.snd_nxt + 100_000;
        peer.ts_value = 500;
        let syn = SegmentHeader { options: syn_options, ..peer.header(Flags::SYN) };
        peer.send(&mut rig, &syn, b"");
        assert_eq!(peer.hear(&rig.take()), [SYN_ACK]);
        assert!(peer.rcv_nxt.gt(old.rcv_nxt), "RFC 6191: beyond the old connection's numbers");
        peer.send_next(&mut rig, Flags::ACK, b"new");
        let socket = listener.accept().expect("the new connection");
        let mut buf = [0; 8];
        let host = rig.host();
        assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(3));
        assert_eq!(rig.count_tcp(TcpCounter::TcpExtTWRecycled), 0, "Linux counts active opens");
        drop((socket, host));
        finish(rig, listener);
    }
}

#[test]
fn an_old_syn_is_answered_and_opens_nothing() {
    let mut rig = Rig::new(RigConfig::default());
    let (listener, mut peer) = closed_by_host(&mut rig, Options::default());
    let syn = SegmentHeader { seq: peer.snd_nxt - 5000, ..peer.header(Flags::SYN) };
    peer.send(&mut rig, &syn, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::ACK]);
    assert_eq!(rig.drops(DropReason::TcpTimeWait), 1);
    assert_eq!(rig.host().established_len(), 1);
    finish(rig, listener);
}

#[test]
fn a_reset_ends_time_wait_unless_rfc1337_is_set() {
    for (rfc1337, left) in [("0", 0), ("1", 1)] {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.tcp_rfc1337", rfc1337).expect("a setting");
        let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
        let (listener, mut peer) = closed_by_host(&mut rig, Options::default());
        peer.send_next(&mut rig, Flags::RST, b"");
        assert_eq!(rig.host().established_len(), left);
        assert_eq!(rig.take(), []);
        finish(rig, listener);
    }
}

#[test]
fn a_connection_beyond_the_time_wait_limit_is_closed_at_once() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.tcp_max_tw_buckets", "0").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    socket.close(&host, &mut rig.world.cx);
    peer.hear(&rig.take());
    peer.send_next(&mut rig, Flags::FIN | Flags::ACK, b"");
    rig.take();
    assert_eq!(host.established_len(), 0);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPTimeWaitOverflow), 1);
    drop((socket, host));
    finish(rig, listener);
}

/// Opens and closes a connection of the host, which closes first; the TIME-WAIT socket keeps its
/// port.
fn closed_client(rig: &mut Rig, port: u16, reuse: bool, options: Options) -> Peer {
    let mut peer = Peer::new(4000, 80);
    let socket = connect(rig, SocketAddr::new(HOST_IP.into(), port), reuse).expect("free");
    answer(rig, &mut peer, options);
    let host = rig.host();
    socket.close(&host, &mut rig.world.cx);
    peer.hear(&rig.take());
    peer.send_next(rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(rig.host().established_len(), 1, "the TIME-WAIT socket");
    rig.take();
    peer
}

fn connect(rig: &mut Rig, local: SocketAddr, reuse: bool) -> Result<Arc<Connection>, Errno> {
    let options = ConnectOptions::default().bind(local).reuse_address(reuse);
    let remote = SocketAddr::new(PEER_IP.into(), 80);
    let host = rig.host();
    Connection::connect_with(&host, &mut rig.world.cx, remote, &options)
}

/// The peer answers the SYN of the host and receives its ACK. Returns the SYN.
fn answer(rig: &mut Rig, peer: &mut Peer, options: Options) -> SegmentHeader {
    let seen = rig.take();
    peer.hear(&seen);
    let syn = seen.iter().filter_map(Seen::segment).next().expect("a SYN").0.clone();
    let echo = syn.options.timestamps.map_or(0, |(value, _)| value);
    let mut options = options;
    options.timestamps = options.timestamps.map(|(value, _)| (value, echo));
    let header = SegmentHeader { options, ..peer.header(SYN_ACK) };
    peer.send(rig, &header, b"");
    peer.hear(&rig.take());
    syn
}

#[test]
fn a_connect_reuses_a_time_wait_port_with_timestamps() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.tcp_tw_reuse", "1").expect("a setting");
    sysctls.set("net.ipv4.ip_local_port_range", "4000 4000").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    let any_port = SocketAddr::new(HOST_IP.into(), 0);
    let mut peer = closed_client(&mut rig, 0, false, timestamps(1));
    let too_early = connect(&mut rig, any_port, false);
    assert_eq!(too_early.expect_err("the peer's clock may not have ticked"), Errno::EADDRNOTAVAIL);
    rig.pass(Duration::from_millis(1100));
    let old = peer.rcv_nxt;
    let socket = connect(&mut rig, any_port, false).expect("RFC 6191");
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTWRecycled), 1);
    peer.ts_value += 1100;
    peer.snd_nxt += 1_000_000;
    let syn = answer(&mut rig, &mut peer, timestamps(2000));
    assert!(syn.seq.gt(old + 65_535), "above the old connection's window");
    assert_eq!(syn.options.timestamps.map(|(_, echo)| echo), Some(1), "TS.Recent is kept");
    assert!(socket.readiness().contains(Readiness::WRITE));
    assert_eq!(rig.host().established_len(), 1);
    drop(socket);
    rig.finish();
}

/// bind(2) checks a bound port first; then timestamps alone count.
#[test]
fn a_bound_port_in_time_wait_is_reused_with_reuseaddr() {
    let local = SocketAddr::new(HOST_IP.into(), 4000);
    for (first, second, options, expected) in [
        (false, false, timestamps(1), Err(Errno::EADDRINUSE)),
        (false, true, timestamps(1), Err(Errno::EADDRINUSE)),
        (true, true, Options::default(), Err(Errno::EADDRNOTAVAIL)),
        (true, true, timestamps(1), Ok(())),
    ] {
        let mut rig = Rig::new(RigConfig::default());
        closed_client(&mut rig, 4000, first, options);
        rig.pass(Duration::from_secs(2));
        let result = connect(&mut rig, local, second);
        assert_eq!(result.as_ref().map(|_| ()).map_err(|errno| *errno), expected);
        drop(result);
        rig.finish();
    }
}

#[test]
fn time_wait_keeps_its_port_by_default_except_on_loopback() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.ip_local_port_range", "4000 4000").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    closed_client(&mut rig, 0, false, timestamps(1));
    rig.pass(Duration::from_secs(2));
    let refused = connect(&mut rig, SocketAddr::new(HOST_IP.into(), 0), false);
    assert_eq!(refused.expect_err("the port is in TIME-WAIT"), Errno::EADDRNOTAVAIL);
    rig.pass(Duration::from_secs(60));
    connect(&mut rig, SocketAddr::new(HOST_IP.into(), 0), false).expect("TIME-WAIT has ended");
    rig.finish();
}

#[test]
fn orphans_beyond_the_limit_are_reset() {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.tcp_max_orphans", "1").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    let listener = rig.listen(80, 8);
    let host = rig.host();
    let mut peers: Vec<_> =
        (2000..2003).map(|port| Peer::open(&mut rig, 80, port, Options::default())).collect();
    for expected in [Flags::FIN, Flags::RST, Flags::RST] {
        let socket = listener.accept().expect("a connection");
        socket.close(&host, &mut rig.world.cx);
        let peer = peers.iter_mut().find(|peer| peer.tuple.remote == socket.remote());
        let last = peer.expect("its peer").hear(&rig.take()).pop().expect("an end");
        assert_eq!(last, expected | Flags::ACK);
    }
    assert_eq!((host.orphans(), host.established_len()), (1, 1));
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPAbortOnMemory), 2);
    // The remaining one ends in order, and another orphan may take its place.
    peers[0].send_next(&mut rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(host.orphans(), 0);
    drop(host);
    finish(rig, listener);
}

/// RFC 1337: one spoofed packet must not end TIME-WAIT. Linux acknowledges a SYN without a
/// listener.
#[test]
fn a_syn_without_a_listener_does_not_end_time_wait() {
    let mut rig = Rig::new(RigConfig::default());
    let (listener, mut peer) = closed_by_host(&mut rig, Options::default());
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    let spoofed = SegmentHeader { seq: peer.snd_nxt + 5000, ..peer.header(Flags::SYN) };
    peer.send(&mut rig, &spoofed, b"");
    assert_eq!(rig.host().established_len(), 1, "the TIME-WAIT socket");
    assert_eq!(peer.hear(&rig.take()), [Flags::ACK]);
    assert_eq!(peer.snd_una, peer.snd_nxt, "the ACK carries the final numbers of the connection");
    // An old duplicate reaches the TIME-WAIT socket, not a closed port.
    rig.pass(Duration::from_secs(1));
    peer.snd_nxt -= 1;
    peer.send_next(&mut rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::ACK]);
    rig.finish();
}

#[test]
fn a_syn_that_the_listener_refuses_does_not_end_time_wait() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 1);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    socket.shutdown(&host, &mut rig.world.cx, ShutdownHow::Write).expect("connected");
    rig.settle();
    assert_eq!(peer.hear(&rig.take()), [Flags::FIN | Flags::ACK]);
    peer.send_next(&mut rig, Flags::FIN | Flags::ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::ACK]);
    socket.close(&host, &mut rig.world.cx);
    // The accept queue is full.
    let waiting = [2001, 2002].map(|port| Peer::open(&mut rig, 80, port, Options::default()));
    let before = rig.host().established_len();
    for flags in [Flags::SYN, Flags::SYN | Flags::FIN] {
        let later = SegmentHeader { seq: peer.snd_nxt + 5000, ..peer.header(flags) };
        peer.send(&mut rig, &later, b"");
        assert_eq!(rig.host().established_len(), before, "{flags:?}");
    }
    let _ = rig.take();
    // There is room again: the repeated SYN still counts as one that reopens the connection.
    let accepted = waiting.map(|_| listener.accept().expect("a connection"));
    let again = SegmentHeader { seq: peer.snd_nxt + 5000, ..peer.header(Flags::SYN) };
    peer.send(&mut rig, &again, b"");
    let seen = rig.take();
    let (syn_ack, _) = seen[0].segment().expect("a SYN-ACK");
    assert_eq!(syn_ack.flags, SYN_ACK);
    assert!(syn_ack.seq.gt(peer.rcv_nxt + 65_535), "above every number of the old connection");
    for socket in accepted {
        socket.abort(&host, &mut rig.world.cx);
    }
    drop(host);
    finish(rig, listener);
}
