//! Checks of packet memory while a scenario runs: SC6, SC9 and SC10 of the recycling modes, for any
//! seed.
//!
//! Below: the gauges of each host and of the world's packet memory. `Tcb::check` verifies the
//! cached packets of a connection, `Host::check` the charges of each connection.
//!
//! Not here: that no mode changes the traffic, which compares runs (`tests/recycling.rs`).

use pkt::{DESCRIPTOR_BYTES, PoolStats};
use stack::{
    base::counters::{Counter, Snapshot},
    host::{Audit, Host},
};

use super::Caches;
use crate::World;

/// SC10: a connection keeps at most two descriptors, and no payload.
pub(super) fn check_caches(host: &Host, audit: &Audit) {
    let kept = host.counters().tcp(tcp::Counter::SkbSocketCacheBytes);
    if audit.is_complete {
        let most = 2 * audit.connections * DESCRIPTOR_BYTES;
        assert!(kept <= most as u64, "{kept} bytes kept by {} connections", audit.connections);
    }
}

/// SC9: the number of deferred packets in all pools together is bounded. Each core may exceed the
/// limit by one.
pub(super) fn check_deferred(world: &World) {
    let stats = world.memory().packets.stats();
    let limits = world.hosts.iter().map(|host| host.sysctls().packet_defer_max);
    let limit = u64::from(limits.max().unwrap_or(0)) + stats.pools as u64;
    let waiting = u64::try_from(stats.packets_deferred).expect("counted before they are drained");
    assert!(waiting <= limit * stats.pools as u64, "{waiting} packets are deferred: {stats:?}");
}

/// Adds the cache counters of one host. SC6: the caches are empty once all connections are gone.
pub(super) fn add_caches(sum: &mut Caches, counters: &Snapshot) {
    assert_eq!(counters.tcp(tcp::Counter::SkbSocketCacheBytes), 0, "caches are empty");
    sum.tx_hits += counters.tcp(tcp::Counter::SkbTxCacheHit);
    sum.tx_cloned += counters.tcp(tcp::Counter::SkbTxCacheRejectCloned);
    sum.rx_handoffs += counters.tcp(tcp::Counter::SkbRxCacheHandoff);
    sum.after_unlock += counters.stack(Counter::SkbReadAfterUnlock);
}

/// SC9: every deferred packet has been freed in its pool. Returns the statistics of packet memory.
pub(super) fn check_end(world: &World) -> PoolStats {
    let stats = world.memory().packets.stats();
    assert_eq!(stats.packets_deferred, 0, "packets are still deferred: {stats:?}");
    // Each pool may have one open page for sent and one for received payload.
    let pages = usize::try_from(stats.pages_live).expect("opened before they are closed");
    assert!(pages <= 2 * stats.pools, "payload is left: {stats:?}");
    stats.pool
}
