//! BBR: window and pacing rate follow a model of the path, its bandwidth and its round-trip time,
//! instead of its losses.
//!
//! Above: `congestion`, which passes every ACK with its delivery-rate sample. draft-ietf-ccwg-bbr
//! (BBRv3); Linux: tcp_bbr.c.
//!
//! | phase | pacing gain | event | next phase |
//! |---|---|---|---|
//! | Startup | 2.77 | The bandwidth stops growing, or too much is lost or marked | Drain |
//! | Drain | 0.5 | The queue of Startup is drained | Down |
//! | Down | 0.9 | The queue of the last probe is drained | Cruise |
//! | Down, Cruise | 0.9, 1 | The next probe is due | Refill |
//! | Refill | 1 | A round trip is over | Up |
//! | Up | 1.25 | The bandwidth stops growing, or too much is lost or marked | Down |
//! | all | | No new minimum of the round-trip time was measured for 5 s | ProbeRTT |
//! | ProbeRTT | 1 | 200 ms and a round trip are over | Cruise, or Startup if it had not ended |
//!
//! The algorithm keeps two kinds of bounds beside the model, and none of them reacts to a single
//! loss. `inflight_hi` comes from probing: it is set when more than LossThresh of the data in
//! flight was lost or a mark was echoed. `inflight_lo` and `bw_lo` come from rounds (round trips)
//! between probes in which more than LossThresh was lost or an ECN mark was echoed; a timeout may
//! set `inflight_lo`, too. Both shrink by three tenths per round at most, and are reset when the
//! next probe begins.
//!
//! The files follow the draft: `signals` has the signals of ACKs (§5.5), `startup` §5.3.1 and
//! §5.3.2, `probe_bw` §5.3.3, `probe_rtt` §5.3.4; this file has the order of an update and the
//! control parameters (§5.6). Names are the draft's.
//!
//! Differs from the draft: a round in which a mark was echoed counts as a round with a loss,
//! because RFC 3168 §6.1.2 requires the same reaction to both.
//!
//! Differs from the draft: LossThresh is a setting, `net.quietline.bbr_loss_thresh`, whose default
//! is 10 % instead of 2 %. Losses below LossThresh lower no bound between probes either. The draft
//! treats any loss between probes as a sign of a full queue, so that a path with random loss lowers
//! the bounds in every round: with 5 % of loss and a round-trip time of 200 ms, BBR then uses a
//! quarter of the bandwidth. Linux's BBR, which is version 1, ignores loss, and its probes would
//! tolerate up to 20 % (1 − 1/1.25). With 10 % the throughput on paths that lose 5 % is that of
//! Linux's BBR, and the share of a competing CUBIC flow is one and a half times its share with
//! 20 %.
//!
//! Differs from Linux, as the draft does: recovery does not apply packet conservation; only the
//! model's bounds limit the window.

mod probe_bw;
mod probe_rtt;
mod signals;
mod startup;

use core::time::Duration;

use pkt::Instant;

use self::signals::{AckAggregation, MaxBw};
use super::{ModelSample, window::Window};
use crate::base::rng::Rng;

/// Value of a bound that is not set.
const INFINITE: u32 = u32::MAX;
const INFINITE_BW: u64 = u64::MAX;

/// BBR.PacingMarginPercent: the pacing rate stays this much below the estimate, so that the queue
/// drains.
const PACING_MARGIN_PERCENT: u64 = 1;

/// BBR.MinPipeCwnd, in segments: enough for a receiver that acknowledges every second segment.
const MIN_PIPE_SEGMENTS: u32 = 4;

/// BBR.Beta: bounds are reduced to seven tenths.
const BETA: (u64, u64) = (7, 10);

/// BBR.DefaultCwndGain in percent, and that of ProbeBW_UP.
const CWND_GAIN: u64 = 200;
const CWND_GAIN_UP: u64 = 225;

/// State of the state machine (BBR.state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    /// ProbeBW: the queue of the last probe drains.
    Down,
    /// ProbeBW: capacity is left to other flows.
    Cruise,
    /// ProbeBW: the path is filled before the probe.
    Refill,
    /// ProbeBW: the flow probes for more bandwidth.
    Up,
    ProbeRtt,
}

