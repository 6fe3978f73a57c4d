//! Small writes: Nagle's algorithm, `TCP_CORK`, `MSG_MORE`, `TCP_NODELAY`, PSH, and the events that
//! release held data.

use core::time::Duration;
use std::vec::Vec;

use super::net::{Net, Side};
use crate::Flags;

/// Returns the payload lengths of the data segments that A has sent since entry `from` of the log.
fn data_lens(net: &Net, from: usize) -> Vec<u32> {
    net.sent_by(Side::A, from).iter().map(|sent| sent.len).filter(|&len| len > 0).collect()
}

/// An established connection on which nothing is in flight, and the length of its log.
fn quiet(seed: u64) -> (Net, usize) {
    let mut net = Net::established(seed);
    net.run_for(Duration::from_millis(100));
    let before = net.log.len();
    (net, before)
}

#[test]
fn nagle_holds_small_writes_while_one_is_unacknowledged() {
    let (mut net, before) = quiet(1);
    for _ in 0..10 {
        net.send(Side::A, b"0123456789");
    }
    assert_eq!(data_lens(&net, before), [10]);
    net.run_for(Duration::from_millis(100));
    assert_eq!(data_lens(&net, before), [10, 90]);
    assert_eq!(net.recv(Side::B).len(), 100);
    net.finish_clean();
}

#[test]
fn nagle_sends_full_segments_at_once() {
    let (mut net, before) = quiet(2);
    net.send(Side::A, b"small");
    net.send(Side::A, &[1; 1448 * 2 + 10]);
    assert_eq!(data_lens(&net, before), [5, 1448, 1448]);
    net.run_for(Duration::from_millis(100));
    assert_eq!(data_lens(&net, before), [5, 1448, 1448, 10]);
    net.finish_clean();
}

#[test]
fn a_small_tail_follows_full_segments_at_once() {
    let (mut net, before) = quiet(3);
    net.send(Side::A, &[1; 1448 + 10]);
    assert_eq!(data_lens(&net, before), [1448, 10]);
    net.finish_clean();
}

#[test]
fn nodelay_sends_each_write_at_once() {
    let (mut net, before) = quiet(4);
    net.tcb(Side::A).set_nodelay(true);
    for _ in 0..5 {
        net.send(Side::A, b"abc");
    }
    assert_eq!(data_lens(&net, before), [3; 5]);
    assert!(net.sent_by(Side::A, before).iter().all(|sent| sent.header.has(Flags::PSH)));
    net.finish_clean();
}

#[test]
fn turning_nodelay_on_releases_data_held_by_nagle() {
    let (mut net, before) = quiet(5);
    net.send(Side::A, b"one");
    net.send(Side::A, b"two");
    assert_eq!(data_lens(&net, before), [3]);
    net.call(Side::A, |tcb, _| tcb.set_nodelay(true));
    assert_eq!(data_lens(&net, before), [3, 3]);
    net.finish_clean();
}

#[test]
fn a_cork_holds_a_small_tail_until_it_is_removed() {
    let (mut net, before) = quiet(6);
    net.call(Side::A, |tcb, _| tcb.set_cork(true));
    net.send(Side::A, &[1; 100]);
    net.send(Side::A, &[2; 1448]);
    assert_eq!(data_lens(&net, before), [1448]);
    net.call(Side::A, |tcb, _| tcb.set_cork(false));
    assert_eq!(data_lens(&net, before), [1448, 100]);
    net.finish_clean();
}

#[test]
fn a_cork_holds_data_for_at_most_200_ms() {
    let (mut net, before) = quiet(7);
    net.call(Side::A, |tcb, _| tcb.set_cork(true));
    net.send(Side::A, &[1; 100]);
    net.run_for(Duration::from_millis(199));
    assert!(data_lens(&net, before).is_empty());
    net.run_for(Duration::from_millis(1));
    assert_eq!(data_lens(&net, before), [100]);
    net.finish_clean();
}

/// Regression: segments of the peer must not restart the 200 ms timer of a cork. Otherwise a corked
/// tail is held back forever while the peer sends often.
#[test]
fn a_cork_holds_data_for_a_bounded_time_while_the_peer_sends() {
    let (mut net, before) = quiet(11);
    net.tcb(Side::A).set_header_prediction(false);
    net.call(Side::A, |tcb, _| tcb.set_cork(true));
    net.send(Side::A, &[1; 100]);
    for _ in 0..6 {
        net.send(Side::B, b"data");
        net.run_for(Duration::from_millis(50));
    }
    assert_eq!(data_lens(&net, before), [100]);
    assert_eq!(net.recv(Side::A).len(), 24);
    net.finish_clean();
}

#[test]
fn close_sends_held_data_with_its_fin() {
    let (mut net, before) = quiet(8);
    net.send(Side::A, b"one");
    net.send(Side::A, b"two");
    net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    let sent = net.sent_by(Side::A, before);
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].header.flags, Flags::ACK | Flags::PSH | Flags::FIN);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.recv(Side::B), b"onetwo");
    net.finish_clean();
}

#[test]
fn only_the_last_segment_of_a_write_carries_psh() {
    let (mut net, before) = quiet(9);
    net.send(Side::A, &[1; 3 * 1448]);
    let pushed: Vec<bool> =
        net.sent_by(Side::A, before).iter().map(|sent| sent.header.has(Flags::PSH)).collect();
    assert_eq!(pushed, [false, false, true]);
    net.finish_clean();
}

#[test]
fn msg_more_holds_a_small_tail_for_the_next_write() {
    let (mut net, before) = quiet(10);
    net.tcb(Side::A).set_nodelay(true);
    let sent = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&b"head"[..]], true));
    assert_eq!(sent, Ok(4));
    net.send(Side::A, b"tail");
    assert_eq!(data_lens(&net, before), [8]);
    assert!(net.sent_by(Side::A, before)[0].header.has(Flags::PSH));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.recv(Side::B), b"headtail");
    net.finish_clean();
}

#[test]
fn an_ack_during_a_write_releases_no_small_segment() {
    let (mut net, before) = quiet(11);
    net.tcb(Side::A).set_nodelay(true);
    net.tcb(Side::A).set_mid_write(true);
    let sent = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 2 * 1448 + 4][..]], true));
    assert_eq!(sent, Ok(2900));
    net.run_for(Duration::from_millis(50));
    assert_eq!(
        data_lens(&net, before).iter().sum::<u32>(),
        2 * 1448,
        "not all data except the tail was sent"
    );
    net.tcb(Side::A).set_mid_write(false);
    net.send(Side::A, b"tail");
    net.run_for(Duration::from_millis(100));
    assert_eq!(data_lens(&net, before).last(), Some(&8));
    assert_eq!(net.recv(Side::B).len(), 2904);
    net.finish_clean();
}
