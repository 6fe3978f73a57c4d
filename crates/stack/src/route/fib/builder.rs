//! Builds a forwarding table from addresses and routes, or refuses them with a [`ConfigError`].
//!
//! Linux: `ip address add` and `ip route add` in net/ipv4/fib_frontend.c and fib_semantics.c. The
//! builder refuses more than Linux, for example an address that is the first of its network.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tcp::PathMetrics;

use super::{Fib, NO_DEVICE, NextHop, Route, RouteEntry, Table};
use crate::{
    base::{config_error::ConfigError, ids::DeviceIndex},
    transmit::dst::RouteKind,
};

/// Smallest MTU of a route: RFC 791 for IPv4, RFC 8200 §5 for IPv6.
const MTU_MIN_V4: u32 = 68;
pub(crate) const MTU_MIN_V6: u32 = 1280;
/// Largest value of the length fields of both IP versions.
const MTU_MAX: u32 = 65_535;

/// Specification of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destinations. The address must have no bits set beyond the prefix length.
    pub prefix: IpNet,
    /// `Unicast`, `Blackhole`, `Unreachable` or `Prohibit`. Routes of the other kinds exist from
    /// the start or are created with addresses.
    pub kind: RouteKind,
    /// Next hop: an address that an on-link route matches, or a link-local IPv6 address together
    /// with `device`.
    pub via: Option<IpAddr>,
    /// Device index. May be omitted if `via` determines the device, and has no effect unless `kind`
    /// is `Unicast`.
    pub device: Option<DeviceIndex>,
    /// Source address: an address of this host. The default for IPv4 is the source of the on-link
    /// route to the next hop, or the oldest address of the device. For IPv6, each destination
    /// selects an address (`route::source_address`).
    pub prefsrc: Option<IpAddr>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
    /// Whether `mtu` is final: reports do not change it, and packets are sent without DF.
    pub mtu_locked: bool,
    /// Metric: smaller is better.
    pub metric: u32,
    /// Metrics for TCP.
    pub metrics: PathMetrics,
    /// Next hops of a route that has several, instead of `via` and `device`.
    pub hops: Vec<HopSpec>,
}

/// Specification of one of several next hops (`ip route add ... nexthop`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopSpec {
    /// Next hop, as [`RouteSpec::via`].
    pub via: Option<IpAddr>,
    /// Device index. May be omitted if `via` determines the device.
    pub device: Option<DeviceIndex>,
    /// Share of the flows relative to those of the other next hops, 1 to [`WEIGHT_MAX`].
    pub weight: u16,
}

/// Largest weight of a next hop, as in Linux.
pub const WEIGHT_MAX: u16 = 256;

/// Largest number of next hops of a route. Linux has no limit but the length of its messages.
const HOPS_MAX: usize = 256;

impl RouteSpec {
    /// Returns the specification of `ip route add PREFIX via NEXT_HOP`.
    #[must_use]
    pub fn via(prefix: IpNet, next_hop: IpAddr) -> Self {
        Self { via: Some(next_hop), ..Self::of(prefix, RouteKind::Unicast) }
    }

    /// Returns the specification of `ip route add PREFIX dev DEVICE`: the destinations are on the
    /// link itself.
    #[must_use]
    pub fn on_link(prefix: IpNet, device: DeviceIndex) -> Self {
        Self { device: Some(device), ..Self::of(prefix, RouteKind::Unicast) }
    }

    /// Returns the specification of `ip route add blackhole PREFIX`, `unreachable PREFIX` or
    /// `prohibit PREFIX`, or a `Unicast` route without next hop and device, which the caller adds.
    #[must_use]
    pub const fn of(prefix: IpNet, kind: RouteKind) -> Self {
        Self {
            prefix,
            kind,
            via: None,
            device: None,
            prefsrc: None,
            mtu: None,
            mtu_locked: false,
            metric: 0,
            metrics: Self::UNSET,
            hops: Vec::new(),
        }
    }

