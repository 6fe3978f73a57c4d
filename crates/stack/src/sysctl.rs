//! Settings of a host, by their Linux names. Tables hold the name, field, format and bounds of each
//! setting.
//!
//! Above: the builder and the CLI, which set values as text, and the data path, which reads plain
//! fields. Linux: Documentation/networking/ip-sysctl.rst, Documentation/admin-guide/sysctl/net.rst.
//!
//! Settings of one device or queue have their own names below `net.quietline.dev`: see [`device`].
//!
//! The tables list only settings that some code reads, or that cannot be changed (`ip_forward`). A
//! setting that would have no effect is therefore unknown, and setting it is an error. To add a
//! setting, add its row to the table of `host_rows`, `tcp_rows` or `device::settings`, and the
//! field that the row names. The row contains the tier and the description, from which
//! docs/sysctl.md is generated. A setting that replaces a constant of Linux has a name below
//! `net.quietline`.
//!
//! Not here: the rows.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

pub use codec::FastOpenKey;
pub(crate) use device::Present;
pub use device::{DeviceSettings, DeviceSysctls, RxQueueSettings, TxQueueSettings};
use host_rows::HOST_TABLE;
pub use host_rows::Sysctls;
pub use rows::{Row, Tier};
use tcp_rows::PART_TABLE;

pub(crate) use live::LiveSysctls;

mod codec;
pub mod device;
mod host_rows;
mod live;
pub mod modes;
mod presets;
pub mod qdisc;
mod rows;
mod tcp_rows;

/// Row of a table.
struct Entry {
    name: &'static str,
    tier: Tier,
    /// Documentation comment of the row, with a blank in front of each of its lines.
    description: &'static str,
    /// Path of the field below [`Sysctls`].
    #[cfg(test)]
    field: &'static str,
    /// Bounds of every number in the value.
    allowed: RangeInclusive<u64>,
    /// Form of the value without its bounds, such as "a number".
    form: &'static str,
    read: fn(&Sysctls) -> String,
    /// Parses and stores a value. Returns false, without a change, if the text has another form or
    /// is out of bounds.
    write: fn(&mut Sysctls, &str, &RangeInclusive<u64>) -> bool,
}

/// Creates a row, with functions that read and write the field `place` below [`Sysctls`] through
/// `codec`.
macro_rules! entry {
    ($description:expr, $name:literal, $tier:ident, $codec:ident $allowed:expr, $($place:ident).+) => {
        Entry {
            name: $name,
            tier: Tier::$tier,
            description: $description,
            #[cfg(test)]
            field: stringify!($($place).+),
            allowed: $allowed,
            form: $codec::FORM,
            read: |sysctls| $codec::format(&sysctls.$($place).+),
            write: |sysctls, text, allowed| match $codec::parse(text, allowed) {
                Some(value) => {
                    sysctls.$($place).+ = value;
                    true
                }
                None => false,
            },
        }
    };
}
use entry;

use crate::base::config_error::ConfigError;

/// Empty bounds, for a value that is not a number.
const WORDS: RangeInclusive<u64> = RangeInclusive::new(1, 0);

/// Upper bound of settings that Linux keeps in an int.
const INT_MAX: u64 = i32::MAX as u64;

/// Settings that cannot change while the host runs.
const AT_CONSTRUCTION: &[&str] = &["net.quietline.dst_layout"];

/// Setting that also sets `tcp_limit_output_bytes`.
const TSQ_LIMIT: &str = "net.quietline.tsq_limit";

/// Setting that sets all settings of one version of Linux.
const PRESET: &str = "net.quietline.preset";

/// Error of setting or reading a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// No setting has this name.
    #[error("{name}: no such setting")]
    Unknown {
        /// Name as given.
        name: String,
    },
    /// The value has the wrong form or is out of bounds.
    #[error("{name}: {value:?} is not allowed: expected {allowed}")]
    Invalid {
        /// Name of the setting.
        name: String,
        /// Value as given.
        value: String,
        /// Description of accepted values.
        allowed: String,
    },
}

