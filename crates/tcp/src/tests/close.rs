//! Close with unread, unsent or late data, close in the states of the handshake, TIME-WAIT,
//! FIN-WAIT-2 of orphans, `shutdown`, a peek, and the host's limit of challenge ACKs.

use core::time::Duration;

use super::net::{Net, Side};
use crate::{Counter, Flags, RecvError, State, TcpError};

/// An established connection on which nothing is in flight.
fn quiet(seed: u64) -> Net {
    let mut net = Net::established(seed);
    net.run_for(Duration::from_millis(100));
    net
}

/// A connection on which A is in TIME-WAIT and B is closed.
fn time_wait(seed: u64) -> Net {
    let mut net = quiet(seed);
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(50));
    net.call(Side::B, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::A), State::TimeWait);
    assert_eq!(net.state(Side::B), State::Close);
    net
}

#[test]
fn close_with_unread_data_sends_a_reset() {
    let mut net = quiet(1);
    net.send(Side::A, b"never read");
    net.run_for(Duration::from_millis(50));
    net.call(Side::B, |tcb, cx| tcb.close(cx));
    assert_eq!(net.state(Side::B), State::Close);
    assert!(net.log.last().unwrap().header.flags.contains(Flags::RST));
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPAbortOnClose), 1);
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionReset));
    net.finish_clean();
}

#[test]
fn data_for_an_orphan_is_answered_by_a_reset() {
    let mut net = quiet(2);
    net.call(Side::B, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(50));
    net.send(Side::A, b"too late");
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::B), State::Close);
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPAbortOnData), 1);
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::BrokenPipe));
    net.finish_clean();
}

#[test]
fn close_with_a_linger_time_of_zero_sends_a_reset() {
    let mut net = quiet(3);
    net.tcb(Side::A).set_linger(Some(Duration::ZERO));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    assert_eq!(net.state(Side::A), State::Close);
    assert!(net.log.last().unwrap().header.flags.contains(Flags::RST));
    net.run_for(Duration::from_millis(50));
    let mut buf = [0; 1];
    let read = net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, false));
    assert_eq!(read, Err(RecvError::Connection(TcpError::ConnectionReset)));
    net.finish_clean();
}

#[test]
fn close_delivers_all_data_written_before() {
    let mut net = quiet(4);
    let body = [6; 20_000];
    net.send(Side::A, &body);
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    let mut got = 0;
    while got < body.len() {
        assert!(net.step());
        got += net.recv(Side::B).len();
    }
    net.call(Side::B, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::A), State::TimeWait);
    net.finish_clean();
}

#[test]
fn close_ends_syn_sent_at_once_and_syn_received_with_a_fin() {
    let mut net = Net::new(5);
    net.connect(Side::A);
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    assert_eq!(net.state(Side::A), State::Close);
    net.finish_clean();

    let mut net = Net::new(6);
    net.connect(Side::A);
    net.connect(Side::B);
    net.step();
    net.step();
    assert_eq!(net.state(Side::A), State::SynRecv);
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::FinWait2);
    assert_eq!(net.state(Side::B), State::CloseWait);
    net.finish_clean();
}

#[test]
fn time_wait_answers_a_retransmitted_fin_and_restarts_its_timer() {
    let mut net = time_wait(7);
    let fin = net
        .sent_by(Side::B, 0)
        .into_iter()
        .find(|sent| sent.header.has(Flags::FIN))
        .unwrap()
        .header
        .clone();
    net.run_for(Duration::from_secs(30));
    let before = net.log.len();
    net.inject(Side::A, &fin, b"");
    assert_eq!(net.sent_by(Side::A, before)[0].header.flags, Flags::ACK);
    // B is closed and would answer the ACK with a reset.
    net.lose_in_flight();
    net.run_for(Duration::from_secs(59));
    assert_eq!(net.state(Side::A), State::TimeWait);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.state(Side::A), State::Close);
    net.finish_clean();
}

#[test]
fn a_reset_ends_time_wait_unless_tcp_rfc1337_is_set() {
    for protect in [false, true] {
        let mut net = time_wait(8);
        net.host(Side::A).config.tcp_rfc1337 = protect;
        let last = net.sent_by(Side::B, 0).last().unwrap().header.clone();
        let mut rst = last;
        rst.flags = Flags::RST;
        rst.seq += 1;
        net.inject(Side::A, &rst, b"");
        let expected = if protect { State::TimeWait } else { State::Close };
        assert_eq!(net.state(Side::A), expected);
        net.finish_clean();
    }
}

