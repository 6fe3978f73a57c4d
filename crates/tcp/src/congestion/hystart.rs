//! End of the first slow start, before the growing window overflows the path's queue.
//!
//! Above: `congestion`. Two signals end slow start, each of which `net.quietline.hystart_detect`
//! may switch off ([`HystartDetect`]):
//!
//! - **Delay**, HyStart++ (RFC 9406). When the minimum round-trip time of a round (a flight and its
//!   ACKs) is clearly longer than that of the round before, a queue builds up: growth is reduced to
//!   a quarter (conservative slow start). Five rounds of conservative slow start end slow start. If
//!   the round-trip time falls again before then, the rise was a false alarm, and normal slow start
//!   continues. Linux instead ends slow start at once, on a rise above the minimum round-trip time
//!   of the connection (hystart_update, `HYSTART_DELAY`).
//! - **Train**, the other signal of Linux (hystart_update, `HYSTART_ACK_TRAIN`). RFC 9406 §4.1
//!   omits this signal because it rarely occurs if ACKs are compressed. Its absence does no harm. A
//!   flight leaves in bursts and is acknowledged at the rate of the bottleneck. ACKs that arrive
//!   close together for half a round trip show that the flight fills half the path. The window has
//!   doubled since that flight was sent, so it now fills the whole path, and slow start ends at
//!   once. If the round-trip time is less than a millisecond, a rise of 4 ms is a long queue, and
//!   only this signal is early enough.
//!
//! If TCP Small Queues throttle the connection, the growing queue is in our own host and shows
//! nothing about the path. In this case a rise above the minimum round-trip time of the connection
//! ends slow start at once, as in Linux, and the ACK of a superframe (a packet of several segments,
//! GSO) counts as the samples of all its segments.

use core::time::Duration;

use pkt::Instant;

use super::AckSample;
use crate::wire::seq::SeqNum;

/// RFC 9406 §4.3: a rise is an eighth of the round-trip time, within these bounds.
const RTT_THRESH_MIN: Duration = Duration::from_millis(4);
const RTT_THRESH_MAX: Duration = Duration::from_millis(16);
const RTT_DIVISOR: u32 = 8;
/// Samples of a round that are needed for a decision.
const RTT_SAMPLES: u8 = 8;
/// Divisor of the growth in conservative slow start.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Number of rounds of conservative slow start.
const CSS_ROUNDS: u8 = 5;

/// Longest gap between two acknowledgments of a train (Linux: `hystart_ack_delta_us`).
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Smallest window, in segments, in which a train is a signal (Linux: `hystart_low_window`).
const TRAIN_SEGMENTS_MIN: u32 = 16;
/// Least size that is assumed for superframes, and for the segments that a receiver merges (Linux:
/// `sk_gso_max_size`), in bytes.
const MERGED_BYTES: u32 = 65_536;
/// Upper bound of the time that is added for superframes and merged segments.
const MERGED_MAX: Duration = Duration::from_millis(1);

/// Signals that end CUBIC's first slow start before a loss (`net.quietline.hystart_detect`; Linux:
/// parameter `hystart_detect` of tcp_cubic, and `hystart`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HystartDetect {
    /// No signal.
    Off,
    /// A train of acknowledgments as long as half the path.
    Train,
    /// A growing round-trip time: by the rules of RFC 9406, and at once if the growing queue is in
    /// our own host.
    Delay,
    /// Either signal.
    #[default]
    Both,
}

impl HystartDetect {
    /// Whether a growing round-trip time is a signal.
    #[must_use]
    pub const fn delay(self) -> bool {
        matches!(self, Self::Delay | Self::Both)
    }

    /// Whether a long train of acknowledgments is a signal.
    #[must_use]
    pub const fn train(self) -> bool {
        matches!(self, Self::Train | Self::Both)
    }
}

/// The signal that ended slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowStartEnd {
    /// A growing round-trip time.
    Delay,
    /// A train of acknowledgments.
    Train,
}

/// Returns the length of an acknowledgment train at which the window must fill a path of `min_rtt`.
/// `pace` in bytes per second.
///
/// Superframes of up to `superframe_bytes`, and receivers that merge segments, lengthen the path by
/// one superframe that is being sent and one that waits. Both count twice because the pacing rate
/// is twice the window per round trip; the sum is at most a millisecond. Paced departures (`paced`)
/// already spread a train over half of the round trip, so the train must be as long as the whole
/// path (Linux: hystart_ack_delay, hystart_update).
pub(crate) fn train_max(
    min_rtt: Duration,
    pace: u64,
    superframe_bytes: u32,
    paced: bool,
) -> Duration {
    let bytes = 4 * u64::from(superframe_bytes.max(MERGED_BYTES));
    let merged = Duration::from_micros(bytes * 1_000_000 / pace.max(1)).min(MERGED_MAX);
    let whole = min_rtt + merged;
    if paced { whole } else { whole / 2 }
}

