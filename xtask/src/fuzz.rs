//! Fuzzing: some seconds of every target, and the build for a fuzzing service.
//!
//! Both build with the address sanitizer if there is a nightly toolchain, because it watches the
//! unsafe code of pkt and quietline; otherwise the step prints that it runs without.
//!
//! Not here: the requirements of a target (`fuzz/fuzz_targets`).

mod jobs;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use anyhow::{Context as _, Result, ensure};

use crate::source::root;
use crate::steps::{self, Outcome, Tally, missing};
use crate::suite::number;

/// Default seconds of a target, unless QUIETLINE_FUZZ_SECONDS is set.
const SECONDS: u32 = 10;

/// Targets that CI runs for every commit, because they cover the receive path; the others take
/// turns.
const ALWAYS: [&str; 2] = ["engine", "receive"];

/// A commit runs one of this many of the other targets.
const TURNS: usize = 3;

/// Largest number of processes that run one target at once; fewer if there are fewer CPUs.
const JOBS_MAX: usize = 8;

/// Options of cargo-fuzz for every build. Tracing the values of comparisons takes half of a run,
/// and finds nothing in inputs whose bytes are choices; text has dictionaries instead.
const BUILD_OPTIONS: [&str; 1] = ["--no-trace-compares"];

/// Options of libFuzzer. Its power schedule counts every feature of every run, which takes longer
/// than the run; the names of new functions would be looked up by another program. Without
/// `-reload=0` it would read its own directory again each second, so that two runs with one seed
/// would differ.
const LIBFUZZER_OPTIONS: [&str; 5] =
    ["-entropic=0", "-print_funcs=0", "-reload=0", "-rss_limit_mb=4096", "-timeout=20"];

/// Options of the address sanitizer. A run allocates and frees a small host, and the default
/// quarantine of 256 MB would give it new memory each time. Stack traces of allocations and a fill
/// pattern take a seventh of a run; a crash is replayed with the defaults, which show both.
const ASAN_OPTIONS: &str = "quarantine_size_mb=16:malloc_context_size=0:max_malloc_fill_size=0";

/// Compiler options beside those of cargo-fuzz, for builds with the address sanitizer: stack frames
/// stay on the stack. The borrow checker rules out references to the frame of a function that has
/// returned.
const SANITIZER_FLAGS: &str = "-Cllvm-args=-asan-use-after-return=never";

/// Compiler options of libFuzzer itself, which is C++ and would otherwise get the address sanitizer
/// with the target: its reading of the coverage counters takes half of a run with it.
const LIBFUZZER_FLAGS: &str = "-fno-sanitize=all";

/// Runs every target, or the one that QUIETLINE_FUZZ_TARGET names; with `CI=true` the part of the
/// commit.
pub(crate) fn run() -> Result<Outcome> {
    let targets = match targets()? {
        Ok(targets) => targets,
        Err(outcome) => return Ok(outcome),
    };
    let wanted = env::var("QUIETLINE_FUZZ_TARGET").ok();
    let targets: Vec<_> = match &wanted {
        Some(wanted) => targets.into_iter().filter(|target| target == wanted).collect(),
        None if steps::strict() => {
            let part = part_of(steps::number_of(&steps::commit()?), &targets);
            println!("\n== part of this commit: {part:?}; any other: QUIETLINE_FUZZ_TARGET=NAME");
            part
        }
        None => targets,
    };
    ensure!(!targets.is_empty(), "there is no fuzz target {wanted:?}");
    // Build first: otherwise the jobs would wait for each other's build.
    if let failed @ Outcome::Failed(..) = build_all()? {
        return Ok(failed);
    }
    let seed = seed()?;
    let seconds = number("QUIETLINE_FUZZ_SECONDS")?.unwrap_or(SECONDS);
    let jobs = thread::available_parallelism().map_or(1, |cpus| cpus.get().min(JOBS_MAX));
    let mut reports = Vec::new();
    for target in &targets {
        let (outcome, report) = jobs::run(target, seed, seconds, u32::try_from(jobs)?)?;
        if matches!(outcome, Outcome::Failed(..)) {
            return Ok(outcome);
        }
        reports.push(report);
    }
    println!("\n{jobs} processes\n{}", report::HEAD);
    reports.iter().for_each(|report| println!("{report}"));
    Ok(Outcome::Passed(Tally { passed: targets.len(), ..Tally::default() }))
}

