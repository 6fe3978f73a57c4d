//! Input routes: one entry for each local prefix and device, shared by all cores and flows.
//!
//! Below: the forwarding table says what becomes of an address. Above: `receive::ip_input` asks for packets that early demux could not
//! place. Linux: `ip_route_input_rcu`, `nhc_rth_input`.
//!
//! Found in a read section: two look-ups that write nothing. As many entries as the local table has prefixes, times the
//! devices they are asked for from; a stale one is replaced where it is found.
//!
//! Not here: who may send to us (`receive::ip_input` checks the source).

use std::sync::Arc;

use ipnet::IpNet;
use sync::{
    RcuMap,
    epoch::{Domain, Section},
};

use super::fib::RouteEntry;
use crate::{
    base::counters::Counter,
    cx::Cx,
    host::Host,
    transmit::dst::{Dst, DstHandle, DstOrigin, DstRef, DstTail},
};

/// What an input route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: u32,
    prefix: IpNet,
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct InputRoutes {
    routes: RcuMap<Key, DstRef>,
}

impl InputRoutes {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self { routes: RcuMap::new(rcu, 16) }
    }

    /// The entry for packets that came by `device` and match `route` of `generation`, made if there is none. `None` when
    /// other threads change the routes at this moment: the packet is repeated.
    pub(crate) fn entry<'s>(
        &'s self,
        host: &Host,
        cx: &Cx,
        device: u32,
        (route, generation): (&RouteEntry, u32),
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        let key = Key { device, prefix: route.prefix };
        let hash = key.hash();
        cx.count(Counter::RxRouteLookups, 1);
        if let Some(dst) = self.routes.lookup(hash, &key, rcu)
            && dst.tail().generation == generation
        {
            dst.stats().on_lookup(cx.now);
            return Some(dst.handle());
        }
        self.routes.insert_or_replace(hash, key, make(host, cx, device, (route, generation)));
        self.routes.lookup(hash, &key, rcu).map(DstRef::handle)
    }

    /// Forgets every entry: the routes they were made from are gone.
    pub(crate) fn clear(&self, rcu: &Section<'_>) {
        let mut keys = Vec::new();
        self.routes.for_each(rcu, |key, _| keys.push(*key));
        for key in keys {
            self.routes.remove(key.hash(), &key);
        }
    }

    /// Shows every entry.
    pub(crate) fn for_each(&self, rcu: &Section<'_>, mut visit: impl FnMut(&DstRef)) {
        self.routes.for_each(rcu, |_, dst| visit(dst));
    }
}

fn make(host: &Host, cx: &Cx, index: u32, (route, generation): (&RouteEntry, u32)) -> DstRef {
    let device = Arc::clone(host.device(index));
    let caps = device.caps();
    let head = Dst {
        tx: Arc::clone(host.tx(index)),
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
        keeps_dst: host.is_loopback_device(index),
        device,
    };
    let tail = DstTail { generation, device: index, kind: route.kind, is_input: true };
    host.new_dst(cx, head, tail, DstOrigin { source: route.prefix.addr() })
}

impl Key {
    /// Prefixes are the host's own: nobody aims them at one bucket.
    fn hash(&self) -> u32 {
        super::output::fold(self.prefix.addr()).wrapping_add(self.device)
    }
}
