//! Neighbors in the words of `ip neigh`: what [`Stack::neighbors`](crate::Stack::neighbors) lists.

use std::{fmt, net::IpAddr};

use stack::{header::ethernet::MacAddr, transmit::neighbor::table::NeighborInfo};

pub use stack::transmit::neighbor::NudState;

/// A neighbor. As text it is what `ip neigh` prints: `10.0.0.2 dev tap0 lladdr 02:00:00:00:00:02 PERMANENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Its address.
    pub address: IpAddr,
    /// Name of the device that it is reached by.
    pub dev: String,
    /// Its link address, where that is known.
    pub mac: Option<MacAddr>,
    /// State of the entry. `Permanent`: it was set by hand.
    pub state: NudState,
}

impl Neighbor {
    /// A listed neighbor, with `name` to name devices by index.
    pub(crate) fn listed(info: NeighborInfo, name: impl Fn(u32) -> String) -> Self {
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
