//! Times at which ACKs are sent: quick ACKs, delayed ACKs, pingpong mode (in which ACKs wait for a
//! response), batches, slow readers, compressed ACKs.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Impairment, Net, Side};
use crate::{Counter, SeqNum, input};

const MSS: usize = 1460 - 12;
/// Receive window that does not grow, so that no ACK is sent to announce a larger window.
const STILL_WINDOW: u32 = 41 * 1460;

/// An established connection on which B announces a constant window. All later packets are lost.
fn still(seed: u64) -> Net {
    let mut net = Net::new(seed);
    net.host(Side::B).options.window_clamp = Some(STILL_WINDOW);
    net.open();
    lose_all_packets(&mut net);
    net
}

/// Loses all packets, so that A does not receive B's answers to injected segments.
fn lose_all_packets(net: &mut Net) {
    net.run_for(Duration::from_millis(100));
    net.impairment = Impairment { loss: 1000, ..Impairment::default() };
}

/// Delivers to B a segment of `len` bytes from A that starts `offset` bytes after `start`.
fn give(net: &mut Net, start: SeqNum, offset: usize, len: usize) {
    let mut header = net.forge(Side::B);
    header.seq = start + u32::try_from(offset).unwrap();
    net.inject(Side::B, &header, &std::vec![7; len]);
}

/// A connection of [`still`] on which B has received and read eighteen segments of 1000 bytes, and
/// has left quick-ACK mode. Also returns B's RCV.NXT.
fn calm(seed: u64) -> (Net, SeqNum) {
    let mut net = still(seed);
    for _ in 0..18 {
        let next = net.tcb(Side::B).rcv_nxt;
        give(&mut net, next, 0, 1000);
        net.recv(Side::B);
        net.run_for(Duration::from_millis(50));
    }
    assert!(!net.tcb(Side::B).ack.is_quick());
    let start = net.tcb(Side::B).rcv_nxt;
    (net, start)
}

/// Returns the time from `from` to each segment that B has sent since entry `before` of the log.
fn waits(net: &Net, before: usize, from: pkt::Instant) -> Vec<Duration> {
    net.sent_by(Side::B, before).iter().map(|sent| sent.at - from).collect()
}

#[test]
fn the_first_sixteen_segments_are_acknowledged_at_once() {
    let mut net = still(1);
    let mut at_once = 0;
    for _ in 0..24 {
        let (next, before) = (net.tcb(Side::B).rcv_nxt, net.log.len());
        give(&mut net, next, 0, MSS);
        at_once += net.sent_by(Side::B, before).len();
        net.recv(Side::B);
        net.run_for(Duration::from_millis(50));
    }
    assert_eq!(at_once, 16);
    assert_eq!(net.count(Side::B, Counter::TcpExtDelayedACKs), 8);
    net.finish_clean();
}

#[test]
fn quick_acks_end_after_half_of_a_small_window() {
    let mut net = Net::new(2);
    // A window of six segments: three quick ACKs.
    net.host(Side::B).options.window_clamp = Some(6 * 1460);
    net.open();
    lose_all_packets(&mut net);
    let mut at_once = 0;
    for _ in 0..5 {
        let (next, before) = (net.tcb(Side::B).rcv_nxt, net.log.len());
        give(&mut net, next, 0, MSS);
        at_once += net.sent_by(Side::B, before).len();
        net.recv(Side::B);
        net.run_for(Duration::from_millis(50));
    }
    assert_eq!(at_once, 3);
    net.finish_clean();
}

#[test]
fn quick_acks_restart_after_an_idle_time_of_one_rto() {
    let (mut net, start) = calm(3);
    net.run_for(Duration::from_secs(2));
    let before = net.log.len();
    give(&mut net, start, 0, 1000);
    assert_eq!(net.sent_by(Side::B, before).len(), 1);
    net.finish_clean();
}

#[test]
fn every_second_full_segment_is_acknowledged() {
    let (mut net, start) = calm(4);
    for pair in 0..3 {
        let before = net.log.len();
        give(&mut net, start, pair * 2000, 1000);
        assert!(net.sent_by(Side::B, before).is_empty());
        give(&mut net, start, pair * 2000 + 1000, 1000);
        assert_eq!(net.sent_by(Side::B, before).len(), 1);
        net.recv(Side::B);
    }
    net.finish_clean();
}

