//! TIME-WAIT: what the remnant of a connection answers, and when it gives way.

use std::{sync::Arc, time::Duration};

use pkt::DropReason;
use sim::{Peer, Rig, RigConfig};
use stack::{
    socket::{Listener, ShutdownHow},
    sysctl::Sysctls,
};
use tcp::{Counter as TcpCounter, Flags, Options, SegmentHeader};

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

fn timestamps(value: u32) -> Options {
    Options { timestamps: Some((value, 0)), ..Options::default() }
}

/// A connection that the host has closed first and the peer second.
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
    assert_eq!(rig.host().established_len(), 1, "the remnant");
    (listener, peer)
}

fn finish(mut rig: Rig, listener: Arc<Listener>) {
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn it_ends_after_a_minute() {
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
fn a_repeated_fin_is_acknowledged_and_starts_the_minute_anew() {
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
        assert_eq!(rig.count_tcp(TcpCounter::TcpExtTWRecycled), 1);
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
fn a_reset_ends_it_unless_the_setting_says_otherwise() {
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
fn when_too_many_wait_the_next_is_closed_at_once() {
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
