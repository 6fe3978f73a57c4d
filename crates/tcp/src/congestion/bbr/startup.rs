//! Startup and Drain: the window doubles in each round until the bandwidth stops growing, then the
//! resulting queue is drained.
//!
//! draft-ietf-ccwg-bbr §5.3.1, §5.3.2.

use super::{Bbr, Phase, signals::is_inflight_too_high};
use crate::{
    base::rng::Rng,
    congestion::{ModelSample, window::Window},
};

/// BBR.StartupPacingGain in percent: 4 × ln 2, the smallest gain that doubles the delivery rate
/// each round.
pub(super) const PACING_GAIN: u64 = 277;

/// BBR.DrainPacingGain in percent: the inverse of the window gain of Startup, which is two.
pub(super) const DRAIN_GAIN: u64 = 50;

/// BBR.StartupFullBwThreshold in percent: the bandwidth counts as growing if it grows by a quarter
/// in a round.
const FULL_BW_GROWTH: u64 = 125;

/// BBR.StartupFullBwCount: rounds without that growth after which the pipe counts as full.
const FULL_BW_ROUNDS: u8 = 3;

/// BBRStartupFullLossCnt: number of ACKs with losses in one round that ends Startup, if the
/// connection is in recovery and more than LossThresh of the flight was lost.
const FULL_LOSS_EVENTS: u8 = 6;

/// Number of consecutive rounds with marks that ends Startup.
const FULL_MARKED_ROUNDS: u8 = 2;

impl Bbr {
    /// Restarts the search for the bandwidth at which the pipe is full (BBRResetFullBW).
    pub(super) fn reset_full_bw(&mut self) {
        self.full_bw = 0;
        self.full_bw_count = 0;
        self.full_bw_now = false;
    }

    /// Records the pipe as full if the bandwidth has not grown by a quarter for three rounds
    /// (BBRCheckFullBWReached).
    pub(super) fn check_full_bw(&mut self, sample: &ModelSample<'_>) {
        let Some(bw) = sample.rate.rate() else { return };
        if self.full_bw_now || sample.rate.is_app_limited {
            return;
        }
        if bw >= self.full_bw.saturating_mul(FULL_BW_GROWTH) / 100 {
            self.reset_full_bw();
            self.full_bw = bw;
            return;
        }
        if !self.round_start {
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= FULL_BW_ROUNDS;
        self.full_bw_reached |= self.full_bw_now;
    }

    /// Enters Drain once the pipe is full (BBRCheckStartupDone).
    pub(super) fn check_startup_done(&mut self, window: &Window, sample: &ModelSample<'_>) {
        self.check_startup_congestion(window, sample);
        if self.phase == Phase::Startup && self.full_bw_reached {
            self.phase = Phase::Drain;
        }
    }

    /// Records the pipe as full after too many losses (BBRCheckStartupHighLoss) or marks: they show
    /// that the queue is full, even if the bandwidth still grows.
    fn check_startup_congestion(&mut self, window: &Window, sample: &ModelSample<'_>) {
        if self.full_bw_reached {
            return;
        }
        if sample.rate.newly_lost > 0 {
            self.loss_events = self.loss_events.saturating_add(1);
        }
        if !self.loss_round_start {
            return;
        }
        let losses = sample.in_recovery
            && self.loss_events >= FULL_LOSS_EVENTS
            && is_inflight_too_high(sample);
        if losses || self.marked_rounds >= FULL_MARKED_ROUNDS {
            self.full_bw_reached = true;
            let bdp = self.bdp(window, self.max_bw.value(), 100);
            self.inflight_hi = bdp.max(self.inflight_latest);
        }
        self.loss_events = 0;
    }

    /// Enters ProbeBW once the queue of Startup is drained (BBRCheckDrainDone).
    pub(super) fn check_drain_done(
        &mut self,
        window: &Window,
        sample: &ModelSample<'_>,
        rng: &mut Rng,
    ) {
        if self.phase == Phase::Drain
            && sample.in_flight <= self.inflight(window, self.max_bw.value(), 100)
        {
            self.start_down(sample, rng);
        }
    }
}