    /// Metrics none of which is set.
    pub(super) const UNSET: PathMetrics = PathMetrics {
        window: 0,
        rtt_ms: 0,
        advmss: 0,
        initcwnd: 0,
        initrwnd: 0,
        quickack: false,
        congctl: None,
    };
}

/// Forwarding table under construction. Addresses must be added before routes, because routes are
/// checked against them.
#[derive(Clone, Debug)]
pub struct FibBuilder {
    devices: u32,
    /// Table that was built so far.
    pub(super) fib: Fib,
    /// Devices that are down. No route may use them.
    pub(super) down: BTreeSet<DeviceIndex>,
    shared: SharedRoutes,
}

/// Set of the routes of a table, so that equal routes of different prefixes share one allocation.
/// Linux: `fib_find_info`.
#[derive(Clone, Debug, Default)]
struct SharedRoutes {
    routes: BTreeSet<Arc<Route>>,
    /// Size of the set at which a sweep removes the routes that no prefix uses.
    sweep_at: usize,
}

impl SharedRoutes {
    /// Smallest size at which the set is swept.
    const SWEEP_MIN: usize = 64;

    /// Returns the shared copy of `route`.
    fn share(&mut self, route: Route) -> Arc<Route> {
        if let Some(shared) = self.routes.get(&route) {
            return Arc::clone(shared);
        }
        if self.routes.len() >= self.sweep_at.max(Self::SWEEP_MIN) {
            // A route that only this set refers to is used by no prefix of any table.
            self.routes.retain(|route| Arc::strong_count(route) > 1);
            self.sweep_at = 2 * self.routes.len();
        }
        let route = Arc::new(route);
        self.routes.insert(Arc::clone(&route));
        route
    }
}

impl FibBuilder {
    pub(super) fn new(devices: u32) -> Self {
        let (fib, down, shared) = (Fib::new(), BTreeSet::new(), SharedRoutes::default());
        let mut builder = Self { devices, fib, down, shared };
        let everywhere = [
            (v4_net(Ipv4Addr::BROADCAST, 32), RouteKind::Broadcast),
            (v4_net(Ipv4Addr::new(224, 0, 0, 0), 4), RouteKind::Multicast),
            (v6_net(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8), RouteKind::Multicast),
        ];
        for (prefix, kind) in everywhere {
            builder.add(Table::Local, prefix, route(kind, NO_DEVICE, None));
        }
        builder
    }

    /// Makes `device` the loopback device: 127.0.0.0/8 and ::1 become addresses of this host.
    pub fn loopback(&mut self, device: DeviceIndex) {
        let v4 = (v4_net(Ipv4Addr::new(127, 0, 0, 0), 8), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let v6 = (v6_net(Ipv6Addr::LOCALHOST, 128), IpAddr::V6(Ipv6Addr::LOCALHOST));
        for (prefix, source) in [v4, v6] {
            self.add(Table::Local, prefix, route(RouteKind::Local, device, Some(source)));
        }
        let broadcast = v4_net(Ipv4Addr::new(127, 255, 255, 255), 32);
        self.add(Table::Local, broadcast, route(RouteKind::Broadcast, device, None));
    }

    /// Assigns an address to a device, and makes the network of the address reachable through the
    /// device.
    ///
    /// # Errors
    /// If the address cannot belong to a host, is the first or the broadcast address of its
    /// network, or is assigned already; if the prefix length is 0; or if the device does not exist.
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
        if self.fib.get(Table::Local, &ours).is_some() {
            let reason = "a device of this host has the address already";
            return Err(ConfigError::exists("address", address, reason));
        }
        let source = Some(address.addr());
        self.add(Table::Local, ours, route(RouteKind::Local, device, source));
        if has_broadcast(&address) {
            let broadcast = IpNet::from(address.broadcast());
            self.add_first(Table::Local, broadcast, route(RouteKind::Broadcast, device, source));
        }
        if address.prefix_len() < address.max_prefix_len() {
            self.add_network(address.trunc(), network_route(device, source));
        }
        self.fib.addresses.push((device, address));
        Ok(())
    }

