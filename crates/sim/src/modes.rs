//! Settings that choose between mechanisms, and combinations of them in which whole test suites
//! run.
//!
//! Modes are derived from the table of settings: every setting below `net.quietline` whose value is
//! a word or a switch is a mode, so that a new setting takes part without an entry here. `MORE`
//! adds modes that are numbers, have Linux names, or consist of several settings.
//! docs/mechanisms.md describes each.
//!
//! Suites run in combinations of modes: every packet script in [`pairwise`] rows
//! (`tests/modes.rs`), every seed of the simulator in modes drawn from the seed, the corpora of the
//! fuzzers in rows in turn ([`failures`]), the tests against the kernel and all other tests in the
//! modes of the environment variable `QUIETLINE_SYSCTL=NAME=VALUE,...` ([`from_environment`]). Only
//! test suites read that variable, never the stack. Settings that a test makes itself take
//! precedence.
//!
//! Not here: running suites (`cargo xtask matrix`).

mod corpus;
mod pairwise;

use std::{fmt, str::FromStr, sync::OnceLock};

use stack::sysctl::Sysctls;
use tcp::Rng;

pub use corpus::failures;
pub use pairwise::{Pair, each, pairs, pairwise};

/// Environment variable that selects the mode a suite runs in.
pub const VARIABLE: &str = "QUIETLINE_SYSCTL";

/// Prefix of the settings that Linux does not have.
const OURS: &str = "net.quietline.";

/// Values that no suite runs in, because they demonstrate a bug: they have tests of their own.
const DEMONSTRATIONS: [(&str, &str); 1] = [("net.quietline.tsq_protocol", "seed")];

/// Settings that only set others, which are modes themselves.
const COMPOSED: [&str; 1] = ["net.quietline.preset"];

/// Settings of one value of a mode.
type Alternative = &'static [(&'static str, &'static str)];

/// Further modes, and further values of modes that are settings: a name, and the values beside the
/// default.
const MORE: [(&str, &[Alternative]); 11] = [
    (
        "qdisc",
        &[
            &[("net.quietline.dev.default.qdisc", "pfifo_fast")],
            &[("net.quietline.dev.default.qdisc", "fq")],
            &[("net.quietline.dev.default.qdisc", "fq_codel")],
        ],
    ),
    ("early_demux", &[&[("net.ipv4.ip_early_demux", "0")], &[("net.ipv4.tcp_early_demux", "0")]]),
    (
        "steering",
        &[
            &[("net.quietline.dev.default.rps_cpus", "2")],
            &[
                ("net.quietline.dev.default.rps_flow_cnt", "64"),
                ("net.core.rps_sock_flow_entries", "64"),
            ],
        ],
    ),
    (
        "gro_normal_batch",
        &[&[("net.core.gro_normal_batch", "1")], &[("net.core.gro_normal_batch", "64")]],
    ),
    (
        "superframe_size",
        &[
            &[("net.quietline.dev.default.gro_max_size", "4000")],
            // BIG TCP. Devices without support for it ignore these.
            &[
                ("net.quietline.dev.default.gro_max_size", "524280"),
                ("net.quietline.dev.default.gro_ipv4_max_size", "524280"),
                ("net.quietline.dev.default.gso_max_size", "524280"),
                ("net.quietline.dev.default.gso_ipv4_max_size", "524280"),
            ],
        ],
    ),
    (
        "gro_flush_timeout",
        &[&[
            ("net.quietline.dev.default.gro_flush_timeout", "20000"),
            ("net.quietline.dev.default.napi_defer_hard_irqs", "2"),
        ]],
    ),
    // `tcp_low_latency` alone has no effect: it disables the prequeue.
    (
        "rx_context",
        &[&[("net.quietline.rx_context", "prequeue_drop"), ("net.ipv4.tcp_low_latency", "1")]],
    ),
    ("tcp_backlog_ack_defer", &[&[("net.ipv4.tcp_backlog_ack_defer", "0")]]),
    ("tcp_autocorking", &[&[("net.ipv4.tcp_autocorking", "0")]]),
    ("wireless_pace", &[&[("net.quietline.pacing_shift", "7")]]),
    ("busy_polling", &[&[("net.core.busy_read", "0"), ("net.core.busy_poll", "0")]]),
];