#[test]
fn several_segments_of_one_batch_are_answered_by_one_ack() {
    let (mut net, start) = calm(5);
    let before = net.log.len();
    let header = net.forge(Side::B);
    net.call(Side::B, |tcb, cx| {
        for index in 0..9u32 {
            let mut header = header.clone();
            header.seq = start + index * 1000;
            let packet = cx.pool.alloc_from(&[7; 1000]).unwrap();
            let pkt::Verdict::Consumed = input(tcb, &header, packet, cx) else { panic!() };
        }
    });
    assert_eq!(net.sent_by(Side::B, before).len(), 1);
    assert_eq!(net.log.last().unwrap().header.ack, start + 9000);
    net.finish_clean();
}

#[test]
fn every_second_segment_is_acknowledged_after_the_mss_has_shrunk() {
    let (mut net, start) = calm(6);
    let before = net.log.len();
    // The path MTU has decreased: two segments of the same size show the peer's new MSS.
    for index in 0..8 {
        give(&mut net, start, index * 600, 600);
    }
    assert_eq!(net.tcb(Side::B).info().rcv_mss, 600);
    assert!(net.sent_by(Side::B, before).len() >= 3);
    net.finish_clean();
}

#[test]
fn the_ack_delay_doubles_up_to_200_ms() {
    let mut net = Net::new(7);
    net.delay = Duration::from_millis(150);
    net.host(Side::B).options.window_clamp = Some(STILL_WINDOW);
    net.open();
    lose_all_packets(&mut net);
    let mut delays = Vec::new();
    for _ in 0..24 {
        let (next, before, now) = (net.tcb(Side::B).rcv_nxt, net.log.len(), net.now);
        give(&mut net, next, 0, 1000);
        net.recv(Side::B);
        net.run_for(Duration::from_millis(500));
        delays.extend(waits(&net, before, now));
    }
    let late: Vec<u128> = delays[16..].iter().map(Duration::as_millis).collect();
    assert_eq!(late, [40, 80, 160, 200, 200, 200, 200, 200]);
    net.finish_clean();
}

#[test]
fn pingpong_mode_begins_after_tcp_pingpong_thresh_responses() {
    for thresh in [1, 3] {
        let mut net = Net::new(8);
        net.host(Side::B).config.tcp_pingpong_thresh = thresh;
        net.open();
        for answered in 0..4 {
            assert_eq!(net.tcb(Side::B).quickack(), answered < thresh, "{answered} of {thresh}");
            net.send(Side::A, b"request");
            net.run_for(Duration::from_millis(20));
            net.recv(Side::B);
            net.send(Side::B, b"answer");
            net.run_for(Duration::from_millis(20));
            net.recv(Side::A);
        }
        net.finish_clean();
    }
}

#[test]
fn a_missing_response_ends_pingpong_mode() {
    let (mut net, start) = calm(9);
    net.call(Side::B, |tcb, _| tcb.set_quickack(false));
    assert!(!net.tcb(Side::B).quickack());
    let (before, now) = (net.log.len(), net.now);
    give(&mut net, start, 0, 1000);
    net.run_for(Duration::from_millis(200));
    assert_eq!(waits(&net, before, now), [Duration::from_millis(40)]);
    assert!(net.tcb(Side::B).quickack());
    net.finish_clean();
}

#[test]
fn quickack_sends_a_pending_ack_at_once() {
    let (mut net, start) = calm(10);
    let before = net.log.len();
    give(&mut net, start, 0, 1000);
    assert!(net.sent_by(Side::B, before).is_empty());
    net.call(Side::B, |tcb, _| tcb.set_quickack(true));
    assert_eq!(net.sent_by(Side::B, before).len(), 1);
    net.finish_clean();
}

#[test]
fn reading_the_last_byte_of_a_small_segment_sends_its_ack() {
    let (mut net, start) = calm(11);
    let before = net.log.len();
    give(&mut net, start, 0, 10);
    assert!(net.sent_by(Side::B, before).is_empty());
    assert_eq!(net.recv(Side::B).len(), 10);
    assert_eq!(net.sent_by(Side::B, before).len(), 1);
    net.finish_clean();
}

#[test]
fn data_that_cannot_advance_the_window_is_acknowledged_when_it_is_read() {
    let mut net = Net::new(12);
    net.host(Side::B).options.rcvbuf = Some(40_000);
    net.open();
    lose_all_packets(&mut net);
    let start = net.tcb(Side::B).rcv_nxt;
    let window = net.tcb(Side::B).info().rcv_wnd as usize;
    let mut acks = Vec::new();
    for index in 0..window / MSS {
        let before = net.log.len();
        give(&mut net, start, index * MSS, MSS);
        acks.push(net.sent_by(Side::B, before).len());
    }
    let tail = &acks[acks.len() - 4..];
    assert_eq!(tail, [0; 4], "{acks:?}");
    let before = net.log.len();
    net.recv(Side::B);
    assert!(!net.sent_by(Side::B, before).is_empty(), "reading sent no ACK that opens the window");
    net.finish_clean();
}

