//! Performance check: instructions per segment, round trip, connection and turn, compared with
//! docs/instructions.md.
//!
//! `tests/instructions` does fixed work in virtual time; callgrind counts the instructions of one
//! of its functions. A run repeats to the instruction and is not affected by a busy machine, so
//! that a limit of 2 % detects changes of the code alone. The program is built with the release
//! profile, in which the code of one crate is inlined into another.
//!
//! Not here: time and memory accesses (`benches/`, `bench-peers`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result, bail, ensure};

use crate::source::root;
use crate::steps::{self, Outcome, Tally, cargo, missing};

/// The page with the baseline.
const PAGE: &str = "docs/instructions.md";

/// Largest growth that passes, in percent.
const LIMIT_PERCENT: f64 = 2.0;

/// Tunables for glibc: valgrind counts every byte of `rep movsb` as an instruction; with these
/// settings glibc copies by vectors at every length.
const COPIES: &str = "glibc.cpu.x86_rep_movsb_threshold=100000000:\
    glibc.cpu.x86_rep_stosb_threshold=100000000:glibc.cpu.x86_non_temporal_threshold=100000000";

/// A row of the page.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    scenario: String,
    /// Instructions per unit.
    instructions: f64,
}

/// Counts every scenario. Fails if one exceeds the page by more than 2 %; QUIETLINE_PERF=write
/// writes the page instead.
pub(crate) fn run() -> Result<Outcome> {
    if !steps::has_tool("valgrind") {
        return Ok(missing("valgrind is not installed"));
    }
    if !has_avx2()? {
        // Otherwise checksums and copies would use SSE2.
        return Ok(missing("the counts are those of a CPU with AVX2"));
    }
    let write = match env::var("QUIETLINE_PERF").ok().as_deref() {
        None => false,
        Some("write") => true,
        Some(other) => bail!("QUIETLINE_PERF={other}: only `write` is known"),
    };
    let program = build()?;
    let counted = scenarios(&program)?
        .into_iter()
        .map(|scenario| count(&program, scenario))
        .collect::<Result<Vec<_>>>()?;
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("reading {PAGE}"))?;
    if write {
        fs::write(&page, with_rows(&text, &counted)?).with_context(|| format!("writing {PAGE}"))?;
        return Ok(Outcome::Passed(Tally::default()));
    }
    let slower = compare(&rows(&text)?, &counted)?;
    let passed = counted.len() - slower.len();
    let tally = Tally { passed, failed: slower.len(), skipped: 0 };
    if slower.is_empty() {
        return Ok(Outcome::Passed(tally));
    }
    let why = format!("more than {LIMIT_PERCENT} % over {PAGE}: {}", slower.join(", "));
    Ok(Outcome::Failed(why, tally))
}

fn has_avx2() -> Result<bool> {
    let cpus = fs::read_to_string("/proc/cpuinfo").context("reading the features of the CPU")?;
    Ok(cpus.lines().any(|line| line.starts_with("flags") && line.contains(" avx2 ")))
}

/// Builds the scenarios and returns the program.
fn build() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "-p", "instructions"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.context("building the scenarios")?;
    ensure!(output.status.success(), "building the scenarios: {}", output.status);
    let messages = String::from_utf8(output.stdout)?;
    let mut built = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let ours = message["target"]["name"] == "instructions";
        message["executable"].as_str().filter(|_| ours).map(PathBuf::from)
    });
    built.next_back().context("cargo built no program of the name")
}

fn scenarios(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program).arg("--list").output().context("listing the scenarios")?;
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// Runs one scenario under callgrind.
fn count(program: &Path, scenario: String) -> Result<Row> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg("--toggle-collect=*measured*").arg(program).arg(&scenario);
    let output = command.env("GLIBC_TUNABLES", COPIES).output().context("running valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{scenario}: {}\n{said}", output.status);
    let total = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, total) = total.with_context(|| format!("valgrind counted nothing:\n{said}"))?;
    let total: f64 = total.trim().parse().with_context(|| format!("not a count: {total}"))?;
    let units = String::from_utf8(output.stdout)?;
    let units: f64 = units.trim().parse().with_context(|| format!("not a number: {units}"))?;
    ensure!(units > 0.0 && total > 0.0, "{scenario}: {total} instructions for {units} units");
    Ok(Row { scenario, instructions: total / units })
}

/// Prints both columns. Returns the scenarios that exceed the limit.
fn compare(baseline: &[Row], counted: &[Row]) -> Result<Vec<String>> {
    let names = |rows: &[Row]| rows.iter().map(|row| row.scenario.clone()).collect::<Vec<_>>();
    ensure!(
        names(baseline) == names(counted),
        "{PAGE} has {:?}, the program {:?}: QUIETLINE_PERF=write cargo xtask perf",
        names(baseline),
        names(counted)
    );
    let mut slower = Vec::new();
    println!("{:<18} {:>10} {:>10} {:>8}", "instructions per", "baseline", "now", "change");
    for (before, now) in baseline.iter().zip(counted) {
        let percent = (now.instructions / before.instructions - 1.0) * 100.0;
        let Row { scenario, instructions } = now;
        println!(
            "{scenario:<18} {:>10.1} {instructions:>10.1} {percent:>+7.2}%",
            before.instructions
        );
        if percent > LIMIT_PERCENT {
            slower.push(format!("{scenario} {percent:+.2} %"));
        }
    }
    Ok(slower)
}

/// Returns the rows of the page's table: a scenario in backquotes, the unit, and the number.
fn rows(page: &str) -> Result<Vec<Row>> {
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[scenario, _, number] = &cells[..] else { bail!("{PAGE}: not three cells: {line}") };
        let instructions = number.parse().with_context(|| format!("{PAGE}: {line}"))?;
        Ok(Row { scenario: scenario.trim_matches('`').to_owned(), instructions })
    });
    rows.collect()
}

/// Returns the page with the numbers of `counted`.
fn with_rows(page: &str, counted: &[Row]) -> Result<String> {
    let mut text = String::new();
    let mut written = 0;
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let row = counted.iter().find(|row| line.starts_with(&format!("| `{}` |", row.scenario)));
        match (row, &cells[..]) {
            (Some(row), &[scenario, unit, _]) => {
                written += 1;
                text.push_str(&format!("| {scenario} | {unit} | {:.1} |", row.instructions));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    ensure!(written == counted.len(), "{PAGE} lacks a row of {counted:?}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| a | b | c |\n|---|---|---:|\n| `one` | unit | 100.0 |\n";

    fn row(instructions: f64) -> Row {
        Row { scenario: String::from("one"), instructions }
    }

    #[test]
    fn the_page_is_read_and_written() {
        assert_eq!(rows(TABLE).unwrap(), [row(100.0)]);
        let written = with_rows(TABLE, &[row(98.76)]).unwrap();
        assert_eq!(written, TABLE.replace("100.0", "98.8"));
        let missing = Row { scenario: String::from("two"), instructions: 1.0 };
        assert!(with_rows(TABLE, &[missing]).is_err());
    }

    #[test]
    fn two_percent_pass_and_more_fail() {
        assert!(compare(&[row(100.0)], &[row(101.9)]).unwrap().is_empty());
        assert_eq!(compare(&[row(100.0)], &[row(102.1)]).unwrap(), ["one +2.10 %"]);
        assert!(compare(&[row(100.0)], &[]).is_err());
    }

    #[test]
    fn the_page_of_the_repository_has_rows() {
        let page = fs::read_to_string(root().join(PAGE)).unwrap();
        assert!(rows(&page).unwrap().len() >= 7);
    }
}
