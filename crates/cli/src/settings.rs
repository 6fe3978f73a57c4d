//! `quietline sysctl`: lists settings with value, default and description, and suggests a name for
//! a mistyped one.
//!
//! The texts come from docs/sysctl.md, to which `sysctl.md` here is a link, so that the packaged
//! crate has it. A test generates that page from the tables of the code, grouped by tier.

use quietline::Stack;
use serde::Serialize;

use crate::{args::SysctlArgs, failure::Failure, link, output};

/// The page: a heading and a table for each tier of settings.
const PAGE: &str = include_str!("sysctl.md");

/// Prefixes of device settings: of one device, and of the table's entries, which stand for all
/// devices.
const DEVICE: &str = "net.quietline.dev.";
const ALL_DEVICES: &str = "net.quietline.dev.default.";

/// Width of the text, in columns.
const WIDTH: usize = 80;

/// A row of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Setting {
    /// Heading of the table: `Operate`, `Tune` or `Lab`.
    tier: &'static str,
    name: &'static str,
    default: &'static str,
    allowed: &'static str,
    meaning: String,
}

/// A setting, and the value that the stack has after the command line's settings are applied.
#[derive(Debug, Serialize)]
struct Valued {
    #[serde(flatten)]
    setting: Setting,
    value: String,
}

/// Runs the command.
pub(crate) fn run(args: &SysctlArgs) -> Result<(), Failure> {
    let mut shown: Vec<Setting> = Vec::new();
    // A stack without devices and workers checks the values and provides the defaults.
    let mut builder = Stack::builder().manual();
    for argument in &args.names {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (dotted(name), Some(value)),
            None => (dotted(argument), None),
        };
        let exact = all().filter(|setting| setting.name == name);
        let mut found: Vec<_> = exact.collect();
        if let Some(value) = value {
            builder = builder.sysctl(&name, value);
        } else if found.is_empty() {
            found = all().filter(|setting| setting.name.contains(&name)).collect();
        }
        if found.is_empty() {
            return Err(Failure::option("NAME", &name, unknown(&name)));
        }
        shown.extend(found);
    }
    if args.names.is_empty() {
        shown = all().collect();
    }
    let stack = builder.build().map_err(link::refused)?;
    let settings = shown.into_iter().map(|setting| {
        let value = stack.sysctl(setting.name)?.replace('\t', " ");
        Ok::<_, Failure>(Valued { setting, value })
    });
    let settings = settings.collect::<Result<Vec<_>, Failure>>()?;
    if args.json {
        return output::print_json(&serde_json::json!({ "settings": settings }));
    }
    let tiers = settings.chunk_by(|one, next| one.setting.tier == next.setting.tier);
    let tier = |settings: &[Valued]| {
        let heading = match settings.first() {
            Some(first) if args.names.is_empty() => format!("# {}\n", first.setting.tier),
            _ => String::new(),
        };
        heading + &settings.iter().map(text).collect::<String>()
    };
    output::print(&tiers.map(tier).collect::<String>())
}

/// Checks that a setting of this name exists; otherwise returns the message. For a device setting
/// only the last component is checked, because the devices are unknown before the stack is built.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let name = dotted(name);
    let known = match name.strip_prefix(DEVICE) {
        Some(rest) => {
            let (device, word) = rest.rsplit_once('.').unwrap_or_default();
            !device.is_empty() && all().any(|row| row.name.strip_prefix(ALL_DEVICES) == Some(word))
        }
        None => all().any(|setting| setting.name == name),
    };
    if known { Ok(()) } else { Err(unknown(&name)) }
}

/// Checks the name and the value of a setting by a stack without devices. The value of a device's
/// setting is checked when the device exists.
pub(crate) fn check_value(option: &str, name: &str, value: &str) -> Result<(), Failure> {
    check_name(name).map_err(|reason| Failure::option(option, name, reason))?;
    let name = dotted(name);
    if name.starts_with(DEVICE) && !name.starts_with(ALL_DEVICES) {
        return Ok(());
    }
    match Stack::builder().manual().sysctl(&name, value).build().map_err(link::refused) {
        Err(Failure::Usage(message)) => {
            // The message names the option of another command.
            Err(Failure::Usage(message.replace("'--sysctl'", &format!("'{option}'"))))
        }
        other => other.map(drop),
    }
}

fn unknown(name: &str) -> String {
    match nearest(name) {
        Some(nearest) => format!("no such setting; did you mean {nearest}?"),
        None => "no such setting; 'quietline sysctl' lists all".to_owned(),
    }
}

