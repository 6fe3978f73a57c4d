//! Neighbors that are set by hand, and the list of all neighbors.
//!
//! Linux: `ip neigh replace ADDRESS lladdr MAC nud permanent dev DEVICE`, `ip neigh del`, `ip neigh
//! show`. Any thread that is not in a turn of a core (one pass of its softirq work) may call these
//! methods.
//!
//! Not here: the table (`transmit::neighbor::table`), and updates by ARP and neighbor discovery
//! (`receive::arp_input`, `receive::ndp_input`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    vec::Vec,
};

use super::Host;
use crate::{
    base::{config_error::ConfigError, errno::Errno, ids::DeviceIndex},
    cx::Cx,
    device::LinkType,
    header::ethernet::MacAddr,
    route::{fib::Fib, source_address},
    transmit::{
        dst::RouteKind,
        neighbor::table::{Key, NeighborInfo},
    },
};

impl Host {
    /// Sets the permanent link address of a neighbor: no request is sent for it, no ARP or neighbor
    /// discovery packet changes it, and garbage collection does not remove it. Packets that waited
    /// for the address are sent. [`delete_neighbor`](Self::delete_neighbor) removes the entry. The
    /// entry is also removed when the device goes down, as in Linux.
    ///
    /// # Errors
    ///
    /// If there is no such device, if its frames carry no link addresses, or if `address` or `mac`
    /// is not the address of a single other station. In these cases nothing is changed.
    pub fn set_neighbor(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), ConfigError> {
        self.check_device(device)?;
        // Differs from Linux, which also accepts a group address, because this host refuses ARP
        // packets that name one (`ArpPacket`).
        if !mac.is_unicast() {
            let allowed = "the link address of a single station";
            return Err(ConfigError::new("neighbor lladdr", mac, allowed));
        }
        let source = {
            let reader = self.rcu.reader();
            let rcu = reader.pin();
            let fib = self.fib(&rcu);
            check_address(fib, address)?;
            request_source(fib, device, address)
        };
        let entered = cx.enter(self);
        self.neighbors.of(address).set_permanent(cx, Key { device, ip: address }, source, mac);
        cx.do_softirq();
        cx.leave(entered);
        Ok(())
    }

    /// Deletes a neighbor, whether it was set by hand or learned. The next packet to its address
    /// causes a request. Packets that wait for the neighbor are dropped.
    ///
    /// # Errors
    ///
    /// If there is no such device or neighbor.
    pub fn delete_neighbor(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        address: IpAddr,
    ) -> Result<(), ConfigError> {
        self.check_device(device)?;
        let entered = cx.enter(self);
        let was_known = self.neighbors.of(address).delete(cx, Key { device, ip: address });
        cx.do_softirq();
        cx.leave(entered);
        let error = || ConfigError::missing("neighbor", address, "no such neighbor");
        was_known.then_some(()).ok_or_else(error)
    }

    /// Returns all neighbors, sorted by device and address: `ip neigh show`.
    #[must_use]
    pub fn neighbors(&self) -> Vec<NeighborInfo> {
        self.neighbors.list()
    }

    /// Refuses a device that does not exist or has no neighbors.
    fn check_device(&self, device: DeviceIndex) -> Result<(), ConfigError> {
        let name = self.device_name(device);
        let refuse = || {
            let allowed = "a device whose frames carry link addresses";
            ConfigError::new("neighbor dev", name, allowed)
        };
        let missing = || ConfigError::missing("neighbor dev", device, "no such device");
        match self.attached(device) {
            Ok(attached) if attached.is_gone() => Err(missing()),
            Ok(_) => match self.device(device).caps().link {
                LinkType::Ethernet { .. } => Ok(()),
                LinkType::Ip => Err(refuse()),
            },
            Err(Errno::EINVAL) => Err(refuse()),
            Err(_) => Err(missing()),
        }
    }
}

/// Refuses an address that cannot belong to a single other station on a link.
fn check_address(fib: &Fib, address: IpAddr) -> Result<(), ConfigError> {
    let is_special = match address {
        IpAddr::V4(ip) => ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_loopback() || ip.to_ipv4_mapped().is_some(),
    };
    match fib.local_kind(address) {
        Some(RouteKind::Local) => {
            Err(ConfigError::refused("neighbor", address, "an address of this host"))
        }
        None if !is_special => Ok(()),
        _ => Err(ConfigError::new("neighbor", address, "an address of a single station")),
    }
}

/// Returns the source address of the requests (ARP, neighbor solicitation) for `address` that leave
/// by `device`: the source that the route names, else an address of the device, else the
/// unspecified address.
fn request_source(fib: &Fib, device: DeviceIndex, address: IpAddr) -> IpAddr {
    let route = fib.lookup(address).filter(|route| route.device == device);
    route
        .and_then(|route| route.prefsrc)
        .or_else(|| source_address::select(fib, device, address, false))
        .unwrap_or(match address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        })
}
