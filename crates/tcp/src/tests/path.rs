//! ICMP errors, connections whose peer does not answer, half-open connections, and data in a SYN.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, IcmpError, Options, SegmentHeader, SeqNum, State, TcpError, on_icmp};

const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };
const HOST: IcmpError = IcmpError::PathBroken(TcpError::HostUnreachable);
const PORT: IcmpError = IcmpError::Unreachable(TcpError::ConnectionRefused);

/// Returns the milliseconds between the segments that A has sent since `from`.
fn gaps(net: &Net, from: usize) -> Vec<u128> {
    let sent = net.sent_by(Side::A, from);
    sent.windows(2).map(|pair| (pair[1].at - pair[0].at).as_millis()).collect()
}

/// Reports to A an ICMP error for the segment with this sequence number.
fn report(net: &mut Net, error: IcmpError, seq: SeqNum) -> Option<u32> {
    net.call(Side::A, |tcb, cx| on_icmp(tcb, cx, error, seq))
}

/// Returns a connection on which A has sent a segment that was lost, and the length of the log
/// before that segment. All later packets are lost, too. Tail loss probes are off, so that only
/// timeouts retransmit.
fn cut_off(seed: u64) -> (Net, usize) {
    let mut net = Net::new(seed);
    net.host(Side::A).config.tcp_early_retrans = 0;
    net.open();
    net.run_for(Duration::from_millis(100));
    net.impairment = BLACK_HOLE;
    let before = net.log.len();
    net.send(Side::A, b"lost");
    (net, before)
}

#[test]
fn any_unreachable_error_ends_a_connection_attempt() {
    for error in [HOST, PORT, IcmpError::Unreachable(TcpError::Protocol)] {
        let mut net = Net::new(1);
        net.impairment = BLACK_HOLE;
        net.connect(Side::A);
        let iss = net.tcb(Side::A).snd_una;
        report(&mut net, error, iss);
        assert_eq!(net.state(Side::A), State::Close);
        let (IcmpError::PathBroken(reason) | IcmpError::Unreachable(reason)) = error else {
            unreachable!("the list has only these two kinds of errors");
        };
        assert_eq!(net.tcb(Side::A).take_error(), Some(reason));
        net.finish_clean();
    }
}

#[test]
fn other_icmp_errors_do_not_end_a_connection_attempt() {
    let mut net = Net::new(2);
    net.impairment = BLACK_HOLE;
    net.connect(Side::A);
    let iss = net.tcb(Side::A).snd_una;
    report(&mut net, IcmpError::Other, iss);
    assert_eq!(net.state(Side::A), State::SynSent);
    net.finish_clean();
}

#[test]
fn an_icmp_error_is_accepted_only_for_a_sequence_number_in_flight() {
    let (mut net, _) = cut_off(3);
    let (una, nxt) = (net.tcb(Side::A).snd_una, net.tcb(Side::A).snd_nxt);
    for seq in [una - 1, nxt, nxt + 1, una + (1 << 31)] {
        report(&mut net, HOST, seq);
        assert_eq!(report(&mut net, IcmpError::PacketTooBig { mtu: 600 }, seq), None);
    }
    assert_eq!(net.count(Side::A, Counter::TcpExtOutOfWindowIcmps), 8);
    assert_eq!(net.tcb(Side::A).soft_error, None);
    for seq in [una, nxt - 1] {
        let mtu = report(&mut net, IcmpError::PacketTooBig { mtu: 600 }, seq);
        assert_eq!(mtu, Some(600), "a sequence number in flight: RFC 5927 §4.1");
    }
    net.finish_clean();
}

#[test]
fn a_connection_that_times_out_ends_with_its_soft_error() {
    let (mut net, _) = cut_off(4);
    net.run_for(Duration::from_millis(300));
    let una = net.tcb(Side::A).snd_una;
    report(&mut net, PORT, una);
    assert_eq!(
        net.state(Side::A),
        State::Established,
        "RFC 5927 §5.2: a hard error is treated as a soft error"
    );
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionRefused));
    net.finish_clean();
}

#[test]
fn take_error_returns_a_soft_error() {
    let (mut net, _) = cut_off(19);
    let una = net.tcb(Side::A).snd_una;
    report(&mut net, PORT, una);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionRefused));
    assert_eq!(net.tcb(Side::A).take_error(), None, "taking the error clears it");
    assert_eq!(net.state(Side::A), State::Established);
    net.finish_clean();
}

#[test]
fn an_ack_clears_the_soft_error() {
    let (mut net, _) = cut_off(5);
    let una = net.tcb(Side::A).snd_una;
    report(&mut net, HOST, una);
    net.impairment = Impairment::default();
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.recv(Side::B), b"lost");
    assert_eq!(net.tcb(Side::A).soft_error, None);
    net.finish_clean();
}

