//! The settings as they are listed: by name with their values, and by name with what each accepts.

use super::{
    DEFAULT, DeviceSysctls, PREFIX,
    name::Direction,
    queues::Queues,
    settings::{DEVICE_TABLE, DeviceSettings, RX_QUEUE_TABLE, Setting, TX_QUEUE_TABLE},
};
use crate::sysctl::describe;

impl DeviceSysctls {
    /// Every setting with its value: that of all devices, then those of each device and of queues that were set apart.
    pub(in crate::sysctl) fn iter(&self) -> impl Iterator<Item = (String, String)> + '_ {
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
    pub(in crate::sysctl) fn names() -> impl Iterator<Item = (&'static str, String)> {
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
