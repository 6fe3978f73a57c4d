//! Corpora of fuzzers, played in modes.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use super::{Settings, from_environment, pairwise, settings, sizes};

/// Plays every input of a directory twice: in the default modes, and in a pairwise row, each input
/// in the next row. If the environment selects modes, each input is played once, in those. Returns
/// the inputs that panicked, with their modes.
///
/// # Panics
/// When the directory cannot be read.
pub fn failures(corpus: &Path, play: impl Fn(&[u8], &Settings)) -> Vec<String> {
    let entries = fs::read_dir(corpus).expect("a corpus");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let (rows, asked) = (pairwise(&sizes()), from_environment());
    let mut failed = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let input = fs::read(path).expect("an input");
        let mut modes = vec![asked.clone()];
        if asked == Settings::default() {
            modes.push(settings(&rows[index % rows.len()]));
        }
        for mode in modes {
            if catch_unwind(AssertUnwindSafe(|| play(&input, &mode))).is_err() {
                failed.push(format!("{} in {mode}", path.display()));
            }
        }
    }
    failed
}