/// RFC 6069 §4.2: if a router reports that the path is broken, congestion did not cause the loss.
/// One doubling of the RTO is reverted, so that the connection detects the end of the outage early.
#[test]
fn an_unreachable_error_reverts_one_backoff() {
    let (mut net, before) = cut_off(6);
    net.run_for(Duration::from_secs(5));
    assert_eq!(gaps(&net, before), [220, 440, 880, 1760]);
    let una = net.tcb(Side::A).snd_una;
    let backoff = net.tcb(Side::A).rtt.backoff();
    report(&mut net, HOST, una);
    assert_eq!(net.tcb(Side::A).rtt.backoff(), backoff - 1);
    net.run_for(Duration::from_millis(100));
    assert_eq!(gaps(&net, before)[4..], [1760], "the timeout is not doubled to 3520");
    net.run_for(Duration::from_millis(2000));
    assert_eq!(gaps(&net, before).len(), 5);
    report(&mut net, HOST, una);
    assert_eq!(
        gaps(&net, before).len(),
        6,
        "the reverted timeout has passed, so the segment is sent at once"
    );
    net.finish_clean();
}

#[test]
fn only_network_and_host_unreachable_for_the_oldest_segment_revert_a_backoff() {
    let (mut net, _) = cut_off(7);
    net.send(Side::A, b"more");
    net.run_for(Duration::from_secs(3));
    let tcb = net.tcb(Side::A);
    let (una, nxt, backoff) = (tcb.snd_una, tcb.snd_nxt, tcb.rtt.backoff());
    report(&mut net, PORT, una);
    report(&mut net, HOST, nxt - 1);
    assert_eq!(net.tcb(Side::A).rtt.backoff(), backoff);
    net.finish_clean();
}

#[test]
fn tcp_syn_linear_timeouts_delays_the_backoff_of_a_syn() {
    for (linear, last) in [(0, 63), (4, 67)] {
        let mut net = Net::new(8);
        net.host(Side::A).config.tcp_syn_linear_timeouts = linear;
        net.impairment = BLACK_HOLE;
        net.connect(Side::A);
        let start = net.now;
        net.run_until(|net| net.state(Side::A) == State::Close);
        let sent = net.sent_by(Side::A, 0);
        let last_at = sent.last().expect("A has sent a SYN").at;
        assert_eq!((last_at - start).as_secs(), last);
        assert_eq!((net.now - start).as_secs(), last + 64);
        net.finish_clean();
    }
}

#[test]
fn tcp_syncnt_limits_the_retransmissions_of_a_syn() {
    let mut net = Net::new(9);
    net.host(Side::A).options.syn_retries = Some(2);
    net.impairment = BLACK_HOLE;
    net.connect(Side::A);
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(
        net.sent_by(Side::A, 0).len(),
        1 + 2 + 4,
        "the SYN, TCP_SYNCNT, and tcp_syn_linear_timeouts"
    );
    net.finish_clean();
}

/// RFC 6298 §5.7. Without timestamps it is not known which of the SYNs was answered, so the
/// handshake gives no RTT sample.
#[test]
fn a_retransmitted_syn_without_timestamps_sets_the_rto_to_three_seconds() {
    for timestamps in [true, false] {
        let mut net = Net::new(10);
        net.host(Side::A).config.tcp_timestamps = timestamps;
        net.host(Side::A).config.tcp_early_retrans = 0;
        net.drop_segments(&[0]);
        net.open();
        net.run_for(Duration::from_millis(100));
        net.impairment = BLACK_HOLE;
        let before = net.log.len();
        net.send(Side::A, b"first");
        net.run_for(Duration::from_secs(4));
        let first = gaps(&net, before)[0];
        assert_eq!(first >= 3000, !timestamps, "{first} ms with timestamps {timestamps}");
        net.finish_clean();
    }
}

#[test]
fn the_rto_doubles_up_to_tcp_rto_max_ms() {
    let (mut net, before) = cut_off(11);
    net.tcb(Side::A).set_rto_max(Duration::from_secs(2));
    net.run_until(|net| net.state(Side::A) == State::Close);
    let gaps = gaps(&net, before);
    assert_eq!(gaps[..6], [220, 440, 880, 1760, 2000, 2000]);
    // R2 (the time after which the connection ends) is computed with the lower maximum: four
    // doubling intervals take 3 s, and about twelve intervals of 2 s follow.
    assert!((14..=17).contains(&gaps.len()), "{}", gaps.len());
    net.finish_clean();
}

