//! What the network says, and how long TCP goes on without an answer.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, IcmpError, Options, SegmentHeader, SeqNum, State, TcpError, on_icmp};

const BLACK_HOLE: Impairment = Impairment { loss: 1000, duplicate: 0, reorder: 0, split: false };
const HOST: IcmpError = IcmpError::PathBroken(TcpError::HostUnreachable);
const PORT: IcmpError = IcmpError::Unreachable(TcpError::ConnectionRefused);

/// Milliseconds between the segments A sent since `from`.
fn gaps(net: &Net, from: usize) -> Vec<u128> {
    let sent = net.sent_by(Side::A, from);
    sent.windows(2).map(|pair| (pair[1].at - pair[0].at).as_millis()).collect()
}

fn report(net: &mut Net, error: IcmpError, seq: SeqNum) -> Option<u32> {
    net.call(Side::A, |tcb, cx| on_icmp(tcb, cx, error, seq))
}

/// A has sent one segment that vanished, as has everything since; TLP is off, so that timeouts are all there is.
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
fn any_unreachable_ends_a_connection_that_is_being_opened() {
    for error in [HOST, PORT, IcmpError::Unreachable(TcpError::Protocol)] {
        let mut net = Net::new(1);
        net.impairment = BLACK_HOLE;
        net.connect(Side::A);
        let iss = net.tcb(Side::A).snd_una;
        report(&mut net, error, iss);
        assert_eq!(net.state(Side::A), State::Close);
        let (IcmpError::PathBroken(reason) | IcmpError::Unreachable(reason)) = error else {
            unreachable!("one of the three");
        };
        assert_eq!(net.tcb(Side::A).take_error(), Some(reason));
        net.finish_clean();
    }
}

#[test]
fn what_is_only_a_hint_ends_nothing() {
    let mut net = Net::new(2);
    net.impairment = BLACK_HOLE;
    net.connect(Side::A);
    let iss = net.tcb(Side::A).snd_una;
    report(&mut net, IcmpError::Other, iss);
    assert_eq!(net.state(Side::A), State::SynSent);
    net.finish_clean();
}

#[test]
fn a_report_counts_only_about_what_is_in_flight() {
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
        assert_eq!(mtu, Some(600), "RFC 5927 §4.1");
    }
    net.finish_clean();
}

#[test]
fn a_soft_error_is_the_reason_when_time_runs_out() {
    let (mut net, _) = cut_off(4);
    net.run_for(Duration::from_millis(300));
    let una = net.tcb(Side::A).snd_una;
    report(&mut net, PORT, una);
    assert_eq!(net.state(Side::A), State::Established, "RFC 5927 §5.2: hard errors are soft here");
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionRefused));
    net.finish_clean();
}

#[test]
fn a_soft_error_can_be_asked_for() {
    let (mut net, _) = cut_off(19);
    let una = net.tcb(Side::A).snd_una;
    report(&mut net, PORT, una);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionRefused));
    assert_eq!(net.tcb(Side::A).take_error(), None, "reading takes it");
    assert_eq!(net.state(Side::A), State::Established);
    net.finish_clean();
}

#[test]
fn an_ack_forgets_the_soft_error() {
    let (mut net, _) = cut_off(5);
    let una = net.tcb(Side::A).snd_una;
    report(&mut net, HOST, una);
    net.impairment = Impairment::default();
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.recv(Side::B), b"lost");
    assert_eq!(net.tcb(Side::A).soft_error, None);
    net.finish_clean();
}

/// RFC 6069 §4.2: a router says that the path is broken, so the doubling is taken back and the connection notices the end
/// of the outage early.
#[test]
fn an_unreachable_takes_a_doubling_back() {
    let (mut net, before) = cut_off(6);
    net.run_for(Duration::from_secs(5));
    assert_eq!(gaps(&net, before), [220, 440, 880, 1760]);
    let una = net.tcb(Side::A).snd_una;
    let backoff = net.tcb(Side::A).rtt.backoff();
    report(&mut net, HOST, una);
    assert_eq!(net.tcb(Side::A).rtt.backoff(), backoff - 1);
    net.run_for(Duration::from_millis(100));
    assert_eq!(gaps(&net, before)[4..], [1760], "instead of 3520");
    net.run_for(Duration::from_millis(2000));
    assert_eq!(gaps(&net, before).len(), 5);
    report(&mut net, HOST, una);
    assert_eq!(gaps(&net, before).len(), 6, "overdue by the smaller timeout: sent at once");
    net.finish_clean();
}

