//! Recovery from the loss of chosen segments, mostly without SACK: which mechanism repairs the
//! loss, and how long the repair takes.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Impairment, Net, Side};
use crate::{Algorithm, Counter};

/// An established connection with a large congestion window.
fn warm(seed: u64) -> Net {
    warmed(Net::new(seed))
}

/// Like [`warm`] but without SACK, so that A counts duplicate ACKs.
fn warm_reno(seed: u64) -> Net {
    let mut net = Net::new(seed);
    net.host(Side::A).config.tcp_sack = false;
    warmed(net)
}

/// Opens the connection and transfers data until the congestion window is large.
fn warmed(mut net: Net) -> Net {
    net.open();
    for _ in 0..8 {
        net.send(Side::A, &[1; 14_480]);
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.recv(Side::B).len(), 14_480);
    }
    net
}

const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };

/// Sends `count` full segments, of which the network loses those with an index in `lost`. Returns
/// the time until B has read the data of all segments.
fn send_with_losses(net: &mut Net, count: usize, lost: &[usize]) -> Duration {
    net.tcb(Side::A).set_nodelay(true);
    let start = net.now;
    for index in 0..count {
        net.impairment = if lost.contains(&index) { BLACK_HOLE } else { Impairment::default() };
        net.send(Side::A, &[1; 1448]);
    }
    net.impairment = Impairment::default();
    let mut got = 0;
    while got < count * 1448 {
        assert!(net.step());
        got += net.recv(Side::B).len();
    }
    net.now - start
}

#[test]
fn fast_retransmit_repairs_a_single_loss() {
    let mut net = warm_reno(1);
    let took = send_with_losses(&mut net, 10, &[2]);
    assert_eq!(
        took,
        Duration::from_millis(30),
        "the data and its repair did not take one and a half round trips"
    );
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPRenoRecovery), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPFastRetrans), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    net.finish_clean();
}

#[test]
fn two_losses_in_a_window_take_a_round_trip_each() {
    let mut net = warm_reno(2);
    let took = send_with_losses(&mut net, 10, &[2, 5]);
    assert_eq!(took, Duration::from_millis(50));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPRenoRecovery), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    net.finish_clean();
}

#[test]
fn a_lost_tail_waits_for_the_timeout() {
    let mut net = warm_reno(3);
    let took = send_with_losses(&mut net, 10, &[8, 9]);
    assert!(took > Duration::from_millis(200), "{took:?}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 1);
    net.finish_clean();
}

#[test]
fn early_retransmit_repairs_a_loss_among_three_segments() {
    let mut net = warm_reno(4);
    let took = send_with_losses(&mut net, 3, &[0]);
    assert_eq!(took, Duration::from_millis(30));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    net.finish_clean();
}

#[test]
fn the_segments_of_a_lost_superframe_are_repaired_in_few_round_trips() {
    let mut net = Net::new(5);
    for side in [Side::A, Side::B] {
        net.host(side).path.gso_bytes_max = 65_536;
    }
    net.host(Side::A).config.tcp_sack = false;
    // A superframe (a packet of several segments) carries a whole write, for any round-trip time.
    net.host(Side::A).config.tcp_tso_rtt_log = 63;
    net.open();
    for _ in 0..20 {
        net.send(Side::A, &[1; 30_000]);
        net.run_for(Duration::from_millis(100));
        net.recv(Side::B);
    }
    net.tcb(Side::A).set_nodelay(true);
    let start = net.now;
    net.impairment = BLACK_HOLE;
    net.send(Side::A, &[1; 30_000]);
    net.impairment = Impairment::default();
    for _ in 0..4 {
        net.send(Side::A, &[1; 5000]);
    }
    let mut got = 0;
    while got < 50_000 {
        assert!(net.step());
        got += net.recv(Side::B).len();
    }
    let took = net.now - start;
    assert!(took <= Duration::from_millis(130), "the repair of 21 segments took {took:?}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    net.finish_clean();
}

#[test]
fn every_segment_out_of_order_is_answered_at_once() {
    let mut net = warm(6);
    // ACKs after the third may be compressed (`tests::acks`); this test disables that.
    net.host(Side::B).config.tcp_comp_sack_nr = 0;
    net.impairment = BLACK_HOLE;
    net.tcb(Side::A).set_nodelay(true);
    net.send(Side::A, &[1; 1448]);
    net.impairment = Impairment::default();
    let before = net.log.len();
    for _ in 0..5 {
        net.send(Side::A, &[1; 1448]);
    }
    net.run_for(Duration::from_millis(10));
    let expected = net.tcb(Side::B).rcv_nxt;
    let acks: Vec<_> = net.sent_by(Side::B, before).iter().map(|sent| sent.header.ack).collect();
    assert_eq!(acks, [expected; 5]);
    net.finish_clean();
}

#[test]
fn two_timeouts_set_ssthresh_to_half_the_window_once_and_start_slow_start() {
    let mut net = Net::new(7);
    net.host(Side::A).options.congestion = Some(Algorithm::Reno);
    let mut net = warmed(net);
    net.tcb(Side::A).set_nodelay(true);
    let window = net.tcb(Side::A).info().cwnd;
    net.impairment = BLACK_HOLE;
    for _ in 0..20 {
        net.send(Side::A, &[1; 1448]);
    }
    net.run_for(Duration::from_millis(800));
    let info = net.tcb(Side::A).info();
    assert_eq!(info.cwnd, 1448);
    assert_eq!(info.ssthresh, window / 2);
    assert_eq!(info.retransmits, 2);
    net.impairment = Impairment::default();
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.recv(Side::B).len(), 20 * 1448);
    let info = net.tcb(Side::A).info();
    assert_eq!((info.retransmits, info.backoff, info.lost), (0, 0, 0));
    net.finish_clean();
}

#[test]
fn a_retransmission_without_timestamps_gives_no_rtt_sample() {
    let mut net = Net::new(8);
    net.host(Side::A).config.tcp_timestamps = false;
    net.open();
    net.send(Side::A, b"measure");
    net.run_for(Duration::from_secs(1));
    let before = net.tcb(Side::A).info().rtt;
    net.impairment = BLACK_HOLE;
    net.send(Side::A, b"lost once");
    net.run_for(Duration::from_millis(100));
    net.impairment = Impairment::default();
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.recv(Side::B), b"measurelost once");
    assert_eq!(net.tcb(Side::A).info().rtt, before);
    net.finish_clean();
}

#[test]
fn duplicate_acks_after_recovery_start_no_second_recovery() {
    let mut net = warm_reno(9);
    send_with_losses(&mut net, 10, &[2]);
    net.run_for(Duration::from_secs(1));
    let duplicate = net.forge(Side::A);
    for _ in 0..10 {
        net.inject(Side::A, &duplicate, b"");
    }
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPRenoRecovery), 1);
    net.finish_clean();
}
