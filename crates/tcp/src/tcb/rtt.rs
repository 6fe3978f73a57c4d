//! Round-trip time and the retransmission timeout.
//!
//! RFC 6298; Linux: tcp_rtt_estimator(), tcp_set_rto(), tcp_rtt_init().
//!
//! The estimator follows Linux's variant of the RFC, because delayed acknowledgments of common
//! peers are tuned to it:
//!
//! - The lower bound of 200 ms applies to the variance term, not to the sum, so `rto >= srtt +
//!   rto_min`. A peer that delays its acknowledgment by up to 200 ms then causes no spurious
//!   timeout.
//! - Almost every acknowledgment gives a sample, not one per round trip. The variance therefore
//!   rises at once with the largest deviation of a round (one flight of data) and falls once per
//!   round, so that many small samples do not hide one large one.
//! - A sample far *below* the estimate raises the deviation slowly: a network path that became
//!   faster is no reason for a longer timeout.
//!
//! Time is kept in microseconds, scaled: `srtt` by 8, deviations by 4, so that the gains of 1/8 and
//! 1/4 are shifts. The largest scaled value, 8 × 2^28 µs, fits 32 bits.
//!
//! Not here: the choice of acknowledgments that give a sample (the caller applies Karn's
//! algorithm), the timer, F-RTO.

use core::time::Duration;

use pkt::Instant;

use crate::wire::seq::SeqNum;

/// Upper bound of samples: 2^28 µs, above any timeout.
const SAMPLE_US_MAX: u32 = 1 << 28;

/// Timeout after a handshake whose SYN was retransmitted, when no timestamp showed which SYN was
/// answered (RFC 6298 §5.7). Linux: TCP_TIMEOUT_FALLBACK.
const FALLBACK: Duration = Duration::from_secs(3);

/// Largest number of doublings that is counted. After that many, every timeout has reached its
/// upper bound.
const BACKOFF_MAX: u8 = 31;

/// Bounds of the timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RttConfig {
    /// Timeout before the first sample. 1 s: RFC 6298 §2.1, Linux TCP_TIMEOUT_INIT.
    pub rto_initial: Duration,
    /// Lower bound of the variance term. 200 ms: Linux TCP_RTO_MIN; RFC 6298 §2.4 has 1 s for the
    /// whole timeout.
    pub rto_min: Duration,
    /// Upper bound of the timeout. 120 s: Linux TCP_RTO_MAX.
    pub rto_max: Duration,
    /// Time for which the minimum round-trip time stays valid. 300 s: `net.ipv4.tcp_min_rtt_wlen`.
    pub min_rtt_window: Duration,
    /// Round-trip time in the route's metrics; zero if there is none.
    pub expected: Duration,
}

impl Default for RttConfig {
    fn default() -> Self {
        Self {
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            min_rtt_window: Duration::from_secs(300),
            expected: Duration::ZERO,
        }
    }
}

/// Estimate of the round-trip time of one connection, and the timeout that follows from it.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    /// Smoothed round-trip time × 8; 0 before the first sample.
    srtt_us_x8: u32,
    /// Smoothed mean deviation × 4.
    mdev_us_x4: u32,
    /// Largest `mdev_us_x4` of this round, never below the lower bound.
    mdev_max_us_x4: u32,
    /// RTTVAR × 4, which is added to `srtt`.
    rttvar_us_x4: u32,
    min_rtt: MinRtt,
    /// Latest sample.
    latest_us: u32,
    /// Sequence number that ends the round when SND.UNA passes it.
    round_end: SeqNum,
    /// Timeout before doubling.
    rto_us: u32,
    rto_min_us: u32,
    rto_max_us: u32,
    /// Round-trip time in the route's metrics; 0 if there is none.
    expected_us: u32,
    /// Doublings of the timeout since the last sample, without the reverted ones.
    backoff: u8,
}

