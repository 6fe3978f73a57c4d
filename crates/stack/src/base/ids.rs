//! Indices of what a host has several of: cores, and the queues that a core polls.
//!
//! Above: every module. Not here: the queues of a device (`device::QueueId`).

/// Index of a core of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreId(pub u16);

/// One of the queues that a core polls: NAPI's instance, by its place among those of its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiId(pub(crate) u8);

impl NapiId {
    /// Its bit in the lock of its core.
    pub(crate) const fn bit(self) -> u64 {
        1 << self.0
    }
}

/// Cores a host may have.
pub const CORES_MAX: u16 = 64;

/// Index of the loopback device.
pub(crate) const LOOPBACK: u32 = 0;
