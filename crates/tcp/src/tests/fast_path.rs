//! Header prediction changes nothing but the way.

use core::time::Duration;
use std::format;
use std::string::String;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, State};

/// Everything there is to know of both ends: the blocks, field by field, and the counters but those that count the ways.
fn complete_state(net: &mut Net, prediction: bool) -> String {
    let mut state = String::new();
    for side in [Side::A, Side::B] {
        let tcb = net.tcb(side);
        tcb.set_header_prediction(true);
        state += &format!("{tcb:?} {:?}\n", tcb.readiness());
        tcb.set_header_prediction(prediction);
        for counter in Counter::ALL.iter().filter(|counter| !counts_ways(**counter)) {
            state += &format!("{} {}\n", counter.name(), net.count(side, *counter));
        }
    }
    state
}

fn counts_ways(counter: Counter) -> bool {
    matches!(
        counter,
        Counter::TcpExtTCPHPHits | Counter::TcpExtTCPHPAcks | Counter::TcpExtTCPPureAcks
    )
}

/// A conversation with everything in it that a conversation has; what was sent, and what was known of both blocks after
/// every round.
fn conversation(seed: u64, prediction: bool, impairment: Impairment) -> (String, u64) {
    let mut net = Net::established(seed);
    net.impairment = impairment;
    for side in [Side::A, Side::B] {
        net.tcb(side).set_header_prediction(prediction);
    }
    let mut trace = String::new();
    for round in 0..60 {
        let (from, len) = match round % 3 {
            0 => (Side::A, [9000, 1, 1448][round / 3 % 3]),
            _ => (Side::B, [300, 1][round / 3 % 2]),
        };
        let _ = net.call(from, |tcb, cx| tcb.send(cx, &[&[7; 9000][..len]], round % 7 == 5));
        net.run_for(Duration::from_millis([15, 25, 300][round / 9 % 3]));
        if round % 4 != 2 {
            net.recv(from.other());
        }
        trace += &complete_state(&mut net, prediction);
    }
    net.run_for(Duration::from_secs(20));
    for sent in &net.log {
        trace += &format!("{:?} {:?} {} {}\n", sent.at, sent.from, sent.header, sent.len);
        trace += &format!("{:?} {:?} {:?}\n", sent.header.options, sent.gso, sent.departs);
    }
    trace += &complete_state(&mut net, prediction);
    let counters = [Counter::TcpExtTCPHPHits, Counter::TcpExtTCPHPAcks];
    let hits = counters.map(|hit| net.count(Side::A, hit) + net.count(Side::B, hit));
    net.finish_clean();
    (trace, hits.iter().sum())
}

#[test]
fn a_fin_that_overtook_its_data_is_taken_with_it() {
    let mut net = Net::established(1);
    net.run_for(Duration::from_millis(100));
    let data = net.forge(Side::A);
    let mut fin = data.clone();
    fin.seq += 4;
    fin.flags |= Flags::FIN;
    net.inject(Side::A, &fin, b"");
    assert_eq!(net.state(Side::A), State::Established);
    net.inject(Side::A, &data, b"data");
    assert_eq!(net.state(Side::A), State::CloseWait);
    assert_eq!(net.recv(Side::A), b"data");
    net.finish_clean();
}

#[test]
fn fast_and_slow_path_lead_to_the_same_state() {
    let bad = Impairment { loss: 20, duplicate: 20, reorder: 100, split: false };
    for seed in 0..30 {
        for (impairment, most) in [(bad, 20), (Impairment::default(), 60)] {
            let (fast, hits) = conversation(seed, true, impairment);
            let (slow, none) = conversation(seed, false, impairment);
            assert!(hits > most, "seed {seed}: {hits} hits");
            assert_eq!(none, 0);
            for (fast, slow) in fast.split(", ").zip(slow.split(", ")) {
                assert_eq!(fast, slow, "seed {seed}");
            }
            assert_eq!(fast.len(), slow.len(), "seed {seed}");
        }
    }
}

/// A request and its answer go the predicted way altogether.
#[test]
fn a_request_and_its_answer_are_predicted() {
    let mut net = Net::established(1);
    net.run_for(Duration::from_millis(100));
    for _ in 0..10 {
        for from in [Side::A, Side::B] {
            let sent = net.call(from, |tcb, cx| tcb.send(cx, &[&b"1"[..]], false));
            assert_eq!(sent, Ok(1));
            net.run_for(Duration::from_millis(12));
            assert_eq!(net.recv(from.other()), b"1");
        }
    }
    // The first request finds its peer in quick mode, and is answered by a bare ACK too.
    for side in [Side::A, Side::B] {
        assert_eq!(net.count(side, Counter::TcpExtTCPHPHits), 10);
        assert!(net.count(side, Counter::TcpExtTCPHPAcks) >= 9, "{side:?}");
        assert!(net.count(side, Counter::TcpExtTCPPureAcks) <= 1, "{side:?}");
    }
    net.finish_clean();
}
