//! The end of the first slow start, before it overflows the path's queue.
//!
//! Above: `congestion`. Two signs, each of which `net.quietline.hystart_detect` may switch off ([`HystartDetect`]):
//!
//! - **Delay**, HyStart++ (RFC 9406). When the smallest round trip of a round is clearly longer than the round before's, a queue
//!   builds up: growth falls to a quarter (conservative slow start). Five such rounds end slow start; a round trip that falls again was a
//!   false alarm. Linux stops at once instead, on a rise against the shortest round trip of the connection (hystart_update,
//!   `HYSTART_DELAY`).
//! - **Train**, Linux's other half (hystart_update, `HYSTART_ACK_TRAIN`), which RFC 9406 §4.1 leaves out because it finds little where
//!   acknowledgments are compressed; it costs nothing there. A flight leaves in bursts and is acknowledged at the pace of the bottleneck:
//!   acknowledgments that come close together for half a round trip tell that the flight fills half the path, and the window, which
//!   has grown by as much meanwhile, all of it. That ends slow start at once. On a path of less than a millisecond, where a
//!   rise of 4 ms is a long queue, this sign is the one that comes in time.
//!
//! Where TCP Small Queues hold sending back, the queue that grows is our own and there is nothing to find out about the path: then
//! a rise against the shortest round trip ends slow start at once, as in Linux. An acknowledgment of a superframe counts there as the
//! samples of its segments.

use core::time::Duration;

use pkt::Instant;

use super::AckSample;
use crate::wire::seq::SeqNum;

/// RFC 9406 §4.3: a rise counts from an eighth of the round trip, but within these bounds.
const RTT_THRESH_MIN: Duration = Duration::from_millis(4);
const RTT_THRESH_MAX: Duration = Duration::from_millis(16);
const RTT_DIVISOR: u32 = 8;
/// Samples of a round before it is judged.
const RTT_SAMPLES: u8 = 8;
/// Conservative slow start grows by this part of what slow start would.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Rounds of it.
const CSS_ROUNDS: u8 = 5;

/// Acknowledgments farther apart are no train (Linux: `hystart_ack_delta_us`).
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Windows of fewer segments have no train (Linux: `hystart_low_window`).
const TRAIN_SEGMENTS_MIN: u32 = 16;
/// What a superframe, or what a receiver merges, may be (Linux: `sk_gso_max_size`, at least).
const MERGED_BYTES: u32 = 65_536;
/// Most that is allowed for it.
const MERGED_MAX: Duration = Duration::from_millis(1);

/// What ends CUBIC's first slow start before a loss does (`net.quietline.hystart_detect`; Linux: parameter `hystart_detect` of
/// tcp_cubic, and `hystart`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HystartDetect {
    /// Nothing.
    Off,
    /// A train of acknowledgments as long as half the path.
    Train,
    /// A round trip that grows: as RFC 9406 has it, and at once where the queue that grows is our own.
    Delay,
    /// Whichever comes first.
    #[default]
    Both,
}

impl HystartDetect {
    /// A round trip that grows.
    #[must_use]
    pub const fn delay(self) -> bool {
        matches!(self, Self::Delay | Self::Both)
    }

    /// A long train.
    #[must_use]
    pub const fn train(self) -> bool {
        matches!(self, Self::Train | Self::Both)
    }
}

/// What ended slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowStartEnd {
    /// A round trip that grew.
    Delay,
    /// A train of acknowledgments.
    Train,
}

/// How long the acknowledgments of one flight may come close together before the window must fill a path of `min_rtt`. `pace` in
/// bytes per second.
///
/// To the path belongs what superframes of up to `superframe_bytes`, and receivers that merge, add: one that is sent and one
/// that waits, at twice their size because the pace is twice the window's; at most a millisecond. Departures that are `paced`
/// stretch a train over half of the round trip by themselves (Linux: hystart_ack_delay, hystart_update).
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

/// What the next acknowledgment may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Grow by what it acknowledges, divided by this.
    Grow(u32),
    /// Slow start is over.
    Stop(SlowStartEnd),
}

/// Names as in RFC 9406 §4.2.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    /// windowEnd.
    round_end: SeqNum,
    /// lastRoundMinRTT; `None` is infinite.
    last_round_min: Option<Duration>,
    /// currentRoundMinRTT.
    round_min: Option<Duration>,
    /// cssBaselineMinRtt: conservative slow start runs while there is one.
    css_baseline: Option<Duration>,
    /// When the round began, and the last acknowledgment of its train.
    round_start: Instant,
    train_end: Instant,
    /// Segments that this round's samples stand for.
    segments: u8,
    samples: u8,
    css_rounds: u8,
    started: bool,
}

