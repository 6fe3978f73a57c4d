//! Welch's t-test for two means with unequal variances (Welch 1947).

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::summary::{count, mean, variance};

/// Result of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Welch {
    /// Difference of the means, second less first, in standard errors.
    pub t: f64,
    /// Degrees of freedom by Welch and Satterthwaite; a real number.
    pub df: f64,
    /// Probability of a difference at least as large in either direction, if there is none.
    pub p_two: f64,
    /// Probability of a difference at least as large in the observed direction, if there is none.
    pub p_one: f64,
}

/// Compares the means of two samples. `None` if one of them has fewer than two values.
///
/// Two samples without any variance differ with certainty (p = 0) or not at all (p = 1).
#[must_use]
pub fn welch(first: &[f64], second: &[f64]) -> Option<Welch> {
    if first.len() < 2 || second.len() < 2 {
        return None;
    }
    let (nx, ny) = (count(first.len()), count(second.len()));
    let (a, b) = (variance(first) / nx, variance(second) / ny);
    let difference = mean(second) - mean(first);
    if a + b == 0.0 {
        let p = if difference == 0.0 { 1.0 } else { 0.0 };
        let t = if difference == 0.0 { 0.0 } else { difference.signum() * f64::INFINITY };
        return Some(Welch { t, df: nx + ny - 2.0, p_two: p, p_one: p / 2.0 });
    }
    let t = difference / (a + b).sqrt();
    let df = (a + b).powi(2) / (a.powi(2) / (nx - 1.0) + b.powi(2) / (ny - 1.0));
    let p_one = upper_tail(t.abs(), df);
    Some(Welch { t, df, p_two: 2.0 * p_one, p_one })
}

/// P(T > t) of Student's distribution.
pub(super) fn upper_tail(t: f64, df: f64) -> f64 {
    StudentsT::new(0.0, 1.0, df).map_or(f64::NAN, |student| student.sf(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative error that the published vectors allow.
    fn close(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() <= 2e-9 * wanted.abs().max(1.0)
    }

    #[test]
    fn tails_of_students_distribution() {
        let vectors = [
            (0.0, 5.0, 0.5),
            (1.0, 5.0, 0.181_608_733_825),
            (2.0, 5.0, 0.050_969_739_415),
            (2.015_048_373, 5.0, 0.05),
            (2.570_581_836, 5.0, 0.025),
            (1.0, 10.0, 0.170_446_566_151),
            (1.812_461_123, 10.0, 0.05),
            (2.228_138_852, 10.0, 0.025),
            (3.0, 10.0, 0.006_671_827_511),
            (4.1437, 10.0, 0.001_000_000_788),
            (0.5, 7.3, 0.315_896_763_402),
            (2.5, 6.25, 0.022_481_982_687),
            (-1.5, 8.0, 0.913_998_354_024),
        ];
        for (t, df, wanted) in vectors {
            assert!(close(upper_tail(t, df), wanted), "sf({t}; {df}) = {}", upper_tail(t, df));
        }
    }

    #[test]
    fn known_pairs_of_samples_have_their_known_results() {
        let w6a = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8];
        let w6b = [
            21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5,
            23.6, 21.5, 22.5, 23.5, 21.5, 21.8,
        ];
        let w4a = [
            27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
            21.4,
        ];
        let w4b = [
            27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5,
            24.4,
        ];
        type Vector<'a> = (&'a [f64], &'a [f64], f64, f64, f64);
        let vectors: [Vector<'_>; 6] = [
            (
                &[6.41, 6.52, 6.47, 6.58, 6.39, 6.558],
                &[7.10, 7.62, 6.95, 7.88, 7.21, 7.346],
                5.972_783_187,
                5.508_819_96,
                0.001_342_656_94,
            ),
            (
                &[210.1, 198.4, 225.7, 231.0, 189.9, 206.7],
                &[181.0, 170.2, 195.5, 202.3, 166.8, 173.2],
                -3.305_050_972,
                9.927_359_416,
                0.008_022_704_39,
            ),
            (&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 3.0, 4.0, 5.0, 6.0], 1.0, 8.0, 0.346_593_507_1),
            (&w4a, &w4b, 2.455_356_398, 24.988_529_29, 0.021_378_001_46),
            (&[5.0; 6], &[5.1, 5.2, 5.0, 5.3, 5.1, 5.2], 3.503_245_249, 5.0, 0.017_224_549_68),
            (&w6a, &w6b, 1.565_433_524, 9.904_741_249, 0.148_841_696_6),
        ];
        for (first, second, t, df, p_two) in vectors {
            let found = welch(first, second).expect("two values each");
            assert!(close(found.t, t) && close(found.df, df), "{found:?}");
            assert!(close(found.p_two, p_two) && close(found.p_one, p_two / 2.0), "{found:?}");
        }
    }

    #[test]
    fn samples_without_variance_differ_with_certainty_or_not_at_all() {
        assert_eq!(welch(&[1.0, 1.0], &[1.0, 1.0]).map(|found| found.p_two), Some(1.0));
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0]).map(|found| found.p_two), Some(0.0));
        assert_eq!(welch(&[1.0], &[2.0, 2.0]), None);
    }
}
