//! Indices of objects that a host has several of: cores, devices, and the queues that a core polls.
//!
//! Above: every module. Not here: the queues of a device (`device::QueueId`).

use std::fmt;

/// Index of a core of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreId(pub u16);

impl CoreId {
    /// Returns the core of a flow, out of `cores`, for flows that no setting assigns to a core.
    /// Reciprocal scaling, as in RPS: the high bits of the hash select the core.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of cores")]
    pub(crate) const fn of_flow(hash: u32, cores: u16) -> Self {
        Self(((hash as u64 * cores as u64) >> 32) as u16)
    }
}

/// Index of a device of a host: 0 is loopback, the others follow in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u32);

impl DeviceIndex {
    /// Returns the index of the device at `position` of the tables of its host.
    pub(crate) fn at(position: usize) -> Self {
        Self(u32::try_from(position).expect("a host has fewer than 2^32 devices"))
    }

    /// Returns the position of the device in the tables of its host.
    pub(crate) const fn position(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Index of a queue among those that a core polls: a NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiId(pub(crate) u8);

impl NapiId {
    /// Returns the queue's bit in the lock of its core.
    pub(crate) const fn bit(self) -> u64 {
        1 << self.0
    }
}

/// Maximum number of cores of a host.
pub const CORES_MAX: u16 = 64;

/// Index of the loopback device.
pub(crate) const LOOPBACK: DeviceIndex = DeviceIndex(0);
