//! The pace of a connection, and the moment its next packet may leave.
//!
//! Above: `segment::pacing` sets the pace and asks for it. Linux: `sk_pacing_rate`,
//! `tcp_wstamp_ns`; tcp_update_skb_after_send.
//!
//! Not here: which pace an ACK leads to, and which packets are held back to it (`segment::pacing`).

use core::time::Duration;

use pkt::Instant;

/// No pace.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// How much a late timer may make up for.
///
/// Differs from Linux, which gives half a packet and has timers of a microsecond: the wheel that calls us ticks once a
/// millisecond, so that what was due meanwhile leaves together.
const CATCH_UP: Duration = Duration::from_millis(2);

/// See the module head.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    /// Linux `sk_pacing_rate`: bytes per second.
    pub(crate) rate: u64,
    /// `SO_MAX_PACING_RATE`, bytes per second.
    pub(crate) max_rate: u64,
    /// When the next transmission may leave (Linux `tcp_wstamp_ns`).
    pub(crate) next_at: Instant,
    /// While THROTTLED: bytes below TCP above which output stays stopped (`segment::small_queue`).
    pub(crate) throttle_limit: u32,
}

impl Pacing {
    pub(crate) const fn new() -> Self {
        Self { rate: UNLIMITED, max_rate: UNLIMITED, next_at: Instant::ZERO, throttle_limit: 0 }
    }

    /// Bytes per second; `None` without a limit.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.rate != UNLIMITED).then_some(self.rate)
    }

    /// `SO_MAX_PACING_RATE`.
    pub(crate) fn max_rate(&self) -> Option<u64> {
        (self.max_rate != UNLIMITED).then_some(self.max_rate)
    }

    pub(crate) fn set_max_rate(&mut self, bytes_per_second: Option<u64>) {
        self.max_rate = bytes_per_second.unwrap_or(UNLIMITED);
        self.rate = self.rate.min(self.max_rate);
    }

    pub(crate) fn set_rate(&mut self, rate: u64) {
        self.rate = rate.min(self.max_rate).max(1);
    }

    /// When what is sent at `now` departs.
    pub(crate) fn departure(&self, now: Instant) -> Instant {
        self.next_at.max(now)
    }

    /// `bytes` leave: the next ones follow when these are through.
    pub(crate) fn advance(&mut self, now: Instant, bytes: u32) {
        self.next_at = self.next_at.max(now - CATCH_UP) + self.lasts(bytes);
    }

    /// `bytes` have their departure time: the next ones follow then. What came late makes up for half a packet, because the
    /// moments below are exact (Linux: tcp_update_skb_after_send).
    pub(crate) fn advance_departure(&mut self, now: Instant, bytes: u32) {
        let (late, lasts) = (now - self.next_at, self.lasts(bytes));
        self.next_at = self.departure(now) + (lasts - late.min(lasts / 2));
    }

    /// What was to depart at `from` or later does not: the next ones may.
    pub(crate) fn take_back(&mut self, from: Instant) {
        self.next_at = self.next_at.min(from);
    }

    fn lasts(&self, bytes: u32) -> Duration {
        Duration::from_nanos(u64::from(bytes).saturating_mul(1_000_000_000) / self.rate)
    }
}
