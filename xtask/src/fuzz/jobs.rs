//! Runs one target in several processes at once: one for each CPU, each with its own seed and
//! corpus directory.
//!
//! Processes that shared a directory would read each other's inputs, and a seed would not repeat a
//! run.
//!
//! Not here: the list of targets and their build (`fuzz`).

use std::fs;
use std::thread;

use anyhow::{Context as _, Result};

use super::report::Report;
use super::{ASAN_OPTIONS, LIBFUZZER_OPTIONS, cargo_fuzz, corpus, dictionary};
use crate::source::root;
use crate::steps::{self, Outcome, Tally};

/// Runs a target for `seconds` with `jobs` processes, whose seeds are `seed` and the following
/// ones.
pub(super) fn run(target: &str, seed: u32, seconds: u32, jobs: u32) -> Result<(Outcome, Report)> {
    let ended: Vec<Result<(Outcome, Report)>> = thread::scope(|scope| {
        let started = (0..jobs)
            .map(|job| scope.spawn(move || run_job(target, seed.wrapping_add(job), seconds, job)));
        let started: Vec<_> = started.collect();
        started.into_iter().map(|job| job.join().expect("a job does not panic")).collect()
    });
    let mut total = Report::of(target);
    let mut outcome = Outcome::Passed(Tally::default());
    for job in ended {
        let (ended, report) = job?;
        total.add(&report);
        if matches!(ended, Outcome::Failed(..)) {
            outcome = ended;
        }
    }
    Ok((outcome, total))
}

fn run_job(target: &str, seed: u32, seconds: u32, job: u32) -> Result<(Outcome, Report)> {
    // The first corpus directory receives new inputs, the second is the committed one.
    let directory = if job == 0 { target.to_owned() } else { format!("{target}.{job}") };
    let found = root().join("target-fuzz/corpus").join(directory);
    fs::create_dir_all(&found).context("making a directory for the corpus")?;
    let mut command = cargo_fuzz("run");
    command.arg(target).arg(found);
    let committed = corpus(target);
    if committed.is_dir() {
        command.arg(committed);
    }
    command.arg("--").args(LIBFUZZER_OPTIONS);
    command.arg(format!("-max_total_time={seconds}"));
    // With 0 libFuzzer chooses a random seed.
    command.arg(format!("-seed={}", seed.max(1)));
    if let Some(dictionary) = dictionary(target) {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    let mut report = Report::of(target);
    let command = command.env("ASAN_OPTIONS", ASAN_OPTIONS);
    let outcome = steps::run_quietly(command, |line| report.read(line))?;
    Ok((outcome, report))
}
