//! Tests of BBR's state machine, with a simulated path that gives one sample per round.

use core::time::Duration;

use pkt::Instant;

use super::{Bbr, INFINITE, INFINITE_BW, Phase, probe_bw::inflight_at_loss, signals::MaxBw};
use crate::{
    base::rng::Rng,
    congestion::{
        LossSample, LossThresh, ModelSample, RateSample, SSTHRESH_INFINITE, window::Window,
    },
    wire::seq::SeqNum,
};

const MSS: u32 = 1000;

/// Loss threshold of the BBR draft: 2 %.
const THRESH: LossThresh = LossThresh(20);
const RTT: Duration = Duration::from_millis(20);

/// A simulated path with a bandwidth and a round-trip time, sampled once per round.
struct Path {
    bbr: Bbr,
    window: Window,
    rng: Rng,
    now: Instant,
    delivered: u64,
    /// Bandwidth of the path in bytes per second.
    capacity: u64,
    rtt: Duration,
}

impl Path {
    fn new(capacity: u64) -> Self {
        Self {
            bbr: Bbr::new(),
            window: Window {
                cwnd: 10 * MSS,
                ssthresh: SSTHRESH_INFINITE,
                mss: MSS,
                cwnd_max: 1 << 30,
            },
            rng: Rng::new(1),
            now: Instant::from_secs(1000),
            delivered: 0,
            capacity,
            rtt: RTT,
        }
    }

    /// Returns the bandwidth-delay product of the path.
    fn bdp(&self) -> u32 {
        u32::try_from(u128::from(self.capacity) * self.rtt.as_nanos() / 1_000_000_000).unwrap()
    }

    /// Simulates one round trip in which a full window is sent at the pacing rate; a twentieth of
    /// it is lost when `lossy`.
    fn round(&mut self, lossy: bool) {
        self.round_with(|sample, flight| {
            if lossy {
                sample.newly_lost = flight / 20;
                sample.lost = flight / 20;
            }
        });
    }

    fn round_with(&mut self, change: impl FnOnce(&mut RateSample, u32)) {
        let pace = self.bbr.pacing_rate().unwrap_or(u64::MAX);
        let asked = u64::from(self.window.cwnd) * 1_000_000 / super::micros(self.rtt);
        let rate = asked.min(pace).min(self.capacity);
        let flight = self.window.cwnd;
        let delivered = u32::try_from(rate * super::micros(self.rtt) / 1_000_000).unwrap();
        let prior_delivered = self.delivered;
        self.now += self.rtt;
        self.delivered += u64::from(delivered);
        let mut sample = RateSample {
            delivered,
            interval: Some(self.rtt),
            prior_delivered,
            newly_acked: delivered,
            tx_in_flight: flight,
            ..RateSample::default()
        };
        change(&mut sample, flight);
        // In Startup the flight exceeds the bandwidth-delay product by the queue that it builds up.
        // In later phases this path drains the queue within a round.
        let queue = self.bbr.phase == Phase::Startup;
        self.ack(&sample, if queue { flight } else { flight.min(self.bdp()) });
    }

    fn ack(&mut self, rate: &RateSample, in_flight: u32) {
        let sample = ModelSample {
            now: self.now,
            rate,
            delivered: self.delivered,
            rtt: Some(self.rtt),
            srtt: Some(self.rtt),
            in_flight,
            marked: false,
            in_recovery: rate.newly_lost > 0,
            is_cwnd_limited: true,
            excessive_loss: None,
            loss_thresh: THRESH,
            initial_window: 10 * MSS,
            snd_una: SeqNum(0),
            snd_nxt: SeqNum(0),
        };
        self.bbr.on_ack(&mut self.window, &sample, &mut self.rng);
    }

    fn run_until(&mut self, rounds_max: u32, phase: Phase) -> u32 {
        for round in 0..rounds_max {
            if self.bbr.phase == phase {
                return round;
            }
            self.round(false);
        }
        panic!("{phase:?} is not reached in {rounds_max} rounds: {:?}", self.bbr);
    }
}

