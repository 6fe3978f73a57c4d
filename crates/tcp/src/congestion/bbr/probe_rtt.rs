//! ProbeRTT: at most once in five seconds the flight is reduced to half of the bandwidth-delay
//! product, so that the flow's own queue does not hide the minimum round-trip time.
//!
//! draft-ietf-ccwg-bbr §5.3.4.

use core::time::Duration;

use pkt::Instant;

use super::{Bbr, Phase, min_pipe};
use crate::{
    base::rng::Rng,
    congestion::{ModelSample, window::Window},
};

/// BBR.ProbeRTTCwndGain in percent.
pub(super) const CWND_GAIN: u64 = 50;

/// BBR.MinRTTFilterLen: time for which a minimum round-trip time stays valid.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);

/// BBR.ProbeRTTInterval: time after which ProbeRTT starts, unless a new minimum was measured
/// meanwhile.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);

/// BBR.ProbeRTTDuration: shortest time for which the flight stays small.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);

impl Bbr {
    /// Updates both minima of the round-trip time (BBRUpdateMinRTT).
    pub(super) fn update_min_rtt(&mut self, sample: &ModelSample<'_>) {
        let now = sample.now;
        self.probe_rtt_expired =
            self.min_rtt != Duration::MAX && now - self.probe_rtt_min_at > PROBE_RTT_INTERVAL;
        if let Some(rtt) = sample.rtt
            && (rtt < self.probe_rtt_min || self.probe_rtt_expired)
        {
            self.probe_rtt_min = rtt;
            self.probe_rtt_min_at = now;
        }
        let expired = now - self.min_rtt_at > MIN_RTT_WINDOW;
        if self.probe_rtt_min < self.min_rtt || expired {
            self.min_rtt = self.probe_rtt_min;
            self.min_rtt_at = self.probe_rtt_min_at;
        }
    }

    /// Enters ProbeRTT if it is due, and runs it (BBRCheckProbeRTT).
    pub(super) fn check_probe_rtt(
        &mut self,
        window: &mut Window,
        sample: &ModelSample<'_>,
        rng: &mut Rng,
    ) {
        if self.phase != Phase::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.save_cwnd(window);
            self.probe_rtt_done_at = None;
            self.ack_phase = super::AckPhase::ProbeStopping;
            self.start_round(sample);
            self.phase = Phase::ProbeRtt;
        }
        if self.phase == Phase::ProbeRtt {
            self.handle_probe_rtt(window, sample, rng);
        }
        if sample.rate.newly_acked > 0 {
            self.idle_restart = false;
        }
    }

    /// BBRHandleProbeRTT: keeps the flight small for 200 ms and at least one round trip.
    fn handle_probe_rtt(&mut self, window: &mut Window, sample: &ModelSample<'_>, rng: &mut Rng) {
        match self.probe_rtt_done_at {
            None if sample.in_flight <= self.probe_rtt_cwnd(window) => {
                self.probe_rtt_done_at = Some(sample.now + PROBE_RTT_DURATION);
                self.probe_rtt_round_done = false;
                self.start_round(sample);
            }
            None => {}
            Some(_) => {
                self.probe_rtt_round_done |= self.round_start;
                if self.probe_rtt_round_done && self.check_probe_rtt_done(window, sample.now) {
                    self.leave_probe_rtt(sample, rng);
                }
            }
        }
    }

    /// BBRCheckProbeRTTDone: restores the window once the time is over, and returns whether it is.
    /// After a restart from idle, the next ACK changes the phase.
    pub(super) fn check_probe_rtt_done(&mut self, window: &mut Window, now: Instant) -> bool {
        let done = self.probe_rtt_done_at.is_some_and(|at| now > at);
        if done {
            self.probe_rtt_min_at = now;
            window.set_cwnd(window.cwnd.max(self.prior_cwnd));
        }
        done
    }

    /// Returns to Cruise, or to Startup if the pipe was not filled yet (BBRExitProbeRTT).
    fn leave_probe_rtt(&mut self, sample: &ModelSample<'_>, rng: &mut Rng) {
        self.reset_lower_bounds();
        if self.full_bw_reached {
            self.start_down(sample, rng);
            self.phase = Phase::Cruise;
        } else {
            self.phase = Phase::Startup;
        }
    }

    /// Returns the window of ProbeRTT in bytes (BBRProbeRTTCwnd).
    pub(super) fn probe_rtt_cwnd(&self, window: &Window) -> u32 {
        self.bdp(window, self.bw, CWND_GAIN).max(min_pipe(window))
    }
}
