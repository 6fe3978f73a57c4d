//! Comments: their width, words that hide the subject of a sentence, and openings of public
//! documentation.
//!
//! Plain technical English cannot be checked by words alone, but its most frequent failures can: a
//! comment without a subject, a pronoun for a person in place of a thread, and a public item
//! whose first words are a relative clause or a pronoun.
//!
//! Not here: the sense of a sentence; review keeps that.

use crate::findings::Findings;
use crate::source::RustSource;

/// Columns of a comment line, indentation included: the width of the code (`rustfmt.toml`).
const COLUMNS_MAX: usize = 100;

/// Words that stand for a subject which the sentence does not name.
const NAMELESS: &[&str] = &[
    "anybody",
    "everybody",
    "he",
    "him",
    "his",
    "nobody",
    "somebody",
    "whoever",
    "whom",
    "whomever",
];

/// First words of a documented item that do not say what the item is.
const OPENINGS: &[&str] = &[
    "He ",
    "It ",
    "It's ",
    "See the module head",
    "So ",
    "That ",
    "These ",
    "They ",
    "This ",
    "Those ",
    "What ",
    "Who ",
];

/// Checks the comments of one file.
pub(crate) fn check(source: &RustSource, findings: &mut Findings) {
    let mut in_doc = false;
    for (index, (comment, line)) in source.comments.lines().zip(source.text.lines()).enumerate() {
        let text = comment.trim();
        check_width(source, index + 1, text, line, findings);
        check_words(source, index + 1, text, findings);
        let documents = text.starts_with("/// ") || text.starts_with("//! ");
        if documents && !in_doc {
            check_opening(source, index + 1, &text[4..], findings);
        }
        in_doc = text.starts_with("///") || text.starts_with("//!");
    }
}

/// A line that holds a link or a row of a table may be wider: neither can be broken.
fn check_width(source: &RustSource, at: usize, text: &str, line: &str, findings: &mut Findings) {
    let columns = line.chars().count();
    let is_breakable =
        !text.contains("://") && !text.trim_start_matches(['/', '!', ' ']).starts_with('|');
    if !text.is_empty() && columns > COLUMNS_MAX && is_breakable {
        let message = format!("a comment of {columns} columns, at most {COLUMNS_MAX}");
        findings.note(&source.path, at, message);
    }
}

fn check_words(source: &RustSource, at: usize, text: &str, findings: &mut Findings) {
    let mut words = text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    if let Some(word) = words.find(|word| NAMELESS.contains(&word.as_str())) {
        findings.note(&source.path, at, format!("`{word}` in a comment: name the subject"));
    }
}

fn check_opening(source: &RustSource, at: usize, text: &str, findings: &mut Findings) {
    if let Some(opening) = OPENINGS.iter().find(|opening| text.starts_with(**opening)) {
        let opening = opening.trim_end();
        findings.note(
            &source.path,
            at,
            format!("documentation opens with `{opening}`: name the item"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_of;

    fn lines(text: &str) -> Vec<usize> {
        lines_of(check, "crates/tcp/src/a.rs", text)
    }

    #[test]
    fn wide_comments_are_found_and_links_and_tables_are_not() {
        let long = "x ".repeat(60);
        let text = format!("// {long}\n// https://{long}\n//! | {long}\nlet a = \"{long}\";\n");
        assert_eq!(lines(&text), [1]);
    }

    #[test]
    fn nameless_subjects_are_found_in_comments_only() {
        let text =
            "// Nobody looks.\nlet nobody = 1;\n// The header he read.\n// The thread looks.\n";
        assert_eq!(lines(text), [1, 3]);
    }

    #[test]
    fn openings_are_judged_at_the_first_line_of_a_block() {
        let text =
            "/// What is left.\nfn a() {}\n/// Bytes left.\n/// What follows is data.\nfn b() {}\n";
        assert_eq!(lines(text), [1]);
    }
}
