//! Input routes: one dst entry per local prefix and device, shared by all cores and flows.
//!
//! Below: the forwarding table classifies the address. Above: `receive::ip_input` asks for packets
//! that early demux did not match. Linux: `ip_route_input_rcu`, `nhc_rth_input`.
//!
//! A lookup runs in a read section and writes nothing. There are at most as many entries as the
//! local table has prefixes, times the devices that packets arrive by; a stale entry is replaced
//! when it is found.
//!
//! Not here: validation of source addresses (`receive::ip_input`).

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use sync::{
    RcuMap,
    epoch::{Domain, Section},
};
use tcp::PathMetrics;

use super::fib::Found;
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    route::router::Router,
    transmit::dst::{Dst, DstHandle, DstOrigin, DstRef, DstTail, RouteKind},
};

/// Device and local prefix of an input route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: DeviceIndex,
    prefix: IpNet,
}

/// Input route entries of a host.
#[derive(Debug)]
pub(crate) struct InputRoutes {
    routes: RcuMap<Key, DstRef>,
}

impl InputRoutes {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self { routes: RcuMap::new(rcu, 16) }
    }

    /// Returns the entry for packets to `dst` that arrive by `device` and match `route` of
    /// `generation`, and creates it if necessary. `None` when another thread changes the routes
    /// concurrently: the packet is dropped and retransmitted.
    pub(crate) fn entry<'s>(
        &'s self,
        router: &Router,
        cx: &Cx,
        device: DeviceIndex,
        dst: IpAddr,
        route: Found<'_>,
        generation: u32,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        let key = Key { device, prefix: route.prefix(dst) };
        let hash = key.hash();
        cx.count(Counter::RxRouteLookups, 1);
        if let Some(dst) = self.routes.lookup(hash, &key, rcu)
            && dst.tail().generation == generation
        {
            dst.stats().on_lookup(cx.now);
            return Some(dst.handle());
        }
        self.routes.insert_or_replace(hash, key, make(router, cx, key, route.kind, generation));
        self.routes.lookup(hash, &key, rcu).map(DstRef::handle)
    }

    /// Removes every entry: the routes they were made from have changed.
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
) -> DstRef {
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
    /// Hashes without a key: prefixes belong to the host, so no attacker can choose them.
    fn hash(&self) -> u32 {
        super::output::fold(self.prefix.addr()).wrapping_add(self.device.0)
    }
}
