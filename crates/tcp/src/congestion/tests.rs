//! Tests of the window arithmetic: each event alone, and the bounds of the window for any order of
//! events.

use core::time::Duration;

use pkt::Instant;
use proptest::prelude::*;

use super::{AckSample, Algorithm, Congestion, CongestionConfig, SSTHRESH_INFINITE, SendSample};
use crate::wire::seq::SeqNum;

const MSS: u32 = 1000;
const RTO: Duration = Duration::from_micros(RTO_US);
const RTO_US: u64 = 200_000;

fn fresh() -> Congestion {
    let config = CongestionConfig { algorithm: Algorithm::Reno, ..CongestionConfig::default() };
    Congestion::new(&config, MSS)
}

fn ack(acked_bytes: u32) -> AckSample {
    let (snd_una, snd_nxt) = (SeqNum(0), SeqNum(0));
    let (held_min_rtt, train_max) = (None, None);
    let (now, rtt, watches_delay) = (Instant::ZERO, None, true);
    AckSample { now, acked_bytes, rtt, snd_una, snd_nxt, held_min_rtt, train_max, watches_delay }
}

fn sent(in_flight: u32, cwnd_limited: bool, now: Instant) -> SendSample {
    // A round ends with every call: `snd_una` has reached the last `snd_nxt`.
    let (snd_una, snd_nxt) = (SeqNum(0), SeqNum(0));
    SendSample { now, in_flight, cwnd_limited, snd_una, snd_nxt, rto_us: RTO_US }
}

/// Returns a connection whose output always fills the window.
fn limited() -> Congestion {
    let mut congestion = fresh();
    congestion.on_sent(&sent(congestion.cwnd(), true, Instant::ZERO));
    congestion
}

/// Returns a connection in congestion avoidance with a window of five segments.
fn avoiding() -> Congestion {
    let mut congestion = limited();
    congestion.on_enter_recovery(20 * MSS);
    // ssthresh is half of the window: five segments.
    congestion.on_exit_recovery(20 * MSS);
    assert_eq!(congestion.cwnd(), 5 * MSS);
    assert!(!congestion.in_slow_start());
    congestion
}

#[test]
fn a_connection_starts_with_ten_segments_and_no_threshold() {
    let congestion = fresh();
    assert_eq!(congestion.cwnd(), 10 * MSS);
    assert_eq!(congestion.cwnd_segments(), 10);
    assert_eq!(congestion.ssthresh(), SSTHRESH_INFINITE);
    assert!(congestion.in_slow_start());
    assert_eq!(congestion.available(4 * MSS), 6 * MSS);
    assert_eq!(congestion.available(40 * MSS), 0);
}

#[test]
fn a_lossy_handshake_starts_with_one_segment() {
    let mut congestion = fresh();
    congestion.on_lossy_handshake();
    assert_eq!(congestion.cwnd(), MSS);
}

#[test]
fn slow_start_doubles_the_window_each_round() {
    let mut congestion = limited();
    for _ in 0..10 {
        congestion.on_ack(&ack(MSS));
    }
    assert_eq!(congestion.cwnd(), 20 * MSS);
    // One acknowledgment of a whole window counts as much as one for each segment.
    congestion.on_ack(&ack(20 * MSS));
    assert_eq!(congestion.cwnd(), 40 * MSS);
}

#[test]
fn slow_start_counts_no_more_than_its_limit_per_acknowledgment() {
    let config = CongestionConfig { slow_start_limit_segments: 2, ..CongestionConfig::default() };
    let mut congestion = Congestion::new(&config, MSS);
    congestion.on_sent(&sent(10 * MSS, true, Instant::ZERO));
    congestion.on_ack(&ack(10 * MSS));
    assert_eq!(congestion.cwnd(), 12 * MSS);
}

