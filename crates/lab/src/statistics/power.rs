//! Power of the two-sided t-test with equal arms: the probability to find a difference that is
//! there.

use statrs::{
    distribution::{ContinuousCDF, StudentsT},
    function::gamma::ln_gamma,
};

use super::{normal, summary::count};

/// Steps of the integral over the estimated standard deviation; the error is below 1e-6.
const STEPS: u32 = 2_000;

/// Probability that a test at `level` with `n` runs per arm finds a difference of `effect` standard
/// deviations. `n` is at least 2.
#[must_use]
pub fn power(n: usize, effect: f64, level: f64) -> f64 {
    let df = 2.0 * count(n) - 2.0;
    let Ok(student) = StudentsT::new(0.0, 1.0, df) else { return f64::NAN };
    let critical = student.inverse_cdf(1.0 - level / 2.0);
    let shift = effect * (count(n) / 2.0).sqrt();
    // The noncentral t is (Z + shift) / S with df·S² chi-squared: integrate over S by Simpson's
    // rule.
    let ln_scale = std::f64::consts::LN_2 + df / 2.0 * (df / 2.0).ln() - ln_gamma(df / 2.0);
    let (low, high) = (1e-9, 1.0 + 12.0 / df.sqrt());
    let width = (high - low) / f64::from(STEPS);
    let mut sum = 0.0;
    for step in 0..=STEPS {
        let s = low + width * f64::from(step);
        let chi = (ln_scale + (df - 1.0) * s.ln() - df * s * s / 2.0).exp();
        let found = normal::below(shift - critical * s) + normal::below(-shift - critical * s);
        let weight = if step == 0 || step == STEPS { 1.0 } else { f64::from(2 + 2 * (step % 2)) };
        sum += weight * chi * found;
    }
    sum * width / 3.0
}

/// Smallest number of runs per arm that finds a difference of `effect` standard deviations with
/// probability `wanted`. `None` if 10,000 do not.
#[must_use]
pub fn runs_for(effect: f64, level: f64, wanted: f64) -> Option<usize> {
    (2..10_000).find(|&n| power(n, effect, level) >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_runs_have_their_known_power() {
        for (effect, wanted) in [(0.5, 0.12), (1.0, 0.35), (1.5, 0.65), (2.0, 0.88)] {
            let found = power(6, effect, 0.05);
            assert!((found - wanted).abs() < 0.006, "d = {effect}: {found}");
        }
        assert!((power(6, 0.0, 0.05) - 0.05).abs() < 1e-5);
    }

    #[test]
    fn known_effects_need_their_known_number_of_runs() {
        for (effect, wanted) in [(0.5, 64), (0.8, 26), (1.0, 17), (1.5, 9), (2.0, 6)] {
            assert_eq!(runs_for(effect, 0.05, 0.8), Some(wanted), "d = {effect}");
        }
    }
}
