//! ProbeBW: at the latest after two to three seconds the flow probes for more bandwidth, and the
//! result sets the bounds.
//!
//! draft-ietf-ccwg-bbr §5.3.3.

use core::time::Duration;

use super::{AckPhase, Bbr, INFINITE, Phase, beta_bytes, min_pipe, signals::is_inflight_too_high};
use crate::{
    base::rng::Rng,
    congestion::{LossSample, LossThresh, ModelSample, window::Window},
};

/// Shortest wait between two probes; up to a second is added at random (§5.3.3.9).
const PROBE_WAIT: Duration = Duration::from_secs(2);
const PROBE_WAIT_RANDOM_US: u32 = 1_000_000;

/// Upper bound, in rounds, of the time until the next probe. With a small window the time is
/// shorter: the number of rounds in which Reno would fill the same window.
const RENO_ROUNDS_MAX: u32 = 63;

/// BBR.Headroom: percentage of `inflight_hi` that is left to other flows in Cruise and ProbeRTT.
const HEADROOM: u64 = 15;

/// Largest value of `probe_up_rounds`, from which on the growth of `inflight_hi` does not double
/// any more.
const PROBE_UP_ROUNDS_MAX: u8 = 30;

impl Bbr {
    /// Adapts the bounds and enters the next phase when it is due (BBRUpdateProbeBWCyclePhase).
    pub(super) fn update_probe_bw(
        &mut self,
        window: &Window,
        sample: &ModelSample<'_>,
        rng: &mut Rng,
    ) {
        if !self.full_bw_reached {
            return;
        }
        self.adapt_upper_bounds(window, sample, rng);
        match self.phase {
            Phase::Down => {
                let probes = self.check_time_to_probe(window, sample);
                if !probes && self.is_time_to_cruise(window, sample) {
                    self.phase = Phase::Cruise;
                }
            }
            Phase::Cruise => {
                self.check_time_to_probe(window, sample);
            }
            Phase::Refill if self.round_start => {
                // Losses from here on are feedback to the probe.
                self.probing = true;
                self.start_up(window, sample);
            }
            Phase::Up => {
                let over = self.is_time_to_go_down(window, sample);
                if over {
                    self.start_down(sample, rng);
                }
            }
            _ => {}
        }
    }

    /// Starts Refill if a probe is due (BBRIsTimeToProbeBW); returns whether it is.
    fn check_time_to_probe(&mut self, window: &Window, sample: &ModelSample<'_>) -> bool {
        let waited = sample.now - self.cycle_at > self.probe_wait;
        let due = waited || self.is_reno_coexistence_time(window);
        if due {
            self.start_refill(sample);
        }
        due
    }

    /// Whether enough rounds have passed for a Reno flow to fill the same window
    /// (BBRIsRenoCoexistenceProbeTime).
    fn is_reno_coexistence_time(&self, window: &Window) -> bool {
        let rounds = (self.target_inflight(window) / window.mss).clamp(1, RENO_ROUNDS_MAX);
        self.rounds_since_probe >= rounds
    }

    /// Returns the bandwidth-delay product, at most the window (BBRTargetInflight).
    fn target_inflight(&self, window: &Window) -> u32 {
        self.bdp(window, self.bw, 100).min(window.cwnd)
    }

    /// Whether the queue of the last probe is drained (BBRIsTimeToCruise).
    fn is_time_to_cruise(&self, window: &Window, sample: &ModelSample<'_>) -> bool {
        sample.in_flight <= self.inflight_with_headroom(window)
            && sample.in_flight <= self.inflight(window, self.max_bw.value(), 100)
    }

    /// BBRIsTimeToGoDown: whether the bandwidth has stopped growing although `inflight_hi` does not
    /// limit the flow.
    fn is_time_to_go_down(&mut self, window: &Window, sample: &ModelSample<'_>) -> bool {
        if sample.is_cwnd_limited && window.cwnd >= self.inflight_hi {
            self.reset_full_bw();
            self.full_bw = sample.rate.rate().unwrap_or(0);
            return false;
        }
        self.full_bw_now
    }

    /// Returns `inflight_hi` less the part left to other flows (BBRInflightWithHeadroom).
    pub(super) fn inflight_with_headroom(&self, window: &Window) -> u32 {
        if self.inflight_hi == INFINITE {
            return INFINITE;
        }
        let headroom = u64::from(self.inflight_hi) * HEADROOM / 100;
        let headroom = u32::try_from(headroom).unwrap_or(0).max(window.mss);
        self.inflight_hi.saturating_sub(headroom).max(min_pipe(window))
    }

    /// Enters Down, and draws the time until the next probe (BBRStartProbeBW_DOWN).
    pub(super) fn start_down(&mut self, sample: &ModelSample<'_>, rng: &mut Rng) {
        self.reset_congestion_signals();
        self.probe_up_count = u32::MAX;
        self.rounds_since_probe = rng.below(2);
        self.probe_wait =
            PROBE_WAIT + Duration::from_micros(u64::from(rng.below(PROBE_WAIT_RANDOM_US)));
        self.cycle_at = sample.now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round(sample);
        self.phase = Phase::Down;
    }

