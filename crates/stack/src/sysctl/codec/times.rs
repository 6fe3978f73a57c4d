//! Settings that are a time, each in the unit that Linux gives it.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Codec, numbers};

/// A time in seconds.
pub(in crate::sysctl) struct Seconds;

impl Seconds {
    pub(in crate::sysctl) const FORM: &str = "a number of seconds";
}

impl Codec<Duration> for Seconds {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_secs(value))
    }

    fn format(value: &Duration) -> String {
        value.as_secs().to_string()
    }
}

/// A time in milliseconds.
pub(in crate::sysctl) struct Millis;

impl Millis {
    pub(in crate::sysctl) const FORM: &str = "a number of milliseconds";
}

impl Codec<Duration> for Millis {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_millis(value))
    }

    fn format(value: &Duration) -> String {
        value.as_millis().to_string()
    }
}

/// A time in microseconds.
pub(in crate::sysctl) struct Micros;

impl Micros {
    pub(in crate::sysctl) const FORM: &str = "a number of microseconds";
}

impl Codec<Duration> for Micros {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_micros(value))
    }

    fn format(value: &Duration) -> String {
        value.as_micros().to_string()
    }
}

/// A time in nanoseconds.
pub(in crate::sysctl) struct Nanos;

impl Nanos {
    pub(in crate::sysctl) const FORM: &str = "a number of nanoseconds";
}

impl Codec<Duration> for Nanos {
    fn parse(text: &str, allowed: &RangeInclusive<u64>) -> Option<Duration> {
        let [value] = numbers(text, allowed)?;
        Some(Duration::from_nanos(value))
    }

    fn format(value: &Duration) -> String {
        value.as_nanos().to_string()
    }
}
