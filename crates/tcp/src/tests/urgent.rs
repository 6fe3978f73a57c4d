//! Urgent data in both directions, with Linux's semantics.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Net, Side};
use crate::{Counter, Flags, Readiness, RecvError, SegmentHeader, State};

/// An established connection on which nothing is in flight.
fn quiet(seed: u64) -> Net {
    let mut net = Net::established(seed);
    net.run_for(Duration::from_millis(100));
    net
}

fn send_oob(net: &mut Net, bytes: &[u8]) {
    let sent = net.call(Side::A, |tcb, cx| tcb.send_oob(cx, bytes));
    assert_eq!(sent, Ok(bytes.len()));
}

fn recv_oob(net: &mut Net) -> Result<Option<u8>, RecvError> {
    net.call(Side::B, |tcb, _| tcb.recv_oob(false))
}

/// Performs one read on B.
fn read(net: &mut Net) -> Result<Vec<u8>, RecvError> {
    let mut buf = [0; 4096];
    let read = net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, false));
    read.map(|n| buf[..n].to_vec())
}

/// Whether B has an urgent byte to read.
fn is_urgent(net: &mut Net) -> bool {
    net.tcb(Side::B).readiness().contains(Readiness::PRI)
}

#[test]
fn the_urgent_pointer_addresses_the_byte_after_the_urgent_one() {
    let mut net = quiet(1);
    let before = net.log.len();
    send_oob(&mut net, b"abc");
    let sent = net.sent_by(Side::A, before);
    assert!(sent[0].header.has(Flags::URG | Flags::PSH));
    assert_eq!((sent[0].header.urgent, sent[0].len), (3, 3));
    net.finish_clean();
}

#[test]
fn the_urgent_byte_is_removed_from_the_stream() {
    let mut net = quiet(2);
    net.send(Side::A, b"before");
    send_oob(&mut net, b"!");
    net.send(Side::A, b"after");
    net.run_for(Duration::from_millis(100));
    assert!(is_urgent(&mut net));
    assert_eq!(
        net.tcb(Side::B).readable_bytes(),
        6,
        "SIOCINQ does not count exactly the bytes before the mark"
    );
    assert!(!net.tcb(Side::B).at_mark());
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    assert!(!is_urgent(&mut net));
    assert_eq!(recv_oob(&mut net), Err(RecvError::NoUrgentData), "the urgent byte was read twice");
    assert_eq!(read(&mut net), Ok(b"before".to_vec()), "a read did not stop at the mark");
    assert!(net.tcb(Side::B).at_mark());
    assert_eq!(read(&mut net), Ok(b"after".to_vec()));
    assert!(!net.tcb(Side::B).at_mark());
    net.finish_clean();
}

#[test]
fn a_read_stops_at_the_mark_if_the_urgent_byte_was_not_read() {
    let mut net = quiet(3);
    send_oob(&mut net, b"ab!");
    net.send(Side::A, b"c");
    net.run_for(Duration::from_millis(100));
    assert_eq!(read(&mut net), Ok(b"ab".to_vec()));
    assert!(net.tcb(Side::B).at_mark());
    assert_eq!(read(&mut net), Ok(b"c".to_vec()));
    assert_eq!(
        recv_oob(&mut net),
        Err(RecvError::NoUrgentData),
        "the urgent byte was read after the stream was read past it"
    );
    net.finish_clean();
}

#[test]
fn with_oob_inline_the_urgent_byte_is_read_after_the_mark() {
    let mut net = Net::new(4);
    net.host(Side::B).options.oob_inline = true;
    net.open();
    net.run_for(Duration::from_millis(100));
    send_oob(&mut net, b"ab!");
    net.send(Side::A, b"cd");
    net.run_for(Duration::from_millis(100));
    assert!(is_urgent(&mut net));
    assert_eq!(recv_oob(&mut net), Err(RecvError::NoUrgentData));
    assert_eq!(read(&mut net), Ok(b"ab".to_vec()));
    assert!(net.tcb(Side::B).at_mark());
    assert_eq!(read(&mut net), Ok(b"!cd".to_vec()));
    assert!(!is_urgent(&mut net));
    net.finish_clean();
}

