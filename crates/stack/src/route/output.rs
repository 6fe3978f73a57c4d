//! Output routes: entries for the packets of sockets and for answers that no socket sends, by next hop and core.
//!
//! Below: `Host::hop` says which way. Above: sockets take a reference to keep (`Host::route`); resets, SYN-ACKs, cookies and
//! ACKs of TIME-WAIT remnants, which come as fast as a stranger asks for them and each to another address, find theirs in
//! a read section without a lock, a count or an allocation (`Host::reply_path`). Linux: `nhc_pcpu_rth_output`.
//!
//! Each core has entries of its own, so that the counts of sockets that come and go stay where these live.
//!
//! Not here: what ICMP has taught about one destination, beyond the MTU that makes another entry.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    vec::Vec,
};

use sync::{
    PerCore, RcuMap,
    epoch::{Domain, Section},
};

use crate::{
    base::{errno::Errno, ids::CoreId},
    cx::Cx,
    host::{Hop, Host},
    transmit::dst::{DstHandle, DstRef},
};

/// Entries kept for each core. Each keeps its neighbor from being collected, hence well below `gc_thresh3`; a flood from
/// many addresses of one link passes through here as it passes through the neighbor table.
const ROUTES_MAX: usize = 64;

/// What makes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: u32,
    next_hop: IpAddr,
    source: IpAddr,
    mtu: u32,
    receive_mtu: u32,
    dont_fragment: bool,
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct OutputRoutes {
    rcu: Domain,
    /// Entries were given up for the neighbors they keep, and are to be dropped as soon as nobody reads them. Relaxed: a
    /// turn later will do.
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

    /// The entry of `hop` for `core`, made if there is none.
    pub(crate) fn entry<'s>(
        &'s self,
        host: &Host,
        cx: &Cx,
        hop: &Hop,
        core: CoreId,
        rcu: &'s Section<'_>,
    ) -> Result<DstHandle<'s>, Errno> {
        let Hop { index: device, next_hop, source, mtu, receive_mtu, dont_fragment, .. } = *hop;
        let key = Key { device, next_hop, source, mtu, receive_mtu, dont_fragment };
        let hash = fold(next_hop);
        let routes = &self.cores[usize::from(core.0)];
        if let Some(dst) = routes.lookup(hash, &key, rcu)
            && dst.tail().generation == hop.generation
        {
            dst.stats().on_lookup(cx.now);
            return Ok(dst.handle());
        }
        let dst = host.make_dst(cx, hop).inspect_err(|error| {
            // The neighbor table is full, perhaps of neighbors that only entries here keep: there is room after their
            // grace period.
            let is_full = *error == Errno::ENOBUFS && !routes.is_empty();
            if is_full && host.neighbor_table().may_give_up_routes(cx.now) {
                self.clear(rcu);
                self.crowded.store(true, Ordering::Relaxed);
            }
        })?;
        if routes.len() >= ROUTES_MAX {
            clear(routes, rcu);
        }
        routes.insert_or_replace(hash, key, dst);
        // Another thread may have cleared the table since: the peer repeats what is not answered. Or it may have put an entry of
        // other routes there, which leads where this one does.
        routes.lookup(hash, &key, rcu).map(DstRef::handle).ok_or(Errno::ENOBUFS)
    }

    /// The end of a turn: nobody who runs it reads an entry any more.
    pub(crate) fn on_quiescent(&self) {
        if self.crowded.load(Ordering::Relaxed) {
            self.crowded.store(false, Ordering::Relaxed);
            self.rcu.reclaim();
        }
    }

    /// Forgets every entry: the routes they were made from are gone.
    pub(crate) fn clear(&self, rcu: &Section<'_>) {
        self.cores.iter().for_each(|routes| clear(routes, rcu));
    }

    /// Shows every entry.
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

/// A hash of an address. Whoever aims many next hops at one bucket has aimed [`ROUTES_MAX`] at it.
#[expect(clippy::cast_possible_truncation, reason = "the halves are folded on purpose")]
pub(super) fn fold(next_hop: IpAddr) -> u32 {
    let bits = match next_hop {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ (ip.to_bits() >> 64)) as u64,
    };
    let mixed = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
