//! A window that is not used: it does not grow, and it is not trusted for ever.
//!
//! Above: `output`. RFC 7661, RFC 2861, RFC 5681 §4.1; Linux: tcp_cwnd_validate(), tcp_cwnd_restart(). A model (BBR) has its
//! own way to begin again, and none of this.

use core::time::Duration;

use pkt::Instant;

use super::{Congestion, SendSample, window::Window};

impl Congestion {
    /// Output ran: notes whether the window was the bottleneck. Call it outside recovery (a model wants it always), when
    /// something was sent.
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

    /// A time-out long the window was not filled: half of what is unused goes (RFC 7661's aim,
    /// Linux's way).
    fn shrink_to_use(&mut self, now: Instant) {
        let used = self.usage.used.max(self.initial_window());
        if used < self.window.cwnd {
            self.window.ssthresh = self.remembered_ssthresh();
            self.window.set_cwnd(used + (self.window.cwnd - used) / 2);
        }
        self.usage.used = 0;
        self.usage.full_at = now;
    }

    /// Nothing was sent for `idle`: for each time-out of it the window halves, down to the initial
    /// one (RFC 5681 §4.1 softened as in Linux; `net.ipv4.tcp_slow_start_after_idle`). Call it
    /// before sending again.
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

    /// The window held sending back in this round: the bare fact.
    pub(crate) const fn was_window_full(&self) -> bool {
        self.usage.cwnd_limited
    }

    /// The window is what limits the connection, so acknowledgments may raise it. In slow start
    /// half a window in flight is enough, because a full one must be allowed to double.
    #[must_use]
    pub const fn is_cwnd_limited(&self) -> bool {
        self.usage.cwnd_limited
            || (self.in_slow_start() && self.window.cwnd / 2 < self.usage.in_flight_max)
    }

    /// No algorithm wants to know what leaves, and no reduction spreads over it.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.policy.counts_growth_only() && self.prr.is_none()
    }

    /// An acknowledgment changes nothing: the window is not filled, and no algorithm counts what arrives.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.policy.counts_growth_only() && !self.is_cwnd_limited()
    }

    /// What [`on_ack`](Self::on_ack) does while [`is_unused`](Self::is_unused).
    #[inline]
    pub(crate) fn pause(&mut self, now: Instant) {
        self.policy.pause(now);
    }

    /// Three quarters of the window as a floor of `ssthresh`: what to return to after the window is
    /// lowered for reasons other than loss (RFC 7661 §4.4; Linux: tcp_current_ssthresh).
    fn remembered_ssthresh(&self) -> u32 {
        let Window { cwnd, ssthresh, .. } = self.window;
        ssthresh.max(cwnd / 2 + cwnd / 4)
    }
}
