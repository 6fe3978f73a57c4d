//! Settings of one device and of one of its queues, by name.
//!
//! ```text
//!   net.quietline.dev.tap0.rx-1.rps_cpus     one queue      /sys/class/net/tap0/queues/rx-1/rps_cpus
//!   net.quietline.dev.tap0.tx-1.xps_cpus     one queue      /sys/class/net/tap0/queues/tx-1/xps_cpus
//!   net.quietline.dev.tap0.rps_cpus          all its queues
//!   net.quietline.dev.default.rps_cpus       all devices
//! ```
//!
//! Linux keeps these in sysfs; the last word is its. What is written last holds: a device or queue can be set apart after
//! all of them have been set. Before the host is built any device may be named; building it then refuses the
//! names it does not have.
//!
//! To add one: its line in the table below, in `device`, `rx_queue` or `tx_queue`. The data path reads it as
//! `cx.sysctls().devices.of(index).field`, or `….of(index).rx(queue).field`, where it changes while the host runs like every
//! other setting.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    SysctlError, WORDS,
    codec::{Codec, Discipline, Mask, Nanos, Number, NumberOrDefault, RoundedUp, Switch},
    describe,
};
use crate::{
    bql,
    config::ConfigError,
    device::{BIG_TCP_BYTES_MAX, Device},
    gro::GRO_BYTES_MAX,
    qdisc::QdiscConfig,
};

/// What every name here begins with.
pub(super) const PREFIX: &str = "net.quietline.dev.";

/// Stands for all devices.
const DEFAULT: &str = "default";

/// One line of a table of settings of a `T`.
struct Setting<T> {
    /// The name of the setting for all devices.
    name: &'static str,
    allowed: RangeInclusive<u64>,
    form: &'static str,
    read: fn(&T) -> String,
    write: fn(&mut T, &str, &RangeInclusive<u64>) -> bool,
}

impl<T> Setting<T> {
    /// The last word of the name.
    fn word(&self) -> &'static str {
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
            rx: Queues<RxQueueSettings>,
            tx: Queues<TxQueueSettings>,
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

        const DEVICE_TABLE: &[Setting<DeviceSettings>] =
            &[$(device_sysctls!(@line $field, $codec $allowed),)*];

        const RX_QUEUE_TABLE: &[Setting<RxQueueSettings>] =
            &[$(device_sysctls!(@line $rx, $rx_codec $rx_allowed),)*];

        const TX_QUEUE_TABLE: &[Setting<TxQueueSettings>] =
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
        /// The same for IPv4 (`gro_ipv4_max_size`).
        gro_ipv4_max_size: u32 = GRO_BYTES_MAX, Number 1500..=BIG_TCP_BYTES_MAX as u64;
        /// Bytes of IP packet that a superframe TCP makes stays below (`ip link set DEVICE gso_max_size`), as far as the device
        /// takes such. Above 65536 (BIG TCP) it is for IPv6 only; less holds for IPv4 too.
        gso_max_size: u32 = GRO_BYTES_MAX, Number 1500..=BIG_TCP_BYTES_MAX as u64;
        /// The same for IPv4 (`gso_ipv4_max_size`). `default` is what the device does best with: 196608 for a tap or tun with `vnet_hdr`
        /// where the kernel takes it (Linux 6.6), 65536 for any other. Differs from Linux, where it is 65536 for all.
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

/// Settings of the queues of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Queues<T> {
    /// Of those that have none of their own.
    all: T,
    /// Of those that were set apart.
    apart: Vec<(u16, T)>,
}

impl<T: Clone> Queues<T> {
    #[inline]
    fn of(&self, queue: u16) -> &T {
        match self.apart.iter().find(|(apart, _)| *apart == queue) {
            Some((_, settings)) => settings,
            None => &self.all,
        }
    }

    fn of_mut(&mut self, queue: u16) -> &mut T {
        let index = match self.apart.iter().position(|(apart, _)| *apart == queue) {
            Some(index) => index,
            None => {
                self.apart.push((queue, self.all.clone()));
                self.apart.len() - 1
            }
        };
        &mut self.apart[index].1
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.apart.iter().map(|(_, settings)| settings).chain([&self.all])
    }

    /// Writes a setting of one queue, or of all.
    fn write(&mut self, line: &Setting<T>, queue: Option<u16>, value: &str) -> Result<(), String> {
        let write = |settings| (line.write)(settings, value, &line.allowed);
        let good = match queue {
            Some(queue) => write(self.of_mut(queue)),
            None => {
                write(&mut self.all) && self.apart.iter_mut().all(|(_, settings)| write(settings))
            }
        };
        good.then_some(()).ok_or_else(|| describe(line.form, &line.allowed))
    }

