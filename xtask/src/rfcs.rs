//! docs/rfcs.md: the implemented sections of each RFC, from the citations in the code, and the
//! differences, from docs/rfcs.txt.
//!
//! A citation is written `RFC 9293 §3.10.7` in a comment of a library crate; further sections
//! follow after commas or `and`. `cargo xtask rfcs` writes the document; `tidy` reports missing and
//! obsolete RFCs and sections.
//!
//! Not here: whether the code conforms to the section. Tests show that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

use crate::findings::Findings;
use crate::source::{self, RustSource};

/// The generated document.
const DOCUMENT: &str = "docs/rfcs.md";

/// Titles and differences, one RFC per line: `number | title | difference and reason`.
const NOTES: &str = "docs/rfcs.txt";

const HEAD: &str = "\
# RFCs

What of which RFC the code does, and where. The sections and files are those that comments of the code cite; the last
column is written by hand in [rfcs.txt](rfcs.txt). `cargo xtask rfcs` writes this file and `cargo xtask tidy` fails when
it is stale. An RFC that is cited as a whole has no section here.

| RFC | title | sections, and the files that cite them | differs, and why |
|---|---|---|---|
";

/// Files that cite a section; the empty section is the RFC as a whole.
type Sections = BTreeMap<Section, BTreeSet<String>>;

/// A section, in the order of its numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Section(Vec<u32>, String);

impl Section {
    fn new(text: &str) -> Self {
        Self(text.split('.').map(|part| part.parse().unwrap_or(u32::MAX)).collect(), text.into())
    }
}

/// The handwritten part of an RFC's row.
#[derive(Debug)]
struct Note {
    title: String,
    differs: String,
}

/// Writes the document.
pub(crate) fn write() -> Result<()> {
    let text = render(&citations(&RustSource::load_all()?), &notes()?);
    std::fs::write(source::root().join(DOCUMENT), text)
        .with_context(|| format!("writing {DOCUMENT}"))
}

/// Reports citations missing in the document, and the reverse.
pub(crate) fn check(sources: &[RustSource], findings: &mut Findings) -> Result<()> {
    let cited = citations(sources);
    let notes = notes()?;
    for number in cited.keys().filter(|number| !notes.contains_key(number)) {
        findings.note(NOTES, 0, format!("RFC {number} is cited and has no line"));
    }
    let written = source::read(DOCUMENT).ok().flatten().unwrap_or_default();
    if names(&written) != names(&render(&cited, &notes)) {
        findings.note(DOCUMENT, 0, "stale: run `cargo xtask rfcs`");
    }
    Ok(())
}

/// Returns RFCs, titles, sections and differences of a document, without the files, which may move.
fn names(document: &str) -> Vec<String> {
    document.lines().map(without_links).collect()
}

fn without_links(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(" ([") {
        kept.push_str(before);
        rest = after.split_once("))").map_or("", |(_, rest)| rest);
    }
    kept + rest
}

fn notes() -> Result<BTreeMap<u32, Note>> {
    let text = source::read(NOTES)?.context("docs/rfcs.txt is text")?;
    let mut notes = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut parts = line.splitn(3, '|').map(str::trim);
        let number = parts.next().and_then(|number| number.parse().ok());
        let number: u32 = number.with_context(|| format!("{NOTES}: no number in {line:?}"))?;
        let (title, differs) = (parts.next(), parts.next());
        let title = title.with_context(|| format!("{NOTES}: no title in {line:?}"))?.to_owned();
        let note = Note { title, differs: differs.unwrap_or_default().to_owned() };
        ensure!(notes.insert(number, note).is_none(), "{NOTES}: RFC {number} twice");
    }
    Ok(notes)
}

/// Returns all citations in the comments of library crates.
fn citations(sources: &[RustSource]) -> BTreeMap<u32, Sections> {
    let mut cited: BTreeMap<u32, Sections> = BTreeMap::new();
    for source in sources {
        let product = source.path.starts_with("crates/") && source.path.contains("/src/");
        if !product || source.path.contains("/tests") {
            continue;
        }
        for line in source.comments.lines() {
            for (number, sections) in citations_of(line) {
                let entry = cited.entry(number).or_default();
                let sections = if sections.is_empty() { vec![String::new()] } else { sections };
                for section in sections {
                    entry.entry(Section::new(&section)).or_default().insert(source.path.clone());
                }
            }
        }
    }
    cited
}

/// Returns the citations of a line: `RFC 9293 §3.8.6.2.2 (silly window), §3.8.4 and RFC 1122`.
fn citations_of(line: &str) -> Vec<(u32, Vec<String>)> {
    let mut found = Vec::new();
    for part in line.split("RFC ").skip(1) {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let Ok(number) = part[..digits].parse() else { continue };
        // Another RFC ends the sections of this one.
        let sections = part[digits..].split('§').skip(1).map(section).filter(|s| !s.is_empty());
        found.push((number, sections.collect()));
    }
    found
}

/// Returns the section at the beginning of `text`: numbers and dots, or an appendix.
fn section(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_owned()
}

fn render(cited: &BTreeMap<u32, Sections>, notes: &BTreeMap<u32, Note>) -> String {
    let mut text = HEAD.to_owned();
    for (number, sections) in cited {
        let (title, differs) =
            notes.get(number).map_or(("", ""), |note| (note.title.as_str(), note.differs.as_str()));
        let list: Vec<String> = sections.iter().map(row).collect();
        let link = format!("[{number}](https://www.rfc-editor.org/rfc/rfc{number})");
        let _ = writeln!(text, "| {link} | {title} | {} | {differs} |", list.join(", "));
    }
    text
}

/// Formats a section with the files that cite it.
fn row((section, files): (&Section, &BTreeSet<String>)) -> String {
    let name = if section.1.is_empty() { "whole".to_owned() } else { format!("§{}", section.1) };
    let links: Vec<String> = files
        .iter()
        .map(|file| {
            let short = file.trim_start_matches("crates/").replacen("/src/", "/", 1);
            format!("[{short}](../{file})")
        })
        .collect();
    format!("{name} ({})", links.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_read() {
        let sections = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            citations_of("//! RFC 9293 §3.8.6.2.2 (silly), §3.8.4 and RFC 1122; RFC 8985 §6."),
            [(9293, sections(&["3.8.6.2.2", "3.8.4"])), (1122, vec![]), (8985, sections(&["6"]))]
        );
        assert_eq!(citations_of("no RFCs here, RFC x"), []);
    }

    #[test]
    fn sections_are_in_the_order_of_their_numbers() {
        assert!(Section::new("3.9") < Section::new("3.10"));
        assert!(Section::new("3") < Section::new("3.1"));
    }

    #[test]
    fn files_do_not_make_a_document_stale() {
        let line = "| x | t | §3 ([a](../a), [b](../b)), §4 ([c](../c)) | d |";
        assert_eq!(without_links(line), "| x | t | §3, §4 | d |");
    }
}
