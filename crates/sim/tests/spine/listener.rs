//! Passive opens: queues that fill up, listeners that go away, segments for nobody.

use std::{net::SocketAddr, time::Duration};

use pkt::DropReason;
use sim::{Peer, Rig, RigConfig, frame::Seen, rig::HOST_IP};
use stack::{
    Errno, Readiness,
    socket::{Listener, TcpSocket},
    sysctl::Sysctls,
};
use tcp::{Counter as TcpCounter, Flags, Options, SeqNum};

fn rig_with(name: &str, value: &str) -> Rig {
    let mut sysctls = Sysctls::default();
    sysctls.set(name, value).expect("a setting");
    Rig::new(RigConfig { sysctls, ..RigConfig::default() })
}

/// A SYN alone; returns the flags of what comes back.
fn syn(rig: &mut Rig, peer: &mut Peer) -> Vec<Flags> {
    rig.take();
    peer.send_next(rig, Flags::SYN, b"");
    peer.hear(&rig.take())
}

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const RST_ACK: Flags = Flags::RST.union(Flags::ACK);

#[test]
fn a_port_without_listener_is_reset() {
    let mut rig = Rig::new(RigConfig::default());
    let mut peer = Peer::new(81, 2000);
    assert_eq!(syn(&mut rig, &mut peer), [RST_ACK]);
    assert_eq!(peer.snd_una, peer.snd_nxt, "RFC 9293 §3.10.7.1: the SYN is acknowledged");
    // With an ACK the reset takes its number from there.
    peer.rcv_nxt = SeqNum(77);
    peer.send_next(&mut rig, Flags::ACK, b"data");
    let seen = rig.take();
    let (reset, _) = seen[0].segment().expect("a reset");
    assert_eq!((reset.flags, reset.seq), (Flags::RST, SeqNum(77)));
    peer.send_next(&mut rig, Flags::RST, b"");
    assert_eq!(rig.take(), [], "a reset is never answered");
    assert_eq!(rig.drops(DropReason::TcpNoSocket), 3);
    assert_eq!(rig.count_tcp(TcpCounter::TcpOutRsts), 2);
    rig.finish();
}

#[test]
fn a_listener_answers_syns_alone() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    peer.send_next(&mut rig, Flags::RST, b"");
    peer.send_next(&mut rig, Flags::FIN, b"");
    peer.send_next(&mut rig, Flags::empty(), b"data");
    assert_eq!(rig.take(), []);
    peer.send_next(&mut rig, Flags::ACK, b"");
    peer.send_next(&mut rig, SYN_ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::RST, Flags::RST]);
    assert_eq!(rig.host().established_len(), 0);
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn a_full_accept_queue_refuses_syns() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 1);
    // One more than the backlog may wait, as in Linux.
    let _first = Peer::open(&mut rig, 80, 2000, Options::default());
    let _second = Peer::open(&mut rig, 80, 2001, Options::default());
    let mut third = Peer::new(80, 2002);
    assert_eq!(syn(&mut rig, &mut third), []);
    assert_eq!(rig.drops(DropReason::ListenOverflow), 1);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtListenOverflows), 1);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtListenDrops), 1);
    drop(listener.accept().expect("the first"));
    // The peer repeats its SYN, and now there is room.
    third.snd_nxt -= 1;
    assert_eq!(syn(&mut rig, &mut third), [SYN_ACK]);
    drop(listener.accept().expect("the second"));
    assert_eq!(listener.accept().expect_err("empty"), Errno::EAGAIN);
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn a_handshake_that_ends_while_the_queue_is_full_ends_later() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 1);
    let mut late = Peer::new(80, 2002);
    assert_eq!(syn(&mut rig, &mut late), [SYN_ACK]);
    let _first = Peer::open(&mut rig, 80, 2000, Options::default());
    let _second = Peer::open(&mut rig, 80, 2001, Options::default());
    late.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtListenOverflows), 1);
    drop(listener.accept().expect("the first"));
    drop(listener.accept().expect("the second"));
    assert_eq!(listener.accept().expect_err("its third segment was dropped"), Errno::EAGAIN);
    // The SYN-ACK is repeated, and with it the answer.
    rig.pass(Duration::from_millis(1100));
    assert_eq!(late.hear(&rig.take())[..1], [SYN_ACK]);
    late.send_next(&mut rig, Flags::ACK, b"");
    let socket = listener.accept().expect("the late one");
    assert_eq!(socket.remote(), late.tuple.remote);
    listener.close(&rig.host(), &mut rig.world.cx);
    drop((socket, listener));
    rig.finish();
}

