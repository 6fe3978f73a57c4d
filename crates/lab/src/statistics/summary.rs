//! Mean, standard deviation and quartiles of the runs of one arm.

/// Summary of one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of runs.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation with the divisor `n - 1`; 0 for a single run.
    pub sd: f64,
    /// Smallest run.
    pub min: f64,
    /// First quartile.
    pub q1: f64,
    /// Second quartile.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
    /// Largest run.
    pub max: f64,
}

impl Summary {
    /// Summarizes a sample. `None` if it is empty or holds a value that is not finite.
    #[must_use]
    pub fn of(sample: &[f64]) -> Option<Self> {
        if sample.is_empty() || sample.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            n: sample.len(),
            mean: mean(sample),
            sd: variance(sample).sqrt(),
            min: sorted[0],
            q1: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            q3: quantile(&sorted, 0.75),
            max: sorted[sorted.len() - 1],
        })
    }

    /// Whether the quartile boxes of both samples overlap. Overlapping boxes are no difference,
    /// even if a test rejects.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.q1 <= other.q3 && other.q1 <= self.q3
    }
}

/// Arithmetic mean. The sample is not empty.
pub(super) fn mean(sample: &[f64]) -> f64 {
    sample.iter().sum::<f64>() / count(sample.len())
}

/// Variance with the divisor `n - 1`; 0 for a single value.
pub(super) fn variance(sample: &[f64]) -> f64 {
    if sample.len() < 2 {
        return 0.0;
    }
    let mean = mean(sample);
    sample.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count(sample.len() - 1)
}

/// A number of runs as a number of the real line. A `u32` holds every number of runs and converts
/// exactly.
pub(super) fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Quantile by linear interpolation between the two nearest order statistics (Hyndman and Fan 1996,
/// type 7).
pub(super) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let position = q * count(sorted.len() - 1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in the sample"
    )]
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (position - count(below)) * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_sample_has_its_known_summary() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).expect("finite");
        assert_eq!((summary.n, summary.mean, summary.median), (5, 3.0, 3.0));
        assert_eq!((summary.q1, summary.q3, summary.min, summary.max), (2.0, 4.0, 1.0, 5.0));
        assert!((summary.sd - 2.5_f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn an_empty_or_infinite_sample_has_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
    }

    #[test]
    fn quartile_boxes_that_touch_overlap() {
        let low = Summary::of(&[1.0, 2.0, 3.0]).expect("finite");
        let high = Summary::of(&[2.5, 3.0, 3.5]).expect("finite");
        let far = Summary::of(&[9.0, 9.5, 10.0]).expect("finite");
        assert!(low.overlaps(&low) && !low.overlaps(&high) && !low.overlaps(&far));
        assert!(Summary::of(&[1.0, 3.0, 5.0]).expect("finite").overlaps(&high));
    }
}
