//! The routes of a host, as they are listed and changed while it runs.
//!
//! Linux: `ip route show`, `add`, `replace`, `del`; net/ipv4/fib_frontend.c. Any thread may call; changes take turns.
//!
//! After a change no cached entry is found any more, sockets resolve their path anew with their next segment, and connections
//! remember another input route with the next packet that comes: what they hold is of an older generation.

use std::vec::Vec;

use ipnet::IpNet;

use super::Host;
use crate::{
    base::{config_error::ConfigError, ids::LOOPBACK},
    route::fib::{Fib, FibBuilder, RouteEntry, RouteSpec},
};

impl Host {
    /// Adds a route: `ip route add`.
    ///
    /// # Errors
    /// When a field is impossible, contradicts another, or the prefix has a route with the same metric. Nothing is changed
    /// then.
    pub fn add_route(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        refuse_ipv6(spec)?;
        self.change_routes(|routes| routes.route(spec))
    }

    /// Adds a route, in place of one with the same prefix and metric: `ip route replace`.
    ///
    /// # Errors
    /// When a field is impossible or contradicts another. Nothing is changed then.
    pub fn replace_route(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        refuse_ipv6(spec)?;
        self.change_routes(|routes| routes.replace(spec))
    }

    /// Takes the best route away that has the prefix and all else that `spec` names ([`FibBuilder::delete`]): `ip route del`.
    ///
    /// # Errors
    /// When there is none.
    pub fn delete_route(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        self.change_routes(|routes| routes.delete(spec))
    }

    /// Every route as it is: the local table first, then the main table, by prefix and metric (`ip route show table all`).
    #[must_use]
    pub fn routes(&self) -> Vec<RouteEntry> {
        self.routes.entries()
    }

    /// Name of the device with this index; empty where there is none.
    #[must_use]
    pub fn device_name(&self, index: u32) -> &str {
        self.devices.get(index as usize).map_or("", |device| &device.caps().name)
    }

    /// Index of the device with this name; loopback is 0.
    #[must_use]
    pub fn device_index(&self, name: &str) -> Option<u32> {
        let is_gone = |index: &u32| match index.checked_sub(LOOPBACK + 1) {
            Some(place) => self.attached[place as usize].is_gone(),
            None => false,
        };
        (0..)
            .zip(&self.devices)
            .find(|(index, device)| device.caps().name == name && !is_gone(index))
            .map(|(index, _)| index)
    }

    /// Makes every cached route stale (Linux: `rt_cache_flush`). What sockets and packets hold lives on until they look.
    pub fn invalidate_routes(&self) {
        self.routes.bump();
        self.forget_cached_routes();
    }

    /// Makes a change of the tables and of everything that was made from them.
    pub(super) fn change_routes(
        &self,
        change: impl FnOnce(&mut FibBuilder) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        self.routes.change(change)?;
        self.forget_cached_routes();
        Ok(())
    }

    /// As [`change_routes`](Self::change_routes), for what a device does to them, which nothing refuses.
    pub(super) fn change_device_routes(&self, change: impl FnOnce(&mut FibBuilder)) {
        let changed = self.change_routes(|routes| {
            change(routes);
            Ok(())
        });
        debug_assert!(changed.is_ok());
    }

    fn forget_cached_routes(&self) {
        let reader = self.rcu.reader();
        let rcu = reader.pin();
        self.input_routes.clear(&rcu);
        self.output_routes.clear(&rcu);
    }
}

/// What the configured addresses and routes begin as.
pub(super) fn builder_of(
    addresses: &[Vec<IpNet>],
    routes: &[RouteSpec],
) -> Result<FibBuilder, ConfigError> {
    let devices = u32::try_from(addresses.len()).expect("a handful of devices");
    let mut fib = Fib::builder(LOOPBACK + 1 + devices);
    fib.loopback(LOOPBACK);
    for (index, addresses) in (LOOPBACK + 1..).zip(addresses) {
        for address in addresses {
            if address.addr().is_ipv6() {
                return Err(ConfigError::new(
                    "address",
                    address,
                    "an IPv4 address: IPv6 is not spoken yet",
                ));
            }
            fib.address(index, *address)?;
        }
    }
    for route in routes {
        refuse_ipv6(route)?;
        fib.route(route)?;
    }
    Ok(fib)
}

fn refuse_ipv6(spec: &RouteSpec) -> Result<(), ConfigError> {
    if spec.prefix.addr().is_ipv6() {
        return Err(ConfigError::new(
            "route",
            spec.prefix,
            "an IPv4 prefix: IPv6 is not spoken yet",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
