//! Peers that try to consume CPU time or memory: SegmentSmack (CVE-2018-5390), the attacks related
//! to SACK Panic (CVE-2019-11477, -11478, -11479), and overlaps as in FragmentSmack
//! (CVE-2018-5391). Work is counted in steps of an algorithm, not measured as time.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Net, Side};
use pkt::DropReason;

use crate::{Counter, Rng, SeqNum, tcb::memory};

const RCVBUF: u32 = 131_072;
/// Memory of the smallest packet, in `truesize` bytes.
const PACKET: u32 = 704;

/// An established connection whose B is under attack, and B's RCV.NXT.
fn target(seed: u64, rcvbuf: Option<u32>) -> (Net, SeqNum) {
    let mut net = Net::new(seed);
    net.host(Side::B).options.rcvbuf = rcvbuf;
    net.open();
    net.run_for(Duration::from_millis(100));
    let start = net.tcb(Side::B).rcv_nxt;
    (net, start)
}

/// Delivers to B `len` bytes at `offset` after `start`.
fn give(net: &mut Net, start: SeqNum, offset: u32, len: usize) {
    let mut header = net.forge(Side::B);
    header.seq = start + offset;
    net.inject(Side::B, &header, &std::vec![7; len]);
}

/// Delivers to B segments of `len` bytes at `offsets`, and checks after each of them that B's
/// memory is bounded. Returns the average number of reassembly steps per segment.
fn send_tiny_segments(
    net: &mut Net,
    start: SeqNum,
    len: usize,
    offsets: impl Iterator<Item = u32>,
) -> usize {
    let before = net.tcb(Side::B).reassembly.steps;
    let mut count = 0;
    for offset in offsets {
        give(net, start, offset, len);
        count += 1;
        let held = memory::rmem_alloc(net.tcb(Side::B));
        let rcvbuf = net.tcb(Side::B).rcvbuf();
        assert!(held <= rcvbuf + 2 * PACKET, "{held} of {rcvbuf}");
        assert!(net.tcb(Side::B).rcvbuf() <= RCVBUF, "out-of-order data has grown the buffer");
    }
    (net.tcb(Side::B).reassembly.steps - before).div_ceil(count)
}

#[test]
fn adjacent_tiny_segments_have_a_bounded_cost() {
    let (mut net, start) = target(1, None);
    let steps = send_tiny_segments(&mut net, start, 1, (1..20_000).map(|index| index + 1));
    assert!(steps <= 16, "{steps} steps for each segment");
    assert!(net.count(Side::B, Counter::TcpExtTCPRcvCollapsed) > 10_000);
    assert_eq!(
        net.count(Side::B, Counter::TcpExtTCPOFODrop),
        0,
        "segments were dropped that fit into the buffer after they are copied together"
    );
    // The queued data is delivered together with the byte before it.
    give(&mut net, start, 0, 2);
    assert_eq!(net.recv(Side::B).len(), 20_001);
    net.finish_clean();
}

#[test]
fn tiny_segments_with_gaps_have_a_bounded_cost() {
    for order in ["ascending", "descending", "random"] {
        let (mut net, start) = target(2, None);
        let mut rng = Rng::new(2);
        let offsets: Vec<u32> = match order {
            "ascending" => (1..20_000).map(|index| 2 * index).collect(),
            "descending" => (1..20_000).rev().map(|index| 2 * index).collect(),
            _ => (0..20_000).map(|_| 2 + 2 * rng.below(20_000)).collect(),
        };
        let steps = send_tiny_segments(&mut net, start, 1, offsets.into_iter());
        assert!(steps <= 200, "{order}: {steps} steps for each segment");
        net.finish_clean();
    }
}

#[test]
fn the_number_of_gaps_is_bounded_even_in_a_large_buffer() {
    let mut net = Net::new(3);
    net.host(Side::B).options.rcvbuf = Some(6_000_000);
    net.host(Side::B).config.rmem_max = 6_000_000;
    net.open();
    let start = net.tcb(Side::B).rcv_nxt;
    let mut rng = Rng::new(3);
    let before = net.tcb(Side::B).reassembly.steps;
    for _ in 0..12_000 {
        let offset = 2 + 2 * rng.below(30_000);
        give(&mut net, start, offset, 1);
    }
    let steps = (net.tcb(Side::B).reassembly.steps - before) / 12_000;
    assert!(net.tcb(Side::B).reassembly.blocks().len() <= crate::tcb::reassembly::RUNS_MAX);
    assert!(steps <= crate::tcb::reassembly::RUNS_MAX / 2, "{steps}");
    net.finish_clean();
}

