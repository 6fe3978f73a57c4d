//! What a host is built from. Validated here; the data path takes valid types only.

use std::{io, sync::Arc};

use ipnet::IpNet;

use crate::{device::Device, route::fib::RouteSpec, sysctl::Sysctls};

/// Why a configuration was refused: the field, the value as given, and what is allowed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{field}: {value}: {allowed}")]
pub struct ConfigError {
    /// The field or option, by its name in the builder.
    pub field: &'static str,
    /// The offending value.
    pub value: String,
    /// What would have been accepted.
    pub allowed: String,
}

impl ConfigError {
    /// An error about `field`.
    pub fn new(field: &'static str, value: impl ToString, allowed: impl ToString) -> Self {
        Self { field, value: value.to_string(), allowed: allowed.to_string() }
    }
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// A device with the addresses that live on it.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Addresses with their prefix lengths; each makes its network directly reachable.
    pub addresses: Vec<IpNet>,
}

/// Everything a host needs.
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// Name in messages and captures.
    pub name: String,
    /// Devices in order; loopback is always added as the first.
    pub devices: Vec<DeviceConfig>,
    /// Routes besides those of the devices' own networks.
    pub routes: Vec<RouteSpec>,
    /// Number of cores, 1 to 64. Default 1.
    pub cores: u16,
    /// Sysctl values by their Linux names.
    pub sysctls: Sysctls,
    /// Seed of every secret and random choice: sequence numbers, ports, hash keys.
    pub seed: u64,
}
