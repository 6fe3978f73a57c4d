//! The README's test command: every kind of proof, one step after the other.
//!
//! A step that cannot run here says why and is counted as skipped; with `CI=true` it fails instead. A failed step does
//! not stop the later ones.
//!
//! Not here: benches, and anything that measures.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::matrix;
use crate::source::root;
use crate::steps::{self, Outcome, Tally, cargo, missing};

/// A step: its name and what runs it.
pub(crate) type Step = (&'static str, fn() -> Result<Outcome>);

/// Tests of every crate but the ones against the kernel.
pub(crate) const WORKSPACE: Step = ("workspace tests", workspace);
/// Model checking of what cores share.
pub(crate) const LOOM: Step = ("loom models", loom);
/// The stack against the Linux kernel.
pub(crate) const NETNS: Step = ("network namespaces", netns);
/// The stack against the kernel in other modes than the default.
pub(crate) const MODES: Step = ("network namespaces in other modes", matrix::netns_in_modes);
/// Every suite whole, in every pair of modes.
pub(crate) const MATRIX: Step = ("matrix", matrix::everything);
/// A minute of each fuzz target.
pub(crate) const FUZZ: Step = ("fuzz", fuzz);
/// Licences, bans and sources.
pub(crate) const DENY: Step = ("deny", deny);
/// All that `cargo xtask test` runs, cheapest first.
pub(crate) const ALL: [Step; 6] = [WORKSPACE, DENY, LOOM, NETNS, MODES, FUZZ];

/// Seconds a fuzz target runs unless QUIETLINE_FUZZ_SECONDS says otherwise.
const FUZZ_SECONDS: u32 = 60;

/// Seed of the fuzzer unless QUIETLINE_FUZZ_SEED says otherwise, 0 for another one each time: a build that fails must fail
/// again. Whoever looks for faults takes other seeds and more time.
const FUZZ_SEED: u32 = 1;

/// Runs the steps and prints the summary; `Ok(true)` when none failed.
pub(crate) fn run(steps: &[Step]) -> Result<bool> {
    let mut results = Vec::new();
    for (name, step) in steps {
        let (outcome, took) = steps::timed(*step);
        if let Outcome::Skipped(why) = &outcome {
            println!("\n== {name}: skipped: {why}");
        }
        results.push((*name, outcome, took));
    }
    Ok(steps::summarise(&results))
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
    // Its own target directory: the flag would otherwise rebuild every crate twice.
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    steps::run_tests(
        cargo()
            .args(["test", "--release", "--lib", "--tests"])
            .args(["-p", "quietline-sync", "-p", "quietline-pkt"])
            .env("RUSTFLAGS", format!("{flags} --cfg loom").trim_start())
            .env("CARGO_TARGET_DIR", root().join("target-loom")),
    )
}

fn netns() -> Result<Outcome> {
    if let Some(outcome) = prepare_netns()? {
        return Ok(outcome);
    }
    // One test at a time: each wants both cores. Uncaptured: a test that skips itself says why.
    let tests = ["test", "-p", "netns-tests", "--no-fail-fast"];
    let one_by_one = ["--", "--test-threads=1", "--nocapture"];
    steps::run_tests(cargo().args(tests).args(one_by_one).env("QUIETLINE_BIN", binary()))
}

/// Builds what the tests against the kernel need. An outcome when they cannot run.
pub(crate) fn prepare_netns() -> Result<Option<Outcome>> {
    if !is_root()? {
        return Ok(Some(missing("making a network namespace needs root")));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Ok(Some(missing("/dev/net/tun is missing")));
    }
    let build = ["build", "--release", "-p", "quietline-cli", "--bin", "quietline"];
    let built = steps::run(cargo().args(build))?;
    Ok(matches!(built, Outcome::Failed(..)).then_some(built))
}

/// The `quietline` that the tests against the kernel run.
pub(crate) fn binary() -> std::path::PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), Into::into);
    root().join::<std::path::PathBuf>(target).join("release/quietline")
}

fn is_root() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading our own status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

fn fuzz() -> Result<Outcome> {
    let Ok(manifest) = std::fs::read_to_string(root().join("fuzz/Cargo.toml")) else {
        return Ok(missing("there is no fuzz/"));
    };
    if !steps::has_tool("cargo-fuzz") {
        return Ok(missing("cargo-fuzz is not installed"));
    }
    let targets = fuzz_targets(&manifest);
    if targets.is_empty() {
        return Ok(Outcome::Failed("fuzz/ has no target".to_owned(), Tally::default()));
    }
    for target in &targets {
        if let failed @ Outcome::Failed(..) = fuzz_one(target)? {
            return Ok(failed);
        }
    }
    Ok(Outcome::Passed(Tally { passed: targets.len(), ..Tally::default() }))
}

/// The names of the `[[bin]]` tables.
fn fuzz_targets(manifest: &str) -> Vec<String> {
    let bins = manifest.split("[[bin]]").skip(1);
    let names = bins.filter_map(|bin| {
        let line = bin.lines().find(|line| line.starts_with("name"))?;
        line.split('"').nth(1).map(str::to_owned)
    });
    names.collect()
}

fn fuzz_one(target: &str) -> Result<Outcome> {
    // The first corpus directory takes what the run finds, the second is the committed one.
    let found = root().join("target-fuzz/corpus").join(target);
    std::fs::create_dir_all(&found).context("making a directory for the corpus")?;
    let committed = root().join("fuzz/corpus").join(target);
    let limit =
        format!("-max_total_time={}", number("QUIETLINE_FUZZ_SECONDS")?.unwrap_or(FUZZ_SECONDS));
    let seed = format!("-seed={}", number("QUIETLINE_FUZZ_SEED")?.unwrap_or(FUZZ_SEED));

    let mut command = Command::new("cargo-fuzz");
    command.current_dir(root()).args(["fuzz", "run"]);
    if has_nightly() {
        // The address sanitizer needs nightly; it watches over the unsafe code of pkt.
        command.env("RUSTUP_TOOLCHAIN", "nightly");
    } else {
        command.args(["--sanitizer", "none"]);
    }
    command.arg(target).arg(found);
    if committed.is_dir() {
        command.arg(committed);
    }
    // cargo-fuzz starts cargo itself; the one that runs us may be of another toolchain.
    command.env_remove("CARGO").args(["--", &limit, &seed, "-rss_limit_mb=4096", "-timeout=20"]);
    steps::run_quietly(&mut command)
}

/// The number in an environment variable, if it is set.
pub(crate) fn number(name: &str) -> Result<Option<u32>> {
    let Some(text) = std::env::var_os(name) else { return Ok(None) };
    let text = text.to_string_lossy();
    text.parse().map(Some).with_context(|| format!("{name}={text} is no number"))
}

fn has_nightly() -> bool {
    let output = Command::new("rustup").args(["toolchain", "list"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nightly"))
}

fn deny() -> Result<Outcome> {
    if !steps::has_tool("cargo-deny") {
        return Ok(missing("cargo-deny is not installed"));
    }
    let mut command = Command::new("cargo-deny");
    command.current_dir(root()).args(["--log-level", "error", "check"]);
    steps::run(command.args(["licenses", "bans", "sources"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_targets_are_read_from_the_manifest() {
        let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"a\"\npath = \"a.rs\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(fuzz_targets(manifest), ["a", "b"]);
    }
}
