//! Mean and standard deviation of normal runs of which some reached a limit (Cohen 1959, singly
//! censored samples).
//!
//! A run that reaches the line rate says only that its true value is at least the limit. To average
//! such runs as if the limit were their value biases the mean and hides variance. The
//! maximum-likelihood estimate is `mu = mean - lambda (mean - limit)` and `sigma² = s² + lambda
//! (mean - limit)²`, where `mean` and `s²` are those of the observed runs, and `lambda` depends on
//! the fraction of censored runs `h` and on `gamma = s² / (mean - limit)²`.
//!
//! The formulas serve both sides: the sign is in `mean - limit`. Formulas below are those of left
//! censoring, with `xi` the standardized limit; right censoring is its mirror image.

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
    /// Fewer than two runs were observed exactly, or all observed runs are equal: sigma is
    /// undefined.
    TooFewObserved,
    /// An observed run lies at the limit or beyond it, or runs lie on both sides of it.
    BeyondLimit,
}

impl Censored {
    /// Estimates from the runs observed exactly and the number of runs that reached `limit`. The
    /// observed runs all lie below the limit (right censoring), or all above it (left censoring).
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

    /// A sample of the same size from a normal distribution, censored at the same limit. At least
    /// two runs are exact.
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

/// p-value of the hypothesis that two samples, right-censored at the same limit, have equal means:
/// a likelihood-ratio test with separate variances, whose distribution comes from `resamples`
/// parametric bootstrap samples. No exact number of degrees of freedom is known for a t-test of
/// censored samples.
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
mod tests;
