//! Devices of a running stack as `ip link` and `ip address` show them, and addresses that are added
//! and deleted while the stack runs.
//!
//! Below: `stack::host`, which probes an added address. Above: applications, and the DHCP client of
//! crate `quietline-config`.
//!
//! Not here: the devices themselves (`attachments`), taking one down (`handle`).

use std::{io, net::IpAddr};

use ipnet::IpNet;
use stack::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    device::LinkType,
    header::ethernet::MacAddr,
};

use crate::{clock, handle::Stack};

/// A device of a stack with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Index of the device in its stack.
    pub index: DeviceIndex,
    /// Name of the device.
    pub name: String,
    /// Link address; `None` if frames of the device have no Ethernet header.
    pub mac: Option<MacAddr>,
    /// Size of the largest IP packet, in bytes.
    pub mtu: u32,
    /// Addresses with their prefix lengths, oldest first.
    pub addresses: Vec<IpNet>,
}

impl Stack {
    /// Returns the devices other than loopback, by index, with their addresses. Removed devices are
    /// not listed.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let host = self.host();
        let addresses = host.addresses();
        let listed = |(index, caps): (DeviceIndex, _)| {
            let caps: &stack::device::Capabilities = caps;
            let mac = match caps.link {
                LinkType::Ethernet { mac } => Some(mac),
                LinkType::Ip => None,
            };
            let own = addresses.iter().filter(|(on, _)| *on == index);
            let addresses = own.map(|(_, address)| *address).collect();
            DeviceInfo { index, name: caps.name.clone(), mac, mtu: caps.mtu, addresses }
        };
        host.present_devices().map(listed).collect()
    }

    /// Adds an address to a device: `ip address add ADDRESS dev NAME`. The network of the address
    /// becomes directly reachable through the device.
    ///
    /// With `net.quietline.acd_probes` (for IPv6 `net.ipv6.conf.all.dad_transmits`), the call
    /// returns after the address was probed. A stack of
    /// [`StackBuilder::manual`](crate::StackBuilder::manual) is polled meanwhile.
    ///
    /// # Errors
    /// `AddrInUse` if another station has the address, `AlreadyExists` if a device of the stack has
    /// it, `NotFound` for a device that does not exist or is down, `InvalidInput` for an address
    /// that no host can have. The stack does not have the address then.
    pub fn add_address(&self, name: &str, address: IpNet) -> io::Result<()> {
        let index = self.device(name)?;
        let events = self.events();
        clock::with_cx(|cx| self.host().add_address(cx, index, address))?;
        let ip = address.addr();
        let claimed = self.wait_for_claim(events, || self.host().claim_state_of(index, ip));
        claimed.inspect_err(|_| {
            // Another thread may have deleted the address meanwhile.
            let _ = clock::with_cx(|cx| self.host().remove_address(cx, index, ip));
        })
    }

    /// Deletes an address of a device, with the routes whose source it is:
    /// `ip address del ADDRESS dev NAME`. Connections from the address stay until they time out.
    ///
    /// # Errors
    /// `NotFound` if there is no such device, or if it does not have the address.
    pub fn delete_address(&self, name: &str, address: IpAddr) -> io::Result<()> {
        let index = self.device(name)?;
        let deleted = clock::with_cx(|cx| self.host().remove_address(cx, index, address));
        deleted.map_err(|error: ConfigError| error.into())
    }
}
