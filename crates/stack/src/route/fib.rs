//! The forwarding table: selects the route of a packet by longest prefix match.
//!
//! Above: `route::router` for sent packets, `receive::ip_input` for received packets. The
//! configuration of the host and later changes define addresses and routes. Linux:
//! net/ipv4/fib_trie.c, and the `local` and `main` tables of `ip route`.
//!
//! A [`Fib`] is immutable once built. A change of routes builds a new one (`route::table`), which
//! shares all but the changed nodes with the old one ([`Lpm`]). As in Linux it has a local and a
//! main table. The local table is searched first, so that no route can redirect an address of this
//! host. An address on a device creates up to three routes: one of kind `Local` for the address,
//! one for its network on the link, and one of kind `Broadcast` for the network's broadcast
//! address.
//!
//! A [`Route`] does not contain its prefix, so that prefixes with equal routes share one: a table
//! of a million prefixes has about as many routes as next hops. Routes to one prefix with different
//! metrics form a list, the best one first. Routes with equal metrics are in this list, too, if
//! they lead through different devices: those to the network of an address, and those that routers
//! of several links announce. The oldest one comes first, and the next one is used when its device
//! goes down.
//!
//! Not here: devices. A route contains the index of its device.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Deref,
    sync::Arc,
};

use ipnet::IpNet;

use tcp::PathMetrics;

use super::lpm::{Address, Lpm};
use crate::{base::ids::DeviceIndex, transmit::dst::RouteKind};

pub use builder::{FibBuilder, HopSpec, RouteSpec, WEIGHT_MAX};
pub(crate) use builder::{MTU_MIN_V6, is_link_local};

mod builder;
mod change;

/// Device index of a route without a specific device: limited broadcast, multicast, blackhole,
/// unreachable, prohibit.
pub const NO_DEVICE: DeviceIndex = DeviceIndex(u32::MAX);

/// Treatment of the packets to a prefix. Linux: `struct fib_info`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Treatment of these destinations.
    pub kind: RouteKind,
    /// Next hop; `None` when the destination is on the link.
    pub via: Option<IpAddr>,
    /// Index of the device, or [`NO_DEVICE`].
    pub device: DeviceIndex,
    /// Source address for packets without one: always an address of this host.
    pub prefsrc: Option<IpAddr>,
    /// Largest packet of this route in bytes, if smaller than the device's MTU.
    pub mtu: Option<u32>,
    /// Whether `mtu` is final: reports do not change it, and packets leave without DF.
    pub mtu_locked: bool,
    /// Metric: among routes to the same prefix the smallest wins.
    pub metric: u32,
    /// Metrics that concern TCP.
    pub metrics: PathMetrics,
    /// All next hops, if there are several. `via` and `device` are then those of the first.
    pub hops: Vec<NextHop>,
    /// Route to the same prefix with the next larger metric, or with the same metric through
    /// another device.
    worse: Option<Arc<Self>>,
}

/// One of several next hops of a route. Linux: `struct fib_nh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    /// Next hop; `None` when the destination is on the link.
    pub via: Option<IpAddr>,
    /// Index of the device.
    pub device: DeviceIndex,
    /// Source address for packets without one, unless the route has its own.
    pub source: Option<IpAddr>,
    /// Share of the flows, relative to the weights of the other next hops: 1 to 256.
    pub weight: u16,
    /// Whether no flow may use the next hop, because its device is down.
    pub dead: bool,
}

impl fmt::Display for NextHop {
    /// Prints the next hop as `ip route` does, but with a device index.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(" nexthop")?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        write!(f, " dev {} weight {}", self.device, self.weight)?;
        if self.dead { f.write_str(" dead") } else { Ok(()) }
    }
}

impl Route {
    /// Returns a route to a destination on the link of `device`.
    pub(crate) fn on_link(device: DeviceIndex) -> Self {
        Self {
            kind: RouteKind::Unicast,
            via: None,
            device,
            prefsrc: None,
            mtu: None,
            mtu_locked: false,
            metric: 0,
            metrics: PathMetrics::default(),
            hops: Vec::new(),
            worse: None,
        }
    }