impl Sysctls {
    /// Sets a value from its text, as `sysctl -w NAME=VALUE` does. Numbers are decimal, except in
    /// masks and keys; several are separated by blanks.
    ///
    /// # Errors
    /// Returns a [`SysctlError`] if no setting has this name or the value is not accepted. No
    /// setting has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        let dotted = dotted(name);
        if dotted.starts_with(device::PREFIX) {
            return self.devices.set(&dotted, value);
        }
        let entry = find(&dotted)?;
        if (entry.write)(self, value, &entry.allowed) {
            if entry.name == TSQ_LIMIT {
                // Each value of `tsq_limit` stands for a version of Linux, whose default limit in
                // bytes is set too.
                self.tcp.tcp_limit_output_bytes = self.tcp.tsq_limit.default_limit_bytes();
            }
            if entry.name == PRESET { self.apply_preset() } else { Ok(()) }
        } else {
            let allowed = entry.to_string();
            Err(SysctlError::Invalid {
                name: entry.name.to_owned(),
                value: value.to_owned(),
                allowed,
            })
        }
    }

    /// Sets a value like [`set`](Self::set), for a running host.
    pub(crate) fn set_live(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        let name = dotted(name);
        if AT_CONSTRUCTION.contains(&&*name) {
            let present = self.get(&name)?;
            if present != value.trim() {
                let allowed = format!("{present}: it is chosen when the host is built");
                return Err(SysctlError::Invalid { name, value: value.to_owned(), allowed });
            }
        }
        let layout = self.dst_layout;
        self.set(&name, value)?;
        // If the setting is a preset, it must not change the layout, which is fixed while the host
        // runs.
        self.dst_layout = layout;
        Ok(())
    }

    /// Returns a value as text, as `sysctl -n NAME` prints it.
    ///
    /// # Errors
    /// Returns [`SysctlError::Unknown`] if no setting has this name.
    pub fn get(&self, name: &str) -> Result<String, SysctlError> {
        let dotted = dotted(name);
        if dotted.starts_with(device::PREFIX) {
            return self.devices.get(&dotted);
        }
        find(&dotted).map(|entry| (entry.read)(self))
    }

    /// Returns all settings with their values, in the order of the tables. Settings of devices come
    /// last.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'static, str>, String)> + '_ {
        let table = table().map(|entry| (Cow::Borrowed(entry.name), (entry.read)(self)));
        table.chain(self.devices.iter().map(|(name, value)| (Cow::Owned(name), value)))
    }

    /// Returns all names with the values that each setting accepts. A setting of devices appears
    /// once, with the name for all devices.
    pub fn names() -> impl Iterator<Item = (&'static str, String)> {
        table().map(|entry| (entry.name, entry.to_string())).chain(DeviceSysctls::names())
    }
}

/// Replaces slashes, which sysctl(8) allows, by dots.
fn dotted(name: &str) -> String {
    name.trim().replace('/', ".")
}

/// Returns the rows of all settings except those of devices.
fn table() -> impl Iterator<Item = &'static Entry> {
    HOST_TABLE.iter().chain(PART_TABLE)
}

/// Finds a setting by its name with dots.
fn find(name: &str) -> Result<&'static Entry, SysctlError> {
    table()
        .find(|entry| entry.name == name)
        .ok_or_else(|| SysctlError::Unknown { name: name.to_owned() })
}

impl fmt::Display for Entry {
    /// Writes the values that the setting accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self.form, &self.allowed))
    }
}

/// Describes values of `form` with numbers in `allowed`.
fn describe(form: &str, allowed: &RangeInclusive<u64>) -> String {
    let (low, high) = (allowed.start(), allowed.end());
    if allowed.is_empty() {
        form.to_owned()
    } else if low == high {
        format!("{low}: it cannot be changed")
    } else {
        format!("{form} from {low} to {high}")
    }
}

