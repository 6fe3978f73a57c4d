//! Router of a host: finds the route entry (dst) of a destination, and checks whether cached route
//! entries are still valid.
//!
//! Above: `socket::net`, the receive steps and sockets, which look up routes. Below: the forwarding
//! table, the neighbor table, the transmit queues.
//!
//! A lookup has two steps. The first reads the tables and returns a `Hop`: device, next hop, source
//! and MTU. The second finds or creates the route entry for the hop, which packets of many flows
//! share. A socket caches the result of both as a `CachedDst`. Linux: `ip_route_output_key`,
//! `dst_check`, `ip_rt_update_pmtu`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ops::Deref,
    sync::Arc,
};

use pkt::Instant;
use sync::{
    counted,
    epoch::{Domain, Section},
};
use tcp::PathMetrics;

use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{CoreId, DeviceIndex, LOOPBACK},
    },
    cx::{Cx, share::HostShare},
    device::{Device, LinkType, QueueId, attached::Attached},
    header::ethernet::{MacAddr, multicast_mac},
    route::exception::{Limits, Stamp},
    sysctl::{
        Sysctls,
        modes::{DstCheck, DstLayout},
    },
    transmit::{
        dst::{Dst, DstHandle, DstOrigin, DstOwner, DstRef, DstStats, DstTail, RouteKind},
        neighbor::{
            table::{Key, NeighborTable},
            tables::NeighborTables,
        },
        tx_queue::DeviceTx,
    },
};

use super::{
    exception::Exceptions,
    fib::{Fib, MTU_MIN_V6, NO_DEVICE, Route},
    input::InputRoutes,
    output::OutputRoutes,
    source_address,
    table::RouteTable,
};

/// Devices, routes and neighbors of a host.
#[derive(Debug)]
pub struct Router {
    pub(crate) share: HostShare,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Devices other than loopback, with their state: they can be taken down and removed.
    pub(crate) attached: Vec<Arc<Attached>>,
    /// Transmit queues of each device.
    pub(crate) tx: Vec<Arc<DeviceTx>>,
    pub(crate) routes: RouteTable,
    /// `net.quietline.dst_layout`, as it was when the host was built.
    pub(crate) dst_layout: DstLayout,
    /// Path MTUs and redirects learned from ICMP.
    pub(crate) exceptions: Exceptions,
    pub(crate) neighbors: NeighborTables,
    /// Route entries of sent packets.
    pub(crate) output_routes: OutputRoutes,
    /// Route entries of received packets.
    pub(crate) input_routes: InputRoutes,
    /// RCU domain of the tables.
    pub(crate) rcu: Domain,
}

impl Deref for Router {
    type Target = HostShare;

    #[inline]
    fn deref(&self) -> &HostShare {
        &self.share
    }
}

