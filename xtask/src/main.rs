//! Project tasks, run as `cargo xtask <task>`.
//!
//! Place: outside the library; nothing depends on it. `layers` and `tidy` are also tests of this
//! crate, so that `cargo test` checks the rules, too.
//!
//! Not here: steps that need only cargo itself (fmt, clippy and doc are run by `.ci/run`).
#![forbid(unsafe_code)]

mod failures;
mod findings;
mod fuzz;
mod kernel_tests;
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
usage: cargo xtask <task>

  layers   checks the crate graph, the order of modules, and the names that inner crates may not use
  tidy     checks words, sizes, heads, links and reasons in every file of the repository
  rfcs     writes docs/rfcs.md from the citations in the code
  quick    the README's five-minute command: tests of every kind; lists the tests left out at the end
  test     the README's test command: workspace, loom, network namespaces, fuzz, deny
  outside-device  only the tests of tests/outside-device: a device that uses only the public API (its curl
           test needs root)
  loom     only the loom models of pkt and sync
  netns    only the tests against the Linux kernel (root, /dev/net/tun)
  matrix   all scripts, simulator tests and data-path tests in every pair of modes, all kernel tests
           in every row of values, and sanitize: takes about two hours. Estimates the remaining
           time, and continues after an interruption.
           QUIETLINE_MATRIX_ROWS=0,7-9 runs only these rows, QUIETLINE_MATRIX_SEEDS=n sets the seeds
           of each row
  perf     instructions of fixed work (valgrind), compared with docs/instructions.md;
           QUIETLINE_PERF=write writes that page
  fuzz     10 seconds of every fuzz target, one process per CPU; QUIETLINE_FUZZ_SECONDS,
           QUIETLINE_FUZZ_SEED and QUIETLINE_FUZZ_TARGET override
  fuzz-build  the fuzz targets with their corpora and dictionaries for a fuzzing service, in $OUT or
           target-fuzz/out
  sanitize tests of pkt, sync and tcp under the address sanitizer, of pkt and sync under valgrind's
           memcheck and Miri, the stress suite under the thread sanitizer; prints which are skipped
           and why
  deny     only licenses, bans, sources and advisories of the dependencies
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    if matches!(task.as_str(), "help" | "--help" | "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if let Some(argument) = arguments.next() {
        eprint!("xtask {task}: {argument:?}: no task takes arguments\n\n{HELP}");
        return ExitCode::from(2);
    }
    let outcome = match task.as_str() {
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
            eprintln!("xtask {task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a checker and prints its findings. Returns `Ok(false)` if there are any.
fn report(name: &str, check: fn() -> Result<findings::Findings>) -> Result<bool> {
    let findings = check()?;
    for finding in findings.iter() {
        println!("{finding}");
    }
    println!("{name}: {} findings", findings.len());
    Ok(findings.is_empty())
}
