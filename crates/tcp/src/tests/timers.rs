//! Delayed ACKs, retransmission timeouts, keepalive, FIN-WAIT-2, and the limits at which a
//! connection ends.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, Keepalive, SendError, State, TcpError};

const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };

/// Returns the milliseconds between the segments that A has sent since `from`.
fn gaps(net: &Net, from: usize) -> Vec<u128> {
    let sent = net.sent_by(Side::A, from);
    sent.windows(2).map(|pair| (pair[1].at - pair[0].at).as_millis()).collect()
}

#[test]
fn a_syn_is_retransmitted_ten_times_at_growing_intervals_and_then_times_out() {
    let mut net = Net::new(1);
    net.impairment = BLACK_HOLE;
    net.connect(Side::A);
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    // The first intervals are linear (tcp_syn_linear_timeouts), the others double, up to
    // tcp_syn_retries.
    assert_eq!(net.now - start, Duration::from_secs(131));
    assert_eq!(gaps(&net, 0), [1000, 1000, 1000, 1000, 1000, 2000, 4000, 8000, 16000, 32000]);
    assert!(net.log.iter().all(|sent| sent.header.flags == Flags::SYN));
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSynRetrans), 10);
    net.finish_clean();
}

#[test]
fn a_request_is_freed_after_five_retransmissions_of_its_syn_ack() {
    let mut net = Net::new(2);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.step();
    net.impairment = BLACK_HOLE;
    net.lose_in_flight();
    net.run_until(|net| net.state(Side::B) == State::Listen);
    let syn_ack = Flags::SYN | Flags::ACK;
    let sent = net.sent_by(Side::B, 0);
    assert_eq!(sent.iter().filter(|sent| sent.header.flags == syn_ack).count(), 6);
    assert_eq!(net.count(Side::B, Counter::TcpAttemptFails), 1);
    net.finish_clean();
}

#[test]
fn a_second_segment_is_acknowledged_at_once_and_a_single_one_within_40_ms() {
    let mut net = Net::established(3);
    // B is in pingpong mode, so that it sends no quick ACKs.
    net.tcb(Side::B).set_quickack(false);
    net.send(Side::A, b"one");
    let before = net.log.len();
    net.step();
    let arrived = net.now;
    assert!(net.sent_by(Side::B, before).is_empty());
    net.run_for(Duration::from_millis(200));
    let ack_at = net.sent_by(Side::B, before)[0].at;
    assert_eq!(ack_at - arrived, Duration::from_millis(40));
    assert_eq!(net.count(Side::B, Counter::TcpExtDelayedACKs), 1);

    net.tcb(Side::B).set_quickack(false);
    net.send(Side::A, &[1; 3 * 1448]);
    let before = net.log.len();
    net.run_for(Duration::from_millis(10));
    let acks = net.sent_by(Side::B, before);
    assert_eq!(acks.len(), 1, "not exactly one ACK was sent at once for three segments");
    assert_eq!(acks[0].at, net.now);
    net.finish_clean();
}

#[test]
fn a_response_carries_the_ack() {
    let mut net = Net::established(4);
    net.run_for(Duration::from_millis(100));
    for _ in 0..20 {
        net.send(Side::A, b"request");
        net.run_for(Duration::from_millis(10));
        assert_eq!(net.recv(Side::B), b"request");
        net.send(Side::B, b"answer");
        net.run_for(Duration::from_millis(10));
        assert_eq!(net.recv(Side::A), b"answer");
    }
    let before = net.log.len();
    net.send(Side::A, b"request");
    net.run_for(Duration::from_millis(10));
    net.recv(Side::B);
    net.send(Side::B, b"answer");
    net.run_for(Duration::from_millis(10));
    assert_eq!(net.log.len() - before, 2, "not exactly one segment was sent in each direction");
    net.finish_clean();
}

#[test]
fn the_first_segments_of_a_connection_are_acknowledged_at_once() {
    let mut net = Net::established(5);
    net.tcb(Side::A).set_nodelay(true);
    let before = net.log.len();
    for _ in 0..5 {
        net.send(Side::A, b"x");
        net.run_for(Duration::from_millis(10));
    }
    assert_eq!(net.sent_by(Side::B, before).len(), 5);
    net.finish_clean();
}

#[test]
fn the_rto_doubles_and_the_connection_ends_after_tcp_retries2() {
    let mut net = Net::new(6);
    // Without tail loss probes, which would be sent before the first timeout.
    net.host(Side::A).config.tcp_early_retrans = 0;
    net.open();
    net.run_for(Duration::from_millis(100));
    net.impairment = BLACK_HOLE;
    let before = net.log.len();
    net.send(Side::A, b"lost");
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    let gaps = gaps(&net, before);
    assert_eq!(&gaps[..5], [220, 440, 880, 1760, 3520]);
    assert_eq!(gaps.iter().max(), Some(&120_000));
    assert_eq!(gaps.len(), 15);
    let took = (net.now - start).as_secs();
    assert!((924..1100).contains(&took), "gave up after {took} s");
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPAbortOnTimeout), 1);
    let sent = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&b"x"[..]], false));
    assert_eq!(sent, Err(SendError::BrokenPipe));
    net.finish_clean();
}

#[test]
fn a_user_timeout_replaces_tcp_retries2() {
    let mut net = Net::established(7);
    net.run_for(Duration::from_millis(100));
    net.tcb(Side::A).set_user_timeout(Some(Duration::from_secs(5)));
    net.impairment = BLACK_HOLE;
    net.send(Side::A, b"lost");
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    let took = net.now - start;
    assert!((5000..5500).contains(&took.as_millis()), "{took:?}");
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
    net.finish_clean();
}

