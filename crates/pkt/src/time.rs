//! Time as data: the caller passes the current time to the stack, which never reads a clock.
//!
//! Above: every crate. Linux: `ktime_t`.
//!
//! Not here: reading a clock. Workers and the simulator do that once per turn and pass the value
//! down.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the owner of the clock chose (boot, or the
/// start of a simulation). 64 bits of nanoseconds last 584 years, so arithmetic saturates and never
/// wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// The largest instant, for a deadline that is never reached.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Makes the instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Makes the instant `micros` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Makes the instant `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Makes the instant `secs` seconds after the origin.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the origin, the unit of the TCP timestamp clock.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the nanoseconds since `earlier`, 0 if `earlier` lies in the future. Per-segment code
    /// uses this integer, because a `Duration` keeps seconds apart and costs a division in each
    /// direction.
    #[inline]
    #[must_use]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the whole microseconds since `earlier`, 0 if `earlier` lies in the future.
    #[inline]
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.nanos_since(earlier) / 1_000
    }

    /// Returns the instant `micros` microseconds later, at most [`FAR_FUTURE`](Self::FAR_FUTURE).
    #[inline]
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros.saturating_mul(1_000)))
    }

    /// Returns the time since `earlier`, or `None` if `earlier` lies in the future.
    #[must_use]
    pub const fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        match self.0.checked_sub(earlier.0) {
            Some(nanos) => Some(Duration::from_nanos(nanos)),
            None => None,
        }
    }

    /// Returns the time since `earlier`, zero if `earlier` lies in the future.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at [`Instant::FAR_FUTURE`].
impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        // A duration beyond 584 years saturates, as the sum would.
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Saturates at [`Instant::ZERO`].
impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Saturates at zero: two clocks read on different cores may disagree by a few nanoseconds, and a
/// negative elapsed time has no meaning to any caller.
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Prints seconds with nanosecond digits, as packet traces do.
impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_between_units_agree() {
        assert_eq!(Instant::from_secs(2), Instant::from_millis(2_000));
        assert_eq!(Instant::from_millis(2), Instant::from_micros(2_000));
        assert_eq!(Instant::from_micros(2), Instant::from_nanos(2_000));
        assert_eq!(Instant::from_secs(3).as_millis(), 3_000);
        assert_eq!(Instant::from_secs(3).as_micros(), 3_000_000);
    }

    #[test]
    fn arithmetic_saturates() {
        let early = Instant::from_secs(1);
        let late = early + Duration::from_millis(1_500);
        assert_eq!(late - early, Duration::from_millis(1_500));
        assert_eq!(early - late, Duration::ZERO);
        assert_eq!(early.checked_duration_since(late), None);
        assert_eq!(late.checked_duration_since(early), Some(Duration::from_millis(1_500)));
        assert_eq!(late + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(early - Duration::from_secs(5), Instant::ZERO);
        assert_eq!((late.nanos_since(early), late.micros_since(early)), (1_500_000_000, 1_500_000));
        assert_eq!((early.nanos_since(late), early.micros_since(late)), (0, 0));
        assert_eq!(early.plus_micros(1_500_000), late);
        assert_eq!(late.plus_micros(u64::MAX), Instant::FAR_FUTURE);
    }

    #[test]
    fn an_instant_prints_as_seconds() {
        assert_eq!(format!("{:?}", Instant::from_millis(1_250)), "1.250000000");
    }
}
