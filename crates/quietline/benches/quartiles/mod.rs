//! Statistics of the rounds of a bench.

/// Returns lower quartile, median and upper quartile.
pub(crate) fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
