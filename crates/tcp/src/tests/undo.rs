//! Undo of window reductions after a spurious loss detection, by each kind of evidence: F-RTO,
//! timestamps, and D-SACK.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Counter, TcpConfig, TcpInfo};

const MSS: usize = 1448;
const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };

/// An established connection with a large congestion window. No tail loss probe precedes a timeout.
fn warm(seed: u64, timestamps: bool) -> Net {
    warm_with(seed, |config| config.tcp_timestamps = timestamps)
}

/// Does the same as [`warm`], with other settings of A.
fn warm_with(seed: u64, configure: impl FnOnce(&mut TcpConfig)) -> Net {
    let mut net = Net::new(seed);
    let config = &mut net.host(Side::A).config;
    config.tcp_early_retrans = 0;
    configure(config);
    net.open();
    for _ in 0..8 {
        net.send(Side::A, &[1; 10 * MSS]);
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.recv(Side::B).len(), 10 * MSS);
    }
    net.tcb(Side::A).set_nodelay(true);
    net
}

/// Adds 300 ms, more than the RTO, to the delay of the path for a moment, while more data is queued
/// than the window allows. Returns A's state before that moment and after the first ACKs.
fn delay_spike(net: &mut Net) -> (TcpInfo, TcpInfo) {
    let before = net.tcb(Side::A).info();
    let delay = net.delay;
    net.delay += Duration::from_millis(300);
    net.send(Side::A, &[1; 40 * MSS]);
    net.run_for(Duration::from_millis(300));
    net.delay = delay;
    net.run_for(Duration::from_millis(25));
    let after = net.tcb(Side::A).info();
    net.run_for(Duration::from_millis(1000));
    assert_eq!(net.recv(Side::B).len(), 40 * MSS);
    (before, after)
}

#[test]
fn frto_undoes_a_spurious_timeout() {
    let mut net = warm(1, false);
    let (before, after) = delay_spike(&mut net);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSpuriousRTOs), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossUndo), 1);
    assert!(after.cwnd >= before.cwnd && after.ssthresh == before.ssthresh, "{after:?}");
    assert!(after.total_retrans <= 1, "{after:?}");
    net.finish_clean();
}

#[test]
fn a_timestamp_undoes_a_spurious_timeout() {
    for sack in [false, true] {
        let mut net = warm_with(2, |config| {
            config.tcp_sack = sack;
            config.tcp_frto = 0;
        });
        let (before, after) = delay_spike(&mut net);
        assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 1, "sack {sack}");
        assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossUndo), 1, "sack {sack}");
        assert!(after.cwnd >= before.cwnd && after.ssthresh == before.ssthresh, "{after:?}");
        assert!(after.total_retrans <= 1, "{after:?}");
        net.finish_clean();
    }
}

#[test]
fn without_frto_and_timestamps_a_spurious_timeout_is_not_undone() {
    let mut net = warm_with(3, |config| {
        config.tcp_timestamps = false;
        config.tcp_frto = 0;
    });
    let (before, after) = delay_spike(&mut net);
    assert!(after.ssthresh < before.ssthresh, "{after:?}");
    net.finish_clean();
}

#[test]
fn a_genuine_timeout_is_not_undone() {
    for timestamps in [false, true] {
        let mut net = warm(4, timestamps);
        let before = net.tcb(Side::A).info();
        net.impairment = BLACK_HOLE;
        for _ in 0..10 {
            net.send(Side::A, &[1; MSS]);
        }
        net.run_for(Duration::from_millis(100));
        net.impairment = Impairment::default();
        for _ in 0..4 {
            net.send(Side::A, &[2; MSS]);
        }
        net.run_for(Duration::from_secs(2));
        assert_eq!(net.recv(Side::B).len(), 14 * MSS);
        let after = net.tcb(Side::A).info();
        assert!(after.ssthresh < before.ssthresh);
        for undo in [Counter::TcpExtTCPLossUndo, Counter::TcpExtTCPSpuriousRTOs] {
            assert_eq!(net.count(Side::A, undo), 0);
        }
        net.finish_clean();
    }
}

/// Lets eight segments overtake one by more than the reordering window. Returns A's state before
/// and after.
fn overtaken(net: &mut Net) -> (TcpInfo, TcpInfo) {
    let before = net.tcb(Side::A).info();
    let delay = net.delay;
    net.delay = delay + Duration::from_millis(15);
    net.send(Side::A, &[1; MSS]);
    net.delay = delay;
    net.send(Side::A, &[1; 8 * MSS]);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.recv(Side::B).len(), 9 * MSS);
    (before, net.tcb(Side::A).info())
}

#[test]
fn a_dsack_undoes_a_needless_fast_retransmit() {
    let mut net = warm(5, false);
    let (before, after) = overtaken(&mut net);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPDSACKUndo), 1);
    assert!(after.cwnd >= before.cwnd && after.ssthresh == before.ssthresh, "{after:?}");
    net.finish_clean();
}

#[test]
fn a_timestamp_undoes_a_needless_fast_retransmit() {
    let mut net = warm(6, true);
    let (before, after) = overtaken(&mut net);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPFullUndo), 1);
    assert!(after.cwnd >= before.cwnd && after.ssthresh == before.ssthresh, "{after:?}");
    net.finish_clean();
}