/// A choice between mechanisms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The setting, without `net.quietline.`, or a name for several.
    pub name: String,
    /// Settings of each value. The first is the default and has no settings.
    pub values: Vec<Settings>,
}

/// Settings by name, in the order in which they are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub Vec<(String, String)>);

/// The error of a text that is not a list of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSettings(String);

/// Returns every mode with all its values.
#[must_use]
pub fn table() -> &'static [Mode] {
    static TABLE: OnceLock<Vec<Mode>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let listed = Sysctls::names().filter_map(|(name, allowed)| listed(name, &allowed));
        let mut table: Vec<Mode> = listed.collect();
        for (name, values) in MORE {
            let values = values.iter().map(|value| Settings::of(value));
            match table.iter_mut().find(|mode| mode.name == name) {
                Some(mode) => mode.values.extend(values),
                None => table.push(Mode {
                    name: name.to_owned(),
                    values: std::iter::once(Settings::default()).chain(values).collect(),
                }),
            }
        }
        table.retain(|mode| mode.values.len() > 1);
        table
    })
}

/// Returns the mode of a `net.quietline` setting whose values are words, or of a switch.
fn listed(name: &str, allowed: &str) -> Option<Mode> {
    let short = name.strip_prefix(OURS).filter(|_| !COMPOSED.contains(&name))?;
    let words: Vec<&str> = match allowed.strip_prefix("one of ") {
        Some(words) => words.split(' ').collect(),
        None if allowed == "a number from 0 to 1" => vec!["0", "1"],
        None => return None,
    };
    let default = Sysctls::default().get(name).expect("it is listed");
    let others = words
        .iter()
        .filter(|word| **word != default && !DEMONSTRATIONS.contains(&(name, **word)))
        .map(|word| Settings::of(&[(name, word)]));
    let values = std::iter::once(Settings::default()).chain(others).collect();
    Some(Mode { name: short.to_owned(), values })
}

/// Returns the number of values of each mode.
#[must_use]
pub fn sizes() -> Vec<usize> {
    table().iter().map(|mode| mode.values.len()).collect()
}

/// Returns the settings of a row: one value, by index, for each mode.
#[must_use]
pub fn settings(row: &[usize]) -> Settings {
    let chosen = table().iter().zip(row).flat_map(|(mode, value)| mode.values[*value].0.clone());
    Settings(chosen.collect())
}

/// Draws a random row.
pub fn draw(rng: &mut Rng) -> Vec<usize> {
    let below = |bound: usize| rng.below(u32::try_from(bound).expect("few values")) as usize;
    sizes().into_iter().map(below).collect()
}

/// Resets the values of a row that have no effect on a host of one core.
pub fn forget_steering(row: &mut [usize]) {
    for (mode, value) in table().iter().zip(row) {
        if mode.values[*value].cores() > 1 {
            *value = 0;
        }
    }
}

/// Whether a row leaves the mode of this name at its default.
///
/// # Panics
/// When there is no such mode.
#[must_use]
pub fn is_default(row: &[usize], name: &str) -> bool {
    let mode = table().iter().position(|mode| mode.name == name);
    row[mode.unwrap_or_else(|| panic!("no mode {name}"))] == 0
}

/// Returns the settings that the environment variable selects; none if it is unset.
///
/// # Panics
/// When the variable is not a list of valid settings.
#[must_use]
pub fn from_environment() -> Settings {
    match std::env::var(VARIABLE) {
        Ok(text) => match text.parse() {
            Ok(settings) => settings,
            Err(NoSettings(why)) => panic!("{VARIABLE}: {why}"),
        },
        Err(_) => Settings::default(),
    }
}

impl Settings {
    pub(crate) fn of(settings: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self(settings.iter().map(owned).collect())
    }

    /// Applies the settings.
    ///
    /// # Panics
    /// When one is refused.
    pub fn apply(&self, sysctls: &mut Sysctls) {
        for (name, value) in &self.0 {
            if let Err(error) = sysctls.set(name, value) {
                panic!("{error}");
            }
        }
    }

