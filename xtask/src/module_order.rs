//! The order of the modules inside a crate: a module imports only modules below it.
//!
//! Place: beside `layers`, which checks the order of the crates. ARCHITECTURE.md describes the
//! modules of each table.
//!
//! A table lists the top-level modules of one crate, lowest first. Inside a module every file may
//! import every other. `lib.rs` is above all of them, so that a name which `lib.rs` re-exports is
//! imported by its own path. Tests are excluded: they may import everything.
//!
//! Paths are read word by word: `crate::…` in `use` trees, in expressions, types and visibilities,
//! and `super::…` that leaves the module of its file. Words do not reveal method calls: a module
//! above may add methods to a type from below (`impl Tcb`), and a call of such a method names no
//! module.
//!
//! Not here: the order of files inside a module, the crate graph (`layers`).

use std::collections::BTreeSet;

use crate::findings::Findings;
use crate::source::RustSource;

/// The modules of one crate.
struct Order {
    /// Folder of `lib.rs`, with its slash.
    sources: &'static str,
    /// Top-level modules, lowest first.
    modules: &'static [&'static str],
    /// Upward imports that stand until code is cut there: the module below, the module above.
    tolerated: &'static [(&'static str, &'static str)],
}

/// One table per crate.
const ORDERS: &[Order] = &[
    Order { sources: "crates/tcp/src/", modules: TCP, tolerated: &[] },
    Order { sources: "crates/stack/src/", modules: STACK, tolerated: STACK_TOLERATED },
];

/// crates/tcp: formats, then the state of one connection, then the steps that change it.
const TCP: &[&str] = &[
    // Names that every module reads: counters, random numbers, states, errors, memory pressure.
    // Imports nothing.
    "base",
    // Formats and their arithmetic: header, options, sequence numbers, four-tuple, cookie,
    // pseudo-header.
    "wire",
    // The size of the flight: congestion-control algorithms, which receive samples and know no
    // connection.
    "congestion",
    // The context that a caller lends to every call: time, packet memory, counters, settings.
    "cx",
    // The control block and its parts: queues, estimates, timers as data. Sends nothing, takes no
    // step.
    "tcb",
    // One segment: its header, the announced window, the decision to send it, and resets.
    "segment",
    // Opening: SYN, requests, SYN cookies, Fast Open, numbers that an outsider must not guess.
    "open",
    // Detection of lost segments, the reaction of the window, and retransmission.
    "loss",
    // The driver of transmission: the segments of one run, and their order.
    "output",
    // Calls of the application and of its tools: data, options, TCP_INFO, invariants.
    "socket",
    // Closing, TIME-WAIT, and the steps of expired timers.
    "close",
    // Arrival of a segment or an ICMP error: the steps of RFC 9293 in order.
    "input",
];

/// crates/stack: names and formats, then the way down to the device, and above it the way up.
const STACK: &[&str] = &[
    // Names that every module reads: counters, error numbers, limits, indices, timers, secrets.
    "base",   // Settings by their Linux names, and the enums that they choose from.
    "sysctl", // Formats: Ethernet, ARP, IP, ICMP.
    "header", // The state of one running thread, and what it reads of a host.
    "cx",
    // Promises of a device, what a device is told, and the devices that are memory.
    "device",
    // From IP to the device: IP header, link header and neighbor, queue, discipline, segmentation.
    "transmit", // The table of routes, the entries made from it, exceptions.
    "route",    // Connections, listeners, and what both need of a host.
    "socket",
    // From the device to the socket: poll, receive offload, link, IP, TCP and ICMP.
    "receive", // Who runs the steps of a core, and when the core sleeps.
    "core",    // One instance of the stack: how it is built, changed and reported on.
    "host",
];

/// Upward imports of crates/stack that still stand.
const STACK_TOLERATED: &[(&str, &str)] =
    &[("core", "host"), ("receive", "host"), ("route", "host"), ("socket", "host")];

