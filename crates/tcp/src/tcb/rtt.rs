//! Round-trip time and the retransmission time-out.
//!
//! RFC 6298; Linux: tcp_rtt_estimator(), tcp_set_rto(), tcp_rtt_init().
//!
//! Linux's reading of the RFC is followed, because the peers' delayed acknowledgments are tuned to
//! it:
//!
//! - The floor of 200 ms stands under the variance term, not under the sum, so `rto >= srtt +
//!   rto_min`. A peer that delays its acknowledgment by up to 200 ms then causes no spurious
//!   time-out.
//! - With timestamps every acknowledgment is a sample. The variance therefore rises with the
//!   largest deviation of a round at once and falls once per round, so that many small samples
//!   cannot wash out one large one.
//! - A sample far *below* the estimate raises the deviation slowly: a path that got faster is no
//!   reason to wait longer.
//!
//! Time is kept in microseconds, scaled: `srtt` by 8, deviations by 4, so that the gains of 1/8 and
//! 1/4 are shifts. The product's largest value, 8 × 2^28 µs (268 s), fits 32 bits.
//!
//! Not here: which acknowledgments give a sample (Karn's rule is the caller's), when the timer
//! runs, F-RTO.

use core::time::Duration;

use pkt::Instant;

use crate::wire::seq::SeqNum;

/// Samples beyond this count as this: 2^28 µs, above any time-out.
const SAMPLE_US_MAX: u32 = 1 << 28;

/// Time-out after a handshake whose SYN was sent again, when no timestamp told which copy was
/// answered (RFC 6298 §5.7). Linux: TCP_TIMEOUT_FALLBACK.
const FALLBACK: Duration = Duration::from_secs(3);

/// Doublings counted; beyond it every time-out is at its ceiling.
const BACKOFF_MAX: u8 = 31;

/// Bounds of the time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RttConfig {
    /// Before the first sample. 1 s: RFC 6298 §2.1, Linux TCP_TIMEOUT_INIT.
    pub rto_initial: Duration,
    /// Floor of the variance term. 200 ms: Linux TCP_RTO_MIN; RFC 6298 §2.4 says 1 s of the whole.
    pub rto_min: Duration,
    /// Ceiling. 120 s: Linux TCP_RTO_MAX.
    pub rto_max: Duration,
    /// How long the smallest round trip stays believed. 300 s: `net.ipv4.tcp_min_rtt_wlen`.
    pub min_rtt_window: Duration,
}

impl Default for RttConfig {
    fn default() -> Self {
        Self {
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            min_rtt_window: Duration::from_secs(300),
        }
    }
}

/// Estimate of the round-trip time of one connection and the time-out that follows from it.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    /// Smoothed round-trip time × 8; 0 before the first sample.
    srtt_us_x8: u32,
    /// Smoothed mean deviation × 4.
    mdev_us_x4: u32,
    /// Largest `mdev_us_x4` of this round, never below the floor.
    mdev_max_us_x4: u32,
    /// RTTVAR × 4: what the time-out adds to `srtt`.
    rttvar_us_x4: u32,
    min_rtt: MinRtt,
    /// The last sample.
    latest_us: u32,
    /// The round ends when SND.UNA passes this.
    round_end: SeqNum,
    /// Time-out before doubling.
    rto_us: u32,
    rto_min_us: u32,
    rto_max_us: u32,
    /// Time-outs since the last sample; each doubled the time-out.
    backoff: u8,
}

impl RttEstimator {
    /// An estimator without samples: the time-out is `rto_initial`.
    #[must_use]
    pub fn new(config: &RttConfig) -> Self {
        let rto_min_us = micros(config.rto_min);
        Self {
            srtt_us_x8: 0,
            mdev_us_x4: micros(config.rto_initial),
            mdev_max_us_x4: rto_min_us,
            rttvar_us_x4: rto_min_us,
            min_rtt: MinRtt::new(config.min_rtt_window),
            latest_us: 0,
            round_end: SeqNum(0),
            rto_us: micros(config.rto_initial),
            rto_min_us,
            rto_max_us: micros(config.rto_max),
            backoff: 0,
        }
    }

