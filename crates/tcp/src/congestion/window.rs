//! The two variables every algorithm works on, and how far they are used.
//!
//! Above: `congestion`, which decides what to set them to. RFC 5681 §2, RFC 7661; Linux:
//! tcp_slow_start(), tcp_cwnd_validate().

use pkt::Instant;

use super::{SSTHRESH_SEGMENTS_MIN, SendSample};
use crate::wire::seq::SeqNum;

/// The two variables every algorithm works on, and their unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Congestion window, bytes. At least one segment.
    pub(super) cwnd: u32,
    /// Slow-start threshold, bytes. At least two segments.
    pub(super) ssthresh: u32,
    /// Largest payload of a segment, bytes. Not 0.
    pub(super) mss: u32,
    pub(super) cwnd_max: u32,
}

impl Window {
    /// Grows by up to `acked` bytes towards `ssthresh` and answers the bytes used up.
    pub(super) fn slow_start(&mut self, acked: u32) -> u32 {
        let growth = acked.min(self.ssthresh.saturating_sub(self.cwnd));
        self.set_cwnd(self.cwnd.saturating_add(growth));
        growth
    }

    pub(super) fn set_cwnd(&mut self, bytes: u32) {
        self.cwnd = bytes.clamp(self.mss, self.cwnd_max);
    }

    pub(super) fn set_ssthresh(&mut self, bytes: u32) {
        self.ssthresh = bytes.max(SSTHRESH_SEGMENTS_MIN.saturating_mul(self.mss));
    }
}

/// How much of the window the application uses (RFC 7661; Linux: tcp_cwnd_validate).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// In this round the window was what held sending back.
    pub(super) cwnd_limited: bool,
    /// Most bytes in flight in this round.
    pub(super) in_flight_max: u32,
    /// The round ends when SND.UNA reaches this.
    pub(super) round_end: SeqNum,
    /// Most bytes in flight since the window was last full.
    pub(super) used: u32,
    /// When the window was last full, or last lowered for not being so.
    pub(super) full_at: Instant,
}

impl Usage {
    /// Notes one run of output.
    pub(super) fn on_sent(&mut self, sample: &SendSample) {
        let new_round = sample.snd_una.ge(self.round_end);
        let fuller = !self.cwnd_limited && sample.in_flight > self.in_flight_max;
        if new_round || sample.cwnd_limited || fuller {
            self.cwnd_limited = sample.cwnd_limited;
            self.in_flight_max = sample.in_flight;
            self.round_end = sample.snd_nxt;
        }
    }
}
