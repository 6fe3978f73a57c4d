//! The tests of `tests/netns`: their build, and runs of all or some of them.
//!
//! They are built as a part of the workspace, not with `--package`: cargo then selects the same
//! features for every crate as in the workspace's tests and shares their builds.
//!
//! Not here: modes (`matrix`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::source::root;
use crate::steps::{self, Outcome, Tally, cargo};

/// Directory of the package, below the root.
const PACKAGE: &str = "tests/netns";

/// One program of tests.
#[derive(Debug, Clone)]
struct Program {
    /// Name of its source file, without the extension.
    name: String,
    path: PathBuf,
}

/// The programs of the tests against the kernel.
#[derive(Debug)]
pub(crate) struct KernelTests(Vec<Program>);

impl KernelTests {
    /// Builds every program.
    pub(crate) fn build() -> Result<Self> {
        let mut command = cargo();
        command.args(["test", "--workspace", "--no-run"]);
        command.args(["--message-format", "json-render-diagnostics"]);
        let names = names()?;
        for name in &names {
            command.args(["--test", name]);
        }
        let output = command.stderr(Stdio::inherit()).output().context("building the tests")?;
        ensure!(output.status.success(), "building the tests of {PACKAGE}: {}", output.status);
        let messages = String::from_utf8(output.stdout)?;
        let mut programs: Vec<_> = messages.lines().filter_map(program).collect();
        programs.sort_by(|left, right| left.name.cmp(&right.name));
        let built = programs.iter().map(|program| &program.name);
        ensure!(built.eq(&names), "{PACKAGE}: {programs:?} were built of {names:?}");
        Ok(Self(programs))
    }

    /// Runs the programs with these names, or all, each within `limit` and with `variables` in its
    /// environment. A failed program stops no other.
    pub(crate) fn run(
        &self,
        names: &[&str],
        limit: Duration,
        variables: &[(&str, &OsStr)],
    ) -> Result<Outcome> {
        for name in names {
            ensure!(self.0.iter().any(|program| program.name == *name), "{PACKAGE} has no {name}");
        }
        let mut tally = Tally::default();
        let mut failed = Vec::new();
        for Program { name, path } in &self.0 {
            if !names.is_empty() && !names.contains(&name.as_str()) {
                continue;
            }
            // One test at a time, because each needs both cores. Uncaptured, so that a test that
            // skips itself prints the reason.
            let mut command = Command::new(path);
            command.args(["--test-threads=1", "--nocapture"]).current_dir(root().join(PACKAGE));
            command.envs(variables.iter().copied());
            match steps::run_tests_within(limit, &mut command)? {
                Outcome::Passed(passed) => tally.add(passed),
                Outcome::Failed(why, counted) => {
                    tally.add(counted);
                    // A program that ended abruptly has counted nothing.
                    tally.failed += usize::from(counted.failed == 0);
                    failed.push(why);
                }
                Outcome::Skipped(why) => failed.push(why),
            }
        }
        Ok(if failed.is_empty() {
            Outcome::Passed(tally)
        } else {
            Outcome::Failed(failed.join("\n"), tally)
        })
    }
}

/// Returns the names of the programs, sorted.
fn names() -> Result<Vec<String>> {
    let directory = root().join(PACKAGE).join("tests");
    let mut names = Vec::new();
    for entry in directory.read_dir().with_context(|| format!("reading {}", directory.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name =
                path.file_stem().and_then(|name| name.to_str()).context("a name in UTF-8")?;
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the program that a message of cargo reports, if it is one of the package's tests.
fn program(message: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let target = &message["target"];
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let ours = manifest.parent()?.ends_with(PACKAGE) && target["kind"][0] == "test";
    let path = message["executable"].as_str().filter(|_| ours)?;
    Some(Program { name: target["name"].as_str()?.to_owned(), path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_the_package_is_found_in_a_message_of_cargo() {
        let message = |manifest: &str, kind: &str| {
            format!(
                r#"{{"manifest_path":"/x/{manifest}/Cargo.toml","executable":"/x/udp-1",
                "target":{{"kind":["{kind}"],"name":"udp"}}}}"#
            )
        };
        let found = program(&message("tests/netns", "test")).expect("one of the package");
        assert_eq!((found.name.as_str(), found.path), ("udp", PathBuf::from("/x/udp-1")));
        assert!(program(&message("crates/quietline", "test")).is_none());
        assert!(program(&message("tests/netns", "bin")).is_none());
        assert!(program("no JSON").is_none());
    }

    #[test]
    fn the_package_has_tests() {
        assert!(names().unwrap().contains(&"netcat".to_owned()));
    }
}
