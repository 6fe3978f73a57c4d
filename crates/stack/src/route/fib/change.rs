//! Changes of the forwarding table while a host runs: routes are replaced and deleted, addresses
//! are removed, and devices are taken down, brought up and removed.
//!
//! Linux: `ip route replace`, `ip route del`, `ip link set down`; net/ipv4/fib_frontend.c
//! (`fib_table_delete`, `fib_disable_ip`, `fib_sync_down_addr`). Each change is made to the
//! builder; then the table that the builder returns replaces the old one.

use std::{net::IpAddr, sync::Arc, vec::Vec};

use ipnet::IpNet;

use super::{FibBuilder, HopSpec, NextHop, Route, RouteEntry, RouteSpec, Table, builder};
use crate::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    transmit::dst::RouteKind,
};

impl FibBuilder {
    /// Adds a route, or replaces the one with the same prefix and metric: `ip route replace`. If
    /// several devices have such a route, that of the same device is replaced, or else the first.
    ///
    /// Differs from Linux: Linux always replaces the first, because it does not compare devices.
    ///
    /// # Errors
    /// If a field is invalid or contradicts another.
    pub fn replace(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let added = self.resolve(spec)?;
        let (metric, device) = (added.metric, added.device);
        let is_same = |route: &Route| (route.metric, route.device) == (metric, device);
        let has_same = self.has_route(Table::Main, &spec.prefix, is_same);
        let is_replaced = |route: &Route| !has_same || is_same(route);
        self.add_in_place(Table::Main, spec.prefix, added, is_replaced);
        Ok(())
    }

