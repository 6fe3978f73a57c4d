//! Compares a segment of the host with the expected one, field by field.
//!
//! Not here: the time of transmission (`run`).

use super::{
    ast::{Cookie, IpSpec, Opt, TcpSpec, flag},
    packet::{Segment, show_flags, show_options},
};

/// Flags that only the last segment of a longer write carries.
const LAST_PART: u16 = flag::PSH | flag::FIN;

/// The expectation as a line of a script, for messages.
pub(super) fn show_expected(ip: &IpSpec, spec: &TcpSpec) -> String {
    let end = spec.seq.wrapping_add(spec.len);
    let mut text = format!("{} {}:{end}({})", show_flags(spec.flags), spec.seq, spec.len);
    if let Some(ack) = spec.ack {
        text.push_str(&format!(" ack {ack}"));
    }
    if let Some(window) = spec.window {
        text.push_str(&format!(" win {window}"));
    }
    if spec.flags & flag::URG != 0 {
        text.push_str(&format!(" urg {}", spec.urgent));
    }
    match &spec.options {
        None => text.push_str(" <...>"),
        Some(options) if options.is_empty() => {}
        Some(options) => text.push_str(&format!(" <{}>", show_options(options))),
    }
    if let Some(tos) = ip.tos {
        text.push_str(&format!(" [tos {tos:#x}]"));
    }
    text
}

/// Returns the differences between `spec`, or its last part, and a segment with relative numbers.
pub(super) fn differences(ip: &IpSpec, spec: &TcpSpec, seen: &Segment) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, expected: String, came: String| {
        if expected != came {
            found.push(format!("{what}: expected {expected}, came {came}"));
        }
    };
    let end = spec.seq.wrapping_add(spec.len);
    differ("flags", show_flags(spec.flags), show_flags(seen.flags));
    differ("end of data", end.to_string(), seen.seq.wrapping_add(seen.len()).to_string());
    if let Some(ack) = spec.ack {
        differ("ack", ack.to_string(), seen.ack.to_string());
    }
    if let Some(window) = spec.window {
        differ("win", window.to_string(), seen.window.to_string());
    }
    if spec.flags & flag::URG != 0 {
        differ("urg", spec.urgent.to_string(), seen.urgent.to_string());
    }
    if let Some(options) = &spec.options
        && !same_options(options, &seen.options)
    {
        differ("options", show_options(options), show_options(&seen.options));
    }
    if let Some(tos) = ip.tos {
        let mask = if ip.ecn_only { 3 } else { 0xff };
        differ("tos", format!("{tos:#x}"), format!("{:#x}", seen.tos & mask));
    }
    if let Some(ttl) = ip.ttl {
        differ("ttl", ttl.to_string(), seen.ttl.to_string());
    }
    found
}

/// Returns the differences between a segment and the part of `spec` that starts at `seq` and is not
/// the last. PSH inside the data is not compared.
pub(super) fn part_differences(
    ip: &IpSpec,
    spec: &TcpSpec,
    seq: u32,
    seen: &Segment,
) -> Vec<String> {
    let part = TcpSpec { flags: spec.flags & !LAST_PART, seq, len: seen.len(), ..spec.clone() };
    let mut seen = seen.clone();
    seen.flags &= !flag::PSH;
    let mut found = differences(ip, &part, &seen);
    if seen.seq != seq {
        found.insert(0, format!("seq: expected {seq}, came {}", seen.seq));
    }
    found
}

/// A named cookie matches every cookie.
fn same_options(expected: &[Opt], seen: &[Opt]) -> bool {
    expected.len() == seen.len()
        && expected.iter().zip(seen).all(|pair| match pair {
            (
                Opt::Cookie { experimental, cookie: Cookie::Named(_) },
                Opt::Cookie { experimental: seen, cookie: Cookie::Bytes(bytes) },
            ) => experimental == seen && !bytes.is_empty(),
            (expected, seen) => expected == seen,
        })
}