#[test]
fn a_new_syn_reopens_time_wait_with_a_later_iss() {
    let mut net = time_wait(9);
    net.run_for(Duration::from_secs(5));
    let old = net.host(Side::A).iss;
    net.host(Side::A).listening = true;
    net.host(Side::B).tcb = None;
    net.connect(Side::B);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.state(Side::B), State::Established);
    assert!(net.host(Side::A).iss.gt(old + 65_535));
    assert_eq!(
        net.count(Side::A, Counter::TcpExtTWRecycled),
        0,
        "TWRecycled was counted, which Linux does only for active opens"
    );
    net.finish_clean();
}

#[test]
fn an_old_syn_does_not_reopen_time_wait() {
    let mut net = time_wait(10);
    let syn = net.log[0].header.clone();
    let mut old = syn;
    // A SYN from B with the sequence number and an older timestamp of the connection that ended.
    (old.src_port, old.dst_port) = (old.dst_port, old.src_port);
    old.seq = net.sent_by(Side::B, 0)[0].header.seq;
    let value = net.sent_by(Side::B, 0)[0].header.options.timestamps.unwrap().0;
    old.options.timestamps = Some((value.wrapping_sub(1000), 0));
    net.inject(Side::A, &old, b"");
    assert_eq!(net.state(Side::A), State::TimeWait);
    assert_eq!(net.count(Side::A, Counter::TcpExtPAWSTimewait), 1);
    net.finish_clean();
}

#[test]
fn after_shutdown_read_a_read_returns_0_and_the_connection_can_send() {
    let mut net = quiet(11);
    net.call(Side::B, |tcb, _| tcb.shutdown_read());
    let mut buf = [0; 4];
    assert_eq!(net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, false)), Ok(0));
    net.send(Side::B, b"still writing");
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.recv(Side::A), b"still writing");
    net.finish_clean();
}

#[test]
fn a_peek_leaves_the_data_in_the_queue() {
    let mut net = quiet(12);
    net.send(Side::A, b"abcdef");
    net.run_for(Duration::from_millis(50));
    let mut buf = [0; 4];
    assert_eq!(net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, true)), Ok(4));
    assert_eq!(&buf, b"abcd");
    assert_eq!(net.tcb(Side::B).readable_bytes(), 6);
    assert_eq!(net.recv(Side::B), b"abcdef");
    net.finish_clean();
}

/// A `TCP_LINGER2` below `tcp_fin_timeout` shortens FIN-WAIT-2. A value of zero skips this state.
#[test]
fn tcp_linger2_limits_the_fin_wait_2_of_an_orphan() {
    let mut net = quiet(13);
    net.tcb(Side::A).set_linger2(Some(Duration::from_secs(5)));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_secs(4));
    assert_eq!(net.state(Side::A), State::FinWait2);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.state(Side::A), State::Close);
    net.finish_clean();

    let mut net = quiet(14);
    net.tcb(Side::A).set_linger2(Some(Duration::ZERO));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPAbortOnLinger), 1);
    assert_eq!(net.tcb(Side::B).take_error(), Some(TcpError::BrokenPipe));
    net.finish_clean();

    // A part of a millisecond is not zero.
    let mut net = quiet(14);
    net.tcb(Side::A).set_linger2(Some(Duration::from_micros(500)));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(50));
    assert_eq!(net.state(Side::A), State::FinWait2);
    net.finish_clean();
}

#[test]
fn tcp_challenge_ack_limit_bounds_the_challenge_acks_of_a_host() {
    let mut net = quiet(15);
    net.host(Side::A).config.tcp_challenge_ack_limit = 10;
    net.host(Side::A).config.tcp_invalid_ratelimit = Duration::ZERO;
    let mut rst = net.forge(Side::A);
    rst.flags = Flags::RST;
    rst.seq += 1;
    for _ in 0..100 {
        net.inject(Side::A, &rst, b"");
    }
    let sent = net.count(Side::A, Counter::TcpExtTCPChallengeACK);
    assert!((5..15).contains(&sent), "{sent}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPACKSkippedChallenge), 100 - sent);
    assert_eq!(net.state(Side::A), State::Established);
    net.finish_clean();
}
