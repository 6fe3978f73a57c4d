//! Options of the `--name=value` lines at the head of a script.

use std::time::Duration;

use super::ScriptError;

/// Settings of one run.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// Largest difference between an instant and the expected one. 4 ms, as packetdrill: a tick of
    /// the kernel.
    pub(super) tolerance: Duration,
    /// MTU of the host's device.
    pub(super) mtu: u32,
    /// Seed of the host's secrets.
    pub(super) seed: u64,
    /// Time of one step of the host's timestamp clock; with zero, timestamps are not compared with
    /// time.
    pub(super) ts_tick: Duration,
}

impl Config {
    /// Reads the options of a script.
    pub(super) fn read(options: &[(u32, String, String)]) -> Result<Self, ScriptError> {
        let mut config = Self {
            tolerance: Duration::from_millis(4),
            mtu: 1500,
            seed: 1,
            ts_tick: Duration::ZERO,
        };
        for (line, name, value) in options {
            let number: u64 = value
                .parse()
                .map_err(|_| ScriptError::new(*line, format!("--{name}={value}: not a number")))?;
            match name.as_str() {
                "tolerance_usecs" => config.tolerance = Duration::from_micros(number),
                "tcp_ts_tick_usecs" => config.ts_tick = Duration::from_micros(number),
                "seed" => config.seed = number,
                "mtu" if (576..=65_535).contains(&number) => {
                    config.mtu = u32::try_from(number).expect("checked");
                }
                _ => {
                    return Err(ScriptError::new(
                        *line,
                        format!("--{name}={value}: no such option"),
                    ));
                }
            }
        }
        Ok(config)
    }
}