    /// Returns the next hop of a flow. `hash` is called if there are several; each is chosen for a
    /// share of the hashes in proportion to its weight. Linux: `fib_select_multipath`.
    #[inline]
    pub(crate) fn next_hop(&self, hash: impl FnOnce() -> u32) -> NextHop {
        if self.hops.is_empty() {
            let Self { via, device, prefsrc: source, .. } = *self;
            return NextHop { via, device, source, weight: 1, dead: false };
        }
        self.select(hash())
    }

    #[cold]
    fn select(&self, hash: u32) -> NextHop {
        let alive = || self.hops.iter().filter(|hop| !hop.dead);
        let total: u64 = alive().map(|hop| u64::from(hop.weight)).sum();
        // The hash as a fraction of the sum of weights.
        let mut left = (u64::from(hash) * total) >> 32;
        for hop in alive() {
            match left.checked_sub(hop.weight.into()) {
                Some(rest) => left = rest,
                None => return NextHop { source: self.prefsrc.or(hop.source), ..*hop },
            }
        }
        unreachable!("the table has no route whose next hops are all dead: {self:?}")
    }

    /// Whether some flow leaves by `device`.
    fn uses(&self, device: DeviceIndex) -> bool {
        if self.hops.is_empty() {
            return self.device == device;
        }
        self.hops.iter().any(|hop| hop.device == device && !hop.dead)
    }

    /// Iterates over this route and those with larger metrics.
    fn alternatives(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |route| route.worse.as_deref())
    }
}

/// Result of a lookup: a route, and the length of its prefix.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Length of the prefix that matched.
    pub len: u8,
    /// Route of the prefix.
    pub route: &'a Route,
}

impl Deref for Found<'_> {
    type Target = Route;

    #[inline]
    fn deref(&self) -> &Route {
        self.route
    }
}

impl Found<'_> {
    /// Returns the prefix that matched. `dst` is the address that was looked up.
    #[must_use]
    pub fn prefix(&self, dst: IpAddr) -> IpNet {
        IpNet::new_assert(dst, self.len).trunc()
    }

    /// Returns the route with its prefix, as it is listed. `dst` is the address that was looked up.
    #[must_use]
    pub fn entry(&self, dst: IpAddr) -> RouteEntry {
        RouteEntry::new(self.prefix(dst), self.route)
    }
}

/// A route with its prefix, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destinations that the route matches.
    pub prefix: IpNet,
    /// Treatment of these destinations.
    pub kind: RouteKind,
    /// Next hop; `None` when the destination is on the link.
    pub via: Option<IpAddr>,
    /// Index of the device, or [`NO_DEVICE`].
    pub device: DeviceIndex,
    /// Source address for packets without one: always an address of this host.
    pub prefsrc: Option<IpAddr>,
    /// Largest packet of this route in bytes, if smaller than the device's MTU.
    pub mtu: Option<u32>,
    /// Whether `mtu` is final.
    pub mtu_locked: bool,
    /// Metric: among routes to the same prefix the smallest wins.
    pub metric: u32,
    /// Metrics that concern TCP.
    pub metrics: PathMetrics,
    /// Next hops, if there are several; `via` is then `None` and `device` [`NO_DEVICE`].
    pub hops: Vec<NextHop>,
}

impl fmt::Display for RouteEntry {
    /// Prints the route as `ip route` does, but with the index of the device instead of its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.word())?;
        if self.prefix.prefix_len() == 0 {
            f.write_str("default")?;
        } else if self.prefix.prefix_len() == self.prefix.max_prefix_len() {
            write!(f, "{}", self.prefix.addr())?;
        } else {
            write!(f, "{}", self.prefix)?;
        }
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if self.device != NO_DEVICE {
            write!(f, " dev {}", self.device)?;
        }
        if let Some(prefsrc) = self.prefsrc {
            write!(f, " src {prefsrc}")?;
        }
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {}{mtu}", if self.mtu_locked { "lock " } else { "" })?;
        }
        write!(f, "{}", self.metrics)?;
        self.hops.iter().try_for_each(|hop| write!(f, "{hop}"))
    }
}

