//! Router of a host: it resolves destinations to dst entries and validates cached entries.
//!
//! Above: `socket::net`, and the steps of receive and sockets, which look up routes. Below: the
//! table, the neighbors, the transmit queues.
//!
//! Linux: `ip_route_output_key`, `dst_check`, `ip_rt_update_pmtu`. A lookup has two halves: the
//! read-only result of the tables (`Hop`), and the dst entry for it, which packets share.

use std::{net::IpAddr, ops::Deref, sync::Arc};

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
    header::ethernet::MacAddr,
    route::exception::{Limits, Stamp},
    sysctl::{
        Sysctls,
        modes::{DstCheck, DstLayout},
    },
    transmit::{
        dst::{Dst, DstHandle, DstOrigin, DstRef, DstStats, DstTail, RouteKind},
        neighbor::table::NeighborTable,
        tx_queue::DeviceTx,
    },
};

use super::{
    exception::Exceptions, fib::Fib, input::InputRoutes, output::OutputRoutes, table::RouteTable,
};

/// Devices, routes and neighbors of a host.
#[derive(Debug)]
pub struct Router {
    pub(crate) share: HostShare,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// Devices other than loopback, which can be taken down.
    pub(crate) attached: Vec<Arc<Attached>>,
    /// Transmit queues of each device.
    pub(crate) tx: Vec<Arc<DeviceTx>>,
    pub(crate) routes: RouteTable,
    /// `net.quietline.dst_layout`, as it was when the host was built.
    pub(crate) dst_layout: DstLayout,
    /// Path MTUs learned from ICMP.
    pub(crate) exceptions: Exceptions,
    pub(crate) neighbors: NeighborTable,
    /// Entries of outgoing packets.
    pub(crate) output_routes: OutputRoutes,
    /// Entries of incoming packets.
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
    /// Forwarding table, borrowed for the read section.
    #[inline]
    pub(crate) fn fib<'s>(&'s self, rcu: &'s Section<'_>) -> &'s Fib {
        self.routes.fib(rcu)
    }

    pub(crate) const fn input_routes(&self) -> &InputRoutes {
        &self.input_routes
    }

    /// RCU domain of this host's tables.
    pub(crate) const fn rcu(&self) -> &Domain {
        &self.rcu
    }

    pub(crate) const fn output_routes(&self) -> &OutputRoutes {
        &self.output_routes
    }

    pub(crate) const fn neighbor_table(&self) -> &NeighborTable {
        &self.neighbors
    }

    pub(crate) fn device(&self, index: DeviceIndex) -> &Arc<dyn Device> {
        &self.devices[index.position()]
    }

    /// Transmit queues of a device.
    pub(crate) fn tx(&self, index: DeviceIndex) -> &Arc<DeviceTx> {
        &self.tx[index.position()]
    }

    pub(crate) const fn is_loopback_device(&self, index: DeviceIndex) -> bool {
        index.0 == LOOPBACK.0
    }

    /// Returns the earliest time at which a device queue or transmit queue of `core` has work even
    /// if nothing arrives.
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

    /// Returns whether `ip` is an address of this host on `device`.
    pub(crate) fn is_local_on(&self, cx: &Cx, device: DeviceIndex, ip: IpAddr) -> bool {
        self.fib(&cx.reader().pin())
            .lookup(ip)
            .is_some_and(|route| route.kind == RouteKind::Local && route.device == device)
    }

    /// Returns the core of a flow by its hash, for flows that nothing else assigns.
    pub(crate) fn core_of_flow(&self, hash: u32) -> CoreId {
        CoreId::of_flow(hash, self.core_count())
    }

    /// Link address of a device; `None` if its frames have no Ethernet header.
    pub(crate) fn mac_of(&self, index: DeviceIndex) -> Option<MacAddr> {
        match self.device(index).caps().link {
            LinkType::Ethernet { mac } => Some(mac),
            LinkType::Ip => None,
        }
    }
}

/// Route to one destination, as a socket caches it: a dst entry, and the exception of this
/// destination. Linux: `sk_dst_cache` with the `fnhe` of its route.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) dst: DstRef,
    /// Route generation of the lookup. The entry may be of another generation: the next hop is the
    /// same, but another route may have selected it.
    pub(crate) generation: u32,
    /// State of the exception for the destination at the lookup.
    pub(crate) exception: Stamp,
    /// Expiry of the exception (RFC 1191 §6.3); the far future without an exception.
    pub(crate) expires: Instant,
}

impl Deref for Path {
    type Target = Dst;

    fn deref(&self) -> &Dst {
        &self.dst
    }
}

