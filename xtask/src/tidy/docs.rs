//! Documents that must agree with the code: module heads, links, the two data-path lines, the
//! functions, tests and files of docs/rfc9293.md and SECURITY.md.
//!
//! A function is written as `` `stack/src/receive/ip_input.rs::input` ``: a file below `crates/`,
//! or below the root, and a function in it. A file may stand alone.
//!
//! Not here: prose.

use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use super::shape;
use crate::findings::Findings;
use crate::source::{self, RustSource};

/// The two data-path lines at the top of the stack crate and of the documents.
const DATA_PATH: [&str; 2] = [
    "receive   device → gro → normal list → ip::input → early demux → tcp::input  → socket queue → app",
    "transmit  app → tcp::output → tsq → ip::output(dst) → neighbor → qdisc → gso → device → completion → recycle",
];

/// Files that contain the two lines.
const DATA_PATH_FILES: [&str; 3] =
    ["ARCHITECTURE.md", "docs/datapath.md", "crates/stack/src/lib.rs"];

/// Documents that name functions with their files: those that meet the requirements of RFC 9293,
/// and the tests of known attacks.
const FUNCTION_FILES: [&str; 2] = ["docs/rfc9293.md", "SECURITY.md"];

/// Checks that a source file begins with a module head. The tests of `foo.rs` in `foo/tests.rs`
/// need none.
pub(crate) fn check_head(source: &RustSource, findings: &mut Findings) {
    if source.path.ends_with("/tests.rs") {
        return;
    }
    let first = source.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let described = first.starts_with("//!") || first.starts_with("#!");
    if !described {
        findings.note(&source.path, 1, "no module head: describe the contents (`//! …`)");
    }
}

/// Checks that the two data-path lines are in each of their files.
pub(crate) fn check_lines(findings: &mut Findings) -> Result<()> {
    for path in DATA_PATH_FILES {
        let text = source::read(path).ok().flatten().unwrap_or_default();
        let words = one_line(&text);
        for line in DATA_PATH {
            if !words.contains(&one_line(line)) {
                findings.note(path, 0, format!("the data-path line is missing: {line}"));
            }
        }
    }
    Ok(())
}

/// The words of a text on one line, without the marks of documentation, because a source wraps the
/// data path at its column limit.
fn one_line(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "//!").collect::<Vec<_>>().join(" ")
}

/// Checks that every named function, file and packet script exists.
pub(crate) fn check_hops(sources: &[RustSource], findings: &mut Findings) -> Result<()> {
    for document in FUNCTION_FILES {
        check_functions(document, sources, findings);
    }
    Ok(())
}

fn check_functions(document: &str, sources: &[RustSource], findings: &mut Findings) {
    let text = source::read(document).ok().flatten().unwrap_or_default();
    let mut hops = 0;
    for (index, line) in text.lines().enumerate() {
        for (file, name) in line.split('`').filter_map(hop) {
            hops += 1;
            let Some(source) = sources.iter().find(|source| is_at(&source.path, file)) else {
                findings.note(document, index + 1, format!("{file} does not exist"));
                continue;
            };
            let bare = name.rsplit("::").next().unwrap_or(name);
            if !shape::functions(source).iter().any(|function| function.name == bare) {
                findings.note(document, index + 1, format!("{file} has no fn {bare}"));
            }
        }
        for file in line.split('`').filter(|code| code.contains('/') && code.ends_with(".rs")) {
            if !sources.iter().any(|source| is_at(&source.path, file)) {
                findings.note(document, index + 1, format!("{file} does not exist"));
            }
        }
        for script in line.split('`').filter(|code| code.ends_with(".pkt")) {
            if !source::root().join(script).exists() {
                findings.note(document, index + 1, format!("{script} does not exist"));
            }
        }
    }
    if hops == 0 {
        findings.note(document, 0, "names no function at all");
    }
}

/// Whether a document names the source at `path` as `file`.
fn is_at(path: &str, file: &str) -> bool {
    path.strip_prefix("crates/").unwrap_or(path) == file || path == file
}

/// Splits `stack/src/core.rs::Core::run` into file and function.
fn hop(code: &str) -> Option<(&str, &str)> {
    let (file, name) = code.split_once(".rs::")?;
    let file = &code[..file.len() + 3];
    (!code.contains(' ')).then_some((file, name))
}

/// Checks that relative links lead to existing files, and anchors to headings.
pub(crate) fn check_links(path: &str, text: &str, findings: &mut Findings) {
    for (index, line) in text.lines().enumerate() {
        for target in targets(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { PathBuf::from(path) } else { beside(path, file) };
            let full = source::root().join(&linked);
            if !full.exists() {
                findings.note(path, index + 1, format!("dead link: {target}"));
            } else if !anchor.is_empty() && !has_heading(&full, anchor) {
                findings.note(path, index + 1, format!("no heading for the anchor: {target}"));
            }
        }
    }
}

/// Returns the targets of inline links in a line: the text between `](` and `)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Resolves `link` relative to the directory of `path`.
fn beside(path: &str, link: &str) -> PathBuf {
    let mut joined = Path::new(path).parent().map_or_else(PathBuf::new, Path::to_path_buf);
    for component in Path::new(link).components() {
        match component {
            Component::ParentDir => {
                joined.pop();
            }
            Component::Normal(name) => joined.push(name),
            _ => {}
        }
    }
    joined
}

fn has_heading(file: &Path, anchor: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor)
}

/// Returns the anchor of a heading: lower case, words joined by dashes, without punctuation.
fn slug(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9293, appendix B: MUST-1 to MUST-69, SHLD-1 to SHLD-31, MAY-1 to MAY-18, REC-1.
    #[test]
    fn every_requirement_of_rfc_9293_has_its_row() {
        let text = source::read("docs/rfc9293.md").unwrap().unwrap();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let ids: Vec<_> = rows.flat_map(|(ids, _)| ids.split(", ")).collect();
        for (kind, last) in [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)] {
            for number in 1..=last {
                let id = format!("{kind}-{number}");
                assert_eq!(ids.iter().filter(|found| **found == id).count(), 1, "{id}");
            }
        }
    }

    #[test]
    fn a_file_is_named_from_the_crates_or_from_the_root() {
        assert!(is_at("crates/tcp/src/a.rs", "tcp/src/a.rs"));
        assert!(is_at("tests/netns/src/lib.rs", "tests/netns/src/lib.rs"));
        assert!(!is_at("crates/tcp/src/a.rs", "src/a.rs"));
    }

    #[test]
    fn hops_are_read() {
        assert_eq!(hop("stack/src/core.rs::Core::run"), Some(("stack/src/core.rs", "Core::run")));
        assert_eq!(hop("Core::run"), None);
        assert_eq!(hop("see a.rs::b c"), None);
    }

    #[test]
    fn dead_links_are_found() {
        let mut findings = Findings::default();
        let text =
            "[a](README.md) [b](../README.md)\n[c](none.md)\n[d](https://example.com/none)\n";
        check_links("docs/x.md", text, &mut findings);
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn headings_become_anchors() {
        assert_eq!(slug("## The data path: two lines"), "the-data-path-two-lines");
    }

    #[test]
    fn a_file_without_head_is_found() {
        let mut findings = Findings::default();
        check_head(&RustSource::new("a.rs", "use std::fmt;\n".to_owned()), &mut findings);
        check_head(&RustSource::new("b.rs", "//! Head.\n".to_owned()), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
