//! Results of a checker: a place and one sentence each.
//!
//! Not here: severity. A finding fails the build, or it is not a finding.

use std::fmt;

/// One broken rule at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// File, relative to the repository; empty for a finding about the whole repository.
    pub(crate) path: String,
    /// Line, from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    /// The broken rule, and its remedy.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path.as_str(), self.line) {
            ("", _) => write!(f, "{}", self.message),
            (path, 0) => write!(f, "{path}: {}", self.message),
            (path, line) => write!(f, "{path}:{line}: {}", self.message),
        }
    }
}

/// The findings of one checker, in the order of the files.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    /// Adds a finding.
    pub(crate) fn note(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.0.push(Finding { path: path.to_owned(), line, message: message.into() });
    }

    /// Returns all findings.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter()
    }

    /// Returns the number of findings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no findings.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails a test with the whole list.
    #[cfg(test)]
    pub(crate) fn assert_empty(&self) {
        let lines: Vec<String> = self.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
    }
}