    fn read(&self, line: &Setting<T>, queue: Option<u16>) -> String {
        (line.read)(queue.map_or(&self.all, |queue| self.of(queue)))
    }
}

/// A device whose settings are its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    /// Receive queues; `None` as long as nobody knows.
    queues: Option<u16>,
    /// What `gso_max_size` can be: the largest superframe it takes, and one more. No bound as long as nobody knows.
    superframe_end: u32,
    /// What `gso_ipv4_max_size` is by default; `None` as long as nobody knows.
    superframe_ipv4: Option<u32>,
    settings: DeviceSettings,
}

/// A device that the host has.
pub(crate) struct Present<'a> {
    name: &'a str,
    queues: u16,
    superframe_end: u32,
    superframe_ipv4: u32,
}

impl<'a> Present<'a> {
    pub(crate) fn of(device: &'a dyn Device) -> Self {
        let caps = device.caps();
        // Of a device that takes none software cuts up what every IPv4 header can say.
        let superframe_end = (caps.gso_max_bytes + 1).max(GRO_BYTES_MAX);
        let superframe_ipv4 = device.gso_ipv4_size();
        Self { name: &caps.name, queues: caps.queues, superframe_end, superframe_ipv4 }
    }
}

/// The settings of all devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSysctls {
    default: DeviceSettings,
    /// Once bound: every device of the host, by its index.
    devices: Vec<Named>,
    bound: bool,
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
        of_ipv4(self.gro_max_size, self.gro_ipv4_max_size)
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
    fn gso_sizes(&self) -> [(&'static str, u32); 2] {
        [("gso_max_size", self.gso_max_size), ("gso_ipv4_max_size", self.gso_ipv4_size())]
    }

    /// That of a device of which nobody knows what it does best with is the one that every device does.
    fn gso_ipv4_size(&self) -> u32 {
        self.gso_ipv4_max_size.unwrap_or(GRO_BYTES_MAX)
    }

    /// No size is more than `end`. What was asked of all devices each does as far as it can, and what nobody asked for as it does
    /// best: with `ipv4`, if that is known.
    fn bound_superframes(&mut self, end: u32, ipv4: Option<u32>) {
        self.gso_max_size = end.min(self.gso_max_size);
        self.gso_ipv4_max_size = self.gso_ipv4_max_size.or(ipv4).map(|size| end.min(size));
    }

    /// Whether a queue may be polled by time.
    #[inline]
    pub(crate) fn defers(&self) -> bool {
        self.napi_defer_hard_irqs != 0 || !self.gro_flush_timeout.is_zero()
    }

    /// Whether a queue has a map or a table: whether packets of this device may change core.
    fn steers(&self, by_socket: bool) -> bool {
        self.rx.iter().any(|rx| rx.rps_cpus != 0 || (by_socket && rx.rps_flow_cnt != 0))
    }

    /// Whether a transmit queue says which cores send by it (Linux: `xps_needed`).
    pub(crate) fn maps_tx(&self) -> bool {
        self.tx.iter().any(|tx| tx.xps_cpus != 0)
    }

    /// Writes one setting; `None` when there is no such.
    fn write(&mut self, name: &Name<'_>, value: &str) -> Option<Result<(), String>> {
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

    fn read(&self, name: &Name<'_>) -> Option<String> {
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
    fn apart(&self) -> impl Iterator<Item = (Direction, u16)> {
        let rx = self.rx.apart.iter().map(|(queue, _)| (Direction::Rx, *queue));
        rx.chain(self.tx.apart.iter().map(|(queue, _)| (Direction::Tx, *queue)))
    }
}

fn find<T>(table: &'static [Setting<T>], name: &Name<'_>) -> Option<&'static Setting<T>> {
    table.iter().find(|line| line.word() == name.setting)
}

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Rx,
    Tx,
}

impl Direction {
    const fn word(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}

/// A name taken apart: `DEVICE[.rx-N].SETTING`, or with `tx-N`. A device's name may have dots.
struct Name<'a> {
    device: &'a str,
    queue: Option<(Direction, u16)>,
    setting: &'a str,
}

