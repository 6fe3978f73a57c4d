//! Output routes: dst entries by next hop and core, for the packets of sockets and for replies that
//! no socket sends.
//!
//! Below: `Router::hop` selects the next hop. Above: sockets keep a reference (`Router::route`).
//! Resets, SYN-ACKs, cookies and ACKs of TIME-WAIT sockets, whose rate and addresses a stranger
//! controls, find their entry in a read section without a lock, a reference count or an allocation
//! (`Router::reply_path`). Linux: `nhc_pcpu_rth_output`.
//!
//! Each core has its own entries, so the reference counts of short-lived sockets stay on their
//! core.
//!
//! Not here: exceptions that ICMP reported for one destination, except that another MTU makes
//! another entry.

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
    transmit::dst::{DstHandle, DstRef},
};

/// Maximum number of entries per core. Each keeps its neighbor from being collected, so the limit
/// is well below `gc_thresh3`. A flood from many addresses of one link passes through this table as
/// it passes through the neighbor table.
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

/// Output route entries of a host, per core.
#[derive(Debug)]
pub(crate) struct OutputRoutes {
    rcu: Domain,
    /// Whether entries were dropped to free their neighbors, and must be reclaimed as soon as no
    /// thread reads them. Relaxed: one turn later is soon enough.
    crowded: AtomicBool,
    cores: PerCore<RcuMap<Key, DstRef>>,
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

    /// Returns the entry of `hop` for `core`, and creates it if necessary.
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
            // The neighbor table is full, perhaps of neighbors that only these entries keep; they
            // are freed after a grace period.
            let is_full = *error == Errno::ENOBUFS && !routes.is_empty();
            if is_full && router.neighbor_table().may_give_up_routes(cx.now) {
                self.clear(rcu);
                self.crowded.store(true, Ordering::Relaxed);
            }
        })?;
        if routes.len() >= ROUTES_MAX {
            clear(routes, rcu);
        }
        routes.insert_or_replace(hash, key, dst);
        // Another thread may have cleared the table since then: the packet is dropped and the peer
        // retransmits. Or another thread may have inserted an entry of other routes, which leads to
        // the same next hop.
        routes.lookup(hash, &key, rcu).map(DstRef::handle).ok_or(Errno::ENOBUFS)
    }

    /// Reclaims at the end of a turn, when the running thread reads no entries.
    pub(crate) fn on_quiescent(&self) {
        if self.crowded.load(Ordering::Relaxed) {
            self.crowded.store(false, Ordering::Relaxed);
            self.rcu.reclaim();
        }
    }

    /// Removes every entry: the routes they were made from have changed.
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

fn clear(routes: &RcuMap<Key, DstRef>, rcu: &Section<'_>) {
    let mut keys = Vec::with_capacity(ROUTES_MAX);
    routes.for_each(rcu, |key, _| keys.push(*key));
    for key in keys {
        routes.remove(fold(key.next_hop), &key);
    }
}

/// Hashes an address. The hash needs no key: an attacker that aims many next hops at one bucket
/// fills it with at most [`ROUTES_MAX`] entries.
#[expect(clippy::cast_possible_truncation, reason = "the halves are folded on purpose")]
pub(super) fn fold(next_hop: IpAddr) -> u32 {
    let bits = match next_hop {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ (ip.to_bits() >> 64)) as u64,
    };
    let mixed = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
