//! Suites in other modes than the default: rows of settings from the simulator's table, passed to
//! tests in the environment.
//!
//! `cargo test` itself plays every packet script in every pairwise row and draws modes for every
//! seed of the simulator, each in one process. The tests against the kernel remain:
//! [`netns_in_modes`] runs the part that CI has time for, which changes with the commit;
//! [`everything`] runs all of them, in about two hours.
//!
//! Not here: the list of modes (`sim::modes`).

mod progress;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use self::progress::Progress;
use crate::kernel_tests::KernelTests;
use crate::sanitize;
use crate::source::root;
use crate::steps::{self, Outcome, Tally, cargo};
use crate::suite::{binary, number, prepare_netns};

/// Environment variable with the mode of the tests.
const VARIABLE: &str = "QUIETLINE_SYSCTL";

/// Tests against the kernel that a pairwise row runs in CI: they cover both directions, half-close
/// and many connections in seconds.
const SHORT: [&str; 2] = ["netcat", "many"];

/// Tests against the kernel that depend on the data path; a row of values runs them in CI. The
/// others test refusals, privileges, deadlines and ends of processes, and spend most of their time
/// waiting.
const DATA_PATH: [&str; 10] = [
    "af_packet",
    "big_tcp",
    "garbage",
    "impaired",
    "links",
    "many",
    "netcat",
    "prequeue",
    "queue",
    "steering",
];

/// Default number of the simulator's seeds in each row of the whole matrix.
const MATRIX_SEEDS: u32 = 2000;

/// Environment variable with another number of seeds.
const SEEDS: &str = "QUIETLINE_MATRIX_SEEDS";

/// Environment variable with the rows to run, such as `0,7-9`. Default: all.
const ROWS: &str = "QUIETLINE_MATRIX_ROWS";

/// Environment variable with the commit whose part CI runs, instead of the one checked out.
const COMMIT: &str = "QUIETLINE_MATRIX_COMMIT";

/// Time limit of a suite in one row: a suite that hangs must not prevent the other rows.
const LIMIT: Duration = Duration::from_secs(3600);

/// A commit runs one of this many pairwise rows.
const TURNS: usize = 6;

/// Runs the part of CI: the data-path tests in one row of values, or the quickest tests in every
/// sixth pairwise row. The hash of the commit selects the part and the rows;
/// QUIETLINE_MATRIX_COMMIT repeats another commit's part, and QUIETLINE_MATRIX_ROWS selects
/// pairwise rows.
pub(crate) fn netns_in_modes() -> Result<Outcome> {
    if let Some(outcome) = prepare_netns()? {
        return Ok(outcome);
    }
    let tests = KernelTests::build()?;
    let mut sum = Sum::default();
    let commit = std::env::var(COMMIT).map_or_else(|_| steps::commit(), Ok)?;
    let values = rows("each")?;
    let pairs = rows("pairwise")?;
    let part = match std::env::var(ROWS) {
        Ok(list) => Part::Pairs(chosen(&list, pairs.len())?),
        Err(_) => Part::of(&commit, values.len(), pairs.len()),
    };
    println!(
        "\n== part of {COMMIT}={}: {part:?}, with the tests of the data path for a value, otherwise the quickest; \
         the other rows and tests: cargo xtask matrix",
        commit.trim()
    );
    let numbers = match part {
        Part::Value(value) => {
            let row = &values[value];
            let name = format!("value row {value}, the data path");
            sum.run(&name, row, || netns(&tests, row, &DATA_PATH));
            Vec::new()
        }
        Part::Pairs(numbers) => numbers,
    };
    for number in numbers {
        let row = &pairs[number];
        sum.run(&format!("row {number}, the quickest"), row, || netns(&tests, row, &SHORT));
    }
    Ok(sum.outcome())
}

/// Rows in which a commit runs tests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// A row of values.
    Value(usize),
    /// Pairwise rows.
    Pairs(Vec<usize>),
}

impl Part {
    /// Returns the part of a commit, of `values` rows of values and `pairs` pairwise rows. The
    /// first row of each, the default, is excluded.
    fn of(commit: &str, values: usize, pairs: usize) -> Self {
        let (kind, number) = (steps::number_of(commit) % 2, steps::number_of(commit) / 2);
        if kind == 0 {
            return Self::Value(1 + number % (values - 1));
        }
        let turn = number % TURNS;
        Self::Pairs((1..pairs).filter(|row| row % TURNS == turn).collect())
    }
}

