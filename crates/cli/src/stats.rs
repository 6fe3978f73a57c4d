//! Statistics of repeated measurements: robust summaries, and the uncertainty of a ratio.
//!
//! Medians and quartiles are used because one descheduled slice must not move a result. The
//! interval comes from a seeded bootstrap, because a ratio of medians has no closed form.

use serde::Serialize;

/// Resamples of one bootstrap. The 2.5 % tail then rests on 50 resamples, which is steadier than
/// the measurements themselves.
const RESAMPLES: usize = 2000;

/// Summary of one series of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Number of measurements.
    pub(crate) n: usize,
    /// Median: the middle measurement, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// Median absolute deviation from the median, not scaled to a standard deviation.
    pub(crate) mad: f64,
    /// First quartile.
    pub(crate) q1: f64,
    /// Third quartile.
    pub(crate) q3: f64,
    /// Smallest measurement.
    pub(crate) min: f64,
    /// Largest measurement.
    pub(crate) max: f64,
}

impl Summary {
    /// Summarizes a series; `None` when it is empty.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let values = sorted(values);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = quantile(&values, 0.5);
        let deviations =
            sorted(&values.iter().map(|value| (value - median).abs()).collect::<Vec<_>>());
        Some(Self {
            n: values.len(),
            median,
            mad: quantile(&deviations, 0.5),
            q1: quantile(&values, 0.25),
            q3: quantile(&values, 0.75),
            min,
            max,
        })
    }
}

/// Ratio of two medians, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Median of the first series divided by the median of the second.
    pub(crate) value: f64,
    /// Lower end of the 95 % interval.
    pub(crate) low: f64,
    /// Upper end of the 95 % interval.
    pub(crate) high: f64,
}

impl Ratio {
    /// Returns the ratio of medians with a percentile bootstrap interval. `None` when a series is
    /// empty or the divisor is 0.
    pub(crate) fn of(numerator: &[f64], denominator: &[f64], seed: u64) -> Option<Self> {
        let value = Summary::of(numerator)?.median / Summary::of(denominator)?.median;
        if !value.is_finite() {
            return None;
        }
        let mut random = SplitMix64(seed);
        let ratios: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                resampled_median(numerator, &mut random)
                    / resampled_median(denominator, &mut random)
            })
            .filter(|ratio| ratio.is_finite())
            .collect();
        let ratios = sorted(&ratios);
        Some(Self { value, low: quantile(&ratios, 0.025), high: quantile(&ratios, 0.975) })
    }
}

/// SplitMix64, the generator for resampling and test content. It is implemented here so that a seed
/// always produces the same sequence.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    /// Returns the next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`. The bias of the multiplication is below 2^-32 for the small
    /// bounds used here.
    fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next()) * bound as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }
}

fn resampled_median(values: &[f64], random: &mut SplitMix64) -> f64 {
    let sample: Vec<f64> = values.iter().map(|_| values[random.below(values.len())]).collect();
    quantile(&sorted(&sample), 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns a quantile by linear interpolation between order statistics (Hyndman and Fan's type 7,
/// the default of R and NumPy). 0 for an empty series.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    #[expect(clippy::cast_precision_loss, reason = "series are far shorter than 2^52")]
    let position = q * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 <= position <= last"
    )]
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    let weight = position - position.floor();
    sorted[below] + (sorted[above] - sorted[below]) * weight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn summary_of_known_series() {
        let summary = Summary::of(&[7.0, 1.0, 3.0, 100.0]).expect("not empty");
        assert_eq!((summary.n, summary.min, summary.max), (4, 1.0, 100.0));
        assert!(close(summary.median, 5.0));
        // Deviations are 2, 4, 2 and 95; their median is 3.
        assert!(close(summary.mad, 3.0));
        // numpy.percentile([1, 3, 7, 100], [25, 75]) = 2.5, 30.25.
        assert!(close(summary.q1, 2.5) && close(summary.q3, 30.25));
    }

    #[test]
    fn one_measurement_has_no_spread() {
        let summary = Summary::of(&[4.0]).expect("not empty");
        assert!(close(summary.median, 4.0) && close(summary.mad, 0.0));
        assert!(close(summary.q1, 4.0) && close(summary.q3, 4.0));
    }

    #[test]
    fn empty_series_have_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Ratio::of(&[], &[1.0], 1), None);
        assert_eq!(Ratio::of(&[1.0], &[0.0], 1), None);
    }

    #[test]
    fn ratio_of_equal_series_contains_one() {
        let a: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 7)).collect();
        let ratio = Ratio::of(&a, &a, 42).expect("finite");
        assert!(close(ratio.value, 1.0));
        assert!(ratio.low <= 1.0 && ratio.high >= 1.0 && ratio.low > 0.9 && ratio.high < 1.1);
    }

    #[test]
    fn ratio_interval_is_ordered_and_repeatable() {
        let (a, b) = ([10.0, 12.0, 11.0, 13.0], [5.0, 5.5, 6.0, 5.2]);
        let ratio = Ratio::of(&a, &b, 7).expect("finite");
        assert!(ratio.low <= ratio.value && ratio.value <= ratio.high);
        assert!(ratio.low > 1.5 && ratio.high < 2.7);
        assert_eq!(Ratio::of(&a, &b, 7), Some(ratio));
    }

    #[test]
    fn the_generator_matches_the_published_sequence() {
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bounded_numbers_stay_in_bounds() {
        let mut random = SplitMix64(0);
        assert!((0..1000).all(|_| random.below(3) < 3));
    }
}