    /// Adds a route: `ip route add`.
    ///
    /// # Errors
    /// If a field is invalid or contradicts another, or if the prefix has a route with the same
    /// metric, also through another device.
    pub fn route(&mut self, spec: &RouteSpec) -> Result<(), ConfigError> {
        let added = self.resolve(spec)?;
        if self.has_route(Table::Main, &spec.prefix, |route| route.metric == spec.metric) {
            let reason = "there is a route with this prefix and metric";
            return Err(ConfigError::exists("route", RouteEntry::new(spec.prefix, &added), reason));
        }
        self.add(Table::Main, spec.prefix, added);
        Ok(())
    }

    /// Adds a route to a prefix, after those with the same metric. It takes the place of the first
    /// of these for which `replaces` returns true.
    pub(super) fn add_in_place(
        &mut self,
        table: Table,
        prefix: IpNet,
        added: Route,
        replaces: impl Fn(&Route) -> bool,
    ) {
        let metric = added.metric;
        let best = self.fib.get(table, &prefix).map(Arc::clone);
        let routes = best.iter().flat_map(|best| best.alternatives());
        let mut routes: Vec<_> = routes.cloned().collect();
        match routes.iter().position(|route| route.metric == metric && replaces(route)) {
            Some(at) => routes[at] = added,
            None => routes.insert(routes.partition_point(|route| route.metric <= metric), added),
        }
        self.set(table, &prefix, routes);
    }

    /// Adds a route to a prefix. It replaces a route to this prefix with the same metric.
    fn add(&mut self, table: Table, prefix: IpNet, added: Route) {
        self.add_in_place(table, prefix, added, |_| true);
    }

    /// As [`add`](Self::add), but changes nothing if the prefix has a route with the same metric.
    pub(super) fn add_first(&mut self, table: Table, prefix: IpNet, added: Route) {
        if !self.has_route(table, &prefix, |route| route.metric == added.metric) {
            self.add(table, prefix, added);
        }
    }

    /// Adds the route to the network of an address, after those of other devices with the same
    /// metric, as Linux does: each device leads to its neighbors. A second address of the device in
    /// the same network is secondary: the first one remains the source of the route.
    pub(super) fn add_network(&mut self, network: IpNet, added: Route) {
        let is_same = |route: &Route| (route.metric, route.device) == (added.metric, added.device);
        if !self.has_route(Table::Main, &network, is_same) {
            self.add_in_place(Table::Main, network, added, |_| false);
        }
    }

    pub(super) fn has_route(
        &self,
        table: Table,
        prefix: &IpNet,
        is_it: impl Fn(&Route) -> bool,
    ) -> bool {
        self.fib.get(table, prefix).is_some_and(|best| best.alternatives().any(is_it))
    }

    /// Replaces all routes to a prefix by `routes`, which must be in ascending order of metric.
    pub(super) fn set(&mut self, table: Table, prefix: &IpNet, routes: Vec<Route>) {
        let chained = |worse, route| Some(self.shared.share(Route { worse, ..route }));
        let best = routes.into_iter().rev().fold(None, chained);
        self.fib.set(table, prefix, best);
    }

    /// Removes the routes for which `keep` returns false. Returns the prefixes of the removed
    /// routes.
    pub(super) fn retain(
        &mut self,
        table: Table,
        mut keep: impl FnMut(&Route) -> bool,
    ) -> Vec<IpNet> {
        self.edit(table, |route| keep(route).then(|| route.clone()))
    }

    /// Replaces each route by the result of `edit`, or removes it. Returns the prefixes of the
    /// changed routes.
    pub(super) fn edit(
        &mut self,
        table: Table,
        mut edit: impl FnMut(&Route) -> Option<Route>,
    ) -> Vec<IpNet> {
        let mut changed = Vec::new();
        self.fib.for_each(table, |prefix, best| {
            let kept: Vec<Route> = best.alternatives().filter_map(&mut edit).collect();
            if !kept.iter().eq(best.alternatives()) {
                changed.push((prefix, kept));
            }
        });
        let mut prefixes = Vec::with_capacity(changed.len());
        for (prefix, kept) in changed {
            self.set(table, &prefix, kept);
            prefixes.push(prefix);
        }
        prefixes
    }

