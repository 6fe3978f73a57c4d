//! Settings of a device, a receive queue and a transmit queue, and the tables of their names.
//!
//! To add a setting, add its row to the table below, in `device`, `rx_queue` or `tx_queue`.
//!
//! Not here: the assignment of settings to devices and queues (`device`).

use std::{ops::RangeInclusive, time::Duration};

use super::{DeviceSysctls, Direction, Name, Queues};
use crate::{
    base::limits::{self, BIG_TCP_BYTES_MAX, GRO_BYTES_MAX},
    sysctl::{
        Row, Tier, WORDS,
        codec::{Codec, Discipline, Mask, Nanos, Number, NumberOrDefault, RoundedUp, Switch},
        describe,
        qdisc::QdiscConfig,
    },
};

/// Row of a table of settings of a `T`.
pub(super) struct Setting<T> {
    /// Name of the setting for all devices.
    pub(super) name: &'static str,
    pub(super) tier: Tier,
    /// Documentation comment of the row, with a blank in front of each of its lines.
    pub(super) description: &'static str,
    pub(super) allowed: RangeInclusive<u64>,
    pub(super) form: &'static str,
    pub(super) read: fn(&T) -> String,
    pub(super) write: fn(&mut T, &str, &RangeInclusive<u64>) -> bool,
}

impl<T> Setting<T> {
    /// Returns the last word of the name.
    pub(super) fn word(&self) -> &'static str {
        self.name.strip_prefix("net.quietline.dev.default.").expect("the macro adds this prefix")
    }

    fn row(&self) -> Row {
        Row {
            name: self.name,
            tier: self.tier,
            accepts: describe(self.form, &self.allowed),
            description: self.description.trim_start(),
        }
    }
}

impl DeviceSysctls {
    /// Returns the settings with their names for all devices.
    pub(in crate::sysctl) fn rows() -> impl Iterator<Item = Row> {
        let device = DEVICE_TABLE.iter().map(Setting::row);
        let rx = RX_QUEUE_TABLE.iter().map(Setting::row);
        device.chain(rx).chain(TX_QUEUE_TABLE.iter().map(Setting::row))
    }
}

