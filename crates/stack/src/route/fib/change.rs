//! Changes of the tables while a host runs: routes are added and deleted, devices go down, up and
//! away.
//!
//! Linux: `ip route replace`, `ip route del`, `ip link set down`; net/ipv4/fib_frontend.c
//! (`fib_table_delete`, `fib_disable_ip`, `fib_sync_down_addr`). Each change is made to the
//! builder, and the table that it yields replaces the old one.

use std::{sync::Arc, vec::Vec};

use ipnet::IpNet;

use super::{FibBuilder, HopSpec, NextHop, Route, RouteEntry, RouteSpec, Table, builder};
use crate::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    transmit::dst::RouteKind,
};

impl FibBuilder {
    /// Adds a route, or replaces the one with the same prefix and metric: `ip route replace`.
    ///
    /// # Errors
    /// If a field is invalid or contradicts another.
    pub fn replace(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let route = self.resolve(spec)?;
        self.add(Table::Main, spec.prefix, route);
        Ok(())
    }

    /// Deletes the best route with this prefix that matches `spec`. A metric of 0, the kind
    /// `Unicast`, and a missing next hop, device, source or MTU match any value. A device's own
    /// network can be deleted; local addresses cannot. `ip route del`.
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

    /// Returns every entry: the local table, then the main table by prefix and metric.
    pub(crate) fn entries(&self) -> Vec<RouteEntry> {
        self.fib.entries()
    }

    /// Takes `device` down: removes the routes through it. A route with several next hops loses
    /// those through it until it comes up. Its addresses stay local, and packets to them are
    /// accepted by other devices (RFC 1122 §3.3.4.2, the weak model). Linux: `fib_sync_down_dev`.
    pub fn device_down(&mut self, device: DeviceIndex) {
        self.down.insert(device);
        let networks = self.edit(Table::Main, |route| {
            let mut left = route.clone();
            left.hops.iter_mut().filter(|hop| hop.device == device).for_each(|hop| hop.dead = true);
            let is_alive = match &*left.hops {
                [] => route.device != device,
                hops => hops.iter().any(|hop| !hop.dead),
            };
            is_alive.then_some(left)
        });
        // If two devices are in one network, the other one takes over.
        self.connect(|network| networks.contains(&network));
    }

    /// Brings `device` up: restores the networks of its addresses, and the next hops through it of
    /// routes with several. Other routes are not restored, as in Linux (`fib_sync_up`).
    pub fn device_up(&mut self, device: DeviceIndex) {
        if self.down.remove(&device) {
            let on_it =
                |(on, address): &(DeviceIndex, IpNet)| (*on == device).then(|| address.trunc());
            let networks: Vec<_> = self.fib.addresses.iter().filter_map(on_it).collect();
            self.connect(|network| networks.contains(&network));
            self.edit(Table::Main, |route| {
                let mut back = route.clone();
                let its = back.hops.iter_mut().filter(|hop| hop.device == device);
                its.for_each(|hop| hop.dead = false);
                Some(back)
            });
        }
    }

    /// Removes `device`, its addresses, and every route with one of them as its source.
    pub fn device_gone(&mut self, device: DeviceIndex) {
        let on_it = |&(on, _): &(DeviceIndex, IpNet)| on == device;
        let gone: Vec<_> =
            self.fib.addresses.iter().filter(|at| on_it(at)).map(|(_, ip)| ip.addr()).collect();
        self.fib.addresses.retain(|at| !on_it(at));
        self.edit(Table::Local, |route| (route.device != device).then(|| route.clone()));
        for (on, address) in self.fib.addresses.clone() {
            if builder::has_broadcast(&address) {
                let broadcast = IpNet::from(address.broadcast());
                let route = builder::route(RouteKind::Broadcast, on, Some(address.addr()));
                self.add_first(Table::Local, broadcast, route);
            }
        }
        self.edit(Table::Main, |route| {
            route.prefsrc.is_none_or(|ip| !gone.contains(&ip)).then(|| route.clone())
        });
        self.device_down(device);
    }

    /// Makes each network for which `wanted` returns true reachable by the first device that is up
    /// and has an address in it.
    fn connect(&mut self, wanted: impl Fn(IpNet) -> bool) {
        for (device, address) in self.fib.addresses.clone() {
            let (network, source) = (address.trunc(), Some(address.addr()));
            let is_network = address.prefix_len() < address.max_prefix_len();
            if is_network && !self.down.contains(&device) && wanted(network) {
                let route = builder::route(RouteKind::Unicast, device, source);
                self.add_first(Table::Main, network, route);
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
