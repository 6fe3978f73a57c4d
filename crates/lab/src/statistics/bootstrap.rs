//! Bootstrap interval of the ratio of two means (Efron and Tibshirani 1993, percentile interval).

use fastrand::Rng;

use super::summary::quantile;

/// Resamples: the ends of a 95 % interval then have a Monte Carlo error below a tenth of the
/// interval.
const RESAMPLES: usize = 10_000;

/// An estimate and the interval around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Estimate from the sample itself.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Ratio of the mean of `second` to the mean of `first`, whose runs at the same place are a pair,
/// with an interval of probability `level` (such as 0.95). Pairs are resampled whole, so that what
/// both runs of a pair share cancels.
///
/// `None` if the lengths differ, there are fewer than two pairs, or a mean of `first` is not
/// positive.
#[must_use]
pub fn ratio_of_means(first: &[f64], second: &[f64], level: f64, seed: u64) -> Option<Interval> {
    if first.len() != second.len() || first.len() < 2 {
        return None;
    }
    let estimate = ratio(first.iter().sum(), second.iter().sum())?;
    let mut rng = Rng::with_seed(seed);
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let (mut below, mut above) = (0.0, 0.0);
        for _ in 0..first.len() {
            let index = rng.usize(..first.len());
            below += first[index];
            above += second[index];
        }
        ratios.push(ratio(below, above)?);
    }
    ratios.sort_by(f64::total_cmp);
    let tail = (1.0 - level) / 2.0;
    Some(Interval { estimate, low: quantile(&ratios, tail), high: quantile(&ratios, 1.0 - tail) })
}

fn ratio(below: f64, above: f64) -> Option<f64> {
    (below > 0.0 && above.is_finite()).then(|| above / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_ratio_has_an_interval_without_width() {
        let first = [1.0, 2.0, 3.0, 4.0];
        let interval =
            ratio_of_means(&first, &first.map(|value| 1.5 * value), 0.95, 1).expect("pairs");
        for end in [interval.estimate, interval.low, interval.high] {
            assert!((end - 1.5).abs() < 1e-12, "{interval:?}");
        }
    }

    #[test]
    fn samples_without_pairs_or_a_positive_mean_have_no_ratio() {
        assert_eq!(ratio_of_means(&[1.0], &[1.0], 0.95, 1), None);
        assert_eq!(ratio_of_means(&[1.0, 2.0], &[1.0], 0.95, 1), None);
        assert_eq!(ratio_of_means(&[0.0, 0.0], &[1.0, 1.0], 0.95, 1), None);
    }

    /// Of 200 intervals of 90 %, about 180 hold the true ratio; fewer than 165 have a probability
    /// below 0.01.
    #[test]
    fn an_interval_holds_the_truth_as_often_as_stated() {
        let mut rng = Rng::with_seed(5);
        let mut held = 0;
        for seed in 0..200 {
            let first: Vec<f64> = (0..20).map(|_| 10.0 + rng.f64()).collect();
            let second: Vec<f64> = (0..20).map(|_| 2.0 * (10.0 + rng.f64())).collect();
            let interval = ratio_of_means(&first, &second, 0.9, seed).expect("pairs");
            held += i32::from(interval.low <= 2.0 && 2.0 <= interval.high);
        }
        assert!(held >= 165, "{held} of 200");
    }
}
