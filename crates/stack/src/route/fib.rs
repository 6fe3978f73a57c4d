//! The forwarding table: selects the route of a packet by longest prefix match.
//!
//! Above: `route::router` for output, `receive::ip_input` for input; the host's configuration
//! defines addresses and routes. Linux: net/ipv4/fib_trie.c, and the `local` and `main` tables of
//! `ip route`.
//!
//! A table is immutable once built; a change of routes builds a new table (`route::table`). As in
//! Linux the local table is searched first, so no route can redirect an address of this host. An
//! address on a device creates three entries: the address as local, its network as directly
//! reachable, and the network's broadcast address.
//!
//! Not here: devices. An entry refers to one by index.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};

use crate::{base::ids::DeviceIndex, transmit::dst::RouteKind};

pub use builder::{FibBuilder, RouteSpec};
pub(crate) use builder::{MTU_MIN_V6, is_link_local};

mod builder;
mod change;

/// Device index of an entry without a specific device: limited broadcast, multicast, blackhole.
pub const NO_DEVICE: DeviceIndex = DeviceIndex(u32::MAX);

/// One entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destinations that the entry matches.
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
    /// Metric: among routes to the same prefix the smallest wins.
    pub metric: u32,
}

impl fmt::Display for RouteEntry {
    /// Prints the entry as `ip route` does, but with device indices.
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
            write!(f, " mtu {mtu}")?;
        }
        Ok(())
    }
}

/// Local and main table of one address family.
#[derive(Clone)]
struct Tables<P: Prefix> {
    local: PrefixMap<P, RouteEntry>,
    main: PrefixMap<P, RouteEntry>,
}

impl<P: Prefix> Tables<P> {
    fn new() -> Self {
        Self { local: PrefixMap::new(), main: PrefixMap::new() }
    }

    fn lookup(&self, host: &P) -> Option<&RouteEntry> {
        let found = self.local.get_lpm(host).or_else(|| self.main.get_lpm(host));
        found.map(|(_, entry)| entry)
    }

    fn iter(&self) -> impl Iterator<Item = &RouteEntry> {
        self.local.values().chain(self.main.values())
    }
}

/// The forwarding table of a host.
#[derive(Clone)]
pub struct Fib {
    v4: Tables<Ipv4Net>,
    v6: Tables<Ipv6Net>,
    /// Addresses of this host with their prefix lengths, by device.
    addresses: Vec<(DeviceIndex, IpNet)>,
    /// Addresses that new connections avoid (RFC 4862 §5.5.4).
    deprecated: BTreeSet<IpAddr>,
    /// Routes to the link-local addresses of each device, fe80::/64. In `v6`, one of them hides the
    /// others.
    link_local: Vec<RouteEntry>,
}

impl Fib {
    /// Starts a table to be filled with addresses and routes, for devices with indices below
    /// `devices`.
    #[must_use]
    pub fn builder(devices: u32) -> FibBuilder {
        FibBuilder::new(devices)
    }

    /// Returns the entry for packets to `dst`: from the local table if it has one, otherwise the
    /// longest matching prefix.
    #[must_use]
    pub fn lookup(&self, dst: IpAddr) -> Option<&RouteEntry> {
        match dst {
            IpAddr::V4(dst) => self.v4.lookup(&host_v4(dst)),
            IpAddr::V6(dst) => self.v6.lookup(&host_v6(dst)),
        }
    }

    /// Returns the entry for packets to the link-local address `dst` on the link of `device`.
    #[must_use]
    pub fn lookup_on(&self, device: DeviceIndex, dst: IpAddr) -> Option<&RouteEntry> {
        let local = self.lookup(dst).filter(|entry| entry.kind == RouteKind::Local);
        let is_on = |entry: &&RouteEntry| entry.device == device;
        local.filter(is_on).or_else(|| self.link_local.iter().find(is_on))
    }

    /// Returns the addresses of `device`, oldest first.
    pub fn addresses_on(&self, device: DeviceIndex) -> impl Iterator<Item = IpAddr> {
        let on_it = move |(on, _): &&(DeviceIndex, IpNet)| *on == device;
        self.addresses.iter().filter(on_it).map(|(_, address)| address.addr())
    }

    /// Returns the addresses of this host with their devices and prefix lengths.
    pub(crate) fn addresses(&self) -> &[(DeviceIndex, IpNet)] {
        &self.addresses
    }

    /// Returns whether new connections avoid `address`.
    pub(crate) fn is_deprecated(&self, address: IpAddr) -> bool {
        self.deprecated.contains(&address)
    }

    /// Returns the kind of an address in the local table: `Local` for addresses of this host,
    /// `Broadcast` and `Multicast` for addresses of no single host, `None` for all others. A packet
    /// whose source has any of the three kinds is forged.
    #[must_use]
    pub fn local_kind(&self, ip: IpAddr) -> Option<RouteKind> {
        let found = match ip {
            IpAddr::V4(ip) => self.v4.local.get_lpm(&host_v4(ip)).map(|(_, entry)| entry),
            IpAddr::V6(ip) => self.v6.local.get_lpm(&host_v6(ip)).map(|(_, entry)| entry),
        };
        found.map(|entry| entry.kind)
    }

    /// Returns whether the address belongs to this host, on any device.
    #[must_use]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.local_kind(ip) == Some(RouteKind::Local)
    }

    /// Returns whether packets to `src` would leave by a unicast route: by any route, or by
    /// `device` if one is given. The reverse-path check of RFC 3704: strict (§2.2) with a device,
    /// loose (§2.4) without.
    #[must_use]
    pub fn has_route_back(&self, src: IpAddr, device: Option<DeviceIndex>) -> bool {
        self.lookup(src).is_some_and(|route| {
            route.kind == RouteKind::Unicast && device.is_none_or(|device| device == route.device)
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

    /// Returns the first address of a family given to `device`: the source of its packets unless
    /// the route specifies another.
    #[must_use]
    pub fn first_address(&self, device: DeviceIndex, v4: bool) -> Option<IpAddr> {
        self.addresses_on(device).find(|address| address.is_ipv4() == v4)
    }

    /// Returns every entry: IPv4 before IPv6, the local table before the main table, by prefix.
    pub fn iter(&self) -> impl Iterator<Item = &RouteEntry> {
        self.v4.iter().chain(self.v6.iter())
    }
}

impl fmt::Debug for Fib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|entry| format!("{entry}"))).finish()
    }
}

const fn host_v4(ip: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new_assert(ip, 32)
}

const fn host_v6(ip: Ipv6Addr) -> Ipv6Net {
    Ipv6Net::new_assert(ip, 128)
}

#[cfg(test)]
mod tests;
