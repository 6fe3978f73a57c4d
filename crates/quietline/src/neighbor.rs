//! Neighbors as `ip neigh` shows them, listed by [`Stack::neighbors`](crate::Stack::neighbors).

use std::{fmt, net::IpAddr};

use stack::{
    base::ids::DeviceIndex, header::ethernet::MacAddr, transmit::neighbor::table::NeighborInfo,
};

pub use stack::transmit::neighbor::NudState;

/// A neighbor. Its text is the output of `ip neigh`:
/// `10.0.0.2 dev tap0 lladdr 02:00:00:00:00:02 PERMANENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// IP address of the neighbor.
    pub address: IpAddr,
    /// Name of the device that reaches the neighbor.
    pub dev: String,
    /// Link address, if it is known.
    pub mac: Option<MacAddr>,
    /// State of the entry. `Permanent`: the entry was set by a call.
    pub state: NudState,
}

impl Neighbor {
    /// Builds a listed neighbor; `name` returns the name of a device by index.
    pub(crate) fn listed(info: NeighborInfo, name: impl Fn(DeviceIndex) -> String) -> Self {
        let NeighborInfo { device, address, mac, state } = info;
        Self { address, dev: name(device), mac, state }
    }
}

impl fmt::Display for Neighbor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.address, self.dev)?;
        if let Some(mac) = self.mac {
            write!(f, " lladdr {mac}")?;
        }
        write!(f, " {}", self.state.name())
    }
}
