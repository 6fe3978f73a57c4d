//! Settings as rows: name, tier, accepted values, description. docs/sysctl.md and the output of
//! `quietline sysctl` are generated from these rows.
//!
//! Not here: values (`Sysctls::get` and `iter`), the rows themselves (`host_rows`, `tcp_rows`,
//! `device::settings`).

use std::fmt;

use super::{Sysctls, device::DeviceSysctls};

/// Purpose of a setting: the group in which the documentation lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Settings of an administrator: addresses, limits, timeouts, security, devices.
    Operate,
    /// Settings with good defaults, for measured problems.
    Tune,
    /// Historical and experimental modes, for comparisons and tests.
    Lab,
}

impl Tier {
    /// Every tier, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Operate, Self::Tune, Self::Lab];

    /// Returns the sentences that introduce the settings of this tier.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Operate => {
                "Settings of an administrator: limits, timeouts, security, devices and their queues."
            }
            Self::Tune => {
                "Settings with good defaults. Change one to solve a measured problem, and measure again."
            }
            Self::Lab => {
                "Historical and experimental modes, for comparisons and tests. The defaults are the best known."
            }
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operate => "Operate",
            Self::Tune => "Tune",
            Self::Lab => "Lab",
        })
    }
}

/// One setting, as shown in the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Name. For a setting of devices, this is the name for all devices.
    pub name: &'static str,
    /// Purpose of the setting.
    pub tier: Tier,
    /// Values that the setting accepts.
    pub accepts: String,
    /// Unit, effect, and the reason to change the value, in complete sentences.
    pub description: &'static str,
}

impl Sysctls {
    /// Returns all settings, in the order of the tables. Settings of devices come last.
    pub fn rows() -> impl Iterator<Item = Row> {
        let row = |entry: &'static super::Entry| Row {
            name: entry.name,
            tier: entry.tier,
            accepts: entry.to_string(),
            description: entry.description.trim_start(),
        };
        super::table().map(row).chain(DeviceSysctls::rows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_description_begins_with_a_capital_and_ends_with_a_period() {
        for Row { name, description, .. } in Sysctls::rows() {
            let begins_well = description.starts_with(|first: char| first.is_uppercase());
            assert!(begins_well && description.ends_with('.'), "{name}: {description:?}");
            let bad = ["  ", "The same", "the same for", "|"];
            let found = bad.iter().find(|bad| description.contains(**bad));
            assert_eq!(found, None, "{name}: {description:?}");
        }
    }

    /// Every setting that can be changed must say when to change it.
    #[test]
    fn every_row_says_when_to_change_it() {
        let advice = ["Set ", "Raise ", "Lower ", "Widen ", "Change ", "Keep "];
        for Row { name, accepts, description, .. } in Sysctls::rows() {
            let says = advice.iter().any(|verb| description.contains(verb));
            assert!(says || accepts.contains("cannot be changed"), "{name}: {description:?}");
        }
    }

    #[test]
    fn rows_and_names_list_the_same_settings() {
        let rows: Vec<_> = Sysctls::rows().map(|row| (row.name, row.accepts)).collect();
        assert_eq!(rows, Sysctls::names().collect::<Vec<_>>());
        assert!(Tier::ALL.iter().all(|tier| Sysctls::rows().any(|row| row.tier == *tier)));
    }
}
