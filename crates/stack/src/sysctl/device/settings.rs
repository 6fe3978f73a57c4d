//! The settings themselves: what a device has, a receive queue and a transmit queue, and the tables of their names.
//!
//! To add one: its line in the table below, in `device`, `rx_queue` or `tx_queue`.
//!
//! Not here: whose they are (`device`), and which queues were set apart (`queues`).

use std::{ops::RangeInclusive, time::Duration};

use super::{
    name::{Direction, Name},
    queues::Queues,
};
use crate::{
    bql,
    device::BIG_TCP_BYTES_MAX,
    gro::GRO_BYTES_MAX,
    qdisc::QdiscConfig,
    sysctl::{
        WORDS,
        codec::{Codec, Discipline, Mask, Nanos, Number, NumberOrDefault, RoundedUp, Switch},
        describe,
    },
};

/// One line of a table of settings of a `T`.
pub(super) struct Setting<T> {
    /// The name of the setting for all devices.
    pub(super) name: &'static str,
    pub(super) allowed: RangeInclusive<u64>,
    pub(super) form: &'static str,
    pub(super) read: fn(&T) -> String,
    pub(super) write: fn(&mut T, &str, &RangeInclusive<u64>) -> bool,
}

impl<T> Setting<T> {
    /// The last word of the name.
    pub(super) fn word(&self) -> &'static str {
        self.name.strip_prefix("net.quietline.dev.default.").expect("the macro puts it in front")
    }
}

