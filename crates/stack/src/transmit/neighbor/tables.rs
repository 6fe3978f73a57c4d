//! The two neighbor tables of a host, one for each IP version, each with its own settings
//! (`net.ipv4.neigh.default.*`, `net.ipv6.neigh.default.*`).
//!
//! Linux: `arp_tbl`, `nd_tbl`.

use std::{
    net::IpAddr,
    sync::{Arc, Weak},
    vec::Vec,
};

use super::table::{NeighborInfo, NeighborTable, Upper};
use crate::{
    base::{counters::Snapshot, ids::DeviceIndex},
    cx::Cx,
    sysctl::Sysctls,
    transmit::tx_queue::DeviceTx,
};

/// Neighbor tables of a host.
#[derive(Debug)]
pub(crate) struct NeighborTables {
    v4: NeighborTable,
    v6: NeighborTable,
}

impl NeighborTables {
    /// Creates empty tables for a host of `cores` cores. `tx` has the transmit queues of its
    /// devices, `upper` the services of the layers above.
    pub(crate) fn new(
        sysctls: &Sysctls,
        upper: &Weak<dyn Upper>,
        tx: &[Arc<DeviceTx>],
        cores: u16,
    ) -> Self {
        let table = |config| NeighborTable::new(config, upper.clone(), tx.to_vec(), cores);
        Self { v4: table(sysctls.neigh.clone()), v6: table(sysctls.neigh_v6.clone()) }
    }

    /// Returns the table of the IP version of `ip`.
    pub(crate) const fn of(&self, ip: IpAddr) -> &NeighborTable {
        match ip {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        }
    }

    /// Changes the settings of future entries. Existing entries get the settings with every event.
    pub(crate) fn configure(&self, sysctls: &Sysctls) {
        self.v4.configure(sysctls.neigh.clone());
        self.v6.configure(sysctls.neigh_v6.clone());
    }

    /// Removes all neighbors of `device`, because the device is down.
    pub(crate) fn device_down(&self, cx: &mut Cx, device: DeviceIndex) {
        self.v4.device_down(cx, device);
        self.v6.device_down(cx, device);
    }

    /// Adds the counts of both tables to a sum over counter pages.
    pub(crate) fn add_counts(&self, sums: &mut Snapshot) {
        self.v4.add_counts(sums);
        self.v6.add_counts(sums);
    }

    /// Returns the entries of both tables, by device and address, except those in state NONE and
    /// those of groups.
    pub(crate) fn list(&self) -> Vec<NeighborInfo> {
        let mut infos = self.v4.list();
        infos.extend(self.v6.list());
        infos.sort_unstable_by_key(|info| (info.device, info.address));
        infos
    }
}