/// Runs every script, many seeds, the corpora of the fuzzers and the data-path tests against the
/// kernel in every pairwise row; the whole suite against the kernel in the default row and in every
/// row of values; the relay with 10 GB. If the tests against the kernel cannot run, the rest runs,
/// and the step reports it. A failed row does not stop the others; an interrupted matrix continues
/// where it stopped.
pub(crate) fn everything() -> Result<Outcome> {
    let seeds = number(SEEDS)?.unwrap_or(MATRIX_SEEDS).to_string();
    let pairs = rows("pairwise")?;
    let wanted = match std::env::var(ROWS) {
        Ok(list) => chosen(&list, pairs.len())?,
        Err(_) => (0..pairs.len()).collect(),
    };
    let no_kernel = prepare_netns()?;
    let values = if no_kernel.is_none() { rows("each")? } else { Vec::new() };
    let tests = if no_kernel.is_none() { Some(KernelTests::build()?) } else { None };
    let suites = if no_kernel.is_none() { 2 } else { 1 };
    let head = format!("{}, {seeds} seeds", steps::commit()?.trim());
    let progress = Progress::resume(
        root().join("target/matrix.txt"),
        head,
        wanted.len() * suites + values.len() + 1 + sanitize::STEPS.len(),
    );
    let mut sum = Sum { progress: Some(progress), ..Sum::default() };
    for number in wanted {
        let row = &pairs[number];
        println!("\n== row {number} of {}: {VARIABLE}={row}", pairs.len());
        sum.run(&format!("row {number}, simulator"), row, || simulated(row, &seeds));
        if let Some(tests) = &tests {
            sum.run(&format!("row {number}, kernel"), row, || netns(tests, row, &DATA_PATH));
        }
    }
    for (number, row) in values.iter().enumerate() {
        let Some(tests) = &tests else { break };
        println!("\n== value row {number} of {}: {VARIABLE}={row}", values.len());
        sum.run(&format!("value row {number}, kernel"), row, || netns(tests, row, &[]));
    }
    sum.run("relay of 10 GB", "", relay);
    if let Some(outcome) = no_kernel {
        sum.run("every row, kernel", "", || Ok(outcome));
    }
    for (name, step) in sanitize::STEPS {
        sum.run(name, "", step);
    }
    Ok(sum.outcome())
}

/// Returns the numbers in a list such as `0,7-9`, of `rows` rows.
fn chosen(list: &str, rows: usize) -> Result<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.trim().parse::<usize>().with_context(|| format!("{ROWS}={list}: {part:?}"))
        };
        let (first, last) = (number(first)?, number(last)?);
        ensure!(first <= last && last < rows, "{ROWS}={list}: there are rows 0 to {}", rows - 1);
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

/// Runs the suites that need no kernel in this mode.
fn simulated(row: &str, seeds: &str) -> Result<Outcome> {
    let mut command = cargo();
    command.args(["test", "--profile", "ci", "-p", "quietline-sim", "--no-fail-fast"]);
    for suite in ["scripts", "network", "hostile", "engine_pair"] {
        command.args(["--test", suite]);
    }
    steps::run_tests_within(LIMIT, command.env(VARIABLE, row).env("SEEDS", seeds))
}

/// Runs the tests of the relay, with ten times the bytes of `cargo test`.
fn relay() -> Result<Outcome> {
    let mut command = cargo();
    command.args(["test", "--profile", "ci", "-p", "quietline", "--test", "relay"]);
    steps::run_tests_within(LIMIT, command.env("QUIETLINE_RELAY_BYTES", "10000000000"))
}

/// Runs the tests against the kernel in this mode: these programs, or all.
fn netns(tests: &KernelTests, row: &str, names: &[&str]) -> Result<Outcome> {
    tests.run(names, LIMIT, &[("QUIETLINE_BIN", binary().as_os_str()), (VARIABLE, row.as_ref())])
}

/// Returns combinations of modes, in the format of the variable. The first is the default.
fn rows(kind: &str) -> Result<Vec<String>> {
    let mut command = cargo();
    command.args(["run", "--quiet", "-p", "quietline-sim", "--example", "modes", "--", kind]);
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(rows.len() > 1 && rows[0].is_empty(), "no rows of modes");
    Ok(rows)
}