    /// Adds a route, or replaces the one with the same prefix, metric and device. Routes of other
    /// devices stay in front of it. Linux adds the routes of router advertisements in this way.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn append(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let added = self.resolve(spec)?;
        let device = added.device;
        self.add_in_place(Table::Main, spec.prefix, added, |route| route.device == device);
        Ok(())
    }

    /// Deletes the best route to the prefix of `spec` that also matches its other fields (`ip route
    /// del`). A metric of 0, the kind `Unicast`, and a missing next hop, device, source or MTU
    /// match any value. `mtu_locked` and the TCP metrics are not compared. The route to the network
    /// of an address can be deleted; routes of the local table cannot.
    ///
    /// # Errors
    /// If no route matches.
    pub fn delete(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let named = |route: &Route| {
            (spec.kind == RouteKind::Unicast || spec.kind == route.kind)
                && (spec.metric == 0 || spec.metric == route.metric)
                && (spec.via.is_none() || (spec.via == route.via && route.hops.is_empty()))
                && spec.device.is_none_or(|device| device == route.device)
                && (spec.hops.is_empty() || names(&spec.hops, &route.hops))
                && (spec.prefsrc.is_none() || spec.prefsrc == route.prefsrc)
                && (spec.mtu.is_none() || spec.mtu == route.mtu)
        };
        let best = self.fib.get(Table::Main, &spec.prefix).map(Arc::clone);
        let mut routes: Vec<_> =
            best.iter().flat_map(|best| best.alternatives()).cloned().collect();
        let Some(at) = routes.iter().position(named) else {
            return Err(ConfigError::missing("route", spec.prefix, "no such route"));
        };
        routes.remove(at);
        self.set(Table::Main, &spec.prefix, routes);
        Ok(())
    }

    /// Returns every route: the local table, then the main table, each by prefix and metric.
    pub(crate) fn entries(&self) -> Vec<RouteEntry> {
        self.fib.entries()
    }

    /// Takes `device` down: removes the routes through it. A route with several next hops keeps
    /// those through `device` as dead until it comes up again, and is removed if all are dead. The
    /// addresses of `device` remain addresses of this host, and packets to them are accepted on
    /// other devices (the weak model of RFC 1122 §3.3.4.2). Linux: `fib_sync_down_dev`.
    pub fn device_down(&mut self, device: DeviceIndex) {
        self.down.insert(device);
        self.edit(Table::Main, |route| {
            let mut left = route.clone();
            left.hops.iter_mut().filter(|hop| hop.device == device).for_each(|hop| hop.dead = true);
            let is_alive = match &*left.hops {
                [] => route.device != device,
                hops => hops.iter().any(|hop| !hop.dead),
            };
            is_alive.then_some(left)
        });
    }

    /// Brings `device` up: restores the routes to the networks of its addresses, and revives the
    /// next hops through it in routes that have several next hops. As in Linux (`fib_sync_up`),
    /// other routes through the device are not restored.
    pub fn device_up(&mut self, device: DeviceIndex) {
        if self.down.remove(&device) {
            let on_it =
                |(on, address): &(DeviceIndex, IpNet)| (*on == device).then(|| address.trunc());
            let networks: Vec<_> = self.fib.addresses.iter().filter_map(on_it).collect();
            self.connect(|network| networks.contains(&network));
            self.edit(Table::Main, |route| {
                let mut back = route.clone();
                let through = back.hops.iter_mut().filter(|hop| hop.device == device);
                through.for_each(|hop| hop.dead = false);
                Some(back)
            });
        }
    }

    /// Removes `device`: its addresses, the routes through it, and every route whose source is one
    /// of these addresses.
    pub fn device_gone(&mut self, device: DeviceIndex) {
        let on_it = |&(on, _): &(DeviceIndex, IpNet)| on == device;
        let gone: Vec<_> =
            self.fib.addresses.iter().filter(|at| on_it(at)).map(|(_, ip)| ip.addr()).collect();
        self.fib.addresses.retain(|at| !on_it(at));
        self.fib.deprecated.retain(|address| !gone.contains(address));
        self.fib.temporary.retain(|address| !gone.contains(address));
        self.retain(Table::Local, |route| route.device != device);
        self.add_broadcasts();
        self.retain(Table::Main, |route| route.prefsrc.is_none_or(|ip| !gone.contains(&ip)));
        self.device_down(device);
    }

    /// Removes an address (`ip address del`), every route with this source, and the route to its
    /// network unless the device has another address in the network.
    pub fn remove_address(&mut self, device: DeviceIndex, address: IpAddr) {
        let is_it = |at: &(DeviceIndex, IpNet)| at.0 == device && at.1.addr() == address;
        let Some((_, gone)) = self.fib.addresses.iter().find(|at| is_it(at)).copied() else {
            return;
        };
        self.fib.addresses.retain(|at| !is_it(at));
        self.fib.deprecated.remove(&address);
        self.fib.temporary.remove(&address);
        for table in [Table::Local, Table::Main] {
            self.retain(table, |route| route.prefsrc != Some(address));
        }
        self.add_broadcasts();
        let network = gone.trunc();
        let is_in_network =
            |(on, net): &(DeviceIndex, IpNet)| *on == device && net.trunc() == network;
        if !self.fib.addresses.iter().any(is_in_network) {
            let is_other =
                |route: &&Route| route.metric != 0 || route.via.is_some() || route.device != device;
            let best = self.fib.get(Table::Main, &network).map(Arc::clone);
            let routes = best.iter().flat_map(|best| best.alternatives());
            let others = routes.filter(is_other).cloned().collect();
            self.set(Table::Main, &network, others);
        }
        self.connect(|other| other == network);
        // A route with several next hops is kept. A next hop that had this source gets another one.
        let next = self.fib.first_address(device, address.is_ipv4());
        self.edit(Table::Main, |route| {
            let mut left = route.clone();
            let with_it = left.hops.iter_mut().filter(|hop| hop.source == Some(address));
            with_it.for_each(|hop| hop.source = next);
            Some(left)
        });
    }

    /// Sets whether an address is deprecated, so that new connections avoid it as their source.
    pub fn set_deprecated(&mut self, address: IpAddr, deprecated: bool) {
        if deprecated {
            self.fib.deprecated.insert(address);
        } else {
            self.fib.deprecated.remove(&address);
        }
    }

    /// Sets whether an address is temporary (RFC 8981), which the selection of source addresses
    /// distinguishes.
    pub fn set_temporary(&mut self, address: IpAddr, temporary: bool) {
        if temporary {
            self.fib.temporary.insert(address);
        } else {
            self.fib.temporary.remove(&address);
        }
    }

    /// Adds the missing broadcast routes of all addresses: a removed broadcast route may belong to
    /// the network of a remaining address, too.
    fn add_broadcasts(&mut self) {
        for (on, address) in self.fib.addresses.clone() {
            if builder::has_broadcast(&address) {
                let broadcast = IpNet::from(address.broadcast());
                let route = builder::route(RouteKind::Broadcast, on, Some(address.addr()));
                self.add_first(Table::Local, broadcast, route);
            }
        }
    }

    /// Adds the missing routes to the networks for which `wanted` returns true: one for each device
    /// that is up and has an address in the network.
    fn connect(&mut self, wanted: impl Fn(IpNet) -> bool) {
        for (device, address) in self.fib.addresses.clone() {
            let (network, source) = (address.trunc(), Some(address.addr()));
            let is_network = address.prefix_len() < address.max_prefix_len();
            if is_network && !self.down.contains(&device) && wanted(network) {
                self.add_network(network, builder::network_route(device, source));
            }
        }
    }
}

/// Whether the next hops of a route are those that a specification names.
fn names(specs: &[HopSpec], hops: &[NextHop]) -> bool {
    specs.len() == hops.len()
        && specs.iter().zip(hops).all(|(spec, hop)| {
            (spec.via == hop.via) && spec.device.is_none_or(|device| device == hop.device)
        })
}