/// Read-only result of a lookup, from which a path is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// Output device.
    pub(crate) index: DeviceIndex,
    /// Kind of the route: `Local` if the packet is for this host.
    kind: RouteKind,
    pub(crate) next_hop: IpAddr,
    pub(crate) source: IpAddr,
    ipv4: bool,
    /// Largest IP packet: the minimum of the device, the route and the learned path MTU.
    pub(crate) mtu: u32,
    /// Largest IP packet of device and route, without the learned path MTU.
    pub(crate) receive_mtu: u32,
    pub(crate) dont_fragment: bool,
    pub(crate) metrics: PathMetrics,
    pub(crate) generation: u32,
    exception: Stamp,
    expires: Instant,
}

/// Generation that is stored beside a cached entry with `net.quietline.dst_check` at `entry`. It
/// equals no route generation, so the comparison fails and the entry is read. The mode costs
/// nothing while it is off. A host would have to change its routes four billion times to reach this
/// generation.
pub(crate) const CHECK_ENTRY: u32 = u32::MAX;

/// Returns the generation to store beside a cached entry of this generation.
pub(crate) fn cached_generation(cx: &Cx, generation: u32) -> u32 {
    match cx.sysctls().dst_check {
        DstCheck::Generation => generation,
        DstCheck::Entry => CHECK_ENTRY,
    }
}

impl Router {
    /// Resolves the path to `remote` for a socket of `core`, with `source` if the caller has chosen
    /// one. `flow` is the hash of the flow's four-tuple, if it has ports.
    ///
    /// # Errors
    ///
    /// `ENETUNREACH` without a route and for a broadcast or multicast address, `EHOSTUNREACH` and
    /// `EACCES` for unreachable and prohibited destinations, `EADDRNOTAVAIL` for a source that is
    /// not local, `EINVAL` for blackholes, for 0.0.0.0/8 and for a loopback source on a wire,
    /// `ENOBUFS` if the neighbor table is full, as Linux.
    pub(crate) fn route(
        &self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
        flow: Option<u32>,
        core: CoreId,
    ) -> Result<Path, Errno> {
        self.path_along(cx, &self.hop(cx, remote, source, flow)?, core)
    }

