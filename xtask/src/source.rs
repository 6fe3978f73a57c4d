//! The files of the repository, and Rust text split into code and comments.
//!
//! `RustSource` blanks comments and literals in `code`, and everything else in `comments`. Both
//! keep their line numbers, so that a check finds a word in one and not in the other.
//!
//! Not here: parsing. Every check works on words and braces, which is enough for rules about names
//! and sizes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Returns every file that git tracks or would track, relative to the root, sorted.
pub(crate) fn files() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("running git ls-files")?;
    ensure!(output.status.success(), "git ls-files failed");
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files: Vec<String> =
        list.lines().filter(|name| root().join(name).is_file()).map(str::to_owned).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns the text of a file of the repository; `None` if it is not text.
pub(crate) fn read(path: &str) -> Result<Option<String>> {
    let bytes = std::fs::read(root().join(path)).with_context(|| format!("reading {path}"))?;
    Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
}

/// One Rust file, split into code and comments.
#[derive(Debug)]
pub(crate) struct RustSource {
    /// Relative path.
    pub(crate) path: String,
    /// The original text.
    pub(crate) text: String,
    /// The text with comments and literals replaced by spaces.
    pub(crate) code: String,
    /// The text with everything but comments replaced by spaces.
    pub(crate) comments: String,
}

impl RustSource {
    /// Splits `text`.
    pub(crate) fn new(path: &str, text: String) -> Self {
        let kinds = classify(text.as_bytes());
        let keep = |wanted: Kind| -> String {
            let bytes = text
                .bytes()
                .zip(&kinds)
                .map(|(byte, kind)| if byte == b'\n' || *kind == wanted { byte } else { b' ' })
                .collect();
            String::from_utf8(bytes).unwrap_or_default()
        };
        let (code, comments) = (keep(Kind::Code), keep(Kind::Comment));
        Self { path: path.to_owned(), text, code, comments }
    }

    /// Loads every Rust file of the repository.
    pub(crate) fn load_all() -> Result<Vec<Self>> {
        let mut sources = Vec::new();
        for path in files()?.iter().filter(|path| path.ends_with(".rs")) {
            if let Some(text) = read(path)? {
                sources.push(Self::new(path, text));
            }
        }
        Ok(sources)
    }

    /// Returns the number of lines with code.
    pub(crate) fn code_lines(&self) -> usize {
        self.code.lines().filter(|line| !line.trim().is_empty()).count()
    }

    /// Returns every identifier of the code with its line, keywords included.
    pub(crate) fn identifiers(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().flat_map(|(index, line)| {
            line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
                .map(move |word| (index + 1, word))
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Classifies every byte as code, comment or literal.
fn classify(text: &[u8]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; text.len()];
    let mut at = 0;
    while at < text.len() {
        let (end, kind) = token(text, at);
        kinds[at..end].fill(kind);
        at = end;
    }
    kinds
}

/// Returns the end and the kind of the token that starts at `at`.
fn token(text: &[u8], at: usize) -> (usize, Kind) {
    let rest = &text[at..];
    if rest.starts_with(b"//") {
        return (find(text, at, b'\n'), Kind::Comment);
    }
    if rest.starts_with(b"/*") {
        return (block_comment_end(text, at), Kind::Comment);
    }
    let word_before = at > 0 && is_word(text[at - 1]);
    match rest[0] {
        b'"' => (quoted_end(text, at + 1, b'"'), Kind::Literal),
        b'r' | b'b' | b'c' if !word_before => match literal_prefix(rest) {
            Some((prefix, 0, false)) => (quoted_end(text, at + prefix, b'"'), Kind::Literal),
            Some((prefix, hashes, _)) => (raw_end(text, at + prefix, hashes), Kind::Literal),
            None => (at + 1, Kind::Code),
        },
        b'\'' => match char_literal_end(text, at) {
            Some(end) => (end, Kind::Literal),
            None => (at + 1, Kind::Code),
        },
        _ => (at + 1, Kind::Code),
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the length up to and including the opening quote, the number of hashes, and whether it
/// is raw; for `r"`, `br#"`, `b"`, `c"` and similar.
fn literal_prefix(rest: &[u8]) -> Option<(usize, usize, bool)> {
    let letters = rest.iter().take(2).take_while(|byte| b"rbc".contains(byte)).count();
    let raw = rest[..letters].contains(&b'r');
    let hashes = rest[letters..].iter().take_while(|&&byte| byte == b'#').count();
    let quote = letters + hashes;
    let valid = rest.get(quote) == Some(&b'"') && (raw || hashes == 0);
    valid.then_some((quote + 1, hashes, raw))
}

fn find(text: &[u8], from: usize, byte: u8) -> usize {
    text[from..].iter().position(|&b| b == byte).map_or(text.len(), |offset| from + offset)
}

fn block_comment_end(text: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < text.len() {
        if text[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn quoted_end(text: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn raw_end(text: &[u8], from: usize, hashes: usize) -> usize {
    let mut at = from;
    while at < text.len() {
        let close = find(text, at, b'"');
        let after = text.len().min(close + 1);
        if text[after..].iter().take(hashes).filter(|&&byte| byte == b'#').count() == hashes {
            return text.len().min(after + hashes);
        }
        at = after;
    }
    text.len()
}

/// Returns the end of a character literal, or `None` if the quote begins a lifetime.
fn char_literal_end(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at + 1) == Some(&b'\\') {
        return Some(quoted_end(text, at + 1, b'\''));
    }
    // One character of up to four bytes, then the closing quote.
    let rest = text.get(at + 1..)?;
    let first = std::str::from_utf8(&rest[..rest.len().min(4)])
        .map_or_else(|error| error.valid_up_to(), str::len);
    let character = std::str::from_utf8(&rest[..first]).ok()?.chars().next()?;
    let close = at + 1 + character.len_utf8();
    (text.get(close) == Some(&b'\'')).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "let a = \"x // y\"; // later\nlet b = r#\"un\"safe\"#; /* a /* b */ c */ let c = 'x';\n\
                    fn f<'a>(s: &'a str) -> char { '\\'' }\n";
        let source = RustSource::new("a.rs", text.to_owned());
        let words: Vec<&str> = source.identifiers().map(|(_, word)| word).collect();
        let expected = "let a let b let c fn f a s a str char";
        assert_eq!(words.join(" "), expected);
        assert!(source.comments.contains("later"));
        assert!(!source.comments.contains("safe"));
        assert_eq!(source.code_lines(), 3);
    }

    #[test]
    fn lines_are_kept() {
        let text = "/*\n\n*/ fn late() {}\n\"multi\nline\"\nfn later() {}";
        let source = RustSource::new("a.rs", text.to_owned());
        let lines: Vec<(usize, &str)> =
            source.identifiers().filter(|(_, word)| word.starts_with("late")).collect();
        assert_eq!(lines, [(3, "late"), (6, "later")]);
    }

    #[test]
    fn non_ascii_characters_are_literals() {
        let source = RustSource::new("a.rs", "let a = '→'; let b = '…';".to_owned());
        assert_eq!(source.identifiers().count(), 4);
    }
}
