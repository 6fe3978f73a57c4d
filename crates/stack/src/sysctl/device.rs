//! Settings of one device and of one of its queues, by name.
//!
//! ```text
//!   net.quietline.dev.tap0.rx-1.rps_cpus  one queue   /sys/class/net/tap0/queues/rx-1/rps_cpus
//!   net.quietline.dev.tap0.tx-1.xps_cpus  one queue   /sys/class/net/tap0/queues/tx-1/xps_cpus
//!   net.quietline.dev.tap0.rps_cpus       all its queues
//!   net.quietline.dev.default.rps_cpus    all devices
//! ```
//!
//! Linux keeps many of these settings in sysfs, with the same last word of the name; the
//! descriptions of the others name the counterpart. The last write applies: a value for all devices
//! or queues replaces the values of single ones, and a single one can get its own value afterwards.
//! Before the host is built, any device may be named; building the host then rejects names of
//! devices it does not have.
//!
//! To add a setting, add its row to a table of `settings`. The data path reads it as
//! `cx.sysctls().devices.of(index).field` or `….of(index).rx(queue).field`, and sees changes while
//! the host runs, as with every other setting.

use super::{SysctlError, describe};
use crate::base::{config_error::ConfigError, ids::DeviceIndex};
use settings::{DEVICE_TABLE, RX_QUEUE_TABLE, Setting, TX_QUEUE_TABLE};

pub use settings::{DeviceSettings, RxQueueSettings, TxQueueSettings};

mod settings;

/// Prefix of all names in this module.
pub(super) const PREFIX: &str = "net.quietline.dev.";

/// Name that means all devices.
const DEFAULT: &str = "default";

/// Device with its own settings. A superframe is a packet of several TCP segments (GRO or GSO).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    /// Number of queues; `None` until the host is built.
    queues: Option<u16>,
    /// Maximum of `gso_max_size`: the length of the device's largest superframe plus one.
    /// `u32::MAX` until the host is built.
    superframe_end: u32,
    /// Default of `gso_ipv4_max_size` and `gro_ipv4_max_size`; `None` until the host is built.
    superframe_ipv4: Option<u32>,
    settings: DeviceSettings,
}

/// Device of the host, as described to [`DeviceSysctls::bind`].
pub(crate) struct Present<'a> {
    name: &'a str,
    queues: u16,
    superframe_end: u32,
    superframe_ipv4: u32,
}

impl<'a> Present<'a> {
    /// Describes a device with `queues` queues. `superframe_end` is the length of the largest
    /// superframe that can be configured, plus one. `superframe_ipv4` is the default bound for
    /// IPv4.
    pub(crate) const fn new(
        name: &'a str,
        queues: u16,
        superframe_end: u32,
        superframe_ipv4: u32,
    ) -> Self {
        Self { name, queues, superframe_end, superframe_ipv4 }
    }
}

/// Settings of all devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSysctls {
    default: DeviceSettings,
    /// Before `bound`, the devices that a setting names; then all devices of the host, by their
    /// index.
    devices: Vec<Named>,
    bound: bool,
}

impl DeviceSysctls {
    /// Returns the settings of the device with this index.
    #[inline]
    #[must_use]
    pub fn of(&self, index: DeviceIndex) -> &DeviceSettings {
        self.devices.get(index.position()).map_or(&self.default, |device| &device.settings)
    }

    /// Whether packets of some device may change their core (`rps_needed`). `by_socket`: the RFS
    /// socket table exists.
    #[must_use]
    pub fn steers(&self, by_socket: bool) -> bool {
        self.default.steers(by_socket)
            || self.devices.iter().any(|device| device.settings.steers(by_socket))
    }

    /// Sets the setting named `full`.
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
        // The value is set in a copy first, so that a rejected name creates no device.
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

    /// Returns a value as text.
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

    /// Returns the current settings of a device, or `None` if the host has no such device or queue.
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