impl RouteEntry {
    fn new(prefix: IpNet, route: &Route) -> Self {
        let Route { kind, via, device, prefsrc, mtu, mtu_locked, metric, metrics, .. } = *route;
        let hops = route.hops.clone();
        let (via, device) = if hops.is_empty() { (via, device) } else { (None, NO_DEVICE) };
        Self { prefix, kind, via, device, prefsrc, mtu, mtu_locked, metric, metrics, hops }
    }
}

/// The two tables of an address family.
#[derive(Clone, Copy, Debug)]
enum Table {
    /// Routes of the addresses of this host, and of broadcast and multicast addresses.
    Local,
    /// Routes of the networks of this host's addresses, and added routes.
    Main,
}

/// Local and main table of one address family.
#[derive(Clone)]
struct Tables<A> {
    local: Lpm<A, Arc<Route>>,
    main: Lpm<A, Arc<Route>>,
}

impl<A: Address> Tables<A> {
    const fn new() -> Self {
        Self { local: Lpm::new(), main: Lpm::new() }
    }

    #[inline]
    fn lookup(&self, dst: A) -> Option<Found<'_>> {
        let found = self.local.lookup(dst).or_else(|| self.main.lookup(dst))?;
        Some(Found { len: found.len, route: found.value })
    }

    #[inline]
    fn local_kind(&self, ip: A) -> Option<RouteKind> {
        self.local.lookup(ip).map(|found| found.value.kind)
    }

    const fn table(&self, table: Table) -> &Lpm<A, Arc<Route>> {
        match table {
            Table::Local => &self.local,
            Table::Main => &self.main,
        }
    }

    /// Sets or removes the routes of a prefix.
    fn set(&mut self, table: Table, prefix: A, len: u8, best: Option<Arc<Route>>) {
        let table = match table {
            Table::Local => &mut self.local,
            Table::Main => &mut self.main,
        };
        drop(match best {
            Some(best) => table.insert(prefix, len, best),
            None => table.remove(prefix, len),
        });
    }
}

/// The forwarding table of a host.
#[derive(Clone)]
pub struct Fib {
    v4: Tables<u32>,
    v6: Tables<u128>,
    /// Addresses of this host with their prefix lengths, by device.
    addresses: Vec<(DeviceIndex, IpNet)>,
    /// Addresses that new connections avoid (RFC 4862 §5.5.4).
    deprecated: BTreeSet<IpAddr>,
    /// Temporary addresses (RFC 8981).
    temporary: BTreeSet<IpAddr>,
    /// Route to the link-local network of each device (fe80::/64), with its prefix length. A lookup
    /// in table `v6` finds only the first of these routes, because their prefixes are equal.
    link_local: Vec<(u8, Route)>,
}

impl Fib {
    /// Returns a builder of a table for devices with indices below `devices`.
    #[must_use]
    pub fn builder(devices: u32) -> FibBuilder {
        FibBuilder::new(devices)
    }

    const fn new() -> Self {
        Self {
            v4: Tables::new(),
            v6: Tables::new(),
            addresses: Vec::new(),
            deprecated: BTreeSet::new(),
            temporary: BTreeSet::new(),
            link_local: Vec::new(),
        }
    }

