//! Reports of a host: counters, queues, route entries, memory.
//!
//! Linux: `nstat`, `/proc/net/softnet_stat`, `/proc/net/sockstat`, `tc -s qdisc`.

use std::{
    sync::{Arc, atomic::Ordering},
    vec::Vec,
};

use super::Host;
use crate::{
    base::counters::{Counter, CounterPage, Snapshot},
    cx::Cx,
    receive::rps::SoftnetStat,
    transmit::{dst::DstInfo, tx_queue::TxQueueStats},
};

impl Host {
    /// Returns all counters: the sum of the counter pages, and the counts of cores, neighbor tables
    /// and packet memory.
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        let mut sums = self.with_pages(|pages| Snapshot::sum(pages.iter().map(|page| &**page)));
        self.cores.iter().for_each(|core| core.add_counts(&mut sums));
        self.neighbors.add_counts(&mut sums);
        add_packet_memory(&mut sums, &self.packets);
        sums
    }

    /// Returns the receive counts of each core, which are one line of /proc/net/softnet_stat.
    #[must_use]
    pub fn softnet_stat(&self) -> Vec<SoftnetStat> {
        self.cores.iter().map(|core| core.backlog().stat(core.id())).collect()
    }

    /// Returns the memory of the queues of all connections, in pages of 4 KB: `mem` of the line
    /// `TCP` in `/proc/net/sockstat`.
    #[must_use]
    pub fn tcp_memory_pages(&self) -> i64 {
        let reserve = |page: &Arc<CounterPage>| page.tcp_reserve.load(Ordering::Relaxed);
        let reserves = self.with_pages(|pages| pages.iter().map(reserve).sum::<i64>());
        self.tcp_memory().pages() + reserves
    }

    /// Returns the memory of the receive queues of all datagram sockets, in pages of 4 KB: `mem` of
    /// the line `UDP` in `/proc/net/sockstat`.
    #[must_use]
    pub fn udp_memory_pages(&self) -> i64 {
        let reserve = |page: &Arc<CounterPage>| page.udp_reserve.load(Ordering::Relaxed);
        let reserves = self.with_pages(|pages| pages.iter().map(reserve).sum::<i64>());
        self.udp_memory().pages() + reserves
    }

    /// Returns the contents and counts of every transmit queue of every device, loopback first:
    /// `tc -s qdisc`.
    #[must_use]
    pub fn tx_queue_stats(&self, cx: &mut Cx) -> Vec<TxQueueStats> {
        let entered = cx.enter(self);
        let rows = self.tx.iter().flat_map(|tx| tx.stats(cx)).collect();
        cx.leave(entered);
        // While this thread owned a queue, another thread may have left packets for it to send. If
        // these packets went to loopback or a wire (the in-process link between two hosts), a core
        // must run now.
        cx.do_softirq();
        rows
    }

    /// Returns the route entries (dst) of the host: those of received packets, then those of sent
    /// packets.
    #[must_use]
    pub fn dst_entries(&self) -> Vec<DstInfo> {
        let generation = self.route_generation();
        let mut entries = Vec::new();
        let reader = self.rcu.reader();
        let rcu = reader.pin();
        self.input_routes.for_each(&rcu, |dst| entries.push(DstInfo::new(dst, generation)));
        self.output_routes.for_each(&rcu, |dst| entries.push(DstInfo::new(dst, generation)));
        entries
    }
}

/// Adds the counters of the packet memory. Hosts that share one memory report the same counters.
fn add_packet_memory(sums: &mut Snapshot, packets: &pkt::Domain) {
    let stats = packets.stats();
    let bytes = |descriptors: i64| descriptors.unsigned_abs() * pkt::DESCRIPTOR_BYTES as u64;
    let pool = &stats.pool;
    let values = [
        (Counter::SkbAllocs, pool.alloc_local),
        (Counter::SkbAllocFails, pool.alloc_failed),
        (Counter::SkbFreesLocal, pool.free_local),
        (Counter::SkbFreesRemote, pool.free_remote),
        (Counter::SkbFreesAdopted, pool.adopted),
        (Counter::SkbReturnsDrained, pool.returns_drained),
        (Counter::SkbDeferPushed, pool.defer_pushed),
        (Counter::SkbDeferOverflows, pool.defer_overflow),
        (Counter::SkbDeferKicks, pool.defer_kicks),
        (Counter::SkbDeferDrained, pool.defer_drained),
        (Counter::SkbMagazineFlushes, pool.magazine_flushes),
        (Counter::SkbMagazineRefills, pool.magazine_refills),
        (Counter::SkbSlabRefills, pool.slab_refill),
        (Counter::SkbLocks, pool.locks),
        (Counter::SkbLocksContended, pool.locks_contended),
        (Counter::SkbFreeBytes, bytes(stats.descriptors_free.max(0))),
        (Counter::SkbDeferredBytes, bytes(stats.packets_deferred.max(0))),
    ];
    for (counter, value) in values {
        sums.add_stack(counter, value);
    }
}