/// The growth that an acknowledgment may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The window may grow by the acknowledged bytes divided by this number.
    Grow(u32),
    /// Slow start has ended.
    Stop(SlowStartEnd),
}

/// State of HyStart. Names as in RFC 9406 §4.2.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    /// windowEnd.
    round_end: SeqNum,
    /// lastRoundMinRTT; `None` is infinite.
    last_round_min: Option<Duration>,
    /// currentRoundMinRTT.
    round_min: Option<Duration>,
    /// cssBaselineMinRtt; `Some` during conservative slow start.
    css_baseline: Option<Duration>,
    /// Start of the round, and time of the last acknowledgment of its train.
    round_start: Instant,
    train_end: Instant,
    /// Number of segments that the samples of this round cover.
    segments: u8,
    samples: u8,
    css_rounds: u8,
    started: bool,
}

impl HyStart {
    /// Processes an acknowledgment. `cwnd` and `mss` in bytes, `mss` not 0.
    pub(super) fn on_ack(&mut self, sample: &AckSample, cwnd: u32, mss: u32) -> Verdict {
        if !self.started || sample.snd_una.ge(self.round_end) {
            self.begin_round(sample);
            if self.css_rounds >= CSS_ROUNDS {
                return Verdict::Stop(SlowStartEnd::Delay);
            }
        }
        let Some(rtt) = sample.rtt else { return self.grow() };
        if let Some(train_max) = sample.train_max
            && cwnd >= TRAIN_SEGMENTS_MIN.saturating_mul(mss)
            && self.train(sample.now) > train_max
        {
            return Verdict::Stop(SlowStartEnd::Train);
        }
        if sample.watches_delay && self.rises(sample, rtt, mss) {
            return Verdict::Stop(SlowStartEnd::Delay);
        }
        self.grow()
    }

    const fn grow(&self) -> Verdict {
        Verdict::Grow(if self.css_baseline.is_some() { CSS_GROWTH_DIVISOR } else { 1 })
    }

    fn begin_round(&mut self, sample: &AckSample) {
        self.started = true;
        self.round_end = sample.snd_nxt;
        (self.round_start, self.train_end) = (sample.now, sample.now);
        self.last_round_min = self.round_min.take();
        (self.samples, self.segments) = (0, 0);
        if self.css_baseline.is_some() {
            self.css_rounds += 1;
        }
    }

    /// Returns the length of the train that began with the round. A gap ends the train for the rest
    /// of the round.
    fn train(&mut self, now: Instant) -> Duration {
        if now - self.train_end > TRAIN_GAP {
            return Duration::ZERO;
        }
        self.train_end = now;
        now - self.round_start
    }

    /// Evaluates the round so far; returns whether a queue in our own host has grown.
    fn rises(&mut self, sample: &AckSample, rtt: Duration, mss: u32) -> bool {
        let current = self.round_min.map_or(rtt, |min| min.min(rtt));
        self.round_min = Some(current);
        self.samples = self.samples.saturating_add(1);
        if self.samples >= RTT_SAMPLES {
            self.judge(current);
        }
        let Some(min_rtt) = sample.held_min_rtt else { return false };
        let segments = u8::try_from(sample.acked_bytes.div_ceil(mss)).unwrap_or(u8::MAX);
        self.segments = self.segments.saturating_add(segments);
        current >= min_rtt + rtt_thresh(min_rtt) && self.segments >= 2 * RTT_SAMPLES
    }

    fn judge(&mut self, current: Duration) {
        match (self.css_baseline, self.last_round_min) {
            (Some(baseline), _) if current < baseline => self.css_baseline = None,
            (None, Some(last)) if current >= last + rtt_thresh(last) => {
                self.css_baseline = Some(current);
                self.css_rounds = 0;
            }
            _ => {}
        }
    }
}