/// Place of the names of `lib.rs`: above every module.
const TOP: &str = "lib.rs";

/// Checks one file against the table of its crate. A file of a crate without a table passes.
pub(crate) fn check(source: &RustSource, findings: &mut Findings) {
    let Some(order) = ORDERS.iter().find(|order| source.path.starts_with(order.sources)) else {
        return;
    };
    check_file(order, source, findings);
}

/// Reports every module of a table that has no file.
pub(crate) fn check_tables(sources: &[RustSource], findings: &mut Findings) {
    for order in ORDERS {
        for module in order.modules {
            let file = format!("{}{module}.rs", order.sources);
            if !sources.iter().any(|source| source.path == file) {
                findings.note(
                    &file,
                    0,
                    format!("module {module} is in the table and not in the crate"),
                );
            }
        }
    }
}

fn check_file(order: &Order, source: &RustSource, findings: &mut Findings) {
    let place = &source.path[order.sources.len()..];
    let path: Vec<&str> = place.trim_end_matches(".rs").split('/').collect();
    if place == TOP || path.contains(&"tests") {
        return;
    }
    let rank = |module: &str| order.modules.iter().position(|&name| name == module);
    let Some(own) = rank(path[0]) else {
        findings.note(
            &source.path,
            0,
            format!("module {} has no row in the table of modules", path[0]),
        );
        return;
    };
    for (line, name) in imports(&without_tests(&source.code), &path) {
        if rank(&name).is_some_and(|other| other <= own)
            || order.tolerated.contains(&(path[0], name.as_str()))
        {
            continue;
        }
        let message = if rank(&name).is_some() {
            format!("module {} may not import {name}, which stands above it", path[0])
        } else {
            format!(
                "module {} may not import {name} from {TOP}: use the path of its module",
                path[0]
            )
        };
        findings.note(&source.path, line, message);
    }
}

/// A word, or one other character, with its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let len = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
            tokens.push(Token { line: index + 1, text: &rest[..len] });
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// Returns the top-level names that the code of the module `path` imports, each with its line.
fn imports(code: &str, path: &[&str]) -> BTreeSet<(usize, String)> {
    let tokens = tokens(code);
    let mut names = BTreeSet::new();
    // Open modules of this file, each with the brace depth before it.
    let mut inner: Vec<usize> = Vec::new();
    let mut depth = 0;
    for at in 0..tokens.len() {
        let text = |offset: usize| tokens.get(at + offset).map_or("", |token| token.text);
        match text(0) {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inner.retain(|&before| before < depth);
            }
            "mod" if text(2) == "{" => inner.push(depth),
            "crate" if text(1) == "::" => first_names(&tokens[at + 2..], 0, &mut names),
            "super"
                if text(1) == "::" && at.checked_sub(1).is_none_or(|i| tokens[i].text != "::") =>
            {
                first_names(&tokens[at..], path.len() + inner.len(), &mut names);
            }
            _ => {}
        }
    }
    names
}

