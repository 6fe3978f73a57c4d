//! Recovery from the loss of chosen segments with SACK, RACK, PRR and tail loss probes.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Impairment, Net, Side};
use crate::{Counter, SeqNum};

const MSS: u32 = 1448;
const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };

/// An established connection with a large congestion window.
fn warm(seed: u64) -> Net {
    let mut net = Net::established(seed);
    for _ in 0..8 {
        net.send(Side::A, &[1; 14_480]);
        net.run_for(Duration::from_millis(100));
        assert_eq!(net.recv(Side::B).len(), 14_480);
    }
    net.tcb(Side::A).set_nodelay(true);
    net
}

/// Sends `count` full segments, of which the network loses those with an index in `lost`.
fn send_losing(net: &mut Net, count: usize, lost: &[usize]) {
    for index in 0..count {
        net.impairment = if lost.contains(&index) { BLACK_HOLE } else { Impairment::default() };
        net.send(Side::A, &[1; MSS as usize]);
    }
    net.impairment = Impairment::default();
}

/// Returns the time until B has read `bytes`.
fn read_all(net: &mut Net, bytes: usize) -> Duration {
    let start = net.now;
    let mut got = 0;
    while got < bytes {
        assert!(net.step());
        got += net.recv(Side::B).len();
    }
    net.now - start
}

/// Returns the number of segments that A has retransmitted.
fn retransmitted(net: &mut Net) -> u32 {
    net.tcb(Side::A).info().total_retrans
}

#[test]
fn many_losses_in_a_window_are_repaired_in_one_round_trip() {
    let mut net = warm(1);
    send_losing(&mut net, 16, &[2, 3, 5, 7, 11, 12]);
    // Half a round trip for the data, one round trip for the repair, and the millisecond for which
    // ACKs after the third are compressed.
    assert_eq!(read_all(&mut net, 16 * MSS as usize), Duration::from_millis(31));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    assert_eq!(retransmitted(&mut net), 6);
    net.finish_clean();
}

#[test]
fn a_tail_loss_probe_detects_a_lost_tail() {
    let mut net = warm(2);
    send_losing(&mut net, 10, &[7, 8, 9]);
    let took = read_all(&mut net, 10 * MSS as usize);
    assert!(took < Duration::from_millis(150), "{took:?}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossProbes), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    assert_eq!(retransmitted(&mut net), 3);
    net.finish_clean();
}

#[test]
fn a_probe_that_repairs_the_only_loss_reduces_the_window() {
    let mut net = warm(3);
    let before = net.tcb(Side::A).info().cwnd;
    send_losing(&mut net, 10, &[9]);
    read_all(&mut net, 10 * MSS as usize);
    net.send(Side::A, &[1; MSS as usize]);
    net.run_for(Duration::from_millis(300));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossProbeRecovery), 1);
    assert!(net.tcb(Side::A).info().cwnd < before);
    net.finish_clean();
}

#[test]
fn a_probe_of_data_that_had_arrived_does_not_reduce_the_window() {
    let mut net = warm(4);
    let before = net.tcb(Side::A).info();
    // Only the ACKs are lost: B has received all data.
    net.send(Side::A, &[1; 2 * MSS as usize]);
    net.impairment = BLACK_HOLE;
    net.run_for(Duration::from_millis(30));
    net.impairment = Impairment::default();
    net.run_for(Duration::from_millis(150));
    net.send(Side::A, &[1; MSS as usize]);
    net.run_for(Duration::from_millis(30));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossProbes), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPDSACKRecv), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossProbeRecovery), 0);
    assert_eq!(net.tcb(Side::A).info().ssthresh, before.ssthresh);
    net.finish_clean();
}

