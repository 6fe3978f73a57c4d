//! Congestion control: how many bytes may be in flight, and how fast they are sent.
//!
//! Above: `output` and `segment` read [`Congestion::cwnd`] and [`Congestion::pacing_rate`]; they,
//! `input` and `loss` report events by `on_*`. RFC 5681, RFC 6582, RFC 6928, RFC 7661; Linux:
//! tcp_cong.c, tcp_cwnd_validate().
//!
//! This module has the window arithmetic that every algorithm shares: initial window, growth in
//! slow start, and in `reduction` and `validation` the effect of a loss, of an unused window, and
//! of the undo of a reduction that proved needless. An algorithm, a variant of the enum `Policy`,
//! decides three things: the growth on an acknowledgment, and the new `ssthresh` on a loss and on
//! an ECN mark. An algorithm that follows a model of the path (BBR) sets window and pacing rate
//! itself, with every [`ModelSample`]; the `on_*` events of recovery only inform it, except that a
//! timeout lowers the window to one segment. The end of recovery or an undo restores the window.
//!
//! `cwnd` and `ssthresh` are bytes, as in the RFCs; Linux keeps whole segments. Parameters in
//! segments are multiplied by the current `mss`.
//!
//! A recovery without SACK makes its calls in this order: `on_enter_recovery`, then any of
//! `on_dup_ack` and `on_partial_ack`, then one of `on_exit_recovery`, `undo` and `on_rto`.
//! [`Congestion::on_ack`] is called in the open state and in slow start after a timeout, never in
//! fast recovery.
//!
//! With SACK, and after an ECN mark, the window follows proportional rate reduction (`prr`), and
//! the calls are `on_enter_sack_recovery` or `on_mark`, then `on_recovery_ack` for each ACK that
//! delivers data and `on_transmitted` for each transmission, then `on_recovery_complete`, `undo` or
//! `on_rto`.
//!
//! Not here: loss detection and retransmission (`loss`), departure times (`segment::pacing`).

mod algorithm;
mod bbr;
mod cubic;
mod dctcp;
mod hystart;
mod policy;
mod prr;
mod reduction;
mod reno;
mod sample;
mod validation;
mod window;

use alloc::boxed::Box;

use pkt::Instant;

pub use self::algorithm::{Algorithm, UnknownAlgorithm};
pub(crate) use self::hystart::train_max;
use self::hystart::{HyStart, Verdict};
pub use self::hystart::{HystartDetect, SlowStartEnd};
use self::policy::Policy;
use self::prr::Prr;
use self::reduction::Prior;
pub(crate) use self::sample::bytes_per_second;
pub use self::sample::{
    AckSample, CongestionConfig, LossSample, LossThresh, ModelSample, RateSample, SendSample,
};
use self::window::{Usage, Window};
use crate::base::rng::Rng;

/// Initial `ssthresh`: slow start is unlimited.
pub const SSTHRESH_INFINITE: u32 = u32::MAX;

/// Lower bound of `ssthresh`, in segments (RFC 5681 §3.1, equation 4).
const SSTHRESH_SEGMENTS_MIN: u32 = 2;

/// Congestion state of one connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: Window,
    policy: Policy,
    usage: Usage,
    /// State before the last reduction, for [`Congestion::undo`]. Allocated on the first loss.
    prior: Option<Box<Prior>>,
    /// Bytes by which duplicate acknowledgments may still inflate the window (RFC 5681 §3.2, step
    /// 4): one segment for each outstanding segment, so that forged duplicates cannot inflate it
    /// further.
    inflation_left: u32,
    /// Detector of a growing queue in the first slow start; `None` once slow start has ended, and
    /// for all algorithms but CUBIC.
    hystart: Option<HyStart>,
    /// State of SACK recovery or of the reduction after an ECN mark, while one of them is in
    /// progress.
    prr: Option<Prr>,
    initial_window_segments: u32,
    slow_start_limit_segments: u32,
}

