//! Functions and invariants that documents name: each exists, and each number in the sources is explained.
//!
//! docs/fast-paths.md and docs/invariants.md write a function as crate and name, `` `stack::goes_straight_up` ``, so that a
//! file that moves changes nothing in them. An invariant is a row of docs/invariants.md that begins with its number.
//!
//! Not here: hops with their files (`docs`), what a test shows.

use std::collections::BTreeSet;

use anyhow::Result;

use super::shape;
use crate::findings::Findings;
use crate::source::{self, RustSource};

/// Documents that name functions by crate.
const DOCUMENTS: [&str; 2] = ["docs/fast-paths.md", "docs/invariants.md"];

/// The page of the invariants.
const INVARIANTS: &str = "docs/invariants.md";

/// Families of numbered invariants.
const FAMILIES: [&str; 5] = [
    concat!("P", "Q"),
    concat!("TS", "Q"),
    concat!("GR", "O"),
    concat!("DS", "T"),
    concat!("S", "C"),
];

/// Every function that a document names exists in its crate, and every invariant that a source names has its row.
pub(crate) fn check(sources: &[RustSource], findings: &mut Findings) -> Result<()> {
    for document in DOCUMENTS {
        let text = source::read(document).ok().flatten().unwrap_or_default();
        check_functions(document, &text, sources, findings);
    }
    let page = source::read(INVARIANTS).ok().flatten().unwrap_or_default();
    let listed: BTreeSet<&str> = page.lines().filter_map(row).collect();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        check_invariants(source, &listed, findings);
    }
    Ok(())
}

fn check_functions(document: &str, text: &str, sources: &[RustSource], findings: &mut Findings) {
    let mut named = 0;
    for (index, line) in text.lines().enumerate() {
        for (krate, name) in line.split('`').filter_map(function) {
            named += 1;
            let prefix = format!("crates/{krate}/");
            let mut of_crate = sources.iter().filter(|source| source.path.starts_with(&prefix));
            let has = |source: &RustSource| {
                shape::functions(source).iter().any(|function| function.name == name)
            };
            // The name comes first: taking a file apart is dearer than looking for a word in it.
            if !of_crate.any(|source| source.code.contains(name) && has(source)) {
                findings.note(document, index + 1, format!("crate {krate} has no fn {name}"));
            }
        }
    }
    if named == 0 {
        findings.note(document, 0, "names no function at all");
    }
}

/// `stack::goes_straight_up`, or with modules and a type between, as crate and function.
fn function(code: &str) -> Option<(&str, &str)> {
    const CRATES: [&str; 6] = ["pkt", "sync", "tcp", "stack", "quietline", "sim"];
    let (krate, path) = code.split_once("::")?;
    let name = path.rsplit("::").next().unwrap_or(path);
    let is_name =
        |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (CRATES.contains(&krate) && is_name(name)).then_some((krate, name))
}

/// The number that a row of the page begins with.
fn row(line: &str) -> Option<&str> {
    let id = line.strip_prefix("| ")?.split(" |").next()?;
    is_invariant(id).then_some(id)
}

fn check_invariants(source: &RustSource, listed: &BTreeSet<&str>, findings: &mut Findings) {
    for (index, line) in source.text.lines().enumerate() {
        let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for id in words.filter(|word| is_invariant(word) && !listed.contains(word)) {
            findings.note(&source.path, index + 1, format!("{id} is not in {INVARIANTS}"));
        }
    }
}

/// A family's name and a number.
fn is_invariant(word: &str) -> bool {
    FAMILIES.iter().any(|family| {
        word.strip_prefix(family)
            .is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_read() {
        assert_eq!(function("stack::goes_straight_up"), Some(("stack", "goes_straight_up")));
        assert_eq!(function("tcp::Tcb::recv"), Some(("tcp", "recv")));
        assert_eq!(function("std::net"), None);
        assert_eq!(function("stack::Host"), None);
    }

    #[test]
    fn a_function_that_does_not_exist_is_found() {
        let sources = [RustSource::new("crates/tcp/src/a.rs", "fn here() {}\n".to_owned())];
        let mut findings = Findings::default();
        check_functions("docs/x.md", "`tcp::here`\n`tcp::gone`\n", &sources, &mut findings);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn an_invariant_without_a_row_is_found() {
        let family = FAMILIES[0];
        let text = format!("// {family}1 holds.\n// {family}77 does not.\n// SCRIPT2\n");
        let source = RustSource::new("crates/tcp/src/a.rs", text);
        let known = format!("{family}1");
        let mut findings = Findings::default();
        check_invariants(&source, &BTreeSet::from([known.as_str()]), &mut findings);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }
}
