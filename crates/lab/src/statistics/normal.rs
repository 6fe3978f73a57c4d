//! The standard normal distribution, in the two forms that the estimates need.

use statrs::distribution::{Continuous, ContinuousCDF, Normal};

/// Below this the distribution function loses its digits and the ratio is taken from its continued
/// fraction.
const FAR_TAIL: f64 = -8.0;

/// φ(x).
pub(super) fn density(x: f64) -> f64 {
    Normal::standard().pdf(x)
}

/// Φ(x).
pub(super) fn below(x: f64) -> f64 {
    Normal::standard().cdf(x)
}

/// φ(x) / Φ(x), the hazard of the left tail.
pub(super) fn left_hazard(x: f64) -> f64 {
    if x > FAR_TAIL {
        return density(x) / below(x);
    }
    // Mills's ratio of y = -x: 1 / (y + 1 / (y + 2 / (y + 3 / …))); 40 terms are exact to the last
    // digit for y ≥ 8.
    let y = -x;
    (1..=40).rev().fold(y, |tail, k| y + f64::from(k) / tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_hazard_agree_where_they_meet() {
        let near = density(-7.99) / below(-7.99);
        let y = 7.99;
        let far = (1..=40).rev().fold(y, |tail, k| y + f64::from(k) / tail);
        assert!((near / far - 1.0).abs() < 1e-9, "{near} {far}");
        assert!(left_hazard(-40.0) > 40.0 && left_hazard(-40.0) < 40.03);
    }
}
