//! Single segments that are old, invalid, too large or hostile; superframes (packets of several
//! segments), a lower path MTU, and record ends.

use core::time::Duration;

use pkt::{DropReason, GsoKind};

use super::net::{Net, Side};
use crate::{Counter, Flags, State};

/// An established connection on which nothing is in flight.
fn quiet(seed: u64) -> Net {
    let mut net = Net::established(seed);
    net.run_for(Duration::from_millis(100));
    net.host(Side::A).drops.clear();
    net
}

#[test]
fn paws_rejects_an_old_timestamp_and_sends_an_ack() {
    let mut net = quiet(1);
    let mut old = net.forge(Side::A);
    let (value, echo) = old.options.timestamps.unwrap();
    old.options.timestamps = Some((value.wrapping_sub(5000), echo));
    let before = net.log.len();
    net.inject(Side::A, &old, b"stale");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpPaws]);
    assert_eq!(net.count(Side::A, Counter::TcpExtPAWSEstab), 1);
    assert_eq!(net.sent_by(Side::A, before).len(), 1);
    assert!(net.recv(Side::A).is_empty());
    net.finish_clean();
}

#[test]
fn paws_ignores_a_ts_recent_older_than_24_days() {
    let mut net = quiet(2);
    net.run_for(Duration::from_secs(25 * 24 * 3600));
    let mut segment = net.forge(Side::A);
    let (value, echo) = segment.options.timestamps.unwrap();
    segment.options.timestamps = Some((value.wrapping_sub(5000), echo));
    net.inject(Side::A, &segment, b"fresh");
    assert_eq!(net.recv(Side::A), b"fresh");
    net.finish_clean();
}

#[test]
fn an_old_duplicate_is_answered_and_not_delivered_again() {
    let mut net = quiet(3);
    let segment = net.forge(Side::A);
    net.inject(Side::A, &segment, b"data");
    assert_eq!(net.recv(Side::A), b"data");
    let before = net.log.len();
    net.inject(Side::A, &segment, b"data");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpOldSequence]);
    let expected = net.tcb(Side::A).rcv_nxt;
    assert_eq!(net.sent_by(Side::A, before)[0].header.ack, expected);
    assert!(net.recv(Side::A).is_empty());
    net.finish_clean();
}

#[test]
fn a_segment_that_overlaps_old_data_delivers_its_new_part() {
    let mut net = quiet(4);
    let mut segment = net.forge(Side::A);
    net.inject(Side::A, &segment, b"abcd");
    net.inject(Side::A, &segment, b"abcdefgh");
    segment.seq += 2;
    net.inject(Side::A, &segment, b"cdefghij");
    assert_eq!(net.recv(Side::A), b"abcdefghij");
    net.finish_clean();
}

#[test]
fn data_beyond_the_window_is_trimmed_and_segments_far_beyond_rejected() {
    let mut net = Net::new(5);
    net.host(Side::A).options.rcvbuf = Some(8192);
    net.open();
    net.run_for(Duration::from_millis(100));
    net.host(Side::A).drops.clear();
    let window = net.tcb(Side::A).info().rcv_wnd;
    let mut segment = net.forge(Side::A);
    let big = std::vec![5; window as usize + 100];
    net.inject(Side::A, &segment, &big);
    assert_eq!(net.recv(Side::A).len(), window as usize);
    segment.seq += 1 << 20;
    net.inject(Side::A, &segment, b"far");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpOverWindow]);
    net.finish_clean();
}

#[test]
fn an_ack_of_unsent_data_changes_nothing_and_is_not_answered() {
    let mut net = quiet(6);
    let mut segment = net.forge(Side::A);
    segment.ack += 1000;
    segment.options.timestamps =
        segment.options.timestamps.map(|(value, echo)| (value + 999, echo));
    let (before, recent) = (net.log.len(), net.tcb(Side::A).ts_recent);
    net.inject(Side::A, &segment, b"x");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpAckUnsentData]);
    assert_eq!(net.sent_by(Side::A, before).len(), 0);
    assert_eq!(net.tcb(Side::A).ts_recent, recent);
    assert_eq!(net.state(Side::A), State::Established);
    net.finish_clean();
}

#[test]
fn an_ack_older_than_any_window_is_rejected() {
    let mut net = quiet(7);
    let mut segment = net.forge(Side::A);
    segment.ack -= net.tcb(Side::A).mss.max_window() + 1;
    net.inject(Side::A, &segment, b"injected");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpTooOldAck]);
    assert!(net.recv(Side::A).is_empty());
    // The data of a segment whose ACK is merely late is accepted.
    net.send(Side::A, &[7; 1000]);
    net.run_for(Duration::from_millis(100));
    let mut late = net.forge(Side::A);
    late.ack -= 1000;
    net.inject(Side::A, &late, b"late");
    assert_eq!(net.recv(Side::A), b"late");
    net.finish_clean();
}

