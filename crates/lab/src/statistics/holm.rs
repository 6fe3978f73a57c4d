//! Holm's correction for several comparisons (Holm 1979).

/// Adjusts the p-values of a family of comparisons, in the order given. An adjusted value below the
/// level of significance rejects; the probability of any false rejection in the family is then at
/// most that level.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest = 0.0_f64;
    for (rank, &index) in order.iter().enumerate() {
        let remaining = super::summary::count(p_values.len() - rank);
        largest = largest.max(p_values[index] * remaining).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_family_has_its_known_adjustment() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let wanted = [0.03, 0.06, 0.06, 0.02];
        assert!(adjusted.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12), "{adjusted:?}");
    }

    #[test]
    fn one_comparison_is_unchanged_and_no_value_exceeds_one() {
        assert_eq!(holm(&[0.2]), [0.2]);
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }
}
