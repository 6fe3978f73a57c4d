//! One word per concept: the banned words of the glossary, as identifiers.
//!
//! Snake-case identifiers are compared part by part (`old_skb` is found, `skbase` is not), names of
//! types as a whole or by their ending.
//!
//! Not here: words that are wrong in one meaning and right in another (`window`, `chunk`,
//! `backlog`); review finds those.

use crate::findings::Findings;
use crate::source::RustSource;

/// A banned part of a snake-case identifier, its replacement, and the folders where it is banned.
const PARTS: &[(&str, &str, &[&str])] = &[
    ("skb", "packet", ALL),
    ("mbuf", "packet", ALL),
    ("freelist", "recycle", ALL),
    ("pcb", "tcb", ALL),
    ("conn", "tcb or socket", &["crates/tcp/", "crates/stack/"]),
    ("lro", "gro", ALL),
    ("assembler", "reassembly", &["crates/tcp/", "crates/stack/"]),
    ("shard", "core", &["crates/stack/", "crates/quietline/"]),
    ("pdu", "segment, datagram or packet", ALL),
];

/// Banned whole identifiers.
const WHOLE: &[(&str, &str)] = &[
    ("free_list", "recycle"),
    ("route_cache", "dst"),
    ("arp_entry", "neighbor"),
    ("local_seq_no", "snd_nxt"),
    ("remote_seq_no", "rcv_nxt"),
    ("remote_last_ack", "snd_una"),
    ("SkBuff", "Packet"),
    ("Mbuf", "Packet"),
    ("Assembler", "reassembly"),
    ("Pcb", "Tcb"),
    ("TcpConn", "Tcb"),
];

/// Endings of type names that are banned.
const ENDINGS: &[(&str, &str)] = &[("Repr", "…Header"), ("Pdu", "…Header")];

const ALL: &[&str] = &["crates/"];

/// Macros of unfinished work or debugging.
const MACROS: &[&str] = &[concat!("db", "g!"), concat!("to", "do!"), concat!("unimpl", "emented!")];

/// Checks the identifiers of one file.
pub(crate) fn check(source: &RustSource, findings: &mut Findings) {
    if source.path.starts_with("crates/") {
        check_identifiers(source, findings);
    }
    for (index, line) in source.code.lines().enumerate() {
        if let Some(name) = MACROS.iter().find(|name| line.contains(**name)) {
            findings.note(&source.path, index + 1, format!("`{name}` does not belong in main"));
        }
    }
}

fn check_identifiers(source: &RustSource, findings: &mut Findings) {
    let mut previous = "";
    for (line, word) in source.identifiers() {
        if let Some(instead) = replacement(&source.path, word) {
            findings.note(&source.path, line, format!("`{word}`: use {instead}"));
        }
        // `get_mut` is std's name for exclusive access through a lock or cell.
        if previous == "fn" && word.starts_with("get_") && word != "get_mut" {
            findings.note(&source.path, line, format!("`{word}`: no get_ in names"));
        }
        previous = word;
    }
}

fn replacement(path: &str, word: &str) -> Option<&'static str> {
    if let Some((_, instead)) = WHOLE.iter().find(|(banned, _)| *banned == word) {
        return Some(instead);
    }
    if word.starts_with(char::is_uppercase) {
        let ending = ENDINGS.iter().find(|(ending, _)| word.ends_with(ending) && word != *ending);
        return ending.map(|(_, instead)| *instead);
    }
    let banned_here = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    PARTS
        .iter()
        .find(|(part, _, folders)| {
            banned_here(folders) && word.split('_').any(|piece| piece == *part)
        })
        .map(|(_, instead, _)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_of;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        lines_of(check, path, text)
    }

    #[test]
    fn banned_parts_are_found_in_their_folders() {
        let text = "let old_skb = 1;\nlet skbase = 1;\nlet conn_id = 1; // skb\n";
        assert_eq!(lines("crates/tcp/src/a.rs", text), [1, 3]);
        assert_eq!(lines("crates/cli/src/a.rs", text), [1]);
        assert_eq!(lines("tests/a.rs", text), [0; 0]);
    }

    #[test]
    fn type_endings_and_getters_are_found() {
        let text = "struct TcpRepr;\n#[repr(C)] struct A;\nfn get_one() {}\nmap.get_mut(1);\n";
        assert_eq!(lines("crates/stack/src/a.rs", text), [1, 3]);
    }
}
