//! The idle timeout: connections on which nothing moves end, and others do not.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, Keepalive, SendError, State, TcpError};

const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };
const TIMEOUT: Duration = Duration::from_secs(60);

/// An established connection whose A has this setting.
fn with_timeout(seed: u64, timeout: Duration) -> Net {
    let mut net = Net::new(seed);
    net.host(Side::A).config.tcp_idle_timeout = timeout;
    net.open();
    net
}

/// A has been closed by the idle timeout, and B has heard of it.
fn assert_reaped(mut net: Net) {
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
    let counters = [Counter::IdleTimeouts, Counter::TcpExtTCPAbortOnTimeout, Counter::TcpOutRsts];
    assert_eq!(counters.map(|counter| net.count(Side::A, counter)), [1, 1, 1]);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.state(Side::B), State::Close, "the reset reached B");
    net.finish_clean();
}

#[test]
fn an_idle_connection_is_reset_exactly_at_its_timeout() {
    let mut net = with_timeout(1, TIMEOUT);
    net.run_for(Duration::from_secs(5));
    net.send(Side::B, b"request");
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.recv(Side::A), b"request");
    net.send(Side::A, b"response");
    net.run_for(Duration::from_secs(1));
    net.recv(Side::B);
    let last = net.tcb(Side::A).rate.delivered_at();
    let before = net.log.len();
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(net.now - last, TIMEOUT);
    let sent = net.sent_by(Side::A, before);
    assert_eq!(sent.len(), 1, "no probes");
    assert!(sent[0].header.flags.contains(Flags::RST));
    assert_reaped(net);
}

#[test]
fn a_connection_that_moves_lives() {
    let mut net = with_timeout(2, TIMEOUT);
    for turn in 0..40 {
        net.run_for(TIMEOUT - Duration::from_secs(5));
        let from = if turn % 2 == 0 { Side::A } else { Side::B };
        net.send(from, b"x");
    }
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.count(Side::A, Counter::IdleTimeouts), 0);
    net.finish_clean();
}

#[test]
fn without_the_setting_an_idle_connection_waits_for_ever() {
    let mut net = with_timeout(3, Duration::ZERO);
    net.run_for(Duration::from_secs(30 * 24 * 3600));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.tcb(Side::A).next_deadline(), None, "and without a timer");
    net.finish_clean();
}

#[test]
fn a_peer_that_holds_its_window_closed_is_reset_although_it_answers_probes() {
    let mut net = Net::new(4);
    net.host(Side::A).config.tcp_idle_timeout = TIMEOUT;
    net.host(Side::B).options.rcvbuf = Some(16_384);
    net.open();
    for _ in 0..40 {
        while !matches!(
            net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[9; 10_000][..]], false)),
            Err(SendError::WouldBlock)
        ) {}
        net.run_for(Duration::from_millis(50));
    }
    assert_eq!(net.tcb(Side::A).info().snd_wnd, 0, "the window is closed");
    let last = net.tcb(Side::A).rate.delivered_at();
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert!(net.count(Side::A, Counter::TcpExtTCPWinProbe) >= 5);
    assert_eq!(net.now - last, TIMEOUT);
    assert_reaped(net);
}

#[test]
fn answers_to_keepalive_probes_move_nothing() {
    let mut net = with_timeout(5, TIMEOUT);
    let times =
        Keepalive { time: Duration::from_secs(10), interval: Duration::from_secs(3), probes: 3 };
    let start = net.now;
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(times)));
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert!((net.now - start) <= TIMEOUT);
    // One each ten seconds, as without the idle timeout.
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPKeepAlive), 5);
    assert_reaped(net);
}

#[test]
fn keepalive_finds_a_dead_peer_before_the_idle_timeout_does() {
    let mut net = with_timeout(6, Duration::from_secs(3600));
    let times =
        Keepalive { time: Duration::from_secs(10), interval: Duration::from_secs(3), probes: 3 };
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(times)));
    net.impairment = BLACK_HOLE;
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!((net.now - start).as_secs(), 10 + 3 * 3);
    assert_eq!(net.count(Side::A, Counter::IdleTimeouts), 0);
    net.finish_clean();
}

#[test]
fn what_is_sent_again_and_again_moves_nothing() {
    let mut net = with_timeout(7, TIMEOUT);
    net.run_for(Duration::from_secs(1));
    net.impairment = BLACK_HOLE;
    let start = net.now;
    net.send(Side::A, b"lost");
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(net.now - start, TIMEOUT, "long before tcp_retries2");
    assert_eq!(net.count(Side::A, Counter::IdleTimeouts), 1);
    net.finish_clean();
}

#[test]
fn a_socket_has_a_timeout_of_its_own_or_none() {
    let mut net = with_timeout(8, TIMEOUT);
    net.call(Side::A, |tcb, cx| tcb.set_idle_timeout(cx, Some(Duration::ZERO)));
    assert_eq!(net.tcb(Side::A).idle_timeout(), Some(Duration::ZERO));
    net.run_for(TIMEOUT * 100);
    assert_eq!(net.state(Side::A), State::Established, "zero is none");
    // The time counts from the call, however long the connection has been idle.
    net.call(Side::A, |tcb, cx| tcb.set_idle_timeout(cx, Some(Duration::from_secs(7))));
    let set = net.now;
    net.run_for(Duration::from_secs(3));
    net.call(Side::A, |tcb, cx| tcb.set_keepalive_times(cx, Keepalive::default()));
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!((net.now - set).as_secs(), 7, "another option of the timer changes nothing");
    assert_reaped(net);
}

#[test]
fn the_peers_fin_gives_the_application_the_whole_time_to_close() {
    let mut net = with_timeout(9, TIMEOUT);
    net.run_for(TIMEOUT - Duration::from_secs(2));
    net.call(Side::B, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_secs(30));
    assert_eq!(net.state(Side::A), State::CloseWait);
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.count(Side::A, Counter::IdleTimeouts), 0);
    net.finish_clean();
}

#[test]
fn an_orphan_in_fin_wait_2_keeps_its_own_limit() {
    let mut net = with_timeout(10, Duration::from_secs(3600));
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::FinWait2);
    // A handle that outlives close does not take the timer away.
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, None));
    net.call(Side::A, |tcb, cx| tcb.set_idle_timeout(cx, Some(TIMEOUT * 10)));
    net.run_for(Duration::from_secs(61));
    assert_eq!(net.state(Side::A), State::Close, "tcp_fin_timeout");
    net.finish_clean();
}
