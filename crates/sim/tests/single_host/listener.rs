//! Passive opens: full queues, closed listeners, segments without a socket.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pkt::DropReason;
use sim::{Peer, Rig, RigConfig, frame::Seen, rig::HOST_IP};
use stack::{
    Cx, Errno, Readiness,
    socket::{Connection, ListenOptions, Listener},
    sysctl::Sysctls,
};
use tcp::{Counter as TcpCounter, Flags, Options, SeqNum};

/// Sends a SYN; returns the flags of the answers.
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
    // If the segment has ACK, the reset takes its number from there.
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
fn a_listener_answers_only_syns() {
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
    // One more than the backlog may be queued, as in Linux.
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
fn a_handshake_completed_at_a_full_queue_is_completed_later() {
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
    // The SYN-ACK is retransmitted, and the peer answers again.
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
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.tcp_max_syn_backlog", "2").expect("a setting");
    sysctls.set("net.ipv4.tcp_syncookies", "0").expect("a setting");
    let mut rig = Rig::new(RigConfig { sysctls, ..RigConfig::default() });
    let listener = rig.listen(80, 8);
    for port in 2000..2002 {
        assert_eq!(syn(&mut rig, &mut Peer::new(80, port)), [SYN_ACK]);
    }
    assert_eq!(syn(&mut rig, &mut Peer::new(80, 2002)), []);
    assert_eq!(rig.drops(DropReason::SynQueueFull), 1);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPReqQFullDrop), 1);
    // Without an answer the SYN-ACKs are retransmitted five times, and the requests are dropped.
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
    assert_eq!(peer.rcv_nxt, first, "the same initial sequence number");
    peer.send_next(&mut rig, Flags::RST, b"");
    assert_eq!(rig.host().established_len(), 0, "the peer reset it");
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn closing_a_listener_resets_unaccepted_connections() {
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
    assert_eq!(rig.host().established_len(), 1, "the request is freed at once");
    assert_eq!(listener.requests(), 0);
    // The third segment of a handshake finds no request.
    half_open.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(half_open.hear(&rig.take()), [Flags::RST]);
    // The accepted connection continues.
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

/// Regression: a SYN that another core processed while the listener closed left a request behind,
/// until its timer or forever, because the order of both was not decided.
#[test]
fn closing_a_listener_leaves_no_request_behind_on_another_core() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let (memory, now) = (rig.world.memory().clone(), rig.world.cx.now);
    let local = SocketAddr::new(HOST_IP.into(), 80);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let closer = {
            let (host, stop) = (Arc::clone(&host), &stop);
            scope.spawn(move || {
                let mut cx = Cx::replay(&memory, 2);
                cx.now = now;
                for round in 0..3000 {
                    let listener = Listener::listen(&host, &mut cx, local, 64).expect("free");
                    let mut spins = 0;
                    while listener.requests() <= round % 4 && spins < 20_000 {
                        std::hint::spin_loop();
                        spins += 1;
                    }
                    listener.close(&host, &mut cx);
                    assert_eq!(listener.requests(), 0);
                }
                stop.store(true, Ordering::Relaxed);
            })
        };
        let mut port = 1;
        while !stop.load(Ordering::Relaxed) {
            port = port % 60_000 + 1;
            let mut peer = Peer::new(80, port);
            let flags = syn(&mut rig, &mut peer);
            // Every other handshake is completed, if its listener is still open.
            if flags == [SYN_ACK] && port % 2 == 0 {
                peer.send_next(&mut rig, Flags::ACK, b"");
            }
        }
        closer.join().expect("the listeners closed");
    });
    rig.settle();
    // No time has passed: no timer has cleaned up.
    assert_eq!(host.established_len(), 0, "requests or connections of closed listeners");
    drop(host);
    rig.finish();
}

#[test]
fn a_syn_with_fin_opens_nothing() {
    let mut rig = Rig::new(RigConfig::default());
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    peer.send_next(&mut rig, Flags::SYN | Flags::FIN, b"");
    assert_eq!(rig.take(), []);
    assert_eq!((rig.host().established_len(), rig.drops(DropReason::TcpFlags)), (0, 1));
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn children_have_the_options_of_their_listener() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let options = ListenOptions::default().nodelay(true).max_segment(1000).receive_buffer(25_000);
    let local = SocketAddr::new(HOST_IP.into(), 80);
    let listener =
        Listener::listen_with(&host, &mut rig.world.cx, local, &options).expect("a free port");
    let peer_options = Options { mss: Some(1400), ..Options::default() };
    let _peer = Peer::open(&mut rig, 80, 2000, peer_options);
    let socket = listener.accept().expect("a connection");
    let read = socket
        .with_tcb(&host, &mut rig.world.cx, |tcb, _| (tcb.nodelay(), tcb.mss(), tcb.rcvbuf()));
    assert_eq!(read, (true, 1000, 50_000));
    listener.close(&host, &mut rig.world.cx);
    drop((listener, socket, host));
    rig.finish();
}

/// Linux with net.ipv4.tcp_migrate_req=0.
#[test]
fn a_member_that_leaves_a_group_ends_its_handshakes() {
    let mut rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let local = SocketAddr::new(HOST_IP.into(), 80);
    let options = ListenOptions::default().reuse_port(true);
    let mut members: Vec<_> = (0..2)
        .map(|_| Listener::listen_with(&host, &mut rig.world.cx, local, &options).expect("a group"))
        .collect();
    let mut peers: Vec<_> = (2000..2040).map(|port| Peer::new(80, port)).collect();
    for peer in &mut peers {
        assert_eq!(syn(&mut rig, peer), [SYN_ACK]);
    }
    let kept = members[1].requests();
    assert!((5..35).contains(&kept) && kept + members[0].requests() == 40);
    let gone = members.remove(0);
    gone.close(&host, &mut rig.world.cx);
    let mut reset = 0;
    for peer in &mut peers {
        peer.send_next(&mut rig, Flags::ACK, b"");
        reset += usize::from(peer.hear(&rig.take()) == [Flags::RST]);
    }
    assert_eq!(reset, 40 - kept);
    let accepted = std::iter::from_fn(|| members[0].accept().ok()).count();
    assert_eq!(accepted, kept);
    members[0].close(&host, &mut rig.world.cx);
    drop((members, gone, host));
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
    // Closing the first listener again does not affect the second.
    listener.close(&host, &mut rig.world.cx);
    assert_eq!(syn(&mut rig, &mut Peer::new(80, 2000)), [SYN_ACK]);
    second.close(&host, &mut rig.world.cx);
    drop((listener, second, host));
    rig.finish();
}

#[test]
fn the_listener_of_an_address_precedes_the_wildcard_listener() {
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
    let refused = Connection::connect(&host, &mut rig.world.cx, Some(local), remote);
    assert_eq!(refused.expect_err("a martian"), Errno::EINVAL);
    assert_eq!(rig.take(), []);
    drop(host);
    rig.finish();
}