#[test]
fn without_probes_a_lost_tail_waits_for_the_timeout() {
    let mut net = Net::new(5);
    net.host(Side::A).config.tcp_early_retrans = 0;
    net.open();
    send_losing(&mut net, 4, &[3]);
    let took = read_all(&mut net, 4 * MSS as usize);
    assert!(took > Duration::from_millis(200), "{took:?}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLossProbes), 0);
    net.finish_clean();
}

#[test]
fn a_lost_retransmission_is_detected_without_a_timeout() {
    let mut net = warm(6);
    send_losing(&mut net, 10, &[2]);
    // The retransmission is sent when the ACKs of the following segments arrive, 20 ms later.
    net.run_for(Duration::from_millis(19));
    net.impairment = BLACK_HOLE;
    net.run_for(Duration::from_millis(1));
    assert_eq!(retransmitted(&mut net), 1);
    net.impairment = Impairment::default();
    send_losing(&mut net, 6, &[]);
    let took = read_all(&mut net, 16 * MSS as usize);
    assert!(took < Duration::from_millis(60), "{took:?}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPLostRetransmit), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0);
    net.finish_clean();
}

#[test]
fn reordering_within_the_rack_window_retransmits_nothing() {
    let mut net = warm(7);
    for round in 0..20 {
        // Two segments overtake one, by a fifth of the round trip.
        let delay = net.delay;
        net.delay = delay + Duration::from_millis(4);
        net.send(Side::A, &[1; MSS as usize]);
        net.delay = delay;
        net.send(Side::A, &[1; 2 * MSS as usize]);
        assert_eq!(read_all(&mut net, 3 * MSS as usize), Duration::from_millis(14), "{round}");
        net.run_for(Duration::from_millis(100));
    }
    assert_eq!(retransmitted(&mut net), 0);
    assert!(net.count(Side::A, Counter::TcpExtTCPSACKReorder) > 0);
    net.finish_clean();
}

#[test]
fn dsacks_widen_the_reordering_window() {
    let mut net = warm(8);
    let mut needless = Vec::new();
    for _ in 0..12 {
        let before = retransmitted(&mut net);
        let delay = net.delay;
        net.delay = delay + Duration::from_millis(15);
        net.send(Side::A, &[1; MSS as usize]);
        net.delay = delay;
        net.send(Side::A, &[1; 8 * MSS as usize]);
        read_all(&mut net, 9 * MSS as usize);
        net.run_for(Duration::from_millis(100));
        needless.push(retransmitted(&mut net) - before);
    }
    assert!(needless[0] > 0, "{needless:?}");
    assert_eq!(needless[8..], [0; 4], "{needless:?}");
    net.finish_clean();
}

#[test]
fn many_losses_in_a_window_cause_one_recovery_which_does_not_stop_output() {
    let mut net = warm(9);
    let before = net.log.len();
    send_losing(&mut net, 20, &[0, 4, 8, 12]);
    for _ in 0..20 {
        let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; MSS as usize][..]], false));
    }
    let sent_at = net.now;
    net.run_for(Duration::from_millis(200));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 1);
    // Recovery does not stop output: retransmissions and new data follow within the 200 ms.
    let sent = net.sent_by(Side::A, before);
    let later = sent.iter().filter(|sent| sent.at > sent_at).count();
    assert!(later >= 4, "only {later} segments were sent during recovery");
    net.recv(Side::B);
    net.finish_clean();
}

#[test]
fn a_reneging_peer_gets_all_data_again() {
    let mut net = warm(10);
    send_losing(&mut net, 10, &[0]);
    net.run_for(Duration::from_millis(15));
    // B drops data that it has reported by SACK but not acknowledged.
    let mut header = net.forge(Side::A);
    let una = net.tcb(Side::A).snd_una;
    header.ack = una;
    net.call(Side::B, |tcb, cx| {
        let mut dropped = tcb.reassembly.clear();
        dropped.free_all(cx.pool);
    });
    let took = read_all(&mut net, 10 * MSS as usize);
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSACKReneging), 1);
    net.finish_clean();
}

#[test]
fn a_superframe_is_split_at_its_lost_segments() {
    let mut net = Net::new(11);
    for side in [Side::A, Side::B] {
        net.host(side).path.gso_bytes_max = 65_536;
    }
    net.open();
    for _ in 0..20 {
        net.send(Side::A, &[1; 30_000]);
        net.run_for(Duration::from_millis(100));
        net.recv(Side::B);
    }
    let before = retransmitted(&mut net);
    // The network splits the superframe (a packet of several segments), and loses two segments.
    net.impairment.split = true;
    net.drop_segments(&[3, 9]);
    net.send(Side::A, &[1; 14 * MSS as usize]);
    assert_eq!(read_all(&mut net, 14 * MSS as usize), Duration::from_millis(31));
    assert_eq!(retransmitted(&mut net) - before, 2);
    net.finish_clean();
}

#[test]
fn hostile_sack_blocks_split_no_segment() {
    let mut net = warm(12);
    for seed in 0..200u32 {
        net.impairment = BLACK_HOLE;
        let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; MSS as usize][..]], false));
        net.impairment = Impairment::default();
        let mut header = net.forge(Side::A);
        let (una, nxt) = (net.tcb(Side::A).snd_una, net.tcb(Side::A).snd_nxt);
        let mut number = |near: SeqNum| near + net.rng.below(6000) - net.rng.below(6000);
        for _ in 0..4 {
            let block = match seed % 4 {
                0 => (number(una), number(nxt)),
                1 => (number(nxt), number(una)),
                2 => (una + 1, una + 2 + seed),
                _ => (number(una), number(una)),
            };
            header.options.sack_blocks.push(block);
        }
        header.options.timestamps = None;
        net.inject(Side::A, &header, b"");
        // `check` runs after every call. A block must not cause pieces smaller than a segment.
        let queue = &net.tcb(Side::A).send_queue;
        assert!((0..queue.sent_count()).all(|index| queue.entry(index).len == MSS));
        assert_eq!(net.tcb(Side::A).snd_una, una);
    }
    net.run_for(Duration::from_secs(60));
    net.recv(Side::B);
    net.finish_clean();
}
