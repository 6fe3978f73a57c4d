//! Steps of a longer run: each passes, fails or is skipped with a reason, which is printed at the
//! end.
//!
//! The output of a step is passed through. The closing lines of cargo's test runner are read on the
//! way, so that a step that should run tests and ran none fails. Failures are repeated at the end
//! (`failures`), because a truncated log keeps its end.
//!
//! Not here: the list of steps (`suite`).

use std::io::{BufRead as _, BufReader, PipeReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::failures::{Failures, Tail};
use crate::source::root;

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything ran and passed.
    Passed(Tally),
    /// A check failed.
    Failed(String, Tally),
    /// The machine lacks a requirement of the step.
    Skipped(String),
}

/// Tests counted from the output of test runners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    /// Adds another step's tests.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads one line of output: cargo's closing line, or the message of a test that skipped
    /// itself.
    fn read(&mut self, line: &str) {
        if let Some(counts) = line.trim_start().strip_prefix("test result: ") {
            let count = |word: &str| -> usize {
                let found =
                    counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
                found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
            };
            self.passed += count("passed");
            self.failed += count("failed");
        }
        if line.contains("skipped: ") {
            self.skipped += 1;
        }
    }
}

/// Makes a command of the cargo that runs this program, in the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Whether `name --version` succeeds.
pub(crate) fn has_tool(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether a missing tool is a failure: on a CI machine no step may be skipped silently.
pub(crate) fn strict() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Skips the step, or fails it where skipping is not allowed.
pub(crate) fn missing(what: impl Into<String>) -> Outcome {
    let what = what.into();
    if strict() { Outcome::Failed(what, Tally::default()) } else { Outcome::Skipped(what) }
}

/// Runs a command without counting tests.
pub(crate) fn run(command: &mut Command) -> Result<Outcome> {
    let shown = announce(command);
    let status = command.status().with_context(|| format!("starting {shown}"))?;
    let tally = Tally::default();
    Ok(if status.success() {
        Outcome::Passed(tally)
    } else {
        Outcome::Failed(format!("{shown}: {status}"), tally)
    })
}

/// Runs a command with much output, passes each line to `read`, and prints the last lines if it
/// fails.
pub(crate) fn run_quietly(command: &mut Command, mut read: impl FnMut(&str)) -> Result<Outcome> {
    let shown = announce(command);
    let mut tail = Tail::default();
    let status = follow(command, &shown, Duration::MAX, |line| {
        read(&line);
        tail.push(line);
        Ok(())
    })?;
    let tally = Tally::default();
    Ok(if status.success() {
        println!("{}", tail.last());
        Outcome::Passed(tally)
    } else {
        Outcome::Failed(format!("{shown}: {status}\n{tail}"), tally)
    })
}

/// Runs a command that runs tests; fails if it ran none.
pub(crate) fn run_tests(command: &mut Command) -> Result<Outcome> {
    run_tests_within(Duration::MAX, command)
}

/// The same with a time limit: a command that exceeds it is killed with all its child processes.
pub(crate) fn run_tests_within(limit: Duration, command: &mut Command) -> Result<Outcome> {
    let shown = announce(command);
    let mut tally = Tally::default();
    let mut failures = Failures::default();
    let begin = Instant::now();
    let status = follow(command, &shown, limit, |line| {
        tally.read(&line);
        failures.read(&line);
        writeln!(std::io::stdout(), "{line}").context("writing test output")
    })?;
    Ok(if !status.success() {
        let late = if begin.elapsed() >= limit { ", took too long" } else { "" };
        Outcome::Failed(format!("{shown}: {status}{late}\n{failures}"), tally)
    } else if tally.passed == 0 {
        Outcome::Failed(format!("{shown}: ran no test"), tally)
    } else {
        Outcome::Passed(tally)
    })
}

/// Runs a command to its end and passes every line of its outputs to `take`. After `limit` the
/// command is killed.
fn follow(
    command: &mut Command,
    shown: &str,
    limit: Duration,
    mut take: impl FnMut(String) -> Result<()>,
) -> Result<ExitStatus> {
    let (reader, writer): (PipeReader, _) = std::io::pipe().context("making a pipe")?;
    command.stdout(writer.try_clone().context("making a pipe")?).stderr(writer);
    if limit != Duration::MAX {
        command.process_group(0);
    }
    let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
    let _watch = (limit != Duration::MAX).then(|| kill_after(limit, child.id()));
    // The command holds this process's copies of the pipe's write end; without dropping them the
    // reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.with_context(|| format!("reading from {shown}"))?;
        take(String::from_utf8_lossy(&line).into_owned())?;
    }
    child.wait().with_context(|| format!("waiting for {shown}"))
}