#[test]
fn congestion_avoidance_adds_one_segment_per_window() {
    let mut congestion = avoiding();
    for _ in 0..4 {
        congestion.on_ack(&ack(MSS));
    }
    assert_eq!(congestion.cwnd(), 5 * MSS);
    congestion.on_ack(&ack(MSS));
    assert_eq!(congestion.cwnd(), 6 * MSS);
    // Five segments are less than the next window; the sixth completes it.
    congestion.on_ack(&ack(5 * MSS));
    assert_eq!(congestion.cwnd(), 6 * MSS);
    congestion.on_ack(&ack(MSS));
    assert_eq!(congestion.cwnd(), 7 * MSS);
}

#[test]
fn slow_start_stops_at_the_threshold_and_avoidance_counts_the_rest() {
    let mut congestion = limited();
    congestion.on_rto(false);
    assert_eq!((congestion.cwnd(), congestion.ssthresh()), (MSS, 5 * MSS));
    // Four segments reach the threshold; the other five are a full window for congestion avoidance.
    congestion.on_ack(&ack(9 * MSS));
    assert_eq!(congestion.cwnd(), 6 * MSS);
}

#[test]
fn newreno_recovery_follows_rfc_6582() {
    let mut congestion = limited();
    congestion.on_enter_recovery(10 * MSS);
    assert_eq!(congestion.ssthresh(), 5 * MSS);
    assert_eq!(congestion.cwnd(), 8 * MSS);
    for _ in 0..4 {
        congestion.on_dup_ack();
    }
    assert_eq!(congestion.cwnd(), 12 * MSS);
    congestion.on_partial_ack(3 * MSS, 9 * MSS);
    assert_eq!(congestion.cwnd(), 10 * MSS);
    // A partial ACK of less than one segment adds no segment back (RFC 6582 §3.2, step 3).
    congestion.on_partial_ack(MSS / 2, 9 * MSS);
    assert_eq!(congestion.cwnd(), 10 * MSS - MSS / 2);
    congestion.on_exit_recovery(MSS);
    assert_eq!(congestion.cwnd(), 2 * MSS);
    congestion.check();
}

#[test]
fn forged_duplicates_inflate_the_window_by_the_outstanding_data_at_most() {
    let mut congestion = limited();
    congestion.on_enter_recovery(10 * MSS);
    for _ in 0..10_000 {
        congestion.on_dup_ack();
    }
    assert_eq!(congestion.cwnd(), 15 * MSS);
}

#[test]
fn the_threshold_is_half_the_window_and_at_least_two_segments() {
    let mut congestion = limited();
    congestion.on_enter_recovery(MSS);
    assert_eq!(
        congestion.ssthresh(),
        5 * MSS,
        "ssthresh is not half of the window of ten (one segment is in flight)"
    );
    congestion.on_rto(false);
    assert_eq!(congestion.cwnd(), MSS);
    congestion.on_rto(false);
    assert_eq!(congestion.ssthresh(), 2 * MSS);
}

#[test]
fn a_repeated_timeout_keeps_the_threshold() {
    let mut congestion = limited();
    congestion.on_rto(false);
    congestion.on_rto(true);
    assert_eq!((congestion.cwnd(), congestion.ssthresh()), (MSS, 5 * MSS));
}

#[test]
fn an_undo_restores_window_and_threshold_once() {
    let mut congestion = limited();
    congestion.on_rto(false);
    congestion.on_rto(true);
    congestion.undo();
    assert_eq!((congestion.cwnd(), congestion.ssthresh()), (10 * MSS, SSTHRESH_INFINITE));
    congestion.on_rto(true);
    congestion.undo();
    assert_eq!(congestion.cwnd(), MSS);
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut congestion = fresh();
    congestion.on_sent(&sent(2 * MSS, false, Instant::ZERO));
    congestion.on_ack(&ack(2 * MSS));
    assert_eq!(congestion.cwnd(), 10 * MSS);
    // More than half a window is in flight: slow start continues although the window did not limit
    // output.
    congestion.on_sent(&sent(6 * MSS, false, Instant::ZERO));
    congestion.on_ack(&ack(6 * MSS));
    assert_eq!(congestion.cwnd(), 16 * MSS);
}