impl Router {
    /// Returns the forwarding table, borrowed for the RCU read section.
    #[inline]
    pub(crate) fn fib<'s>(&'s self, rcu: &'s Section<'_>) -> &'s Fib {
        self.routes.fib(rcu)
    }

    pub(crate) const fn input_routes(&self) -> &InputRoutes {
        &self.input_routes
    }

    /// Returns the RCU domain of this host's tables.
    pub(crate) const fn rcu(&self) -> &Domain {
        &self.rcu
    }

    pub(crate) const fn output_routes(&self) -> &OutputRoutes {
        &self.output_routes
    }

    /// Returns the neighbor table of the IP version of `ip`.
    pub(crate) const fn neighbor_table(&self, ip: IpAddr) -> &NeighborTable {
        self.neighbors.of(ip)
    }

    pub(crate) fn device(&self, index: DeviceIndex) -> &Arc<dyn Device> {
        &self.devices[index.position()]
    }

    /// Returns the transmit queues of a device.
    pub(crate) fn tx(&self, index: DeviceIndex) -> &Arc<DeviceTx> {
        &self.tx[index.position()]
    }

    /// Returns the number of devices, loopback included.
    pub(crate) const fn device_count(&self) -> usize {
        self.devices.len()
    }

    pub(crate) const fn is_loopback_device(&self, index: DeviceIndex) -> bool {
        index.0 == LOOPBACK.0
    }

    /// Returns the earliest time at which a device queue or transmit queue of `core` has work even
    /// if no packet arrives.
    pub(crate) fn queue_deadline(&self, core: CoreId) -> Option<Instant> {
        let cores = usize::from(self.core_count());
        self.devices
            .iter()
            .zip(&self.tx)
            .flat_map(|(device, tx)| {
                (0..device.caps().queues)
                    .filter(move |queue| usize::from(*queue) % cores == usize::from(core.0))
                    .map(QueueId)
                    .flat_map(move |queue| [device.next_deadline(queue), tx.deadline(queue)])
            })
            .flatten()
            .min()
    }

    #[inline]
    pub(crate) fn route_generation(&self) -> u32 {
        self.routes.generation()
    }

    /// Returns whether `ip` is an address of this host.
    #[must_use]
    pub fn is_local(&self, cx: &Cx, ip: IpAddr) -> bool {
        self.fib(&cx.reader().pin()).is_local(ip)
    }

    /// Returns whether the address of `end` is an address of this host. A link-local address with a
    /// scope must be one of the device that the scope selects. A v4-mapped address is replaced by
    /// its IPv4 address.
    #[must_use]
    pub fn is_local_end(&self, cx: &Cx, end: SocketAddr) -> bool {
        match Destination::from(end).device {
            Some(device) => self.is_local_on(cx, device, end.ip()),
            None => self.is_local(cx, end.ip().to_canonical()),
        }
    }

    /// Returns whether `ip` is an address of this host on `device`.
    pub(crate) fn is_local_on(&self, cx: &Cx, device: DeviceIndex, ip: IpAddr) -> bool {
        self.fib(&cx.reader().pin())
            .lookup(ip)
            .is_some_and(|route| route.kind == RouteKind::Local && route.device == device)
    }

    /// Returns the core that the hash of a flow selects, for flows that no setting assigns to
    /// another core.
    pub(crate) fn core_of_flow(&self, hash: u32) -> CoreId {
        CoreId::of_flow(hash, self.core_count())
    }

    /// Returns the link address of a device, or `None` if its frames have no Ethernet header.
    pub(crate) fn mac_of(&self, index: DeviceIndex) -> Option<MacAddr> {
        match self.device(index).caps().link {
            LinkType::Ethernet { mac } => Some(mac),
            LinkType::Ip => None,
        }
    }
}

/// Route to one destination as a socket caches it: the route entry, and the state of the path MTU
/// exception of this destination. Linux: `sk_dst_cache` with the `fnhe` of its route.
#[derive(Clone, Debug)]
pub(crate) struct CachedDst {
    pub(crate) dst: DstRef,
    /// Route generation of the lookup. The generation of the route entry differs if another thread
    /// has made the entry from other routes meanwhile. The entry leads to the same next hop anyway.
    pub(crate) generation: u32,
    /// State of the path MTU exception of the destination at the lookup.
    pub(crate) exception: Stamp,
    /// Expiry of the exception (RFC 1191 §6.3); the far future without an exception.
    pub(crate) expires: Instant,
}

impl Deref for CachedDst {
    type Target = Dst;

    fn deref(&self) -> &Dst {
        &self.dst
    }
}

/// Destination of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) ip: IpAddr,
    /// Device on whose link the address is valid: the scope of a link-local IPv6 address
    /// (RFC 4007). `None` for any other address, and for a link-local address of unknown scope.
    pub(crate) device: Option<DeviceIndex>,
    /// Device by which the packets leave, whatever the routes say, and from whatever source: the
    /// device that has brought an intercepted flow (`socket::flows`).
    pub(crate) by: Option<DeviceIndex>,
}

impl Destination {
    /// Returns the destination of answers to `remote`. `by` is the device that has brought the
    /// flow, if the flow was intercepted.
    pub(crate) fn of_answer(remote: SocketAddr, by: Option<DeviceIndex>) -> Self {
        Self { by, ..Self::from(remote) }
    }

