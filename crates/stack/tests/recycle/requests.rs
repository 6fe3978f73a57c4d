//! Packet-memory cost of a request in each mode.

use std::{sync::atomic::Ordering, time::Duration};

use pkt::PoolStats;

use super::rig::{CLIENT, Rig, SERVER};

const REQUESTS: u64 = 200;

/// Requests before counting starts: pools double their slabs until they hold enough for the
/// traffic.
const WARM_UP: u64 = 500;

/// Cost of `REQUESTS` requests for one host, divided by `REQUESTS`.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// Packets allocated, including the copies passed to the device.
    allocs: u64,
    /// Packets freed by a pool other than their own, whose memory was returned one by one.
    remote: u64,
    /// Packets returned whole to their own pool (`defer`).
    deferred: u64,
    /// Foreign packets that the freeing pool kept.
    adopted: u64,
    /// Exchanges with the depot or the system allocator.
    refills: u64,
    /// Acquisitions of packet-memory locks.
    locks: u64,
}

fn cost(before: &[PoolStats; 2], after: &[PoolStats; 2]) -> Cost {
    let sum = |value: fn(&PoolStats) -> u64| {
        let total = |stats: &[PoolStats; 2]| stats.iter().map(value).sum::<u64>();
        let change = total(after) - total(before);
        assert_eq!(change % REQUESTS, 0, "{change} in {REQUESTS} requests");
        change / REQUESTS
    };
    Cost {
        allocs: sum(|stats| stats.alloc_local),
        remote: sum(|stats| stats.free_remote),
        deferred: sum(|stats| stats.defer_pushed),
        adopted: sum(|stats| stats.adopted),
        refills: sum(|stats| stats.magazine_refills + stats.magazine_flushes + stats.slab_refill),
        locks: sum(|stats| stats.locks),
    }
}

/// Measures the cost of a request of `len` bytes for each host in the steady state.
fn measure(mode: &str, len: usize) -> Cost {
    let mut rig = Rig::with_mode(mode);
    let sockets = rig.connect();
    for _ in 0..WARM_UP {
        rig.exchange(&sockets, len);
    }
    let before = [CLIENT, SERVER].map(|end| rig.ends[end].stats());
    for _ in 0..REQUESTS {
        rig.exchange(&sockets, len);
    }
    let costs = [CLIENT, SERVER].map(|end| cost(&before[end], &rig.ends[end].stats()));
    let [client, server] = costs;
    assert_eq!(client, server, "both hosts send and receive one packet per request");
    rig.finish([sockets]);
    server
}

/// A sent packet counts twice here: the queued packet, and the copy that the device frees on the
/// core that made it. That is one allocation and one local free more than in Linux, in every mode.
#[test]
fn the_cost_of_a_request_depends_on_the_mode() {
    let none = Cost { allocs: 3, remote: 2, deferred: 0, adopted: 0, refills: 0, locks: 0 };
    for len in [1, 100, 1000] {
        assert_eq!(measure("none", len), none);
        let one = Cost { allocs: 2, remote: 0, ..none };
        assert_eq!(measure("socket_one", len), one, "the transmit cache saves an allocation");
        let after_unlock = Cost { allocs: 3, remote: 2, ..none };
        assert_eq!(
            measure("list_after_unlock", len),
            after_unlock,
            "the reader frees the packet before the list is flushed"
        );
        let deferred = Cost { allocs: 3, remote: 0, deferred: 2, ..none };
        assert_eq!(measure("per_core_defer", len), deferred);
        let unified = Cost { allocs: 3, remote: 0, adopted: 2, ..none };
        assert_eq!(measure("unified_pool", len), unified, "both directions balance");
    }
}

/// With `none`, two packets per request are freed remotely; with `socket_one` and with the default
/// mode, none.
#[test]
fn remote_frees_per_request_are_two_without_recycling_and_none_by_default() {
    let default = Rig::new(false, &[]).ends[SERVER].host.sysctls().get("net.quietline.skb_recycle");
    assert_eq!(measure("none", 64).remote, 2);
    assert_eq!(measure("socket_one", 64).remote, 0);
    assert_eq!(measure(&default.expect("a setting"), 64).remote, 0);
}

