//! ECN: negotiation, ECN-capable packets, one reduction per window, and paths that alter the bits.

use core::time::Duration;

use pkt::Ecn;

use super::net::{EcnPath, Net, Side};
use super::stress::transfer;
use crate::{Algorithm, Counter, Flags, State};

const SETUP: Flags = Flags::ECE.union(Flags::CWR);

/// Two hosts with these values of `tcp_ecn`. They are not connected yet.
fn hosts(a: u8, b: u8) -> Net {
    let mut net = Net::new(7);
    net.host(Side::A).config.tcp_ecn = a;
    net.host(Side::B).config.tcp_ecn = b;
    net
}

/// Whether A and whether B uses ECN.
fn agreed(net: &mut Net) -> (bool, bool) {
    (net.tcb(Side::A).info().ecn, net.tcb(Side::B).info().ecn)
}

/// A connection that uses ECN, and whose congestion window has grown to some tens of segments.
fn warm(seed: u64) -> Net {
    let mut net = Net::new(seed);
    for side in [Side::A, Side::B] {
        net.host(side).config.tcp_ecn = 1;
    }
    net.open();
    for _ in 0..6 {
        net.send(Side::A, &[1; 30_000]);
        net.run_for(Duration::from_millis(100));
        net.recv(Side::B);
    }
    net
}

#[test]
fn ecn_is_negotiated_if_one_side_requests_and_the_other_accepts_it() {
    for (a, b, expected) in
        [(1, 1, true), (1, 2, true), (1, 0, false), (2, 1, false), (0, 2, false)]
    {
        let mut net = hosts(a, b);
        net.open();
        assert_eq!(agreed(&mut net), (expected, expected), "tcp_ecn {a} and {b}");
        let (syn, syn_ack) = (&net.log[0], &net.log[1]);
        assert_eq!(syn.header.flags & SETUP == SETUP, a == 1);
        assert_eq!(
            syn_ack.header.flags & SETUP,
            if expected { Flags::ECE } else { Flags::empty() }
        );
        assert!(
            net.log.iter().all(|sent| sent.ecn == Ecn::NotEct),
            "a packet of the handshake is ECN-capable"
        );
        net.finish_clean();
    }
}

#[test]
fn only_new_data_is_ecn_capable() {
    let mut net = warm(1);
    let from = net.log.len();
    net.drop_segments(&[3, 4]);
    net.send(Side::A, &[1; 30_000]);
    net.run_for(Duration::from_secs(1));
    let mut highest = None;
    for sent in &net.log[from..] {
        let end = sent.header.seq + sent.len;
        let new = sent.len > 0 && highest.is_none_or(|highest| end.gt(highest));
        assert_eq!(sent.ecn == Ecn::Ect0, new, "{}", sent.header);
        if sent.from == Side::A && new {
            highest = Some(end);
        }
    }
    net.finish_clean();
}

#[test]
fn a_mark_reduces_the_window_once_and_is_echoed_until_cwr() {
    let mut net = warm(2);
    let before = net.tcb(Side::A).info().cwnd;
    let from = net.log.len();
    // All packets of this flight are marked. They belong to one window and cause one reduction.
    net.ecn.mark = 1000;
    net.send(Side::A, &[1; 20_000]);
    net.ecn.mark = 0;
    net.run_for(Duration::from_millis(30));
    let after = net.tcb(Side::A).info().cwnd;
    assert!(after < before, "{after} of {before}");
    let ssthresh = net.tcb(Side::A).info().ssthresh;
    net.send(Side::A, &[1; 20_000]);
    net.run_for(Duration::from_millis(100));
    assert_eq!(
        net.tcb(Side::A).info().ssthresh,
        ssthresh,
        "the window was not reduced exactly once"
    );
    let data = net.sent_by(Side::A, from);
    let with_cwr: std::vec::Vec<_> =
        data.iter().filter(|sent| sent.header.has(Flags::CWR)).collect();
    assert_eq!(with_cwr.len(), 1, "not exactly one segment carries CWR");
    let cwr_at = with_cwr[0].at;
    for ack in net.sent_by(Side::B, from) {
        let after_cwr = ack.at > cwr_at + Duration::from_millis(10);
        assert!(
            !after_cwr || !ack.header.has(Flags::ECE),
            "an ACK carries ECE after CWR has arrived"
        );
    }
    let echoes = net.sent_by(Side::B, from).iter().filter(|ack| ack.header.has(Flags::ECE)).count();
    assert!(echoes > 2, "only {echoes} ACKs carry ECE before CWR arrives");
    assert_eq!(net.count(Side::A, Counter::TcpRetransSegs), 0);
    assert!(net.count(Side::A, Counter::TcpExtTCPDeliveredCE) > 0);
    net.finish_clean();
}

#[test]
fn only_the_first_segment_of_a_superframe_carries_cwr() {
    let mut net = hosts(1, 1);
    net.host(Side::A).path.gso_bytes_max = 65_536;
    net.host(Side::A).config.tcp_tso_rtt_log = 63;
    net.open();
    // The window is so large that its half still has room for a superframe (a packet of several
    // segments).
    net.send(Side::A, &[1; 40_000]);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.recv(Side::B).len(), 40_000);
    net.ecn.mark = 1000;
    net.send(Side::A, &[1; 10_000]);
    net.ecn.mark = 0;
    net.run_for(Duration::from_millis(100));
    net.send(Side::A, &[1; 10_000]);
    net.run_for(Duration::from_millis(100));
    let with_cwr: std::vec::Vec<_> =
        net.log.iter().filter(|sent| sent.len > 0 && sent.header.has(Flags::CWR)).collect();
    assert_eq!(with_cwr.len(), 1);
    assert!(with_cwr[0].gso.segs > 1 && with_cwr[0].gso.ecn, "{:?}", with_cwr[0].gso);
    net.finish_clean();
}

