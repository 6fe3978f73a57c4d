//! Congestion control: how many bytes may be in flight, and how fast they leave.
//!
//! Above: output asks [`Congestion::cwnd`] and [`Congestion::pacing_rate`]; input and the retransmission timer tell what
//! happened by `on_*`. RFC 5681, RFC 6582, RFC 6928, RFC 7661; Linux: tcp_cong.c, tcp_cwnd_validate().
//!
//! The window arithmetic that every algorithm shares is here: initial window, growth in slow start, and in `reduction` and
//! `validation` what a loss, an undo and an unused window do to it. An algorithm decides three things: the growth on an
//! acknowledgment, and the new `ssthresh` on a loss and on a mark. It is a variant of the closed `Policy`. One that steers
//! by a model of the path (BBR) sets window and pace itself, with every [`ModelSample`]; to it the events below only
//! tell where recovery stands.
//!
//! `cwnd` and `ssthresh` are bytes, as in the RFCs; Linux keeps whole segments. What is asked for
//! in segments is multiplied by the current `mss`.
//!
//! The order of calls in one recovery: `on_enter_recovery`, then any of `on_dup_ack` and
//! `on_partial_ack`, then one of `on_exit_recovery` and `on_rto`. [`Congestion::on_ack`] belongs to
//! the open state and to slow start after a time-out, never to recovery.
//!
//! With SACK, and after a mark, the window follows proportional rate reduction (`prr`): `on_enter_sack_recovery` or
//! `on_mark`, then `on_recovery_ack` for each ACK and `on_transmitted` for each segment, then `on_recovery_complete` or
//! `on_rto`.
//!
//! Not here: when a loss is detected and what is sent again, when a segment may leave (`segment::pacing`).

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

/// `ssthresh` before any loss: slow start has no end.
pub const SSTHRESH_INFINITE: u32 = u32::MAX;

/// `ssthresh` falls no lower, in segments (RFC 5681 §3.1, equation 4).
const SSTHRESH_SEGMENTS_MIN: u32 = 2;

/// Congestion state of one connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: Window,
    policy: Policy,
    usage: Usage,
    /// What was before the last reduction, for [`Congestion::undo`]. Allocated with the first loss.
    prior: Option<Box<Prior>>,
    /// Bytes by which duplicate acknowledgments may still inflate the window (RFC 5681 §3.2, step
    /// 4): one segment for each that is outstanding, so that a flood of forged ones buys nothing.
    inflation_left: u32,
    /// Watches the first slow start for a growing queue; `None` once it is over, and for all but CUBIC.
    hystart: Option<HyStart>,
    /// Recovery with SACK runs, or the reduction that answers a mark.
    prr: Option<Prr>,
    initial_window_segments: u32,
    slow_start_limit_segments: u32,
}

impl Congestion {
    /// A connection that has sent nothing. `mss` in bytes; 0 counts as 1.
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