#[test]
fn startup_doubles_the_window_until_the_bandwidth_stops_growing_and_then_drains() {
    let mut path = Path::new(12_500_000);
    let rounds = path.run_until(20, Phase::Drain);
    // From 10 segments to 250 in five doublings, plus three rounds to detect the full pipe.
    assert!((7..=11).contains(&rounds), "Startup took {rounds} rounds");
    assert_eq!(path.bbr.max_bw.value(), 12_500_000);
    assert_eq!(path.bbr.min_rtt, RTT);
    path.round(false);
    assert!(path.bbr.is_probe_bw());
}

#[test]
fn the_pacing_rate_is_one_percent_below_the_bandwidth() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    path.round(false);
    assert_eq!(
        path.bbr.pacing_rate(),
        Some(12_375_000),
        "the rate is not one percent below the bandwidth"
    );
    let bdp = path.bdp();
    assert!(
        (bdp..=3 * bdp).contains(&path.window.cwnd),
        "window {}, bandwidth-delay product {bdp}",
        path.window.cwnd
    );
}

#[test]
fn the_probing_cycle_finds_new_bandwidth() {
    let mut path = Path::new(1_250_000);
    path.run_until(30, Phase::Cruise);
    path.run_until(400, Phase::Refill);
    path.run_until(10, Phase::Up);
    path.capacity = 2_500_000;
    for _ in 0..400 {
        path.round(false);
    }
    assert_eq!(path.bbr.max_bw.value(), 2_500_000);
}

#[test]
fn a_lower_bandwidth_replaces_the_estimate_within_sixteen_seconds() {
    let mut path = Path::new(2_500_000);
    path.run_until(30, Phase::Cruise);
    path.capacity = 1_250_000;
    for _ in 0..800 {
        path.round(false);
    }
    // A cycle without a probe measures the rate of cruising, which the pacing margin keeps below
    // the bandwidth.
    let bw = path.bbr.max_bw.value();
    assert!((1_225_000..=1_250_000).contains(&bw), "the estimate is {bw}");
}

#[test]
fn probe_rtt_begins_within_six_seconds_and_keeps_the_flight_small_for_200_ms() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    // The queue of another flow hides the round-trip time.
    path.rtt = RTT * 2;
    let before = path.now;
    path.run_until(300, Phase::ProbeRtt);
    let waited = path.now - before;
    assert!(waited < Duration::from_secs(6), "ProbeRTT began after {waited:?}");
    let cwnd = path.window.cwnd;
    let mut rounds = 0;
    while path.bbr.phase == Phase::ProbeRtt {
        path.round(false);
        rounds += 1;
        let small = path.window.cwnd <= cwnd.max(path.bdp());
        assert!(small || path.bbr.phase != Phase::ProbeRtt);
        assert!(rounds < 20, "ProbeRTT does not end");
    }
    assert!(rounds >= 5, "ProbeRTT lasted {rounds} rounds, less than 200 ms");
    assert_eq!(path.bbr.phase, Phase::Cruise);
}

#[test]
fn losses_between_probes_lower_the_bounds_and_a_probe_resets_them() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    path.round(false);
    path.round(true);
    path.round(true);
    assert!(path.bbr.bw_lo < INFINITE_BW && path.bbr.inflight_lo < INFINITE);
    assert!(path.window.cwnd <= path.bbr.inflight_lo.max(4 * MSS));
    path.run_until(400, Phase::Refill);
    assert_eq!((path.bbr.bw_lo, path.bbr.inflight_lo), (INFINITE_BW, INFINITE));
}

#[test]
fn losses_below_the_threshold_lower_no_bound() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    for _ in 0..5 {
        path.round_with(|sample, flight| {
            sample.newly_lost = flight / 60;
            sample.lost = flight / 60;
        });
    }
    assert_eq!((path.bbr.bw_lo, path.bbr.inflight_lo), (INFINITE_BW, INFINITE));
}

