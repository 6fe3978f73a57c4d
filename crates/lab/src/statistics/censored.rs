//! Mean and standard deviation of normal runs of which some reached a limit (Cohen 1959, singly censored samples).
//!
//! A run that reaches the line rate says only that its true value is at least the limit. To average such runs as if the
//! limit were their value biases the mean and hides variance. The maximum-likelihood estimate is
//! `mu = mean - lambda (mean - limit)` and `sigma² = s² + lambda (mean - limit)²`, where `mean` and `s²` are those of the
//! observed runs, and `lambda` depends on the fraction of censored runs `h` and on `gamma = s² / (mean - limit)²`.
//!
//! The formulas serve both sides: the sign is in `mean - limit`. Formulas below are those of left censoring, with `xi` the
//! standardized limit; right censoring is its mirror image.

use fastrand::Rng;

use super::{
    normal::{below, density, left_hazard},
    summary::{count, mean},
};

/// Estimates of a sample with censored runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Censored {
    /// Estimated mean.
    pub mu: f64,
    /// Estimated standard deviation (maximum likelihood).
    pub sigma: f64,
    /// Standard error of `mu`, from the observed information.
    pub se_mu: f64,
    /// Standard error of `sigma`.
    pub se_sigma: f64,
    /// Cohen's lambda; 0 without censored runs.
    pub lambda: f64,
    /// Logarithm of the likelihood at the estimate.
    pub ln_likelihood: f64,
}

/// Why a sample has no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CensoredError {
    /// Fewer than two runs were observed exactly, or all observed runs are equal: sigma is undefined.
    TooFewObserved,
    /// An observed run lies at the limit or beyond it, or runs lie on both sides of it.
    BeyondLimit,
}

impl Censored {
    /// Estimates from the runs observed exactly and the number of runs that reached `limit`. The observed runs all lie below
    /// the limit (right censoring), or all above it (left censoring).
    ///
    /// # Errors
    ///
    /// [`CensoredError`] if sigma is undefined, or if observed runs reach the limit.
    pub fn of(observed: &[f64], censored: usize, limit: f64) -> Result<Self, CensoredError> {
        if observed.len() < 2 || observed.iter().all(|value| *value == observed[0]) {
            return Err(CensoredError::TooFewObserved);
        }
        let is_right = observed.iter().all(|value| *value < limit);
        if censored > 0 && !is_right && !observed.iter().all(|value| *value > limit) {
            return Err(CensoredError::BeyondLimit);
        }
        let r = count(observed.len());
        let mean = mean(observed);
        let s2 = observed.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / r;
        let distance = mean - limit;
        let lambda = if censored == 0 {
            0.0
        } else {
            let h = count(censored) / (count(censored) + r);
            lambda(h, s2 / distance.powi(2))
        };
        let mu = mean - lambda * distance;
        let sigma = (s2 + lambda * distance.powi(2)).sqrt();
        let side = if is_right { 1.0 } else { -1.0 };
        let mirrored: Vec<f64> = observed.iter().map(|value| side * value).collect();
        let group = Group { observed: mirrored, censored, limit: side * limit };
        let (se_mu, se_sigma) = group.standard_errors(side * mu, sigma);
        let ln_likelihood = group.ln_likelihood(side * mu, sigma);
        Ok(Self { mu, sigma, se_mu, se_sigma, lambda, ln_likelihood })
    }
}

/// Cohen's lambda for a censored fraction `h` between 0 and 1 and `gamma >= 0`.
fn lambda(h: f64, gamma: f64) -> f64 {
    let omega = |xi: f64| h / (1.0 - h) * left_hazard(xi);
    let found = |xi: f64| {
        let excess = omega(xi) - xi;
        (1.0 - omega(xi) * excess) / (excess * excess)
    };
    // gamma rises with xi up to the limit where omega(xi) = xi.
    let limit = bisect(-40.0, 40.0, |xi| xi - omega(xi));
    let xi = bisect(-40.0, limit - 1e-12, |xi| found(xi) - gamma);
    omega(xi) / (omega(xi) - xi)
}

