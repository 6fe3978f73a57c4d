//! SACK blocks and D-SACKs that the receiver reports.

use std::vec::Vec;

use pkt::{Gso, GsoKind};

use super::net::{Net, Sent, Side};
use crate::{Counter, Flags, SeqNum};

const MSS: u32 = 1000;

/// Delivers to B the segment that starts `index` segments after `start`, as A would send it.
fn give(net: &mut Net, start: SeqNum, index: u32) {
    let mut header = net.forge(Side::B);
    header.seq = start + index * MSS;
    net.inject(Side::B, &header, &[7; MSS as usize]);
}

/// Returns the SACK blocks of B's last segment, in segments after `start`.
fn blocks(net: &Net, start: SeqNum) -> Vec<(u32, u32)> {
    blocks_since(net, start, 0).pop().expect("B has sent a segment")
}

/// Returns the SACK blocks of each segment that B has sent since the log had `from` entries.
fn blocks_since(net: &Net, start: SeqNum, from: usize) -> Vec<Vec<(u32, u32)>> {
    let number = |seq: SeqNum| (seq - start) / i32::try_from(MSS).unwrap();
    let number = |seq| u32::try_from(number(seq)).unwrap();
    let blocks = |sent: &&Sent| {
        let blocks = sent.header.options.sack_blocks.iter();
        blocks.map(|&(l, r)| (number(l), number(r))).collect()
    };
    net.sent_by(Side::B, from).iter().map(blocks).collect()
}

/// An established connection, and B's RCV.NXT.
fn receiver(seed: u64) -> (Net, SeqNum) {
    let mut net = Net::established(seed);
    let start = net.tcb(Side::B).rcv_nxt;
    (net, start)
}

#[test]
fn both_syns_permit_sack() {
    let net = Net::established(1);
    let syns = net.log.iter().filter(|sent| sent.header.has(Flags::SYN));
    let permitted: Vec<bool> = syns.map(|sent| sent.header.options.sack_permitted).collect();
    assert_eq!(permitted, [true, true]);
    net.finish_clean();
}

#[test]
fn either_side_can_disable_sack() {
    for off in [Side::A, Side::B] {
        let mut net = Net::new(2);
        net.host(off).config.tcp_sack = false;
        net.open();
        for side in [Side::A, Side::B] {
            assert!(!net.tcb(side).info().sack);
        }
        let start = net.tcb(Side::B).rcv_nxt;
        give(&mut net, start, 2);
        assert_eq!(blocks(&net, start), []);
        net.finish_clean();
    }
}

#[test]
fn the_block_that_changed_last_is_reported_first() {
    let (mut net, start) = receiver(3);
    give(&mut net, start, 2);
    assert_eq!(blocks(&net, start), [(2, 3)]);
    give(&mut net, start, 4);
    assert_eq!(blocks(&net, start), [(4, 5), (2, 3)]);
    give(&mut net, start, 6);
    give(&mut net, start, 8);
    // Three blocks fit beside the timestamps.
    assert_eq!(blocks(&net, start), [(8, 9), (6, 7), (4, 5)]);
    give(&mut net, start, 3);
    assert_eq!(blocks(&net, start), [(2, 5), (8, 9), (6, 7)]);
    give(&mut net, start, 9);
    assert_eq!(blocks(&net, start), [(8, 10), (2, 5), (6, 7)]);
    give(&mut net, start, 0);
    assert_eq!(blocks(&net, start), [(8, 10), (2, 5), (6, 7)]);
    give(&mut net, start, 1);
    assert_eq!(blocks(&net, start), [(8, 10), (6, 7)]);
    give(&mut net, start, 5);
    give(&mut net, start, 7);
    assert_eq!(blocks(&net, start), []);
    net.finish_clean();
}

#[test]
fn a_segment_that_arrives_again_is_reported_by_one_dsack() {
    let (mut net, start) = receiver(4);
    give(&mut net, start, 0);
    give(&mut net, start, 1);
    give(&mut net, start, 3);
    give(&mut net, start, 0);
    assert_eq!(blocks(&net, start), [(0, 1), (3, 4)]);
    give(&mut net, start, 5);
    assert_eq!(blocks(&net, start), [(5, 6), (3, 4)]);
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPDSACKOldSent), 1);
    net.finish_clean();
}

