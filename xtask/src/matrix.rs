//! Suites in other modes than the default: rows of settings from the simulator's table, handed to tests in the environment.
//!
//! `cargo test` itself plays every packet script in every pairwise row and draws modes for every seed of the simulator, both in
//! one process each. What is left is the kernel: [`netns_in_modes`] is what CI has time for, [`everything`] what a night has.
//!
//! Not here: which modes there are (`sim::modes`).

use anyhow::{Result, ensure};

use crate::steps::{self, Outcome, Tally, cargo};
use crate::suite::{binary, prepare_netns};

/// Where tests look for the mode they are to run in.
const VARIABLE: &str = "QUIETLINE_SYSCTL";

/// The tests against the kernel that every row runs in CI: both ways, half-close, many at once, in seconds.
const SHORT: [&str; 2] = ["netcat", "many"];

/// Seeds of the simulator in each row of the night.
const NIGHT_SEEDS: &str = "2000";

/// CI: the whole suite against the kernel in as many rows as every value of every mode needs, and the quickest of it
/// in every pairwise row.
pub(crate) fn netns_in_modes() -> Result<Outcome> {
    if let Some(outcome) = prepare_netns()? {
        return Ok(outcome);
    }
    let mut sum = Sum::default();
    // The first row is the default, which `netns` has run.
    for row in &rows("each")?[1..] {
        sum.add(row, netns(row, &[])?);
    }
    for row in &rows("pairwise")?[1..] {
        sum.add(row, netns(row, &SHORT)?);
    }
    Ok(sum.outcome())
}

/// A night: every script, many seeds, the corpora of the fuzzers and the whole suite against the kernel in every pairwise row. Where
/// there is no kernel to be had it is all but that, and said so.
pub(crate) fn everything() -> Result<Outcome> {
    let mut sum = Sum::default();
    let no_kernel = prepare_netns()?;
    let has_kernel = no_kernel.is_none();
    let rows = rows("pairwise")?;
    for (number, row) in rows.iter().enumerate() {
        println!("\n== row {number} of {}: {VARIABLE}={row}", rows.len());
        let mut command = cargo();
        command.args(["test", "-p", "quietline-sim", "--no-fail-fast"]);
        for suite in ["scripts", "network", "hostile", "duel"] {
            command.args(["--test", suite]);
        }
        command.env(VARIABLE, row).env("SEEDS", NIGHT_SEEDS);
        sum.add(row, steps::run_tests(&mut command)?);
        if has_kernel {
            sum.add(row, netns(row, &[])?);
        }
    }
    match no_kernel {
        Some(Outcome::Skipped(why)) => println!("\n== matrix: without the kernel: {why}"),
        Some(failed) => sum.add("", failed),
        None => {}
    }
    Ok(sum.outcome())
}

/// The tests against the kernel in this mode: these binaries, or all.
fn netns(row: &str, binaries: &[&str]) -> Result<Outcome> {
    let mut command = cargo();
    command.args(["test", "-p", "netns-tests", "--no-fail-fast"]);
    for binary in binaries {
        command.args(["--test", binary]);
    }
    command.args(["--", "--test-threads=1", "--nocapture"]);
    steps::run_tests(command.env("QUIETLINE_BIN", binary()).env(VARIABLE, row))
}

/// Combinations of modes, as the variable takes them. The first is the default.
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
    failed: Vec<String>,
}

impl Sum {
    fn add(&mut self, row: &str, outcome: Outcome) {
        match outcome {
            Outcome::Passed(tally) => self.tally.add(tally),
            Outcome::Failed(why, tally) => {
                self.tally.add(tally);
                self.failed.push(format!("{VARIABLE}={row}\n{why}"));
            }
            Outcome::Skipped(why) => self.failed.push(why),
        }
    }

    fn outcome(self) -> Outcome {
        if self.failed.is_empty() {
            Outcome::Passed(self.tally)
        } else {
            Outcome::Failed(self.failed.join("\n"), self.tally)
        }
    }
}
