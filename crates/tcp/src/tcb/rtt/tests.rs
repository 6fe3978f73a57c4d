//! The arithmetic of RFC 6298, the bounds of the timeout, and Linux's differences from the RFC.

use core::time::Duration;

use pkt::Instant;
use proptest::prelude::*;

use super::{RttConfig, RttEstimator};
use crate::wire::seq::SeqNum;

const MS: Duration = Duration::from_millis(1);

fn fresh() -> RttEstimator {
    RttEstimator::new(&RttConfig::default())
}

/// An estimator whose samples come one per round trip: each sample acknowledges data that was sent
/// after the previous sample.
struct Rounds {
    rtt: RttEstimator,
    una: SeqNum,
}

impl Rounds {
    fn new() -> Self {
        Self { rtt: fresh(), una: SeqNum(u32::MAX - 500) }
    }

    fn sample(&mut self, sample: Duration) {
        self.una += 100;
        self.rtt.on_sample(Instant::ZERO, sample, self.una, self.una + 50);
    }
}

#[test]
fn the_timeout_before_a_sample_is_one_second() {
    let mut rtt = fresh();
    assert_eq!(rtt.rto(), Duration::from_secs(1));
    assert_eq!((rtt.srtt(), rtt.min_rtt(), rtt.latest()), (None, None, None));
    rtt.on_rto();
    assert_eq!(rtt.rto(), Duration::from_secs(2));
}

#[test]
fn the_first_sample_sets_srtt_and_half_of_it_as_rttvar() {
    let mut rounds = Rounds::new();
    rounds.sample(400 * MS);
    assert_eq!(rounds.rtt.srtt(), Some(400 * MS));
    assert_eq!(rounds.rtt.rttvar(), 200 * MS);
    assert_eq!(rounds.rtt.rto(), 1200 * MS);
    assert_eq!(rounds.rtt.min_rtt(), Some(400 * MS));
}

#[test]
fn the_second_sample_changes_srtt_by_an_eighth_and_rttvar_by_a_quarter_of_the_error() {
    let mut rounds = Rounds::new();
    rounds.sample(400 * MS);
    rounds.sample(1200 * MS);
    // srtt = 7/8 × 400 + 1/8 × 1200; rttvar = 3/4 × 200 + 1/4 × 800.
    assert_eq!(rounds.rtt.srtt(), Some(500 * MS));
    assert_eq!(rounds.rtt.rttvar(), 350 * MS);
    assert_eq!(rounds.rtt.rto(), 1900 * MS);
}

#[test]
fn the_lower_bound_applies_to_the_variance_term() {
    let mut rounds = Rounds::new();
    for _ in 0..100 {
        rounds.sample(10 * MS);
    }
    assert_eq!(rounds.rtt.rto(), 210 * MS);
}

#[test]
fn the_upper_bound_applies_to_samples_and_doubling() {
    let mut rounds = Rounds::new();
    rounds.sample(Duration::from_secs(3600));
    assert_eq!(rounds.rtt.rto(), Duration::from_secs(120));
    for _ in 0..100 {
        rounds.rtt.on_rto();
    }
    assert_eq!(rounds.rtt.rto(), Duration::from_secs(120));
}

#[test]
fn each_expiry_doubles_the_timeout_until_a_sample() {
    let mut rounds = Rounds::new();
    rounds.sample(50 * MS);
    let base = rounds.rtt.rto();
    rounds.rtt.on_rto();
    rounds.rtt.on_rto();
    assert_eq!(rounds.rtt.rto(), 4 * base);
    assert_eq!(rounds.rtt.base_rto(), base);
    assert_eq!(rounds.rtt.backoff(), 2);
    rounds.sample(50 * MS);
    assert_eq!(rounds.rtt.backoff(), 0);
    assert!(rounds.rtt.rto() <= base);
    rounds.rtt.on_rto();
    rounds.rtt.reset_backoff();
    assert_eq!(rounds.rtt.rto(), rounds.rtt.base_rto());
}

#[test]
fn the_timeout_is_three_seconds_after_a_handshake_without_a_sample() {
    let mut rtt = fresh();
    rtt.on_rto();
    rtt.on_handshake_without_sample();
    assert_eq!(rtt.rto(), Duration::from_secs(3));
    let mut rounds = Rounds::new();
    rounds.sample(50 * MS);
    let before = rounds.rtt.rto();
    rounds.rtt.on_handshake_without_sample();
    assert_eq!(rounds.rtt.rto(), before);
}