    /// Takes a sample at `now` and ends any back-off (RFC 6298 §5, note after 5.7).
    ///
    /// `snd_una` is the acknowledgment that gave it, `snd_nxt` the end of what is sent: together
    /// they tell rounds apart.
    pub fn on_sample(&mut self, now: Instant, rtt: Duration, snd_una: SeqNum, snd_nxt: SeqNum) {
        self.on_sample_us(now, micros(rtt), snd_una, snd_nxt);
    }

    /// As [`on_sample`](Self::on_sample), of a round trip in microseconds.
    #[inline]
    pub(crate) fn on_sample_us(
        &mut self,
        now: Instant,
        rtt_us: u32,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
    ) {
        let sample = rtt_us.clamp(1, SAMPLE_US_MAX);
        self.latest_us = sample;
        self.min_rtt.on_sample(now, sample);
        self.backoff = 0;
        if self.srtt_us_x8 == 0 {
            // RFC 6298 §2.2: srtt = R, rttvar = R/2, and the time-out adds four times that.
            self.srtt_us_x8 = sample * 8;
            self.mdev_us_x4 = sample * 2;
            self.rttvar_us_x4 = self.mdev_us_x4.max(self.rto_min_us);
            self.mdev_max_us_x4 = self.rttvar_us_x4;
            self.round_end = snd_nxt;
        } else {
            self.smooth(sample);
            self.follow_deviation(snd_una, snd_nxt);
        }
        self.rto_us = (self.srtt_us_x8 / 8 + self.rttvar_us_x4).min(self.rto_max_us);
    }

    /// RFC 6298 §2.3 with gains 1/8 and 1/4.
    fn smooth(&mut self, sample: u32) {
        let srtt = self.srtt_us_x8 / 8;
        let deviation = sample.abs_diff(srtt);
        if sample >= srtt {
            self.srtt_us_x8 += deviation;
        } else {
            // At least one sample's worth stays: 0 would mean "no sample yet".
            self.srtt_us_x8 = (self.srtt_us_x8 - deviation).max(1);
        }
        let mdev = self.mdev_us_x4 / 4;
        if deviation <= mdev {
            self.mdev_us_x4 -= mdev - deviation;
        } else if sample >= srtt {
            self.mdev_us_x4 += deviation - mdev;
        } else {
            // The path got faster: gain 1/32 (Linux), else the time-out would grow when the delay
            // falls.
            self.mdev_us_x4 += (deviation - mdev) / 8;
        }
    }

    /// Lets `rttvar` rise with the deviation at once and fall by a quarter of the gap once a round.
    fn follow_deviation(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) {
        self.mdev_max_us_x4 = self.mdev_max_us_x4.max(self.mdev_us_x4);
        self.rttvar_us_x4 = self.rttvar_us_x4.max(self.mdev_max_us_x4);
        if snd_una.gt(self.round_end) {
            self.rttvar_us_x4 -= (self.rttvar_us_x4 - self.mdev_max_us_x4) / 4;
            self.round_end = snd_nxt;
            self.mdev_max_us_x4 = self.rto_min_us;
        }
    }