#[test]
fn a_probe_with_excessive_loss_bounds_the_flight() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    path.run_until(400, Phase::Up);
    assert!(path.bbr.probing);
    path.round(true);
    assert_ne!(path.bbr.phase, Phase::Up);
    assert!(!path.bbr.probing);
    assert!(path.bbr.inflight_hi < INFINITE);
    let headroom = path.bbr.inflight_with_headroom(&path.window);
    assert!(headroom < path.bbr.inflight_hi, "Cruise left no headroom to other flows");
}

#[test]
fn losses_on_six_acks_of_a_round_end_startup() {
    let mut path = Path::new(u64::from(u32::MAX));
    for _ in 0..3 {
        path.round(false);
    }
    for _ in 0..5 {
        // ACKs of the same round, each with a loss.
        let lossy = RateSample { newly_lost: MSS, ..RateSample::default() };
        path.ack(&lossy, 10 * MSS);
    }
    path.round(true);
    assert!(path.bbr.full_bw_reached);
    assert!(path.bbr.inflight_hi < INFINITE);
}

#[test]
fn marks_in_consecutive_rounds_end_startup() {
    let mut path = Path::new(u64::from(u32::MAX));
    for _ in 0..3 {
        path.round(false);
    }
    for _ in 0..3 {
        path.bbr.mark_in_round = true;
        path.round(false);
    }
    assert!(path.bbr.full_bw_reached);
}

#[test]
fn recovery_from_a_timeout_restores_the_window() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    let before = path.window.cwnd;
    path.bbr.on_rto(&path.window);
    path.window.set_cwnd(MSS);
    path.bbr.on_recovered(&mut path.window);
    assert_eq!(path.window.cwnd, before);
}

#[test]
fn a_restart_from_idle_paces_at_the_bandwidth_of_the_path() {
    let mut path = Path::new(12_500_000);
    path.run_until(400, Phase::Cruise);
    path.run_until(400, Phase::Up);
    path.bbr.on_restart(&mut path.window, path.now + RTT * 100, true);
    assert_eq!(path.bbr.pacing_rate(), Some(12_375_000));
    assert!(path.bbr.idle_restart);
    path.round(false);
    assert!(!path.bbr.idle_restart);
}

#[test]
fn application_limited_samples_do_not_lower_the_bandwidth() {
    let mut path = Path::new(12_500_000);
    path.run_until(30, Phase::Cruise);
    for _ in 0..1000 {
        path.round_with(|sample, _| {
            sample.is_app_limited = true;
            sample.delivered = MSS;
        });
    }
    assert_eq!(path.bbr.max_bw.value(), 12_500_000);
}

#[test]
fn the_bandwidth_filter_covers_two_cycles() {
    let mut filter = MaxBw::default();
    filter.on_sample(10);
    filter.advance();
    filter.on_sample(5);
    assert_eq!(filter.value(), 10);
    filter.advance();
    assert_eq!(filter.value(), 5);
    filter.advance();
    assert_eq!(filter.value(), 5, "a cycle without a sample changed the value");
}

#[test]
fn the_flight_at_a_loss_is_interpolated_to_two_percent_lost() {
    // 100 segments are in flight. The 100th is the fourth to be lost, two more than the threshold.
    let loss = LossSample { tx_in_flight: 100 * MSS, lost: 4 * MSS, len: MSS };
    assert!(THRESH.is_exceeded(loss.lost, loss.tx_in_flight));
    assert_eq!(
        inflight_at_loss(&loss, THRESH),
        99 * MSS,
        "the losses did not reach the threshold before the last segment"
    );
    let loss = LossSample { tx_in_flight: 100 * MSS, lost: 20 * MSS, len: 20 * MSS };
    // The last twenty segments are lost together. The losses reach 2 % of the flight at 80 segments
    // plus 1.6 / 0.98 of these twenty.
    assert_eq!(inflight_at_loss(&loss, THRESH), 80 * MSS + 1632);
    assert!(!THRESH.is_exceeded(2 * MSS, 100 * MSS));
}
