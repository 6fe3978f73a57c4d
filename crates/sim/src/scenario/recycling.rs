//! Where packet memory is while a scenario runs: SC6, SC9 and SC10 of the recycling modes, in any seed.
//!
//! Below: the gauges of each host and of the world's packet memory. What a kept packet looks like is `PacketCache`'s own
//! business (`Tcb::check`), as is what each connection is charged (`Host::check`).
//!
//! Not here: that no mode changes what happens, which compares runs (`tests/recycling.rs`).

use pkt::{DESCRIPTOR_BYTES, PoolStats};
use stack::{
    base::counters::{Counter, Snapshot},
    host::{Audit, Host},
};

use super::Caches;
use crate::World;

/// SC10: connections keep two descriptors at most, and no payload.
pub(super) fn check_caches(host: &Host, audit: &Audit) {
    let kept = host.counters().tcp(tcp::Counter::SkbSocketCacheBytes);
    if audit.is_complete {
        let most = 2 * audit.connections * DESCRIPTOR_BYTES;
        assert!(kept <= most as u64, "{kept} bytes kept by {} connections", audit.connections);
    }
}

/// SC9: no more packets wait to die at home than may, in all homes together. One for each core may be beyond the limit.
pub(super) fn check_deferred(world: &World) {
    let stats = world.memory().packets.stats();
    let limits = world.hosts.iter().map(|host| host.sysctls().packet_defer_max);
    let limit = u64::from(limits.max().unwrap_or(0)) + stats.pools as u64;
    let waiting = u64::try_from(stats.packets_deferred).expect("pushed before they are drained");
    assert!(waiting <= limit * stats.pools as u64, "{waiting} packets wait: {stats:?}");
}

/// Adds what the caches of one host have done. SC6: they are empty, now that all connections are gone.
pub(super) fn add_caches(sum: &mut Caches, counters: &Snapshot) {
    assert_eq!(counters.tcp(tcp::Counter::SkbSocketCacheBytes), 0, "caches are empty");
    sum.tx_hits += counters.tcp(tcp::Counter::SkbTxCacheHit);
    sum.tx_cloned += counters.tcp(tcp::Counter::SkbTxCacheRejectCloned);
    sum.rx_handoffs += counters.tcp(tcp::Counter::SkbRxCacheHandoff);
    sum.after_unlock += counters.stack(Counter::SkbReadAfterUnlock);
}

/// SC9: every packet that was sent home has died there. Answers what packet memory has done.
pub(super) fn check_end(world: &World) -> PoolStats {
    let stats = world.memory().packets.stats();
    assert_eq!(stats.packets_deferred, 0, "packets wait to die: {stats:?}");
    // Each pool may be carving one for what is sent and one for what is received.
    let pages = usize::try_from(stats.pages_live).expect("opened before they are closed");
    assert!(pages <= 2 * stats.pools, "payload is left: {stats:?}");
    stats.pool
}