impl Congestion {
    /// Returns the state of a connection that has sent nothing. `mss` in bytes; 0 counts as 1.
    #[must_use]
    pub fn new(config: &CongestionConfig, mss: u32) -> Self {
        let mss = mss.max(1);
        let cwnd_max = config.cwnd_max_bytes.max(SSTHRESH_SEGMENTS_MIN.saturating_mul(mss));
        let mut window = Window { cwnd: mss, ssthresh: SSTHRESH_INFINITE, mss, cwnd_max };
        window.set_cwnd(config.initial_window_segments.max(1).saturating_mul(mss));
        Self {
            window,
            policy: Policy::new(config.algorithm),
            usage: Usage::default(),
            prior: None,
            inflation_left: 0,
            hystart: hystart_of(config.algorithm),
            prr: None,
            initial_window_segments: config.initial_window_segments.max(1),
            slow_start_limit_segments: config.slow_start_limit_segments.max(1),
        }
    }

    /// Changes the algorithm. The new algorithm starts from its initial state and keeps the window
    /// (`TCP_CONGESTION`; Linux: tcp_reinit_congestion_control).
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm() {
            self.policy = Policy::new(algorithm);
            self.hystart =
                hystart_of(algorithm).filter(|_| self.window.ssthresh == SSTHRESH_INFINITE);
            // The saved state belongs to a reduction by the previous algorithm.
            self.prior = None;
            if algorithm.needs_pacing() {
                self.prr = None;
            }
        }
    }

    /// Changes the segment size, after negotiation or path MTU discovery. The window keeps its
    /// number of segments, because routers queue packets, not bytes.
    pub fn set_mss(&mut self, mss: u32) {
        let (old, new) = (u64::from(self.window.mss), u64::from(mss.max(1)));
        let rescale = |bytes: u32| u32::try_from(u64::from(bytes) * new / old).unwrap_or(u32::MAX);
        let Window { cwnd, ssthresh, .. } = self.window;
        self.window.mss = mss.max(1);
        self.window.cwnd_max = self.window.cwnd_max.max(SSTHRESH_SEGMENTS_MIN.saturating_mul(mss));
        self.window.set_cwnd(rescale(cwnd));
        if ssthresh != SSTHRESH_INFINITE {
            self.window.set_ssthresh(rescale(ssthresh));
        }
        if let Some(prior) = &mut self.prior {
            prior.rescale(rescale);
        }
    }

    /// Changes to larger segments after a path MTU probe. The window keeps its bytes, because the
    /// probe does not show that the path takes more bytes (RFC 4821 §7.2).
    pub fn set_mss_in_bytes(&mut self, mss: u32) {
        let Window { cwnd, ssthresh, .. } = self.window;
        // `set_mss` would rescale the saved state, which must keep its bytes, too.
        let prior = self.prior.take();
        self.set_mss(mss);
        self.prior = prior;
        self.window.set_cwnd(cwnd);
        if ssthresh != SSTHRESH_INFINITE {
            self.window.set_ssthresh(ssthresh);
        }
    }

    /// Reduces the first flight to one segment, because the handshake lost a segment
    /// (RFC 5681 §3.1).
    pub fn on_lossy_handshake(&mut self) {
        self.window.set_cwnd(self.window.mss);
    }

    /// Grows the window after new data was acknowledged outside fast recovery.
    ///
    /// A window that the application does not fill is not grown: nothing shows that the path can
    /// take more (RFC 7661 §4.3).
    ///
    /// Returns the signal that ended slow start, if this call ended it.
    pub fn on_ack(&mut self, sample: &AckSample) -> Option<SlowStartEnd> {
        if self.policy.model().is_some() {
            return None;
        }
        let limited = self.is_cwnd_limited();
        let (divisor, stopped) = if limited || sample.held_min_rtt.is_some() {
            self.detect_slow_start_end(sample)
        } else {
            (1, None)
        };
        if !limited {
            self.policy.pause(sample.now);
            return stopped;
        }
        let counted = if self.in_slow_start() {
            let limit = self.slow_start_limit_segments.saturating_mul(self.window.mss);
            let counted = sample.acked_bytes.min(limit);
            let used = self.window.slow_start(counted / divisor);
            if self.in_slow_start() { 0 } else { counted.saturating_sub(used * divisor) }
        } else {
            sample.acked_bytes
        };
        if counted != 0 {
            self.policy.avoid(&mut self.window, counted, sample);
        }
        stopped
    }

    /// Whether a signal other than a loss may end slow start.
    #[inline]
    pub(crate) const fn detects_slow_start_end(&self) -> bool {
        self.hystart.is_some() && self.in_slow_start()
    }

    /// Returns the divisor of slow start's growth, and the signal that has ended slow start.
    fn detect_slow_start_end(&mut self, sample: &AckSample) -> (u32, Option<SlowStartEnd>) {
        let Window { cwnd, mss, .. } = self.window;
        let in_slow_start = self.in_slow_start();
        let Some(hystart) = self.hystart.as_mut().filter(|_| in_slow_start) else {
            return (1, None);
        };
        match hystart.on_ack(sample, cwnd, mss) {
            Verdict::Stop(end) => {
                self.hystart = None;
                self.window.set_ssthresh(cwnd);
                (1, Some(end))
            }
            Verdict::Grow(divisor) => (divisor, None),
        }
    }

    /// Processes the sample of one acknowledgment, in any state: BBR updates its model and sets the
    /// window, DCTCP counts the bytes marked by ECN. Must be called last for an acknowledgment,
    /// after the calls of recovery.
    pub fn on_model_sample(&mut self, sample: &ModelSample<'_>, rng: &mut Rng) {
        match &mut self.policy {
            Policy::Bbr(bbr) => bbr.on_ack(&mut self.window, sample, rng),
            Policy::Dctcp(dctcp) => {
                let ModelSample { rate, marked, snd_una, snd_nxt, .. } = *sample;
                dctcp.on_delivered(rate.newly_acked, marked, snd_una, snd_nxt);
            }
            Policy::Cubic(_) | Policy::Reno(_) => {}
        }
    }

    /// Reports that a segment is sent while none was in flight. `app_limited` says whether the
    /// application, and not the window, had limited the flight.
    pub fn on_restart(&mut self, now: Instant, app_limited: bool) {
        if let Some(bbr) = self.policy.model() {
            bbr.on_restart(&mut self.window, now, app_limited);
        }
    }

    /// Returns `cwnd` in bytes.
    #[inline]
    #[must_use]
    pub const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// Returns `cwnd` in whole segments, as `TCP_INFO` reports it.
    #[must_use]
    pub const fn cwnd_segments(&self) -> u32 {
        self.window.cwnd / self.window.mss
    }

    /// Returns `ssthresh` in bytes; [`SSTHRESH_INFINITE`] until a loss, an ECN mark or HyStart sets
    /// it.
    #[must_use]
    pub const fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Returns the segment size by which the window grows.
    #[must_use]
    pub const fn mss(&self) -> u32 {
        self.window.mss
    }

    /// Returns the bytes that may be sent in addition to `in_flight`.
    #[inline]
    #[must_use]
    pub const fn available(&self, in_flight: u32) -> u32 {
        self.window.cwnd.saturating_sub(in_flight)
    }

    /// Whether the window grows exponentially, because it is below `ssthresh`.
    #[must_use]
    pub const fn in_slow_start(&self) -> bool {
        self.window.cwnd < self.window.ssthresh
    }

    /// Returns the initial window in bytes.
    #[must_use]
    pub const fn initial_window(&self) -> u32 {
        self.initial_window_segments.saturating_mul(self.window.mss)
    }

    /// Returns the algorithm in use.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.policy.algorithm()
    }

    /// Returns the pacing rate of the model in bytes per second; `None` when the algorithm has
    /// none, or has seen no ACK yet.
    #[must_use]
    pub const fn pacing_rate(&self) -> Option<u64> {
        match &self.policy {
            Policy::Bbr(bbr) => bbr.pacing_rate(),
            _ => None,
        }
    }

    /// Whether the algorithm itself keeps the flight small, so that delivery-rate samples are
    /// marked as application-limited.
    #[must_use]
    pub fn limits_itself(&self) -> bool {
        matches!(&self.policy, Policy::Bbr(bbr) if bbr.is_draining_for_rtt())
    }

    /// Asserts the invariants of the window.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    pub fn check(&self) {
        let Window { cwnd, ssthresh, mss, cwnd_max } = self.window;
        assert!(mss > 0);
        assert!(cwnd >= mss && cwnd <= cwnd_max, "cwnd {cwnd} is outside of {mss}..={cwnd_max}");
        assert!(
            ssthresh >= SSTHRESH_SEGMENTS_MIN * mss,
            "ssthresh {ssthresh} is below two segments of {mss}"
        );
    }
}

fn hystart_of(algorithm: Algorithm) -> Option<HyStart> {
    (algorithm == Algorithm::Cubic).then(HyStart::default)
}

#[cfg(test)]
mod tests;
