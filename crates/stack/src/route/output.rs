//! Route entries (dst) of sent packets, by next hop and core: for the packets of sockets, and for
//! replies that no socket sends.
//!
//! Above: `Router::route`, through which sockets get a counted reference to an entry, and
//! `Router::reply_dst`. Remote hosts control the rate and the addresses of resets, SYN-ACKs, SYN
//! cookies and ACKs of TIME-WAIT sockets. `reply_dst` therefore finds the entry for such a reply in
//! an RCU read section without a lock or a reference count, and allocates only for a new next hop.
//! `Router::hop` has selected the next hop before. Linux: `nhc_pcpu_rth_output`.
//!
//! Each core has a table of entries, so that the reference counts of short-lived sockets are only
//! written on the core of these sockets.
//!
//! Not here: path MTU exceptions of single destinations (`exception`). The MTU that results from an
//! exception is part of the key of an entry.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    vec::Vec,
};

use sync::{
    PerCore, RcuMap,
    epoch::{Domain, Section},
};
use tcp::PathMetrics;

use crate::{
    base::{
        errno::Errno,
        ids::{CoreId, DeviceIndex},
    },
    cx::Cx,
    route::router::{Hop, Router},
    transmit::dst::{DstHandle, DstOwner, DstRef},
};

/// Maximum number of entries per core. An entry keeps its neighbor from being garbage collected, so
/// the limit is well below `gc_thresh3`. A flood of packets from many addresses of one link
/// replaces the entries of this table, as it replaces unused entries of the neighbor table.
const ROUTES_MAX: usize = 64;

/// Properties that identify an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: DeviceIndex,
    next_hop: IpAddr,
    source: IpAddr,
    mtu: u32,
    receive_mtu: u32,
    dont_fragment: bool,
    metrics: PathMetrics,
}

/// Route entries of the packets that a host sends, per core.
#[derive(Debug)]
pub(crate) struct OutputRoutes {
    rcu: Domain,
    /// True if entries were removed to free their neighbors and must be reclaimed as soon as no
    /// thread reads them. Relaxed: a delay by one turn (one pass of a core's softirq work) is
    /// harmless.
    crowded: AtomicBool,
    cores: PerCore<RcuMap<Key, DstOwner>>,
}

impl OutputRoutes {
    pub(crate) fn new(rcu: &Domain, cores: u16) -> Self {
        let crowded = AtomicBool::new(false);
        Self {
            rcu: rcu.clone(),
            crowded,
            cores: PerCore::new(usize::from(cores), |_| RcuMap::new(rcu, ROUTES_MAX)),
        }
    }

    /// Returns the entry for the result `hop` of a route lookup and for `core`, and creates it if
    /// necessary.
    pub(crate) fn entry<'s>(
        &'s self,
        router: &Router,
        cx: &Cx,
        hop: &Hop,
        core: CoreId,
        rcu: &'s Section<'_>,
    ) -> Result<DstHandle<'s>, Errno> {
        let Hop {
            index: device, next_hop, source, mtu, receive_mtu, dont_fragment, metrics, ..
        } = *hop;
        let key = Key { device, next_hop, source, mtu, receive_mtu, dont_fragment, metrics };
        let hash = fold(next_hop);
        let routes = &self.cores[usize::from(core.0)];
        if let Some(dst) = routes.lookup(hash, &key, rcu)
            && dst.tail().generation == hop.generation
        {
            dst.stats().on_lookup(cx.now);
            return Ok(dst.handle());
        }
        let dst = router.make_dst(cx, hop).inspect_err(|error| {
            // The neighbor table is full, perhaps because of neighbors that only these entries use.
            // Without the entries, these neighbors are freed after a grace period.
            let is_full = *error == Errno::ENOBUFS && !routes.is_empty();
            if is_full && router.neighbor_table(next_hop).may_give_up_routes(cx.now) {
                self.clear(rcu);
                self.crowded.store(true, Ordering::Relaxed);
            }
        })?;
        if routes.len() >= ROUTES_MAX {
            clear(routes, rcu);
        }
        routes.insert_or_replace(hash, key, dst);
        // Another thread may have cleared the table meanwhile; the caller then gets `ENOBUFS`.
        // Another thread may also have inserted an entry made from other routes. This entry has the
        // same key, so it leads to the same next hop.
        routes.lookup(hash, &key, rcu).map(|dst| dst.handle()).ok_or(Errno::ENOBUFS)
    }

    /// Reclaims removed entries at the end of a turn, when the running thread reads no entry.
    pub(crate) fn on_quiescent(&self) {
        if self.crowded.load(Ordering::Relaxed) {
            self.crowded.store(false, Ordering::Relaxed);
            self.rcu.reclaim();
        }
    }

    /// Removes every entry, because the routes have changed or neighbors must be freed.
    pub(crate) fn clear(&self, rcu: &Section<'_>) {
        self.cores.iter().for_each(|routes| clear(routes, rcu));
    }

    /// Visits every entry.
    pub(crate) fn for_each(&self, rcu: &Section<'_>, mut visit: impl FnMut(&DstRef)) {
        for routes in self.cores.iter() {
            routes.for_each(rcu, |_, dst| visit(dst));
        }
    }
}

fn clear(routes: &RcuMap<Key, DstOwner>, rcu: &Section<'_>) {
    let mut keys = Vec::with_capacity(ROUTES_MAX);
    routes.for_each(rcu, |key, _| keys.push(*key));
    for key in keys {
        routes.remove(fold(key.next_hop), &key);
    }
}

/// Returns the hash of an address. The hash needs no secret key: an attacker that selects next hops
/// of one bucket fills the bucket with at most [`ROUTES_MAX`] entries.
#[expect(clippy::cast_possible_truncation, reason = "the halves are folded on purpose")]
pub(super) fn fold(next_hop: IpAddr) -> u32 {
    let bits = match next_hop {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ (ip.to_bits() >> 64)) as u64,
    };
    let mixed = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
