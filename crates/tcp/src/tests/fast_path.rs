//! Header prediction changes nothing but the way.

use core::time::Duration;
use std::format;
use std::string::String;

use super::net::{Impairment, Net, Side};
use crate::{Counter, Flags, State};

/// A conversation with everything in it that a conversation has; what was sent and what became of both blocks.
fn conversation(seed: u64, prediction: bool) -> (String, u64) {
    let mut net = Net::established(seed);
    net.impairment = Impairment { loss: 20, duplicate: 20, reorder: 100, split: false };
    for side in [Side::A, Side::B] {
        net.tcb(side).set_header_prediction(prediction);
    }
    for round in 0..60 {
        let (from, len) = if round % 3 == 0 { (Side::A, 9000) } else { (Side::B, 300) };
        let _ = net.call(from, |tcb, cx| tcb.send(cx, &[&[7; 9000][..len]], false));
        net.run_for(Duration::from_millis(15));
        net.recv(from.other());
    }
    net.run_for(Duration::from_secs(20));
    let mut trace = String::new();
    for sent in &net.log {
        trace += &format!("{:?} {:?} {} {}\n", sent.at, sent.from, sent.header, sent.len);
    }
    for side in [Side::A, Side::B] {
        trace += &format!("{:?}\n", net.tcb(side).info());
    }
    let hits =
        net.count(Side::B, Counter::TcpExtTCPHPHits) + net.count(Side::A, Counter::TcpExtTCPHPAcks);
    net.finish_clean();
    (trace, hits)
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
fn fast_and_slow_path_send_the_same_segments() {
    for seed in 0..30 {
        let (fast, hits) = conversation(seed, true);
        let (slow, none) = conversation(seed, false);
        assert!(hits > 20, "seed {seed}: {hits} hits");
        assert_eq!(none, 0);
        assert_eq!(fast, slow, "seed {seed}");
    }
}