    /// Returns the route for packets to `dst`: that of the longest matching prefix of the local
    /// table or, if no local prefix matches, of the main table.
    #[inline]
    #[must_use]
    pub fn lookup(&self, dst: IpAddr) -> Option<Found<'_>> {
        match dst {
            IpAddr::V4(dst) => self.v4.lookup(dst.to_bits()),
            IpAddr::V6(dst) => self.v6.lookup(dst.to_bits()),
        }
    }

    /// Returns the route for packets to the link-local address `dst` on the link of `device`.
    #[must_use]
    pub fn lookup_on(&self, device: DeviceIndex, dst: IpAddr) -> Option<Found<'_>> {
        let is_local_on =
            |found: &Found<'_>| found.kind == RouteKind::Local && found.device == device;
        let on_link = || {
            let (len, route) = self.link_local.iter().find(|(_, route)| route.device == device)?;
            Some(Found { len: *len, route })
        };
        self.lookup(dst).filter(is_local_on).or_else(on_link)
    }

    /// Returns the route to `dst`, if it leads by `device` alone.
    pub(crate) fn lookup_by(&self, device: DeviceIndex, dst: IpAddr) -> Option<&Route> {
        let Found { route, .. } = self.lookup(dst)?;
        let leads = route.kind == RouteKind::Unicast && route.device == device;
        (leads && route.hops.is_empty()).then_some(route)
    }

    /// Returns the addresses of `device`, oldest first.
    pub fn addresses_on(&self, device: DeviceIndex) -> impl Iterator<Item = IpAddr> {
        let on_it = move |(on, _): &&(DeviceIndex, IpNet)| *on == device;
        self.addresses.iter().filter(on_it).map(|(_, address)| address.addr())
    }

    /// Returns the addresses of this host with their devices and prefix lengths, oldest first.
    pub(crate) fn addresses(&self) -> &[(DeviceIndex, IpNet)] {
        &self.addresses
    }

    /// Returns whether `address` is deprecated, so that new connections avoid it as their source.
    pub(crate) fn is_deprecated(&self, address: IpAddr) -> bool {
        self.deprecated.contains(&address)
    }

    /// Returns whether `address` is temporary (RFC 8981).
    pub(crate) fn is_temporary(&self, address: IpAddr) -> bool {
        self.temporary.contains(&address)
    }

    /// Returns the kind of an address in the local table: `Local` for an address of this host,
    /// `Broadcast` or `Multicast` for an address of several hosts, `None` for any other address. If
    /// a packet from a link has a source address of one of these three kinds, the packet is forged.
    #[inline]
    #[must_use]
    pub fn local_kind(&self, ip: IpAddr) -> Option<RouteKind> {
        match ip {
            IpAddr::V4(ip) => self.v4.local_kind(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.local_kind(ip.to_bits()),
        }
    }

    /// Returns whether the address belongs to this host, on any device.
    #[must_use]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.local_kind(ip) == Some(RouteKind::Local)
    }

    /// Returns whether the route to `src` is a unicast route and, if `device` is given, leads
    /// through that device: the reverse-path check of RFC 3704, strict (§2.2) with a device, loose
    /// (§2.4) without one.
    #[must_use]
    pub fn has_route_back(&self, src: IpAddr, device: Option<DeviceIndex>) -> bool {
        self.lookup(src).is_some_and(|route| {
            route.kind == RouteKind::Unicast && device.is_none_or(|device| route.uses(device))
        })
    }

    /// Returns whether `device` has the address `local` in a subnet that contains `other` (Linux:
    /// `inet_confirm_addr`).
    #[must_use]
    pub fn share_subnet(&self, device: DeviceIndex, local: IpAddr, other: IpAddr) -> bool {
        self.addresses.iter().any(|(on, address)| {
            *on == device && address.addr() == local && address.contains(&other)
        })
    }

    /// Returns whether `via` on `device` is the next hop of a route to `dst`, of any prefix and
    /// metric.
    pub(crate) fn is_next_hop(&self, dst: IpAddr, device: DeviceIndex, via: IpAddr) -> bool {
        let mut found = false;
        self.for_each_match(dst, |best| {
            let mut routes = best.alternatives();
            found |= routes.any(|route| {
                let is_it = |hop: &NextHop| hop.device == device && hop.via == Some(via);
                route.device == device && route.via == Some(via) || route.hops.iter().any(is_it)
            });
        });
        found
    }

    /// Returns the device of the best unicast route to `dst` in the main table.
    pub(crate) fn main_device(&self, dst: IpAddr) -> Option<DeviceIndex> {
        let best = match dst {
            IpAddr::V4(dst) => self.v4.main.lookup(dst.to_bits()).map(|found| found.value),
            IpAddr::V6(dst) => self.v6.main.lookup(dst.to_bits()).map(|found| found.value),
        };
        best.filter(|route| route.kind == RouteKind::Unicast).map(|route| route.device)
    }

    /// Returns the first device besides loopback that has an address of this family.
    pub(crate) fn device_with_address(&self, is_v4: bool) -> Option<DeviceIndex> {
        let is_of_family =
            |(on, address): &&(DeviceIndex, IpNet)| on.0 != 0 && address.addr().is_ipv4() == is_v4;
        self.addresses.iter().find(is_of_family).map(|(on, _)| *on)
    }

    /// Returns the oldest address of `device` in a family: IPv4 if `v4` is true, otherwise IPv6.
    #[must_use]
    pub fn first_address(&self, device: DeviceIndex, v4: bool) -> Option<IpAddr> {
        self.addresses_on(device).find(|address| address.is_ipv4() == v4)
    }

    /// Returns every route of both tables, even if another route to its prefix has a smaller
    /// metric. The local table comes before the main table, and in each table IPv4 before IPv6;
    /// then the routes are sorted by prefix and metric.
    #[must_use]
    pub fn entries(&self) -> Vec<RouteEntry> {
        let mut entries = Vec::new();
        for table in [Table::Local, Table::Main] {
            self.for_each(table, |prefix, best| {
                entries.extend(best.alternatives().map(|route| RouteEntry::new(prefix, route)));
            });
        }
        entries
    }

    /// Returns the best route to exactly this prefix.
    fn get(&self, table: Table, prefix: &IpNet) -> Option<&Arc<Route>> {
        let len = prefix.prefix_len();
        match prefix.addr() {
            IpAddr::V4(ip) => self.v4.table(table).get(ip.to_bits(), len),
            IpAddr::V6(ip) => self.v6.table(table).get(ip.to_bits(), len),
        }
    }

    /// Sets or removes the routes of a prefix.
    fn set(&mut self, table: Table, prefix: &IpNet, best: Option<Arc<Route>>) {
        let len = prefix.prefix_len();
        match prefix.addr() {
            IpAddr::V4(ip) => self.v4.set(table, ip.to_bits(), len, best),
            IpAddr::V6(ip) => self.v6.set(table, ip.to_bits(), len, best),
        }
    }

    /// Visits the prefixes of a table with their best routes: IPv4 before IPv6, in ascending order.
    fn for_each(&self, table: Table, mut visit: impl FnMut(IpNet, &Arc<Route>)) {
        self.v4.table(table).for_each(|ip, len, best| {
            visit(IpNet::new_assert(Ipv4Addr::from_bits(ip).into(), len), best);
        });
        self.v6.table(table).for_each(|ip, len, best| {
            visit(IpNet::new_assert(Ipv6Addr::from_bits(ip).into(), len), best);
        });
    }

    /// Visits the best route of each prefix of the main table that contains `dst`, in ascending
    /// order of length.
    fn for_each_match(&self, dst: IpAddr, mut visit: impl FnMut(&Route)) {
        match dst {
            IpAddr::V4(ip) => self.v4.main.for_each_match(ip.to_bits(), |_, best| visit(best)),
            IpAddr::V6(ip) => self.v6.main.for_each_match(ip.to_bits(), |_, best| visit(best)),
        }
    }
}

impl fmt::Debug for Fib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries().iter().map(|entry| format!("{entry}"))).finish()
    }
}

#[cfg(test)]
mod tests;