#[test]
fn overlapping_pieces_in_any_order_hold_no_more_than_the_buffer() {
    let (mut net, start) = target(4, None);
    let mut rng = Rng::new(4);
    let offsets: Vec<u32> = (0..10_000).map(|_| 1 + rng.below(40_000)).collect();
    let steps = send_tiny_segments(&mut net, start, 97, offsets.into_iter());
    assert!(steps <= 200, "{steps} steps for each segment");
    net.finish_clean();
}

#[test]
fn pruning_drops_the_highest_sequence_numbers_and_keeps_the_lowest() {
    let (mut net, start) = target(5, Some(40_000));
    // The highest sequence numbers arrive first. The buffer has room for about eighteen segments.
    for index in (1..17).rev() {
        give(&mut net, start, index * 1000, 1000);
    }
    net.host(Side::B).drops.clear();
    let before = net.tcb(Side::B).reassembly.highest_end().unwrap();
    for index in 0..20 {
        // Small separate pieces inside the first gap.
        give(&mut net, start, 2 + index * 40, 20);
    }
    assert!(net.count(Side::B, Counter::TcpExtOfoPruned) > 0);
    assert!(net.count(Side::B, Counter::TcpExtPruneCalled) > 0);
    let after = net.tcb(Side::B).reassembly.highest_end().unwrap();
    assert!(after.lt(before), "the highest sequence numbers were not dropped");
    let first = net.tcb(Side::B).reassembly.blocks().next().unwrap();
    assert_eq!(first, (start + 2, start + 22), "the lowest sequence numbers were not kept");
    net.finish_clean();
}

#[test]
fn a_segment_beyond_all_others_displaces_none_of_them() {
    let (mut net, start) = target(6, Some(40_000));
    let mut offset = 1000;
    while memory::rmem_alloc(net.tcb(Side::B)) <= 40_000 {
        give(&mut net, start, offset, 300);
        offset += 301;
        assert!(offset < 20_000, "the window ended before the buffer was full");
    }
    let held = net.tcb(Side::B).reassembly.blocks().len();
    net.host(Side::B).drops.clear();
    give(&mut net, start, offset, 300);
    assert_eq!(net.host(Side::B).drops, [DropReason::TcpOfoQueueFull]);
    assert_eq!(net.tcb(Side::B).reassembly.blocks().len(), held);
    assert!(net.count(Side::B, Counter::TcpExtRcvPruned) > 0);
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPOFODrop), 1);
    net.finish_clean();
}

/// A connection on which A sends superframes (packets of several segments), B has announced the
/// smallest MSS, and A's congestion window is large.
fn tiny_mss(seed: u64, sndbuf: u32) -> Net {
    let mut net = Net::new(seed);
    net.host(Side::A).path.gso_bytes_max = 65_536;
    net.host(Side::A).options.sndbuf = Some(sndbuf);
    net.host(Side::A).config.tcp_slow_start_after_idle = false;
    net.host(Side::B).options.maxseg = Some(48);
    net.open();
    assert_eq!(net.tcb(Side::A).mss(), 36, "the MSS is not 48 bytes less those of the timestamps");
    let start = net.now;
    while net.tcb(Side::A).info().cwnd < 120_000 {
        let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 60_000][..]], false));
        net.step();
        net.recv(Side::B);
        assert!(net.now - start < Duration::from_secs(60), "{:?}", net.tcb(Side::A).info());
    }
    net.run_for(Duration::from_secs(1));
    net.recv(Side::B);
    net
}

/// SACKs every second segment in flight, with four blocks per ACK.
fn report_every_second_segment(net: &mut Net) {
    let (una, nxt) = (net.tcb(Side::A).snd_una, net.tcb(Side::A).snd_nxt);
    let segments = nxt.since(una) / 36;
    let blocks: Vec<_> = (0..segments / 2)
        .map(|pair| (una + (2 * pair + 1) * 36, una + (2 * pair + 2) * 36))
        .collect();
    for four in blocks.chunks(4) {
        let mut header = net.forge(Side::A);
        header.options.timestamps = None;
        header.options.sack_blocks.extend(four.iter().copied());
        net.inject(Side::A, &header, b"");
    }
}

