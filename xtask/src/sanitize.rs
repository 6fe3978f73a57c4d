//! Tests under tools that check memory and threads: the address sanitizer, valgrind's memcheck,
//! Miri, the thread sanitizer.
//!
//! Each tool is a step of its own, which prints the reason if it is skipped. No test runs without
//! its tool under the tool's name.
//!
//! Not here: the fuzz targets, which run under the address sanitizer as well (`fuzz`), and the
//! models of shared state (`suite::LOOM`).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{env, str};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::fuzz::has_nightly;
use crate::source::root;
use crate::steps::{self, Outcome, Tally, cargo, missing};
use crate::suite::Step;

/// The steps, in order.
pub(crate) const STEPS: [Step; 4] = [
    ("address sanitizer: pkt, sync, tcp", asan),
    ("memcheck: pkt, sync", memcheck),
    ("Miri: pkt, sync", miri),
    ("thread sanitizer: stress suite", tsan),
];

/// Crates whose unsafe code needs no device and no kernel.
const UNSAFE_CRATES: [&str; 2] = ["quietline-pkt", "quietline-sync"];

/// Time limit: a suite that exceeds it hangs.
const LIMIT: Duration = Duration::from_secs(1800);

/// Cases of each property under tools that slow the code down some fifty times.
const FEW_CASES: (&str, &str) = ("PROPTEST_CASES", "8");

/// The test that leaks on purpose: packets that outlive their domain keep its memory. Memcheck runs
/// it.
const LEAKS: &str = "packets_stay_valid_after_their_domain_is_dropped";

fn asan() -> Result<Outcome> {
    if !has_nightly() {
        return Ok(missing("the address sanitizer needs a nightly toolchain"));
    }
    let mut command = nightly("target-asan");
    command.args(["test", "--lib", "--tests", "--no-fail-fast", "--target", &triple()]);
    command.args(["-p", "quietline-tcp"]);
    for package in UNSAFE_CRATES {
        command.args(["-p", package]);
    }
    command.args(["--", "--skip", LEAKS]);
    steps::run_tests_within(LIMIT, command.env("RUSTFLAGS", "-Zsanitizer=address"))
}

fn memcheck() -> Result<Outcome> {
    if !steps::has_tool("valgrind") {
        return Ok(missing("valgrind is not installed"));
    }
    let mut tally = Tally::default();
    for binary in unit_tests()? {
        let mut command = Command::new("valgrind");
        // Otherwise spinning threads would prevent the thread that they wait for from running.
        command.args(["--quiet", "--error-exitcode=9", "--fair-sched=yes", "--num-callers=20"]);
        command.arg(binary).arg("--test-threads=1").env(FEW_CASES.0, FEW_CASES.1);
        match steps::run_tests_within(LIMIT, command.current_dir(root()))? {
            Outcome::Passed(passed) => tally.add(passed),
            other => return Ok(other),
        }
    }
    Ok(Outcome::Passed(tally))
}

/// Builds the unit tests of the crates, with optimization, because valgrind is slow.
fn unit_tests() -> Result<Vec<PathBuf>> {
    let mut command = cargo();
    command.args(["test", "--profile", "ci", "--lib", "--no-run", "--message-format=json"]);
    for package in UNSAFE_CRATES {
        command.args(["-p", package]);
    }
    let output = command.output().context("building the unit tests")?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = executables(str::from_utf8(&output.stdout)?);
    anyhow::ensure!(found.len() == UNSAFE_CRATES.len(), "unit tests: {found:?}");
    Ok(found)
}

/// Returns the test programs in cargo's messages.
fn executables(messages: &str) -> Vec<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let paths = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    paths.collect()
}

/// Runs Miri, which checks each access against the aliasing rules. The CI machines do not have it.
fn miri() -> Result<Outcome> {
    let Some(sysroot) = nightly_sysroot() else {
        return Ok(Outcome::Skipped(String::from("there is no nightly toolchain")));
    };
    if !sysroot.join("bin/miri").exists() || !has_source(&sysroot) {
        let why = "the nightly toolchain has no miri and rust-src (`rustup +nightly component add miri rust-src`)";
        return Ok(Outcome::Skipped(String::from(why)));
    }
    let mut command = nightly("target-miri");
    command.args(["miri", "test", "--lib", "--no-fail-fast"]);
    for package in UNSAFE_CRATES {
        command.args(["-p", package]);
    }
    // Address arithmetic finds a page's header; properties keep their failures in files.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance");
    steps::run_tests_within(LIMIT, command.env(FEW_CASES.0, FEW_CASES.1))
}

fn tsan() -> Result<Outcome> {
    let Some(sysroot) = nightly_sysroot() else {
        return Ok(Outcome::Skipped(String::from("there is no nightly toolchain")));
    };
    if !has_source(&sysroot) {
        // The locks and channels of the standard library must be instrumented too; otherwise each
        // is reported.
        let why =
            "the nightly toolchain has no rust-src (`rustup +nightly component add rust-src`)";
        return Ok(Outcome::Skipped(String::from(why)));
    }
    let mut command = nightly("target-tsan");
    command.args(["test", "-Zbuild-std", "--target", &triple(), "--no-fail-fast"]);
    command.args(["-p", "quietline", "--test", "stress"]);
    steps::run_tests_within(LIMIT, command.env("RUSTFLAGS", "-Zsanitizer=thread"))
}

/// Makes a command of the nightly cargo with its own target directory: its flags would otherwise
/// rebuild every crate.
fn nightly(target_directory: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root()).env("RUSTUP_TOOLCHAIN", "nightly").env_remove("CARGO");
    command.env("CARGO_TARGET_DIR", root().join(target_directory));
    command
}

fn nightly_sysroot() -> Option<PathBuf> {
    let mut command = Command::new("rustc");
    let output = command.env("RUSTUP_TOOLCHAIN", "nightly").args(["--print", "sysroot"]).output();
    let output = output.ok().filter(|output| output.status.success() && has_nightly())?;
    Some(PathBuf::from(str::from_utf8(&output.stdout).ok()?.trim()))
}

fn has_source(sysroot: &std::path::Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library").is_dir()
}

/// The explicit target keeps the flags away from build scripts and macros.
fn triple() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_that_leaks_exists() {
        let tests = std::fs::read_to_string(root().join("crates/pkt/src/pool/tests.rs")).unwrap();
        assert!(tests.contains(&format!("fn {LEAKS}()")));
    }

    #[test]
    fn test_programs_are_found_among_the_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\nno message\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/a/pkt-1\"}\n{\"reason\":\"build-finished\"}\n";
        assert_eq!(executables(messages), [PathBuf::from("/a/pkt-1")]);
    }
}