/// Kills a process group after `limit`, unless the returned value is dropped before.
fn kill_after(limit: Duration, group: u32) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        if receiver.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            let group = format!("-{group}");
            // A failure cannot be handled here.
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        }
    });
    sender
}

/// Prints the command as one could type it, and returns it.
fn announce(command: &Command) -> String {
    let mut shown = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shown.push_str(&format!("{}={value:?} ", name.to_string_lossy()));
        }
    }
    let program = command.get_program().to_string_lossy();
    shown.push_str(program.rsplit('/').next().unwrap_or_default());
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    println!("\n== {shown}");
    shown
}

/// Prints one line per step and the totals; returns `true` if none failed.
pub(crate) fn summarize(steps: &[(&str, Outcome, Duration)]) -> bool {
    let mut total = Tally::default();
    println!("\n== steps");
    for (name, outcome, took) in steps {
        let seconds = took.as_secs();
        match outcome {
            Outcome::Passed(tally) => {
                total.add(*tally);
                // A step without tests of its own (deny, a fuzz run) counts as one check.
                total.passed += usize::from(*tally == Tally::default());
                println!("{name}: ok ({seconds} s)");
            }
            Outcome::Failed(why, tally) => {
                total.add(*tally);
                total.failed += usize::from(tally.failed == 0);
                println!("{name}: FAILED ({seconds} s): {why}");
            }
            Outcome::Skipped(why) => {
                total.skipped += 1;
                println!("{name}: skipped: {why}");
            }
        }
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    steps.iter().all(|(_, outcome, _)| !matches!(outcome, Outcome::Failed(..)))
}

/// Runs one step and measures its time. An error of the step counts as its failure.
pub(crate) fn timed(step: impl FnOnce() -> Result<Outcome>) -> (Outcome, Duration) {
    let start = Instant::now();
    let outcome =
        step().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}"), Tally::default()));
    (outcome, start.elapsed())
}

/// Returns the hash of the commit that is checked out.
pub(crate) fn commit() -> Result<String> {
    let git = Command::new("git").current_dir(root()).args(["rev-parse", "HEAD"]).output();
    let git = git.context("git tells the commit")?;
    ensure!(git.status.success(), "git rev-parse HEAD: {}", String::from_utf8_lossy(&git.stderr));
    Ok(String::from_utf8(git.stdout)?)
}

/// Returns a number derived from the commit's hash.
pub(crate) fn number_of(commit: &str) -> usize {
    let head = commit.get(..8).and_then(|head| usize::from_str_radix(head, 16).ok());
    head.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        let mut tally = Tally::default();
        tally.read("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.read("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured");
        tally.read("skipped: ping: not root");
        tally.read("running 5 tests");
        assert_eq!(tally, Tally { passed: 15, failed: 2, skipped: 1 });
    }

    #[test]
    fn a_failed_step_fails_the_run() {
        let failed = Outcome::Failed("why".to_owned(), Tally::default());
        let took = Duration::ZERO;
        assert!(!summarize(&[("a", failed, took)]));
        assert!(summarize(&[("a", Outcome::Skipped("why".to_owned()), took)]));
    }

    #[test]
    fn tests_that_hang_are_killed_with_what_they_have_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo test result: ok. 1 passed; 0 failed; sleep 1000 & wait"]);
        let outcome = run_tests_within(Duration::from_millis(100), &mut command).expect("it runs");
        let Outcome::Failed(why, _) = outcome else { panic!("it was killed") };
        assert!(why.contains("took too long"), "{why}");
    }
}
