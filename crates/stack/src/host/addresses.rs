//! Addresses that are added to a running host and removed from it.
//!
//! Linux: `ip address add`, `ip address del`; `inet_insert_ifa`, `inet_del_ifa`. Any thread that is
//! not in a turn of a core (one pass of its softirq work) may call these methods.
//!
//! An added address is probed (`claims`) if the settings ask for it. While it is probed, the host
//! answers no ARP request or neighbor solicitation for it, but sockets can already use it; the
//! caller waits for the result before it tells an application about the address.
//!
//! Not here: addresses that follow from router advertisements (`autoconf`), and the addresses that
//! a host starts with (`build`).

use std::{net::IpAddr, sync::PoisonError, vec::Vec};

use ipnet::IpNet;

use super::Host;
use crate::{
    base::{
        config_error::ConfigError,
        ids::{DeviceIndex, LOOPBACK},
    },
    cx::Cx,
};

impl Host {
    /// Adds an address to a device: its network becomes directly reachable through the device. Then
    /// begins to probe for the address, if `net.quietline.acd_probes` (for IPv6
    /// `net.ipv6.conf.all.dad_transmits`) is not 0;
    /// [`claim_state_of`](crate::socket::net::Net::claim_state_of) returns the outcome.
    ///
    /// # Errors
    ///
    /// If there is no such device or it is down, if a device has the address already, or if the
    /// address cannot belong to a host. Nothing is changed then.
    pub fn add_address(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        address: IpNet,
    ) -> Result<(), ConfigError> {
        let changes = self.device_changes.lock().unwrap_or_else(PoisonError::into_inner);
        if device == LOOPBACK || !self.is_device_up(device) {
            let reason = "no such device, or the device is down";
            return Err(ConfigError::missing("address dev", self.name_or_index(device), reason));
        }
        self.change_routes(|routes| routes.address(device, address))?;
        drop(changes);
        let entered = cx.enter(self);
        self.claim_address(cx, device, address.addr());
        cx.do_softirq();
        cx.leave(entered);
        Ok(())
    }

    /// Removes an address from a device, with the routes whose source it is and the neighbors that
    /// were resolved from it. Sockets that are bound to the address stay, as in Linux: they work
    /// again if the address is added again before their connections time out.
    ///
    /// # Errors
    ///
    /// If the device does not have the address.
    pub fn remove_address(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        address: IpAddr,
    ) -> Result<(), ConfigError> {
        if !self.addresses().iter().any(|(on, net)| *on == device && net.addr() == address) {
            let reason = "the device does not have this address";
            return Err(ConfigError::missing("address", address, reason));
        }
        self.forget_claim(device, address);
        self.change_device_routes(|routes| routes.remove_address(device, address));
        let entered = cx.enter(self);
        // After the routes: a cached route entry that refers to such a neighbor is stale by now.
        self.neighbors.of(address).source_gone(cx, device, address);
        cx.do_softirq();
        cx.leave(entered);
        Ok(())
    }

    /// Returns the addresses of all devices except loopback, oldest first: `ip address show`.
    #[must_use]
    pub fn addresses(&self) -> Vec<(DeviceIndex, IpNet)> {
        let reader = self.rcu.reader();
        self.fib(&reader.pin()).addresses().to_vec()
    }

    fn name_or_index(&self, device: DeviceIndex) -> String {
        match self.device_name(device) {
            "" => device.to_string(),
            name => name.to_owned(),
        }
    }
}