/// Meaning of the ACKs that currently arrive (BBR.ack_phase).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// State of BBR. Names are the draft's.
#[derive(Clone, Debug)]
pub(super) struct Bbr {
    phase: Phase,
    ack_phase: AckPhase,

    // ---- the model ----
    max_bw: MaxBw,
    /// BBR.bw: bandwidth of the model, bytes per second; 0 before the first sample.
    bw: u64,
    bw_lo: u64,
    bw_latest: u64,
    inflight_hi: u32,
    inflight_lo: u32,
    inflight_latest: u32,
    /// BBR.min_rtt; `Duration::MAX` before the first sample.
    min_rtt: Duration,
    min_rtt_at: Instant,
    aggregation: AckAggregation,

    // ---- rounds ----
    next_round_delivered: u64,
    round_count: u32,
    round_start: bool,
    loss_round_delivered: u64,
    loss_round_start: bool,
    /// Whether a loss, or an ECN mark, was reported in this round.
    loss_in_round: bool,
    mark_in_round: bool,

    // ---- Startup ----
    full_bw: u64,
    full_bw_count: u8,
    full_bw_now: bool,
    full_bw_reached: bool,
    /// Number of ACKs with losses in this round, and of consecutive rounds with marks.
    loss_events: u8,
    marked_rounds: u8,

    // ---- ProbeBW ----
    /// BBR.bw_probe_samples: whether losses are the result of a probe, and therefore end the probe.
    probing: bool,
    cycle_at: Instant,
    probe_wait: Duration,
    rounds_since_probe: u32,
    probe_up_rounds: u8,
    probe_up_acked: u32,
    /// BBR.probe_up_cnt: bytes to be acknowledged for each segment by which `inflight_hi` rises;
    /// `u32::MAX` while `inflight_hi` does not rise.
    probe_up_count: u32,

    // ---- ProbeRTT ----
    probe_rtt_min: Duration,
    probe_rtt_min_at: Instant,
    probe_rtt_expired: bool,
    probe_rtt_done_at: Option<Instant>,
    probe_rtt_round_done: bool,

    // ---- control ----
    /// Pacing rate in bytes per second; `None` before the first ACK.
    pacing_rate: Option<u64>,
    /// BBR.prior_cwnd.
    prior_cwnd: u32,
    idle_restart: bool,
    /// Whether recovery from a timeout is in progress.
    in_loss: bool,
}

