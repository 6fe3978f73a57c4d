//! Route entries (dst) of received packets: one entry per receiving device and prefix of the local
//! table, shared by all cores and flows.
//!
//! Below: the forwarding table, which classifies the destination. Above: `receive::ip_input`, for
//! packets without a cached route entry. Linux: `ip_route_input_rcu`, `nhc_rth_input`.
//!
//! A lookup runs in an RCU read section and takes no lock. The number of entries is at most the
//! number of prefixes of the local table times the number of devices, and two more for each device
//! that intercepts flows: one for all foreign destinations of an IP version. A stale entry is
//! replaced when a lookup finds it.
//!
//! Not here: validation of source addresses (`receive::ip_input`).

use std::sync::Arc;

use ipnet::IpNet;
use sync::{
    RcuMap,
    epoch::{Domain, Section},
};
use tcp::PathMetrics;

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    route::router::Router,
    transmit::dst::{Dst, DstHandle, DstOrigin, DstOwner, DstRef, DstTail, RouteKind},
};

/// Receiving device and local prefix of a route entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: DeviceIndex,
    prefix: IpNet,
}

/// Route entries of the packets that a host receives.
#[derive(Debug)]
pub(crate) struct InputRoutes {
    routes: RcuMap<Key, DstOwner>,
}

impl InputRoutes {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self { routes: RcuMap::new(rcu, 16) }
    }

    /// Returns the entry for packets to `prefix` that `device` receives, and creates it if
    /// necessary. `kind` is the kind of the route to `prefix`, and `generation` that of the lookup.
    /// Returns `None` if another thread changes the routes at the same time; the caller drops the
    /// packet.
    pub(crate) fn entry<'s>(
        &'s self,
        router: &Router,
        cx: &Cx,
        device: DeviceIndex,
        (prefix, kind, generation): (IpNet, RouteKind, u32),
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        let key = Key { device, prefix };
        let hash = key.hash();
        cx.count(Counter::RxRouteLookups, 1);
        if let Some(dst) = self.routes.lookup(hash, &key, rcu)
            && dst.tail().generation == generation
        {
            dst.stats().on_lookup(cx.now);
            return Some(dst.handle());
        }
        self.routes.insert_or_replace(hash, key, make(router, cx, key, kind, generation));
        self.routes.lookup(hash, &key, rcu).map(|dst| dst.handle())
    }

    /// Removes every entry, because the routes that the entries were made from have changed.
    pub(crate) fn clear(&self, rcu: &Section<'_>) {
        let mut keys = Vec::new();
        self.routes.for_each(rcu, |key, _| keys.push(*key));
        for key in keys {
            self.routes.remove(key.hash(), &key);
        }
    }

    /// Visits every entry.
    pub(crate) fn for_each(&self, rcu: &Section<'_>, mut visit: impl FnMut(&DstRef)) {
        self.routes.for_each(rcu, |_, dst| visit(dst));
    }
}

fn make(
    router: &Router,
    cx: &Cx,
    Key { device: index, prefix }: Key,
    kind: RouteKind,
    generation: u32,
) -> DstOwner {
    let device = Arc::clone(router.device(index));
    let caps = device.caps();
    let head = Dst {
        tx: Arc::clone(router.tx(index)),
        link: caps.link,
        neighbor: None,
        mtu: caps.mtu,
        receive_mtu: caps.mtu,
        gso_max_bytes: 0,
        tso_max_bytes: 0,
        uso: false,
        sums_payload: false,
        completes: caps.async_completion,
        paces: false,
        at_once: false,
        dont_fragment: false,
        metrics: PathMetrics::default(),
        keeps_dst: router.is_loopback_device(index),
        device,
    };
    let tail = DstTail { generation, device: index, kind, is_input: true };
    router.new_dst(cx, head, tail, DstOrigin { source: prefix.addr() })
}

impl Key {
    /// Returns a hash without a secret key: the prefixes are those of the host's own addresses,
    /// which no attacker can choose.
    fn hash(&self) -> u32 {
        super::output::fold(self.prefix.addr()).wrapping_add(self.device.0)
    }
}