#[test]
fn a_loss_sets_cwr_in_the_next_new_segment() {
    let mut net = warm(3);
    let from = net.log.len();
    net.drop_segments(&[2]);
    net.send(Side::A, &[1; 40_000]);
    net.run_for(Duration::from_secs(1));
    let with_cwr = net.sent_by(Side::A, from).iter().filter(|s| s.header.has(Flags::CWR)).count();
    assert_eq!(with_cwr, 0, "a segment carries CWR, although only retransmissions were sent");
    net.send(Side::A, &[1; 3000]);
    net.run_for(Duration::from_secs(1));
    let with_cwr = net.sent_by(Side::A, from).iter().filter(|s| s.header.has(Flags::CWR)).count();
    assert_eq!(with_cwr, 1);
    net.finish_clean();
}

#[test]
fn a_retransmitted_syn_does_not_request_ecn() {
    for fallback in [true, false] {
        let mut net = hosts(1, 1);
        net.host(Side::A).config.tcp_ecn_fallback = fallback;
        net.drop_segments(&[0]);
        net.open();
        let again = net.sent_by(Side::A, 0)[1];
        assert_eq!(again.header.flags & SETUP == SETUP, !fallback);
        assert_eq!(agreed(&mut net), (!fallback, !fallback));
        net.finish_clean();
    }
}

#[test]
fn a_syn_ack_that_reflects_the_flags_of_the_syn_disables_ecn() {
    let mut net = hosts(1, 1);
    net.connect(Side::A);
    net.lose_in_flight();
    let iss = net.tcb(Side::A).snd_una;
    let mut syn_ack = net.forge(Side::A);
    syn_ack.flags = Flags::SYN | Flags::ACK | SETUP;
    syn_ack.ack = iss + 1;
    syn_ack.window = 60_000;
    net.inject(Side::A, &syn_ack, &[]);
    assert_eq!(net.state(Side::A), State::Established);
    assert!(!net.tcb(Side::A).info().ecn);
    net.finish_clean();
}

#[test]
fn an_ecn_capable_syn_disables_ecn() {
    let mut net = hosts(1, 1);
    net.ecn.rewrite = Some(Ecn::Ect0);
    net.open();
    assert_eq!(agreed(&mut net), (false, false));
    net.finish_clean();
}

#[test]
fn a_path_that_clears_the_ecn_field_does_not_disturb_a_transfer() {
    let mut net = warm(4);
    net.ecn = EcnPath { mark: 500, rewrite: Some(Ecn::NotEct), echo: false };
    transfer(&mut net, 4, (300_000, 0), |_| {});
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPDeliveredCE), 0);
    net.finish_clean();
}

#[test]
fn permanent_marks_and_echoes_do_not_stop_a_transfer() {
    for (mark, echo) in [(1000, false), (0, true), (1000, true)] {
        let mut net = warm(5);
        net.ecn = EcnPath { mark, rewrite: None, echo };
        transfer(&mut net, 5, (200_000, 10_000), |_| {});
        assert_eq!(net.count(Side::A, Counter::TcpExtTCPTimeouts), 0, "{mark} {echo}");
        net.finish_clean();
    }
}

/// A connection with DCTCP at both ends.
fn dctcp(seed: u64) -> Net {
    let mut net = Net::new(seed);
    for side in [Side::A, Side::B] {
        net.host(side).options.congestion = Some(Algorithm::Dctcp);
    }
    net.open();
    net
}

#[test]
fn dctcp_negotiates_ecn_with_the_default_tcp_ecn_and_all_later_packets_are_ecn_capable() {
    let mut net = dctcp(6);
    assert_eq!(agreed(&mut net), (true, true));
    net.drop_segments(&[2]);
    net.send(Side::A, &[1; 20_000]);
    net.run_for(Duration::from_secs(1));
    for sent in net.log.iter().filter(|sent| !sent.header.has(Flags::SYN)) {
        assert_eq!(sent.ecn, Ecn::Ect0, "{}", sent.header);
    }
    net.finish_clean();
}

#[test]
fn dctcp_acks_report_exactly_the_marked_bytes() {
    for seed in 0..10 {
        let mut net = dctcp(seed);
        for _ in 0..20 {
            net.ecn.mark = 300;
            net.send(Side::A, &[1; 12_000]);
            net.ecn.mark = 0;
            net.run_for(Duration::from_millis(300));
            net.recv(Side::B);
        }
        let info = net.tcb(Side::A).info();
        assert!(net.marked_bytes > 0);
        assert_eq!(info.bytes_delivered_ce, net.marked_bytes, "seed {seed}");
        net.finish_clean();
    }
}

#[test]
fn dctcp_reduces_the_window_in_proportion_to_the_marks() {
    let mut cwnd = [0; 2];
    for (index, mark) in [30, 500].into_iter().enumerate() {
        let mut net = dctcp(9);
        net.ecn.mark = mark;
        let mut sum = 0;
        for round in 0..200 {
            let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[1; 100_000][..]], false));
            net.run_for(Duration::from_millis(20));
            net.recv(Side::B);
            if round >= 100 {
                sum += u64::from(net.tcb(Side::A).info().cwnd);
            }
        }
        cwnd[index] = sum / 100;
        net.lose_in_flight();
        net.finish_clean();
    }
    assert!(cwnd[0] > 2 * cwnd[1], "{cwnd:?}");
}
