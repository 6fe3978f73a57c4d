//! Configuration of a host. [`Host::new`](super::Host::new) validates the configuration; the data
//! path gets valid values only.

use std::{io, sync::Arc};

use ipnet::IpNet;

use crate::{
    base::{config_error::ConfigError, ids::DeviceIndex, secrets::Secrets},
    device::Device,
    route::fib::RouteSpec,
    socket::flows::Intercept,
    sysctl::Sysctls,
};

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(error.kind, error)
    }
}

/// Device with its addresses.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Addresses with their prefix lengths. The network of each address is directly reachable.
    pub addresses: Vec<IpNet>,
}

/// Configuration of a host.
///
/// There is no default: [`new`](Self::new) takes secret keys, [`replay`](Self::replay) takes the
/// seed of a run that must repeat. Both configure one core and no device.
///
/// ```compile_fail,E0599
/// let config = stack::host::config::HostConfig::default();
/// ```
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Name in messages and captures.
    pub name: String,
    /// Devices in order; loopback is always added as the first.
    pub devices: Vec<DeviceConfig>,
    /// Routes besides those of the devices' own networks.
    pub routes: Vec<RouteSpec>,
    /// Devices that intercept flows; the index of the first of `devices` is 1.
    pub intercepts: Vec<(DeviceIndex, Intercept)>,
    /// Number of cores, 1 to 64. Default 1.
    pub cores: u16,
    /// Sysctl values by their Linux names.
    pub sysctls: Sysctls,
    /// Keys of sequence numbers, ports, cookies, identifications and tables.
    pub secrets: Secrets,
}

impl HostConfig {
    /// Returns a configuration without devices, with these `secrets`.
    #[must_use]
    pub fn new(secrets: Secrets) -> Self {
        Self {
            name: String::new(),
            devices: Vec::new(),
            routes: Vec::new(),
            intercepts: Vec::new(),
            cores: 1,
            sysctls: Sysctls::default(),
            secrets,
        }
    }

    /// As [`new`](Self::new), with secrets derived from `seed`, for simulations and tests. An
    /// attacker that knows the seed, or tries all seeds, can guess every number of this host.
    #[must_use]
    pub fn replay(seed: u64) -> Self {
        Self::new(Secrets::replay(seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_with_the_matching_kind() {
        let refusals = [
            (
                ConfigError::new("cores", 0, "1 to 64"),
                "cores 0: expected 1 to 64",
                io::ErrorKind::InvalidInput,
            ),
            (
                ConfigError::missing("device", "nope", "no such device"),
                "device nope: no such device",
                io::ErrorKind::NotFound,
            ),
            (
                ConfigError::exists("address", "10.0.0.1/24", "a device has it already"),
                "address 10.0.0.1/24: a device has it already",
                io::ErrorKind::AlreadyExists,
            ),
            (
                Sysctls::default()
                    .set("net.ipv4.no_such", "1")
                    .expect_err("the setting does not exist")
                    .into(),
                "sysctl net.ipv4.no_such: no such setting",
                io::ErrorKind::NotFound,
            ),
            (
                Sysctls::default()
                    .set("net.ipv4.tcp_sack", "2")
                    .expect_err("only 0 and 1 are allowed")
                    .into(),
                "sysctl net.ipv4.tcp_sack: \"2\" is not allowed: expected a number from 0 to 1",
                io::ErrorKind::InvalidInput,
            ),
        ];
        for (refusal, text, kind) in refusals {
            assert_eq!(refusal.to_string(), text);
            assert_eq!(io::Error::from(refusal).kind(), kind, "{text}");
        }
    }
}
