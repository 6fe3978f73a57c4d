//! Signals that the model takes from ACKs: rounds, bandwidth, losses, aggregation.
//!
//! draft-ietf-ccwg-bbr §5.5. Above: `Bbr::on_ack`.

use pkt::Instant;

use super::{Bbr, INFINITE, INFINITE_BW, Phase, beta, beta_bytes};
use crate::congestion::{ModelSample, window::Window};

/// BBR.MaxBwFilter: the largest bandwidth of this probing cycle and the previous one.
#[derive(Clone, Debug, Default)]
pub(super) struct MaxBw {
    this_cycle: u64,
    last_cycle: u64,
}

impl MaxBw {
    pub(super) fn value(&self) -> u64 {
        self.this_cycle.max(self.last_cycle)
    }

    pub(super) fn on_sample(&mut self, bw: u64) {
        self.this_cycle = self.this_cycle.max(bw);
    }

    /// BBRAdvanceMaxBwFilter; a cycle without samples keeps the previous value.
    pub(super) fn advance(&mut self) {
        if self.this_cycle != 0 {
            self.last_cycle = core::mem::take(&mut self.this_cycle);
        }
    }
}

/// Rounds in each of the two windows over which aggregation is measured, once the pipe was filled.
const AGGREGATION_ROUNDS: u32 = 5;

/// Excess of the bytes acknowledged at once over the bytes that the bandwidth explains (§5.5.9).
#[derive(Clone, Debug, Default)]
pub(super) struct AckAggregation {
    /// Start of this sequence of ACKs, during which more was delivered than the bandwidth explains.
    start: Instant,
    /// Bytes delivered since `start`.
    delivered: u64,
    /// Largest excess in this window of rounds and in the previous one.
    extra: [u32; 2],
    /// Round in which this window began.
    window_began: u32,
}

impl AckAggregation {
    /// Updates the excess from one ACK (BBRUpdateACKAggregation).
    pub(super) fn on_ack(
        &mut self,
        sample: &ModelSample<'_>,
        bw: u64,
        cwnd: u32,
        round: u32,
        full_bw_reached: bool,
    ) {
        let rounds = if full_bw_reached { AGGREGATION_ROUNDS } else { 1 };
        if round.wrapping_sub(self.window_began) >= rounds {
            self.extra = [0, self.extra[0]];
            self.window_began = round;
        }
        let elapsed = (sample.now - self.start).as_nanos();
        let expected = u64::try_from(u128::from(bw) * elapsed / 1_000_000_000).unwrap_or(u64::MAX);
        let mut surplus = self.delivered.saturating_sub(expected);
        if self.delivered <= expected {
            self.start = sample.now;
            self.delivered = 0;
            surplus = 0;
        }
        let acked = u64::from(sample.rate.newly_acked);
        self.delivered += acked;
        let extra = u32::try_from(surplus + acked).unwrap_or(u32::MAX).min(cwnd);
        self.extra[0] = self.extra[0].max(extra);
    }

    /// Restarts the measurement after an idle time, in which no ACKs were expected.
    pub(super) fn restart(&mut self, now: Instant) {
        self.start = now;
        self.delivered = 0;
    }

    /// Returns the largest excess of both windows (BBR.extra_acked).
    pub(super) fn extra(&self) -> u32 {
        self.extra[0].max(self.extra[1])
    }
}

/// IsInflightTooHigh: whether losses exceed LossThresh.
pub(super) fn is_inflight_too_high(sample: &ModelSample<'_>) -> bool {
    sample.loss_thresh.is_exceeded(sample.rate.lost, sample.rate.tx_in_flight)
}

impl Bbr {
    /// Updates the largest bandwidth and delivery of this round (BBRUpdateLatestDeliverySignals).
    pub(super) fn update_latest_delivery(&mut self, sample: &ModelSample<'_>) {
        self.loss_round_start = false;
        let Some(bw) = sample.rate.rate() else { return };
        self.bw_latest = self.bw_latest.max(bw);
        self.inflight_latest = self.inflight_latest.max(sample.rate.delivered);
        if sample.rate.prior_delivered >= self.loss_round_delivered {
            self.loss_round_delivered = sample.delivered;
            self.loss_round_start = true;
        }
    }

