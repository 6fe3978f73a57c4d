//! Changes of the tables while a host runs: routes are added and deleted, devices go down, up and
//! away.
//!
//! Linux: `ip route replace`, `ip route del`, `ip link set down`; net/ipv4/fib_frontend.c
//! (`fib_table_delete`, `fib_disable_ip`, `fib_sync_down_addr`). Each change is made to the
//! builder, and a new table is built from it.

use std::{net::IpAddr, vec::Vec};

use ipnet::IpNet;

use super::{FibBuilder, RouteEntry, RouteSpec, builder};
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
        let entry = self.resolve(spec)?;
        self.main.insert((spec.prefix, spec.metric), entry);
        Ok(())
    }

    /// Deletes the best route with this prefix that matches `spec`. A metric of 0, the kind
    /// `Unicast`, and a missing next hop, device, source or MTU match any value. A device's own
    /// network can be deleted; local addresses cannot. `ip route del`.
    ///
    /// # Errors
    /// If no route matches.
    pub fn delete(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let named = |entry: &RouteEntry| {
            (spec.kind == RouteKind::Unicast || spec.kind == entry.kind)
                && (spec.metric == 0 || spec.metric == entry.metric)
                && (spec.via.is_none() || spec.via == entry.via)
                && spec.device.is_none_or(|device| device == entry.device)
                && (spec.prefsrc.is_none() || spec.prefsrc == entry.prefsrc)
                && (spec.mtu.is_none() || spec.mtu == entry.mtu)
        };
        // In ascending order of metric.
        let mut same = self.main.range((spec.prefix, 0)..=(spec.prefix, u32::MAX));
        let Some(key) = same.find(|(_, entry)| named(entry)).map(|(key, _)| *key) else {
            return Err(ConfigError::missing("route", spec.prefix, "no such route"));
        };
        self.main.remove(&key);
        Ok(())
    }

    /// Returns every entry: the local table, then the main table by prefix and metric.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &RouteEntry> {
        self.local.values().chain(self.main.values())
    }

    /// Takes `device` down: removes the routes through it. Its addresses stay local, and packets to
    /// them are accepted by other devices (RFC 1122 §3.3.4.2, the weak model).
    pub fn device_down(&mut self, device: DeviceIndex) {
        self.down.insert(device);
        let mut networks = Vec::new();
        self.main.retain(|(prefix, _), entry| {
            let stays = entry.device != device;
            if !stays {
                networks.push(*prefix);
            }
            stays
        });
        // If two devices are in one network, the other one takes over.
        self.connect(|network| networks.contains(&network));
    }

    /// Brings `device` up: restores the networks of its addresses. Routes added to them earlier are
    /// not restored, as in Linux.
    pub fn device_up(&mut self, device: DeviceIndex) {
        if self.down.remove(&device) {
            let on_it =
                |(on, address): &(DeviceIndex, IpNet)| (*on == device).then(|| address.trunc());
            let networks: Vec<_> = self.addresses.iter().filter_map(on_it).collect();
            self.connect(|network| networks.contains(&network));
        }
    }

    /// Removes `device`, its addresses, and every route with one of them as its source.
    pub fn device_gone(&mut self, device: DeviceIndex) {
        let gone: Vec<_> = self.addresses.iter().filter(|(on, _)| *on == device).copied().collect();
        self.addresses.retain(|(on, _)| *on != device);
        self.local.retain(|_, entry| entry.device != device);
        for (_, address) in &gone {
            self.deprecated.remove(&address.addr());
        }
        for (on, address) in &self.addresses {
            if builder::has_broadcast(address) {
                let broadcast = IpNet::from(address.broadcast());
                self.local.entry(broadcast).or_insert_with(|| {
                    builder::entry(broadcast, RouteKind::Broadcast, *on, Some(address.addr()))
                });
            }
        }
        self.main.retain(|_, entry| {
            !gone.iter().any(|(_, address)| entry.prefsrc == Some(address.addr()))
        });
        self.device_down(device);
    }

    /// Removes an address, its network if no other address of the device is in it, and every route
    /// with it as its source: `ip address del`.
    pub fn remove_address(&mut self, device: DeviceIndex, address: IpAddr) {
        let is_it = |on: &DeviceIndex, net: &IpNet| *on == device && net.addr() == address;
        let Some(gone) = self.addresses.iter().find(|(on, net)| is_it(on, net)).copied() else {
            return;
        };
        self.addresses.retain(|(on, net)| !is_it(on, net));
        self.deprecated.remove(&address);
        self.local.remove(&IpNet::from(address));
        let network = gone.1.trunc();
        let is_needed = |(on, net): &(DeviceIndex, IpNet)| *on == device && net.trunc() == network;
        let keeps_network = self.addresses.iter().any(is_needed);
        self.main.retain(|(prefix, metric), entry| {
            let is_network =
                *prefix == network && *metric == 0 && entry.via.is_none() && entry.device == device;
            entry.prefsrc != Some(address) && (keeps_network || !is_network)
        });
        self.connect(|other| other == network);
    }

    /// Sets whether new connections avoid an address.
    pub fn set_deprecated(&mut self, address: IpAddr, deprecated: bool) {
        if deprecated {
            self.deprecated.insert(address);
        } else {
            self.deprecated.remove(&address);
        }
    }

    /// Makes each network for which `wanted` returns true reachable by the first device that is up
    /// and has an address in it.
    fn connect(&mut self, wanted: impl Fn(IpNet) -> bool) {
        for (device, address) in &self.addresses {
            let (network, source) = (address.trunc(), Some(address.addr()));
            let is_network = address.prefix_len() < address.max_prefix_len();
            if is_network && !self.down.contains(device) && wanted(network) {
                self.main
                    .entry((network, 0))
                    .or_insert_with(|| builder::network_entry(network, *device, source));
            }
        }
    }
}