    /// Returns a copy for a change that may be refused. The set of shared routes moves to the copy
    /// instead of being cloned, because cloning it would cost time proportional to the number of
    /// routes.
    pub(crate) fn fork(&mut self) -> Self {
        let shared = std::mem::take(&mut self.shared);
        Self { devices: self.devices, fib: self.fib.clone(), down: self.down.clone(), shared }
    }

    /// Takes the set of shared routes back from a copy whose change was refused.
    pub(crate) fn rejoin(&mut self, refused: Self) {
        self.shared = refused.shared;
    }

    /// Checks a specification and converts it to a route.
    pub(super) fn resolve(&self, spec: &RouteSpec) -> Result<Route, ConfigError> {
        self.check_prefix(spec)?;
        check_mtu(spec)?;
        if let Some(source) = spec.prefsrc
            && !self.fib.addresses.iter().any(|(_, address)| address.addr() == source)
        {
            return Err(ConfigError::missing("route src", source, "no address of this host"));
        }
        let hops = self.resolve_hops(spec)?;
        let (via, device, source) = match hops.first() {
            // Each next hop has its own source.
            Some(first) => (first.via, first.device, None),
            None => {
                let (device, source) = self.output_device(spec)?;
                self.check_up(device)?;
                (spec.via, device, source)
            }
        };
        let RouteSpec { kind, mtu, mtu_locked, metric, metrics, .. } = *spec;
        let prefsrc = spec.prefsrc.or(source);
        Ok(Route {
            kind,
            via,
            device,
            prefsrc,
            mtu,
            mtu_locked,
            metric,
            metrics,
            hops,
            worse: None,
        })
    }

    fn check_up(&self, device: DeviceIndex) -> Result<(), ConfigError> {
        if self.down.contains(&device) {
            return Err(ConfigError::refused("route dev", device, "the device is down"));
        }
        Ok(())
    }

    /// Returns the next hops of a route that has several.
    fn resolve_hops(&self, spec: &RouteSpec) -> Result<Vec<NextHop>, ConfigError> {
        if spec.hops.is_empty() {
            return Ok(Vec::new());
        }
        let is_plain = spec.kind == RouteKind::Unicast && spec.via.is_none();
        if !is_plain || spec.device.is_some() || spec.hops.len() > HOPS_MAX {
            let allowed = format!("up to {HOPS_MAX} next hops, without another next hop or device");
            return Err(ConfigError::new("route nexthop", spec.hops.len(), allowed));
        }
        let mut hops = Vec::with_capacity(spec.hops.len());
        for &HopSpec { via, device, weight } in &spec.hops {
            if !(1..=WEIGHT_MAX).contains(&weight) {
                let allowed = format!("1 to {WEIGHT_MAX}");
                return Err(ConfigError::new("route nexthop weight", weight, allowed));
            }
            if let Some(device) = device
                && device.0 >= self.devices
            {
                return Err(ConfigError::missing("route dev", device, "no such device"));
            }
            let one = RouteSpec { via, device, ..RouteSpec::of(spec.prefix, spec.kind) };
            let (device, source) = self.output_device(&one)?;
            self.check_up(device)?;
            hops.push(NextHop { via, device, source, weight, dead: false });
        }
        Ok(hops)
    }

    /// Returns the table, which shares its memory with the builder.
    #[must_use]
    pub fn build(&self) -> Fib {
        Fib { link_local: self.link_local(), ..self.fib.clone() }
    }

    /// Returns the routes to the link-local addresses of each device that is up, with their prefix
    /// lengths.
    fn link_local(&self) -> Vec<(u8, Route)> {
        let on_link = |(device, address): &(DeviceIndex, IpNet)| {
            let is_up = !self.down.contains(device);
            let route = || network_route(*device, Some(address.addr()));
            (is_link_local(address.addr()) && is_up).then(|| (address.prefix_len(), route()))
        };
        self.fib.addresses.iter().filter_map(on_link).collect()
    }