    /// Returns the number of cores that a host needs for the settings to have an effect.
    #[must_use]
    pub fn cores(&self) -> u16 {
        let steers = |(name, value): &(String, String)| {
            let name = name.rsplit('.').next();
            matches!(name, Some("rps_cpus" | "rps_flow_cnt")) && value != "0"
        };
        1 + u16::from(self.0.iter().any(steers))
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = NoSettings;

    /// Parses `NAME=VALUE,...`; every name and value must be valid for the stack.
    fn from_str(text: &str) -> Result<Self, NoSettings> {
        let mut settings = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| NoSettings(format!("{part:?} is not NAME=VALUE")))?;
            let tried = Sysctls::default().set(name, value);
            tried.map_err(|error| NoSettings(error.to_string()))?;
            settings.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(Self(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new word setting or switch takes part without a change of this module.
    #[test]
    fn every_word_setting_and_switch_of_quietline_is_a_mode() {
        let names: Vec<&str> = table().iter().map(|mode| mode.name.as_str()).collect();
        for (name, allowed) in Sysctls::names() {
            let Some(short) = name.strip_prefix(OURS) else { continue };
            let chooses = allowed.starts_with("one of ") || allowed == "a number from 0 to 1";
            // The only other value demonstrates a bug.
            let demonstrates = DEMONSTRATIONS.iter().any(|(known, _)| *known == name);
            let is_mode = chooses && !demonstrates && !COMPOSED.contains(&name);
            assert_eq!(names.contains(&short), is_mode, "{name}: {allowed}");
        }
        assert!(names.contains(&"rx_context") && names.contains(&"dev.default.gro"), "{names:?}");
        for (name, _) in MORE {
            assert!(names.contains(&name), "{name}");
        }
    }

    /// A new word of a setting takes part without a change of this module.
    #[test]
    fn every_word_of_a_setting_is_a_value_of_its_mode() {
        let mut words_seen = 0;
        for (name, allowed) in Sysctls::names() {
            let Some(words) = allowed.strip_prefix("one of ") else { continue };
            let mode = name.strip_prefix(OURS);
            let Some(mode) = table().iter().find(|own| Some(&*own.name) == mode) else { continue };
            let default = Sysctls::default().get(name).expect("it is listed");
            for word in words.split(' ') {
                let setting = (name.to_owned(), word.to_owned());
                let is_value = mode.values.iter().any(|value| value.0.contains(&setting));
                let is_demonstration = DEMONSTRATIONS.contains(&(name, word));
                assert_eq!(is_value, word != default && !is_demonstration, "{name}: {word}");
                words_seen += 1;
            }
        }
        assert!(words_seen > 30, "{words_seen} words");
        let dst_ref = table().iter().find(|mode| mode.name == "dst_ref").expect("a mode");
        let sharded = Settings::of(&[("net.quietline.dst_ref", "sharded")]);
        assert!(dst_ref.values.contains(&sharded), "{dst_ref:?}");
    }

    #[test]
    fn every_value_is_a_setting_that_differs_from_the_default() {
        for mode in table() {
            for value in &mode.values[1..] {
                let mut sysctls = Sysctls::default();
                value.apply(&mut sysctls);
                assert_ne!(sysctls, Sysctls::default(), "{}: {value}", mode.name);
            }
        }
    }

    #[test]
    fn settings_are_parsed_from_their_text() {
        for row in pairwise(&sizes()) {
            let settings = settings(&row);
            assert_eq!(settings.to_string().parse(), Ok(settings));
        }
        let wrong = "net.quietline.gro_exit=sideways".parse::<Settings>();
        assert!(wrong.is_err_and(|NoSettings(why)| why.contains("one of immediate")));
        assert!("net.quietline.gro_exit".parse::<Settings>().is_err());
    }

    /// CI must be able to afford the rows: one takes 20 s of its 90 minutes.
    #[test]
    fn pairwise_rows_are_few() {
        let rows = pairwise(&sizes());
        assert!(rows.len() <= 45, "{} rows", rows.len());
    }
}