impl From<SysctlError> for ConfigError {
    fn from(error: SysctlError) -> Self {
        match error {
            SysctlError::Unknown { name } => Self::missing("sysctl", name, "no such setting"),
            SysctlError::Invalid { name, value, allowed } => {
                let reason = format!("{value:?} is not allowed: expected {allowed}");
                Self::refused("sysctl", name, reason)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::*;

    /// Prefix of settings that Linux does not have.
    const OURS: &str = "net.quietline.";

    /// Settings that Linux had from 5.2 to 5.15.
    const GONE_FROM_LINUX: [&str; 2] = ["net.ipv4.tcp_tx_skb_cache", "net.ipv4.tcp_rx_skb_cache"];

    #[test]
    fn every_default_is_allowed_and_survives_a_round_trip() {
        let mut sysctls = Sysctls::default();
        for (name, value) in Sysctls::default().iter() {
            assert_eq!(sysctls.set(&name, &value), Ok(()), "{name} = {value}");
            assert_eq!(sysctls.get(&name).as_ref(), Ok(&value), "{name}");
        }
        assert_eq!(sysctls, Sysctls::default());
    }

    #[test]
    fn setting_names_are_unique() {
        let names: BTreeSet<_> = Sysctls::names().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Sysctls::names().count());
    }

    /// Compares the names with those of the running kernel, if /proc/sys shows its network
    /// settings.
    #[test]
    fn nearly_all_linux_names_exist_in_the_running_kernel() {
        let path = |name: &str| format!("/proc/sys/{}", name.replace('.', "/"));
        if std::fs::metadata(path("net.ipv4.tcp_rmem")).is_err() {
            return;
        }
        let missing = |name: &&str| std::fs::metadata(path(name)).is_err();
        let linux = Sysctls::names().map(|(name, _)| name).filter(|name| !name.starts_with(OURS));
        let unknown: Vec<_> = linux.filter(missing).collect();
        // The kernel may be newer than the settings that Linux removed, and older than the newest
        // two.
        let unknown: Vec<_> =
            unknown.into_iter().filter(|name| !GONE_FROM_LINUX.contains(name)).collect();
        assert!(unknown.len() <= 2, "this kernel lacks the settings {unknown:?}");
    }

    /// Returns the field names of a struct, from its `Debug` text.
    fn fields(part: &str, value: &dyn fmt::Debug) -> Vec<String> {
        let text = format!("{value:#?}");
        let name = |line: &str| Some(line.strip_prefix("    ")?.split_once(':')?.0.to_owned());
        let names = text.lines().filter_map(name).filter(|name| !name.starts_with(' '));
        names.map(|name| format!("{part}{name}")).collect()
    }

    #[test]
    fn every_field_has_a_setting() {
        let sysctls = Sysctls::default();
        let mut expected = fields("tcp.", &sysctls.tcp);
        expected.extend(fields("neigh.", &sysctls.neigh));
        expected.extend(fields("neigh_v6.", &sysctls.neigh_v6));
        expected.extend(fields("", &sysctls));
        let parts = ["tcp", "neigh", "neigh_v6", "devices"];
        expected.retain(|field| !parts.contains(&field.as_str()));
        assert!(expected.len() > 40, "{expected:?}");
        let known: BTreeSet<_> =
            table().map(|entry| entry.field.replace(char::is_whitespace, "")).collect();
        let missing: Vec<_> = expected.iter().filter(|field| !known.contains(*field)).collect();
        assert!(missing.is_empty(), "fields without a sysctl name: {missing:?}");
    }

    #[test]
    fn a_set_value_is_stored_in_its_field() {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.tcp_rmem", " 4096\t131072  6291456 ").unwrap();
        sysctls.set("net.ipv4.tcp_fin_timeout", "30").unwrap();
        sysctls.set("net/ipv4/ip_local_port_range", "1024 65535").unwrap();
        sysctls.set("net.ipv4.neigh.default.retrans_time_ms", "250").unwrap();
        sysctls.set("net.ipv4.tcp_timestamps", "0").unwrap();
        sysctls.set("net.ipv4.tcp_congestion_control", " bbr\n").unwrap();
        assert_eq!(sysctls.tcp.tcp_congestion_control, tcp::Algorithm::Bbr);
        assert_eq!(sysctls.tcp.tcp_rmem.max, 6_291_456);
        assert_eq!(sysctls.tcp.tcp_fin_timeout, Duration::from_secs(30));
        assert_eq!(sysctls.ip_local_port_range, 1024..=65_535);
        assert_eq!(sysctls.neigh.retrans_time, Duration::from_millis(250));
        assert!(!sysctls.tcp.tcp_timestamps);
    }

    #[test]
    fn invalid_values_are_rejected_and_change_nothing() {
        let bad = [
            ("net.ipv4.ip_default_ttl", "0"),
            ("net.ipv4.ip_default_ttl", "256"),
            ("net.ipv4.conf.all.arp_ignore", "3"),
            ("net.ipv4.ip_default_ttl", "-1"),
            ("net.ipv4.ip_default_ttl", "+1"),
            ("net.ipv4.ip_default_ttl", "0x40"),
            ("net.ipv4.ip_default_ttl", "64 64"),
            ("net.ipv4.ip_default_ttl", ""),
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv4.tcp_timestamps", "2"),
            ("net.ipv4.tcp_timestamps", "on"),
            ("net.ipv4.tcp_rmem", "4096 131072"),
            ("net.ipv4.tcp_rmem", "4096 131072 65536"),
            ("net.ipv4.tcp_rmem", "4096 131072 99999999999999999999"),
            ("net.ipv4.ip_local_port_range", "2000 1000"),
            ("net.ipv4.ip_local_port_range", "0 1000"),
            ("net.ipv4.tcp_fin_timeout", "1.5"),
            ("net.ipv4.tcp_congestion_control", "vegas"),
            ("net.ipv4.tcp_congestion_control", ""),
            ("net.ipv4.tcp_available_congestion_control", "cubic"),
        ];
        for (name, value) in bad {
            let mut sysctls = Sysctls::default();
            let error = sysctls.set(name, value).unwrap_err();
            assert!(matches!(error, SysctlError::Invalid { .. }), "{name} = {value}");
            assert_eq!(sysctls, Sysctls::default(), "{name} = {value}");
        }
    }

    #[test]
    fn an_error_is_one_line_with_the_accepted_values() {
        let mut sysctls = Sysctls::default();
        let mut message = |name, value| sysctls.set(name, value).unwrap_err().to_string();
        assert_eq!(
            message("net.ipv4.ip_default_ttl", "900"),
            "net.ipv4.ip_default_ttl: \"900\" is not allowed: expected a number from 1 to 255"
        );
        assert_eq!(
            message("net.ipv4.tcp_wmem", "1"),
            "net.ipv4.tcp_wmem: \"1\" is not allowed: expected three numbers in ascending order, each from 1 to 2147483647"
        );
        assert_eq!(
            message("net.ipv4.ip_forward", "1"),
            "net.ipv4.ip_forward: \"1\" is not allowed: expected 0: it cannot be changed"
        );
        assert_eq!(
            message("net.ipv4.tcp_congestion_control", "vegas"),
            "net.ipv4.tcp_congestion_control: \"vegas\" is not allowed: expected one of cubic reno bbr dctcp"
        );
        assert_eq!(message("net.ipv4.nonsense", "1"), "net.ipv4.nonsense: no such setting");
    }
}