    /// Enters Refill: the bounds between probes no longer apply (BBRStartProbeBW_REFILL).
    fn start_refill(&mut self, sample: &ModelSample<'_>) {
        self.reset_lower_bounds();
        self.probe_up_rounds = 0;
        self.probe_up_acked = 0;
        self.ack_phase = AckPhase::Refilling;
        self.start_round(sample);
        self.phase = Phase::Refill;
    }

    /// Enters Up, in which `inflight_hi` rises (BBRStartProbeBW_UP).
    fn start_up(&mut self, window: &Window, sample: &ModelSample<'_>) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round(sample);
        self.reset_full_bw();
        self.full_bw = sample.rate.rate().unwrap_or(0);
        self.phase = Phase::Up;
        self.raise_inflight_hi_slope(window);
    }

    /// Sets `inflight_hi` to the flight of a probe that caused too many losses or a mark. Without
    /// excessive losses raises `inflight_hi`, if it is set, to at least the flight of the sample,
    /// and in Up further (BBRAdaptUpperBounds).
    fn adapt_upper_bounds(&mut self, window: &Window, sample: &ModelSample<'_>, rng: &mut Rng) {
        if self.ack_phase == AckPhase::ProbeStarting && self.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.round_start {
            // The last ACKs of the probe have arrived.
            self.probing = false;
            self.ack_phase = AckPhase::Init;
            if self.is_probe_bw() && !sample.rate.is_app_limited {
                self.max_bw.advance();
            }
        }
        if self.probing && sample.marked {
            self.handle_inflight_too_high(window, sample, sample.rate.tx_in_flight, rng);
            return;
        }
        if is_inflight_too_high(sample) && sample.rate.interval.is_some() {
            if self.probing {
                self.handle_inflight_too_high(window, sample, sample.rate.tx_in_flight, rng);
            }
            return;
        }
        if self.inflight_hi == INFINITE {
            return;
        }
        // No excessive loss: the bound is at least the flight of this sample.
        self.inflight_hi = self.inflight_hi.max(sample.rate.tx_in_flight);
        if self.phase == Phase::Up {
            self.probe_inflight_hi_upward(window, sample);
        }
    }

    /// BBRRaiseInflightHiSlope: doubles the growth of `inflight_hi` each round.
    fn raise_inflight_hi_slope(&mut self, window: &Window) {
        let growth = 1u32 << self.probe_up_rounds;
        self.probe_up_rounds = (self.probe_up_rounds + 1).min(PROBE_UP_ROUNDS_MAX);
        self.probe_up_count = (window.cwnd / growth).max(1);
    }

    /// Raises `inflight_hi` with acknowledged bytes while the window has reached `inflight_hi`
    /// (BBRProbeInflightHiUpward).
    fn probe_inflight_hi_upward(&mut self, window: &Window, sample: &ModelSample<'_>) {
        if !sample.is_cwnd_limited || window.cwnd < self.inflight_hi {
            return;
        }
        self.probe_up_acked = self.probe_up_acked.saturating_add(sample.rate.newly_acked);
        let steps = self.probe_up_acked / self.probe_up_count;
        self.probe_up_acked -= steps * self.probe_up_count;
        let growth = steps.saturating_mul(window.mss);
        self.inflight_hi = self.inflight_hi.saturating_add(growth).min(INFINITE - 1);
        if self.round_start {
            self.raise_inflight_hi_slope(window);
        }
    }

    /// BBRHandleInflightTooHigh: ends the probe and sets `inflight_hi` to the flight that was too
    /// large, unless the application limited that flight.
    fn handle_inflight_too_high(
        &mut self,
        window: &Window,
        sample: &ModelSample<'_>,
        tx_in_flight: u32,
        rng: &mut Rng,
    ) {
        self.probing = false;
        if !sample.rate.is_app_limited {
            let floor = beta_bytes(self.target_inflight(window)).max(min_pipe(window));
            self.inflight_hi = tx_in_flight.max(floor);
        }
        if self.phase == Phase::Up {
            self.start_down(sample, rng);
        }
    }

    /// Processes the first loss that exceeded LossThresh since the previous ACK
    /// (BBRHandleLostPacket).
    pub(super) fn on_losses(&mut self, window: &Window, sample: &ModelSample<'_>, rng: &mut Rng) {
        let Some(loss) = sample.excessive_loss.filter(|_| self.probing) else { return };
        self.handle_inflight_too_high(
            window,
            sample,
            inflight_at_loss(&loss, sample.loss_thresh),
            rng,
        );
    }
}

/// BBRInflightAtLoss: returns the flight at which the losses crossed LossThresh, interpolated
/// within the lost packet.
pub(super) fn inflight_at_loss(loss: &LossSample, thresh: LossThresh) -> u32 {
    let (flight, lost, len) =
        (u64::from(loss.tx_in_flight), u64::from(loss.lost), u64::from(loss.len));
    let before = flight.saturating_sub(len);
    let lost_before = lost.saturating_sub(len);
    let thresh = u64::from(thresh.0);
    // (thresh × before − lost before) / (1 − thresh).
    let room = (before * thresh).saturating_sub(lost_before * 1000);
    let prefix = room / (1000 - thresh).max(1);
    u32::try_from(before + prefix).unwrap_or(u32::MAX)
}
