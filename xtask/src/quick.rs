//! The README's five-minute command: the most effective tests of every kind for their run time.
//!
//! It builds without whole-program optimization, and needs only the toolchain; as root it also runs
//! the kernel's programs across a tap. Its last lines list the tests left out, so that a passing
//! run is not mistaken for `cargo xtask test`.
//!
//! Not here: running and counting steps (`steps`), the whole suite (`suite`).

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::source::root;
use crate::steps::{self, Outcome, cargo};
use crate::suite::{self, Step};

/// Steps, in order.
const STEPS: [Step; 2] = [("unit and integration tests", tests), ("network namespaces", netns)];

/// Integration tests that run, in each crate that has one of the name: the examples, sockets and
/// their parity with `std::net`, those for tokio, the data path of two hosts, every packet script
/// in the default modes, and networks of the simulator.
const INTEGRATION: [&str; 11] = [
    "examples",
    "like_std",
    "network",
    "options",
    "scripts",
    "single_host",
    "sockets",
    "std_parity",
    "tokio_sockets",
    "transfer",
    "two_wires",
];

/// The one unit test that takes more than a minute.
const SLOW: &str = "the_send_buffer_grows_to_two_windows_and_not_beyond_its_limit";

/// Networks that the simulator draws; `cargo xtask test` draws 1,000, CI 10,000.
const SEEDS: &str = "100";

/// Tests against the kernel that run: both directions and half-close.
const KERNEL: &str = "netcat";

/// Further parts of `cargo xtask test`, apart from single integration tests.
const LEFT_OUT: &str = "\
documentation tests; the loom models; the tests against the kernel except nc and socat, and all of
them in other modes than the default; fuzzing; licenses; of the simulator all but 100 networks";

/// Runs the steps, and lists the tests left out.
pub(crate) fn run() -> Result<bool> {
    let passed = suite::run(&STEPS)?;
    println!("left out: {LEFT_OUT}; the unit test {SLOW}; the integration tests");
    for (package, names) in left_out()? {
        println!("  {package}: {}", names.join(" "));
    }
    println!("all of it: cargo xtask test");
    Ok(passed)
}

fn tests() -> Result<Outcome> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--exclude", "netns-tests", "--no-fail-fast"]);
    command.args(["--lib", "--bins"]);
    for name in INTEGRATION {
        command.args(["--test", name]);
    }
    command.args(["--", "--skip", SLOW]);
    steps::run_tests(command.env("SEEDS", SEEDS))
}

fn netns() -> Result<Outcome> {
    if let Some(outcome) = suite::cannot_run_netns()? {
        return Ok(outcome);
    }
    let built = steps::run(cargo().args(["build", "-p", "quietline-cli", "--bin", "quietline"]))?;
    if matches!(built, Outcome::Failed(..)) {
        return Ok(built);
    }
    let mut command = cargo();
    command.args(["test", "-p", "netns-tests", "--no-fail-fast", "--test", KERNEL]);
    command.args(["--", "--test-threads=1", "--nocapture"]);
    steps::run_tests(command.env("QUIETLINE_BIN", suite::built("debug")))
}

/// Returns the integration tests that do not run, by crate.
fn left_out() -> Result<Vec<(String, Vec<String>)>> {
    let mut found = Vec::new();
    for package in sorted(&root().join("crates"))? {
        let tests = root().join("crates").join(&package).join("tests");
        if !tests.is_dir() {
            continue;
        }
        let mut names = sorted(&tests)?;
        for name in &mut names {
            *name = name.trim_end_matches(".rs").to_owned();
        }
        names.retain(|name| !INTEGRATION.contains(&name.as_str()));
        if !names.is_empty() {
            found.push((package, names));
        }
    }
    Ok(found)
}

/// Returns the names in a directory, sorted.
fn sorted(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_integration_test_either_runs_or_is_named() {
        let mut all = 0;
        for package in sorted(&root().join("crates")).unwrap() {
            let tests = root().join("crates").join(&package).join("tests");
            all += if tests.is_dir() { sorted(&tests).unwrap().len() } else { 0 };
        }
        let named: usize = left_out().unwrap().iter().map(|(_, names)| names.len()).sum();
        assert_eq!(named + INTEGRATION.len(), all, "one of {INTEGRATION:?} does not exist");
        assert!(INTEGRATION.is_sorted());
        let slow = root().join("crates/tcp/src/tests/send_buffer.rs");
        assert!(fs::read_to_string(slow).unwrap().contains(&format!("fn {SLOW}(")));
        assert!(LEFT_OUT.contains(&format!("all but {SEEDS} networks")));
    }
}