#[test]
fn a_full_syn_queue_refuses_syns() {
    let mut rig = rig_with("net.ipv4.tcp_max_syn_backlog", "2");
    let listener = rig.listen(80, 8);
    for port in 2000..2002 {
        assert_eq!(syn(&mut rig, &mut Peer::new(80, port)), [SYN_ACK]);
    }
    assert_eq!(syn(&mut rig, &mut Peer::new(80, 2002)), []);
    assert_eq!(rig.drops(DropReason::SynQueueFull), 1);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPReqQFullDrop), 1);
    // Nobody answers: the SYN-ACKs are repeated five times and then given up.
    rig.pass(Duration::from_secs(64));
    assert_eq!(rig.host().established_len(), 0);
    assert_eq!(syn(&mut rig, &mut Peer::new(80, 2002)), [SYN_ACK]);
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn a_repeated_syn_gets_the_same_answer() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    assert_eq!(syn(&mut rig, &mut peer), [SYN_ACK]);
    let first = peer.rcv_nxt;
    rig.pass(Duration::from_millis(600));
    peer.snd_nxt -= 1;
    assert_eq!(syn(&mut rig, &mut peer), [SYN_ACK]);
    assert_eq!(peer.rcv_nxt, first, "the same initial number");
    peer.send_next(&mut rig, Flags::RST, b"");
    assert_eq!(rig.host().established_len(), 0, "the peer gave it up");
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn closing_resets_what_nobody_accepted() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut waiting = Peer::open(&mut rig, 80, 2000, Options::default());
    let mut accepted = Peer::open(&mut rig, 80, 2001, Options::default());
    let mut half_open = Peer::new(80, 2002);
    assert_eq!(syn(&mut rig, &mut half_open), [SYN_ACK]);
    let first = listener.accept().expect("the first");
    assert_eq!(first.remote(), waiting.tuple.remote);
    listener.close(&rig.host(), &mut rig.world.cx);
    rig.settle();
    let seen = rig.take();
    assert_eq!(waiting.hear(&seen), []);
    assert_eq!(accepted.hear(&seen), [RST_ACK], "it was in the queue");
    assert_eq!(listener.accept().expect_err("closed"), Errno::EINVAL);
    // The third segment of a handshake finds nobody.
    half_open.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(half_open.hear(&rig.take()), [Flags::RST]);
    // The connection that was accepted lives on.
    waiting.send_next(&mut rig, Flags::ACK | Flags::PSH, b"hello");
    assert!(first.readiness().contains(Readiness::READ));
    drop((first, listener));
    rig.finish();
}

#[test]
fn a_handshake_is_not_continued_for_a_closed_listener() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    assert_eq!(syn(&mut rig, &mut peer), [SYN_ACK]);
    listener.close(&rig.host(), &mut rig.world.cx);
    rig.pass(Duration::from_secs(2));
    assert_eq!(peer.hear(&rig.take()), [], "a repeated SYN-ACK would end in a reset");
    assert_eq!(rig.host().established_len(), 0);
    drop(listener);
    rig.finish();
}

#[test]
fn a_port_is_free_again_after_close() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let local = SocketAddr::new(HOST_IP.into(), 80);
    let listener = rig.listen(80, 8);
    let second = Listener::listen(&host, &mut rig.world.cx, local, 8);
    assert_eq!(second.expect_err("taken"), Errno::EADDRINUSE);
    listener.close(&host, &mut rig.world.cx);
    let second = Listener::listen(&host, &mut rig.world.cx, local, 8).expect("free again");
    // Closing the first once more takes nothing from the second.
    listener.close(&host, &mut rig.world.cx);
    assert_eq!(syn(&mut rig, &mut Peer::new(80, 2000)), [SYN_ACK]);
    second.close(&host, &mut rig.world.cx);
    drop((listener, second, host));
    rig.finish();
}

#[test]
fn the_listener_of_an_address_comes_before_that_of_any() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let any = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 81);
    let listener = Listener::listen(&host, &mut rig.world.cx, any, 8).expect("a free port");
    let _peer = Peer::open(&mut rig, 81, 2000, Options::default());
    let socket = listener.accept().expect("a connection to any address");
    assert_eq!(socket.local(), SocketAddr::new(HOST_IP.into(), 81));
    listener.close(&host, &mut rig.world.cx);
    drop((listener, socket, host));
    rig.finish();
}

#[test]
fn data_with_the_third_segment_is_received() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    assert_eq!(syn(&mut rig, &mut peer), [SYN_ACK]);
    peer.send_next(&mut rig, Flags::ACK | Flags::PSH | Flags::FIN, b"all at once");
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    let mut buf = [0; 32];
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(11));
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(0));
    let acked =
        rig.take().iter().filter_map(Seen::segment).next_back().map(|(header, _)| header.ack);
    assert_eq!(acked, Some(peer.snd_nxt));
    listener.close(&host, &mut rig.world.cx);
    drop((listener, socket, host));
    rig.finish();
}

#[test]
fn a_loopback_source_does_not_go_out_on_a_wire() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let local = SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), 0);
    let remote = SocketAddr::new(sim::rig::PEER_IP.into(), 80);
    let refused = TcpSocket::connect(&host, &mut rig.world.cx, Some(local), remote);
    assert_eq!(refused.expect_err("a martian"), Errno::EINVAL);
    assert_eq!(rig.take(), []);
    drop(host);
    rig.finish();
}
