//! DCTCP: a reduction is proportional to the share of bytes that ECN marked.
//!
//! RFC 8257; Linux: tcp_dctcp.c. For networks whose routers mark ECN-capable packets as soon as a
//! queue builds up; on the open internet it takes more than its fair share.
//!
//! Without marks the window grows as Reno's does. The receiver's half, which reports marks exactly,
//! is `input::ecn`.

use super::{reno::Reno, window::Window};
use crate::wire::seq::SeqNum;

/// α = 1 in the fixed-point format of `Dctcp::alpha`.
const ALPHA_ONE: u32 = 1 << 20;

/// g = 1/16: the weight of the newest window in α (RFC 8257 §4.2; Linux `dctcp_shift_g`).
const GAIN_SHIFT: u32 = 4;

/// State of DCTCP. Names as in RFC 8257 §3.3.
#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    reno: Reno,
    /// DCTCP.Alpha × 2^20. The initial value is 1, so the first mark counts as a loss does.
    alpha: u32,
    /// DCTCP.BytesAcked: bytes delivered in this window of observation.
    delivered: u32,
    /// DCTCP.BytesMarked: the part of `delivered` whose ACKs echoed a mark.
    marked: u32,
    /// DCTCP.WindowEnd: sequence number at which this window of observation ends.
    window_end: Option<SeqNum>,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self { reno: Reno::default(), alpha: ALPHA_ONE, delivered: 0, marked: 0, window_end: None }
    }
}

impl Dctcp {
    /// Processes an ACK of `delivered` bytes that echoes a mark if `marked`. Updates α once per
    /// window (RFC 8257 §3.3).
    pub(super) fn on_delivered(
        &mut self,
        delivered: u32,
        marked: bool,
        snd_una: SeqNum,
        snd_nxt: SeqNum,
    ) {
        self.delivered = self.delivered.saturating_add(delivered);
        if marked {
            self.marked = self.marked.saturating_add(delivered);
        }
        let end = *self.window_end.get_or_insert(snd_nxt);
        if !snd_una.gt(end) || self.delivered == 0 {
            return;
        }
        let share = u64::from(self.marked) * u64::from(ALPHA_ONE) / u64::from(self.delivered);
        let share = u32::try_from(share).unwrap_or(ALPHA_ONE) >> GAIN_SHIFT;
        // The shift alone would never remove the last units of α: subtract at least one.
        let fall = (self.alpha >> GAIN_SHIFT).max(u32::from(self.alpha > 0));
        self.alpha = (self.alpha - fall + share).min(ALPHA_ONE);
        (self.delivered, self.marked) = (0, 0);
        self.window_end = Some(snd_nxt);
    }

    pub(super) fn avoid(&mut self, window: &mut Window, acked: u32) {
        self.reno.avoid(window, acked);
    }

    /// Returns the new `ssthresh`, cwnd × (1 − α / 2) (RFC 8257 §3.3, step 9).
    pub(super) fn on_mark(&self, window: &Window) -> u32 {
        let fall = u64::from(window.cwnd) * u64::from(self.alpha) / u64::from(2 * ALPHA_ONE);
        window.cwnd - u32::try_from(fall).unwrap_or(window.cwnd)
    }

    /// Returns the new `ssthresh` after a loss, to which DCTCP reacts as Reno does (RFC 8257 §3.5).
    pub(super) fn on_loss(&mut self, window: &Window) -> u32 {
        self.reno.on_loss(window)
    }

    pub(super) fn on_rto(&mut self) {
        self.reno.on_rto();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn window(segments: u32) -> Window {
        Window { cwnd: segments * MSS, ssthresh: segments * MSS, mss: MSS, cwnd_max: 1 << 30 }
    }

    /// Delivers a window of ten segments, the first `marked` of which echo a mark.
    fn round(dctcp: &mut Dctcp, number: u32, marked: u32) {
        for index in 1..=10 {
            let una = SeqNum((number * 10 + index) * MSS);
            dctcp.on_delivered(MSS, index <= marked, una, una + 10 * MSS);
        }
    }

    #[test]
    fn the_first_mark_halves_the_window() {
        assert_eq!(Dctcp::default().on_mark(&window(100)), 50 * MSS);
    }

    #[test]
    fn alpha_follows_the_share_of_marked_bytes() {
        let mut dctcp = Dctcp::default();
        for number in 0..200 {
            round(&mut dctcp, number, 2);
        }
        let fifth = ALPHA_ONE / 5;
        assert!(dctcp.alpha.abs_diff(fifth) < ALPHA_ONE / 50, "alpha is {}", dctcp.alpha);
        let ssthresh = dctcp.on_mark(&window(100));
        assert!(
            (88 * MSS..92 * MSS).contains(&ssthresh),
            "ssthresh {ssthresh} is not a tenth below the window"
        );
    }

    #[test]
    fn alpha_falls_to_zero_without_marks() {
        let mut dctcp = Dctcp::default();
        for number in 0..1000 {
            round(&mut dctcp, number, 0);
        }
        assert_eq!(dctcp.alpha, 0);
        assert_eq!(dctcp.on_mark(&window(100)), 100 * MSS);
    }

    #[test]
    fn a_loss_halves_the_window_even_if_alpha_is_zero() {
        let mut dctcp = Dctcp { alpha: 0, ..Dctcp::default() };
        assert_eq!(dctcp.on_loss(&window(100)), 50 * MSS);
    }
}
