//! SYN cookies: a listener whose SYN queue is full keeps no request and still accepts connections.

use std::{sync::Arc, time::Duration};

use pkt::DropReason;
use sim::{Peer, Rig, RigConfig, frame::Seen};
use stack::{socket::Listener, sysctl::Sysctls};
use tcp::{Counter as TcpCounter, Flags, Options, SegmentHeader};

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

fn rig(syncookies: &str) -> Rig {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.ipv4.tcp_syncookies", syncookies).expect("a setting");
    Rig::new(RigConfig { sysctls, ..RigConfig::default() })
}

fn finish(mut rig: Rig, listener: Arc<Listener>) {
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

/// The options that Linux offers.
fn everything() -> Options {
    Options {
        mss: Some(1400),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((100, 0)),
        ..Options::default()
    }
}

/// Sends a SYN; returns the SYN-ACK if there is one.
fn syn(rig: &mut Rig, peer: &mut Peer, options: Options) -> Option<SegmentHeader> {
    rig.take();
    let header = SegmentHeader { options, ..peer.header(Flags::SYN) };
    peer.send(rig, &header, b"");
    let seen = rig.take();
    peer.hear(&seen);
    seen.iter().filter_map(Seen::segment).next().map(|(header, _)| header.clone())
}

#[test]
fn a_full_syn_queue_answers_with_cookies() {
    let mut rig = rig("1");
    let listener = rig.listen(80, 2);
    for port in [2000, 2001] {
        syn(&mut rig, &mut Peer::new(80, port), Options::default()).expect("a request");
    }
    assert_eq!((listener.requests(), rig.count_tcp(TcpCounter::TcpExtSyncookiesSent)), (2, 0));
    let mut peer = Peer::new(80, 2002);
    peer.ts_value = 100;
    let answer = syn(&mut rig, &mut peer, everything()).expect("a cookie");
    assert_eq!(answer.flags, SYN_ACK);
    assert_eq!(rig.host().established_len(), 2, "no request is kept");
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtSyncookiesSent), 1);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtTCPReqQFullDoCookies), 1);
    rig.pass(Duration::from_millis(300));
    peer.send_next(&mut rig, Flags::ACK | Flags::PSH, b"with the third segment");
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    let info = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.info());
    // 1300 is the largest size of the table that the peer can take; 12 bytes are the timestamps.
    assert_eq!((info.snd_mss, info.window_scales.0, info.timestamps), (1288, 7, true));
    assert_eq!(info.rtt, None, "the time of the SYN-ACK is unknown");
    let mut buf = [0; 32];
    assert_eq!(socket.recv(&host, &mut rig.world.cx, &mut buf, false), Ok(22));
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtSyncookiesRecv), 1);
    assert_eq!(rig.count_tcp(TcpCounter::TcpPassiveOpens), 1);
    // The host's timestamps never decrease, although the cookie's was rounded down.
    let before = peer.ts_recent.expect("timestamps");
    peer.ts_value = 400;
    peer.send_next(&mut rig, Flags::ACK | Flags::PSH, b"more");
    rig.pass(Duration::from_millis(300));
    peer.hear(&rig.take());
    assert!(peer.ts_recent.expect("timestamps").wrapping_sub(before) < 10_000);
    drop((socket, host));
    finish(rig, listener);
}

#[test]
fn without_timestamps_a_cookie_offers_no_options() {
    let mut rig = rig("2");
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    let options = Options { timestamps: None, ..everything() };
    let answer = syn(&mut rig, &mut peer, options).expect("a cookie");
    assert_eq!(answer.options, Options { mss: answer.options.mss, ..Options::default() });
    peer.send_next(&mut rig, Flags::ACK, b"");
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    let info = socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.info());
    assert_eq!((info.snd_mss, info.window_scales, info.timestamps), (1300, (0, 0), false));
    drop((socket, host));
    finish(rig, listener);
}

#[test]
fn a_wrong_cookie_is_reset() {
    let mut rig = rig("2");
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    syn(&mut rig, &mut peer, everything()).expect("a cookie");
    // The next number may be the cookie of another segment size.
    peer.rcv_nxt += 4;
    peer.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::RST]);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtSyncookiesFailed), 1);
    assert_eq!(rig.host().established_len(), 0);
    finish(rig, listener);
}

#[test]
fn a_cookie_is_good_for_about_a_minute() {
    let mut rig = rig("2");
    let listener = rig.listen(80, 8);
    let (mut early, mut late) = (Peer::new(80, 2000), Peer::new(80, 2001));
    syn(&mut rig, &mut early, everything()).expect("a cookie");
    syn(&mut rig, &mut late, everything()).expect("a cookie");
    rig.pass(Duration::from_secs(60));
    early.send_next(&mut rig, Flags::ACK, b"");
    let socket = listener.accept().expect("a connection");
    rig.pass(Duration::from_secs(69));
    // Cookies were sent recently, so the ACK is checked.
    syn(&mut rig, &mut Peer::new(80, 2002), everything()).expect("a cookie");
    late.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(late.hear(&rig.take()), [Flags::RST]);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtSyncookiesFailed), 1);
    drop(socket);
    finish(rig, listener);
}

#[test]
fn an_ack_is_reset_if_no_cookie_was_sent() {
    let mut rig = rig("1");
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    peer.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(peer.hear(&rig.take()), [Flags::RST]);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtSyncookiesFailed), 0, "not even checked");
    finish(rig, listener);
}

#[test]
fn a_cookie_at_a_full_accept_queue_is_dropped_and_accepted_later() {
    let mut rig = rig("2");
    let listener = rig.listen(80, 1);
    let mut late = Peer::new(80, 2002);
    syn(&mut rig, &mut late, Options::default()).expect("a cookie");
    let _first = Peer::open(&mut rig, 80, 2000, Options::default());
    let _second = Peer::open(&mut rig, 80, 2001, Options::default());
    late.send_next(&mut rig, Flags::ACK, b"");
    assert_eq!(late.hear(&rig.take()), []);
    assert_eq!(rig.count_tcp(TcpCounter::TcpExtListenOverflows), 1);
    assert_eq!(rig.drops(DropReason::ListenOverflow), 1);
    assert_eq!(rig.host().established_len(), 2);
    drop(listener.accept().expect("the first"));
    drop(listener.accept().expect("the second"));
    late.send_next(&mut rig, Flags::ACK | Flags::PSH, b"data");
    let socket = listener.accept().expect("the late one");
    assert_eq!(socket.remote(), late.tuple.remote);
    drop(socket);
    finish(rig, listener);
}

#[test]
fn the_same_third_segment_twice_opens_one_connection() {
    let mut rig = rig("2");
    let listener = rig.listen(80, 8);
    let mut peer = Peer::new(80, 2000);
    syn(&mut rig, &mut peer, Options::default()).expect("a cookie");
    peer.send_next(&mut rig, Flags::ACK, b"");
    peer.send_next(&mut rig, Flags::ACK, b"");
    let socket = listener.accept().expect("a connection");
    assert!(listener.accept().is_err());
    assert_eq!(rig.host().established_len(), 1);
    drop(socket);
    finish(rig, listener);
}