/// Outcomes of many runs.
#[derive(Default)]
struct Sum {
    tally: Tally,
    /// A line for each run.
    lines: Vec<String>,
    failed: Vec<String>,
    /// Results of an earlier matrix, and the file for those of this one.
    progress: Option<Progress>,
}

impl Sum {
    /// Runs one suite in one row. If it cannot be run, that is its own failure, and later rows
    /// still run.
    fn run(&mut self, what: &str, row: &str, run: impl FnOnce() -> Result<Outcome>) {
        if let Some(result) = self.progress.as_ref().and_then(|progress| progress.result(what)) {
            self.lines.push(format!("{what}: {result} before"));
            return;
        }
        let (outcome, took) = steps::timed(run);
        let seconds = took.as_secs();
        match outcome {
            Outcome::Passed(tally) => {
                self.tally.add(tally);
                let result = format!("ok, {} tests ({seconds} s)", tally.passed);
                if let Some(progress) = &mut self.progress {
                    if let Err(error) = progress.keep(what, &result, took) {
                        println!("matrix: {error:#}");
                    }
                    println!("\n== {}", progress.describe());
                }
                self.lines.push(format!("{what}: {result}"));
            }
            Outcome::Failed(why, tally) => {
                self.tally.add(tally);
                self.lines.push(format!("{what}: FAILED ({seconds} s)"));
                self.failed.push(format!("{what}: {VARIABLE}={row}\n{why}"));
            }
            Outcome::Skipped(why) => {
                self.tally.skipped += 1;
                self.lines.push(format!("{what}: skipped: {why}"));
            }
        }
    }

    /// Prints the result of each run.
    fn outcome(self) -> Outcome {
        println!("\n== modes");
        self.lines.iter().for_each(|line| println!("{line}"));
        if self.failed.is_empty() {
            Outcome::Passed(self.tally)
        } else {
            let failed = format!("{} of {} runs", self.failed.len(), self.lines.len());
            Outcome::Failed(format!("{failed}\n{}", self.failed.join("\n")), self.tally)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_chosen_by_number_and_range() {
        assert_eq!(chosen("0,7-9", 10).unwrap(), [0, 7, 8, 9]);
        for wrong in ["", "10", "3-2", "a", "1-", "-1"] {
            assert!(chosen(wrong, 10).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_parts_of_commits_have_every_row_but_the_default() {
        let (mut values, mut pairs) = (BTreeSet::new(), Vec::new());
        for number in 0..2 * TURNS {
            match Part::of(&format!("{number:08x}a"), 5, 44) {
                Part::Value(row) => drop(values.insert(row)),
                Part::Pairs(rows) => pairs.extend(rows),
            }
        }
        pairs.sort_unstable();
        assert_eq!(pairs, (1..44).collect::<Vec<_>>());
        assert_eq!(values, BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(Part::of("", 5, 44), Part::of("00000000", 5, 44));
    }

    #[test]
    fn a_failed_row_is_named_and_stops_no_other() {
        let mut sum = Sum::default();
        let (failed, passed) =
            (Tally { failed: 2, ..Tally::default() }, Tally { passed: 3, ..Tally::default() });
        sum.run("row 1", "a=b", || Ok(Outcome::Failed("test x".to_owned(), failed)));
        sum.run("row 2", "c=d", || anyhow::bail!("no such file"));
        sum.run("row 3", "", || Ok(Outcome::Passed(passed)));
        let Outcome::Failed(why, tally) = sum.outcome() else { panic!("two rows failed") };
        assert!(why.starts_with("2 of 3 runs\nrow 1: QUIETLINE_SYSCTL=a=b\ntest x"), "{why}");
        assert!(why.contains("row 2: QUIETLINE_SYSCTL=c=d\nno such file"), "{why}");
        assert_eq!(tally, Tally { passed: 3, failed: 2, skipped: 0 });
    }

    #[test]
    fn skipped_suites_are_counted_and_do_not_fail() {
        let mut sum = Sum::default();
        sum.run("kernel", "", || Ok(Outcome::Skipped("not root".to_owned())));
        assert_eq!(sum.outcome(), Outcome::Passed(Tally { skipped: 1, ..Tally::default() }));
    }
}
