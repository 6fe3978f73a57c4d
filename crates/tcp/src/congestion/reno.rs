//! Reno: additive increase, multiplicative decrease.
//!
//! RFC 5681 §3.1; Linux: tcp_reno_cong_avoid(), tcp_reno_ssthresh().
//!
//! The window grows by one segment for each window of acknowledged bytes (RFC 3465 §2.1), and is
//! halved on a loss.

use super::window::Window;

/// State of Reno.
#[derive(Clone, Debug, Default)]
pub(super) struct Reno {
    /// Bytes acknowledged towards the next increase.
    acked: u32,
}

impl Reno {
    /// Grows the window in congestion avoidance: counts `acked` bytes and adds one segment for each
    /// full window of them.
    pub(super) fn avoid(&mut self, window: &mut Window, acked: u32) {
        self.acked = self.acked.saturating_add(acked);
        // The loop ends, because each step consumes a whole window, and the window grows with each
        // step.
        while self.acked >= window.cwnd {
            self.acked -= window.cwnd;
            let before = window.cwnd;
            window.set_cwnd(before.saturating_add(window.mss));
            if window.cwnd == before {
                // The window is at its upper bound: discard the count.
                self.acked = 0;
            }
        }
    }

    /// Returns half of the window.
    ///
    /// Differs from RFC 5681 §3.1, equation 4, which halves the flight: as in Linux the window is
    /// halved, because validation keeps it near the flight, and data reported by SACK has left the
    /// flight without being lost.
    pub(super) fn on_loss(&mut self, window: &Window) -> u32 {
        self.acked = 0;
        window.cwnd / 2
    }

    /// Discards the count of acknowledged bytes.
    pub(super) fn on_rto(&mut self) {
        self.acked = 0;
    }
}