    /// At the end of a round, resets the delivery to this sample, the first one of the next round
    /// (BBRAdvanceLatestDeliverySignals).
    pub(super) fn advance_latest_delivery(&mut self, sample: &ModelSample<'_>) {
        if self.loss_round_start {
            self.bw_latest = sample.rate.rate().unwrap_or(0);
            self.inflight_latest = sample.rate.delivered;
        }
    }

    /// Discards the losses, ECN marks and delivery of this round (BBRResetCongestionSignals).
    pub(super) fn reset_congestion_signals(&mut self) {
        self.loss_in_round = false;
        self.mark_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// Updates round and maximum bandwidth, and lowers the bounds after a round with excessive loss
    /// or a mark (BBRUpdateCongestionSignals).
    pub(super) fn update_congestion_signals(&mut self, window: &Window, sample: &ModelSample<'_>) {
        self.update_round(sample);
        self.update_max_bw(sample);
        self.loss_in_round |= sample.rate.newly_lost > 0;
        self.mark_in_round |= sample.marked;
        if !self.loss_round_start {
            return;
        }
        // Differs from the draft, where `loss_in_round` is enough: see the head of `bbr`.
        let lossy = self.loss_in_round && is_inflight_too_high(sample);
        if !self.is_probing_bw() && (lossy || self.mark_in_round) {
            self.lower_bounds(window);
        }
        if self.phase == Phase::Startup && !self.mark_in_round {
            self.marked_rounds = 0;
        } else if self.mark_in_round {
            self.marked_rounds = self.marked_rounds.saturating_add(1);
        }
        self.loss_in_round = false;
        self.mark_in_round = false;
    }

    /// BBRUpdateRound: a round ends when data that was sent after its start is delivered.
    fn update_round(&mut self, sample: &ModelSample<'_>) {
        self.round_start = false;
        if sample.rate.interval.is_some()
            && sample.rate.prior_delivered >= self.next_round_delivered
        {
            self.start_round(sample);
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe = self.rounds_since_probe.saturating_add(1);
            self.round_start = true;
        }
    }

    /// Begins a round, which ends with the delivery of data sent from now on (BBRStartRound).
    pub(super) fn start_round(&mut self, sample: &ModelSample<'_>) {
        self.next_round_delivered = sample.delivered;
    }

    /// BBRUpdateMaxBw: a sample that the application limited counts only when it exceeds the
    /// maximum.
    fn update_max_bw(&mut self, sample: &ModelSample<'_>) {
        if let Some(bw) = sample.rate.rate()
            && (bw >= self.max_bw.value() || !sample.rate.is_app_limited)
        {
            self.max_bw.on_sample(bw);
        }
    }

    /// BBRInitLowerBounds and BBRLossLowerBounds: sets the lower bounds to the delivery of this
    /// round, but no less than seven tenths of their values.
    fn lower_bounds(&mut self, window: &Window) {
        if self.bw_lo == INFINITE_BW {
            self.bw_lo = self.max_bw.value();
        }
        if self.inflight_lo == INFINITE {
            self.inflight_lo = window.cwnd;
        }
        self.bw_lo = self.bw_latest.max(beta(self.bw_lo));
        self.inflight_lo = self.inflight_latest.max(beta_bytes(self.inflight_lo));
    }

    /// Removes `bw_lo` and `inflight_lo`, which apply only between probes (BBRResetLowerBounds).
    pub(super) fn reset_lower_bounds(&mut self) {
        self.bw_lo = INFINITE_BW;
        self.inflight_lo = INFINITE;
    }

    /// BBRIsProbingBW: whether the phase fills or exceeds the known capacity of the path, so that
    /// losses are expected.
    pub(super) fn is_probing_bw(&self) -> bool {
        matches!(self.phase, Phase::Startup | Phase::Refill | Phase::Up)
    }

    /// Whether the phase is one of the four of ProbeBW.
    pub(super) fn is_probe_bw(&self) -> bool {
        matches!(self.phase, Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up)
    }
}
