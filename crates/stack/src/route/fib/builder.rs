//! Builds a forwarding table from addresses and routes, or refuses them with a [`ConfigError`].
//!
//! Linux: `ip address add` and `ip route add` in net/ipv4/fib_frontend.c and fib_semantics.c,
//! including their refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Fib, NO_DEVICE, RouteEntry, Tables};
use crate::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    transmit::dst::RouteKind,
};

/// Smallest MTU of a route: RFC 791 for IPv4, RFC 8200 §5 for IPv6.
const MTU_MIN_V4: u32 = 68;
pub(crate) const MTU_MIN_V6: u32 = 1280;
/// Largest packet whose length fits both headers.
const MTU_MAX: u32 = 65_535;

/// Specification of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destinations; no bits may be set after the prefix.
    pub prefix: IpNet,
    /// `Unicast`, `Blackhole` or `Unreachable`; other kinds are created with addresses.
    pub kind: RouteKind,
    /// Next hop: an address in the network of one of this host's addresses.
    pub via: Option<IpAddr>,
    /// Device index. Optional if `via` determines it.
    pub device: Option<DeviceIndex>,
    /// Source address: one of this host's. The default is this host's address in the next hop's
    /// network.
    pub prefsrc: Option<IpAddr>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
    /// Metric: smaller is better.
    pub metric: u32,
}

impl RouteSpec {
    /// `ip route add PREFIX via NEXT_HOP`.
    #[must_use]
    pub const fn via(prefix: IpNet, next_hop: IpAddr) -> Self {
        Self { via: Some(next_hop), ..Self::of(prefix, RouteKind::Unicast) }
    }

    /// `ip route add PREFIX dev DEVICE`: destinations on the link itself.
    #[must_use]
    pub const fn on_link(prefix: IpNet, device: DeviceIndex) -> Self {
        Self { device: Some(device), ..Self::of(prefix, RouteKind::Unicast) }
    }

    /// `ip route add blackhole PREFIX` or `unreachable`.
    #[must_use]
    pub const fn of(prefix: IpNet, kind: RouteKind) -> Self {
        Self { prefix, kind, via: None, device: None, prefsrc: None, mtu: None, metric: 0 }
    }
}

/// Collects addresses and routes. Addresses must be added first, because routes are checked against
/// them.
#[derive(Clone, Debug)]
pub struct FibBuilder {
    devices: u32,
    pub(super) addresses: Vec<(DeviceIndex, IpNet)>,
    pub(super) local: BTreeMap<IpNet, RouteEntry>,
    pub(super) main: BTreeMap<(IpNet, u32), RouteEntry>,
    /// Devices that are down: no route may use them.
    pub(super) down: BTreeSet<DeviceIndex>,
    /// Addresses that new connections avoid.
    pub(super) deprecated: BTreeSet<IpAddr>,
}

impl FibBuilder {
    pub(super) fn new(devices: u32) -> Self {
        let mut builder = Self {
            devices,
            addresses: Vec::new(),
            local: BTreeMap::new(),
            main: BTreeMap::new(),
            down: BTreeSet::new(),
            deprecated: BTreeSet::new(),
        };
        let everywhere = [
            (v4_net(Ipv4Addr::BROADCAST, 32), RouteKind::Broadcast),
            (v4_net(Ipv4Addr::new(224, 0, 0, 0), 4), RouteKind::Multicast),
            (v6_net(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8), RouteKind::Multicast),
        ];
        for (prefix, kind) in everywhere {
            builder.local.insert(prefix, entry(prefix, kind, NO_DEVICE, None));
        }
        builder
    }

