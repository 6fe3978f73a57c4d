//! BBR: the window and the pace follow a model of the path, its bandwidth and its round trip, instead of its losses.
//!
//! Above: `congestion`, which gives every ACK with its delivery-rate sample. draft-ietf-ccwg-bbr (BBRv3); Linux: tcp_bbr.c.
//!
//! ```text
//!   Startup ──► Drain ──► Down ──► Cruise ──► Refill ──► Up ──┐        every 5 s: ProbeRTT, and back
//!    2.77×       0.5×   ▲ 0.9×      1×          1×     1.25×  │
//!                       └─────────────────────────────────────┘
//! ```
//!
//! Two bounds are learnt beside the model, and neither is a reaction to a single loss: `inflight_hi` from probing, where more
//! than LossThresh of what was in flight was lost; `inflight_lo` and `bw_lo` from rounds between probes which lost as much or
//! were marked: they shrink by three tenths per round at most and are forgotten when the next probe begins.
//!
//! The files follow the draft: `signals` what ACKs tell (§5.5), `startup` (§5.3.1), `probe_bw` (§5.3.3), `probe_rtt` (§5.3.4),
//! and here the order of an update and the control parameters (§5.6). Names are the draft's.
//!
//! Differs from the draft: a round in which a mark was echoed counts as one with a loss, because RFC 3168 §6.1.2 asks for
//! the same answer to both.
//!
//! Differs from the draft: LossThresh is a setting, `net.quietline.bbr_loss_thresh`, of 10 % instead of 2 %, and what stays below
//! it lowers no bound between probes either. There the draft takes any loss for a sign of a full queue, so that a path which
//! loses by chance takes a part of the bounds away with every round: 5 % of loss at 200 ms left a quarter of the bandwidth.
//! Linux's BBR, which is version 1, takes no notice of loss, and would take up to 20 % (1 − 1/1.25) without its probes
//! failing. Half of that is enough to stay the kernel's equal on paths that lose 5 %, and leaves CUBIC half as much again as
//! 20 % would.
//!
//! Differs from Linux as the draft does: no window is conserved in recovery, the model's bounds are what recovery has.

mod probe_bw;
mod probe_rtt;
mod signals;
mod startup;

use core::time::Duration;

use pkt::Instant;

use self::signals::{AckAggregation, MaxBw};
use super::{ModelSample, window::Window};
use crate::base::rng::Rng;

/// No bound is known.
const INFINITE: u32 = u32::MAX;
const INFINITE_BW: u64 = u64::MAX;

/// BBR.PacingMarginPercent: the pace stays this much below the estimate, so that the queue drains.
const PACING_MARGIN_PERCENT: u64 = 1;

/// BBR.MinPipeCwnd, in segments: enough for an ACK of every second one.
const MIN_PIPE_SEGMENTS: u32 = 4;

/// BBR.Beta: seven tenths stay.
const BETA: (u64, u64) = (7, 10);

/// BBR.DefaultCwndGain in percent, and that of ProbeBW_UP.
const CWND_GAIN: u64 = 200;
const CWND_GAIN_UP: u64 = 225;

/// Where the state machine stands (BBR.state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    /// ProbeBW: the queue that a probe left drains.
    Down,
    /// ProbeBW: room is left to others.
    Cruise,
    /// ProbeBW: the pipe is filled before the probe.
    Refill,
    /// ProbeBW: more is asked for.
    Up,
    ProbeRtt,
}

/// What the ACKs of this moment are feedback to (BBR.ack_phase).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// See the module head.
#[derive(Clone, Debug)]
pub(super) struct Bbr {
    phase: Phase,
    ack_phase: AckPhase,

    // ---- the model ----
    max_bw: MaxBw,
    /// BBR.bw: what the model says, bytes per second; 0 before the first sample.
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
    /// Something was lost, or marked, in this round.
    loss_in_round: bool,
    mark_in_round: bool,

    // ---- Startup ----
    full_bw: u64,
    full_bw_count: u8,
    full_bw_now: bool,
    full_bw_reached: bool,
    /// ACKs with losses in this round, and rounds with marks.
    loss_events: u8,
    marked_rounds: u8,

    // ---- ProbeBW ----
    /// BBR.bw_probe_samples: losses are feedback to a probe.
    probing: bool,
    cycle_at: Instant,
    probe_wait: Duration,
    rounds_since_probe: u32,
    probe_up_rounds: u8,
    probe_up_acked: u32,
    /// Bytes to acknowledge per segment that `inflight_hi` rises; `u32::MAX` when it does not.
    probe_up_count: u32,

    // ---- ProbeRTT ----
    probe_rtt_min: Duration,
    probe_rtt_min_at: Instant,
    probe_rtt_expired: bool,
    probe_rtt_done_at: Option<Instant>,
    probe_rtt_round_done: bool,

    // ---- control ----
    /// Bytes per second; `None` before the first ACK.
    pacing_rate: Option<u64>,
    /// BBR.prior_cwnd.
    prior_cwnd: u32,
    idle_restart: bool,
    /// A timeout is being recovered from.
    in_loss: bool,
}

impl Bbr {
    /// A model that knows nothing (BBRInit; §5.2.1).
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

    /// BBRUpdateOnACK (§5.2.3), losses first.
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