/// Expands the table below into three structs of settings, each with its table of rows.
macro_rules! device_sysctls {
    (
        device { $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:expr, $codec:ident $allowed:expr, $tier:ident;)* }
        rx_queue { $($(#[doc = $rx_doc:literal])* $rx:ident: $rx_type:ty = $rx_default:expr, $rx_codec:ident $rx_allowed:expr, $rx_tier:ident;)* }
        tx_queue { $($(#[doc = $tx_doc:literal])* $tx:ident: $tx_type:ty = $tx_default:expr, $tx_codec:ident $tx_allowed:expr, $tx_tier:ident;)* }
    ) => {
        /// Settings of one device.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct DeviceSettings {
            $($(#[doc = $doc])* pub $field: $type,)*
            pub(super) rx: Queues<RxQueueSettings>,
            pub(super) tx: Queues<TxQueueSettings>,
        }

        impl Default for DeviceSettings {
            fn default() -> Self {
                Self { $($field: $default,)* rx: Queues::default(), tx: Queues::default() }
            }
        }

        /// Settings of one receive queue.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct RxQueueSettings {
            $($(#[doc = $rx_doc])* pub $rx: $rx_type,)*
        }

        impl Default for RxQueueSettings {
            fn default() -> Self {
                Self { $($rx: $rx_default,)* }
            }
        }

        /// Settings of one transmit queue.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct TxQueueSettings {
            $($(#[doc = $tx_doc])* pub $tx: $tx_type,)*
        }

        impl Default for TxQueueSettings {
            fn default() -> Self {
                Self { $($tx: $tx_default,)* }
            }
        }

        pub(super) const DEVICE_TABLE: &[Setting<DeviceSettings>] =
            &[$(device_sysctls!(@line concat!($($doc),*), $field, $codec $allowed, $tier),)*];

        pub(super) const RX_QUEUE_TABLE: &[Setting<RxQueueSettings>] =
            &[$(device_sysctls!(@line concat!($($rx_doc),*), $rx, $rx_codec $rx_allowed, $rx_tier),)*];

        pub(super) const TX_QUEUE_TABLE: &[Setting<TxQueueSettings>] =
            &[$(device_sysctls!(@line concat!($($tx_doc),*), $tx, $tx_codec $tx_allowed, $tx_tier),)*];
    };
    (@line $description:expr, $field:ident, $codec:ident $allowed:expr, $tier:ident) => {
        Setting {
            name: concat!("net.quietline.dev.default.", stringify!($field)),
            tier: Tier::$tier,
            description: $description,
            allowed: $allowed,
            form: $codec::FORM,
            read: |settings| $codec::format(&settings.$field),
            write: |settings, text, allowed| match $codec::parse(text, allowed) {
                Some(value) => {
                    settings.$field = value;
                    true
                }
                None => false,
            },
        }
    };
}

device_sysctls! {
    device {
        /// Time for which receive offload may hold segments to merge them with later ones, in
        /// nanoseconds; it is also the interval of polls while `napi_defer_hard_irqs` keeps the
        /// descriptor unwatched. 0: segments are held until a poll has emptied the queue. Set it,
        /// for example to 20000, if segments of a flow arrive in many small polls.
        gro_flush_timeout: Duration = Duration::ZERO, Nanos 0..=1_000_000_000, Tune;
        /// Number of polls in a row that must find a queue empty, `gro_flush_timeout` apart, before
        /// its descriptor is watched again. 0: at once. Set it to trade CPU time for fewer wake-ups
        /// under load.
        napi_defer_hard_irqs: u32 = 0, Number 0..=0x7fff_ffff, Tune;
        /// Superframes on transmit: TCP builds packets of many segments, and UDP of many datagrams
        /// of one call, which the device or software cuts (`ethtool -K DEVICE gso`). Set 0 if
        /// single segments must reach the device at their own times.
        gso: bool = true, Switch 0..=1, Operate;
        /// Receive offload: segments of one flow are merged into superframes (`ethtool -K DEVICE
        /// gro`). Loopback never merges, as in Linux. Set 0 to see every segment as it arrived.
        gro: bool = true, Switch 0..=1, Operate;
        /// Merged superframes are IP packets of fewer bytes than this (`ip link set DEVICE
        /// gro_max_size`). Values above 65536 (BIG TCP) apply to IPv6 only; smaller ones apply to
        /// IPv4 too. Lower it to bound the delay of one packet.
        gro_max_size: u32 = GRO_BYTES_MAX, Number 1500..=BIG_TCP_BYTES_MAX as u64, Tune;
        /// Merged IPv4 superframes are packets of fewer bytes than this (`ip link set DEVICE
        /// gro_ipv4_max_size`). `default` is the default of `gso_ipv4_max_size`. Differs from
        /// Linux, where it is 65536. Set 65536 if programs look into packets and read the length
        /// field, which is 0 in larger ones.
        gro_ipv4_max_size: Option<u32> = None, NumberOrDefault 1500..=BIG_TCP_BYTES_MAX as u64, Tune;
        /// Transmitted superframes are IP packets of fewer bytes than this (`ip link set DEVICE
        /// gso_max_size`); the device bounds them as well. Values above 65536 (BIG TCP) apply to
        /// IPv6 only; smaller ones apply to IPv4 too. Lower it on slow links, so that one packet
        /// delays others less.
        gso_max_size: u32 = GRO_BYTES_MAX, Number 1500..=BIG_TCP_BYTES_MAX as u64, Tune;
        /// Transmitted IPv4 superframes are packets of fewer bytes than this (`ip link set DEVICE
        /// gso_ipv4_max_size`). `default` is the best known value of the device: 196608 for a tap
        /// or tun with `vnet_hdr` if the kernel accepts it (Linux 6.6), 81920 for a wire (the
        /// in-process link between two hosts), 65536 for others. Differs from Linux, where it is
        /// 65536. After the kernel had no memory for a larger one (`DeviceTxRefused`), superframes
        /// stay below 65536 until the device is taken down and up. Set 65536 if programs look into
        /// packets and read the length field, which is 0 in larger ones.
        gso_ipv4_max_size: Option<u32> = None, NumberOrDefault 1500..=BIG_TCP_BYTES_MAX as u64, Tune;
        /// Queueing discipline of every transmit queue, written as for `tc qdisc replace dev DEVICE
        /// root ...`, for example `tbf rate 100mbit burst 10kb latency 50ms`. `default` is
        /// `net.core.default_qdisc` for a device whose packets may have to wait, and `noqueue` for
        /// one that takes every packet at once. A change drops the packets that wait in the old
        /// one. Set it to limit the rate, to pace flows, or to keep queues short.
        qdisc: Option<QdiscConfig> = None, Discipline WORDS, Operate;
        /// Number of packets that one band of `pfifo_fast` holds, or that wait without a discipline
        /// for a device that has no room (`ip link set DEVICE txqueuelen`). The bands keep their
        /// length until the discipline changes. Lower it on slow links to shorten the queue.
        tx_queue_len: u32 = 1000, Number 1..=0x7fff_ffff, Operate;
        /// Lower bound of the byte queue limit, in bytes: a transmit queue may always hand over
        /// this much before the device completes any (`byte_queue_limits/limit_min`). Raise it if
        /// the limit starves a device with late completions.
        bql_limit_min: u32 = 0, Number 0..=limits::BQL_LIMIT_MAX as u64, Tune;
        /// Upper bound of the byte queue limit, in bytes: a transmit queue hands over at most this
        /// much before the device completes some (`byte_queue_limits/limit_max`). There is no limit
        /// without a discipline, or for a device that completes packets at once. Lower it if
        /// packets wait too long inside the device.
        bql_limit_max: u32 = limits::BQL_LIMIT_MAX, Number 0..=limits::BQL_LIMIT_MAX as u64, Tune;
    }
    rx_queue {
        /// Cores among which the packets of this queue are spread by the hash of their flow (RPS),
        /// one bit for each; bits of cores that the host does not have are ignored. 0: packets stay
        /// on the core that polls the queue. Set it if the device has fewer queues than the host
        /// has cores, and one core is the bottleneck.
        rps_cpus: u64 = 0, Mask WORDS, Operate;
        /// Number of slots in the table that keeps packets of a flow in order when the flow changes
        /// its core; it is rounded up to a power of two. 0: RFS is off for this queue. Set it
        /// together with `net.core.rps_sock_flow_entries`, to that number divided by the number of
        /// queues.
        rps_flow_cnt: u32 = 0, RoundedUp 0..=1 << 20, Operate;
    }
    tx_queue {
        /// Cores that transmit on this queue (XPS), one bit for each; the hash of the flow chooses
        /// among several queues of one core. A core without a queue uses the queue with the number
        /// of the connection's core. A send by an application counts for the core of its
        /// connection, or with RFS for the core that its thread polled last. A flow changes its
        /// queue only while no packet of it is in the old one. Set it to keep queues apart that
        /// several cores would share.
        xps_cpus: u64 = 0, Mask WORDS, Operate;
    }
}

impl DeviceSettings {
    /// Returns the settings of a receive queue.
    #[inline]
    #[must_use]
    pub fn rx(&self, queue: u16) -> &RxQueueSettings {
        self.rx.of(queue)
    }

    /// Returns the settings of a transmit queue.
    #[must_use]
    pub fn tx(&self, queue: u16) -> &TxQueueSettings {
        self.tx.of(queue)
    }

    /// Returns the exclusive upper bound of a merged IPv4 superframe, in bytes.
    #[inline]
    #[must_use]
    pub fn gro_ipv4_bytes(&self) -> u32 {
        of_ipv4(self.gro_max_size, self.gro_ipv4_max_size.unwrap_or(GRO_BYTES_MAX))
    }

    /// Returns the length of the largest superframe that TCP builds for this address family, in
    /// bytes. 0: TCP builds no superframes.
    #[must_use]
    pub fn gso_bytes_max(&self, v4: bool) -> u32 {
        let end = match v4 {
            true => of_ipv4(self.gso_max_size, self.gso_ipv4_size()),
            false => self.gso_max_size,
        };
        if self.gso { end - 1 } else { 0 }
    }

    /// Returns the names and values of the sizes that the device must support.
    pub(super) fn gso_sizes(&self) -> [(&'static str, u32); 2] {
        [("gso_max_size", self.gso_max_size), ("gso_ipv4_max_size", self.gso_ipv4_size())]
    }

    /// Returns the size for IPv4. Until the device's best size is known, it is the size that every
    /// device supports.
    fn gso_ipv4_size(&self) -> u32 {
        self.gso_ipv4_max_size.unwrap_or(GRO_BYTES_MAX)
    }

    /// Limits the sizes of transmitted superframes to `end`, because a value for all devices may
    /// exceed it. Sizes for IPv4 that are not set become `ipv4`, the device's best size, if it is
    /// known.
    pub(super) fn bound_superframes(&mut self, end: u32, ipv4: Option<u32>) {
        self.gso_max_size = end.min(self.gso_max_size);
        self.gso_ipv4_max_size = self.gso_ipv4_max_size.or(ipv4).map(|size| end.min(size));
        self.gro_ipv4_max_size = self.gro_ipv4_max_size.or(ipv4);
    }

    /// Whether a timer may poll the queues of this device.
    #[inline]
    pub(crate) fn defers(&self) -> bool {
        self.napi_defer_hard_irqs != 0 || !self.gro_flush_timeout.is_zero()
    }

    /// Whether packets of this device may change their core: a queue has an RPS map or an RFS
    /// table.
    pub(super) fn steers(&self, by_socket: bool) -> bool {
        self.rx.iter().any(|rx| rx.rps_cpus != 0 || (by_socket && rx.rps_flow_cnt != 0))
    }

    /// Whether a transmit queue restricts the cores that use it (Linux: `xps_needed`).
    pub(crate) fn maps_tx(&self) -> bool {
        self.tx.iter().any(|tx| tx.xps_cpus != 0)
    }

    /// Writes one setting. Returns `None` if no setting has this name.
    pub(super) fn write(&mut self, name: &Name<'_>, value: &str) -> Option<Result<(), String>> {
        if let Some(line) = find(DEVICE_TABLE, name) {
            if name.queue.is_some() {
                return None;
            }
            let good = (line.write)(self, value, &line.allowed);
            return Some(good.then_some(()).ok_or_else(|| describe(line.form, &line.allowed)));
        }
        if let Some(line) = find(RX_QUEUE_TABLE, name) {
            return Some(self.rx.write(line, name.queue_of(Direction::Rx)?, value));
        }
        let line = find(TX_QUEUE_TABLE, name)?;
        Some(self.tx.write(line, name.queue_of(Direction::Tx)?, value))
    }

    pub(super) fn read(&self, name: &Name<'_>) -> Option<String> {
        if let Some(line) = find(DEVICE_TABLE, name) {
            return name.queue.is_none().then(|| (line.read)(self));
        }
        if let Some(line) = find(RX_QUEUE_TABLE, name) {
            return Some(self.rx.read(line, name.queue_of(Direction::Rx)?));
        }
        let line = find(TX_QUEUE_TABLE, name)?;
        Some(self.tx.read(line, name.queue_of(Direction::Tx)?))
    }

    /// Returns the queues with their own settings.
    pub(super) fn apart(&self) -> impl Iterator<Item = (Direction, u16)> {
        let rx = self.rx.apart.iter().map(|(queue, _)| (Direction::Rx, *queue));
        rx.chain(self.tx.apart.iter().map(|(queue, _)| (Direction::Tx, *queue)))
    }
}

fn find<T>(table: &'static [Setting<T>], name: &Name<'_>) -> Option<&'static Setting<T>> {
    table.iter().find(|line| line.word() == name.setting)
}

/// Returns the effective size for IPv4. The size for both families applies if it is smaller than
/// the one for IPv4 and every device supports it. Differs from Linux, which copies the size for
/// both families into the one for IPv4 when the former is written: here the smaller one applies,
/// whichever was written last.
const fn of_ipv4(both: u32, ipv4: u32) -> u32 {
    if both < ipv4 && both < GRO_BYTES_MAX { both } else { ipv4 }
}