impl Bbr {
    /// Returns a model without samples (BBRInit; §5.2.1).
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Startup,
            ack_phase: AckPhase::Init,
            max_bw: MaxBw::default(),
            bw: 0,
            bw_lo: INFINITE_BW,
            bw_latest: 0,
            inflight_hi: INFINITE,
            inflight_lo: INFINITE,
            inflight_latest: 0,
            min_rtt: Duration::MAX,
            min_rtt_at: Instant::ZERO,
            aggregation: AckAggregation::default(),
            next_round_delivered: 0,
            round_count: 0,
            round_start: false,
            loss_round_delivered: 0,
            loss_round_start: false,
            loss_in_round: false,
            mark_in_round: false,
            full_bw: 0,
            full_bw_count: 0,
            full_bw_now: false,
            full_bw_reached: false,
            loss_events: 0,
            marked_rounds: 0,
            probing: false,
            cycle_at: Instant::ZERO,
            probe_wait: Duration::ZERO,
            rounds_since_probe: 0,
            probe_up_rounds: 0,
            probe_up_acked: 0,
            probe_up_count: u32::MAX,
            probe_rtt_min: Duration::MAX,
            probe_rtt_min_at: Instant::ZERO,
            probe_rtt_expired: false,
            probe_rtt_done_at: None,
            probe_rtt_round_done: false,
            pacing_rate: None,
            prior_cwnd: 0,
            idle_restart: false,
            in_loss: false,
        }
    }

    /// Updates the model, window and pacing rate (BBRUpdateOnACK; §5.2.3), losses first.
    pub(super) fn on_ack(&mut self, window: &mut Window, sample: &ModelSample<'_>, rng: &mut Rng) {
        self.on_losses(window, sample, rng);
        self.update_latest_delivery(sample);
        self.update_congestion_signals(window, sample);
        self.aggregation.on_ack(
            sample,
            self.bw,
            window.cwnd,
            self.round_count,
            self.full_bw_reached,
        );
        self.check_full_bw(sample);
        self.check_startup_done(window, sample);
        self.check_drain_done(window, sample, rng);
        self.update_probe_bw(window, sample, rng);
        self.update_min_rtt(sample);
        self.check_probe_rtt(window, sample, rng);
        self.advance_latest_delivery(sample);
        self.bw = self.max_bw.value().min(self.bw_lo);
        self.set_pacing_rate(window, sample);
        self.set_cwnd(window, sample);
    }

    /// Reports that a segment is sent while none was in flight (BBRHandleRestartFromIdle; §5.4.1).
    /// `app_limited` is the value in the delivery-rate sampler.
    pub(super) fn on_restart(&mut self, window: &mut Window, now: Instant, app_limited: bool) {
        if !app_limited {
            return;
        }
        self.idle_restart = true;
        self.aggregation.restart(now);
        if self.is_probe_bw() {
            // Pace at the path's rate: the gain of the phase would send a burst into an empty path.
            self.pacing_rate = Some(self.paced(self.bw, 100)).filter(|_| self.bw > 0);
        } else if self.phase == Phase::ProbeRtt {
            // If the time of ProbeRTT is over, the next ACK ends it.
            self.probe_rtt_round_done |= self.check_probe_rtt_done(window, now);
        }
    }

    /// Begins fast recovery (§5.6.4.4): saves the window. During recovery only the model's bounds
    /// limit it.
    pub(super) fn on_enter_recovery(&mut self, window: &Window) {
        self.save_cwnd(window);
    }

    /// Handles a timeout, after which the whole flight counts as lost: saves the window. Between
    /// probes the saved window becomes the bound `inflight_lo`, unless that bound is set already.
    pub(super) fn on_rto(&mut self, window: &Window) {
        self.save_cwnd(window);
        self.in_loss = true;
        // The path may have changed since the pipe was filled.
        self.reset_full_bw();
        if !self.is_probing_bw() && self.inflight_lo == INFINITE {
            self.inflight_lo = window.cwnd.max(self.prior_cwnd);
        }
    }

    /// Ends recovery. After a timeout, restores the saved window.
    pub(super) fn on_recovered(&mut self, window: &mut Window) {
        if core::mem::take(&mut self.in_loss) {
            window.set_cwnd(window.cwnd.max(self.prior_cwnd));
        }
    }

    /// Undoes the reaction to a loss that was spurious.
    pub(super) fn on_undo(&mut self) {
        self.in_loss = false;
        self.reset_full_bw();
        self.reset_lower_bounds();
        self.loss_in_round = false;
    }

    /// Saves the window (BBRSaveCwnd).
    fn save_cwnd(&mut self, window: &Window) {
        self.prior_cwnd = if self.in_loss || self.phase == Phase::ProbeRtt {
            self.prior_cwnd.max(window.cwnd)
        } else {
            window.cwnd
        };
    }

    /// Returns the pacing rate in bytes per second; `None` before the first ACK.
    pub(super) const fn pacing_rate(&self) -> Option<u64> {
        self.pacing_rate
    }

    /// Whether the algorithm keeps the flight small, so that measured rates are below the capacity
    /// of the path.
    pub(super) fn is_draining_for_rtt(&self) -> bool {
        self.phase == Phase::ProbeRtt
    }

    /// Returns the gains of the state for pacing rate and window, in percent (§5.1).
    const fn gains(&self) -> (u64, u64) {
        match self.phase {
            Phase::Startup => (startup::PACING_GAIN, CWND_GAIN),
            Phase::Drain => (startup::DRAIN_GAIN, CWND_GAIN),
            Phase::Down => (90, CWND_GAIN),
            Phase::Cruise | Phase::Refill => (100, CWND_GAIN),
            Phase::Up => (125, CWND_GAIN_UP),
            Phase::ProbeRtt => (100, probe_rtt::CWND_GAIN),
        }
    }

    /// Returns `gain` percent of `bw`, less the margin.
    const fn paced(&self, bw: u64, gain: u64) -> u64 {
        bw.saturating_mul(gain * (100 - PACING_MARGIN_PERCENT)) / 10_000
    }

    /// Sets the pacing rate (BBRSetPacingRate, §5.6.2). Until the pipe is filled the rate only
    /// rises.
    fn set_pacing_rate(&mut self, window: &Window, sample: &ModelSample<'_>) {
        let (gain, _) = self.gains();
        if self.bw == 0 {
            // §5.6.2, BBRInitPacingRate: one initial window per round trip.
            let rtt = sample.srtt.unwrap_or(Duration::from_millis(1)).max(Duration::from_micros(1));
            let nominal = u64::from(window.cwnd) * 1_000_000 / micros(rtt);
            if self.pacing_rate.is_none() {
                self.pacing_rate = Some(self.paced(nominal, startup::PACING_GAIN).max(1));
            }
            return;
        }
        let rate = self.paced(self.bw, gain).max(1);
        if self.full_bw_reached || self.pacing_rate.is_none_or(|before| rate > before) {
            self.pacing_rate = Some(rate);
        }
    }

    /// Returns `gain` percent of the bandwidth-delay product, or the window before the first
    /// samples (BBRBDPMultiple, §5.6.4.2).
    fn bdp(&self, window: &Window, bw: u64, gain: u64) -> u32 {
        if self.min_rtt == Duration::MAX || bw == 0 {
            return window.cwnd;
        }
        let bdp = u128::from(bw) * self.min_rtt.as_nanos() * u128::from(gain) / 100_000_000_000;
        u32::try_from(bdp).unwrap_or(u32::MAX)
    }

    /// BBRQuantizationBudget: raises `inflight` to allow for the bursts of segmentation offload
    /// (§5.6.4.2).
    fn quantized(&self, window: &Window, inflight: u32) -> u32 {
        let quantum = u32::try_from(self.pacing_rate.unwrap_or(0) / 1000).unwrap_or(u32::MAX);
        let quantum = quantum.clamp(2 * window.mss, (64 << 10).max(2 * window.mss));
        let more = if self.phase == Phase::Up { 2 * window.mss } else { 0 };
        inflight.max(quantum.saturating_mul(3)).max(min_pipe(window)).saturating_add(more)
    }

    /// Returns the volume in flight that `gain` allows (BBRInflight).
    fn inflight(&self, window: &Window, bw: u64, gain: u64) -> u32 {
        self.quantized(window, self.bdp(window, bw, gain))
    }

    /// Sets the window (BBRSetCwnd, §5.6.4.6).
    fn set_cwnd(&self, window: &mut Window, sample: &ModelSample<'_>) {
        let (_, gain) = self.gains();
        let extra = if self.phase == Phase::ProbeRtt { 0 } else { self.aggregation.extra() };
        let max = self.bdp(window, self.bw, gain).saturating_add(extra);
        let max = self.quantized(window, max);
        let acked = sample.rate.newly_acked;
        let mut cwnd = window.cwnd;
        if self.full_bw_reached {
            cwnd = cwnd.saturating_add(acked).min(max);
        } else if cwnd < max || sample.delivered < u64::from(sample.initial_window) {
            cwnd = cwnd.saturating_add(acked);
        }
        cwnd = cwnd.max(min_pipe(window));
        if self.phase == Phase::ProbeRtt {
            cwnd = cwnd.min(self.probe_rtt_cwnd(window));
        }
        window.set_cwnd(cwnd.min(self.model_cap(window)));
    }

    /// Returns the model's upper bound of the window (BBRBoundCwndForModel, §5.6.4.7).
    fn model_cap(&self, window: &Window) -> u32 {
        let cap = match self.phase {
            Phase::Cruise | Phase::ProbeRtt => self.inflight_with_headroom(window),
            Phase::Down | Phase::Refill | Phase::Up => self.inflight_hi,
            Phase::Startup | Phase::Drain => INFINITE,
        };
        cap.min(self.inflight_lo).max(min_pipe(window))
    }
}

/// Returns BBR.MinPipeCwnd in bytes.
const fn min_pipe(window: &Window) -> u32 {
    window.mss.saturating_mul(MIN_PIPE_SEGMENTS)
}

/// Returns seven tenths of `value`.
const fn beta(value: u64) -> u64 {
    value / BETA.1 * BETA.0 + value % BETA.1 * BETA.0 / BETA.1
}

/// Returns seven tenths of a number of bytes.
fn beta_bytes(bytes: u32) -> u32 {
    u32::try_from(beta(u64::from(bytes))).unwrap_or(bytes)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