/// Expands the table below into the two structs and the lines of both.
macro_rules! device_sysctls {
    (
        device { $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr, $codec:ident $allowed:expr;)* }
        rx_queue { $($(#[$rx_doc:meta])* $rx:ident: $rx_type:ty = $rx_default:expr, $rx_codec:ident $rx_allowed:expr;)* }
        tx_queue { $($(#[$tx_doc:meta])* $tx:ident: $tx_type:ty = $tx_default:expr, $tx_codec:ident $tx_allowed:expr;)* }
    ) => {
        /// Settings of one device.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct DeviceSettings {
            $($(#[$doc])* pub $field: $type,)*
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
            $($(#[$rx_doc])* pub $rx: $rx_type,)*
        }

        impl Default for RxQueueSettings {
            fn default() -> Self {
                Self { $($rx: $rx_default,)* }
            }
        }

        /// Settings of one transmit queue.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct TxQueueSettings {
            $($(#[$tx_doc])* pub $tx: $tx_type,)*
        }

        impl Default for TxQueueSettings {
            fn default() -> Self {
                Self { $($tx: $tx_default,)* }
            }
        }

        pub(super) const DEVICE_TABLE: &[Setting<DeviceSettings>] =
            &[$(device_sysctls!(@line $field, $codec $allowed),)*];

        pub(super) const RX_QUEUE_TABLE: &[Setting<RxQueueSettings>] =
            &[$(device_sysctls!(@line $rx, $rx_codec $rx_allowed),)*];

        pub(super) const TX_QUEUE_TABLE: &[Setting<TxQueueSettings>] =
            &[$(device_sysctls!(@line $tx, $tx_codec $tx_allowed),)*];
    };
    (@line $field:ident, $codec:ident $allowed:expr) => {
        Setting {
            name: concat!("net.quietline.dev.default.", stringify!($field)),
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
        /// How long, in nanoseconds, what receive offload holds may wait for more, and after how long a queue is polled whose
        /// descriptor is put off. 0: nothing waits.
        gro_flush_timeout: Duration = Duration::ZERO, Nanos 0..=1_000_000_000;
        /// How many polls in a row must find a queue empty, `gro_flush_timeout` apart, before its descriptor is watched again.
        napi_defer_hard_irqs: u32 = 0, Number 0..=0x7fff_ffff;
        /// Superframes for this device, which it takes itself or software cuts up in front of it (`ethtool -K DEV gso`). 0:
        /// TCP makes single segments.
        gso: bool = true, Switch 0..=1;
        /// Whether segments that the device delivers are merged (`ethtool -K DEVICE gro`). Loopback's never are, as in Linux.
        gro: bool = true, Switch 0..=1;
        /// Bytes of IP packet that a merged superframe stays below (`ip link set DEVICE gro_max_size`). Above 65536 (BIG TCP) it
        /// is for IPv6 only; less holds for IPv4 too.
        gro_max_size: u32 = GRO_BYTES_MAX, Number 1500..=BIG_TCP_BYTES_MAX as u64;
        /// The same for IPv4 (`gro_ipv4_max_size`). `default` is what `gso_ipv4_max_size` is by default. Differs from Linux, where it
        /// is 65536 for all.
        gro_ipv4_max_size: Option<u32> = None, NumberOrDefault 1500..=BIG_TCP_BYTES_MAX as u64;
        /// Bytes of IP packet that a superframe TCP makes stays below (`ip link set DEVICE gso_max_size`), as far as the device
        /// takes such. Above 65536 (BIG TCP) it is for IPv6 only; less holds for IPv4 too.
        gso_max_size: u32 = GRO_BYTES_MAX, Number 1500..=BIG_TCP_BYTES_MAX as u64;
        /// The same for IPv4 (`gso_ipv4_max_size`). `default` is what the device does best with: 196608 for a tap or tun with `vnet_hdr`
        /// where the kernel takes it (Linux 6.6), 81920 for a wire in memory, 65536 for any other. Differs from Linux, where it is
        /// 65536 for all. Once such a kernel had no memory for one (`DeviceTxRefused`), they stay below 65536 until the device is taken down and up.
        gso_ipv4_max_size: Option<u32> = None, NumberOrDefault 1500..=BIG_TCP_BYTES_MAX as u64;
        /// The queueing discipline of every transmit queue, as `tc qdisc replace dev DEVICE root ...` has it: `tbf rate 100mbit
        /// burst 10kb latency 50ms`. `default` is `net.core.default_qdisc` for a device that has queues of its own, and `noqueue`
        /// for one that takes everything at once. What waits in the one before is dropped.
        qdisc: Option<QdiscConfig> = None, Discipline WORDS;
        /// Packets that one band of `pfifo_fast` holds (`ip link set DEVICE txqueuelen`), from the next discipline on.
        tx_queue_len: u32 = 1000, Number 1..=0x7fff_ffff;
        /// Least bytes that a transmit queue may hand to a device before it has completed them (`byte_queue_limits/limit_min`).
        bql_limit_min: u32 = 0, Number 0..=bql::LIMIT_MAX as u64;
        /// Most bytes (`byte_queue_limits/limit_max`).
        bql_limit_max: u32 = bql::LIMIT_MAX, Number 0..=bql::LIMIT_MAX as u64;
    }
    rx_queue {
        /// Cores that the packets of this queue are spread over by the hash of their flow (RPS), a bit for each; those the host
        /// does not have count for nothing. 0: they stay on the core that polls the queue.
        rps_cpus: u64 = 0, Mask WORDS;
        /// Slots of the table that keeps the packets of a flow in order when the flow changes its core, rounded up to a power
        /// of two. RFS needs it, and `net.core.rps_sock_flow_entries`.
        rps_flow_cnt: u32 = 0, RoundedUp 0..=1 << 20;
    }
    tx_queue {
        /// Cores that send by this queue (XPS), a bit for each; of several that are a core's, the hash of the flow chooses. A core
        /// that is in no queue's mask sends by the queue of its connection, a core's number being its queue's. What an application
        /// sends counts for the core of its connection, or with RFS for the one that its thread last polled. A flow changes its
        /// queue only while none of its packets is in the old one.
        xps_cpus: u64 = 0, Mask WORDS;
    }
}

impl DeviceSettings {
    /// The settings of a receive queue.
    #[inline]
    #[must_use]
    pub fn rx(&self, queue: u16) -> &RxQueueSettings {
        self.rx.of(queue)
    }

    /// The settings of a transmit queue.
    #[must_use]
    pub fn tx(&self, queue: u16) -> &TxQueueSettings {
        self.tx.of(queue)
    }

    /// What a superframe merged for IPv4 stays below.
    #[inline]
    #[must_use]
    pub fn gro_ipv4_bytes(&self) -> u32 {
        of_ipv4(self.gro_max_size, self.gro_ipv4_max_size.unwrap_or(GRO_BYTES_MAX))
    }

    /// Largest superframe TCP makes of this family; 0: none.
    #[must_use]
    pub fn gso_bytes_max(&self, v4: bool) -> u32 {
        let end = match v4 {
            true => of_ipv4(self.gso_max_size, self.gso_ipv4_size()),
            false => self.gso_max_size,
        };
        if self.gso { end - 1 } else { 0 }
    }

    /// The names of sizes that are for superframes that a device has to take.
    pub(super) fn gso_sizes(&self) -> [(&'static str, u32); 2] {
        [("gso_max_size", self.gso_max_size), ("gso_ipv4_max_size", self.gso_ipv4_size())]
    }

    /// That of a device of which nobody knows what it does best with is the one that every device does.
    fn gso_ipv4_size(&self) -> u32 {
        self.gso_ipv4_max_size.unwrap_or(GRO_BYTES_MAX)
    }

    /// No size of what is sent is more than `end`. What was asked of all devices each does as far as it can, and what nobody
    /// asked for as it does best: with `ipv4`, if that is known.
    pub(super) fn bound_superframes(&mut self, end: u32, ipv4: Option<u32>) {
        self.gso_max_size = end.min(self.gso_max_size);
        self.gso_ipv4_max_size = self.gso_ipv4_max_size.or(ipv4).map(|size| end.min(size));
        self.gro_ipv4_max_size = self.gro_ipv4_max_size.or(ipv4);
    }

    /// Whether a queue may be polled by time.
    #[inline]
    pub(crate) fn defers(&self) -> bool {
        self.napi_defer_hard_irqs != 0 || !self.gro_flush_timeout.is_zero()
    }

    /// Whether a queue has a map or a table: whether packets of this device may change core.
    pub(super) fn steers(&self, by_socket: bool) -> bool {
        self.rx.iter().any(|rx| rx.rps_cpus != 0 || (by_socket && rx.rps_flow_cnt != 0))
    }

    /// Whether a transmit queue says which cores send by it (Linux: `xps_needed`).
    pub(crate) fn maps_tx(&self) -> bool {
        self.tx.iter().any(|tx| tx.xps_cpus != 0)
    }

    /// Writes one setting; `None` when there is no such.
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

    /// Queues that were set apart, by the words of their names.
    pub(super) fn apart(&self) -> impl Iterator<Item = (Direction, u16)> {
        let rx = self.rx.apart.iter().map(|(queue, _)| (Direction::Rx, *queue));
        rx.chain(self.tx.apart.iter().map(|(queue, _)| (Direction::Tx, *queue)))
    }
}

fn find<T>(table: &'static [Setting<T>], name: &Name<'_>) -> Option<&'static Setting<T>> {
    table.iter().find(|line| line.word() == name.setting)
}

/// The size for IPv4: its own, unless that for both families is one that all devices have. Linux writes the one into the other
/// then; here the smaller holds, whichever was written last.
const fn of_ipv4(both: u32, ipv4: u32) -> u32 {
    if both < ipv4 && both < GRO_BYTES_MAX { both } else { ipv4 }
}