    /// Nothing was in flight and something leaves (BBRHandleRestartFromIdle; §5.4.1). `app_limited` as the delivery rate
    /// sees it.
    pub(super) fn on_restart(&mut self, window: &mut Window, now: Instant, app_limited: bool) {
        if !app_limited {
            return;
        }
        self.idle_restart = true;
        self.aggregation.restart(now);
        if self.is_probe_bw() {
            // No faster than the path: the gain of the phase would be a burst into an empty pipe.
            self.pacing_rate = Some(self.paced(self.bw, 100)).filter(|_| self.bw > 0);
        } else if self.phase == Phase::ProbeRtt {
            // The next ACK leaves the state.
            self.probe_rtt_round_done |= self.check_probe_rtt_done(window, now);
        }
    }

    /// Fast recovery begins (§5.6.4.4): the window is remembered, and the model bounds it from here on.
    pub(super) fn on_enter_recovery(&mut self, window: &Window) {
        self.save_cwnd(window);
    }

    /// A timeout: everything is lost, what is in flight is what is sent from here on.
    pub(super) fn on_rto(&mut self, window: &Window) {
        self.save_cwnd(window);
        self.in_loss = true;
        // What filled the pipe may be gone.
        self.reset_full_bw();
        if !self.is_probing_bw() && self.inflight_lo == INFINITE {
            self.inflight_lo = window.cwnd.max(self.prior_cwnd);
        }
    }

    /// Recovery is over.
    pub(super) fn on_recovered(&mut self, window: &mut Window) {
        if core::mem::take(&mut self.in_loss) {
            window.set_cwnd(window.cwnd.max(self.prior_cwnd));
        }
    }

    /// The loss was none.
    pub(super) fn on_undo(&mut self) {
        self.in_loss = false;
        self.reset_full_bw();
        self.reset_lower_bounds();
        self.loss_in_round = false;
    }

    /// BBRSaveCwnd.
    fn save_cwnd(&mut self, window: &Window) {
        self.prior_cwnd = if self.in_loss || self.phase == Phase::ProbeRtt {
            self.prior_cwnd.max(window.cwnd)
        } else {
            window.cwnd
        };
    }

    /// Bytes per second at which segments are to leave; `None` before the first ACK.
    pub(super) const fn pacing_rate(&self) -> Option<u64> {
        self.pacing_rate
    }

    /// The flight is held small on purpose: what is measured now is not what the path can do.
    pub(super) fn is_draining_for_rtt(&self) -> bool {
        self.phase == Phase::ProbeRtt
    }

    /// The gains of the state in percent: pacing and window (§5.1).
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

    /// The pace of `gain` percent of `bw`, less the margin.
    const fn paced(&self, bw: u64, gain: u64) -> u64 {
        bw.saturating_mul(gain * (100 - PACING_MARGIN_PERCENT)) / 10_000
    }

    /// BBRSetPacingRate (§5.6.2): before the pipe was filled it only rises.
    fn set_pacing_rate(&mut self, window: &Window, sample: &ModelSample<'_>) {
        let (gain, _) = self.gains();
        if self.bw == 0 {
            // §5.6.2, BBRInitPacingRate: as if the first window were a round trip's worth.
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

    /// BBRBDPMultiple: `gain` percent of what the path holds (§5.6.4.2).
    fn bdp(&self, window: &Window, bw: u64, gain: u64) -> u32 {
        if self.min_rtt == Duration::MAX || bw == 0 {
            return window.cwnd;
        }
        let bdp = u128::from(bw) * self.min_rtt.as_nanos() * u128::from(gain) / 100_000_000_000;
        u32::try_from(bdp).unwrap_or(u32::MAX)
    }

    /// BBRQuantizationBudget: enough for the bursts that offload makes (§5.6.4.2).
    fn quantised(&self, window: &Window, inflight: u32) -> u32 {
        let quantum = u32::try_from(self.pacing_rate.unwrap_or(0) / 1000).unwrap_or(u32::MAX);
        let quantum = quantum.clamp(2 * window.mss, (64 << 10).max(2 * window.mss));
        let more = if self.phase == Phase::Up { 2 * window.mss } else { 0 };
        inflight.max(quantum.saturating_mul(3)).max(min_pipe(window)).saturating_add(more)
    }

    /// BBRInflight.
    fn inflight(&self, window: &Window, bw: u64, gain: u64) -> u32 {
        self.quantised(window, self.bdp(window, bw, gain))
    }

    /// BBRSetCwnd (§5.6.4.6).
    fn set_cwnd(&self, window: &mut Window, sample: &ModelSample<'_>) {
        let (_, gain) = self.gains();
        let extra = if self.phase == Phase::ProbeRtt { 0 } else { self.aggregation.extra() };
        let max = self.bdp(window, self.bw, gain).saturating_add(extra);
        let max = self.quantised(window, max);
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

    /// BBRBoundCwndForModel (§5.6.4.7).
    fn model_cap(&self, window: &Window) -> u32 {
        let cap = match self.phase {
            Phase::Cruise | Phase::ProbeRtt => self.inflight_with_headroom(window),
            Phase::Down | Phase::Refill | Phase::Up => self.inflight_hi,
            Phase::Startup | Phase::Drain => INFINITE,
        };
        cap.min(self.inflight_lo).max(min_pipe(window))
    }
}

/// BBR.MinPipeCwnd in bytes.
const fn min_pipe(window: &Window) -> u32 {
    window.mss.saturating_mul(MIN_PIPE_SEGMENTS)
}

/// Seven tenths.
const fn beta(value: u64) -> u64 {
    value / BETA.1 * BETA.0 + value % BETA.1 * BETA.0 / BETA.1
}

/// The same of a number of bytes.
fn beta_bytes(bytes: u32) -> u32 {
    u32::try_from(beta(u64::from(bytes))).unwrap_or(bytes)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