#[test]
fn data_below_so_rcvlowat_is_acknowledged_without_a_read() {
    let mut net = Net::new(13);
    net.host(Side::B).options.rcvbuf = Some(40_000);
    net.host(Side::B).options.rcvlowat = Some(20_000);
    net.open();
    lose_all_packets(&mut net);
    let start = net.tcb(Side::B).rcv_nxt;
    let before = net.log.len();
    for index in 0..12 {
        give(&mut net, start, index * MSS, MSS);
    }
    let unacked = net.tcb(Side::B).rcv_nxt.since(net.log.last().unwrap().header.ack);
    assert!(unacked as usize <= MSS, "{unacked}");
    assert!(net.sent_by(Side::B, before).len() >= 6);
    net.finish_clean();
}

#[test]
fn duplicate_acks_after_the_third_are_compressed() {
    let (mut net, start) = calm(14);
    let (before, now) = (net.log.len(), net.now);
    for index in 1..11 {
        give(&mut net, start, index * 1000, 1000);
    }
    assert_eq!(net.sent_by(Side::B, before).len(), 3);
    net.run_for(Duration::from_millis(5));
    let sent = waits(&net, before, now);
    assert_eq!(
        sent[3..],
        [Duration::from_micros(50)],
        "the delay is not a twentieth of the round-trip time, which is 1 ms by the timestamp echoes"
    );
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPAckCompressed), 6);
    let last = &net.log.last().unwrap().header;
    assert_eq!(last.options.sack_blocks[..], [(start + 1000, start + 11_000)]);
    // A segment that fills the hole is answered at once.
    let before = net.log.len();
    give(&mut net, start, 0, 1000);
    assert_eq!(net.sent_by(Side::B, before).len(), 1);
    assert_eq!(net.log.last().unwrap().header.ack, start + 11_000);
    net.finish_clean();
}

#[test]
fn the_first_three_acks_for_a_new_hole_are_sent_at_once() {
    let (mut net, start) = calm(15);
    for index in 1..6 {
        give(&mut net, start, index * 1000, 1000);
    }
    give(&mut net, start, 0, 1000);
    let before = net.log.len();
    for index in 7..12 {
        give(&mut net, start, index * 1000, 1000);
    }
    assert_eq!(net.sent_by(Side::B, before).len(), 3);
    net.finish_clean();
}

#[test]
fn tcp_comp_sack_nr_bounds_the_number_of_acks_that_one_ack_replaces() {
    let (mut net, start) = calm(16);
    net.host(Side::B).config.tcp_comp_sack_nr = 2;
    let before = net.log.len();
    for index in 1..13 {
        give(&mut net, start, index * 1000, 1000);
    }
    // The first three ACKs are sent, then every third one.
    assert_eq!(net.sent_by(Side::B, before).len(), 3 + 3);
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPAckCompressed), 6);
    net.finish_clean();
}

#[test]
fn without_sack_or_with_comp_sack_nr_zero_no_ack_is_compressed() {
    for sack in [true, false] {
        let (mut net, start) = if sack {
            let (mut net, start) = calm(17);
            net.host(Side::B).config.tcp_comp_sack_nr = 0;
            (net, start)
        } else {
            let mut net = Net::new(17);
            net.host(Side::B).config.tcp_sack = false;
            net.open();
            let start = net.tcb(Side::B).rcv_nxt;
            (net, start)
        };
        let before = net.log.len();
        for index in 1..11 {
            give(&mut net, start, index * 1000, 1000);
        }
        assert_eq!(net.sent_by(Side::B, before).len(), 10);
        net.finish_clean();
    }
}

#[test]
fn every_sack_block_is_reported_at_least_once() {
    let (mut net, start) = calm(18);
    let before = net.log.len();
    for index in 0..12 {
        give(&mut net, start, 1000 + index * 2000, 1000);
    }
    net.run_for(Duration::from_millis(10));
    let mut reported = Vec::new();
    for sent in net.sent_by(Side::B, before) {
        reported.extend(sent.header.options.sack_blocks.iter().map(|block| block.0.since(start)));
    }
    for index in 0..12 {
        assert!(reported.contains(&(1000 + index * 2000)), "block {index} in {reported:?}");
    }
    net.finish_clean();
}
