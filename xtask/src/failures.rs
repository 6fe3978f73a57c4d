//! Failures of tests, kept until the end of a run.
//!
//! Counterpart: libtest's output. A captured test prints its output between "failures:" and the
//! names that follow; an uncaptured one prints it before the line with FAILED.
//!
//! Not here: counting (`steps`).

use std::collections::VecDeque;
use std::fmt;

/// Number of kept lines at the end of an output.
const TAIL_LINES: usize = 120;
/// Number of kept lines of all failures of a step.
const FAILURE_LINES_MAX: usize = 200;
/// Number of lines that are attributed to an uncaptured test.
const UNCAPTURED_LINES: usize = 12;

/// The last lines of an output.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
}

impl Tail {
    pub(crate) fn push(&mut self, line: String) {
        if self.lines.len() == TAIL_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Returns the last line that is not blank.
    pub(crate) fn last(&self) -> &str {
        self.lines.iter().rev().find(|line| !line.trim().is_empty()).map_or("", String::as_str)
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The failures of a step's tests, as their runner printed them.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    before: Tail,
    in_report: bool,
    lines: Vec<String>,
}

impl Failures {
    /// Reads one line of the runner's output.
    pub(crate) fn read(&mut self, line: &str) {
        if line.starts_with("error: test failed") || line.starts_with("error[") {
            self.keep(line.to_owned());
        } else if line.starts_with("test result: ") {
            self.in_report = false;
        } else if line == "failures:" {
            self.in_report = true;
        } else if self.in_report {
            self.keep(line.to_owned());
        } else if line.ends_with("FAILED") {
            let skip = self.before.lines.len().saturating_sub(UNCAPTURED_LINES);
            let own: Vec<_> = self.before.lines.drain(..).skip(skip).collect();
            own.into_iter().chain([line.to_owned()]).for_each(|line| self.keep(line));
        } else if line.ends_with("... ok") {
            self.before = Tail::default();
        } else {
            self.before.push(line.to_owned());
        }
    }

    fn keep(&mut self, line: String) {
        if self.lines.len() < FAILURE_LINES_MAX {
            self.lines.push(line);
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(output: &str) -> String {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        failures.to_string()
    }

    #[test]
    fn a_captured_failure_is_kept_with_its_output() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\npanicked at b\n\n\
                      failures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed\nnoise";
        let kept = failures(output);
        assert!(kept.contains("panicked at b") && kept.contains("---- b stdout"), "{kept}");
        assert!(!kept.contains("noise") && !kept.contains("test a"), "{kept}");
    }

    #[test]
    fn an_uncaptured_failure_is_kept_with_the_lines_before_it() {
        let output =
            "test a ... old\nok... ok\ntest b ... Error: the link outlived\nFAILED\ntest c ... ok";
        let kept = failures(output);
        assert!(kept.contains("outlived") && !kept.contains("old"), "{kept}");
    }

    #[test]
    fn a_long_output_keeps_its_end() {
        let mut tail = Tail::default();
        (0..1000).for_each(|number| tail.push(number.to_string()));
        tail.push(String::new());
        assert_eq!(tail.last(), "999");
        assert!(!tail.to_string().contains("500\n"));
    }
}