/// Returns the name that a mistyped one may mean: the same last component in another group, a few
/// edits away, or a longer name that starts with this one.
fn nearest(name: &str) -> Option<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let word = last(name);
    if word.is_empty() {
        return None;
    }
    // A device's prefix is kept as it was typed.
    let device = name.strip_prefix(DEVICE).and_then(|rest| rest.rsplit_once('.'));
    let candidates: Vec<String> = all()
        .map(|setting| match (device, setting.name.strip_prefix(ALL_DEVICES)) {
            (Some((device, _)), Some(word)) => format!("{DEVICE}{device}.{word}"),
            _ => setting.name.to_owned(),
        })
        .collect();
    let same_word = candidates.iter().find(|candidate| last(candidate) == word);
    // Up to a third of the characters, at most four, may differ: beyond that a suggestion misleads.
    let errors_max = (word.len() / 3).clamp(1, 4);
    let close = || {
        let distance = |candidate: &String| {
            let of_word = strsim::osa_distance(&last(candidate), &word);
            (of_word, strsim::osa_distance(candidate, name))
        };
        let nearest = candidates.iter().min_by_key(|candidate| distance(candidate))?;
        (distance(nearest).0 <= errors_max).then_some(nearest)
    };
    let longer = || candidates.iter().find(|candidate| last(candidate).starts_with(&word));
    same_word.or_else(close).or_else(longer).cloned()
}

/// Returns every setting, in the order of the page.
fn all() -> impl Iterator<Item = Setting> {
    let mut tier = "";
    PAGE.lines().filter_map(move |line| {
        tier = line.strip_prefix("## ").unwrap_or(tier);
        row(tier, line)
    })
}

/// Parses a table row: name, default, allowed values, description. Bars in allowed values are
/// escaped.
fn row(tier: &'static str, line: &'static str) -> Option<Setting> {
    let cells = line.strip_prefix("| `")?.strip_suffix(" |")?;
    let mut cells = cells.splitn(4, " | ");
    let name = cells.next()?.strip_suffix('`')?;
    let (default, allowed) = (cells.next()?, cells.next()?);
    let meaning = cells.next()?.replace("\\|", "|").replace('`', "");
    Some(Setting { tier, name, default, allowed, meaning })
}

fn text(valued: &Valued) -> String {
    let Valued { setting: Setting { tier: _, name, default, allowed, meaning }, value } = valued;
    let options = textwrap::Options::new(WIDTH).initial_indent("    ").subsequent_indent("    ");
    let bounds = textwrap::fill(&format!("default {default}; {allowed}"), &options);
    let meaning = textwrap::fill(meaning, &options);
    let text = format!("{name} = {value}\n{bounds}\n{meaning}\n");
    if output::is_plain() { output::in_ascii(&text) } else { text }
}

/// Replaces the slashes of a name, which sysctl(8) allows, by dots.
fn dotted(name: &str) -> String {
    name.trim().replace('/', ".")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_page_has_every_setting_of_a_stack() {
        let stack = Stack::builder().manual().build().expect("a stack");
        let of_stack: BTreeSet<_> = stack
            .sysctls()
            .into_iter()
            .map(|(name, _)| name.into_owned())
            .filter(|name| !name.starts_with("net.quietline.dev.lo."))
            .collect();
        let of_page: BTreeSet<_> = all().map(|setting| setting.name.to_owned()).collect();
        assert_eq!(of_page, of_stack);
        assert!(all().all(|setting| !setting.meaning.is_empty() && !setting.allowed.is_empty()));
        let tiers: BTreeSet<_> = all().map(|setting| setting.tier).collect();
        assert_eq!(tiers.into_iter().collect::<Vec<_>>(), ["Lab", "Operate", "Tune"]);
    }

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest_one() {
        for (typed, meant) in [
            ("net.ipv4.tcp_timestamp", "net.ipv4.tcp_timestamps"),
            ("net.ipv4.tcp_sakc", "net.ipv4.tcp_sack"),
            ("tcp_rmem", "net.ipv4.tcp_rmem"),
            ("net.ipv4.somaxconn", "net.core.somaxconn"),
            ("net.ipv4.tcp_congestion", "net.ipv4.tcp_congestion_control"),
            ("net.quietline.dev.ql0.rsp_cpus", "net.quietline.dev.ql0.rps_cpus"),
            ("net.quietline.dev.ql0.rx-1.rps_cpu", "net.quietline.dev.ql0.rx-1.rps_cpus"),
        ] {
            assert_eq!(nearest(typed).as_deref(), Some(meant), "{typed}");
            assert!(check_name(typed).is_err_and(|reason| reason.contains(meant)), "{typed}");
        }
        for nonsense in ["net.ipv4.frobnicate", "", "net.ipv4."] {
            assert_eq!(nearest(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_refused_value_names_its_option() {
        assert!(check_value("--compare", "net.core.busy_read", "50").is_ok());
        assert!(check_value("--compare", "net.quietline.dev.frames.gro", "0").is_ok());
        for (name, value) in [("net.core.busy_read", "x"), ("net.core.busy_reed", "1")] {
            let Err(Failure::Usage(message)) = check_value("--compare", name, value) else {
                panic!("accepted {name}={value}");
            };
            assert!(message.contains("'--compare'"), "{message}");
        }
    }

    #[test]
    fn existing_names_are_accepted() {
        for name in [
            "net.ipv4.tcp_sack",
            "net/ipv4/tcp_sack",
            "net.quietline.dev.default.gro",
            "net.quietline.dev.ql0.rps_cpus",
            "net.quietline.dev.eth0.100.rx-1.rps_cpus",
        ] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
    }
}