#[test]
fn thin_linear_timeouts_do_not_double_the_rto() {
    let (mut net, before) = cut_off(12);
    net.tcb(Side::A).set_thin_linear_timeouts(true);
    net.run_for(Duration::from_secs(4));
    assert_eq!(gaps(&net, before)[..8], [220, 220, 220, 220, 220, 220, 220, 440]);
    net.finish_clean();
    let (mut net, before) = cut_off(13);
    net.host(Side::A).config.tcp_thin_linear_timeouts = true;
    net.send(Side::A, &vec![1; 20_000]);
    net.run_for(Duration::from_secs(4));
    let repeats: Vec<_> = net
        .sent_by(Side::A, before)
        .into_iter()
        .filter(|sent| sent.at > net.log[before].at)
        .collect();
    assert!(
        (repeats[1].at - repeats[0].at).as_millis() >= 440,
        "the RTO of a stream that is not thin doubles"
    );
    net.finish_clean();
}

#[test]
fn after_tcp_retries1_timeouts_another_route_is_requested() {
    let (mut net, _) = cut_off(14);
    net.run_for(Duration::from_secs(2));
    assert!(!net.tcb(Side::A).take_negative_advice());
    net.run_for(Duration::from_secs(3));
    assert!(net.tcb(Side::A).take_negative_advice(), "the timeouts exceed tcp_retries1");
    assert!(!net.tcb(Side::A).take_negative_advice(), "each timeout is reported only once");
    net.finish_clean();
}

#[test]
fn an_icmp_error_ends_an_orphan_at_the_maximum_rto() {
    let (mut net, _) = cut_off(15);
    net.host(Side::A).config.tcp_orphan_retries = 100;
    net.tcb(Side::A).set_rto_max(Duration::from_secs(10));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.run_for(Duration::from_secs(60));
    let una = net.tcb(Side::A).snd_una;
    assert_eq!(net.state(Side::A), State::FinWait1);
    report(&mut net, PORT, una);
    net.run_for(Duration::from_secs(20));
    assert_eq!(net.state(Side::A), State::Close);
    net.finish_clean();
}

/// The peer crashed and opens a connection with the same four-tuple (RFC 9293 §3.5.1, figure 9).
/// The ACK that challenges its SYN makes the peer send a reset.
#[test]
fn a_challenged_syn_reveals_a_half_open_connection() {
    let mut net = Net::established(16);
    net.run_for(Duration::from_millis(100));
    net.host(Side::B).tcb = None;
    net.host(Side::B).iss = SeqNum(77);
    net.connect(Side::B);
    net.run_for(Duration::from_millis(15));
    assert_eq!(net.state(Side::A), State::Established, "the SYN is challenged (RFC 5961 §4.2)");
    net.run_for(Duration::from_millis(20));
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionReset));
    net.finish_clean();
}

/// The opposite case (figure 10): the peer, which has lost the connection, answers data with a
/// reset.
#[test]
fn data_reveals_a_half_open_connection() {
    let mut net = Net::established(17);
    net.run_for(Duration::from_millis(100));
    net.host(Side::B).tcb = None;
    net.host(Side::B).listening = false;
    net.send(Side::A, b"are you there?");
    net.run_for(Duration::from_millis(30));
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionReset));
    net.finish_clean();
}

/// A SYN may carry data (RFC 9293 §3.10.7.4), which the receiver either keeps until ESTABLISHED or
/// does not acknowledge, so that it is retransmitted. As in Linux without Fast Open, only the SYN
/// is acknowledged.
#[test]
fn data_in_a_syn_is_not_acknowledged_without_fast_open() {
    let mut net = Net::new(18);
    net.host(Side::B).listening = true;
    let syn = SegmentHeader {
        src_port: 1000,
        dst_port: 2000,
        seq: SeqNum(5000),
        flags: Flags::SYN,
        window: 65_535,
        options: Options { mss: Some(1000), ..Options::new() },
        ..SegmentHeader::default()
    };
    net.inject(Side::B, &syn, b"early");
    let answer = net.log.last().expect("B has sent a SYN-ACK").clone();
    assert_eq!(answer.header.flags, Flags::SYN | Flags::ACK);
    assert_eq!(answer.header.ack, SeqNum(5001), "the SYN-ACK does not acknowledge the data");
    let ack = SegmentHeader {
        seq: SeqNum(5001),
        ack: answer.header.seq + 1,
        flags: Flags::ACK,
        options: Options::new(),
        ..syn
    };
    net.inject(Side::B, &ack, b"early");
    assert_eq!(net.state(Side::B), State::Established);
    assert_eq!(net.recv(Side::B), b"early");
}