impl<'a> Name<'a> {
    fn parse(full: &'a str) -> Option<Self> {
        let (head, setting) = full.strip_prefix(PREFIX)?.rsplit_once('.')?;
        let queue = head.rsplit_once('.').and_then(|(device, queue)| {
            let (word, number) = queue.split_once('-')?;
            let direction =
                [Direction::Rx, Direction::Tx].into_iter().find(|it| it.word() == word)?;
            Some((device, (direction, number.parse().ok()?)))
        });
        Some(match queue {
            Some((device, queue)) => Self { device, queue: Some(queue), setting },
            None => Self { device: head, queue: None, setting },
        })
    }

    /// The number of its queue, or all of them; `None` when that is one of the other direction.
    fn queue_of(&self, direction: Direction) -> Option<Option<u16>> {
        match self.queue {
            Some((other, _)) if other != direction => None,
            queue => Some(queue.map(|(_, number)| number)),
        }
    }
}

impl DeviceSysctls {
    /// The settings of the device with this index.
    #[inline]
    #[must_use]
    pub fn of(&self, index: u32) -> &DeviceSettings {
        self.devices.get(index as usize).map_or(&self.default, |device| &device.settings)
    }

    /// `rps_needed`: whether packets of any device may change core; `by_socket` says that there is a table of sockets.
    #[must_use]
    pub fn steers(&self, by_socket: bool) -> bool {
        self.default.steers(by_socket)
            || self.devices.iter().any(|device| device.settings.steers(by_socket))
    }

    /// Sets what `full` names.
    pub(super) fn set(&mut self, full: &str, value: &str) -> Result<(), SysctlError> {
        let unknown = || SysctlError::Unknown { name: full.to_owned() };
        let name = Name::parse(full).ok_or_else(unknown)?;
        let invalid = |allowed| SysctlError::Invalid {
            name: full.to_owned(),
            value: value.to_owned(),
            allowed,
        };
        if name.device == DEFAULT {
            if name.queue.is_some() {
                return Err(unknown());
            }
            self.default.write(&name, value).ok_or_else(unknown)?.map_err(invalid)?;
            for device in &mut self.devices {
                device.settings.write(&name, value).ok_or_else(unknown)?.map_err(invalid)?;
                device.settings.bound_superframes(device.superframe_end, device.superframe_ipv4);
            }
            return Ok(());
        }
        // Tried on a copy: a name that is refused leaves no device behind.
        let mut settings = self.find(&name).ok_or_else(unknown)?.clone();
        settings.write(&name, value).ok_or_else(unknown)?.map_err(invalid)?;
        match self.devices.iter_mut().find(|device| device.name == name.device) {
            Some(device) => {
                let end = device.superframe_end;
                if settings.gso_sizes().iter().any(|&(_, size)| size > end) {
                    return Err(invalid(format!("a number from 1500 to {end} for this device")));
                }
                settings.bound_superframes(end, device.superframe_ipv4);
                device.settings = settings;
            }
            None => {
                let name = name.device.to_owned();
                self.devices.push(Named {
                    name,
                    queues: None,
                    superframe_end: u32::MAX,
                    superframe_ipv4: None,
                    settings,
                });
            }
        }
        Ok(())
    }

    /// A value as text.
    pub(super) fn get(&self, full: &str) -> Result<String, SysctlError> {
        let unknown = || SysctlError::Unknown { name: full.to_owned() };
        let name = Name::parse(full).ok_or_else(unknown)?;
        let settings = match name.device {
            DEFAULT if name.queue.is_none() => &self.default,
            DEFAULT => return Err(unknown()),
            _ => self.find(&name).ok_or_else(unknown)?,
        };
        settings.read(&name).ok_or_else(unknown)
    }

    /// What a device has now; `None` when the host has no such device or queue.
    fn find(&self, name: &Name<'_>) -> Option<&DeviceSettings> {
        match self.devices.iter().find(|device| device.name == name.device) {
            Some(device) => {
                let has = |queue| device.queues.is_none_or(|count| queue < count);
                let known = name.queue.is_none_or(|(_, queue)| has(queue));
                known.then_some(&device.settings)
            }
            None => (!self.bound && !name.device.is_empty()).then_some(&self.default),
        }
    }

    /// Every setting with its value: that of all devices, then those of each device and of queues that were set apart.
    pub(super) fn iter(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let default = lines(&self.default, PREFIX.to_owned() + DEFAULT);
        let named = self.devices.iter().flat_map(|device| {
            let (prefix, settings) = (format!("{PREFIX}{}", device.name), &device.settings);
            let of = {
                let prefix = prefix.clone();
                move |(direction, queue): (Direction, u16)| {
                    queue_lines(settings, &prefix, direction, Some(queue))
                }
            };
            lines(settings, prefix).chain(settings.apart().flat_map(of))
        });
        default.chain(named)
    }

