//! Exceptions that need a reason: `unsafe`, silenced lints, skipped tests.
//!
//! `unsafe` is allowed only in `UNSAFE_FOLDERS`, and each block or impl has a `SAFETY:` comment
//! right above it or on the line itself. clippy checks a part of this, but not the folders.
//!
//! Not here: whether the reason is true.

use crate::findings::Findings;
use crate::source::RustSource;

/// Folders where unsafe code is allowed: packet memory, concurrency, the interface to the operating
/// system, and functions called from C.
const UNSAFE_FOLDERS: &[&str] = &[
    "crates/pkt/",
    "crates/sync/",
    "crates/quietline/",
    "crates/capi/src/",
    "crates/packetdrill/src/interface",
    "crates/packetdrill/tests/",
    "tests/netns/src/bin/relay.rs",
    "tests/outside-device/",
];

/// Number of lines that may separate an `unsafe` from its reason: the statement that it is part of,
/// and attributes.
const REASON_DISTANCE: usize = 4;

/// Checks one file.
pub(crate) fn check(source: &RustSource, findings: &mut Findings) {
    let code: Vec<&str> = source.code.lines().collect();
    let comments: Vec<&str> = source.comments.lines().collect();
    for (index, line) in code.iter().enumerate() {
        check_unsafe(source, index, line, &comments, findings);
        let attribute = line.trim_start();
        if attribute.strip_prefix("#[").is_some_and(|rest| rest.starts_with("ignore")) {
            findings.note(&source.path, index + 1, "an ignored test protects nothing");
        }
        let silences = ["#[allow(", "#![allow(", "#[expect(", "#![expect("];
        let silenced = silences.iter().any(|opening| attribute.starts_with(opening));
        if silenced && !attribute_text(&code, index).contains("reason") {
            findings.note(&source.path, index + 1, "a silenced lint needs `reason = \"…\"`");
        }
    }
}

fn check_unsafe(
    source: &RustSource,
    index: usize,
    line: &str,
    comments: &[&str],
    findings: &mut Findings,
) {
    let is_unsafe = |what: &str| line.contains(&["unsafe", what].join(" "));
    let opens = is_unsafe("{") || is_unsafe("impl");
    let declares = is_unsafe("fn") || is_unsafe("trait");
    let is_allowed = UNSAFE_FOLDERS.iter().any(|folder| source.path.starts_with(folder));
    if (opens || declares) && !is_allowed {
        findings.note(&source.path, index + 1, "unsafe is allowed in pkt, sync and quietline only");
    }
    if opens && !has_reason(comments, index) {
        findings.note(&source.path, index + 1, "unsafe without a `SAFETY:` comment above it");
    }
}

/// Whether a `SAFETY:` comment is on the line, or above it within the distance. A comment block
/// counts as one line.
fn has_reason(comments: &[&str], index: usize) -> bool {
    let mut distance = 0;
    for above in (0..=index).rev() {
        let comment = comments.get(above).map_or("", |line| line.trim());
        if comment.contains("SAFETY:") || comment.contains("# Safety") {
            return true;
        }
        if comment.is_empty() {
            distance += 1;
        }
        if distance > REASON_DISTANCE {
            return false;
        }
    }
    false
}

/// Returns the text of the attribute that starts at `index`, up to the line that closes it.
fn attribute_text(code: &[&str], index: usize) -> String {
    let rest = &code[index..];
    let lines = rest.iter().position(|line| line.trim_end().ends_with(']')).unwrap_or(0);
    rest[..=lines].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_of;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        lines_of(check, path, text)
    }

    #[test]
    fn unsafe_needs_a_reason_and_an_allowed_folder() {
        let text =
            "// SAFETY: one\n// two\nlet a =\n    unsafe { b() };\n\n\n\n\n\nunsafe { c() };\n";
        assert_eq!(lines("crates/pkt/src/a.rs", text), [10]);
        assert_eq!(lines("crates/tcp/src/a.rs", text), [4, 10, 10]);
    }

    #[test]
    fn silenced_lints_need_a_reason() {
        let text = "#[allow(dead_code)]\n#[expect(\n    dead_code,\n    reason = \"shown\"\n)]\nfn a() {}\n";
        assert_eq!(lines("crates/pkt/src/a.rs", text), [1]);
    }
}
