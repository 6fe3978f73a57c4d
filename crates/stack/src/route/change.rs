//! Routes of a host: lists them, and changes them while the host runs.
//!
//! Linux: `ip route show`, `add`, `replace`, `del`; net/ipv4/fib_frontend.c. Any thread may call
//! these methods; changes are serialized.
//!
//! A change makes all cached route entries (dst) stale, because they belong to an older generation.
//! A socket looks its route up again before its next segment, and a connection caches the route
//! entry of its next received packet.

use std::{sync::Arc, vec::Vec};

use ipnet::IpNet;

use super::router::Router;
use crate::{
    base::{
        config_error::ConfigError,
        ids::{DeviceIndex, LOOPBACK},
    },
    device::Device,
    route::fib::{Fib, FibBuilder, RouteEntry, RouteSpec},
};

impl Router {
    /// Adds a route: `ip route add`.
    ///
    /// # Errors
    ///
    /// If a field is invalid or contradicts another, or if the prefix has a route with the same
    /// metric. A refused route changes nothing.
    pub fn add_route(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        self.change_routes(|routes| routes.route(spec))
    }

    /// Adds a route, in place of one with the same prefix and metric: `ip route replace`. If
    /// several devices have such a route, that of the same device is replaced, or else the first.
    ///
    /// # Errors
    ///
    /// If a field is invalid or contradicts another. A refused route changes nothing.
    pub fn replace_route(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        self.change_routes(|routes| routes.replace(spec))
    }

    /// Removes the best route that matches `spec` ([`FibBuilder::delete`]): `ip route del`.
    ///
    /// # Errors
    ///
    /// If no route matches `spec`.
    pub fn delete_route(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        self.change_routes(|routes| routes.delete(spec))
    }

    /// Returns all routes: the local table first, then the main table, by prefix and metric
    /// (`ip route show table all`).
    #[must_use]
    pub fn routes(&self) -> Vec<RouteEntry> {
        self.routes.entries()
    }

    /// Returns the name of the device with this index, or an empty string if there is none.
    #[must_use]
    pub fn device_name(&self, index: DeviceIndex) -> &str {
        self.devices.get(index.position()).map_or("", |device| &device.caps().name)
    }

    /// Returns the index of the device with this name. The index of loopback is 0.
    #[must_use]
    pub fn device_index(&self, name: &str) -> Option<DeviceIndex> {
        let is_gone = |position: usize| match position.checked_sub(1) {
            Some(place) => self.attached[place].is_gone(),
            None => false,
        };
        let is_named = |device: &Arc<dyn Device>| device.caps().name == name;
        let mut devices = self.devices.iter().enumerate();
        let found = devices.find(|(position, device)| is_named(device) && !is_gone(*position));
        found.map(|(position, _)| DeviceIndex::at(position))
    }

    /// Makes every cached route entry stale (Linux: `rt_cache_flush`). A socket uses a stale entry
    /// until it next checks whether the entry is valid.
    pub fn invalidate_routes(&self) {
        self.routes.bump();
        self.forget_cached_routes();
    }

    /// Changes the forwarding table, and removes the route entries made from the old one.
    pub(crate) fn change_routes(
        &self,
        change: impl FnOnce(&mut FibBuilder) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        self.routes.change(change)?;
        self.forget_cached_routes();
        Ok(())
    }

    /// As [`change_routes`](Self::change_routes), for a change that a device causes. Such a change
    /// cannot fail.
    pub(crate) fn change_device_routes(&self, change: impl FnOnce(&mut FibBuilder)) {
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

/// Returns the forwarding table of the configured addresses and routes, as a builder.
pub(crate) fn builder_of(
    addresses: &[Vec<IpNet>],
    routes: &[RouteSpec],
) -> Result<FibBuilder, ConfigError> {
    let devices = u32::try_from(addresses.len()).expect("a host has fewer than 2^32 devices");
    let mut fib = Fib::builder(1 + devices);
    fib.loopback(LOOPBACK);
    for (index, addresses) in (1..).map(DeviceIndex).zip(addresses) {
        for address in addresses {
            fib.address(index, *address)?;
        }
    }
    for route in routes {
        fib.route(route)?;
    }
    Ok(fib)
}

#[cfg(test)]
mod tests;
