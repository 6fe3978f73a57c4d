//! The idle timeout ends connections without progress, and only those. Progress is the peer's FIN,
//! or new payload that arrives, is acknowledged, or is sent while none is in flight.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, Keepalive, SendError, State, TcpError};

const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };
const TIMEOUT: Duration = Duration::from_secs(60);

/// An established connection on which A has this idle timeout.
fn with_timeout(seed: u64, timeout: Duration) -> Net {
    let mut net = Net::new(seed);
    net.host(Side::A).config.tcp_idle_timeout = timeout;
    net.open();
    net
}

/// Asserts that the idle timeout has closed A, and that A's reset closes B.
fn assert_timed_out(mut net: Net) {
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
    let counters = [Counter::IdleTimeouts, Counter::TcpExtTCPAbortOnTimeout, Counter::TcpOutRsts];
    assert_eq!(counters.map(|counter| net.count(Side::A, counter)), [1, 1, 1]);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.state(Side::B), State::Close, "the reset did not close B");
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
    assert_eq!(sent.len(), 1, "A did not send exactly one reset");
    assert!(sent[0].header.flags.contains(Flags::RST));
    assert_timed_out(net);
}

#[test]
fn a_connection_that_delivers_data_is_kept() {
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
fn without_the_setting_an_idle_connection_is_kept_forever() {
    let mut net = with_timeout(3, Duration::ZERO);
    net.run_for(Duration::from_secs(30 * 24 * 3600));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.tcb(Side::A).next_deadline(), None, "an idle connection has a timer");
    net.finish_clean();
}

#[test]
fn a_peer_that_keeps_its_window_closed_is_reset_although_it_answers_probes() {
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
    assert_eq!(net.tcb(Side::A).info().snd_wnd, 0, "the window is not closed");
    let last = net.tcb(Side::A).rate.delivered_at();
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert!(net.count(Side::A, Counter::TcpExtTCPWinProbe) >= 5);
    assert_eq!(net.now - last, TIMEOUT);
    assert_timed_out(net);
}

#[test]
fn answers_to_keepalive_probes_do_not_extend_the_timeout() {
    let mut net = with_timeout(5, TIMEOUT);
    let times =
        Keepalive { time: Duration::from_secs(10), interval: Duration::from_secs(3), probes: 3 };
    let start = net.now;
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(times)));
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert!((net.now - start) <= TIMEOUT);
    // One probe is sent every ten seconds, as without the idle timeout.
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPKeepAlive), 5);
    assert_timed_out(net);
}

#[test]
fn keepalive_detects_a_dead_peer_before_the_idle_timeout() {
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
fn retransmissions_do_not_extend_the_timeout() {
    let mut net = with_timeout(7, TIMEOUT);
    net.run_for(Duration::from_secs(1));
    net.impairment = BLACK_HOLE;
    let start = net.now;
    net.send(Side::A, b"lost");
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(net.now - start, TIMEOUT, "the connection did not end at the idle timeout");
    assert_eq!(net.count(Side::A, Counter::IdleTimeouts), 1);
    net.finish_clean();
}

#[test]
fn a_socket_can_set_or_disable_its_own_timeout() {
    let mut net = with_timeout(8, TIMEOUT);
    net.call(Side::A, |tcb, cx| tcb.set_idle_timeout(cx, Some(Duration::ZERO)));
    assert_eq!(net.tcb(Side::A).idle_timeout(), Some(Duration::ZERO));
    net.run_for(TIMEOUT * 100);
    assert_eq!(net.state(Side::A), State::Established, "the timeout of zero ended the connection");
    // The timeout starts at the call, however long the connection has been idle.
    net.call(Side::A, |tcb, cx| tcb.set_idle_timeout(cx, Some(Duration::from_secs(7))));
    let set = net.now;
    net.run_for(Duration::from_secs(3));
    net.call(Side::A, |tcb, cx| tcb.set_keepalive_times(cx, Keepalive::default()));
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!((net.now - set).as_secs(), 7, "setting the keepalive times moved the idle timeout");
    assert_timed_out(net);
}

#[test]
fn a_fin_of_the_peer_restarts_the_timeout() {
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
fn the_idle_timeout_does_not_replace_the_fin_wait_2_timeout() {
    let mut net = with_timeout(10, Duration::from_secs(3600));
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::FinWait2);
    // Option calls on the socket after close do not stop the FIN-WAIT-2 timer.
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, None));
    net.call(Side::A, |tcb, cx| tcb.set_idle_timeout(cx, Some(TIMEOUT * 10)));
    net.run_for(Duration::from_secs(61));
    assert_eq!(
        net.state(Side::A),
        State::Close,
        "the connection has not ended after tcp_fin_timeout"
    );
    net.finish_clean();
}
