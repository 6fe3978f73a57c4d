//! Events of a host: facts about its devices, addresses and workers that require the attention of
//! an administrator or a program.
//!
//! Above: devices, receive steps and the host report them (`share`); crate `quietline` keeps them
//! for the application. Linux: rtnetlink notifications (RTM_DELLINK), and log messages of
//! user-space daemons about duplicate addresses.
//!
//! Events are rare: each kind is reported once for a device, once for each change of its state, or
//! for an address at most once in ten seconds.
//!
//! Not here: counters and drop reasons, which count every occurrence.

use core::fmt::{self, Debug};
use std::{net::IpAddr, string::String};

use crate::header::ethernet::MacAddr;

/// A fact about a host's devices, addresses or workers. Its text is one line for a person, without
/// a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A device has left the host: its interface was deleted, or `Host::remove_device` was called.
    /// Sockets bound to addresses that only this device had fail with `ENETDOWN` from here on.
    DeviceGone {
        /// Name of the device.
        device: String,
    },
    /// A device was taken down by `Host::set_device_up`.
    DeviceDown {
        /// Name of the device.
        device: String,
    },
    /// A device that was down carries packets again.
    DeviceUp {
        /// Name of the device.
        device: String,
    },
    /// Segments arrive whose checksum was left to hardware that the link does not have. The first
    /// such segment of each device is reported; all are dropped, with the reason
    /// `TCP_CSUM_UNFINISHED`.
    UnfinishedChecksums {
        /// Name of the device.
        device: String,
    },
    /// The kernel drops frames for the device because they are longer than its MTU allows: the
    /// other end sends superframes (packets of several segments). The first drop is reported; all
    /// are counted with the reason `DEV_RX_TRUNCATED`.
    FramesTooLong {
        /// Name of the device.
        device: String,
    },
    /// Another station uses an address of this host (RFC 5227 §2.4, RFC 4862 §5.4). At most one
    /// event in ten seconds for an address.
    AddressConflict {
        /// Name of the device.
        device: String,
        /// The address.
        address: IpAddr,
        /// Link address of the other station.
        mac: MacAddr,
    },
    /// The probes of an address of this host found no other station that uses it
    /// (RFC 5227 §2.1.1, RFC 4862 §5.4). The host uses the address from here on.
    AddressReady {
        /// Name of the device.
        device: String,
        /// The address.
        address: IpAddr,
    },
    /// The worker thread of a core has panicked, and the stack is being shut down: its sockets fail
    /// from here on.
    WorkerPanicked {
        /// Number of the core.
        core: u16,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeviceGone { device } => {
                write!(f, "{device}: the device was removed, or its interface was deleted or moved")
            }
            Self::DeviceDown { device } => write!(f, "{device}: the device was taken down"),
            Self::DeviceUp { device } => write!(f, "{device}: the device is up again"),
            Self::UnfinishedChecksums { device } => write!(
                f,
                "{device}: segments arrive with unfinished checksums and are dropped; at the other end of the link run \
                 `ethtool -K INTERFACE tx off`, or trust its checksums (option trust-checksums of af_xdp)"
            ),
            Self::FramesTooLong { device } => write!(
                f,
                "{device}: frames longer than the MTU arrive and are dropped; at the other end of the link run \
                 `ethtool -K INTERFACE tso off gso off`"
            ),
            Self::AddressConflict { device, address, mac } => {
                write!(f, "{device}: address {address} is in use by another station, {mac}")
            }
            Self::AddressReady { device, address } => {
                write!(f, "{device}: address {address} is in use by no other station")
            }
            Self::WorkerPanicked { core } => {
                write!(f, "the worker of core {core} has panicked, and the stack is shut down")
            }
        }
    }
}

/// Receiver of a host's events.
pub trait EventSink: Send + Sync + Debug {
    /// Takes an event. Called from within the stack, perhaps by a thread that owns a core, so an
    /// implementation must neither call the stack nor wait for a thread that does.
    fn on_event(&self, event: Event);
}
