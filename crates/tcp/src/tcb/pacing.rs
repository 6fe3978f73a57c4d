//! Pacing rate of a connection, and the departure time of its next packet.
//!
//! Above: `segment::pacing` sets the rate and reads it. Linux: `sk_pacing_rate`, `tcp_wstamp_ns`;
//! tcp_update_skb_after_send.
//!
//! Not here: the computation of the rate, and the choice of packets that are delayed
//! (`segment::pacing`).

use core::time::Duration;

use pkt::Instant;

/// Value of `max_rate` without `SO_MAX_PACING_RATE`. In this case also the value of `rate` before
/// the first round trip.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Longest delay of the pacing timer that later departures make up for.
///
/// Differs from Linux, which allows half a packet and has high-resolution timers: our timer wheel
/// ticks once a millisecond, so packets that became due between two ticks are sent together.
const CATCH_UP: Duration = Duration::from_millis(2);

/// Pacing state of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    /// Pacing rate in bytes per second (Linux `sk_pacing_rate`).
    pub(crate) rate: u64,
    /// `SO_MAX_PACING_RATE`, bytes per second.
    pub(crate) max_rate: u64,
    /// Departure time of the next transmission (Linux `tcp_wstamp_ns`).
    pub(crate) next_at: Instant,
    /// While THROTTLED is set: number of bytes below TCP above which output stays throttled
    /// (`segment::small_queue`).
    pub(crate) throttle_limit: u32,
}

impl Pacing {
    pub(crate) const fn new() -> Self {
        Self { rate: UNLIMITED, max_rate: UNLIMITED, next_at: Instant::ZERO, throttle_limit: 0 }
    }

    /// Returns the rate in bytes per second; `None` before it is known.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.rate != UNLIMITED).then_some(self.rate)
    }

    /// Returns `SO_MAX_PACING_RATE`.
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

    /// Returns the departure time of a packet that is sent at `now`.
    pub(crate) fn departure(&self, now: Instant) -> Instant {
        self.next_at.max(now)
    }

    /// Moves the next departure by the time that `bytes`, sent now, take at the pacing rate.
    pub(crate) fn advance(&mut self, now: Instant, bytes: u32) {
        self.next_at = self.next_at.max(now - CATCH_UP) + self.transmission_time(bytes);
    }

    /// Like [`advance`](Self::advance), for a queue below TCP that holds packets until their
    /// departure times. A late packet makes up for at most half of its own duration, because that
    /// queue meets departure times exactly (Linux: tcp_update_skb_after_send).
    pub(crate) fn advance_departure(&mut self, now: Instant, bytes: u32) {
        let (late, lasts) = (now - self.next_at, self.transmission_time(bytes));
        self.next_at = self.departure(now) + (lasts - late.min(lasts / 2));
    }

    /// Cancels departures at `from` or later, so that following packets may use their time.
    pub(crate) fn cancel_departures(&mut self, from: Instant) {
        self.next_at = self.next_at.min(from);
    }

    fn transmission_time(&self, bytes: u32) -> Duration {
        Duration::from_nanos(u64::from(bytes).saturating_mul(1_000_000_000) / self.rate)
    }
}
