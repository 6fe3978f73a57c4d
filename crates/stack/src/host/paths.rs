//! Which way packets to an address go, and whether a cached answer still holds.
//!
//! Linux: `ip_route_output_key`, `dst_check`, `ip_rt_update_pmtu`. A way is looked up in two halves: everything that is only read
//! ([`Hop`]), and the dst entry of it, which packets share.

use std::{net::IpAddr, sync::Arc};

use pkt::Instant;
use sync::{counted, epoch::Section};

use super::Host;
use crate::{
    base::{
        counters::Counter,
        errno::Errno,
        ids::{CoreId, LOOPBACK},
    },
    cx::Cx,
    device::LinkType,
    route::{
        Path,
        exception::{Limits, Stamp},
    },
    sysctl::{Sysctls, modes::DstCheck},
    transmit::dst::{Dst, DstHandle, DstOrigin, DstRef, DstStats, DstTail, RouteKind},
};

/// Which way a packet goes, as the tables say: what a path is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// Device the packet leaves by.
    pub(crate) index: u32,
    /// `Local` when it is for this host.
    kind: RouteKind,
    pub(crate) next_hop: IpAddr,
    pub(crate) source: IpAddr,
    ipv4: bool,
    /// Largest IP packet: the device's, the route's or what ICMP has taught.
    pub(crate) mtu: u32,
    /// Largest IP packet of device and route, whatever ICMP has taught.
    pub(crate) receive_mtu: u32,
    pub(crate) dont_fragment: bool,
    pub(crate) generation: u32,
    exception: Stamp,
    expires: Instant,
}

/// Generation in place of that of a cached entry, with `net.quietline.dst_check` at `entry`: it
/// equals none, so that the comparison fails and the entry is read. So the mode costs nothing where
/// it is off. A host would have to change its routes four billion times to reach it.
pub(crate) const CHECK_ENTRY: u32 = u32::MAX;

/// Returns what is stored beside a cached entry of this generation.
pub(crate) fn cached_generation(cx: &Cx, generation: u32) -> u32 {
    match cx.sysctls().dst_check {
        DstCheck::Generation => generation,
        DstCheck::Entry => CHECK_ENTRY,
    }
}

impl Host {
    /// Resolves the way to `remote` for a socket of `core`, with `source` where the caller has chosen one.
    ///
    /// # Errors
    /// `ENETUNREACH` without a route and for a broadcast or multicast address, `EADDRNOTAVAIL` for a source that is not
    /// ours, `EINVAL` for blackholes, for 0.0.0.0/8 and for a loopback source on a wire, `ENOBUFS` when the neighbor
    /// table is full, as Linux.
    pub(crate) fn route(
        &self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
        core: CoreId,
    ) -> Result<Path, Errno> {
        self.path_along(cx, &self.hop(cx, remote, source)?, core)
    }