    /// Makes `device` the loopback device: 127.0.0.0/8 and ::1 become local.
    pub fn loopback(&mut self, device: DeviceIndex) {
        let v4 = (v4_net(Ipv4Addr::new(127, 0, 0, 0), 8), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let v6 = (v6_net(Ipv6Addr::LOCALHOST, 128), IpAddr::V6(Ipv6Addr::LOCALHOST));
        for (prefix, source) in [v4, v6] {
            self.local.insert(prefix, entry(prefix, RouteKind::Local, device, Some(source)));
        }
        let broadcast = v4_net(Ipv4Addr::new(127, 255, 255, 255), 32);
        self.local.insert(broadcast, entry(broadcast, RouteKind::Broadcast, device, None));
    }

    /// Assigns an address to a device, and makes the network of its prefix length reachable there.
    ///
    /// # Errors
    /// If the address cannot belong to a host, is its network's own or broadcast address, or is
    /// taken, or if the device does not exist.
    pub fn address(&mut self, device: DeviceIndex, address: IpNet) -> Result<(), ConfigError> {
        let refuse = |allowed: &str| Err(ConfigError::new("address", address, allowed));
        if device.0 >= self.devices {
            return Err(ConfigError::missing("device", device, "no such device"));
        }
        if !is_unicast(address.addr()) {
            return refuse("an address of a single host, not loopback, multicast or unspecified");
        }
        if address.prefix_len() == 0 {
            return refuse("a prefix length above 0");
        }
        if has_broadcast(&address)
            && [address.network(), address.broadcast()].contains(&address.addr())
        {
            return refuse("an address inside its network, neither the first nor the last");
        }
        let ours = IpNet::from(address.addr());
        if self.local.contains_key(&ours) {
            let reason = "a device of this host has the address already";
            return Err(ConfigError::exists("address", address, reason));
        }
        let source = Some(address.addr());
        self.local.insert(ours, entry(ours, RouteKind::Local, device, source));
        if has_broadcast(&address) {
            let broadcast = IpNet::from(address.broadcast());
            self.local
                .entry(broadcast)
                .or_insert_with(|| entry(broadcast, RouteKind::Broadcast, device, source));
        }
        if address.prefix_len() < address.max_prefix_len() {
            // A second address in the same network is secondary: the first remains the source.
            let network = address.trunc();
            self.main.entry((network, 0)).or_insert_with(|| network_entry(network, device, source));
        }
        self.addresses.push((device, address));
        Ok(())
    }

    /// Adds a route.
    ///
    /// # Errors
    /// If a field is impossible or contradicts another, or if the prefix has a route with the same
    /// metric.
    pub fn route(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let added = self.resolve(spec)?;
        if self.main.contains_key(&(spec.prefix, spec.metric)) {
            let reason = "there is a route with this prefix and metric";
            return Err(ConfigError::exists("route", added, reason));
        }
        self.main.insert((spec.prefix, spec.metric), added);
        Ok(())
    }

    /// Converts a specification to an entry.
    pub(super) fn resolve(&self, spec: &RouteSpec) -> Result<RouteEntry, ConfigError> {
        self.check_prefix(spec)?;
        check_mtu(spec)?;
        if let Some(source) = spec.prefsrc
            && !self.addresses.iter().any(|(_, address)| address.addr() == source)
        {
            return Err(ConfigError::missing("route src", source, "no address of this host"));
        }
        let (device, source) = self.way_out(spec)?;
        if self.down.contains(&device) {
            return Err(ConfigError::refused("route dev", device, "the device is down"));
        }
        Ok(RouteEntry {
            prefix: spec.prefix,
            kind: spec.kind,
            via: spec.via,
            device,
            prefsrc: spec.prefsrc.or(source),
            mtu: spec.mtu,
            metric: spec.metric,
        })
    }

    /// Builds the table.
    #[must_use]
    pub fn build(&self) -> Fib {
        let mut fib = Fib {
            v4: Tables::new(),
            v6: Tables::new(),
            addresses: self.addresses.clone(),
            deprecated: self.deprecated.clone(),
            link_local: self.link_local(),
        };
        for (prefix, entry) in &self.local {
            match prefix {
                IpNet::V4(prefix) => drop(fib.v4.local.insert(*prefix, entry.clone())),
                IpNet::V6(prefix) => drop(fib.v6.local.insert(*prefix, entry.clone())),
            }
        }
        // In descending order of metric, so that the best entry is inserted last and remains.
        for ((prefix, _), entry) in self.main.iter().rev() {
            match prefix {
                IpNet::V4(prefix) => drop(fib.v4.main.insert(*prefix, entry.clone())),
                IpNet::V6(prefix) => drop(fib.v6.main.insert(*prefix, entry.clone())),
            }
        }
        fib
    }

    /// Returns the routes to the link-local addresses of each device that is up.
    fn link_local(&self) -> Vec<RouteEntry> {
        let on_link = |(device, address): &(DeviceIndex, IpNet)| {
            let is_up = !self.down.contains(device);
            (is_link_local(address.addr()) && is_up)
                .then(|| network_entry(address.trunc(), *device, Some(address.addr())))
        };
        self.addresses.iter().filter_map(on_link).collect()
    }

    fn check_prefix(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        if spec.prefix.trunc() != spec.prefix {
            return Err(ConfigError::new("route", spec.prefix, spec.prefix.trunc()));
        }
        let multicast = spec.prefix.addr().is_multicast();
        let from_address =
            matches!(spec.kind, RouteKind::Local | RouteKind::Broadcast | RouteKind::Multicast);
        if multicast || from_address {
            let allowed = "a prefix of unicast destinations; local, broadcast and multicast follow from addresses";
            return Err(ConfigError::new("route", spec.prefix, allowed));
        }
        if let Some(device) = spec.device
            && device.0 >= self.devices
        {
            return Err(ConfigError::missing("route dev", device, "no such device"));
        }
        Ok(())
    }

    /// Returns the device of a route, and this host's address in the network of its next hop.
    fn way_out(&self, spec: &RouteSpec) -> Result<(DeviceIndex, Option<IpAddr>), ConfigError> {
        if spec.kind != RouteKind::Unicast {
            return match spec.via {
                None => Ok((NO_DEVICE, None)),
                Some(via) => Err(ConfigError::refused(
                    "route via",
                    via,
                    "a route that drops has no next hop",
                )),
            };
        }
        let Some(via) = spec.via else {
            let Some(device) = spec.device else {
                return Err(ConfigError::new("route", spec.prefix, "a next hop or a device"));
            };
            let source = self.first_address(device, spec.prefix.addr().is_ipv4());
            return Ok((device, source.filter(IpAddr::is_ipv4)));
        };
        if via.is_ipv4() != spec.prefix.addr().is_ipv4() {
            return Err(ConfigError::new("route via", via, "a next hop of the prefix's family"));
        }
        if is_link_local(via) {
            // The address of a router on any link: only the device tells which one.
            let Some(device) = spec.device else {
                return Err(ConfigError::new(
                    "route via",
                    via,
                    "a device beside a link-local address",
                ));
            };
            return Ok((device, None));
        }
        // The longest prefix decides between overlapping networks, as in any lookup.
        let on_link = self.main.values().filter(|entry| {
            entry.kind == RouteKind::Unicast
                && entry.via.is_none()
                && entry.prefix.contains(&via)
                && spec.device.is_none_or(|wanted| wanted == entry.device)
        });
        let found = on_link.max_by_key(|entry| entry.prefix.prefix_len());
        match found.filter(|_| !self.local.contains_key(&IpNet::from(via))) {
            Some(entry) => Ok((entry.device, entry.prefsrc)),
            None => Err(ConfigError::new(
                "route via",
                via,
                "a neighbor in the network of one of this host's addresses",
            )),
        }
    }

    fn first_address(&self, device: DeviceIndex, is_v4: bool) -> Option<IpAddr> {
        let mut ours = self.addresses.iter().filter(|(on, _)| *on == device);
        ours.find(|(_, address)| address.addr().is_ipv4() == is_v4)
            .map(|(_, address)| address.addr())
    }
}

fn check_mtu(spec: &RouteSpec) -> Result<(), ConfigError> {
    let min = if spec.prefix.addr().is_ipv4() { MTU_MIN_V4 } else { MTU_MIN_V6 };
    match spec.mtu {
        Some(mtu) if !(min..=MTU_MAX).contains(&mtu) => {
            Err(ConfigError::new("route mtu", mtu, format!("{min} to {MTU_MAX}")))
        }
        _ => Ok(()),
    }
}

pub(super) const fn entry(
    prefix: IpNet,
    kind: RouteKind,
    device: DeviceIndex,
    prefsrc: Option<IpAddr>,
) -> RouteEntry {
    RouteEntry { prefix, kind, via: None, device, prefsrc, mtu: None, metric: 0 }
}

/// Returns the entry of a device's own network. An IPv6 destination chooses among the addresses of
/// the device (`route::source_address`).
pub(super) fn network_entry(
    network: IpNet,
    device: DeviceIndex,
    source: Option<IpAddr>,
) -> RouteEntry {
    entry(network, RouteKind::Unicast, device, source.filter(IpAddr::is_ipv4))
}

/// Whether an address is valid on one link only (RFC 4291 §2.5.6).
pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns whether a host on some link may have the address.
fn is_unicast(ip: IpAddr) -> bool {
    let special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    let reserved = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.to_ipv4_mapped().is_some(),
    };
    !special && !reserved
}

/// RFC 3021: networks of one or two hosts have no broadcast address. IPv6 has none at all.
pub(super) const fn has_broadcast(address: &IpNet) -> bool {
    matches!(address, IpNet::V4(address) if address.prefix_len() <= 30)
}

const fn v4_net(ip: Ipv4Addr, len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(ip, len))
}

const fn v6_net(ip: Ipv6Addr, len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(ip, len))
}