    /// Returns the route to the destination. Without a route by the device of an intercepted flow,
    /// the destination is taken to be on its link, by the route that `on_link` then holds.
    fn route_in<'f>(self, fib: &'f Fib, on_link: &'f mut Option<Route>) -> Option<&'f Route> {
        if let Some(device) = self.by {
            let by_device = fib.lookup_by(device, self.ip);
            return by_device.or_else(|| Some(on_link.insert(Route::on_link(device))));
        }
        let found = match self.device {
            Some(device) => fib.lookup_on(device, self.ip),
            None => fib.lookup(self.ip),
        };
        found.map(|found| found.route)
    }
}

impl From<IpAddr> for Destination {
    #[inline]
    fn from(ip: IpAddr) -> Self {
        Self { ip, device: None, by: None }
    }
}

impl From<SocketAddr> for Destination {
    /// Takes the scope id of a link-local address as the index of its device, as Linux does.
    #[inline]
    fn from(end: SocketAddr) -> Self {
        let device = match end {
            SocketAddr::V6(end) if end.scope_id() != 0 && end.ip().is_unicast_link_local() => {
                Some(DeviceIndex(end.scope_id()))
            }
            _ => None,
        };
        Self { ip: end.ip(), device, by: None }
    }
}

/// Result of the first step of a lookup, from which a `CachedDst` is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// Output device.
    pub(crate) index: DeviceIndex,
    /// Kind of the route: `Local` if the destination is this host.
    kind: RouteKind,
    pub(crate) next_hop: IpAddr,
    /// Next hop of the route, which differs from `next_hop` after a redirect.
    routed_via: IpAddr,
    pub(crate) source: IpAddr,
    ipv4: bool,
    /// Largest IP packet in bytes: the minimum of the MTUs of device and route and the learned path
    /// MTU.
    pub(crate) mtu: u32,
    /// Largest IP packet in bytes by the MTUs of device and route, without the learned path MTU.
    pub(crate) receive_mtu: u32,
    pub(crate) dont_fragment: bool,
    pub(crate) metrics: PathMetrics,
    pub(crate) generation: u32,
    exception: Stamp,
    expires: Instant,
}

/// Returns the link address of a hop to a group: RFC 919 for broadcasts, [`multicast_mac`] for
/// multicast.
fn group_mac(hop: &Hop) -> Option<MacAddr> {
    match (hop.kind, hop.next_hop) {
        (RouteKind::Broadcast, _) => Some(MacAddr::BROADCAST),
        (RouteKind::Multicast, group) => Some(multicast_mac(group)),
        _ => None,
    }
}