    /// Changes the algorithm; it begins without memory, and the window stays (`TCP_CONGESTION`; Linux:
    /// tcp_reinit_congestion_control).
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm() {
            self.policy = Policy::new(algorithm);
            self.hystart =
                hystart_of(algorithm).filter(|_| self.window.ssthresh == SSTHRESH_INFINITE);
            // What a reduction of the other algorithm saved is none of this one's.
            self.prior = None;
            if algorithm.needs_pacing() {
                self.prr = None;
            }
        }
    }

    /// The segment size changed: negotiated, or by path MTU discovery. The window keeps its count
    /// of segments, because routers queue packets, not bytes.
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

    /// Segments became larger, and nobody asked the path for more bytes: the window keeps its bytes (RFC 4821 §7.2).
    pub fn set_mss_in_bytes(&mut self, mss: u32) {
        let Window { cwnd, ssthresh, .. } = self.window;
        // Taken away, so that it keeps its bytes too.
        let prior = self.prior.take();
        self.set_mss(mss);
        self.prior = prior;
        self.window.set_cwnd(cwnd);
        if ssthresh != SSTHRESH_INFINITE {
            self.window.set_ssthresh(ssthresh);
        }
    }

    /// The handshake lost a segment: the first flight is one segment (RFC 5681 §3.1).
    pub fn on_lossy_handshake(&mut self) {
        self.window.set_cwnd(self.window.mss);
    }

    /// New data was acknowledged outside recovery: the window may grow.
    ///
    /// A window the application does not fill says nothing about the path and stays (RFC 7661
    /// §4.3).
    ///
    /// Answers what ended slow start, if this did.
    pub fn on_ack(&mut self, sample: &AckSample) -> Option<SlowStartEnd> {
        if self.policy.model().is_some() {
            return None;
        }
        let limited = self.is_cwnd_limited();
        let (divisor, stopped) = if limited || sample.held_min_rtt.is_some() {
            self.watch_slow_start(sample)
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

    /// Something may end slow start before a loss does.
    #[inline]
    pub(crate) const fn watches_slow_start(&self) -> bool {
        self.hystart.is_some() && self.in_slow_start()
    }

    /// What slow start's growth is divided by, and what has ended it.
    fn watch_slow_start(&mut self, sample: &AckSample) -> (u32, Option<SlowStartEnd>) {
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

    /// An acknowledgment was processed, in whatever state: a model takes what it tells and sets the window, DCTCP counts
    /// its marks. Call it last, when recovery has had its say.
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

    /// Something leaves and nothing was in flight. `app_limited` when the application is what kept it so.
    pub fn on_restart(&mut self, now: Instant, app_limited: bool) {
        if let Some(bbr) = self.policy.model() {
            bbr.on_restart(&mut self.window, now, app_limited);
        }
    }

    /// `cwnd`, bytes.
    #[inline]
    #[must_use]
    pub const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// `cwnd` in whole segments, as `TCP_INFO` reports it.
    #[must_use]
    pub const fn cwnd_segments(&self) -> u32 {
        self.window.cwnd / self.window.mss
    }

    /// `ssthresh`, bytes; [`SSTHRESH_INFINITE`] before the first loss.
    #[must_use]
    pub const fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// The segment size the window is counted in.
    #[must_use]
    pub const fn mss(&self) -> u32 {
        self.window.mss
    }

    /// Bytes that may be sent beside `in_flight`.
    #[inline]
    #[must_use]
    pub const fn available(&self, in_flight: u32) -> u32 {
        self.window.cwnd.saturating_sub(in_flight)
    }

    /// Growth is exponential.
    #[must_use]
    pub const fn in_slow_start(&self) -> bool {
        self.window.cwnd < self.window.ssthresh
    }

    /// The window of a fresh connection, bytes.
    #[must_use]
    pub const fn initial_window(&self) -> u32 {
        self.initial_window_segments.saturating_mul(self.window.mss)
    }

    /// Which algorithm decides.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.policy.algorithm()
    }

    /// The pace that a model asks for, bytes per second; `None` when the algorithm has none, or has seen no ACK yet.
    #[must_use]
    pub const fn pacing_rate(&self) -> Option<u64> {
        match &self.policy {
            Policy::Bbr(bbr) => bbr.pacing_rate(),
            _ => None,
        }
    }

    /// The flight is small because the algorithm wants it so: the delivery rate is to be marked as not the path's.
    #[must_use]
    pub fn limits_itself(&self) -> bool {
        matches!(&self.policy, Policy::Bbr(bbr) if bbr.is_draining_for_rtt())
    }

    /// Asserts what always holds.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn check(&self) {
        let Window { cwnd, ssthresh, mss, cwnd_max } = self.window;
        assert!(mss > 0);
        assert!(cwnd >= mss && cwnd <= cwnd_max, "cwnd {cwnd} of {mss}..={cwnd_max}");
        assert!(ssthresh >= SSTHRESH_SEGMENTS_MIN * mss, "ssthresh {ssthresh}, mss {mss}");
    }
}

fn hystart_of(algorithm: Algorithm) -> Option<HyStart> {
    (algorithm == Algorithm::Cubic).then(HyStart::default)
}

#[cfg(test)]
mod tests;
