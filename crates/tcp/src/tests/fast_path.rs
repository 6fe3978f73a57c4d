//! The fast paths (header prediction, and those of `output`) lead to the same results as the slow
//! path.

use core::time::Duration;
use std::format;
use std::string::String;

use super::{
    host::Host,
    net::{Impairment, Net, Side},
};
use crate::{
    Algorithm, Counter, Flags, State, TcpConfig,
    output::{is_settled_after_read, output},
};

/// Returns the complete state of both ends: all fields of both control blocks, of which header
/// prediction is always shown as on, and all counters except those of header prediction.
fn complete_state(net: &mut Net, prediction: bool) -> String {
    let mut state = String::new();
    for side in [Side::A, Side::B] {
        let tcb = net.tcb(side);
        tcb.set_header_prediction(true);
        state += &format!("{tcb:?} {:?}\n", tcb.readiness());
        tcb.set_header_prediction(prediction);
        for counter in Counter::ALL.iter().filter(|counter| !counts_predictions(**counter)) {
            state += &format!("{} {}\n", counter.name(), net.count(side, *counter));
        }
    }
    state
}

fn counts_predictions(counter: Counter) -> bool {
    matches!(
        counter,
        Counter::TcpExtTCPHPHits | Counter::TcpExtTCPHPAcks | Counter::TcpExtTCPPureAcks
    )
}

/// Configures one end.
type Set = fn(&mut Host);

/// Configurations of both ends. Each of them affects a condition of the fast paths or a step that
/// the fast paths perform.
const SETTINGS: [(&str, Set); 14] = [
    ("defaults", |_| {}),
    ("reno", |host| host.options.congestion = Some(Algorithm::Reno)),
    ("bbr", |host| host.options.congestion = Some(Algorithm::Bbr)),
    ("dctcp", |host| host.options.congestion = Some(Algorithm::Dctcp)),
    ("ecn", |host| host.config.tcp_ecn = 1),
    ("mtu probing", |host| host.config.tcp_mtu_probing = 2),
    ("paced", |host| host.options.max_pacing_rate = Some(50_000)),
    ("no sack", |host| host.config.tcp_sack = false),
    ("no timestamps", |host| host.config.tcp_timestamps = false),
    ("superframes", |host| host.path.gso_bytes_max = 65_536),
    ("small send buffer", |host| host.options.sndbuf = Some(4608)),
    ("small receive buffer", |host| host.options.rcvbuf = Some(2304)),
    ("limited send buffer", |host| host.config.tcp_wmem.max = 16_000),
    ("no slow start after idle", |host| host.config.tcp_slow_start_after_idle = false),
];

/// Parameters of a conversation.
#[derive(Clone, Copy)]
struct Scenario {
    set: Set,
    impairment: Impairment,
    /// Whether the conversation includes corks, urgent bytes, pauses of the reader, and a
    /// half-close.
    wild: bool,
}

/// Performs one round of a conversation: a write, a pause, and usually a read.
fn round(net: &mut Net, round: usize, wild: bool) {
    let (from, len) = match round % 3 {
        0 => (Side::A, [9000, 1, 1448][round / 3 % 3]),
        _ => (Side::B, [300, 1][round / 3 % 2]),
    };
    if wild && round % 8 < 2 {
        net.call(from, |tcb, _| tcb.set_cork(round.is_multiple_of(8)));
    }
    let urgent = wild && round % 11 == 7;
    let _ = net.call(from, |tcb, cx| match urgent {
        true => tcb.send_oob(cx, &[7; 40]),
        false => tcb.send(cx, &[&[7; 9000][..len]], round % 7 == 5),
    });
    if wild && round == 55 {
        net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    }
    net.run_for(Duration::from_millis([15, 25, 300][round / 9 % 3]));
    let unread = wild && (20..40).contains(&round);
    if round % 4 != 2 && !unread {
        net.recv(from.other());
    }
}