#[test]
fn a_segment_without_ack_is_dropped() {
    let mut net = quiet(8);
    let mut segment = net.forge(Side::A);
    segment.flags = Flags::PSH;
    net.inject(Side::A, &segment, b"x");
    assert_eq!(net.host(Side::A).drops, [DropReason::TcpFlags]);
    net.finish_clean();
}

#[test]
fn challenge_acks_are_limited_to_one_per_half_second() {
    let mut net = quiet(9);
    let mut rst = net.forge(Side::A);
    rst.flags = Flags::RST;
    rst.seq += 77;
    let before = net.log.len();
    for _ in 0..20 {
        net.inject(Side::A, &rst, b"");
    }
    assert_eq!(net.sent_by(Side::A, before).len(), 1);
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPACKSkippedChallenge), 19);
    net.run_for(Duration::from_millis(501));
    net.inject(Side::A, &rst, b"");
    let sent = net.sent_by(Side::A, before);
    assert_eq!(sent.iter().filter(|sent| sent.header.flags == Flags::ACK).count(), 2);
    net.finish_clean();
}

#[test]
fn a_wrong_ack_in_syn_sent_is_answered_by_a_reset_and_the_attempt_continues() {
    let mut net = Net::new(10);
    net.connect(Side::A);
    net.lose_in_flight();
    let mut segment = net.forge(Side::A);
    segment.flags = Flags::SYN | Flags::ACK;
    segment.ack = net.tcb(Side::A).snd_nxt + 5;
    net.inject(Side::A, &segment, b"");
    assert_eq!(net.state(Side::A), State::SynSent);
    let sent = net.log.last().unwrap();
    assert_eq!(sent.header.flags, Flags::RST);
    assert_eq!(sent.header.seq, segment.ack);
    net.finish_clean();
}

#[test]
fn superframes_are_sent_and_received_whole() {
    let mut net = Net::new(11);
    for side in [Side::A, Side::B] {
        net.host(side).path.gso_bytes_max = 65_536;
    }
    net.open();
    let body: std::vec::Vec<u8> = (0..3_000_000u32).map(|i| i.to_be_bytes()[3]).collect();
    let (mut sent, mut got) = (0, std::vec::Vec::new());
    while got.len() < body.len() {
        if sent < body.len()
            && let Ok(n) = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&body[sent..]], false))
        {
            sent += n;
        }
        assert!(net.step());
        got.extend(net.recv(Side::B));
    }
    assert_eq!(got, body);
    // A superframe is a packet of several segments.
    let largest = net.sent_by(Side::A, 0).into_iter().max_by_key(|sent| sent.len).unwrap().clone();
    assert_eq!(
        largest.len, 65_160,
        "the largest superframe is not the 45 segments of 1448 bytes that fit into 64 KB"
    );
    assert_eq!(largest.gso.kind, GsoKind::TcpV4);
    assert_eq!((largest.gso.size, largest.gso.segs), (1448, 45));
    let acks = net.sent_by(Side::B, 0).len();
    assert!(acks < 150, "superframes caused {acks} ACKs, more than one each");
    net.finish_clean();
}

#[test]
fn a_lower_path_mtu_splits_queued_data_and_retransmits_it() {
    let mut net = quiet(12);
    net.send(Side::A, &[1; 8000]);
    net.lose_in_flight();
    let seq = net.tcb(Side::A).snd_una;
    let before = net.log.len();
    net.call(Side::A, |tcb, cx| {
        let mtu = crate::on_icmp(tcb, cx, crate::IcmpError::PacketTooBig { mtu: 576 }, seq);
        tcb.set_path_mtu(mtu.expect("the segment is in flight"));
    });
    let sent = net.sent_by(Side::A, before);
    assert!(!sent.is_empty() && sent.iter().all(|sent| sent.len <= 576 - 52));
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.recv(Side::B).len(), 8000);
    // A report about a segment that is not in flight is ignored, because it may be forged.
    net.call(Side::A, |tcb, cx| {
        let mtu = crate::on_icmp(tcb, cx, crate::IcmpError::PacketTooBig { mtu: 100 }, seq);
        assert_eq!(mtu, None);
    });
    assert_eq!(net.tcb(Side::A).mss(), 576 - 52);
    assert_eq!(net.count(Side::A, Counter::TcpExtOutOfWindowIcmps), 1);
    net.finish_clean();
}

#[test]
fn data_after_the_end_of_a_record_goes_into_another_segment() {
    let mut net = quiet(31);
    net.tcb(Side::A).set_cork(true);
    let before = net.log.len();
    net.send(Side::A, b"one");
    net.tcb(Side::A).end_record();
    net.send(Side::A, b"two");
    net.tcb(Side::A).set_cork(false);
    net.tcb(Side::A).set_nodelay(true);
    net.send(Side::A, b"more");
    let lens: std::vec::Vec<_> = net.sent_by(Side::A, before).iter().map(|sent| sent.len).collect();
    assert_eq!(lens, [3, 7]);
    net.finish_clean();
}
