//! `cwnd` and `ssthresh`, which every algorithm changes, and the usage of the window.
//!
//! Above: `congestion`, which decides on the values. RFC 5681 §2, RFC 7661; Linux:
//! tcp_slow_start(), tcp_cwnd_validate().

use pkt::Instant;

use super::{SSTHRESH_SEGMENTS_MIN, SendSample};
use crate::wire::seq::SeqNum;

/// The two variables that every algorithm changes, and their bounds.
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
    /// Grows by up to `acked` bytes towards `ssthresh` and returns the bytes used.
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

/// Usage of the window by the application (RFC 7661; Linux: tcp_cwnd_validate).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Whether the window limited sending in this round.
    pub(super) cwnd_limited: bool,
    /// Largest number of bytes in flight in this round.
    pub(super) in_flight_max: u32,
    /// Sequence number that ends the round when SND.UNA reaches it.
    pub(super) round_end: SeqNum,
    /// Largest number of bytes in flight since the window was last full.
    pub(super) used: u32,
    /// Time when the window was last full, or was last lowered because it had not been full.
    pub(super) full_at: Instant,
}

impl Usage {
    /// Records one call of `output`.
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