/// Returns the names of the targets, or the reason why they cannot be built.
fn targets() -> Result<Result<Vec<String>, Outcome>> {
    let Ok(manifest) = fs::read_to_string(root().join("fuzz/Cargo.toml")) else {
        return Ok(Err(missing("there is no fuzz/")));
    };
    if !steps::has_tool("cargo-fuzz") {
        return Ok(Err(missing("cargo-fuzz is not installed")));
    }
    let names = names(&manifest);
    ensure!(!names.is_empty(), "fuzz/ has no target");
    if !has_nightly() {
        println!(
            "fuzz: there is no nightly toolchain, so the targets run without the address sanitizer"
        );
    }
    Ok(Ok(names))
}

/// Returns the targets that a commit runs: [`ALWAYS`], and every third of the others.
fn part_of(commit: usize, targets: &[String]) -> Vec<String> {
    let (always, others): (Vec<_>, Vec<_>) =
        targets.iter().cloned().partition(|target| ALWAYS.contains(&target.as_str()));
    let turn = others.into_iter().skip(commit % TURNS).step_by(TURNS);
    always.into_iter().chain(turn).collect()
}

/// Returns the names of the `[[bin]]` tables.
fn names(manifest: &str) -> Vec<String> {
    let bins = manifest.split("[[bin]]").skip(1);
    let names = bins.filter_map(|bin| {
        let line = bin.lines().find(|line| line.starts_with("name"))?;
        line.split('"').nth(1).map(str::to_owned)
    });
    names.collect()
}