#[test]
fn a_dsack_of_out_of_order_data_is_followed_by_the_block_that_contains_it() {
    let (mut net, start) = receiver(5);
    for index in [2, 3, 4, 6] {
        give(&mut net, start, index);
    }
    give(&mut net, start, 3);
    assert_eq!(blocks(&net, start), [(3, 4), (2, 5), (6, 7)]);
    assert_eq!(net.count(Side::B, Counter::TcpExtTCPDSACKOfoSent), 1);
    net.finish_clean();
}

#[test]
fn each_duplicate_range_of_a_superframe_is_reported() {
    // A superframe is a packet of several segments. Each of its segments alone would have been
    // answered, so each range is reported. Of a single large segment only the first range is.
    let merged = |segments: u16| Gso {
        kind: GsoKind::TcpV4,
        size: u16::try_from(MSS).unwrap(),
        segs: segments,
        ..Gso::default()
    };
    for (gso, expected) in [
        (merged(6), std::vec![std::vec![(1, 2), (8, 9)], std::vec![(3, 5), (8, 9)]]),
        (Gso::default(), std::vec![std::vec![(1, 2), (8, 9)]]),
    ] {
        let (mut net, start) = receiver(7);
        for index in [1, 3, 4, 8] {
            give(&mut net, start, index);
        }
        let from = net.log.len();
        let mut header = net.forge(Side::B);
        header.seq = start;
        net.inject_merged(Side::B, &header, &[7; 6 * MSS as usize], gso);
        assert_eq!(blocks_since(&net, start, from), expected);
        net.finish_clean();
    }
}

#[test]
fn a_superframe_causes_at_most_four_acks() {
    let (mut net, start) = receiver(8);
    for index in (1..40).step_by(2) {
        give(&mut net, start, index);
    }
    let from = net.log.len();
    let mut header = net.forge(Side::B);
    header.seq = start;
    let size = u16::try_from(MSS).unwrap();
    let gso = Gso { kind: GsoKind::TcpV4, size, segs: 40, ..Gso::default() };
    net.inject_merged(Side::B, &header, &[7; 40 * MSS as usize], gso);
    assert_eq!(blocks_since(&net, start, from), [[(1, 2)], [(3, 4)], [(5, 6)], [(7, 8)]]);
    net.finish_clean();
}

#[test]
fn a_duplicate_that_paws_rejects_is_reported() {
    let (mut net, start) = receiver(6);
    give(&mut net, start, 0);
    net.run_for(core::time::Duration::from_millis(600));
    give(&mut net, start, 1);
    let mut late = net.forge(Side::B);
    late.seq = start;
    late.options.timestamps = late.options.timestamps.map(|(value, echo)| (value - 1, echo));
    net.inject(Side::B, &late, &[7; MSS as usize]);
    assert_eq!(net.count(Side::B, Counter::TcpExtPAWSEstab), 1);
    assert_eq!(blocks(&net, start), [(0, 1)]);
    net.finish_clean();
}

#[test]
fn a_dsack_that_does_not_fit_into_a_full_segment_gets_its_own_ack() {
    let (mut net, start) = receiver(7);
    give(&mut net, start, 0);
    net.tcb(Side::B).set_nodelay(true);
    let before = net.log.len();
    let header = net.forge(Side::B);
    // Data is written in the same batch, so its segment would carry the D-SACK if there were room
    // for it.
    net.call(Side::B, |tcb, cx| {
        let mut old = header.clone();
        old.seq = start;
        let packet = cx.pool.alloc_from(&[7; MSS as usize]).unwrap();
        let _ = crate::input(tcb, &old, packet, cx);
        tcb.send(cx, &[&[1; 1448][..]], false)
    })
    .unwrap();
    let sent = net.sent_by(Side::B, before);
    let lens: Vec<u32> = sent.iter().map(|sent| sent.len).collect();
    assert_eq!(lens, [1448, 0]);
    assert_eq!(blocks(&net, start), [(0, 1)]);
    net.finish_clean();
}

#[test]
fn without_dsack_duplicates_are_not_reported() {
    let mut net = Net::new(8);
    net.host(Side::B).config.tcp_dsack = false;
    net.open();
    let start = net.tcb(Side::B).rcv_nxt;
    give(&mut net, start, 0);
    give(&mut net, start, 0);
    assert_eq!(blocks(&net, start), []);
    net.finish_clean();
}