    /// The timer expired: RFC 6298 §5.5, the time-out doubles.
    pub fn on_rto(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Takes one doubling back (RFC 6069 §4.2).
    pub fn revert_rto(&mut self) {
        self.backoff = self.backoff.saturating_sub(1);
    }

    /// Ends the back-off without a sample, for a caller that knows by other means that the path
    /// works again. An acknowledgment of retransmitted data is no such means: RFC 6298 §5 and Linux
    /// keep the doubled time-out until a sample.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// The handshake needed a retransmission and gave no sample: RFC 6298 §5.7.
    pub fn on_handshake_without_sample(&mut self) {
        if self.srtt_us_x8 == 0 {
            self.rto_us = micros(FALLBACK).min(self.rto_max_us);
            self.backoff = 0;
        }
    }

    /// Another ceiling (`TCP_RTO_MAX_MS`).
    pub fn set_rto_max(&mut self, limit: Duration) {
        self.rto_max_us = micros(limit);
        self.rto_us = self.rto_us.min(self.rto_max_us);
    }

    /// The ceiling.
    #[must_use]
    pub fn rto_max(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_max_us))
    }

    /// The time-out to arm: doubled once for each expiry since the last sample, within the ceiling.
    #[must_use]
    pub fn rto(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_us()))
    }

    /// The same in microseconds.
    #[inline]
    #[must_use]
    pub fn rto_us(&self) -> u32 {
        let doubled = u64::from(self.rto_us) << self.backoff;
        u32::try_from(doubled).map_or(self.rto_max_us, |us| us.min(self.rto_max_us))
    }

    /// The time-out as it was before any doubling.
    #[must_use]
    pub fn base_rto(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_us))
    }

    /// Expiries since the last sample.
    #[must_use]
    pub const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Smoothed round-trip time, once there is a sample.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        self.srtt_us().map(|us| Duration::from_micros(u64::from(us)))
    }

    /// The same in microseconds.
    #[inline]
    #[must_use]
    pub fn srtt_us(&self) -> Option<u32> {
        (self.srtt_us_x8 != 0).then_some(self.srtt_us_x8 / 8)
    }

    /// RTTVAR as RFC 6298 names it: a quarter of what the time-out adds.
    #[must_use]
    pub fn rttvar(&self) -> Duration {
        Duration::from_micros(u64::from(self.rttvar_us_x4 / 4))
    }

    /// Smallest sample of the last `min_rtt_window`, once there is one.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt_us().map(|us| Duration::from_micros(u64::from(us)))
    }

    /// The same in microseconds.
    #[inline]
    #[must_use]
    pub fn min_rtt_us(&self) -> Option<u32> {
        Some(self.min_rtt.best_us).filter(|&us| us != u32::MAX)
    }

    /// The last sample, once there is one.
    #[must_use]
    pub fn latest(&self) -> Option<Duration> {
        (self.srtt_us_x8 != 0).then(|| Duration::from_micros(u64::from(self.latest_us)))
    }
}

/// The smallest sample of a window of time that moves along: a route that became longer is noticed once the window has
/// passed.
///
/// The best sample expires to the instant. What follows it is the best of those that came after, or of the last half
/// window of them, so that two samples are enough.
#[derive(Clone, Debug)]
struct MinRtt {
    window_ns: u64,
    /// `u32::MAX` before the first sample.
    best_us: u32,
    best_at: Instant,
    /// Its successor.
    next_us: u32,
    next_at: Instant,
}

impl MinRtt {
    fn new(window: Duration) -> Self {
        let (best_at, next_at) = (Instant::ZERO, Instant::ZERO);
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        Self { window_ns, best_us: u32::MAX, best_at, next_us: u32::MAX, next_at }
    }

    fn on_sample(&mut self, now: Instant, sample_us: u32) {
        if sample_us <= self.best_us {
            (self.best_us, self.best_at) = (sample_us, now);
            (self.next_us, self.next_at) = (sample_us, now);
            return;
        }
        if sample_us <= self.next_us || now.nanos_since(self.next_at) > self.window_ns / 2 {
            (self.next_us, self.next_at) = (sample_us, now);
        }
        if now.nanos_since(self.best_at) > self.window_ns {
            (self.best_us, self.best_at) = (self.next_us, self.next_at);
            (self.next_us, self.next_at) = (sample_us, now);
        }
    }
}

/// Microseconds, clamped to what the scaled arithmetic holds.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).map_or(SAMPLE_US_MAX, |us| us.min(SAMPLE_US_MAX))
}

#[cfg(test)]
mod tests;