/// Returns the source address of a limited broadcast (255.255.255.255) from a device without an
/// address: 0.0.0.0, by which a host requests an address (RFC 1122 §3.2.1.3 (a)). Linux:
/// `inet_select_addr`.
fn initial_source(kind: RouteKind, remote: IpAddr) -> Option<IpAddr> {
    let is_limited = remote == IpAddr::V4(Ipv4Addr::BROADCAST);
    (kind == RouteKind::Broadcast && is_limited).then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Returns the unspecified address of the family of `ip`.
const fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Returns the source address for packets of a route of this kind to `remote` that leave through
/// `device`.
fn select_source(
    cx: &Cx,
    fib: &Fib,
    device: DeviceIndex,
    kind: RouteKind,
    Destination { ip: remote, by, .. }: Destination,
) -> Result<IpAddr, Errno> {
    let temporary = cx.sysctls().use_tempaddr >= 2;
    source_address::select(fib, device, remote, temporary)
        .or_else(|| initial_source(kind, remote))
        // A device that intercepts may have no address.
        .or_else(|| by.map(|_| unspecified(remote)))
        .ok_or(Errno::EADDRNOTAVAIL)
}

/// Generation that is stored beside a cached route entry if `net.quietline.dst_check` is `entry`.
/// No route generation has this value, so the comparison fails, and the generation in the entry is
/// read. This mode costs nothing while it is off. A host would have to change its routes four
/// billion times to reach this generation.
pub(crate) const CHECK_ENTRY: u32 = u32::MAX;

/// Returns the number to store beside a cached route entry of this generation.
pub(crate) fn cached_generation(cx: &Cx, generation: u32) -> u32 {
    match cx.sysctls().dst_check {
        DstCheck::Generation => generation,
        DstCheck::Entry => CHECK_ENTRY,
    }
}

impl Router {
    /// Looks up the route to `remote` for a socket of `core`. `source` is the source address if the
    /// caller has chosen one; `flow` is the hash of the four-tuple, if the flow has ports.
    ///
    /// # Errors
    ///
    /// The errors are those of Linux: `ENETUNREACH` without a route and for a broadcast or
    /// multicast address; `EADDRNOTAVAIL` for a source that is not an address of this host, and if
    /// the device has no source address for `remote`; `EINVAL` for a blackhole, for 0.0.0.0/8 and
    /// for a loopback source on any other device; `EHOSTUNREACH` for an unreachable route, `EACCES`
    /// for a prohibited one; `ENOBUFS` if the neighbor table is full.
    pub(crate) fn route(
        &self,
        cx: &Cx,
        remote: impl Into<Destination>,
        source: Option<IpAddr>,
        flow: Option<u32>,
        core: CoreId,
    ) -> Result<CachedDst, Errno> {
        self.dst_of_hop(cx, &self.hop(cx, remote, source, flow)?, core)
    }

    /// Returns the route entry for a reply from `source` to `remote` that is sent without a socket.
    /// Allocates only for a next hop that no packet of `core` has used recently.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route).
    pub(crate) fn reply_dst<'s>(
        &'s self,
        cx: &Cx,
        remote: impl Into<Destination>,
        source: Option<IpAddr>,
        flow: Option<u32>,
        core: CoreId,
        rcu: &'s Section<'_>,
    ) -> Result<DstHandle<'s>, Errno> {
        self.output_routes.entry(self, cx, &self.hop(cx, remote, source, flow)?, core, rcu)
    }

    /// Returns the source address for a connection to `remote` whose caller has not chosen one. The
    /// port is 0, and a link-local address has its scope.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route), except `ENOBUFS`.
    pub(crate) fn source_end(&self, cx: &Cx, remote: SocketAddr) -> Result<SocketAddr, Errno> {
        let hop = self.hop(cx, remote, None, None)?;
        Ok(match hop.source {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, hop.index.0))
            }
            ip => SocketAddr::new(ip, 0),
        })
    }

    /// Returns whether `dst` is still the result of [`Router::route`] (Linux: `dst_check`).
    #[inline]
    pub(crate) fn is_current(&self, cx: &Cx, dst: &CachedDst) -> bool {
        (dst.generation == self.route_generation() || self.is_entry_current(cx, dst))
            && self.exceptions.is_current(dst.exception)
            && cx.now < dst.expires
    }

    /// Returns whether the route entry of a `dst` whose generation is [`CHECK_ENTRY`] has the
    /// current generation.
    #[cold]
    fn is_entry_current(&self, cx: &Cx, dst: &CachedDst) -> bool {
        if dst.generation != CHECK_ENTRY {
            return false;
        }
        cx.count(Counter::DstCheckEntry, 1);
        dst.dst.tail().generation == self.route_generation()
    }

    /// Returns whether [`Router::route`] would now return the device, MTU, metrics and next hop of
    /// `dst`. If [`is_current`](Self::is_current) returns true, this lookup is not needed.
    pub(crate) fn agrees_with_lookup(
        &self,
        cx: &Cx,
        dst: &CachedDst,
        remote: impl Into<Destination>,
        source: IpAddr,
        flow: Option<u32>,
    ) -> bool {
        self.hop(cx, remote, Some(source), flow).is_ok_and(|hop| {
            let next_hop = dst.neighbor.as_ref().map(|neighbor| neighbor.ip());
            hop.index == dst.dst.tail().device
                && hop.mtu == dst.mtu
                && hop.metrics == dst.metrics
                && next_hop.is_none_or(|ip| ip == hop.next_hop)
        })
    }

    /// Returns whether the route entry with this tail is still valid for a packet received on
    /// `device`.
    #[inline]
    pub(crate) fn is_valid_input(&self, tail: &DstTail, device: DeviceIndex) -> bool {
        tail.generation == self.route_generation() && tail.device == device && tail.is_input
    }

    /// Records a validated report that the network path to `remote` carries packets of at most
    /// `mtu` bytes. `dst` is the present route entry. Returns whether cached entries became stale.
    /// Linux: `ip_rt_update_pmtu`.
    pub(crate) fn learn_path_mtu(&self, remote: IpAddr, dst: &Dst, mtu: u32, cx: &Cx) -> bool {
        let Sysctls { route_min_pmtu, route_mtu_expires, ip6_route_mtu_expires, .. } =
            *cx.sysctls();
        // Every IPv6 link carries 1,280 bytes (RFC 8200 §5), and no router fragments.
        let (min_pmtu, mtu_expires) = match remote {
            IpAddr::V4(_) => (route_min_pmtu, route_mtu_expires),
            IpAddr::V6(_) => (MTU_MIN_V6, ip6_route_mtu_expires),
        };
        self.exceptions.learn(remote, mtu, dst.mtu, Limits { min_pmtu, mtu_expires }, cx.now)
    }

    /// Applies a redirect that `router` has sent on `device`: packets to `remote` go to `to`.
    /// `router` must be the present next hop to `remote` (RFC 1122 §3.2.2.2, RFC 4861 §8.1). For
    /// IPv4, `to` must be a neighbor and, with `secure_redirects`, the next hop of some route to
    /// `remote`. Returns whether the redirect was applied. Linux: `__ip_do_redirect`,
    /// `rt6_do_redirect`.
    #[cold]
    pub(crate) fn redirect(
        &self,
        cx: &Cx,
        device: DeviceIndex,
        (router, remote, to): (IpAddr, IpAddr, IpAddr),
    ) -> bool {
        let Ok(hop) = self.hop(cx, remote, None, None) else { return false };
        let is_from_next_hop = hop.kind == RouteKind::Unicast
            && hop.index == device
            && hop.next_hop == router
            && router != remote
            && router != to;
        if !is_from_next_hop {
            return false;
        }
        if remote.is_ipv4() {
            let reader = cx.reader();
            let rcu = reader.pin();
            let fib = self.fib(&rcu);
            let is_neighbor = fib.lookup(to).is_some_and(|route| {
                route.kind == RouteKind::Unicast && route.via.is_none() && route.device == device
            });
            let secure = cx.sysctls().secure_redirects;
            if !is_neighbor || (secure && !fib.is_next_hop(remote, device, to)) {
                return false;
            }
        }
        self.exceptions.redirect(remote, hop.routed_via, to, cx.now);
        true
    }

    /// First step of `route`: looks up the route, the source address and the path MTU exception.
    pub(crate) fn hop(
        &self,
        cx: &Cx,
        remote: impl Into<Destination>,
        source: Option<IpAddr>,
        flow: Option<u32>,
    ) -> Result<Hop, Errno> {
        // A connection has one peer, so a group is refused (RFC 9293 §3.9.2.3). Linux:
        // `tcp_v4_connect`.
        self.hop_by(cx, remote.into(), source, flow, |_, _| Err(Errno::ENETUNREACH))
    }

    /// Returns the hop of a datagram, which may also go to a group (a broadcast or multicast
    /// address). A datagram to a group leaves through `device` if given, else through the device of
    /// the broadcast route, else through that of the best unicast route, else through the first
    /// device that has an address. `broadcast` is true if the socket may send to broadcast
    /// addresses. The source of a limited broadcast from a device without an address is 0.0.0.0.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route), but groups are allowed; `EACCES` for a broadcast address if
    /// `broadcast` is false, `ENETUNREACH` for a group without a device, `ENODEV` for a device that
    /// does not exist.
    pub(crate) fn datagram_hop(
        &self,
        cx: &Cx,
        remote: impl Into<Destination>,
        source: Option<IpAddr>,
        broadcast: bool,
        device: Option<DeviceIndex>,
    ) -> Result<Hop, Errno> {
        let remote = remote.into();
        self.hop_by(cx, remote, source, None, |fib, route| {
            if route.kind == RouteKind::Broadcast && !broadcast {
                return Err(Errno::EACCES);
            }
            if device.is_some_and(|device| device.position() >= self.devices.len()) {
                return Err(Errno::ENODEV);
            }
            let of_route = Some(route.device).filter(|device| *device != NO_DEVICE);
            let default = || fib.main_device(remote.ip);
            let any = || fib.device_with_address(remote.ip.is_ipv4());
            device.or(of_route).or_else(default).or_else(any).ok_or(Errno::ENETUNREACH)
        })
    }

    /// Looks up the hop to a destination. `group` returns the device of a route to a group, or
    /// refuses the group.
    fn hop_by(
        &self,
        cx: &Cx,
        destination: Destination,
        source: Option<IpAddr>,
        flow: Option<u32>,
        group: impl FnOnce(&Fib, &Route) -> Result<DeviceIndex, Errno>,
    ) -> Result<Hop, Errno> {
        let remote = destination.ip;
        // The source of an answer to an intercepted flow is the destination of the flow, which is
        // no address of this host. Flows to many destinations share one route entry.
        let source = source.filter(|_| destination.by.is_none());
        self.check_ends(cx, source, remote)?;
        // The generation is read before the table. If the routes change in between, the entry
        // carries the old generation and counts as stale. In the other order, an outdated entry
        // could count as current.
        let generation = self.route_generation();
        let reader = cx.reader();
        let rcu = reader.pin();
        let fib = self.fib(&rcu);
        let mut on_link = None;
        let route = destination.route_in(fib, &mut on_link).ok_or(Errno::ENETUNREACH)?;
        let next = route.next_hop(|| self.multipath_hash(cx, remote, source, flow));
        let index = match route.kind {
            RouteKind::Local => LOOPBACK,
            RouteKind::Unicast => next.device,
            RouteKind::Broadcast | RouteKind::Multicast => group(fib, route)?,
            RouteKind::Blackhole => return Err(Errno::EINVAL),
            RouteKind::Unreachable => return Err(Errno::EHOSTUNREACH),
            RouteKind::Prohibit => return Err(Errno::EACCES),
        };
        let routed_via = next.via.unwrap_or(remote);
        let source = match (source.or(next.source), route.kind) {
            (Some(source), _) => source,
            (None, RouteKind::Local) => remote,
            // The destination decides which IPv6 address of the device is used (RFC 6724 §5).
            (None, kind) => select_source(cx, fib, index, kind, destination)?,
        };
        // RFC 1122 §3.2.1.3 (g): a loopback address must not appear outside the host.
        if source.is_loopback() && index != LOOPBACK {
            return Err(Errno::EINVAL);
        }
        let caps_mtu = self.device(index).caps().mtu;
        let mtu = route.mtu.unwrap_or(caps_mtu).min(caps_mtu);
        let (found, stamp) = self.exceptions.lookup(remote, cx.now, &rcu);
        // Reports do not change an MTU that the route has locked (Linux: `ip_rt_update_pmtu`).
        let exception = found.filter(|_| !route.mtu_locked);
        Ok(Hop {
            index,
            kind: route.kind,
            next_hop: found.map_or(routed_via, |exception| exception.next_hop(routed_via)),
            routed_via,
            source,
            ipv4: remote.is_ipv4(),
            receive_mtu: mtu,
            mtu: exception.map_or(mtu, |exception| exception.mtu.min(mtu)),
            dont_fragment: matches!(cx.sysctls().ip_no_pmtu_disc, 0 | 3)
                && !exception.is_some_and(|exception| exception.locked)
                && !route.mtu_locked,
            metrics: route.metrics,
            generation,
            exception: stamp,
            expires: found.map_or(Instant::FAR_FUTURE, |exception| exception.expires),
        })
    }

    /// Refuses a source that is not an address of this host, and an invalid destination.
    fn check_ends(&self, cx: &Cx, source: Option<IpAddr>, remote: IpAddr) -> Result<(), Errno> {
        if let Some(source) = source
            && !self.is_local(cx, source)
        {
            return Err(Errno::EADDRNOTAVAIL);
        }
        // RFC 1122 §3.2.1.3 (a): 0.0.0.0/8, "this network", is not a valid destination.
        if matches!(remote, IpAddr::V4(remote) if remote.octets()[0] == 0) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Returns the hash by which a route with several next hops selects one: of the addresses, or
    /// of the flow if `fib_multipath_hash_policy` is 1 and the flow has ports. Linux:
    /// `fib_multipath_hash`.
    #[cold]
    fn multipath_hash(
        &self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
        flow: Option<u32>,
    ) -> u32 {
        match flow.filter(|_| cx.sysctls().fib_multipath_hash_policy == 1) {
            Some(flow) => flow,
            None => self.exceptions.address_hash(remote, source),
        }
    }

    /// Second step of `route`: finds or creates the route entry of a hop.
    pub(crate) fn dst_of_hop(&self, cx: &Cx, hop: &Hop, core: CoreId) -> Result<CachedDst, Errno> {
        let reader = cx.reader();
        let rcu = reader.pin();
        let found = self.output_routes.entry(self, cx, hop, core, &rcu)?;
        let dst = match found.try_get() {
            Some(dst) => dst,
            // The entry was removed between the lookup and `try_get`.
            None => self.make_dst(cx, hop)?.into_ref(),
        };
        cx.count(Counter::DstGet, 1);
        let Hop { exception, expires, .. } = *hop;
        let generation = cached_generation(cx, hop.generation);
        Ok(CachedDst { dst, generation, exception, expires })
    }

    /// Creates the route entry of a hop, and the neighbor of the next hop if it does not exist yet.
    pub(crate) fn make_dst(&self, cx: &Cx, hop: &Hop) -> Result<DstOwner, Errno> {
        let device = Arc::clone(self.device(hop.index));
        let caps = device.caps();
        let link = caps.link;
        let neighbor = match (link, group_mac(hop)) {
            (LinkType::Ethernet { .. }, Some(mac)) => {
                let key = Key { device: hop.index, ip: hop.next_hop };
                Some(self.neighbor_table(hop.next_hop).group_entry(key, hop.source, mac, cx.now))
            }
            (LinkType::Ethernet { .. }, None) => {
                let table = self.neighbor_table(hop.next_hop);
                let entry = table.entry(hop.index, hop.next_hop, hop.source, cx.now);
                Some(entry.ok_or(Errno::ENOBUFS)?)
            }
            (LinkType::Ip, _) => None,
        };
        let keeps_dst = self.is_loopback_device(hop.index);
        let tx = self.tx(hop.index);
        let superframe_max = tx.superframe_max();
        let head = Dst {
            tx: Arc::clone(tx),
            link,
            neighbor,
            mtu: hop.mtu,
            receive_mtu: hop.receive_mtu,
            gso_max_bytes: Dst::superframe_max(
                caps,
                superframe_max,
                self.sysctls().devices.of(hop.index),
                hop.ipv4,
            ),
            tso_max_bytes: Dst::tso_limit(caps, superframe_max, hop.ipv4),
            uso: caps.uso && caps.tx_checksum && self.sysctls().devices.of(hop.index).gso,
            sums_payload: !caps.tx_checksum,
            completes: tx.completes(),
            paces: tx.paces(),
            at_once: tx.takes_at_once(),
            dont_fragment: hop.dont_fragment,
            metrics: hop.metrics,
            keeps_dst,
            device,
        };
        let tail = DstTail {
            generation: hop.generation,
            device: hop.index,
            kind: hop.kind,
            is_input: keeps_dst && hop.kind == RouteKind::Local,
        };
        Ok(self.new_dst(cx, head, tail, DstOrigin { source: hop.source }))
    }

    /// Creates a route entry in the layout of this host, with the kind of reference counting that
    /// the setting `dst_ref` selects now.
    pub(crate) fn new_dst(&self, cx: &Cx, head: Dst, tail: DstTail, cold: DstOrigin) -> DstOwner {
        let entry = counted::Entry { head, tail, cold, stats: DstStats::default() };
        // Reads the host's current settings, not those with which the caller entered the host,
        // because the route entry may belong to a generation that began after that.
        let counting = self.sysctls().dst_ref.counting();
        cx.count(Counter::DstAllocs, 1);
        DstOwner::new(&self.rcu, self.dst_layout.into(), counting, entry)
    }
}