#[test]
fn the_variance_rises_at_once_and_falls_once_per_round_trip() {
    let mut rounds = Rounds::new();
    for _ in 0..50 {
        rounds.sample(100 * MS);
    }
    let before = rounds.rtt.rttvar();
    rounds.sample(600 * MS);
    let raised = rounds.rtt.rttvar();
    assert!(raised > before);
    // Further samples of the same round trip do not lower the variance.
    let (una, nxt) = (rounds.una, rounds.una + 50);
    for _ in 0..50 {
        rounds.rtt.on_sample(Instant::ZERO, 150 * MS, una, nxt);
    }
    assert!(rounds.rtt.rttvar() >= raised);
    for _ in 0..50 {
        rounds.sample(150 * MS);
    }
    assert!(rounds.rtt.rttvar() < raised);
}

#[test]
fn a_faster_path_does_not_raise_the_timeout() {
    let mut rounds = Rounds::new();
    for _ in 0..50 {
        rounds.sample(1000 * MS);
    }
    let slow = rounds.rtt.rto();
    for _ in 0..50 {
        rounds.sample(100 * MS);
        assert!(rounds.rtt.rto() <= slow);
    }
    assert!(rounds.rtt.rto() < 400 * MS);
}

#[test]
fn a_zero_sample_counts_as_a_microsecond() {
    let mut rounds = Rounds::new();
    for _ in 0..100 {
        rounds.sample(Duration::ZERO);
    }
    assert_eq!(rounds.rtt.min_rtt(), Some(Duration::from_micros(1)));
    assert!(rounds.rtt.srtt().is_some());
}

proptest! {
    #[test]
    fn the_timeout_stays_within_its_bounds(samples in proptest::collection::vec(any::<u32>(), 1..100)) {
        let mut rounds = Rounds::new();
        let config = RttConfig::default();
        for &sample in &samples {
            rounds.sample(Duration::from_micros(u64::from(sample)));
            let rto = rounds.rtt.rto();
            prop_assert!(rto >= config.rto_min && rto <= config.rto_max);
            prop_assert!(rto >= rounds.rtt.srtt().unwrap().min(config.rto_max));
        }
        let (low, high) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
        let srtt = u32::try_from(rounds.rtt.srtt().unwrap().as_micros()).unwrap();
        prop_assert!(srtt <= *high.max(&1) && srtt + 1 >= (*low).min(1 << 28));
    }

    /// In steady state the estimate equals the samples.
    #[test]
    fn the_estimate_converges_to_constant_samples(ms in 1u32..2000) {
        let mut rounds = Rounds::new();
        rounds.sample(1000 * MS);
        for _ in 0..300 {
            rounds.sample(ms * MS);
        }
        let srtt = rounds.rtt.srtt().unwrap();
        prop_assert!(srtt.abs_diff(ms * MS) <= MS);
        prop_assert!(rounds.rtt.rto() <= ms * MS + 210 * MS);
    }
}

#[test]
fn the_minimum_rtt_expires_after_its_window() {
    let mut rtt = fresh();
    let mut sample = |secs: u64, ms: u32| {
        let at = Instant::from_secs(1000 + secs);
        rtt.on_sample(at, ms * MS, SeqNum(0), SeqNum(0));
        rtt.min_rtt().expect("a sample was taken")
    };
    assert_eq!(sample(0, 10), 10 * MS);
    assert_eq!(sample(100, 40), 10 * MS);
    assert_eq!(sample(200, 30), 10 * MS);
    assert_eq!(sample(300, 35), 10 * MS);
    // The first sample has expired: the smallest of the later samples becomes the minimum.
    assert_eq!(sample(301, 50), 30 * MS);
    assert_eq!(sample(302, 20), 20 * MS);
}

#[test]
fn with_a_window_of_zero_the_minimum_rtt_is_the_last_sample() {
    let config = RttConfig { min_rtt_window: Duration::ZERO, ..RttConfig::default() };
    let mut rtt = RttEstimator::new(&config);
    for (secs, ms) in [(1, 10), (2, 30), (3, 20)] {
        rtt.on_sample(Instant::from_secs(secs), ms * MS, SeqNum(0), SeqNum(0));
        assert_eq!(rtt.min_rtt(), Some(ms * MS));
    }
}
