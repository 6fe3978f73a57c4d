//! `net.quietline.preset`: the settings that together reproduce the data path of one version of
//! Linux.
//!
//! Above: `Sysctls::set`. A preset sets every setting of the table, so that no value of a previous
//! preset remains. A setting that is set later keeps its own value.
//!
//! The comment of a row names the versions that differ, and the place in Linux's sources;
//! docs/mechanisms.md lists the commits. A preset describes the first release of its version: later
//! stable releases of 5.4 already deliver merged packets in the list, as 5.5 does. A setting has
//! the default value of that version, with these exceptions:
//! - The two packet caches of `linux-5.2` are on. Linux 5.2 introduced them, but they are off there
//!   by default.
//! - No preset chooses `net.quietline.tsq_protocol=seed`, which loses wake-ups, as Linux 3.6 and
//!   3.18 did. A demonstration sets it in addition to the preset.
//! - `cas_inc_not_zero` is the oldest way of counting that this stack has. Linux before 4.4
//!   incremented without a test for zero.
//! - With `prequeue_ref`, a queued packet holds a reference to its route. Linux before 3.9 took
//!   none, and could use a freed route (commit 093162553c33).
//!
//! Not here: the effects of the settings (docs/mechanisms.md).

use std::borrow::Cow;

use super::{SysctlError, Sysctls, modes::Preset};

/// Settings, with their values in Linux 3.5, 3.6, 3.18, 5.2, 5.4 and 6.4.
const TABLE: [(&str, [&str; 6]); 19] = [
    // tcp_prequeue(): packets hold references to routes until 3.17 and drop them from 3.18 on. The
    // prequeue was removed in 4.14.
    (
        "net.quietline.rx_context",
        ["prequeue_ref", "prequeue_ref", "prequeue_drop", "bh", "bh", "bh"],
    ),
    // sk_rx_dst exists since 3.6, and tcp_prequeue() tests it since 3.18. The backlog drops the
    // route since 5.0 (tcp_add_backlog()). RCU protects sk_rx_dst at all times only since 5.16; no
    // mode reproduces the earlier gap.
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
    // ip_early_demux exists since 3.6. tcp_early_demux exists since 4.12, with default 1; it has no
    // effect in the column of 3.5, where the setting above is 0.
    ("net.ipv4.ip_early_demux", ["0", "1", "1", "1", "1", "1"]),
    ("net.ipv4.tcp_early_demux", ["1", "1", "1", "1", "1", "1"]),
    ("net.ipv4.tcp_low_latency", ["0", "0", "0", "0", "0", "0"]),
    // include/net/dst.h: dst_hold_safe() with atomic_inc_not_zero(), rcuref_get() since 6.4.
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
    // ipv4_dst_check() reads rt_genid of the entry in every version.
    ("net.quietline.dst_check", ["entry", "entry", "entry", "entry", "entry", "entry"]),
    // struct dst_entry: __refcnt shares a line with lwtstate and rt_genid (5.19); in 6.4
    // rt_uncached fills the space between them.
    ("net.quietline.dst_layout", ["packed", "packed", "packed", "packed", "packed", "filled"]),
    // napi_gro_frags() fills a list since 5.4, and all functions that deliver packets since 5.5;
    // the list counts segments since 5.11 (gro_normal_one()).
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
    // busy_poll_stop() and napi_busy_loop() flush the list since 5.4. In the columns without a
    // list, the flush has no effect.
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
    // Busy polling is off in every version; since 3.11 an administrator can switch it on.
    ("net.core.busy_read", ["0", "0", "0", "0", "0", "0"]),
    ("net.core.busy_poll", ["0", "0", "0", "0", "0", "0"]),
    // tcp_write_xmit(): no limit in 3.5, 131,072 bytes in 3.6, the larger of that and 1 ms at the
    // pacing rate from 3.13 to 3.18. From 5.0 to 6.15, tcp_small_queue_check(): 1 MiB, and no limit
    // for paced connections.
    (
        "net.quietline.tsq_limit",
        ["off", "static131072_ge", "dyn_max", "paced_exempt", "paced_exempt", "paced_exempt"],
    ),
    ("net.quietline.tsq_protocol", ["robust", "robust", "robust", "robust", "robust", "robust"]),
    // tcp_autocorking exists since 3.14, with default 1.
    ("net.ipv4.tcp_autocorking", ["0", "0", "1", "1", "1", "1"]),
    // sk_tx_skb_cache and sk_rx_skb_cache exist from 5.2 to 5.15, skb_attempt_defer_free() since
    // 5.19.
    (
        "net.quietline.skb_recycle",
        ["none", "none", "none", "socket_one", "socket_one", "per_core_defer"],
    ),
    // The settings exist from 5.2 to 5.15, with default 0 (tcp_tx_skb_cache_key,
    // tcp_rx_skb_cache_key). They have no effect in the other columns.
    ("net.ipv4.tcp_tx_skb_cache", ["1", "1", "1", "1", "0", "1"]),
    ("net.ipv4.tcp_rx_skb_cache", ["1", "1", "1", "1", "0", "1"]),
    // The setting exists since 6.7.
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
    /// Sets all settings of the preset.
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

    /// Setting any preset after any other has the same result as setting it first.
    #[test]
    fn a_preset_replaces_all_settings_of_another_preset() {
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
    fn the_default_preset_restores_the_default_settings() {
        let mut sysctls = Sysctls::default();
        sysctls.set(NAME, "linux-3.5").unwrap();
        assert_ne!(sysctls, Sysctls::default());
        sysctls.set(NAME, "default").unwrap();
        assert_eq!(sysctls, Sysctls::default());
    }

    /// The preset's `tsq_limit` also sets the default limit in bytes. A setting that is set later
    /// changes alone.
    #[test]
    fn a_setting_after_a_preset_changes_only_its_own_value() {
        let mut sysctls = Sysctls::default();
        sysctls.set(NAME, "linux-3.6").unwrap();
        assert_eq!(sysctls.get("net.ipv4.tcp_limit_output_bytes").as_deref(), Ok("131072"));
        sysctls.set("net.quietline.tsq_protocol", "seed").unwrap();
        assert_eq!(sysctls.get("net.quietline.tsq_protocol").as_deref(), Ok("seed"));
        assert_eq!(sysctls.get("net.quietline.tsq_limit").as_deref(), Ok("static131072_ge"));
    }

    /// A preset of a running host does not change the layout of route entries.
    #[test]
    fn a_preset_of_a_running_host_keeps_the_dst_layout() {
        let mut sysctls = Sysctls::default();
        sysctls.set_live(NAME, "linux-3.18").unwrap();
        assert_eq!(sysctls.get("net.quietline.rx_context").as_deref(), Ok("prequeue_drop"));
        assert_eq!(sysctls.get("net.quietline.dst_layout").as_deref(), Ok("filled"));
        assert_eq!(sysctls.get(NAME).as_deref(), Ok("linux-3.18"));
    }
}