#[test]
fn a_window_that_was_full_once_counts_as_full_for_the_round() {
    let mut congestion = fresh();
    let round = |una: u32, nxt: u32, limited| SendSample {
        snd_una: SeqNum(una),
        snd_nxt: SeqNum(nxt),
        ..sent(3 * MSS, limited, Instant::ZERO)
    };
    congestion.on_sent(&round(0, 10, true));
    congestion.on_sent(&round(5, 12, false));
    assert!(congestion.is_cwnd_limited());
    congestion.on_sent(&round(10, 14, false));
    assert!(!congestion.is_cwnd_limited());
}

#[test]
fn a_window_not_filled_for_one_rto_loses_half_of_its_unused_part() {
    let mut congestion = limited();
    congestion.on_ack(&ack(10 * MSS));
    congestion.on_ack(&ack(20 * MSS));
    assert_eq!(congestion.cwnd(), 40 * MSS);
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    congestion.on_sent(&sent(14 * MSS, false, at(100)));
    assert_eq!(congestion.cwnd(), 40 * MSS);
    congestion.on_sent(&sent(12 * MSS, false, at(200)));
    assert_eq!(congestion.cwnd(), 27 * MSS);
    congestion.on_sent(&sent(MSS, false, at(300)));
    assert_eq!(congestion.cwnd(), 27 * MSS);
    // The window does not fall below the initial window.
    for ms in [400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400, 2600, 2800, 3000] {
        congestion.on_sent(&sent(MSS, false, at(ms)));
    }
    assert!(
        (10 * MSS..11 * MSS).contains(&congestion.cwnd()),
        "the window is {}",
        congestion.cwnd()
    );
}

#[test]
fn idling_halves_the_window_per_rto_down_to_the_initial_window() {
    let mut congestion = limited();
    congestion.on_ack(&ack(70 * MSS));
    assert_eq!(congestion.cwnd(), 80 * MSS);
    congestion.on_idle(RTO / 2, RTO, Instant::ZERO);
    assert_eq!(congestion.cwnd(), 80 * MSS);
    congestion.on_idle(RTO * 2, RTO, Instant::ZERO);
    assert_eq!(congestion.cwnd(), 40 * MSS);
    congestion.on_idle(RTO * 1000, RTO, Instant::ZERO);
    assert_eq!(congestion.cwnd(), 10 * MSS);
    assert_eq!(congestion.ssthresh(), SSTHRESH_INFINITE);
    // A window below the initial window is kept.
    congestion.on_rto(false);
    congestion.on_idle(RTO * 1000, RTO, Instant::ZERO);
    assert_eq!(congestion.cwnd(), MSS);
}

#[test]
fn idling_keeps_three_quarters_of_the_window_as_threshold() {
    let mut congestion = avoiding();
    congestion.on_ack(&ack(200 * MSS));
    let cwnd = congestion.cwnd();
    assert!(cwnd > 12 * MSS);
    congestion.on_idle(RTO * 1000, RTO, Instant::ZERO);
    assert_eq!(congestion.cwnd(), 10 * MSS);
    assert_eq!(congestion.ssthresh(), cwnd / 2 + cwnd / 4);
}

#[test]
fn a_new_segment_size_keeps_the_number_of_segments() {
    let mut congestion = limited();
    congestion.on_rto(false);
    congestion.on_ack(&ack(3 * MSS));
    congestion.set_mss(500);
    assert_eq!((congestion.cwnd(), congestion.ssthresh()), (4 * 500, 5 * 500));
    assert_eq!(congestion.initial_window(), 5000);
    congestion.check();
}