#[test]
fn an_urgent_byte_alone_does_not_make_the_socket_readable() {
    let mut net = quiet(5);
    send_oob(&mut net, b"!");
    net.run_for(Duration::from_millis(100));
    let ready = net.tcb(Side::B).readiness();
    assert!(ready.contains(Readiness::PRI) && !ready.contains(Readiness::READ), "{ready:?}");
    assert!(net.tcb(Side::B).at_mark());
    assert_eq!(read(&mut net), Err(RecvError::WouldBlock));
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    net.finish_clean();
}

#[test]
fn the_urgent_byte_of_an_ended_connection_is_read_only_after_a_fin() {
    for reset in [true, false] {
        let mut net = quiet(7);
        send_oob(&mut net, b"!");
        net.run_for(Duration::from_millis(100));
        if reset {
            net.call(Side::A, |tcb, cx| tcb.abort(cx));
        } else {
            net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
            net.run_for(Duration::from_millis(100));
            net.call(Side::B, |tcb, cx| tcb.shutdown_write(cx));
        }
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.state(Side::B), State::Close);
        let expected = if reset { Err(RecvError::NotConnected) } else { Ok(Some(b'!')) };
        assert_eq!(recv_oob(&mut net), expected, "reset: {reset}");
        net.finish_clean();
    }
}

#[test]
fn a_peek_leaves_the_urgent_byte_and_the_stream_unchanged() {
    let mut net = quiet(6);
    send_oob(&mut net, b"!");
    net.send(Side::A, b"abc");
    net.run_for(Duration::from_millis(100));
    for _ in 0..2 {
        assert_eq!(net.call(Side::B, |tcb, _| tcb.recv_oob(true)), Ok(Some(b'!')));
        let mut buf = [0; 8];
        let peeked = net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, true));
        assert_eq!(
            (peeked, &buf[..3]),
            (Ok(3), &b"abc"[..]),
            "a peek at the stream did not skip the urgent byte"
        );
        assert!(net.tcb(Side::B).at_mark());
    }
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    assert_eq!(read(&mut net), Ok(b"abc".to_vec()));
    net.finish_clean();
}

#[test]
fn an_urgent_pointer_may_arrive_before_its_byte() {
    let mut net = quiet(7);
    let mut header = net.forge(Side::B);
    header.flags |= Flags::URG;
    header.urgent = 6;
    net.inject(Side::B, &header, b"ab");
    assert!(!is_urgent(&mut net));
    assert_eq!(
        recv_oob(&mut net),
        Err(RecvError::WouldBlock),
        "an urgent byte was read that has not arrived yet"
    );
    // Later segments need no urgent pointer of their own.
    let header = net.forge(Side::B);
    net.inject(Side::B, &header, b"cde!f");
    assert!(is_urgent(&mut net));
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    assert_eq!(read(&mut net), Ok(b"abcde".to_vec()));
    assert_eq!(read(&mut net), Ok(b"f".to_vec()));
    net.finish_clean();
}

#[test]
fn an_urgent_byte_received_out_of_order_is_available_at_once() {
    let mut net = quiet(8);
    let first = net.forge(Side::B);
    let mut second = first.clone();
    second.seq += 5;
    second.flags |= Flags::URG;
    second.urgent = 1;
    net.inject(Side::B, &second, b"!x");
    assert!(is_urgent(&mut net));
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    net.inject(Side::B, &first, b"abcde");
    assert_eq!(read(&mut net), Ok(b"abcde".to_vec()));
    assert_eq!(read(&mut net), Ok(b"x".to_vec()));
    net.finish_clean();
}

#[test]
fn with_tcp_stdurg_the_pointer_addresses_the_urgent_byte() {
    for (stdurg, expected) in [(false, b'b'), (true, b'c')] {
        let mut net = Net::new(9);
        net.host(Side::B).config.tcp_stdurg = stdurg;
        net.open();
        net.run_for(Duration::from_millis(100));
        let mut header = net.forge(Side::B);
        header.flags |= Flags::URG;
        header.urgent = 2;
        net.inject(Side::B, &header, b"abcd");
        assert_eq!(recv_oob(&mut net), Ok(Some(expected)));
        net.finish_clean();
    }
}

#[test]
fn only_the_newest_mark_is_kept_and_an_older_pointer_is_ignored() {
    let mut net = quiet(10);
    send_oob(&mut net, b"a1");
    send_oob(&mut net, b"b2");
    net.run_for(Duration::from_millis(100));
    let mut stale = net.forge(Side::B);
    stale.seq -= 4;
    stale.flags |= Flags::URG;
    stale.urgent = 2;
    net.inject(Side::B, &stale, b"a1b2");
    assert_eq!(recv_oob(&mut net), Ok(Some(b'2')));
    assert_eq!(
        read(&mut net),
        Ok(b"a1b".to_vec()),
        "the older urgent byte did not become normal data"
    );
    net.finish_clean();
}

