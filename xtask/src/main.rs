//! Project chores, run as `cargo xtask <chore>`.
//!
//! Place: beside the product; nothing depends on it. `layers` and `tidy` are also tests of this crate, so that
//! `cargo test` holds the rules whoever runs it.
//!
//! Not here: what needs no tool beyond cargo itself (fmt, clippy and doc are called directly by `.ci/run`).
#![forbid(unsafe_code)]

mod failures;
mod findings;
mod fuzz;
mod layers;
mod matrix;
mod module_order;
mod perf;
mod quick;
mod rfcs;
mod sanitize;
mod source;
mod steps;
mod suite;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;

const HELP: &str = "\
usage: cargo xtask <chore>

  layers   the crate graph, the order of modules, and the names inner crates may not use
  tidy     words, sizes, heads, links and reasons, over every file of the repository
  rfcs     writes docs/rfcs.md from the citations in the code
  quick    the README's five-minute command: tests of every kind, and at its end what it left out
  test     the README's test command: workspace, loom, network namespaces, fuzz, deny
  outside-device  the tests of tests/outside-device alone: a device that knows the public API only (its curl test wants root)
  loom     the loom models of pkt and sync alone
  netns    the tests against the Linux kernel alone (root, /dev/net/tun)
  matrix   scripts, simulator and kernel tests, whole, in every pair of modes, and sanitize: for the night. It says how
           long the rest takes, and after an interruption goes on where it stopped. QUIETLINE_MATRIX_ROWS=0,7-9 runs these
           rows only, QUIETLINE_MATRIX_SEEDS=n that many seeds in each
  perf     instructions of fixed work (valgrind), compared with docs/instructions.md; QUIETLINE_PERF=write writes that page
  fuzz     10 seconds of every fuzz target alone, one process per CPU; QUIETLINE_FUZZ_SECONDS, QUIETLINE_FUZZ_SEED and QUIETLINE_FUZZ_TARGET override
  fuzz-build  the fuzz targets with their corpora and dictionaries, in $OUT or target-fuzz/out, for a fuzzing service
  sanitize the tests of pkt, sync and tcp under the address sanitizer, those of pkt and sync under valgrind's memcheck and
           Miri, the stress suite under the thread sanitizer; says which it skips and why
  deny     licences, bans, sources and advisories of the dependencies alone
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next().unwrap_or_default();
    if matches!(chore.as_str(), "help" | "--help" | "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if let Some(argument) = arguments.next() {
        eprint!("xtask {chore}: {argument:?}: no chore takes arguments\n\n{HELP}");
        return ExitCode::from(2);
    }
    let outcome = match chore.as_str() {
        "layers" => report("layers", layers::check),
        "tidy" => report("tidy", tidy::check),
        "rfcs" => rfcs::write().map(|()| true),
        "quick" => quick::run(),
        "test" => suite::run(&suite::ALL),
        "loom" => suite::run(&[suite::LOOM]),
        "outside-device" => suite::run(&[suite::OUTSIDE]),
        "netns" => suite::run(&[suite::NETNS]),
        "matrix" => suite::run(&[suite::MATRIX]),
        "perf" => suite::run(&[suite::PERF]),
        "fuzz" => suite::run(&[suite::FUZZ]),
        "fuzz-build" => suite::run(&[suite::FUZZ_BUILD]),
        "sanitize" => suite::run(&sanitize::STEPS),
        "deny" => suite::run(&[suite::DENY, suite::ADVISORIES]),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask {chore}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a checker and prints what it found. `Ok(false)` means findings.
fn report(name: &str, check: fn() -> Result<findings::Findings>) -> Result<bool> {
    let findings = check()?;
    for finding in findings.iter() {
        println!("{finding}");
    }
    println!("{name}: {} findings", findings.len());
    Ok(findings.is_empty())
}