/// Returns the seed of a run: QUIETLINE_FUZZ_SEED; with `CI=true` a seed of the commit, because a
/// failed build must fail again; otherwise a new one each time. The printed command contains it.
fn seed() -> Result<u32> {
    if let Some(seed) = number("QUIETLINE_FUZZ_SEED")? {
        return Ok(seed);
    }
    if steps::strict() {
        return seed_of(&steps::commit()?);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("reading the clock")?;
    Ok(since.subsec_nanos() + 1)
}

/// Returns the seed of a commit: not 0, for which libFuzzer chooses a random one.
fn seed_of(hash: &str) -> Result<u32> {
    let digits = hash.get(..7).context("CI=true runs in a git repository")?;
    let number = u32::from_str_radix(digits, 16).context("a hash in hexadecimal")?;
    Ok(number + 1)
}

/// Builds every target and puts it where a fuzzing service expects it: `TARGET`,
/// `TARGET_seed_corpus.zip`, `TARGET.dict` and `TARGET.options`, in `$OUT` or target-fuzz/out.
pub(crate) fn build() -> Result<Outcome> {
    let targets = match targets()? {
        Ok(targets) => targets,
        Err(outcome) => return Ok(outcome),
    };
    if let failed @ Outcome::Failed(..) = build_all()? {
        return Ok(failed);
    }
    let out = env::var_os("OUT").map_or_else(|| root().join("target-fuzz/out"), PathBuf::from);
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    for target in &targets {
        copy(&built(target), &out.join(target))?;
        if let Some(dictionary) = dictionary(target) {
            copy(&dictionary, &out.join(format!("{target}.dict")))?;
        }
        fs::write(out.join(format!("{target}.options")), options())?;
        let corpus = corpus(target);
        if corpus.is_dir() {
            let zip = out.join(format!("{target}_seed_corpus.zip"));
            let mut command = Command::new("python3");
            command.args(["-m", "zipfile", "-c"]).arg(zip).arg(corpus);
            if let failed @ Outcome::Failed(..) = steps::run(&mut command)? {
                return Ok(failed);
            }
        }
    }
    println!("{} fuzz targets: {}", targets.len(), out.display());
    Ok(Outcome::Passed(Tally { passed: targets.len(), ..Tally::default() }))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

/// Returns the options of a target's runner, in ClusterFuzz format.
fn options() -> String {
    let lines = LIBFUZZER_OPTIONS.map(|option| option.trim_start_matches('-').replace('=', " = "));
    let asan = ASAN_OPTIONS.split(':').map(|option| option.replace('=', " = "));
    format!("[libfuzzer]\n{}\n\n[asan]\n{}\n", lines.join("\n"), Vec::from_iter(asan).join("\n"))
}

/// Makes a cargo-fuzz command with the options of every build.
fn cargo_fuzz(subcommand: &str) -> Command {
    let mut command = Command::new("cargo-fuzz");
    command.current_dir(root()).args(["fuzz", subcommand]).args(BUILD_OPTIONS);
    if has_nightly() {
        command.env("RUSTUP_TOOLCHAIN", "nightly");
        let flags = env::var("RUSTFLAGS").unwrap_or_default();
        command.env("RUSTFLAGS", format!("{flags} {SANITIZER_FLAGS}").trim_start());
        command.env("CXXFLAGS", LIBFUZZER_FLAGS);
    } else {
        command.args(["--sanitizer", "none"]);
    }
    // cargo-fuzz starts cargo itself, which may be of another toolchain than this one.
    command.env_remove("CARGO");
    command
}

/// Builds every target.
fn build_all() -> Result<Outcome> {
    steps::run(&mut cargo_fuzz("build"))
}

/// Starts a build of every target on CPU time that no other process wants, as the tests against
/// the kernel leave while they wait for timers. Cargo's lock makes the later build in [`run`] wait
/// for this one, and the later build reports its errors. Does nothing without `CI=true`.
pub(crate) fn build_behind() -> Result<()> {
    if !steps::strict() || targets()?.is_err() {
        return Ok(());
    }
    let build = cargo_fuzz("build");
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"]).arg(build.get_program()).args(build.get_args());
    idle.current_dir(root()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    for (name, value) in build.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    idle.spawn().context("starting chrt")?;
    Ok(())
}

/// Returns the path where cargo-fuzz puts a target.
fn built(target: &str) -> PathBuf {
    let directory =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| "fuzz/target".into(), PathBuf::from);
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    root().join(directory).join(triple).join("release").join(target)
}

fn corpus(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(target)
}

fn dictionary(target: &str) -> Option<PathBuf> {
    let path = root().join("fuzz/dict").join(format!("{target}.dict"));
    path.is_file().then_some(path)
}

/// Whether rustup has a nightly toolchain.
pub(crate) fn has_nightly() -> bool {
    let output = Command::new("rustup").args(["toolchain", "list"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nightly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_commits_have_every_target() {
        let targets = ["engine", "headers", "http", "receive", "settings", "vnet_hdr"];
        let targets = targets.map(String::from);
        let mut seen: Vec<String> = Vec::new();
        for commit in 0..TURNS {
            let part = part_of(commit, &targets);
            assert!(ALWAYS.iter().all(|always| part.iter().any(|target| target == always)));
            seen.extend(part);
        }
        assert!(targets.iter().all(|target| seen.contains(target)));
    }

    #[test]
    fn fuzz_targets_are_read_from_the_manifest() {
        let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"a\"\npath = \"a.rs\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(names(manifest), ["a", "b"]);
    }

    #[test]
    fn every_target_has_a_corpus_and_every_corpus_and_dictionary_a_target() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        let names = names(&manifest);
        for name in &names {
            assert!(corpus(name).is_dir(), "{name}");
        }
        for directory in ["fuzz/corpus", "fuzz/dict"] {
            for entry in fs::read_dir(root().join(directory)).unwrap() {
                let file = PathBuf::from(entry.unwrap().file_name());
                let name = file.file_stem().unwrap().to_string_lossy().into_owned();
                assert!(names.contains(&name), "{directory}/{}", file.display());
            }
        }
    }

    #[test]
    fn a_commit_has_one_seed_and_it_is_not_zero() {
        assert_eq!(seed_of("0000000fff").unwrap(), 1);
        assert_eq!(seed_of("fffffff000").unwrap(), 0x1000_0000);
        assert!(seed_of("").is_err());
    }

    #[test]
    fn a_service_gets_the_options_of_local_runs() {
        let options = options();
        assert!(options.contains("[libfuzzer]\nentropic = 0\n"), "{options}");
        assert!(options.contains("[asan]\nquarantine_size_mb = 16\n"), "{options}");
    }
}