/// Runs a conversation of sixty rounds. Returns a trace of the sent segments and of both control
/// blocks after every round, and the number of predicted segments.
fn conversation(seed: u64, prediction: bool, scenario: Scenario) -> (String, u64) {
    let mut net = Net::new(seed);
    for side in [Side::A, Side::B] {
        (scenario.set)(net.host(side));
    }
    net.open();
    net.ecn.mark = 50;
    net.impairment = scenario.impairment;
    for side in [Side::A, Side::B] {
        net.tcb(side).set_header_prediction(prediction);
    }
    let mut trace = String::new();
    for number in 0..60 {
        if number == 30 {
            // Raises the limit in the configurations that have lowered it.
            let of_default = TcpConfig::default().tcp_wmem;
            for side in [Side::A, Side::B] {
                net.host(side).config.tcp_wmem = of_default;
            }
        }
        round(&mut net, number, scenario.wild);
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

/// Asserts that a conversation leaves the same trace with and without header prediction. Returns
/// the number of predicted segments.
fn compare(seed: u64, name: &str, scenario: Scenario) -> u64 {
    let (fast, hits) = conversation(seed, true, scenario);
    let (slow, slow_hits) = conversation(seed, false, scenario);
    assert_eq!(slow_hits, 0);
    for (fast, slow) in fast.split(", ").zip(slow.split(", ")) {
        assert_eq!(fast, slow, "seed {seed}, {name}");
    }
    assert_eq!(fast.len(), slow.len(), "seed {seed}, {name}");
    hits
}

#[test]
fn a_fin_that_overtook_its_data_is_processed_after_the_data() {
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

const BAD: Impairment = Impairment { loss: 20, duplicate: 20, reorder: 100, split: false };

#[test]
fn fast_and_slow_path_lead_to_the_same_state() {
    for seed in 0..30 {
        for (impairment, most) in [(BAD, 20), (Impairment::default(), 60)] {
            let hits = compare(seed, "defaults", Scenario { set: |_| {}, impairment, wild: false });
            assert!(hits > most, "seed {seed}: {hits} hits");
        }
    }
}

/// Covers every condition of the fast paths: omitting a condition changes the result under one of
/// these configurations.
#[test]
fn fast_and_slow_path_lead_to_the_same_state_for_all_settings() {
    for (seed, (name, set)) in (0..).zip(SETTINGS.into_iter().cycle().take(5 * SETTINGS.len())) {
        for impairment in [BAD, Impairment::default()] {
            for wild in [false, true] {
                compare(seed, name, Scenario { set, impairment, wild });
            }
        }
    }
}

/// If `is_settled_after_read` holds after a read, the caller may omit `output`. So `output` must
/// send no data in this case, and no ACK unless the ACK timer is armed. Paced connections are
/// excluded, because their pacing timer causes the next `output`.
#[test]
fn output_sends_nothing_after_a_settled_read() {
    let settings = SETTINGS.into_iter().filter(|(name, _)| !matches!(*name, "paced" | "bbr"));
    let (mut settled, mut unsettled) = (0, 0);
    for (seed, (name, set)) in (0..).zip(settings.cycle().take(5 * SETTINGS.len())) {
        for (impairment, wild) in [(BAD, false), (BAD, true), (Impairment::default(), false)] {
            let mut net = Net::new(seed);
            for side in [Side::A, Side::B] {
                set(net.host(side));
            }
            net.open();
            net.impairment = impairment;
            for number in 0..60 {
                round(&mut net, number, wild);
                for side in [Side::A, Side::B] {
                    let is_settled = net.call(side, |tcb, cx| {
                        let read = tcb.recv(cx, &mut [0; 700], false);
                        let is_settled = read.is_ok() && is_settled_after_read(tcb);
                        if is_settled {
                            let (end, ack_timer) = (tcb.snd_nxt, tcb.timers.delack());
                            output(tcb, cx);
                            assert_eq!(tcb.snd_nxt, end, "seed {seed}, {name}, round {number}");
                            let silent = cx.out.is_empty() || ack_timer.is_some();
                            assert!(silent, "seed {seed}, {name}, round {number}");
                        }
                        is_settled
                    });
                    *if is_settled { &mut settled } else { &mut unsettled } += 1;
                }
            }
            net.run_for(Duration::from_secs(20));
            net.finish_clean();
        }
    }
    assert!(settled > 1000 && unsettled > 1000, "{settled} settled, {unsettled} not");
}

#[test]
fn a_request_and_its_response_are_predicted() {
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
    // The first request arrives in quick-ACK mode, so it is also answered by an ACK without data.
    for side in [Side::A, Side::B] {
        assert_eq!(net.count(side, Counter::TcpExtTCPHPHits), 10);
        assert!(net.count(side, Counter::TcpExtTCPHPAcks) >= 9, "{side:?}");
        assert!(net.count(side, Counter::TcpExtTCPPureAcks) <= 1, "{side:?}");
    }
    net.finish_clean();
}

/// Header prediction requires `recovery.is_quiet`. A reduction of the window that may still be
/// undone must not prevent header prediction permanently.
#[test]
fn recovery_is_quiet_again_after_a_loss_was_repaired() {
    let mut net = Net::established(1);
    net.run_for(Duration::from_millis(100));
    net.drop_segments(&[3]);
    net.send(Side::A, &[7; 10 * 1448]);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.recv(Side::B).len(), 10 * 1448);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.count(Side::A, Counter::TcpExtTCPSackRecovery), 1);
    assert!(net.tcb(Side::A).recovery.is_quiet());
    net.finish_clean();
}