#[test]
fn a_second_mark_keeps_the_first_urgent_byte_out_of_the_stream() {
    let mut net = quiet(11);
    send_oob(&mut net, b"1");
    net.run_for(Duration::from_millis(100));
    assert!(net.tcb(Side::B).at_mark());
    assert_eq!(recv_oob(&mut net), Ok(Some(b'1')));
    send_oob(&mut net, b"x2");
    net.run_for(Duration::from_millis(100));
    assert_eq!(read(&mut net), Ok(b"x".to_vec()), "the stream contains the urgent byte");
    assert_eq!(recv_oob(&mut net), Ok(Some(b'2')));
    net.finish_clean();
}

#[test]
fn an_urgent_pointer_to_read_data_is_ignored() {
    let mut net = quiet(12);
    net.send(Side::A, b"abcdef");
    net.run_for(Duration::from_millis(100));
    net.recv(Side::B);
    let mut old = net.forge(Side::B);
    old.seq -= 6;
    old.flags |= Flags::URG;
    old.urgent = 3;
    net.inject(Side::B, &old, b"abcdef");
    assert!(!is_urgent(&mut net));
    assert_eq!(recv_oob(&mut net), Err(RecvError::NoUrgentData));
    net.finish_clean();
}

#[test]
fn recv_oob_does_not_wait_for_an_announced_byte_after_the_end_of_the_stream() {
    let mut net = quiet(13);
    let mut header = net.forge(Side::B);
    header.flags |= Flags::URG | Flags::FIN;
    header.urgent = 100;
    net.inject(Side::B, &header, b"ab");
    assert_eq!(recv_oob(&mut net), Ok(None));
    net.finish_clean();
}

#[test]
fn urgent_data_ignores_nagle_and_cork() {
    let mut net = quiet(14);
    net.call(Side::A, |tcb, _| tcb.set_cork(true));
    net.send(Side::A, b"held");
    let before = net.log.len();
    send_oob(&mut net, b"!");
    let sent = net.sent_by(Side::A, before);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].len, sent[0].header.urgent), (5, 5));
    net.finish_clean();
}

#[test]
fn urgent_data_is_sent_without_superframes() {
    let mut net = Net::new(15);
    net.host(Side::A).path.gso_bytes_max = 65_536;
    net.open();
    net.run_for(Duration::from_millis(100));
    let before = net.log.len();
    send_oob(&mut net, &[7; 5 * 1448]);
    let sent = net.sent_by(Side::A, before);
    let pointers: Vec<_> = sent.iter().map(|sent| (sent.len, sent.header.urgent)).collect();
    assert_eq!(pointers, [(1448, 7240), (1448, 5792), (1448, 4344), (1448, 2896), (1448, 1448)]);
    assert!(sent.iter().all(|sent| sent.header.has(Flags::URG)));
    net.run_for(Duration::from_millis(100));
    // After the mark is acknowledged, superframes (packets of several segments) are sent again.
    let before = net.log.len();
    net.send(Side::A, &[7; 5 * 1448]);
    let sent = net.sent_by(Side::A, before);
    assert!(sent.iter().all(|sent| !sent.header.has(Flags::URG) && sent.header.urgent == 0));
    assert!(sent[0].len > 1448, "no superframe is sent after the mark");
    assert_eq!(net.count(Side::A, Counter::TcpRetransSegs), 0);
    net.finish_clean();
}

#[test]
fn a_retransmission_carries_the_urgent_pointer() {
    let mut net = quiet(16);
    send_oob(&mut net, b"ab!");
    net.lose_in_flight();
    let before = net.log.len();
    net.run_for(Duration::from_secs(1));
    let again = net.sent_by(Side::A, before)[0].header.clone();
    assert!(again.has(Flags::URG));
    assert_eq!(again.urgent, 3);
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    net.finish_clean();
}