    /// Sets the devices of the host, in the order of their indices. Returns an error if an earlier
    /// setting names another device, or a queue or a superframe size that its device does not have.
    /// Afterwards, names of other devices are rejected.
    pub(crate) fn bind<'a>(
        &mut self,
        devices: impl Iterator<Item = Present<'a>>,
    ) -> Result<(), ConfigError> {
        let refuse = |name: String, reason: String| {
            let name = PREFIX.to_owned() + &name;
            ConfigError::refused("sysctl", name, reason)
        };
        let named = core::mem::take(&mut self.devices);
        for Present { name, queues, superframe_end: end, superframe_ipv4 } in devices {
            let own = named.iter().find(|device| device.name == name);
            let mut settings = own.map_or(&self.default, |device| &device.settings).clone();
            let of_all = self.default.gso_sizes();
            let beyond = |size: &(_, u32)| size.1 > end && !of_all.contains(size);
            if let Some((size, _)) = settings.gso_sizes().into_iter().find(beyond) {
                let size = format!("{name}.{size}");
                return Err(refuse(size, format!("{name} accepts at most {end}")));
            }
            let superframe_ipv4 = Some(superframe_ipv4);
            settings.bound_superframes(end, superframe_ipv4);
            if let Some((direction, queue)) = settings.apart().find(|(_, queue)| *queue >= queues) {
                let queue_name = format!("{name}.{}-{queue}", direction.word());
                return Err(refuse(queue_name, format!("{name} has {queues} queues")));
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
        if let Some(absent) = named.iter().find(|device| !has(&device.name)) {
            let names: Vec<_> = self.devices.iter().map(|device| device.name.as_str()).collect();
            let allowed = format!("the devices of this host are {}", names.join(" "));
            return Err(refuse(absent.name.clone(), allowed));
        }
        Ok(())
    }
}

/// Parsed name: `DEVICE[.rx-N].SETTING`, or with `tx-N`. The name of a device may contain dots.
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

    /// Returns the queue of `direction` that is named, or `Some(None)` for all queues. Returns
    /// `None` if the name is that of a queue of the other direction.
    fn queue_of(&self, direction: Direction) -> Option<Option<u16>> {
        match self.queue {
            Some((other, _)) if other != direction => None,
            queue => Some(queue.map(|(_, number)| number)),
        }
    }
}

/// Direction of a queue.
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

/// Settings of the queues of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Queues<T> {
    /// Settings of the queues that have none of their own.
    all: T,
    /// Queues with their own settings.
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

    /// Writes a setting of one queue, or of all queues if `queue` is `None`.
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

impl DeviceSysctls {
    /// Returns all settings with their values: those of all devices, then those of each device and
    /// of queues with their own settings.
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

    /// Returns the names for all devices, with the values that each setting accepts.
    pub(super) fn names() -> impl Iterator<Item = (&'static str, String)> {
        let device =
            DEVICE_TABLE.iter().map(|line| (line.name, describe(line.form, &line.allowed)));
        let rx = RX_QUEUE_TABLE.iter().map(|line| (line.name, describe(line.form, &line.allowed)));
        let tx = TX_QUEUE_TABLE.iter().map(|line| (line.name, describe(line.form, &line.allowed)));
        device.chain(rx).chain(tx)
    }
}

fn lines(settings: &DeviceSettings, prefix: String) -> impl Iterator<Item = (String, String)> + '_ {
    let device = DEVICE_TABLE.iter().map({
        let prefix = prefix.clone();
        move |line| (format!("{prefix}.{}", line.word()), (line.read)(settings))
    });
    let both = [Direction::Rx, Direction::Tx].into_iter();
    device.chain(both.flat_map(move |direction| queue_lines(settings, &prefix, direction, None)))
}

/// Returns the settings of one queue, or those of all queues if `queue` is `None`.
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
        table: &[Setting<T>],
        queues: &Queues<T>,
        prefix: &str,
        queue: Option<u16>,
    ) -> Vec<(String, String)> {
        let line =
            |line: &Setting<T>| (format!("{prefix}.{}", line.word()), queues.read(line, queue));
        table.iter().map(line).collect()
    }
    match direction {
        Direction::Rx => of(RX_QUEUE_TABLE, &settings.rx, &prefix, queue),
        Direction::Tx => of(TX_QUEUE_TABLE, &settings.tx, &prefix, queue),
    }
}

#[cfg(test)]
mod tests;
