//! The README's test command: every kind of check, one step after the other.
//!
//! A step that cannot run here prints the reason and is counted as skipped; with `CI=true` it fails
//! instead. A failed step does not stop the later ones.
//!
//! Not here: benches, and other measurements.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::fuzz;
use crate::kernel_tests::KernelTests;
use crate::matrix;
use crate::perf;
use crate::source::root;
use crate::steps::{self, Outcome, cargo, missing};

/// A step: its name and its function.
pub(crate) type Step = (&'static str, fn() -> Result<Outcome>);

/// Tests of every crate except those against the kernel.
pub(crate) const WORKSPACE: Step = ("workspace tests", workspace);
/// Model checking of shared state.
pub(crate) const LOOM: Step = ("loom models", loom);
/// The stack against the Linux kernel.
pub(crate) const NETNS: Step = ("network namespaces", netns);
/// A device of a crate outside of the workspace: its conformance, and curl through it.
pub(crate) const OUTSIDE: Step = ("device outside of the workspace", outside_device);
/// The stack against the kernel in other modes than the default.
pub(crate) const MODES: Step = ("network namespaces in other modes", matrix::netns_in_modes);
/// Every suite in every pair of modes.
pub(crate) const MATRIX: Step = ("matrix", matrix::everything);
/// Instructions of fixed work, compared with a baseline.
pub(crate) const PERF: Step = ("perf", perf::run);
/// Some seconds of each fuzz target.
pub(crate) const FUZZ: Step = ("fuzz", fuzz::run);
/// The fuzz targets, built for a fuzzing service.
pub(crate) const FUZZ_BUILD: Step = ("fuzz-build", fuzz::build);
/// Licenses, bans and sources.
pub(crate) const DENY: Step = ("deny", deny);
/// Known vulnerabilities of the dependencies.
pub(crate) const ADVISORIES: Step = ("advisories", advisories);
/// All steps of `cargo xtask test`, cheapest first.
pub(crate) const ALL: [Step; 9] =
    [WORKSPACE, DENY, ADVISORIES, PERF, OUTSIDE, LOOM, NETNS, MODES, FUZZ];

/// Runs the steps and prints the summary; returns `Ok(true)` if none failed.
pub(crate) fn run(steps: &[Step]) -> Result<bool> {
    let mut results = Vec::new();
    for (name, step) in steps {
        let (outcome, took) = steps::timed(*step);
        if let Outcome::Skipped(why) = &outcome {
            println!("\n== {name}: skipped: {why}");
        }
        results.push((*name, outcome, took));
    }
    Ok(steps::summarize(&results))
}

fn workspace() -> Result<Outcome> {
    steps::run_tests(cargo().args([
        "test",
        "--workspace",
        "--exclude",
        "netns-tests",
        "--no-fail-fast",
    ]))
}

fn loom() -> Result<Outcome> {
    // A target directory of its own: the flag would otherwise rebuild every crate twice. Without
    // link-time optimization, which takes longer than the models.
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    steps::run_tests(
        cargo()
            .args(["test", "--profile", "ci", "--lib", "--tests"])
            .args(["-p", "quietline-sync", "-p", "quietline-pkt"])
            .env("RUSTFLAGS", format!("{flags} --cfg loom").trim_start())
            .env("CARGO_TARGET_DIR", root().join("target-loom")),
    )
}

fn outside_device() -> Result<Outcome> {
    // In the target directory of the workspace, whose builds of the same crates it shares.
    let manifest = ["test", "--locked", "--manifest-path", "tests/outside-device/Cargo.toml"];
    let uncaptured = ["--", "--nocapture"];
    let target = root().join("target");
    steps::run_tests(cargo().args(manifest).args(uncaptured).env("CARGO_TARGET_DIR", target))
}

fn netns() -> Result<Outcome> {
    if let Some(outcome) = prepare_netns()? {
        return Ok(outcome);
    }
    let tests = KernelTests::build()?;
    fuzz::build_behind()?;
    tests.run(&[], Duration::MAX, &[("QUIETLINE_BIN", binary().as_os_str())])
}

/// Builds the program for the tests against the kernel. Returns an outcome if they cannot run.
pub(crate) fn prepare_netns() -> Result<Option<Outcome>> {
    if let Some(outcome) = cannot_run_netns()? {
        return Ok(Some(outcome));
    }
    let build = ["build", "--release", "-p", "quietline-cli", "--bin", "quietline"];
    let built = steps::run(cargo().args(build))?;
    Ok(matches!(built, Outcome::Failed(..)).then_some(built))
}

/// Returns the reason why tests against the kernel cannot run on this machine.
pub(crate) fn cannot_run_netns() -> Result<Option<Outcome>> {
    if !is_root()? {
        return Ok(Some(missing("making a network namespace needs root")));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Ok(Some(missing("/dev/net/tun is missing")));
    }
    Ok(None)
}

/// Returns the path of the `quietline` for the tests against the kernel.
pub(crate) fn binary() -> PathBuf {
    built("release")
}

/// Returns the path of the `quietline` of a profile.
pub(crate) fn built(profile: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), Into::into);
    root().join::<PathBuf>(target).join(profile).join("quietline")
}

fn is_root() -> Result<bool> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("reading the process status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

/// Returns the number in an environment variable, if it is set.
pub(crate) fn number(name: &str) -> Result<Option<u32>> {
    let Some(text) = std::env::var_os(name) else { return Ok(None) };
    let text = text.to_string_lossy();
    text.parse().map(Some).with_context(|| format!("{name}={text} is no number"))
}

fn deny() -> Result<Outcome> {
    if !steps::has_tool("cargo-deny") {
        return Ok(missing("cargo-deny is not installed"));
    }
    let mut command = Command::new("cargo-deny");
    command.current_dir(root()).args(["--log-level", "error", "check"]);
    steps::run(command.args(["licenses", "bans", "sources"]))
}

/// Path of the clone of the RustSec database that `cargo deny fetch db` makes, below CARGO_HOME.
const ADVISORY_DB: &str = "advisory-dbs/advisory-db-3157b0e258782691";

/// Checks advisories. With a clone of the database this needs no network. Without one it is skipped
/// even with `CI=true`, because the CI machines cannot reach the host of the database.
fn advisories() -> Result<Outcome> {
    if !steps::has_tool("cargo-deny") {
        return Ok(missing("cargo-deny is not installed"));
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let found = home.map(|home| home.join(ADVISORY_DB)).filter(|clone| clone.is_dir());
    if found.is_none() {
        let why = "no clone of the RustSec database (`cargo deny fetch db`)";
        return Ok(Outcome::Skipped(String::from(why)));
    }
    let mut command = Command::new("cargo-deny");
    command.current_dir(root()).args(["--offline", "--log-level", "error", "check"]);
    steps::run(command.arg("advisories"))
}