    /// Resolves the path of a reply from `source` to `remote` that is sent without a socket.
    /// Allocates only for a next hop that no packet of `core` has used recently.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route).
    pub(crate) fn reply_path<'s>(
        &'s self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
        flow: Option<u32>,
        core: CoreId,
        rcu: &'s Section<'_>,
    ) -> Result<DstHandle<'s>, Errno> {
        self.output_routes.entry(self, cx, &self.hop(cx, remote, source, flow)?, core, rcu)
    }

    /// Returns the source address of a connection to `remote` that has not chosen one.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route), except `ENOBUFS`.
    pub(crate) fn source_for(&self, cx: &Cx, remote: IpAddr) -> Result<IpAddr, Errno> {
        self.hop(cx, remote, None, None).map(|hop| hop.source)
    }

    /// Returns whether a cached path is still the result of [`Router::route`] (Linux: `dst_check`).
    #[inline]
    pub(crate) fn is_current(&self, cx: &Cx, path: &Path) -> bool {
        (path.generation == self.route_generation() || self.is_entry_current(cx, path))
            && self.exceptions.is_current(path.exception)
            && cx.now < path.expires
    }

    /// Reads the entry of a path whose generation is [`CHECK_ENTRY`], and returns whether the entry
    /// is one of the present routes.
    #[cold]
    fn is_entry_current(&self, cx: &Cx, path: &Path) -> bool {
        if path.generation != CHECK_ENTRY {
            return false;
        }
        cx.count(Counter::DstCheckEntry, 1);
        path.dst.tail().generation == self.route_generation()
    }

    /// Returns whether [`Router::route`] yields the same as `path` now.
    /// [`is_current`](Self::is_current) implies it without a lookup.
    pub(crate) fn would_answer(
        &self,
        cx: &Cx,
        path: &Path,
        remote: IpAddr,
        source: IpAddr,
        flow: Option<u32>,
    ) -> bool {
        self.hop(cx, remote, Some(source), flow).is_ok_and(|hop| {
            let next_hop = path.neighbor.as_ref().map(|neighbor| neighbor.ip());
            hop.index == path.dst.tail().device
                && hop.mtu == path.mtu
                && hop.metrics == path.metrics
                && next_hop.is_none_or(|ip| ip == hop.next_hop)
        })
    }

    /// Returns whether an entry is still the result of [`InputRoutes`] for a packet received on
    /// `device`.
    #[inline]
    pub(crate) fn is_valid_input(&self, tail: &DstTail, device: DeviceIndex) -> bool {
        tail.generation == self.route_generation() && tail.device == device && tail.is_input
    }

    /// Records a validated report that the path `dst` to `remote` carries at most `mtu`. Returns
    /// whether cached paths changed. Linux: `ip_rt_update_pmtu`.
    pub(crate) fn learn_path_mtu(&self, remote: IpAddr, dst: &Dst, mtu: u32, cx: &Cx) -> bool {
        let Sysctls { route_min_pmtu: min_pmtu, route_mtu_expires: mtu_expires, .. } =
            *cx.sysctls();
        self.exceptions.learn(remote, mtu, dst.mtu, Limits { min_pmtu, mtu_expires }, cx.now)
    }

    /// First half of `route`: the read-only lookups.
    pub(crate) fn hop(
        &self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
        flow: Option<u32>,
    ) -> Result<Hop, Errno> {
        if let Some(source) = source
            && !self.is_local(cx, source)
        {
            return Err(Errno::EADDRNOTAVAIL);
        }
        // RFC 1122 §3.2.1.3 (a): "this host on this network" is not a valid destination.
        if matches!(remote, IpAddr::V4(remote) if remote.octets()[0] == 0) {
            return Err(Errno::EINVAL);
        }
        // Read before the table: a change in between makes the path look older than it is, never
        // newer.
        let generation = self.route_generation();
        let reader = cx.reader();
        let rcu = reader.pin();
        let route = self.fib(&rcu).lookup(remote).ok_or(Errno::ENETUNREACH)?;
        let next = route.next_hop(|| self.multipath_hash(cx, remote, source, flow));
        let index = match route.kind {
            RouteKind::Local => LOOPBACK,
            RouteKind::Unicast => next.device,
            // TCP has one peer (RFC 9293 §3.9.2.3). Linux: `tcp_v4_connect`; its datagram sockets
            // return EACCES.
            RouteKind::Broadcast | RouteKind::Multicast => return Err(Errno::ENETUNREACH),
            RouteKind::Blackhole => return Err(Errno::EINVAL),
            RouteKind::Unreachable => return Err(Errno::EHOSTUNREACH),
            RouteKind::Prohibit => return Err(Errno::EACCES),
        };
        let next_hop = next.via.unwrap_or(remote);
        let source = match (source.or(next.source), route.kind) {
            (Some(source), _) => source,
            (None, RouteKind::Local) => remote,
            (None, _) => return Err(Errno::EADDRNOTAVAIL),
        };
        // RFC 1122 §3.2.1.3 (g).
        if source.is_loopback() && index != LOOPBACK {
            return Err(Errno::EINVAL);
        }
        let caps_mtu = self.device(index).caps().mtu;
        let mtu = route.mtu.unwrap_or(caps_mtu).min(caps_mtu);
        let (exception, stamp) = self.exceptions.lookup(remote, cx.now, &rcu);
        // Reports do not change an MTU that the route has locked (Linux: `ip_rt_update_pmtu`).
        let exception = exception.filter(|_| !route.mtu_locked);
        Ok(Hop {
            index,
            kind: route.kind,
            next_hop,
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
            expires: exception.map_or(Instant::FAR_FUTURE, |exception| exception.expires),
        })
    }

    /// Returns the hash by which a route with several next hops chooses one: of the addresses, or
    /// of the flow if the setting says so and the flow has ports. Linux: `fib_multipath_hash`.
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

    /// Second half of `route`: the dst entry.
    pub(crate) fn path_along(&self, cx: &Cx, hop: &Hop, core: CoreId) -> Result<Path, Errno> {
        let reader = cx.reader();
        let rcu = reader.pin();
        let found = self.output_routes.entry(self, cx, hop, core, &rcu)?;
        let dst = match found.try_get() {
            Some(dst) => dst,
            // The entry was replaced between the lookup and the get.
            None => self.make_dst(cx, hop)?,
        };
        cx.count(Counter::DstGet, 1);
        let Hop { exception, expires, .. } = *hop;
        let generation = cached_generation(cx, hop.generation);
        Ok(Path { dst, generation, exception, expires })
    }

    /// Creates the dst entry of a hop, and its neighbor if there is none yet.
    pub(crate) fn make_dst(&self, cx: &Cx, hop: &Hop) -> Result<DstRef, Errno> {
        let device = Arc::clone(self.device(hop.index));
        let caps = device.caps();
        let link = caps.link;
        let neighbor = match link {
            LinkType::Ethernet { .. } => {
                let entry = self.neighbors.entry(hop.index, hop.next_hop, hop.source, cx.now);
                Some(entry.ok_or(Errno::ENOBUFS)?)
            }
            LinkType::Ip => None,
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

    /// Creates a dst entry in the layout of this host, with the reference counting that `dst_ref`
    /// currently selects.
    pub(crate) fn new_dst(&self, cx: &Cx, head: Dst, tail: DstTail, cold: DstOrigin) -> DstRef {
        let entry = counted::Entry { head, tail, cold, stats: DstStats::default() };
        // Reads the live settings, not those of the caller's entry, because the dst entry may
        // belong to a newer generation.
        let counting = self.sysctls().dst_ref.counting();
        cx.count(Counter::DstAllocs, 1);
        DstRef::new(&self.rcu, self.dst_layout.into(), counting, entry)
    }
}