#[test]
fn only_the_oldest_segment_and_only_the_plain_codes_take_a_doubling_back() {
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
fn a_syn_is_repeated_each_second_four_times_before_its_wait_doubles() {
    for (linear, last) in [(0, 63), (4, 67)] {
        let mut net = Net::new(8);
        net.host(Side::A).config.tcp_syn_linear_timeouts = linear;
        net.impairment = BLACK_HOLE;
        net.connect(Side::A);
        let start = net.now;
        net.run_until(|net| net.state(Side::A) == State::Close);
        let sent = net.sent_by(Side::A, 0);
        let last_at = sent.last().expect("a SYN").at;
        assert_eq!((last_at - start).as_secs(), last);
        assert_eq!((net.now - start).as_secs(), last + 64);
        net.finish_clean();
    }
}

#[test]
fn a_socket_may_say_how_often_its_syn_is_repeated() {
    let mut net = Net::new(9);
    net.host(Side::A).options.syn_retries = Some(2);
    net.impairment = BLACK_HOLE;
    net.connect(Side::A);
    net.run_until(|net| net.state(Side::A) == State::Close);
    assert_eq!(net.sent_by(Side::A, 0).len(), 1 + 2 + 4, "TCP_SYNCNT, and the linear ones");
    net.finish_clean();
}

/// RFC 6298 §5.7: without timestamps nobody knows which SYN was answered.
#[test]
fn a_repeated_syn_without_timestamps_starts_with_three_seconds() {
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
fn waits_double_up_to_the_socket_s_own_maximum() {
    let (mut net, before) = cut_off(11);
    net.tcb(Side::A).set_rto_max(Duration::from_secs(2));
    net.run_until(|net| net.state(Side::A) == State::Close);
    let gaps = gaps(&net, before);
    assert_eq!(gaps[..6], [220, 440, 880, 1760, 2000, 2000]);
    // Nine doublings of 200 ms would have passed 2 s after three: 3 s, then twelve of 2 s.
    assert!((14..=17).contains(&gaps.len()), "{}", gaps.len());
    net.finish_clean();
}

#[test]
fn the_first_timeouts_of_a_thin_stream_do_not_double_if_wanted() {
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
    assert!((repeats[1].at - repeats[0].at).as_millis() >= 440, "a thick stream doubles");
    net.finish_clean();
}

#[test]
fn timeouts_beyond_r1_ask_for_another_route() {
    let (mut net, _) = cut_off(14);
    net.run_for(Duration::from_secs(2));
    assert!(!net.tcb(Side::A).take_route_doubt());
    net.run_for(Duration::from_secs(3));
    assert!(net.tcb(Side::A).take_route_doubt(), "tcp_retries1");
    assert!(!net.tcb(Side::A).take_route_doubt(), "asked once per timeout");
    net.finish_clean();
}

#[test]
fn an_orphan_with_a_report_stops_when_its_waits_are_long() {
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

/// The peer crashed and opens anew with the same four-tuple (RFC 9293 §3.5.1, figure 9): our ACK makes it reset us.
#[test]
fn half_open_is_discovered_by_the_challenged_syn() {
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

/// The other half of it (figure 10): whoever has forgotten the connection resets what still comes.
#[test]
fn half_open_is_discovered_by_data() {
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

/// Data on a SYN is acceptable (RFC 9293 §3.10.7.4, MUST be kept until ESTABLISHED, or dropped to come again). As Linux
/// does without Fast Open, only the SYN is acknowledged.
#[test]
fn data_on_a_syn_is_acknowledged_only_once_the_connection_stands() {
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
    let answer = net.log.last().expect("a SYN-ACK").clone();
    assert_eq!(answer.header.flags, Flags::SYN | Flags::ACK);
    assert_eq!(answer.header.ack, SeqNum(5001), "the data comes again");
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
