//! Permutation tests: how often chance alone gives a difference of means as large as the observed
//! one.
//!
//! They assume no distribution and check Welch's t, which assumes normal means. Few arrangements
//! are all tried; of many, [`DRAWS`] are drawn, and the observed one counts among them, so that no
//! p-value is zero (Phipson and Smyth 2010).

use fastrand::Rng;

use super::summary::{count, mean};

/// Arrangements drawn if there are more.
const DRAWS: u32 = 20_000;

/// Differences that rounding alone separates are equal: sums of the same numbers in another order.
const ROUNDING: f64 = 1e-9;

/// Two-sided p-value of the difference of means of two independent samples. NaN if a sample is
/// empty.
#[must_use]
pub fn two_samples(first: &[f64], second: &[f64], seed: u64) -> f64 {
    if first.is_empty() || second.is_empty() {
        return f64::NAN;
    }
    let mut all = [first, second].concat();
    let observed = (mean(second) - mean(first)).abs();
    let total: f64 = all.iter().sum();
    let (nx, ny) = (count(first.len()), count(second.len()));
    let difference = |sum: f64| ((total - sum) / ny - sum / nx).abs();
    let reaches = |sum: f64| difference(sum) >= observed - ROUNDING * observed;
    if let Some(arrangements) = choose(all.len(), first.len()) {
        let mut reached = 0_u32;
        subsets(&all, first.len(), 0.0, &mut |sum| reached += u32::from(reaches(sum)));
        return f64::from(reached) / f64::from(arrangements);
    }
    let mut rng = Rng::with_seed(seed);
    let reached: u32 = (0..DRAWS)
        .map(|_| {
            rng.shuffle(&mut all);
            u32::from(reaches(all[..first.len()].iter().sum()))
        })
        .sum();
    f64::from(reached + 1) / f64::from(DRAWS + 1)
}

/// Two-sided p-value of the mean difference of pairs: each pair may have been labeled the other way
/// round. This is the test for interleaved runs, because what a machine does for a minute meets
/// both runs of a pair. NaN without a pair.
#[must_use]
pub fn pairs(differences: &[f64], seed: u64) -> f64 {
    if differences.is_empty() {
        return f64::NAN;
    }
    let observed = differences.iter().sum::<f64>().abs();
    let reaches = |sum: f64| sum.abs() >= observed - ROUNDING * observed;
    if let Some(arrangements) = u32::try_from(differences.len())
        .ok()
        .and_then(|n| 1_u32.checked_shl(n))
        .filter(|&n| n <= DRAWS)
    {
        let reached: u32 = (0..arrangements)
            .map(|signs| {
                let flip = |(index, value): (usize, &f64)| {
                    if signs >> index & 1 == 1 { -value } else { *value }
                };
                u32::from(reaches(differences.iter().enumerate().map(flip).sum()))
            })
            .sum();
        return f64::from(reached) / f64::from(arrangements);
    }
    let mut rng = Rng::with_seed(seed);
    let reached: u32 = (0..DRAWS)
        .map(|_| {
            let sum =
                differences.iter().map(|value| if rng.bool() { *value } else { -value }).sum();
            u32::from(reaches(sum))
        })
        .sum();
    f64::from(reached + 1) / f64::from(DRAWS + 1)
}

/// Number of ways to choose `k` of `n`, if at most [`DRAWS`].
fn choose(n: usize, k: usize) -> Option<u32> {
    let mut ways = 1_u64;
    for index in 0..k.min(n - k) {
        ways = ways * (n - index) as u64 / (index as u64 + 1);
        if ways > u64::from(DRAWS) {
            return None;
        }
    }
    u32::try_from(ways).ok()
}

/// Calls `visit` with the sum of every subset of `k` values.
fn subsets(values: &[f64], k: usize, sum: f64, visit: &mut impl FnMut(f64)) {
    if k == 0 {
        visit(sum);
        return;
    }
    for index in 0..=values.len() - k {
        subsets(&values[index + 1..], k - 1, sum + values[index], visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_arrangements_are_all_counted() {
        // 2 of the 20 ways to split six values into three and three are as extreme: the sorted
        // split, and its mirror image.
        assert_eq!(two_samples(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0], 1), 0.1);
        // All six differences have one sign: 2 of 64.
        assert_eq!(pairs(&[1.0, 2.0, 1.5, 0.5, 2.0, 1.0], 1), 2.0 / 64.0);
    }

    #[test]
    fn equal_samples_do_not_differ() {
        assert_eq!(two_samples(&[2.0; 4], &[2.0; 4], 1), 1.0);
        assert_eq!(pairs(&[0.0; 30], 1), 1.0);
    }

    #[test]
    fn many_arrangements_are_drawn_and_no_p_value_is_zero() {
        let low: Vec<f64> = (0..20).map(f64::from).collect();
        let high: Vec<f64> = (100..120).map(f64::from).collect();
        let p = two_samples(&low, &high, 7);
        assert!(p > 0.0 && p < 0.001, "{p}");
        assert_eq!(p, two_samples(&low, &high, 7));
        let differences: Vec<f64> = low.iter().zip(&high).map(|(a, b)| b - a).collect();
        assert!(pairs(&differences, 7) < 0.001);
    }

    /// Chance finds a difference where there is none as often as stated, and no more.
    #[test]
    fn the_level_of_significance_is_kept_under_the_null_hypothesis() {
        let mut rng = Rng::with_seed(3);
        let rejected = (0..400)
            .filter(|&seed| {
                let sample: Vec<f64> = (0..20).map(|_| rng.f64() - 0.5).collect();
                pairs(&sample, seed) < 0.05
            })
            .count();
        // 20 are expected; 35 or more have a probability below 0.001.
        assert!(rejected < 35, "{rejected} of 400");
    }
}
