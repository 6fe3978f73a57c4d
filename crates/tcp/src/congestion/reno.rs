//! Reno: additive increase, multiplicative decrease.
//!
//! RFC 5681 §3.1; Linux: tcp_reno_cong_avoid(), tcp_reno_ssthresh().
//!
//! One segment more for each window of acknowledged bytes (RFC 3465 §2.1), half the flight on a
//! loss.

use super::window::Window;

/// Reno's only state.
#[derive(Clone, Debug, Default)]
pub(super) struct Reno {
    /// Bytes acknowledged towards the next increase. Below `cwnd` between calls.
    acked: u32,
}

impl Reno {
    /// Congestion avoidance: counts `acked` bytes and grows by one segment for each full window of
    /// them.
    pub(super) fn avoid(&mut self, window: &mut Window, acked: u32) {
        self.acked = self.acked.saturating_add(acked);
        // Each step raises the bar for the next, and every step takes at least one segment's worth
        // of bytes.
        while self.acked >= window.cwnd {
            self.acked -= window.cwnd;
            let before = window.cwnd;
            window.set_cwnd(before.saturating_add(window.mss));
            if window.cwnd == before {
                // At the ceiling: nothing to save up for.
                self.acked = 0;
            }
        }
    }

    /// Half the window.
    ///
    /// Differs from RFC 5681 §3.1, equation 4, which takes the flight: as in Linux validation keeps the window near it,
    /// and what SACK has reported has left the flight without being lost.
    pub(super) fn on_loss(&mut self, window: &Window) -> u32 {
        self.acked = 0;
        window.cwnd / 2
    }

    /// Growth starts again from nothing.
    pub(super) fn on_rto(&mut self) {
        self.acked = 0;
    }
}
