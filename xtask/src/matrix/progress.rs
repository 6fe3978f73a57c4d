//! The passed runs of the matrix, kept in a file, so that an interrupted matrix continues where it
//! stopped.
//!
//! The file belongs to one commit and one number of seeds: if either differs the matrix starts
//! again. A failed run is not kept. The remaining time is estimated as the mean of the runs so far
//! times the number of remaining runs.
//!
//! Not here: the runs (`matrix`).

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Passed runs, and the total number.
#[derive(Debug)]
pub(super) struct Progress {
    path: PathBuf,
    /// First line of the file: the commit and the number of seeds.
    head: String,
    /// Name, result and seconds of each passed run.
    passed: Vec<(String, String, u64)>,
    /// Number of runs of the whole matrix.
    total: usize,
}

impl Progress {
    /// Reads the results of an earlier matrix with the same `head`.
    pub(super) fn resume(path: PathBuf, head: String, total: usize) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        let same = lines.next() == Some(&head);
        let passed = lines.take_while(|_| same).filter_map(|line| {
            let mut cells = line.split('\t');
            let (name, result, seconds) = (cells.next()?, cells.next()?, cells.next()?);
            Some((name.to_owned(), result.to_owned(), seconds.parse().ok()?))
        });
        let passed = passed.collect();
        Self { path, head, passed, total }
    }

    /// Returns the result of a run that has passed before.
    pub(super) fn result(&self, name: &str) -> Option<&str> {
        self.passed.iter().find(|(other, ..)| other == name).map(|(_, result, _)| result.as_str())
    }

    /// Adds the result of a passed run to the file.
    pub(super) fn keep(&mut self, name: &str, result: &str, took: Duration) -> Result<()> {
        self.passed.push((name.to_owned(), result.to_owned(), took.as_secs()));
        let mut text = format!("{}\n", self.head);
        for (name, result, seconds) in &self.passed {
            writeln!(text, "{name}\t{result}\t{seconds}")?;
        }
        let directory = self.path.parent().context("a file in a directory")?;
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        fs::write(&self.path, text).with_context(|| format!("writing {}", self.path.display()))
    }

    /// Returns one line: passed runs, remaining runs, and the estimated time.
    pub(super) fn describe(&self) -> String {
        let left = self.total.saturating_sub(self.passed.len());
        let line = format!("matrix: {} of {} runs have passed", self.passed.len(), self.total);
        if self.passed.is_empty() {
            return line;
        }
        let seconds: u64 = self.passed.iter().map(|(.., seconds)| seconds).sum();
        let minutes = seconds * left as u64 / self.passed.len() as u64 / 60;
        format!("{line}; the other {left} will take about {minutes} minutes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("quietline-matrix-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_matrix_of_the_same_commit_continues() {
        let path = path("resume");
        let head = || String::from("abc, 2000 seeds");
        let mut progress = Progress::resume(path.clone(), head(), 3);
        assert_eq!(progress.describe(), "matrix: 0 of 3 runs have passed");
        progress.keep("row 1, kernel", "ok, 5 tests", Duration::from_secs(120)).unwrap();
        let progress = Progress::resume(path.clone(), head(), 3);
        assert_eq!(progress.result("row 1, kernel"), Some("ok, 5 tests"));
        assert_eq!(progress.result("row 2, kernel"), None);
        let said = "matrix: 1 of 3 runs have passed; the other 2 will take about 4 minutes";
        assert_eq!(progress.describe(), said);
        let other = Progress::resume(path.clone(), String::from("def, 2000 seeds"), 3);
        assert_eq!(other.result("row 1, kernel"), None);
        fs::remove_file(path).unwrap();
    }
}