    /// The names for all devices, and what each accepts.
    pub(super) fn names() -> impl Iterator<Item = (&'static str, String)> {
        let device =
            DEVICE_TABLE.iter().map(|line| (line.name, describe(line.form, &line.allowed)));
        let rx = RX_QUEUE_TABLE.iter().map(|line| (line.name, describe(line.form, &line.allowed)));
        let tx = TX_QUEUE_TABLE.iter().map(|line| (line.name, describe(line.form, &line.allowed)));
        device.chain(rx).chain(tx)
    }

    /// The devices of the host, in the order of their indices, with their numbers of queues. From here on no other can be
    /// named.
    pub(crate) fn bind<'a>(
        &mut self,
        devices: impl Iterator<Item = Present<'a>>,
    ) -> Result<(), ConfigError> {
        let refuse = |who: String, why: String| {
            let name = PREFIX.to_owned() + &who;
            let error = format!("{name}: {why}");
            ConfigError::new("sysctl", name, error)
        };
        let named = core::mem::take(&mut self.devices);
        for Present { name, queues, superframe_end: end, superframe_ipv4 } in devices {
            let own = named.iter().find(|device| device.name == name);
            let mut settings = own.map_or(&self.default, |device| &device.settings).clone();
            let of_all = self.default.gso_sizes();
            let beyond = |size: &(_, u32)| size.1 > end && !of_all.contains(size);
            if let Some((size, _)) = settings.gso_sizes().into_iter().find(beyond) {
                let size = format!("{name}.{size}");
                return Err(refuse(size, format!("{name} takes {end} at most")));
            }
            let superframe_ipv4 = Some(superframe_ipv4);
            settings.bound_superframes(end, superframe_ipv4);
            if let Some((direction, queue)) = settings.apart().find(|(_, queue)| *queue >= queues) {
                let who = format!("{name}.{}-{queue}", direction.word());
                return Err(refuse(who, format!("{name} has {queues} queues")));
            }
            let (name, queues) = (name.to_owned(), Some(queues));
            self.devices.push(Named {
                name,
                queues,
                superframe_end: end,
                superframe_ipv4,
                settings,
            });
        }
        self.bound = true;
        let has = |name: &str| self.devices.iter().any(|device| device.name == name);
        if let Some(stranger) = named.iter().find(|device| !has(&device.name)) {
            let names: Vec<_> = self.devices.iter().map(|device| device.name.as_str()).collect();
            let allowed = format!("the devices of this host are {}", names.join(" "));
            return Err(refuse(stranger.name.clone(), allowed));
        }
        Ok(())
    }
}

/// The size for IPv4: its own, unless that for both families is one that all devices have. Linux writes the one into the other
/// then; here the smaller holds, whichever was written last.
const fn of_ipv4(both: u32, ipv4: u32) -> u32 {
    if both < ipv4 && both < GRO_BYTES_MAX { both } else { ipv4 }
}

fn lines(settings: &DeviceSettings, prefix: String) -> impl Iterator<Item = (String, String)> + '_ {
    let device = DEVICE_TABLE.iter().map({
        let prefix = prefix.clone();
        move |line| (format!("{prefix}.{}", line.word()), (line.read)(settings))
    });
    let both = [Direction::Rx, Direction::Tx].into_iter();
    device.chain(both.flat_map(move |direction| queue_lines(settings, &prefix, direction, None)))
}

/// The settings of one queue, or of all.
fn queue_lines(
    settings: &DeviceSettings,
    prefix: &str,
    direction: Direction,
    queue: Option<u16>,
) -> Vec<(String, String)> {
    let prefix = match queue {
        Some(queue) => format!("{prefix}.{}-{queue}", direction.word()),
        None => prefix.to_owned(),
    };
    fn of<T: Clone>(
        (table, queues): (&[Setting<T>], &Queues<T>),
        prefix: &str,
        queue: Option<u16>,
    ) -> Vec<(String, String)> {
        let line =
            |line: &Setting<T>| (format!("{prefix}.{}", line.word()), queues.read(line, queue));
        table.iter().map(line).collect()
    }
    match direction {
        Direction::Rx => of((RX_QUEUE_TABLE, &settings.rx), &prefix, queue),
        Direction::Tx => of((TX_QUEUE_TABLE, &settings.tx), &prefix, queue),
    }
}

#[cfg(test)]
mod tests;
