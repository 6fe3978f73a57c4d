//! HyStart++: slow start ends before it overflows the path's queue.
//!
//! Above: `congestion` in the first slow start. RFC 9406; Linux: hystart_update in tcp_cubic.c, which is the older HyStart.
//!
//! When the smallest round trip of a round is clearly longer than the round before's, a queue builds up: growth falls to a
//! quarter (conservative slow start). Five such rounds end slow start; a round trip that falls again was a false alarm.
//!
//! Where TCP Small Queues hold sending back, the queue that grows is our own and there is nothing to find out about the path: then
//! a rise against the shortest round trip ends slow start at once (Linux: hystart_update, delay_min). An acknowledgment of a
//! superframe counts there as the samples of its segments.

use core::time::Duration;

use super::AckSample;
use crate::seq::SeqNum;

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

/// What the next acknowledgment may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Grow by what it acknowledges, divided by this.
    Grow(u32),
    /// Slow start is over.
    Stop,
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
    /// Segments that this round's samples stand for.
    segments: u8,
    samples: u8,
    css_rounds: u8,
    started: bool,
}

impl HyStart {
    pub(super) fn on_ack(&mut self, sample: &AckSample) -> Verdict {
        if !self.started || sample.snd_una.ge(self.round_end) {
            self.started = true;
            self.round_end = sample.snd_nxt;
            self.last_round_min = self.round_min.take();
            (self.samples, self.segments) = (0, 0);
            if self.css_baseline.is_some() {
                self.css_rounds += 1;
                if self.css_rounds >= CSS_ROUNDS {
                    return Verdict::Stop;
                }
            }
        }
        if let Some(rtt) = sample.rtt {
            self.round_min = Some(self.round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= RTT_SAMPLES {
            self.judge();
        }
        Verdict::Grow(if self.css_baseline.is_some() { CSS_GROWTH_DIVISOR } else { 1 })
    }

    /// As [`on_ack`](Self::on_ack) while TCP Small Queues limit the flight. `mss` in bytes, not 0; `min_rtt` is the connection's.
    pub(super) fn on_ack_held(
        &mut self,
        sample: &AckSample,
        mss: u32,
        min_rtt: Duration,
    ) -> Verdict {
        let verdict = self.on_ack(sample);
        if sample.rtt.is_some() {
            let segments = u8::try_from(sample.acked_bytes.div_ceil(mss)).unwrap_or(u8::MAX);
            self.segments = self.segments.saturating_add(segments);
        }
        let thresh = (min_rtt / RTT_DIVISOR).clamp(RTT_THRESH_MIN, RTT_THRESH_MAX);
        let rises = self.round_min.is_some_and(|current| current >= min_rtt + thresh);
        if rises && self.segments >= 2 * RTT_SAMPLES { Verdict::Stop } else { verdict }
    }

    fn judge(&mut self) {
        let Some(current) = self.round_min else { return };
        match (self.css_baseline, self.last_round_min) {
            (Some(baseline), _) if current < baseline => self.css_baseline = None,
            (None, Some(last)) => {
                let thresh = (last / RTT_DIVISOR).clamp(RTT_THRESH_MIN, RTT_THRESH_MAX);
                if current >= last + thresh {
                    self.css_baseline = Some(current);
                    self.css_rounds = 0;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use pkt::Instant;

    use super::*;

    /// A round of ten acknowledgments with this round trip.
    fn round(hystart: &mut HyStart, number: u32, rtt_ms: u64) -> Verdict {
        let mut verdict = Verdict::Grow(1);
        for index in 0..10 {
            verdict = hystart.on_ack(&AckSample {
                now: Instant::ZERO,
                acked_bytes: 1000,
                rtt: Some(Duration::from_millis(rtt_ms)),
                held_min_rtt: None,
                snd_una: SeqNum(number * 10 + index),
                snd_nxt: SeqNum(number * 10 + index + 10),
            });
            if verdict == Verdict::Stop {
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
        assert_eq!(round(&mut hystart, 7, 52), Verdict::Stop);
    }

    #[test]
    fn a_false_alarm_is_taken_back() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 40);
        assert_eq!(round(&mut hystart, 1, 50), Verdict::Grow(4));
        assert_eq!(round(&mut hystart, 2, 41), Verdict::Grow(1));
    }

    /// Superframes of 20 segments, acknowledged whole: the second shows the rise, and the shortest round trip is what counts.
    #[test]
    fn a_queue_of_our_own_ends_slow_start_at_once() {
        let mut hystart = HyStart::default();
        let mut ack = |number: u32, rtt_ms| {
            let sample = AckSample {
                now: Instant::ZERO,
                acked_bytes: 20_000,
                rtt: Some(Duration::from_millis(rtt_ms)),
                snd_una: SeqNum(number * 20),
                held_min_rtt: None,
                snd_nxt: SeqNum(number * 20 + 40),
            };
            hystart.on_ack_held(&sample, 1000, Duration::from_millis(2))
        };
        assert_eq!(ack(0, 5), Verdict::Grow(1), "less than 4 ms more");
        assert_eq!(ack(2, 6), Verdict::Stop);
    }
}