impl RttEstimator {
    /// Returns an estimator without samples: the timeout is `rto_initial`.
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
            expected_us: micros(config.expected).min(SAMPLE_US_MAX),
            backoff: 0,
        }
    }

    /// Takes a sample at `now` and resets the back-off (RFC 6298 §5, note after 5.7).
    ///
    /// `snd_una` is the acknowledgment that gave the sample, `snd_nxt` the end of the sent data:
    /// together they delimit rounds.
    pub fn on_sample(&mut self, now: Instant, rtt: Duration, snd_una: SeqNum, snd_nxt: SeqNum) {
        self.on_sample_us(now, micros(rtt), snd_una, snd_nxt);
    }

    /// As [`on_sample`](Self::on_sample), with a round-trip time in microseconds.
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
        let is_first = self.srtt_us_x8 == 0;
        if is_first {
            // RFC 6298 §2.2: srtt = R, rttvar = R/2, and the timeout adds four times rttvar.
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
        if is_first && self.expected_us > sample {
            // A SYN may be answered sooner than data. Linux: tcp_init_metrics.
            let variance = (2 * self.expected_us).max(self.rto_min_us);
            self.rto_us = (self.expected_us + variance).min(self.rto_max_us);
        }
    }

    /// Updates `srtt` and the deviation: RFC 6298 §2.3 with gains 1/8 and 1/4.
    fn smooth(&mut self, sample: u32) {
        let srtt = self.srtt_us_x8 / 8;
        let deviation = sample.abs_diff(srtt);
        if sample >= srtt {
            self.srtt_us_x8 += deviation;
        } else {
            // Never 0, which means that there is no sample yet.
            self.srtt_us_x8 = (self.srtt_us_x8 - deviation).max(1);
        }
        let mdev = self.mdev_us_x4 / 4;
        if deviation <= mdev {
            self.mdev_us_x4 -= mdev - deviation;
        } else if sample >= srtt {
            self.mdev_us_x4 += deviation - mdev;
        } else {
            // The path became faster: gain 1/32 (Linux), because otherwise the timeout would grow
            // while the delay falls.
            self.mdev_us_x4 += (deviation - mdev) / 8;
        }
    }

    /// Raises `rttvar` with the deviation at once, and lowers it by a quarter of the difference
    /// once per round.
    fn follow_deviation(&mut self, snd_una: SeqNum, snd_nxt: SeqNum) {
        self.mdev_max_us_x4 = self.mdev_max_us_x4.max(self.mdev_us_x4);
        self.rttvar_us_x4 = self.rttvar_us_x4.max(self.mdev_max_us_x4);
        if snd_una.gt(self.round_end) {
            self.rttvar_us_x4 -= (self.rttvar_us_x4 - self.mdev_max_us_x4) / 4;
            self.round_end = snd_nxt;
            self.mdev_max_us_x4 = self.rto_min_us;
        }
    }

    /// Doubles the timeout after the timer expired: RFC 6298 §5.5.
    pub fn on_rto(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Reverts one doubling (RFC 6069 §4.2).
    pub fn revert_rto(&mut self) {
        self.backoff = self.backoff.saturating_sub(1);
    }

    /// Resets the back-off without a sample, when the caller knows by other means that the network
    /// path works again, or after the first timeouts of a thin stream, which do not double. An
    /// acknowledgment of retransmitted data does not prove that: RFC 6298 §5 and Linux keep the
    /// doubled timeout until a sample.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Sets the timeout after a handshake that needed a retransmission and gave no sample:
    /// RFC 6298 §5.7.
    pub fn on_handshake_without_sample(&mut self) {
        if self.srtt_us_x8 == 0 {
            self.rto_us = micros(FALLBACK).min(self.rto_max_us);
            self.backoff = 0;
        }
    }

    /// Sets another upper bound of the timeout (`TCP_RTO_MAX_MS`).
    pub fn set_rto_max(&mut self, limit: Duration) {
        self.rto_max_us = micros(limit);
        self.rto_us = self.rto_us.min(self.rto_max_us);
    }

    /// Returns the upper bound of the timeout.
    #[must_use]
    pub fn rto_max(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_max_us))
    }

    /// Returns the timeout to arm: with all doublings since the last sample, within the upper
    /// bound.
    #[must_use]
    pub fn rto(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_us()))
    }

    /// Returns [`rto`](Self::rto) in microseconds.
    #[inline]
    #[must_use]
    pub fn rto_us(&self) -> u32 {
        let doubled = u64::from(self.rto_us) << self.backoff;
        u32::try_from(doubled).map_or(self.rto_max_us, |us| us.min(self.rto_max_us))
    }

    /// Returns the timeout before any doubling.
    #[must_use]
    pub fn base_rto(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_us))
    }

    /// Returns the number of doublings of the timeout since the last sample.
    #[must_use]
    pub const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Returns the smoothed round-trip time, once there is a sample.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        self.srtt_us().map(|us| Duration::from_micros(u64::from(us)))
    }

    /// Returns [`srtt`](Self::srtt) in microseconds.
    #[inline]
    #[must_use]
    pub fn srtt_us(&self) -> Option<u32> {
        (self.srtt_us_x8 != 0).then_some(self.srtt_us_x8 / 8)
    }

    /// Returns RTTVAR of RFC 6298: a quarter of the term that the timeout adds.
    #[must_use]
    pub fn rttvar(&self) -> Duration {
        Duration::from_micros(u64::from(self.rttvar_us_x4 / 4))
    }

    /// Returns the smallest sample of the last `min_rtt_window`, once there is one.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt_us().map(|us| Duration::from_micros(u64::from(us)))
    }

    /// Returns [`min_rtt`](Self::min_rtt) in microseconds.
    #[inline]
    #[must_use]
    pub fn min_rtt_us(&self) -> Option<u32> {
        Some(self.min_rtt.best_us).filter(|&us| us != u32::MAX)
    }

    /// Returns the latest sample, once there is one.
    #[must_use]
    pub fn latest(&self) -> Option<Duration> {
        (self.srtt_us_x8 != 0).then(|| Duration::from_micros(u64::from(self.latest_us)))
    }
}

/// The smallest sample of a sliding time window: an increase of the network path's delay shows when
/// the window has passed.
///
/// The smallest sample expires exactly. Its successor is the smallest of the later samples, or of
/// the samples in the last half of the window. Therefore two stored samples are enough.
#[derive(Clone, Debug)]
struct MinRtt {
    window_ns: u64,
    /// `u32::MAX` before the first sample.
    best_us: u32,
    best_at: Instant,
    /// Sample that succeeds the best one.
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

/// Returns a duration in microseconds, bounded by the range of the scaled arithmetic.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).map_or(SAMPLE_US_MAX, |us| us.min(SAMPLE_US_MAX))
}

#[cfg(test)]
mod tests;
