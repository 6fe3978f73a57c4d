//! `--stats`, `--stats=all`, `--stats=SECONDS`: which counters are printed, and when.

use std::{str::FromStr, time::Duration};

/// Bounds of the reporting period, in seconds. With a shorter period most counters would not change
/// between reports.
const PERIOD_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Selection of `--stats` beyond the counters at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Include counters that are zero.
    pub(crate) all: bool,
    /// Period of the reports while the command runs.
    pub(crate) every: Option<Duration>,
}

impl FromStr for Stats {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut stats = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.parse::<f64>() {
                Ok(seconds) if PERIOD_SECONDS.contains(&seconds) && stats.every.is_none() => {
                    stats.every = Some(Duration::from_secs_f64(seconds));
                }
                _ if word == "all" => stats.all = true,
                _ => {
                    return Err(
                        "expected all, a number of seconds from 0.1 to 86400, or both".into()
                    );
                }
            }
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_and_a_period_combine() {
        let every = Some(Duration::from_millis(500));
        assert_eq!("".parse(), Ok(Stats::default()));
        assert_eq!("all".parse(), Ok(Stats { all: true, every: None }));
        assert_eq!("0.5".parse(), Ok(Stats { all: false, every }));
        assert_eq!("all,0.5".parse(), Ok(Stats { all: true, every }));
        for text in ["0", "-1", "none", "nan", "inf", "1,2", "1 2"] {
            assert!(text.parse::<Stats>().is_err(), "{text}");
        }
    }
}