#[test]
fn an_orphan_whose_peer_does_not_answer_ends_after_a_few_minutes() {
    let mut net = Net::established(8);
    net.run_for(Duration::from_millis(100));
    net.impairment = BLACK_HOLE;
    net.send(Side::A, b"lost");
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    let took = (net.now - start).as_secs();
    assert!((100..250).contains(&took), "gave up after {took} s");
    net.finish_clean();
}

#[test]
fn keepalive_detects_a_dead_peer() {
    let mut net = Net::established(9);
    net.run_for(Duration::from_millis(100));
    let keepalive =
        Keepalive { time: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 };
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(keepalive)));
    net.impairment = BLACK_HOLE;
    let before = net.log.len();
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!((net.now - start).as_secs(), 7200 + 9 * 75);
    let sent = net.sent_by(Side::A, before);
    assert_eq!(sent.len(), 10, "A did not send nine probes and a reset");
    assert!(sent[9].header.flags.contains(Flags::RST));
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPKeepAlive), 9);
    net.finish_clean();
}

#[test]
fn keepalive_keeps_a_connection_whose_peer_answers() {
    let mut net = Net::established(10);
    net.run_for(Duration::from_millis(100));
    let keepalive =
        Keepalive { time: Duration::from_secs(10), interval: Duration::from_secs(1), probes: 3 };
    net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(keepalive)));
    let before = net.log.len();
    net.run_for(Duration::from_secs(100));
    assert_eq!(net.state(Side::A), State::Established);
    let probes = net.sent_by(Side::A, before).len();
    let answers = net.sent_by(Side::B, before).len();
    assert_eq!(probes, answers);
    assert!((8..=10).contains(&probes), "{probes}");
    net.finish_clean();
}

/// tcp(7): with keepalive, `TCP_USER_TIMEOUT` determines when the connection ends, and
/// `TCP_KEEPCNT` has no effect. But at least one probe must stay unanswered before.
#[test]
fn a_user_timeout_ends_keepalive_by_time_instead_of_count() {
    for (timeout, ends, probes) in [(30, 30, 20), (5, 11, 1)] {
        let mut net = Net::established(14);
        net.run_for(Duration::from_millis(100));
        let keepalive = Keepalive {
            time: Duration::from_secs(10),
            interval: Duration::from_secs(1),
            probes: 3,
        };
        net.tcb(Side::A).set_user_timeout(Some(Duration::from_secs(timeout)));
        net.call(Side::A, |tcb, cx| tcb.set_keepalive(cx, Some(keepalive)));
        net.impairment = BLACK_HOLE;
        let start = net.now;
        net.run_until(|net| net.state(Side::A) == State::Close);
        assert_eq!((net.now - start).as_secs(), ends);
        assert_eq!(net.count(Side::A, Counter::TcpExtTCPKeepAlive), probes);
        assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::TimedOut));
        net.finish_clean();
    }
}

#[test]
fn tcp_orphan_retries_limits_the_retransmissions_of_an_orphan() {
    let mut net = Net::established(15);
    net.run_for(Duration::from_millis(100));
    net.host(Side::A).config.tcp_orphan_retries = 2;
    net.impairment = BLACK_HOLE;
    net.send(Side::A, b"lost");
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    let start = net.now;
    net.run_until(|net| net.state(Side::A) == State::Close);
    // The timeouts of the segment and of its two retransmissions take 200, 400 and 800 ms. The
    // limit is checked when the timer expires next.
    let took = (net.now - start).as_millis();
    assert!((1400..3600).contains(&took), "gave up after {took} ms");
    net.finish_clean();
}

#[test]
fn fin_wait_2_of_an_orphan_ends_after_its_timeout() {
    let mut net = Net::established(11);
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::FinWait2);
    net.run_for(Duration::from_secs(59));
    assert_eq!(net.state(Side::A), State::FinWait2);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.state(Side::A), State::Close);
    net.finish_clean();
}

#[test]
fn fin_wait_2_of_an_open_socket_has_no_timeout() {
    let mut net = Net::established(12);
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_secs(3600));
    assert_eq!(net.state(Side::A), State::FinWait2);
    net.finish_clean();
}

#[test]
fn an_idle_connection_has_no_deadline() {
    let mut net = Net::established(13);
    net.send(Side::A, b"x");
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.tcb(Side::A).next_deadline(), None);
    assert_eq!(net.tcb(Side::B).next_deadline(), None);
    net.finish_clean();
}

/// If the device is slow, not the network, another copy of the segment in the device's queue would
/// only delay the connection further.
#[test]
fn a_segment_still_in_the_host_queue_is_not_retransmitted() {
    let mut net = Net::established(14);
    net.run_for(Duration::from_millis(100));
    net.holds = true;
    let before = net.log.len();
    net.send(Side::A, b"slow");
    net.run_for(Duration::from_secs(2));
    assert_eq!(
        net.sent_by(Side::A, before).len(),
        1,
        "a probe or a timeout retransmitted the segment"
    );
    assert!(net.count(Side::A, Counter::TcpExtTCPSpuriousRtxHostQueues) >= 2);
    assert_eq!(net.count(Side::A, Counter::TcpRetransSegs), 0);
    net.release();
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.recv(Side::B), b"slow");
    assert_eq!(net.sent_by(Side::A, before).len(), 1);
    net.finish_clean();
}