#[test]
fn sack_blocks_split_superframes_only_up_to_a_memory_limit() {
    let mut net = tiny_mss(7, 60_000);
    while net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 60_000][..]], false)).is_ok() {}
    net.lose_in_flight();
    let in_flight = net.tcb(Side::A).snd_nxt.since(net.tcb(Side::A).snd_una);
    assert!(in_flight > 30_000, "{in_flight}");
    report_every_second_segment(&mut net);
    assert!(
        net.count(Side::A, Counter::TcpExtTCPWqueueTooBig) > 0,
        "the memory limit was never reached"
    );
    let wmem = net.tcb(Side::A).send_queue.wmem_queued();
    // The limit is twice the sum of the send buffer and a slack of 128 KB. The last split may
    // exceed the limit by a superframe.
    assert!(wmem <= 2 * (60_000 + 131_072) + 2 * 66_000, "{wmem}");
    // The connection continues: the segments of the blocks that caused no split are retransmitted.
    let mut got = 0;
    let start = net.now;
    while net.tcb(Side::A).unacked_bytes() > 0 {
        assert!(net.step() && net.now - start < Duration::from_secs(300), "stalled after {got}");
        got += net.recv(Side::B).len();
    }
    net.finish_clean();
}

/// CVE-2019-11477: the segment count of a packet does not overflow, even if SACK blocks split the
/// packets and retransmissions merge them.
#[test]
fn a_tiny_mss_does_not_overflow_the_segment_count_of_a_packet() {
    for gso_bytes_max in [65_536, 524_280] {
        let mut net = tiny_mss(8, 400_000);
        net.host(Side::A)
            .tcb
            .as_mut()
            .expect("the connection is open")
            .set_device(gso_bytes_max, false);
        // A packet may have up to half the window, for any pacing rate.
        net.host(Side::A).config.tcp_tso_rtt_log = 31;
        let before = net.log.len();
        while net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 60_000][..]], false)).is_ok() {}
        let first = net.log.len();
        net.lose_in_flight();
        report_every_second_segment(&mut net);
        net.run_for(Duration::from_secs(5));
        assert!(
            net.sent_by(Side::A, first).iter().any(|sent| sent.len > 0),
            "the data was not retransmitted"
        );
        for sent in net.sent_by(Side::A, before) {
            let segments = sent.len.div_ceil(36);
            assert!(segments <= 1 || u32::from(sent.gso.segs) == segments, "{sent:?}");
            assert!(segments <= 1 || sent.gso.size == 36, "{sent:?}");
            assert!(sent.len <= gso_bytes_max, "{sent:?}");
        }
        let largest = net.sent_by(Side::A, before).iter().map(|sent| sent.len).max();
        assert!(largest > Some(30_000), "{largest:?}");
        net.recv(Side::B);
        net.finish_clean();
    }
}

#[test]
fn sack_blocks_of_an_overtaken_ack_are_processed() {
    let mut net = Net::established(9);
    for _ in 0..6 {
        net.send(Side::A, &[7; 14_480]);
        net.run_for(Duration::from_millis(100));
        net.recv(Side::B);
    }
    net.send(Side::A, &[7; 10 * 1448]);
    net.lose_in_flight();
    let una = net.tcb(Side::A).snd_una;
    let mut newer = net.forge(Side::A);
    newer.ack = una + 1448;
    net.inject(Side::A, &newer, b"");
    // An ACK with a SACK block that B sent before the ACK above.
    let mut older = net.forge(Side::A);
    older.ack = una;
    older.options.sack_blocks.push((una + 3 * 1448, una + 5 * 1448));
    net.inject(Side::A, &older, b"");
    assert_eq!(net.tcb(Side::A).snd_una, una + 1448);
    assert_eq!(net.tcb(Side::A).send_queue.sacked_bytes(), 2 * 1448);
    net.finish_clean();
}

#[test]
fn an_ack_below_the_first_sent_byte_is_rejected_for_any_window() {
    let mut net = Net::established(10);
    net.run_for(Duration::from_millis(100));
    net.send(Side::A, &[7; 1000]);
    net.run_for(Duration::from_millis(100));
    net.host(Side::A).drops.clear();
    let mut segment = net.forge(Side::A);
    segment.ack -= 1002;
    net.inject(Side::A, &segment, b"injected");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpTooOldAck]);
    net.finish_clean();
}