#[test]
fn the_window_never_exceeds_its_upper_bound() {
    let config = CongestionConfig { cwnd_max_bytes: 12 * MSS, ..CongestionConfig::default() };
    let mut congestion = Congestion::new(&config, MSS);
    congestion.on_sent(&sent(10 * MSS, true, Instant::ZERO));
    congestion.on_ack(&ack(10 * MSS));
    assert_eq!(congestion.cwnd(), 12 * MSS);
    congestion.on_enter_recovery(12 * MSS);
    congestion.on_exit_recovery(12 * MSS);
    congestion.on_ack(&ack(u32::MAX));
    assert_eq!(congestion.cwnd(), 12 * MSS);
}

#[test]
fn every_algorithm_is_found_by_its_name() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
    }
    assert_eq!(Algorithm::from_name("vegas"), None);
    assert_eq!("bbr".parse(), Ok(Algorithm::Bbr));
    let error = "vegas".parse::<Algorithm>().unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "no such congestion control: expected one of cubic reno bbr dctcp"
    );
    let names: std::vec::Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
    assert_eq!(names.join(" "), Algorithm::NAMES);
}

#[test]
fn prr_sends_no_more_than_is_delivered_and_ends_at_the_threshold() {
    let mut congestion = limited();
    congestion.on_ack(&ack(10 * MSS));
    assert_eq!(congestion.cwnd(), 20 * MSS);
    congestion.on_enter_sack_recovery();
    // ssthresh is ten segments; one of twenty in flight was lost, and its retransmission may be
    // sent at once.
    let ssthresh = congestion.ssthresh();
    assert_eq!(ssthresh, 10 * MSS);
    congestion.on_recovery_ack(MSS, 18 * MSS, false);
    assert_eq!(congestion.cwnd(), 19 * MSS, "the window has no room for the fast retransmission");
    congestion.on_transmitted(MSS);
    let mut pipe = 19 * MSS;
    let mut out = MSS;
    for arrived in 2..=18 {
        pipe -= MSS;
        congestion.on_recovery_ack(MSS, pipe, true);
        let room = congestion.cwnd().saturating_sub(pipe) / MSS * MSS;
        congestion.on_transmitted(room);
        (pipe, out) = (pipe + room, out + room);
        assert!(out <= arrived * MSS, "the bytes sent exceed those delivered");
    }
    assert!(pipe.abs_diff(ssthresh) <= MSS, "the flight {pipe} is not near ssthresh");
    congestion.on_recovery_complete();
    assert_eq!(congestion.cwnd(), ssthresh);
}

proptest! {
    /// The window stays within its bounds for any order of events.
    #[test]
    fn the_window_stays_within_its_bounds(
        mss in 1u32..70_000,
        cubic: bool,
        steps in proptest::collection::vec((0u8..14, any::<u32>()), 0..60),
    ) {
        let algorithm = if cubic { Algorithm::Cubic } else { Algorithm::Reno };
        let config = CongestionConfig { algorithm, ..CongestionConfig::default() };
        let mut congestion = Congestion::new(&config, mss);
        let mut now = Instant::ZERO;
        for (step, amount) in steps {
            now += Duration::from_millis(50);
            match step {
                0 => {
                    let rtt = Some(Duration::from_millis(u64::from(amount % 1000)));
                    congestion.on_ack(&AckSample { now, rtt, ..ack(amount) });
                }
                1 => congestion.on_enter_recovery(amount),
                2 => congestion.on_dup_ack(),
                3 => congestion.on_partial_ack(amount, amount / 2),
                4 => congestion.on_exit_recovery(amount),
                5 => congestion.on_rto(amount % 2 == 0),
                6 => congestion.on_sent(&sent(amount, amount % 2 == 0, now)),
                7 => congestion.on_idle(Duration::from_millis(u64::from(amount)), RTO, now),
                8 => congestion.on_enter_sack_recovery(),
                9 => congestion.on_recovery_ack(amount, amount / 3, amount % 2 == 0),
                10 => congestion.on_transmitted(amount),
                11 => congestion.on_recovery_complete(),
                12 => congestion.on_repaired_loss(),
                _ => congestion.undo(),
            }
            congestion.check();
        }
    }
}