impl HyStart {
    /// `cwnd` and `mss` in bytes, `mss` not 0.
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

    /// How long the train is that began with the round. A gap ends it: what follows is none.
    fn train(&mut self, now: Instant) -> Duration {
        if now - self.train_end > TRAIN_GAP {
            return Duration::ZERO;
        }
        self.train_end = now;
        now - self.round_start
    }

    /// Judges the round so far; answers whether a queue of our own has grown.
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

/// What counts as a rise.
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

    /// A round of ten acknowledgments with this round trip.
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
    fn a_growing_round_trip_ends_slow_start_after_five_careful_rounds() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 0, 40), Verdict::Grow(1));
        assert_eq!(round(&mut hystart, 1, 44), Verdict::Grow(1), "an eighth of 40 is 5");
        assert_eq!(round(&mut hystart, 2, 50), Verdict::Grow(4));
        for number in 3..7 {
            assert_eq!(round(&mut hystart, number, 52), Verdict::Grow(4));
        }
        assert_eq!(round(&mut hystart, 7, 52), Verdict::Stop(SlowStartEnd::Delay));
    }

    #[test]
    fn a_false_alarm_is_taken_back() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 40);
        assert_eq!(round(&mut hystart, 1, 50), Verdict::Grow(4));
        assert_eq!(round(&mut hystart, 2, 41), Verdict::Grow(1));
    }

    #[test]
    fn a_growing_round_trip_that_nobody_watches_ends_nothing() {
        let mut hystart = HyStart::default();
        for index in 0..400 {
            let rtt = Duration::from_millis(40 + u64::from(index));
            let held_min_rtt = Some(Duration::from_millis(40));
            let sample =
                AckSample { watches_delay: false, held_min_rtt, ..ack(rtt, index, index + 10) };
            assert_eq!(hystart.on_ack(&sample, 100 * MSS, MSS), Verdict::Grow(1));
        }
    }

    /// Superframes of 20 segments, acknowledged whole: the second shows the rise, and the shortest round trip is what counts.
    #[test]
    fn a_queue_of_our_own_ends_slow_start_at_once() {
        let mut hystart = HyStart::default();
        let mut superframe = |number: u32, rtt_ms| {
            let sample = AckSample {
                acked_bytes: 20 * MSS,
                held_min_rtt: Some(Duration::from_millis(2)),
                ..ack(Duration::from_millis(rtt_ms), number * 20, number * 20 + 40)
            };
            hystart.on_ack(&sample, 40 * MSS, MSS)
        };
        assert_eq!(superframe(0, 5), Verdict::Grow(1), "less than 4 ms more");
        assert_eq!(superframe(2, 6), Verdict::Stop(SlowStartEnd::Delay));
    }

    /// One flight over a path of 20 ms whose acknowledgments come `gap_us` apart, the window being `segments`: after how many of them,
    /// and after what time, slow start ended.
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

    /// Half of 20 ms and the millisecond for what is merged: the first one beyond.
    #[test]
    fn a_train_as_long_as_half_the_path_ends_slow_start() {
        assert_eq!(train(100, 16), Some((106, Duration::from_micros(10_600))));
        assert_eq!(train(2000, 16), Some((6, Duration::from_millis(12))));
    }

    #[test]
    fn acknowledgments_far_apart_or_of_a_small_window_are_no_train() {
        assert_eq!(train(2001, 16), None);
        assert_eq!(train(100, 15), None);
    }

    #[test]
    fn a_train_ends_with_its_round() {
        let mut hystart = HyStart::default();
        let train_max = Some(Duration::from_millis(10));
        for index in 0..1000 {
            // A hundred acknowledgments are a round, and take 9.9 ms.
            let now = Instant::ZERO + Duration::from_micros(100) * index;
            let sample =
                AckSample { now, train_max, ..ack(Duration::from_millis(20), index, index + 100) };
            assert_eq!(hystart.on_ack(&sample, 100 * MSS, MSS), Verdict::Grow(1));
        }
    }

    #[test]
    fn a_short_path_is_as_long_as_four_superframes_but_no_more_than_a_millisecond() {
        let path = Duration::from_micros(40);
        let micros = |pace, bytes, paced| train_max(path, pace, bytes, paced).as_micros();
        assert_eq!(micros(250_000_000, 0, false), 520, "1 Gbit/s, twice: 1.05 ms are too many");
        assert_eq!(micros(2_500_000_000, 1448, false), (40 + 104) / 2, "10 Gbit/s, twice");
        assert_eq!(micros(2_500_000_000, 1448, true), 40 + 104);
        assert_eq!(micros(2_500_000_000, 262_144, true), 40 + 419, "BIG TCP");
    }
}
