//! Numbers of a fuzz run, from the lines that libFuzzer prints.
//!
//! Above: `fuzz`, which prints one row for each target, in the form of the table in
//! CONTRIBUTING.md.

use std::fmt;

/// Head of the table.
pub(super) const HEAD: &str = "| target | runs/s | runs | cov | ft |\n|---|---:|---:|---:|---:|";

/// Numbers of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    target: String,
    runs: u64,
    seconds: u64,
    /// Edges of the program that were taken (`cov:`).
    edges: u64,
    /// Edges, each with the order of magnitude of its count (`ft:`).
    features: u64,
}

impl Report {
    pub(super) fn of(target: &str) -> Self {
        Self { target: target.to_owned(), ..Self::default() }
    }

    /// Adds the runs of another process to the same target. Both have taken mostly the same edges,
    /// so the larger number is kept.
    pub(super) fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.seconds = self.seconds.max(other.seconds);
        self.edges = self.edges.max(other.edges);
        self.features = self.features.max(other.features);
    }

    /// Reads one line: `#95 INITED cov: 8220 ft: 36535 ...`, and at the end `Done 23978 runs in 16
    /// second(s)`.
    pub(super) fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["Done", runs, "runs", "in", seconds, "second(s)"] = words[..] {
            (self.runs, self.seconds) = (number(runs), number(seconds));
        }
        if words.first().is_some_and(|word| word.starts_with('#')) {
            for pair in words.windows(2) {
                match pair[0] {
                    "cov:" => self.edges = number(pair[1]),
                    "ft:" => self.features = number(pair[1]),
                    _ => {}
                }
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, runs, seconds, edges, features } = self;
        let rate = runs / seconds.max(&1);
        write!(f, "| `{target}` | {rate} | {runs} | {edges} | {features} |")
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_last_numbers_of_a_run() {
        let mut report = Report::of("engine");
        let lines = [
            "INFO: seed corpus: files: 177 min: 1b max: 164b total: 7474b rss: 43Mb",
            "#183\tINITED cov: 8220 ft: 36535 corp: 177/7474b exec/s: 0 rss: 65Mb",
            "#2048\tpulse  cov: 8901 ft: 43002 corp: 700/60Kb lim: 164 exec/s: 1024 rss: 80Mb",
            "#23978\tDONE   cov: 9783 ft: 54329 corp: 2395/255Kb lim: 164 exec/s: 1498 rss: 105Mb",
            "Done 23978 runs in 16 second(s)",
        ];
        lines.iter().for_each(|line| report.read(line));
        assert_eq!(report.to_string(), "| `engine` | 1498 | 23978 | 9783 | 54329 |");
    }

    #[test]
    fn processes_add_their_runs_and_not_their_edges() {
        let mut report = Report::of("engine");
        for line in ["#1 DONE cov: 10 ft: 30", "#1 DONE cov: 9 ft: 31"] {
            let mut job = Report::of("engine");
            job.read(line);
            job.read("Done 100 runs in 10 second(s)");
            report.add(&job);
        }
        assert_eq!(report.to_string(), "| `engine` | 20 | 200 | 10 | 31 |");
    }

    #[test]
    fn a_run_without_output_has_a_row_of_zeros() {
        let mut report = Report::of("http");
        report.read("");
        report.read("# cov:");
        assert_eq!(report.to_string(), "| `http` | 0 | 0 | 0 | 0 |");
    }
}