/// Adds the names below the root of the crate in the path, or tree of paths, that begins with
/// `tokens`. `climbs` is the number of `super` steps to the root.
fn first_names(tokens: &[Token<'_>], climbs: usize, names: &mut BTreeSet<(usize, String)>) {
    let Some(first) = tokens.first() else { return };
    let is_path = tokens.get(1).is_some_and(|token| token.text == "::");
    match first.text {
        "super" if is_path && climbs > 0 => first_names(&tokens[2..], climbs - 1, names),
        "{" => {
            for part in parts(&tokens[1..]) {
                first_names(part, climbs, names);
            }
        }
        "self" => {}
        name if climbs == 0
            && name.starts_with(|c: char| c.is_alphabetic() || "_*".contains(c)) =>
        {
            names.insert((first.line, name.to_owned()));
        }
        _ => {}
    }
}

/// Returns the comma-separated parts of a tree, from behind its opening brace.
fn parts<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 0 => {
                parts.push(&tokens[start..at]);
                break;
            }
            "}" => depth -= 1,
            "," if depth == 0 => {
                parts.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

/// Returns `code` with every item behind `#[cfg(test)]` blanked.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        let (before, item) = rest.split_at(at);
        let end = MARK.len() + item_len(&item[MARK.len()..]);
        kept.push_str(before);
        kept.extend(item[..end].chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &item[end..];
    }
    kept.push_str(rest);
    kept
}

/// Returns the length in bytes of the item, field or statement that `code` begins with.
fn item_len(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order =
        Order { sources: "crates/a/src/", modules: &["low", "middle", "high"], tolerated: &[] };

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check_file(&ORDER, &RustSource::new(path, text.to_owned()), &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_upward_import_is_found() {
        let text = "use crate::low::A;\nuse crate::high::B;\n";
        assert_eq!(
            findings("crates/a/src/middle.rs", text),
            ["crates/a/src/middle.rs:2: module middle may not import high, which stands above it"]
        );
        assert!(findings("crates/a/src/high/file.rs", text).is_empty());
    }

    #[test]
    fn a_tree_is_read_to_its_leaves() {
        let text =
            "use crate::{\n    low::{self, deep::{A, B}},\n    middle,\n    high::{C, D},\n};\n";
        let lines = findings("crates/a/src/low.rs", text);
        assert_eq!(
            lines,
            [
                "crates/a/src/low.rs:3: module low may not import middle, which stands above it",
                "crates/a/src/low.rs:4: module low may not import high, which stands above it",
            ]
        );
    }

    #[test]
    fn a_path_in_an_expression_and_one_that_climbs_are_found() {
        let text = "fn f() { crate::high::g(); }\nuse super::super::high;\nuse super::near;\n";
        assert_eq!(findings("crates/a/src/low/file.rs", text).len(), 2);
        assert_eq!(findings("crates/a/src/low.rs", "use super::{low, high::A};").len(), 1);
        let inner = "mod inner { use super::super::high; }\nuse super::near;\n";
        assert!(findings("crates/a/src/low/file.rs", inner).is_empty());
        assert_eq!(findings("crates/a/src/low.rs", inner).len(), 2);
    }

    #[test]
    fn a_name_of_the_root_is_above_everything() {
        assert_eq!(
            findings("crates/a/src/high.rs", "use crate::Name;\n"),
            [
                "crates/a/src/high.rs:1: module high may not import Name from lib.rs: use the path of its module"
            ]
        );
        assert_eq!(findings("crates/a/src/high.rs", "use super::*;\n").len(), 1);
        assert!(findings("crates/a/src/lib.rs", "pub use crate::high::Name;\n").is_empty());
    }

    #[test]
    fn a_module_without_a_row_is_found() {
        assert_eq!(
            findings("crates/a/src/stray/file.rs", ""),
            ["crates/a/src/stray/file.rs: module stray has no row in the table of modules"]
        );
    }

    #[test]
    fn comments_and_tests_may_name_everything() {
        let text = "// crate::high\n#[cfg(test)]\nuse crate::high::A;\nstruct S {\n    #[cfg(test)]\n    a: crate::high::A,\n    \
                    b: crate::low::B,\n}\n#[cfg(test)]\nmod tests {\n    use crate::high::{B, C};\n}\n";
        assert!(findings("crates/a/src/low.rs", text).is_empty());
        assert!(findings("crates/a/src/low/tests.rs", "use crate::high::A;").is_empty());
        assert!(findings("crates/a/src/tests/net.rs", "use crate::high::A;").is_empty());
    }

    #[test]
    fn code_after_a_test_item_is_read() {
        let text = "#[cfg(test)]\nuse crate::low::A;\nuse crate::high::B;\n";
        assert_eq!(findings("crates/a/src/low.rs", text).len(), 1);
    }
}