/// Cache counters of the sockets after a request.
#[test]
fn socket_caches_hit_and_hand_over_once_per_request() {
    let mut rig = Rig::with_mode("socket_one");
    let sockets = rig.connect();
    for _ in 0..50 {
        rig.exchange(&sockets, 64);
    }
    let before = rig.ends[SERVER].counters();
    for _ in 0..REQUESTS {
        rig.exchange(&sockets, 64);
    }
    let change = rig.ends[SERVER].counters().since(&before);
    assert_eq!(change.get("SkbTxCacheHit"), Some(REQUESTS));
    assert_eq!(change.get("SkbTxCacheMiss"), Some(0));
    assert_eq!(change.get("SkbRxCacheHandoff"), Some(REQUESTS));
    assert_eq!(change.get("SkbRxCacheFull"), Some(0));
    rig.finish([sockets]);
}

/// The transmit and receive caches have separate switches; each cache saves one remote free.
#[test]
fn each_cache_saves_its_own_remote_free() {
    let switched = |tx, rx| {
        let settings = [
            ("net.quietline.skb_recycle", "socket_one"),
            ("net.ipv4.tcp_tx_skb_cache", tx),
            ("net.ipv4.tcp_rx_skb_cache", rx),
        ];
        let mut rig = Rig::new(false, &settings);
        let sockets = rig.connect();
        for _ in 0..50 {
            rig.exchange(&sockets, 64);
        }
        let before = rig.ends[SERVER].stats();
        for _ in 0..REQUESTS {
            rig.exchange(&sockets, 64);
        }
        let cost = cost(&before, &rig.ends[SERVER].stats());
        rig.finish([sockets]);
        (cost.allocs, cost.remote)
    };
    assert_eq!(switched("1", "1"), (2, 0));
    assert_eq!(switched("1", "0"), (2, 1));
    assert_eq!(switched("0", "1"), (3, 1));
    assert_eq!(switched("0", "0"), (3, 2));
}

/// The acknowledgment arrives before the device completes the packet. The packet is not reused, so
/// the device transmits the original bytes.
#[test]
fn a_packet_whose_copy_is_in_the_device_is_not_kept() {
    let mut rig = Rig::new(
        true,
        &[("net.quietline.skb_recycle", "socket_one"), ("net.ipv4.tcp_autocorking", "0")],
    );
    let sockets = rig.connect();
    for _ in 0..50 {
        rig.exchange(&sockets, 64);
        rig.settle();
    }
    // All data sent before is acknowledged.
    rig.pass(Duration::from_millis(300));
    rig.settle();
    let rejected = rig.ends[SERVER].count("SkbTxCacheRejectCloned");
    let misses = rig.ends[SERVER].count("SkbTxCacheMiss");
    rig.ends[SERVER].nic.holds.store(true, Ordering::Relaxed);
    let first = vec![0x5a; 300];
    assert_eq!(rig.send(SERVER, &sockets[SERVER], &first), Ok(300));
    rig.ends[CLIENT].poll();
    assert_eq!(rig.recv(CLIENT, &sockets[CLIENT], 300).as_ref(), Ok(&first));
    // The next request acknowledges it; the response is a new packet.
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 10]), Ok(10));
    rig.ends[SERVER].poll();
    assert_eq!(rig.ends[SERVER].count("SkbTxCacheRejectCloned"), rejected + 1);
    assert_eq!(rig.recv(SERVER, &sockets[SERVER], 10).map(|bytes| bytes.len()), Ok(10));
    assert_eq!(rig.send(SERVER, &sockets[SERVER], &[0xa5; 300]), Ok(300));
    assert_eq!(rig.ends[SERVER].count("SkbTxCacheMiss"), misses + 1);
    let frames = rig.ends[CLIENT].nic.seen.lock().unwrap().clone();
    assert!(frames.iter().any(|frame| frame.ends_with(&first)), "the frame is unchanged");
    rig.ends[SERVER].nic.holds.store(false, Ordering::Relaxed);
    rig.settle();
    rig.finish([sockets]);
}
