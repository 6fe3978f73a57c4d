//! `net.quietline.preset`: the settings that together make the data path of one version of Linux.
//!
//! Above: `Sysctls::set`. A preset sets every setting of the table, so that a change from one
//! preset to another leaves nothing of the first. A setting that is made later counts for itself.
//!
//! No preset chooses `net.quietline.tsq_protocol=seed`, which loses wake-ups: Linux 3.6 had the
//! losses, and a demonstration sets it beside the preset.
//!
//! Not here: what the settings do (docs/mechanisms.md).

use std::borrow::Cow;

use super::{SysctlError, Sysctls, modes::Preset};

/// Settings, with their values in Linux 3.5, 3.6, 3.18, 5.2, 5.4 and 6.4.
const TABLE: [(&str, [&str; 6]); 19] = [
    (
        "net.quietline.rx_context",
        ["prequeue_ref", "prequeue_ref", "prequeue_drop", "bh", "bh", "bh"],
    ),
    (
        "net.quietline.rx_dst_mode",
        [
            "force",
            "force",
            "optimistic_drop",
            "rcu_clear_then_release",
            "rcu_clear_then_release",
            "rcu_clear_then_release",
        ],
    ),
    // Sockets remember an input route since 3.6.
    ("net.ipv4.ip_early_demux", ["0", "1", "1", "1", "1", "1"]),
    ("net.ipv4.tcp_early_demux", ["1", "1", "1", "1", "1", "1"]),
    ("net.ipv4.tcp_low_latency", ["0", "0", "0", "0", "0", "0"]),
    (
        "net.quietline.dst_ref",
        [
            "cas_inc_not_zero",
            "cas_inc_not_zero",
            "cas_inc_not_zero",
            "cas_inc_not_zero",
            "cas_inc_not_zero",
            "rcuref",
        ],
    ),
    ("net.quietline.dst_check", ["entry", "entry", "entry", "entry", "entry", "entry"]),
    ("net.quietline.dst_layout", ["packed", "packed", "packed", "packed", "packed", "filled"]),
    (
        "net.quietline.gro_exit",
        [
            "immediate",
            "immediate",
            "immediate",
            "immediate",
            "normal_only_list",
            "unified_list_segments",
        ],
    ),
    // Where there is no list, its flush has no effect.
    (
        "net.quietline.busy_poll_flush",
        [
            "rx_list_per_cycle",
            "rx_list_per_cycle",
            "rx_list_per_cycle",
            "rx_list_per_cycle",
            "rx_list_per_cycle",
            "rx_list_per_cycle",
        ],
    ),
    // Off by default in every version; since 3.11 an administrator can switch it on.
    ("net.core.busy_read", ["0", "0", "0", "0", "0", "0"]),
    ("net.core.busy_poll", ["0", "0", "0", "0", "0", "0"]),
    (
        "net.quietline.tsq_limit",
        ["off", "static131072_ge", "dyn_max", "paced_exempt", "paced_exempt", "paced_exempt"],
    ),
    ("net.quietline.tsq_protocol", ["robust", "robust", "robust", "robust", "robust", "robust"]),
    ("net.ipv4.tcp_autocorking", ["0", "0", "1", "1", "1", "1"]),
    (
        "net.quietline.skb_recycle",
        ["none", "none", "none", "socket_one", "socket_one", "per_core_defer"],
    ),
    // Always on in 5.2, and off by default since 5.3.
    ("net.ipv4.tcp_tx_skb_cache", ["1", "1", "1", "1", "0", "1"]),
    ("net.ipv4.tcp_rx_skb_cache", ["1", "1", "1", "1", "0", "1"]),
    // Linux 6.7 and later.
    ("net.ipv4.tcp_backlog_ack_defer", ["0", "0", "0", "0", "0", "0"]),
];

impl Preset {
    /// Returns the settings of the preset with their values.
    pub fn settings(self) -> impl Iterator<Item = (&'static str, Cow<'static, str>)> {
        let column = match self {
            Self::Linux3_5 => Some(0),
            Self::Linux3_6 => Some(1),
            Self::Linux3_18 => Some(2),
            Self::Linux5_2 => Some(3),
            Self::Linux5_4 => Some(4),
            Self::Linux6_4 => Some(5),
            Self::Default => None,
        };
        let defaults = Sysctls::default();
        TABLE.into_iter().map(move |(name, values)| {
            let value = match column {
                Some(column) => Cow::Borrowed(values[column]),
                None => Cow::Owned(defaults.get(name).expect("the table names settings")),
            };
            (name, value)
        })
    }
}

impl Sysctls {
    /// Sets everything that belongs to the preset.
    pub(super) fn apply_preset(&mut self) -> Result<(), SysctlError> {
        self.preset.settings().try_for_each(|(name, value)| self.set(name, &value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "net.quietline.preset";

    const ALL: [(&str, Preset); 7] = [
        ("linux-3.5", Preset::Linux3_5),
        ("linux-3.6", Preset::Linux3_6),
        ("linux-3.18", Preset::Linux3_18),
        ("linux-5.2", Preset::Linux5_2),
        ("linux-5.4", Preset::Linux5_4),
        ("linux-6.4", Preset::Linux6_4),
        ("default", Preset::Default),
    ];

    /// A change from any preset to any other leaves nothing of the first.
    #[test]
    fn a_preset_sets_what_belongs_together() {
        for (old, _) in ALL {
            for (new, preset) in ALL {
                let mut sysctls = Sysctls::default();
                sysctls.set(NAME, old).unwrap();
                sysctls.set(NAME, new).unwrap();
                assert_eq!(sysctls.get(NAME).as_deref(), Ok(new));
                for (name, value) in preset.settings() {
                    assert_eq!(sysctls.get(name).as_deref(), Ok(&*value), "{new}: {name}");
                }
                let mut direct = Sysctls::default();
                direct.set(NAME, new).unwrap();
                assert_eq!(sysctls, direct, "from {old} to {new}");
            }
        }
    }

    #[test]
    fn the_default_preset_is_the_default() {
        let mut sysctls = Sysctls::default();
        sysctls.set(NAME, "linux-3.5").unwrap();
        assert_ne!(sysctls, Sysctls::default());
        sysctls.set(NAME, "default").unwrap();
        assert_eq!(sysctls, Sysctls::default());
    }

    /// A later setting counts for itself, and the version of TCP Small Queues brings its bound.
    #[test]
    fn a_setting_after_a_preset_counts() {
        let mut sysctls = Sysctls::default();
        sysctls.set(NAME, "linux-3.6").unwrap();
        assert_eq!(sysctls.get("net.ipv4.tcp_limit_output_bytes").as_deref(), Ok("131072"));
        sysctls.set("net.quietline.tsq_protocol", "seed").unwrap();
        assert_eq!(sysctls.get("net.quietline.tsq_protocol").as_deref(), Ok("seed"));
        assert_eq!(sysctls.get("net.quietline.tsq_limit").as_deref(), Ok("static131072_ge"));
    }

    /// A running host takes a preset, but keeps the layout of its route entries.
    #[test]
    fn a_preset_of_a_running_host_keeps_the_layout() {
        let mut sysctls = Sysctls::default();
        sysctls.set_live(NAME, "linux-3.18").unwrap();
        assert_eq!(sysctls.get("net.quietline.rx_context").as_deref(), Ok("prequeue_drop"));
        assert_eq!(sysctls.get("net.quietline.dst_layout").as_deref(), Ok("filled"));
        assert_eq!(sysctls.get(NAME).as_deref(), Ok("linux-3.18"));
    }
}