    /// The way of an answer from `source` to `remote` that no socket sends. Allocates only for a next hop that no packet
    /// of `core` has taken lately.
    ///
    /// # Errors
    /// As [`route`](Self::route).
    pub(crate) fn reply_path<'s>(
        &'s self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
        core: CoreId,
        rcu: &'s Section<'_>,
    ) -> Result<DstHandle<'s>, Errno> {
        self.output_routes.entry(self, cx, &self.hop(cx, remote, source)?, core, rcu)
    }

    /// The source address of a connection to `remote` that has not chosen one.
    ///
    /// # Errors
    /// As [`route`](Self::route), but `ENOBUFS`.
    pub(crate) fn source_for(&self, cx: &Cx, remote: IpAddr) -> Result<IpAddr, Errno> {
        self.hop(cx, remote, None).map(|hop| hop.source)
    }

    /// Whether a cached path is still what [`Host::route`] would answer (Linux: `dst_check`).
    #[inline]
    pub(crate) fn is_current(&self, cx: &Cx, path: &Path) -> bool {
        (path.generation == self.route_generation() || self.is_entry_current(cx, path))
            && self.exceptions.is_current(path.exception)
            && cx.now < path.expires
    }

    /// Whether a path whose generation is [`CHECK_ENTRY`] has an entry of the present routes: reads
    /// the entry.
    #[cold]
    fn is_entry_current(&self, cx: &Cx, path: &Path) -> bool {
        if path.generation != CHECK_ENTRY {
            return false;
        }
        cx.count(Counter::DstCheckEntry, 1);
        path.dst.tail().generation == self.route_generation()
    }

    /// Whether `path` is what [`Host::route`] answers now: what [`is_current`](Self::is_current) promises without a look-up.
    pub(crate) fn would_answer(
        &self,
        cx: &Cx,
        path: &Path,
        remote: IpAddr,
        source: IpAddr,
    ) -> bool {
        self.hop(cx, remote, Some(source)).is_ok_and(|hop| {
            let next_hop = path.neighbor.as_ref().map(|neighbor| neighbor.ip());
            hop.index == path.dst.tail().device
                && hop.mtu == path.mtu
                && next_hop.is_none_or(|ip| ip == hop.next_hop)
        })
    }

    /// Whether an entry is still what [`InputRoutes`] would answer for a packet that came by `device`.
    #[inline]
    pub(crate) fn is_valid_input(&self, tail: &DstTail, device: u32) -> bool {
        tail.generation == self.route_generation() && tail.device == device && tail.is_input
    }

    /// A validated report says that the path `dst` to `remote` carries `mtu` only. Answers whether cached paths changed.
    /// Linux: `ip_rt_update_pmtu`.
    pub(crate) fn learn_path_mtu(&self, remote: IpAddr, dst: &Dst, mtu: u32, cx: &Cx) -> bool {
        let Sysctls { route_min_pmtu: min_pmtu, route_mtu_expires: mtu_expires, .. } =
            *cx.sysctls();
        self.exceptions.learn(remote, mtu, dst.mtu, Limits { min_pmtu, mtu_expires }, cx.now)
    }

    /// The first half of `route`: everything that is only looked up.
    pub(super) fn hop(
        &self,
        cx: &Cx,
        remote: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Hop, Errno> {
        if let Some(source) = source
            && !self.is_local(cx, source)
        {
            return Err(Errno::EADDRNOTAVAIL);
        }
        // RFC 1122 §3.2.1.3 (a): "this host on this network" is nobody's address.
        if matches!(remote, IpAddr::V4(remote) if remote.octets()[0] == 0) {
            return Err(Errno::EINVAL);
        }
        // Before the table: a change in between makes the path too old, never too young.
        let generation = self.route_generation();
        let reader = cx.reader();
        let rcu = reader.pin();
        let route = self.fib(&rcu).lookup(remote).ok_or(Errno::ENETUNREACH)?;
        let index = match route.kind {
            RouteKind::Local => LOOPBACK,
            RouteKind::Unicast => route.device,
            // TCP has one peer (RFC 9293 §3.9.2.3). Linux: `tcp_v4_connect`; EACCES is what its datagram sockets say.
            RouteKind::Broadcast | RouteKind::Multicast => return Err(Errno::ENETUNREACH),
            RouteKind::Blackhole => return Err(Errno::EINVAL),
            RouteKind::Unreachable => return Err(Errno::EHOSTUNREACH),
        };
        let next_hop = route.via.unwrap_or(remote);
        let source = match (source.or(route.prefsrc), route.kind) {
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
        Ok(Hop {
            index,
            kind: route.kind,
            next_hop,
            source,
            ipv4: remote.is_ipv4(),
            receive_mtu: mtu,
            mtu: exception.map_or(mtu, |exception| exception.mtu.min(mtu)),
            dont_fragment: matches!(cx.sysctls().ip_no_pmtu_disc, 0 | 3)
                && !exception.is_some_and(|exception| exception.locked),
            generation,
            exception: stamp,
            expires: exception.map_or(Instant::FAR_FUTURE, |exception| exception.expires),
        })
    }

    /// The second half of `route`.
    pub(super) fn path_along(&self, cx: &Cx, hop: &Hop, core: CoreId) -> Result<Path, Errno> {
        let reader = cx.reader();
        let rcu = reader.pin();
        let found = self.output_routes.entry(self, cx, hop, core, &rcu)?;
        let dst = match found.try_get() {
            Some(dst) => dst,
            // It was replaced between the look-up and the get.
            None => self.make_dst(cx, hop)?,
        };
        cx.count(Counter::DstGet, 1);
        let Hop { exception, expires, .. } = *hop;
        let generation = cached_generation(cx, hop.generation);
        Ok(Path { dst, generation, exception, expires })
    }

    /// Makes the entry of a hop, and the neighbor if it is a new one.
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

    /// A dst entry in the layout of this host, counted as `dst_ref` says now.
    pub(crate) fn new_dst(&self, cx: &Cx, head: Dst, tail: DstTail, cold: DstOrigin) -> DstRef {
        let entry = counted::Entry { head, tail, cold, stats: DstStats::default() };
        // Not the set that the caller has entered with: the entry may be of a generation that began since.
        let counting = self.sysctls().dst_ref.counting();
        cx.count(Counter::DstAllocs, 1);
        DstRef::new(&self.rcu, self.dst_layout.into(), counting, entry)
    }
}
