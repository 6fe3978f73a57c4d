//! Rows that cover every pair: for any two modes, every two of their values occur together in some
//! row.
//!
//! Most faults of a combination are faults of two of its parts. All combinations of the modes are
//! hundreds of millions, the rows of [`pairwise`] a few dozen. The algorithm is greedy and
//! deterministic.

use std::collections::BTreeSet;

/// Two values of two modes, as (mode, value), in the order of the table.
pub type Pair = ((usize, usize), (usize, usize));

/// Returns the pairs of a row.
pub fn pairs(row: &[usize]) -> impl Iterator<Item = Pair> + '_ {
    let value = |mode: usize| (mode, row[mode]);
    (0..row.len())
        .flat_map(move |one| (one + 1..row.len()).map(move |two| (value(one), value(two))))
}

/// Returns rows of values, each below its mode's size, in which every pair occurs. The first row
/// has the defaults.
#[must_use]
pub fn pairwise(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut left = all(sizes);
    let mut rows = vec![vec![0; sizes.len()]];
    loop {
        for pair in rows.last().into_iter().flat_map(|row| pairs(row)) {
            left.remove(&pair);
        }
        let Some((one, two)) = left.first() else { return rows };
        let mut row = vec![None; sizes.len()];
        for (mode, value) in [*one, *two] {
            row[mode] = Some(value);
        }
        for mode in 0..sizes.len() {
            if row[mode].is_none() {
                // The lowest of the best values: `max_by_key` alone would take the last.
                let gain = |value: &usize| gain(&left, &row, (mode, *value));
                row[mode] = (0..sizes[mode]).rev().max_by_key(gain);
            }
        }
        rows.push(row.into_iter().map(Option::unwrap_or_default).collect());
    }
}

/// Returns as few rows as possible in which every value occurs.
#[must_use]
pub fn each(sizes: &[usize]) -> Vec<Vec<usize>> {
    let most = sizes.iter().copied().max().unwrap_or(1);
    (0..most).map(|row| sizes.iter().map(|size| row % size).collect()).collect()
}

fn all(sizes: &[usize]) -> BTreeSet<Pair> {
    let values = |mode: usize| (0..sizes[mode]).map(move |value| (mode, value));
    let two = (0..sizes.len()).flat_map(|one| (one + 1..sizes.len()).map(move |two| (one, two)));
    two.flat_map(|(one, two)| values(one).flat_map(move |a| values(two).map(move |b| (a, b))))
        .collect()
}

/// Returns how many uncovered pairs a value would add to a row.
fn gain(left: &BTreeSet<Pair>, row: &[Option<usize>], new: (usize, usize)) -> usize {
    let others = row.iter().enumerate().filter_map(|(mode, value)| Some((mode, (*value)?)));
    others.filter(|other| left.contains(&(new.min(*other), new.max(*other)))).count()
}

#[cfg(test)]
mod tests {
    use super::{super::sizes, *};

    #[test]
    fn every_pair_of_the_modes_is_in_a_row() {
        let rows = pairwise(&sizes());
        let covered: BTreeSet<Pair> = rows.iter().flat_map(|row| pairs(row)).collect();
        assert_eq!(covered, all(&sizes()));
        assert_eq!(rows, pairwise(&sizes()), "deterministic");
    }

    #[test]
    fn rows_of_any_table_are_complete() {
        for sizes in [vec![], vec![1], vec![3], vec![2, 2], vec![6, 4, 4, 3, 2, 2, 2], vec![2; 30]]
        {
            let rows = pairwise(&sizes);
            let covered: BTreeSet<Pair> = rows.iter().flat_map(|row| pairs(row)).collect();
            assert_eq!(covered, all(&sizes), "{sizes:?}");
            assert!(
                rows.iter().flatten().zip(sizes.iter().cycle()).all(|(value, size)| value < size)
            );
        }
    }

    #[test]
    fn every_value_is_in_a_row() {
        let sizes = sizes();
        for (mode, size) in sizes.iter().enumerate() {
            let found: BTreeSet<usize> = each(&sizes).iter().map(|row| row[mode]).collect();
            assert_eq!(found.len(), *size);
        }
    }
}