/// Returns the increase of the round-trip time that counts as a rise.
fn rtt_thresh(rtt: Duration) -> Duration {
    (rtt / RTT_DIVISOR).clamp(RTT_THRESH_MIN, RTT_THRESH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn ack(rtt: Duration, snd_una: u32, snd_nxt: u32) -> AckSample {
        AckSample {
            now: Instant::ZERO,
            acked_bytes: MSS,
            rtt: Some(rtt),
            snd_una: SeqNum(snd_una),
            snd_nxt: SeqNum(snd_nxt),
            held_min_rtt: None,
            train_max: None,
            watches_delay: true,
        }
    }

    /// Acknowledges a round of ten segments with this round-trip time.
    fn round(hystart: &mut HyStart, number: u32, rtt_ms: u64) -> Verdict {
        let mut verdict = Verdict::Grow(1);
        for index in 0..10 {
            let una = number * 10 + index;
            let sample = ack(Duration::from_millis(rtt_ms), una, una + 10);
            verdict = hystart.on_ack(&sample, 10 * MSS, MSS);
            if matches!(verdict, Verdict::Stop(_)) {
                break;
            }
        }
        verdict
    }

    #[test]
    fn a_growing_round_trip_ends_slow_start_after_five_conservative_rounds() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 0, 40), Verdict::Grow(1));
        assert_eq!(
            round(&mut hystart, 1, 44),
            Verdict::Grow(1),
            "a rise of less than an eighth of 40 ms counted"
        );
        assert_eq!(round(&mut hystart, 2, 50), Verdict::Grow(4));
        for number in 3..7 {
            assert_eq!(round(&mut hystart, number, 52), Verdict::Grow(4));
        }
        assert_eq!(round(&mut hystart, 7, 52), Verdict::Stop(SlowStartEnd::Delay));
    }

    #[test]
    fn a_false_alarm_ends_conservative_slow_start() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 40);
        assert_eq!(round(&mut hystart, 1, 50), Verdict::Grow(4));
        assert_eq!(round(&mut hystart, 2, 41), Verdict::Grow(1));
    }

    #[test]
    fn a_growing_round_trip_is_ignored_when_delay_detection_is_off() {
        let mut hystart = HyStart::default();
        for index in 0..400 {
            let rtt = Duration::from_millis(40 + u64::from(index));
            let held_min_rtt = Some(Duration::from_millis(40));
            let sample =
                AckSample { watches_delay: false, held_min_rtt, ..ack(rtt, index, index + 10) };
            assert_eq!(hystart.on_ack(&sample, 100 * MSS, MSS), Verdict::Grow(1));
        }
    }

    /// Each superframe of 20 segments is acknowledged by one ACK. The second ACK shows a rise above
    /// the minimum round-trip time.
    #[test]
    fn a_growing_queue_in_our_own_host_ends_slow_start_at_once() {
        let mut hystart = HyStart::default();
        let mut superframe = |number: u32, rtt_ms| {
            let sample = AckSample {
                acked_bytes: 20 * MSS,
                held_min_rtt: Some(Duration::from_millis(2)),
                ..ack(Duration::from_millis(rtt_ms), number * 20, number * 20 + 40)
            };
            hystart.on_ack(&sample, 40 * MSS, MSS)
        };
        assert_eq!(superframe(0, 5), Verdict::Grow(1), "a rise of less than 4 ms counted");
        assert_eq!(superframe(2, 6), Verdict::Stop(SlowStartEnd::Delay));
    }

    /// Acknowledges one flight over a path of 20 ms, one segment every `gap_us`, with a window of
    /// `segments`. Returns the index and the time of the acknowledgment that ended slow start.
    fn train(gap_us: u64, segments: u32) -> Option<(u32, Duration)> {
        let mut hystart = HyStart::default();
        let train_max = Some(train_max(Duration::from_millis(20), 100_000_000, 0, false));
        (0..500).find_map(|index| {
            let at = Duration::from_micros(gap_us * u64::from(index));
            let sample = AckSample {
                now: Instant::ZERO + at,
                train_max,
                ..ack(Duration::from_millis(20), index, 1000)
            };
            let verdict = hystart.on_ack(&sample, segments * MSS, MSS);
            (verdict == Verdict::Stop(SlowStartEnd::Train)).then_some((index, at))
        })
    }

    /// The limit is half of 21 ms: the path of 20 ms, and a millisecond for superframes. The first
    /// acknowledgment after the limit ends slow start.
    #[test]
    fn a_train_as_long_as_half_the_path_ends_slow_start() {
        assert_eq!(train(100, 16), Some((106, Duration::from_micros(10_600))));
        assert_eq!(train(2000, 16), Some((6, Duration::from_millis(12))));
    }

    #[test]
    fn acknowledgments_far_apart_or_in_a_small_window_are_no_train() {
        assert_eq!(train(2001, 16), None);
        assert_eq!(train(100, 15), None);
    }

    #[test]
    fn a_train_ends_with_its_round() {
        let mut hystart = HyStart::default();
        let train_max = Some(Duration::from_millis(10));
        for index in 0..1000 {
            // A round is a hundred acknowledgments, which take 9.9 ms.
            let now = Instant::ZERO + Duration::from_micros(100) * index;
            let sample =
                AckSample { now, train_max, ..ack(Duration::from_millis(20), index, index + 100) };
            assert_eq!(hystart.on_ack(&sample, 100 * MSS, MSS), Verdict::Grow(1));
        }
    }

    #[test]
    fn superframes_lengthen_a_short_path_by_at_most_a_millisecond() {
        let path = Duration::from_micros(40);
        let micros = |pace, bytes, paced| train_max(path, pace, bytes, paced).as_micros();
        assert_eq!(
            micros(250_000_000, 0, false),
            520,
            "pacing at twice 1 Gbit/s: the added time is not limited to 1 ms"
        );
        assert_eq!(micros(2_500_000_000, 1448, false), (40 + 104) / 2, "pacing at twice 10 Gbit/s");
        assert_eq!(micros(2_500_000_000, 1448, true), 40 + 104);
        assert_eq!(micros(2_500_000_000, 262_144, true), 40 + 419, "superframes of BIG TCP");
    }
}
