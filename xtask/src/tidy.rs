//! Style checks: the rules of CONTRIBUTING.md that a tool can check.
//!
//! Each module below checks one kind of rule and appends to one list of findings. A rule that
//! words, braces and line counts cannot check is left to review.
//!
//! Not here: formatting (rustfmt), lints (clippy), the crate graph (`layers`).

mod docs;
mod named;
mod reasons;
mod shape;
mod words;

use anyhow::Result;

use crate::findings::Findings;
use crate::rfcs;
use crate::source::{self, RustSource};

/// Words of reminders, which belong in an issue. Assembled so that this file does not contain them.
const REMINDERS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Paths of one machine and hosts of registries, which are invalid elsewhere.
const MACHINE_PATHS: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/tmp", "/ql"),
    concat!("pypi", ".org"),
    concat!("static.crates", ".io"),
];

/// Checks every rule over every file.
pub(crate) fn check() -> Result<Findings> {
    let mut findings = Findings::default();
    let sources = RustSource::load_all()?;
    for source in &sources {
        words::check(source, &mut findings);
        shape::check(source, &mut findings);
        reasons::check(source, &mut findings);
        docs::check_head(source, &mut findings);
        check_reminders(&source.path, &source.text, &mut findings);
    }
    shape::check_ratchet(&sources, &mut findings);
    for path in source::files()? {
        let Some(text) = source::read(&path)? else { continue };
        check_machine_paths(&path, &text, &mut findings);
        if path.ends_with(".md") {
            check_reminders(&path, &text, &mut findings);
            docs::check_links(&path, &text, &mut findings);
        }
    }
    docs::check_lines(&mut findings)?;
    docs::check_hops(&sources, &mut findings)?;
    named::check(&sources, &mut findings)?;
    rfcs::check(&sources, &mut findings)?;
    Ok(findings)
}

/// Returns the lines in which a rule has findings.
#[cfg(test)]
fn lines_of(rule: fn(&RustSource, &mut Findings), path: &str, text: &str) -> Vec<usize> {
    let mut findings = Findings::default();
    rule(&RustSource::new(path, text.to_owned()), &mut findings);
    findings.iter().map(|finding| finding.line).collect()
}

fn check_reminders(path: &str, text: &str, findings: &mut Findings) {
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        if let Some(word) = words.find(|word| REMINDERS.contains(word)) {
            findings.note(path, index + 1, format!("{word}: file an issue instead"));
        }
    }
}

fn check_machine_paths(path: &str, text: &str, findings: &mut Findings) {
    if path.ends_with("Cargo.lock") {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = MACHINE_PATHS.iter().find(|name| line.contains(**name)) {
            findings.note(path, index + 1, format!("`{name}` exists on one machine only"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        check().expect("tidy runs").assert_empty();
    }

    #[test]
    fn reminders_are_words() {
        let mut findings = Findings::default();
        let text = format!("a {0}: b\n{0}L\nmethod(o)", REMINDERS[0]);
        check_reminders("a.md", &text, &mut findings);
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn machine_paths_are_found() {
        let mut findings = Findings::default();
        let text = format!("cd {}main\ncd work/main", MACHINE_PATHS[0]);
        check_machine_paths("a.md", &text, &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