    fn check_prefix(&self, spec: &RouteSpec) -> Result<(), ConfigError> {
        if spec.prefix.trunc() != spec.prefix {
            return Err(ConfigError::new("route", spec.prefix, spec.prefix.trunc()));
        }
        let multicast = spec.prefix.addr().is_multicast();
        let from_address =
            matches!(spec.kind, RouteKind::Local | RouteKind::Broadcast | RouteKind::Multicast);
        if multicast || from_address {
            let allowed = "a prefix of unicast destinations; local, broadcast and multicast routes cannot be added";
            return Err(ConfigError::new("route", spec.prefix, allowed));
        }
        if let Some(device) = spec.device
            && device.0 >= self.devices
        {
            return Err(ConfigError::missing("route dev", device, "no such device"));
        }
        Ok(())
    }

    /// Returns the device of a route, and the source address that follows from the on-link route to
    /// its next hop.
    fn output_device(
        &self,
        spec: &RouteSpec,
    ) -> Result<(DeviceIndex, Option<IpAddr>), ConfigError> {
        if spec.kind != RouteKind::Unicast {
            return match spec.via {
                None => Ok((NO_DEVICE, None)),
                Some(via) => Err(ConfigError::refused(
                    "route via",
                    via,
                    "a blackhole, unreachable or prohibit route has no next hop",
                )),
            };
        }
        let Some(via) = spec.via else {
            let Some(device) = spec.device else {
                return Err(ConfigError::new("route", spec.prefix, "a next hop or a device"));
            };
            let source = self.fib.first_address(device, spec.prefix.addr().is_ipv4());
            return Ok((device, source.filter(IpAddr::is_ipv4)));
        };
        if via.is_ipv4() != spec.prefix.addr().is_ipv4() {
            return Err(ConfigError::new("route via", via, "a next hop of the prefix's family"));
        }
        if is_link_local(via) {
            // Several links may have a router with this address, so the specification must name the
            // device.
            let Some(device) = spec.device else {
                return Err(ConfigError::new(
                    "route via",
                    via,
                    "a device beside a link-local address",
                ));
            };
            return Ok((device, None));
        }
        // If several networks contain the next hop, that with the longest prefix decides, as in any
        // lookup.
        let mut found = None;
        self.fib.for_each_match(via, |best| {
            let mut on_link = best.alternatives().filter(|route| {
                route.kind == RouteKind::Unicast
                    && route.via.is_none()
                    && spec.device.is_none_or(|wanted| wanted == route.device)
            });
            found = on_link.next().map(|route| (route.device, route.prefsrc)).or(found);
        });
        let is_ours = self.fib.get(Table::Local, &IpNet::from(via)).is_some();
        match found.filter(|_| !is_ours) {
            Some(found) => Ok(found),
            None => Err(ConfigError::new(
                "route via",
                via,
                "a neighbor in the network of one of this host's addresses",
            )),
        }
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

/// Returns a route without next hop, MTU and metric, as it is created with an address.
pub(super) const fn route(kind: RouteKind, device: DeviceIndex, prefsrc: Option<IpAddr>) -> Route {
    Route {
        kind,
        via: None,
        device,
        prefsrc,
        mtu: None,
        mtu_locked: false,
        metric: 0,
        metrics: RouteSpec::UNSET,
        hops: Vec::new(),
        worse: None,
    }
}

/// Returns the route to the network of an address of `device`. An IPv6 route has no source address:
/// for each destination, one of the device's addresses is selected (`route::source_address`).
pub(super) fn network_route(device: DeviceIndex, source: Option<IpAddr>) -> Route {
    route(RouteKind::Unicast, device, source.filter(IpAddr::is_ipv4))
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

/// Whether the network of an address has a broadcast address. An IPv4 network of length 31
/// (RFC 3021) or 32 has none, and an IPv6 network has none.
pub(super) const fn has_broadcast(address: &IpNet) -> bool {
    matches!(address, IpNet::V4(address) if address.prefix_len() <= 30)
}

const fn v4_net(ip: Ipv4Addr, len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(ip, len))
}

const fn v6_net(ip: Ipv6Addr, len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(ip, len))
}
