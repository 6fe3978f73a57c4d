//! Congestion window validation: an unused window does not grow, and shrinks after some time.
//!
//! Above: `output`. RFC 7661, RFC 2861, RFC 5681 §4.1; Linux: tcp_cwnd_validate(),
//! tcp_cwnd_restart(). The window of a model (BBR), which has its own restart from idle, is not
//! changed.

use core::time::Duration;

use pkt::Instant;

use super::{Congestion, SendSample, window::Window};

impl Congestion {
    /// Records whether the window limited a call of `output`. Called after each such call that sent
    /// data or was stopped by the window; during a reduction or recovery only if the algorithm has
    /// a model.
    pub fn on_sent(&mut self, sample: &SendSample) {
        self.usage.on_sent(sample);
        if self.is_cwnd_limited() {
            self.usage.used = 0;
            self.usage.full_at = sample.now;
            return;
        }
        self.usage.used = self.usage.used.max(sample.in_flight);
        if sample.now.micros_since(self.usage.full_at) >= sample.rto_us
            && self.policy.model().is_none()
        {
            self.shrink_to_use(sample.now);
        }
    }

    /// Removes half of the unused part of a window that was not filled for one RTO. The initial
    /// window counts as used. RFC 7661 requires a reduction; this one is Linux's.
    fn shrink_to_use(&mut self, now: Instant) {
        let used = self.usage.used.max(self.initial_window());
        if used < self.window.cwnd {
            self.window.ssthresh = self.remembered_ssthresh();
            self.window.set_cwnd(used + (self.window.cwnd - used) / 2);
        }
        self.usage.used = 0;
        self.usage.full_at = now;
    }

    /// Halves the window once for each RTO in the idle time `idle`, down to the initial window.
    /// Called before sending resumes. Milder than RFC 5681 §4.1, as in Linux
    /// (`net.ipv4.tcp_slow_start_after_idle`).
    pub fn on_idle(&mut self, idle: Duration, rto: Duration, now: Instant) {
        if self.policy.model().is_some() {
            return;
        }
        let floor = self.initial_window().min(self.window.cwnd);
        self.window.ssthresh = self.remembered_ssthresh();
        self.policy.pause(now);
        let mut cwnd = self.window.cwnd;
        let mut left = idle;
        while cwnd > floor && left > rto {
            cwnd /= 2;
            left -= rto;
            if rto.is_zero() {
                break;
            }
        }
        self.window.set_cwnd(cwnd.max(floor));
        self.usage.used = 0;
        self.usage.full_at = now;
    }

    /// Whether the window limited sending in this round, without the exception that
    /// [`is_cwnd_limited`](Self::is_cwnd_limited) makes for slow start.
    pub(crate) const fn was_window_full(&self) -> bool {
        self.usage.cwnd_limited
    }

    /// Whether the window limits the connection, so that acknowledgments may raise it. In slow
    /// start half a window in flight is enough, because the window doubles each round.
    #[must_use]
    pub const fn is_cwnd_limited(&self) -> bool {
        self.usage.cwnd_limited
            || (self.in_slow_start() && self.window.cwnd / 2 < self.usage.in_flight_max)
    }

    /// Whether a transmission has no effect on the algorithm or a reduction: the algorithm uses
    /// acknowledgments only to grow the window, and no reduction is in progress.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.policy.counts_growth_only() && self.prr.is_none()
    }

    /// Whether acknowledgments change nothing: the window is not filled, and the algorithm does not
    /// count delivered bytes.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.policy.counts_growth_only() && !self.is_cwnd_limited()
    }

    /// Does the only part of [`on_ack`](Self::on_ack) that has an effect while
    /// [`is_unused`](Self::is_unused) holds: stops the algorithm's time.
    #[inline]
    pub(crate) fn pause(&mut self, now: Instant) {
        self.policy.pause(now);
    }

    /// Returns `ssthresh`, but at least three quarters of the window: slow start returns to it
    /// after the window is lowered for reasons other than loss (RFC 7661 §4.4; Linux:
    /// tcp_current_ssthresh).
    fn remembered_ssthresh(&self) -> u32 {
        let Window { cwnd, ssthresh, .. } = self.window;
        ssthresh.max(cwnd / 2 + cwnd / 4)
    }
}
