//! Addresses of the structures of a host that its cores share.
//!
//! Above: programs whose memory accesses are traced (crates/lab). The regions of a connection are
//! in `Connection::memory_map`, those of a wire (the in-process link between two hosts) in
//! `Wire::memory_map`.

use std::vec::Vec;

use sync::counted::Offsets;

use super::Host;
use crate::{
    base::memory_map::{Region, regions},
    transmit::dst::{DstParts, DstRef},
};

impl Host {
    /// Returns the regions of this host: its settings, tables, cores, devices, route entries,
    /// counters and packet memory. The counter page of a context exists from the time at which the
    /// context first enters the host.
    #[must_use]
    pub fn memory_map(&self) -> Vec<Region> {
        let net = &*self.net;
        let mut map = vec![Region::of("Host", self), Region::of("Net", net)];
        map.push(Region::references("Net", &self.net));
        map.extend(regions!("Net", net, [demux, isn, syn_cookies, fast_open, ports]));
        map.extend(regions!("Net", net, [icmp_limiter, ip_ids, time_waits, orphans, down]));
        map.extend(regions!("Net", net, [claims, unfinished_checksums, runners, core_sockets]));
        map.extend(regions!("Router", net.router, [routes, exceptions, neighbors]));
        map.extend(regions!("Router", net.router, [output_routes, input_routes, share]));
        for core in &self.cores {
            core.add_regions(&mut map);
        }
        for core_net in &self.core_nets {
            map.push(Region::of("CoreNet", &**core_net));
            map.push(Region::references("CoreNet", core_net));
        }
        self.add_dst_regions(&mut map);
        self.with_pages(|pages| {
            map.extend(pages.iter().map(|page| Region::of("CounterPage", &**page)));
        });
        map.push(Region::of("TcpMemory", &**self.tcp_memory()));
        map.extend(net.tx.iter().map(|tx| Region::of("DeviceTx", &**tx)));
        for attached in &net.attached {
            map.push(Region::of("Attached", &**attached));
            if let Some(device) = attached.device() {
                map.extend([Region::of("Device", &*device), Region::references("Device", &device)]);
            }
        }
        map.extend(net.packets.slabs().iter().map(|slab| Region::range("packet memory", slab)));
        map
    }

    fn add_dst_regions(&self, map: &mut Vec<Region>) {
        let reader = self.rcu.reader();
        let rcu = reader.pin();
        let offsets = Offsets::of::<DstParts>(self.dst_layout.into());
        let mut add = |entry: &DstRef| {
            let head = Region::of("Dst", entry.head());
            let address = head.address - offsets.head + offsets.count;
            map.push(Region { name: "Dst count".into(), address, bytes: size_of::<u32>() });
            map.push(head);
            map.push(Region::of("DstTail", entry.tail()));
            map.push(Region::of("DstOrigin", entry.cold()));
            map.push(Region::of("DstStats", entry.stats()));
            if let Some(neighbor) = &entry.head().neighbor {
                map.push(Region::of("NeighborEntry", &**neighbor));
            }
        };
        self.input_routes.for_each(&rcu, &mut add);
        self.output_routes.for_each(&rcu, &mut add);
    }
}
