//! Functions and invariants that documents name: each exists, and each number in the sources is
//! explained.
//!
//! These documents write a function as crate and name, `` `stack::may_bypass_gro` ``, so that
//! moving a file does not change them. A module between both is a folder or file of its path, a
//! type one that its file contains. An invariant is a row of docs/invariants.md that begins with
//! its number.
//!
//! Not here: functions with their files (`docs`), the contents of tests.

use std::collections::BTreeSet;

use anyhow::Result;

use super::shape;
use crate::findings::Findings;
use crate::source::{self, RustSource};

/// Documents that name functions by crate.
const DOCUMENTS: [&str; 4] =
    ["docs/datapath.md", "docs/fast-paths.md", "docs/invariants.md", "docs/mechanisms.md"];

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

/// Checks that every function named in a document exists in its crate, and that every invariant
/// named in a source has its row.
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
        let quoted = line.split('`').filter(|code| !code.contains(' '));
        // An indented line is a call of a tree; its first word is the function.
        let call = line.strip_prefix("    ").and_then(|line| line.split_whitespace().next());
        for name in quoted.chain(call).filter_map(Named::read) {
            named += 1;
            // The cheap word search comes first: splitting a file into functions takes longer.
            let is_there = |source: &RustSource| {
                name.may_be_in(source)
                    && shape::functions(source)
                        .iter()
                        .any(|function| function.name == name.function)
            };
            if !sources.iter().any(is_there) {
                findings.note(document, index + 1, format!("there is no fn {}", name.text));
            }
        }
    }
    if named == 0 {
        findings.note(document, 0, "names no function at all");
    }
}

/// A named function such as `stack::turn::turn`: a crate, modules or a type, and a function.
#[derive(Debug, PartialEq, Eq)]
struct Named<'t> {
    text: &'t str,
    krate: &'t str,
    between: Vec<&'t str>,
    function: &'t str,
}

impl<'t> Named<'t> {
    fn read(text: &'t str) -> Option<Self> {
        const CRATES: [&str; 6] = ["pkt", "sync", "tcp", "stack", "quietline", "sim"];
        let mut between: Vec<_> = text.split("::").collect();
        let function = between.pop()?;
        let krate = between.first().copied().filter(|krate| CRATES.contains(krate))?;
        between.remove(0);
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_function = !function.is_empty() && function.chars().all(is_name);
        is_function.then_some(Self { text, krate, between, function })
    }

    /// Whether the file is in the crate and the modules, and contains the words.
    fn may_be_in(&self, source: &RustSource) -> bool {
        let Some(path) = source.path.strip_prefix("crates/") else { return false };
        let mut parts = path.trim_end_matches(".rs").split('/');
        parts.next() == Some(self.krate)
            && source.code.contains(self.function)
            && self.between.iter().all(|word| {
                match word.starts_with(|first: char| first.is_ascii_uppercase()) {
                    true => source.code.contains(word),
                    false => parts.clone().any(|part| part == *word),
                }
            })
    }
}

/// Returns the number that a row of the page begins with.
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

/// Whether the word is a family's name and a number.
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
        let read =
            |text| Named::read(text).map(|named| (named.krate, named.between, named.function));
        assert_eq!(read("stack::deliver_ready"), Some(("stack", vec![], "deliver_ready")));
        assert_eq!(read("tcp::Tcb::recv"), Some(("tcp", vec!["Tcb"], "recv")));
        assert_eq!(read("std::mem::swap"), None);
        assert_eq!(read("stack::Host"), None);
        assert_eq!(read("stack"), None);
    }

    #[test]
    fn a_function_that_does_not_exist_is_found() {
        let text = "impl T {\n    fn here() {}\n}\n".to_owned();
        let sources = [RustSource::new("crates/tcp/src/a/b.rs", text)];
        let mut findings = Findings::default();
        let page = "`tcp::here`, `tcp::a::here`, `tcp::b::here`, `tcp::T::here`\n`tcp::gone`\n`tcp::c::here`\n\
                    `tcp::U::here`\n    tcp::b::here  called\n    tcp::gone\n";
        check_functions("docs/x.md", page, &sources, &mut findings);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 3, 4, 6]);
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