/// Root of a rising function between two places.
fn bisect(mut low: f64, mut high: f64, function: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if function(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// A right-censored sample.
#[derive(Clone, Debug)]
struct Group {
    observed: Vec<f64>,
    censored: usize,
    limit: f64,
}

impl Group {
    fn ln_likelihood(&self, mu: f64, sigma: f64) -> f64 {
        let ln_density = |y: &f64| {
            let d = (y - mu) / sigma;
            -0.5 * d * d - (sigma * (2.0 * std::f64::consts::PI).sqrt()).ln()
        };
        let exact: f64 = self.observed.iter().map(ln_density).sum();
        exact + count(self.censored) * ln_below((mu - self.limit) / sigma)
    }

    /// Standard errors of mu and sigma: the inverse of the observed information.
    fn standard_errors(&self, mu: f64, sigma: f64) -> (f64, f64) {
        let (r, c) = (count(self.observed.len()), count(self.censored));
        let z = (self.limit - mu) / sigma;
        let hazard = if self.censored == 0 { 0.0 } else { left_hazard(-z) };
        let slope = hazard * (hazard - z);
        let (mut sum, mut squares) = (0.0, 0.0);
        for value in &self.observed {
            let d = (value - mu) / sigma;
            sum += d;
            squares += d * d;
        }
        let z = if self.censored == 0 { 0.0 } else { z };
        let variance = sigma * sigma;
        let mm = (r + c * slope) / variance;
        let ms = (2.0 * sum + c * (hazard + z * slope)) / variance;
        let ss = (-r + 3.0 * squares + c * (2.0 * z * hazard + z * z * slope)) / variance;
        let determinant = mm * ss - ms * ms;
        ((ss / determinant).sqrt(), (mm / determinant).sqrt())
    }

    /// Largest likelihood for a given mean, over sigma. The likelihood has one maximum in ln sigma.
    fn profile(&self, mu: f64) -> f64 {
        let scale = self.scale(mu);
        maximize((scale / 100.0).ln(), (scale * 100.0).ln(), |ln_sigma| {
            self.ln_likelihood(mu, ln_sigma.exp())
        })
        .1
    }

    /// A size of sigma's order, for the bracket.
    fn scale(&self, mu: f64) -> f64 {
        let all = self.observed.iter().chain(std::iter::once(&self.limit));
        all.map(|value| (value - mu).abs()).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// A sample of the same size from a normal distribution, censored at the same limit. At least two runs are exact.
    fn resample(&self, rng: &mut Rng, mu: f64, sigma: f64) -> Self {
        loop {
            let n = self.observed.len() + self.censored;
            let mut observed: Vec<f64> = (0..n).map(|_| mu + sigma * deviate(rng)).collect();
            observed.retain(|value| *value < self.limit);
            if observed.len() >= 2 {
                return Self { censored: n - observed.len(), observed, limit: self.limit };
            }
        }
    }
}

/// ln Φ(x), also far in the tail.
fn ln_below(x: f64) -> f64 {
    if x > -8.0 { below(x).ln() } else { density(x).ln() - left_hazard(x).ln() }
}

/// A standard normal deviate (Box and Muller 1958).
fn deviate(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * rng.f64()).cos()
}

/// Place and value of the maximum of a function with one maximum, by golden-section search.
fn maximize(mut low: f64, mut high: f64, function: impl Fn(f64) -> f64) -> (f64, f64) {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let mut left = high - GOLDEN * (high - low);
    let mut right = low + GOLDEN * (high - low);
    let (mut at_left, mut at_right) = (function(left), function(right));
    for _ in 0..48 {
        if at_left > at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - GOLDEN * (high - low);
            at_left = function(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + GOLDEN * (high - low);
            at_right = function(right);
        }
    }
    if at_left > at_right { (left, at_left) } else { (right, at_right) }
}

/// p-value of the hypothesis that two samples, right-censored at the same limit, have equal means: a likelihood-ratio test
/// with separate variances, whose distribution comes from `resamples` parametric bootstrap samples. No exact number of
/// degrees of freedom is known for a t-test of censored samples.
///
/// # Errors
///
/// As [`Censored::of`], for either sample.
pub fn likelihood_ratio(
    first: (&[f64], usize),
    second: (&[f64], usize),
    limit: f64,
    resamples: u32,
    seed: u64,
) -> Result<f64, CensoredError> {
    let estimates =
        [Censored::of(first.0, first.1, limit)?, Censored::of(second.0, second.1, limit)?];
    let groups = [first, second].map(|(observed, censored)| Group {
        observed: observed.to_vec(),
        censored,
        limit,
    });
    let (common, observed) = statistic(&groups);
    let sigmas = [0, 1].map(|index| {
        let scale = groups[index].scale(common).max(estimates[index].sigma);
        let ln_likelihood = |ln_sigma: f64| groups[index].ln_likelihood(common, ln_sigma.exp());
        maximize((scale / 100.0).ln(), (scale * 100.0).ln(), ln_likelihood).0.exp()
    });
    let mut rng = Rng::with_seed(seed);
    let reached: u32 = (0..resamples)
        .map(|_| {
            let drawn = [0, 1].map(|index| groups[index].resample(&mut rng, common, sigmas[index]));
            u32::from(statistic(&drawn).1 >= observed)
        })
        .sum();
    Ok(f64::from(reached + 1) / f64::from(resamples + 1))
}

/// The common mean under the hypothesis, and twice the logarithm of the likelihood ratio.
fn statistic(groups: &[Group; 2]) -> (f64, f64) {
    let reach = |group: &Group| {
        let spread = group.observed.iter().copied().fold(f64::INFINITY, f64::min);
        (spread, 2.0 * group.limit - spread)
    };
    let (a, b) = (reach(&groups[0]), reach(&groups[1]));
    let (low, high) = (a.0.min(b.0), a.1.max(b.1));
    let free: f64 = groups.iter().map(|group| maximize(low, high, |mu| group.profile(mu)).1).sum();
    let joint = |mu: f64| groups[0].profile(mu) + groups[1].profile(mu);
    let (mu, tied) = maximize(low, high, joint);
    (mu, 2.0 * (free - tied).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, wanted: f64, relative: f64) -> bool {
        (found - wanted).abs() <= relative * wanted.abs()
    }

    /// Rows by gamma, columns by h.
    #[test]
    fn lambda_has_its_tabled_values() {
        let columns = [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
        let rows: [(f64, [f64; 13]); 7] = [
            (
                0.0,
                [
                    0.01010, 0.05251, 0.11020, 0.17342, 0.24268, 0.31862, 0.40210, 0.59607,
                    0.83684, 1.14536, 1.56148, 2.17591, 3.28261,
                ],
            ),
            (
                0.05,
                [
                    0.01055, 0.05467, 0.11431, 0.17935, 0.25033, 0.32793, 0.41301, 0.61011,
                    0.85396, 1.16559, 1.58499, 2.20304, 3.31419,
                ],
            ),
            (
                0.1,
                [
                    0.01095, 0.05660, 0.11804, 0.18479, 0.25741, 0.33662, 0.42326, 0.62343,
                    0.87033, 1.18508, 1.60777, 2.22948, 3.34516,
                ],
            ),
            (
                0.2,
                [
                    0.01164, 0.05999, 0.12469, 0.19460, 0.27031, 0.35255, 0.44219, 0.64829,
                    0.90118, 1.22212, 1.65140, 2.28049, 3.40541,
                ],
            ),
            (
                0.3,
                [
                    0.01224, 0.06297, 0.13059, 0.20338, 0.28193, 0.36700, 0.45946, 0.67125,
                    0.92995, 1.25696, 1.69279, 2.32930, 3.46360,
                ],
            ),
            (
                0.5,
                [
                    0.01328, 0.06813, 0.14090, 0.21882, 0.30253, 0.39276, 0.49044, 0.71286,
                    0.98262, 1.32136, 1.77002, 2.42129, 3.57456,
                ],
            ),
            (
                1.0,
                [
                    0.01534, 0.07847, 0.16170, 0.25022, 0.34471, 0.44592, 0.55481, 0.80051,
                    1.09506, 1.46072, 1.93952, 2.62636, 3.82674,
                ],
            ),
        ];
        for (gamma, wanted) in rows {
            for (h, wanted) in columns.iter().zip(wanted) {
                let found = lambda(*h, gamma);
                assert!((found - wanted).abs() < 6e-6, "lambda({h}, {gamma}) = {found}, {wanted}");
            }
        }
    }

    #[test]
    fn a_textbook_sample_that_is_censored_on_the_left_has_its_estimates() {
        let observed = [
            6.9, 7.8, 8.9, 7.7, 9.6, 8.7, 6.7, 8.0, 8.5, 6.5, 9.2, 7.4, 6.3, 7.3, 8.3, 7.2, 7.5,
            6.1, 9.4, 7.6, 8.1, 7.9, 10.1,
        ];
        let found = Censored::of(&observed, 4, 6.0).expect("an estimate");
        assert!(close(found.lambda, 0.201_147, 3e-6), "{found:?}");
        assert!(close(found.mu, 7.517_820, 1e-6) && close(found.sigma, 1.354_241, 1e-6));
    }

    #[test]
    fn samples_censored_at_the_line_rate_have_their_estimates() {
        type Vector = (&'static [f64], usize, f64, [f64; 4]);
        let vectors: [Vector; 4] = [
            (
                &[8.01, 7.42, 9.10, 6.95],
                2,
                9.415,
                [0.520_224_502, 8.673_746_86, 1.373_731_74, 0.605_743_961],
            ),
            (
                &[9.02, 8.75, 9.21],
                3,
                9.415,
                [0.901_287_449, 9.373_376_21, 0.442_576_134, 0.221_841_837],
            ),
            (
                &[7.604, 7.2, 8.1, 6.9, 7.9],
                1,
                9.415,
                [0.202_982_819, 7.921_230_4, 0.952_628_582, 0.395_276_666],
            ),
            (
                &[1.0, 2.0, 3.0, 4.0],
                1,
                5.0,
                [0.270_311_206, 3.175_778_01, 1.714_480_98, 0.787_714_96],
            ),
        ];
        for (observed, censored, limit, wanted) in vectors {
            let found = Censored::of(observed, censored, limit).expect("an estimate");
            let found = [found.lambda, found.mu, found.sigma, found.se_mu];
            assert!(
                found.iter().zip(wanted).all(|(f, w)| close(*f, w, 1e-7)),
                "{found:?} {wanted:?}"
            );
        }
        let first = Censored::of(&[8.01, 7.42, 9.10, 6.95], 2, 9.415).expect("an estimate");
        assert!(close(first.se_sigma, 0.529_476_509, 1e-7), "{first:?}");
        assert!(close(first.ln_likelihood, -8.757_793_2, 1e-7), "{first:?}");
    }

    #[test]
    fn without_censored_runs_the_estimate_is_the_ordinary_one() {
        let found = Censored::of(&[1.0, 2.0, 3.0], 0, 9.0).expect("an estimate");
        assert!(close(found.mu, 2.0, 1e-12) && close(found.sigma, (2.0_f64 / 3.0).sqrt(), 1e-12));
        assert!(close(found.se_mu, found.sigma / 3.0_f64.sqrt(), 1e-12));
    }

    #[test]
    fn samples_without_an_estimate_are_refused() {
        assert_eq!(Censored::of(&[1.0], 3, 2.0), Err(CensoredError::TooFewObserved));
        assert_eq!(Censored::of(&[1.0, 1.0], 3, 2.0), Err(CensoredError::TooFewObserved));
        assert_eq!(Censored::of(&[1.0, 3.0], 1, 2.0), Err(CensoredError::BeyondLimit));
        assert_eq!(Censored::of(&[1.0, 2.0], 1, 2.0), Err(CensoredError::BeyondLimit));
    }

    #[test]
    fn a_clear_difference_of_censored_samples_is_found_and_none_is_not() {
        let low = [5.1, 5.6, 4.9, 5.3, 5.2];
        let high = [8.9, 9.1, 8.7];
        let p = likelihood_ratio((&low, 0), (&high, 3), 9.415, 199, 1).expect("estimates");
        assert!(p < 0.02, "{p}");
        let p =
            likelihood_ratio((&high, 3), (&[8.8, 9.2, 8.6], 3), 9.415, 199, 1).expect("estimates");
        assert!(p > 0.2, "{p}");
    }
}