#[test]
fn the_pointer_to_a_mark_beyond_sixteen_bits_is_clamped() {
    let mut net = Net::new(17);
    net.host(Side::A).options.sndbuf = Some(400_000);
    net.host(Side::B).options.rcvbuf = Some(600_000);
    net.host(Side::B).config.rmem_max = 600_000;
    net.open();
    net.run_for(Duration::from_millis(100));
    let before = net.log.len();
    send_oob(&mut net, &[7; 100_000]);
    let first = net.sent_by(Side::A, before)[0].header.clone();
    assert!(first.has(Flags::URG));
    assert_eq!(
        first.urgent,
        u16::MAX,
        "the pointer to a mark 100,000 bytes away is not the largest"
    );
    let mut got = 0;
    while got < 99_999 {
        assert!(net.step());
        got += read(&mut net).map_or(0, |bytes| bytes.len());
    }
    for sent in net.sent_by(Side::A, before).iter().filter(|sent| sent.header.has(Flags::URG)) {
        let end = sent.header.seq + u32::from(sent.header.urgent);
        assert!(sent.header.urgent == u16::MAX || end == first.seq + 100_000, "{sent:?}");
    }
    net.run_for(Duration::from_millis(100));
    assert!(net.tcb(Side::B).at_mark());
    assert_eq!(recv_oob(&mut net), Ok(Some(7)));
    net.finish_clean();
}

#[test]
fn window_probes_announce_the_urgent_mark() {
    let mut net = Net::new(18);
    net.host(Side::B).options.rcvbuf = Some(16_384);
    net.open();
    for _ in 0..40 {
        while net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 1000][..]], false)).is_ok() {}
        net.run_for(Duration::from_millis(50));
    }
    assert_eq!(net.tcb(Side::A).info().snd_wnd, 0);
    net.call(Side::A, |tcb, _| tcb.set_sndbuf(1 << 20));
    send_oob(&mut net, b"!");
    let unread = net.tcb(Side::A).unacked_bytes();
    assert!(unread < 65_000, "{unread}");
    net.run_for(Duration::from_secs(30));
    assert_eq!(
        recv_oob(&mut net),
        Err(RecvError::WouldBlock),
        "the urgent byte that a probe announced is not awaited"
    );
    while net.tcb(Side::A).unacked_bytes() > 0 || !is_urgent(&mut net) {
        let _ = read(&mut net);
        net.run_for(Duration::from_millis(20));
    }
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    net.finish_clean();
}

#[test]
fn urgent_marks_arrive_over_a_lossy_path() {
    let mut net = Net::established(19);
    net.impairment.loss = 50;
    net.impairment.reorder = 100;
    let (mut stream, mut urgent) = (Vec::new(), Vec::new());
    for round in 0..40u8 {
        net.send(Side::A, &[round; 100]);
        send_oob(&mut net, &[200 + round]);
        let start = net.now;
        while urgent.len() <= usize::from(round) || stream.len() < 100 * (usize::from(round) + 1) {
            assert!(net.step() && net.now - start < Duration::from_secs(60), "{round}");
            if let Ok(Some(byte)) = recv_oob(&mut net) {
                urgent.push(byte);
            }
            if let Ok(bytes) = read(&mut net) {
                stream.extend(bytes);
            }
        }
    }
    assert_eq!(urgent, (200..240).collect::<Vec<u8>>());
    assert_eq!(stream, (0..40u8).flat_map(|round| [round; 100]).collect::<Vec<u8>>());
    net.finish_clean();
}

/// Regression: while the urgent byte is announced but has not arrived, and the queue is empty, a
/// read must not try to skip it.
#[test]
fn an_urgent_byte_that_has_not_arrived_is_not_skipped() {
    let mut net = quiet(40);
    let header = net.forge(Side::B);
    let header = SegmentHeader { flags: header.flags | Flags::URG, urgent: 1, ..header };
    net.inject(Side::B, &header, b"");
    assert_eq!(
        recv_oob(&mut net),
        Err(RecvError::WouldBlock),
        "an urgent byte was read that has not arrived yet"
    );
    assert!(net.tcb(Side::B).at_mark());
    assert!(!net.tcb(Side::B).readiness().intersects(Readiness::READ | Readiness::PRI));
    assert_eq!(read(&mut net), Err(RecvError::WouldBlock));
    net.send(Side::A, b"!after");
    net.run_for(Duration::from_millis(100));
    assert_eq!(recv_oob(&mut net), Ok(Some(b'!')));
    assert_eq!(read(&mut net), Ok(b"after".to_vec()));
    net.finish_clean();
}
