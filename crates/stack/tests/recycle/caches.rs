//! Packet caches of connections are bounded, private to the owner, and freed when they must be:
//! SC1, SC6, SC7, SC10 (docs/invariants.md).

use std::{
    cell::RefCell,
    io::IoSliceMut,
    sync::{Arc, Weak},
    time::Duration,
};

use pkt::DESCRIPTOR_BYTES;
use stack::{Cx, Errno, core::Kick, host::Host, socket::Reader};

use super::rig::{CLIENT, Rig, SERVER};

/// Returns the bytes in the caches of the server's connections.
fn held(rig: &Rig) -> u64 {
    rig.ends[SERVER].count("SkbSocketCacheBytes")
}

const ONE: u64 = DESCRIPTOR_BYTES as u64;

fn warm() -> (Rig, [Arc<stack::socket::Connection>; 2]) {
    let mut rig = Rig::with_mode("socket_one");
    let sockets = rig.connect();
    for _ in 0..50 {
        rig.exchange(&sockets, 64);
    }
    (rig, sockets)
}

/// Returns a connection with both cache slots full: a request acknowledged the last response and
/// was read.
fn full() -> (Rig, [Arc<stack::socket::Connection>; 2]) {
    let (mut rig, sockets) = warm();
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 64]), Ok(64));
    rig.ends[SERVER].poll();
    assert_eq!(rig.recv(SERVER, &sockets[SERVER], 64).map(|bytes| bytes.len()), Ok(64));
    assert_eq!(held(&rig), 2 * ONE);
    (rig, sockets)
}

/// SC7: the owner may be writing to the slot, so softirq leaves it alone until the connection is
/// released.
#[test]
fn a_slot_is_not_touched_while_the_application_owns_the_connection() {
    let (mut rig, sockets) = warm();
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 64]), Ok(64));
    let handoffs = rig.ends[SERVER].count("SkbRxCacheHandoff");
    assert!(held(&rig) > 0, "the reader has filled the slot");
    let end = &mut rig.ends[SERVER];
    let (host, poll) = (Arc::clone(&end.host), &mut end.poll);
    sockets[SERVER].hold(&host, &mut end.app, |_| {
        let _ = host.poll(poll);
        assert_eq!(host.counters().get("SkbRxCacheHandoff"), Some(handoffs));
    });
    assert_eq!(rig.ends[SERVER].count("SocketBacklogQueued"), 1);
    assert_eq!(rig.ends[SERVER].count("SkbRxCacheHandoff"), handoffs);
    // The reader finds the slot full; the next segment that softirq processes takes the packet.
    assert_eq!(rig.recv(SERVER, &sockets[SERVER], 64).map(|bytes| bytes.len()), Ok(64));
    assert_eq!(rig.ends[SERVER].count("SkbRxCacheFull"), 1);
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 64]), Ok(64));
    rig.ends[SERVER].poll();
    assert_eq!(rig.ends[SERVER].count("SkbRxCacheHandoff"), handoffs + 1);
    rig.finish([sockets]);
}

/// A segment in the prequeue is not processed in softirq, so the slot stays with the reader.
#[test]
fn a_slot_is_not_touched_by_a_segment_in_the_prequeue() {
    let (mut rig, sockets) = warm();
    rig.ends[SERVER].set("net.quietline.rx_context", "prequeue_drop");
    let handoffs = rig.ends[SERVER].count("SkbRxCacheHandoff");
    assert_eq!(held(&rig), ONE, "the packet read last");
    let (mut reader, mut buf) = (Reader::new(), [0; 64]);
    let mut recv = |rig: &mut Rig| {
        let end = &mut rig.ends[SERVER];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        sockets[SERVER].recv_or_wait(&end.host, &mut end.app, &mut reader, bufs)
    };
    assert_eq!(recv(&mut rig), Err(Errno::EAGAIN));
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 64]), Ok(64));
    rig.ends[SERVER].poll();
    assert_eq!(rig.ends[SERVER].count("PrequeueQueued"), 1);
    assert_eq!(rig.ends[SERVER].count("SkbRxCacheHandoff"), handoffs);
    assert_eq!(recv(&mut rig), Ok(64));
    // No thread waits for the next segment.
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 64]), Ok(64));
    rig.ends[SERVER].poll();
    assert_eq!(rig.ends[SERVER].count("SkbRxCacheHandoff"), handoffs + 1);
    rig.finish([sockets]);
}

/// SC6: closing a connection frees its cached packets.
#[test]
fn a_closed_connection_caches_no_packets() {
    let (mut rig, sockets) = warm();
    assert_eq!(held(&rig), ONE, "the packet read last; the packet sent last is in the queue");
    let end = &mut rig.ends[SERVER];
    sockets[SERVER].close(&end.host, &mut end.app);
    assert_eq!(held(&rig), 0);
    rig.finish([sockets]);
}

/// Both slots are full once all data is acknowledged; an idle connection frees them when the mode
/// changes.
#[test]
fn an_idle_connection_frees_its_caches_when_the_mode_changes() {
    for mode in ["none", "list_after_unlock", "per_core_defer", "unified_pool"] {
        let (mut rig, sockets) = full();
        rig.ends[SERVER].set("net.quietline.skb_recycle", mode);
        rig.ends[SERVER].poll();
        assert_eq!(held(&rig), 0, "{mode}");
        rig.exchange(&sockets, 64);
        rig.finish([sockets]);
    }
}

thread_local! {
    /// The context of a worker that runs inside `kick`.
    static WORKER: RefCell<Option<Cx>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct RunsAtOnce(Weak<Host>);

impl Kick for RunsAtOnce {
    fn kick(&self) {
        let Some(host) = self.0.upgrade() else { return };
        WORKER.with_borrow_mut(|cx| {
            let _ = host.poll(cx.as_mut().expect("set by the test"));
        });
    }
}

/// The worker may run before the call that changes the mode has returned; it already sees the new
/// mode.
#[test]
fn a_worker_kicked_by_a_mode_change_sees_the_new_mode() {
    let (mut rig, sockets) = full();
    let end = &mut rig.ends[SERVER];
    let mut worker = Cx::replay(&rig.memory, 3);
    worker.now = end.poll.now;
    // The worker has cached the old settings.
    let _ = end.host.poll(&mut worker);
    WORKER.set(Some(worker));
    let core = &end.host.cores()[0];
    core.set_kick(Arc::new(RunsAtOnce(Arc::downgrade(&end.host))));
    let _ = core.prepare_sleep(end.poll.now, false);
    end.set("net.quietline.skb_recycle", "none");
    assert_eq!(held(&rig), 0, "the worker freed them");
    rig.exchange(&sockets, 64);
    rig.finish([sockets]);
    WORKER.set(None);
}

/// A turn visits a limited number of connections, so no thread waits for thousands of locks.
#[test]
fn each_turn_frees_the_caches_of_a_few_idle_connections() {
    const CONNECTIONS: usize = 300;
    let mut rig = Rig::with_mode("socket_one");
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS {
        let sockets = rig.connect();
        rig.exchange(&sockets, 64);
        all.push(sockets);
    }
    rig.settle();
    assert!(held(&rig) >= CONNECTIONS as u64 * ONE);
    let turns = rig.ends[SERVER].count("CoreTurns");
    rig.ends[SERVER].set("net.quietline.skb_recycle", "unified_pool");
    rig.ends[SERVER].poll();
    assert_eq!(held(&rig), 0);
    let turns = rig.ends[SERVER].count("CoreTurns") - turns;
    assert!(
        (4..=8).contains(&turns),
        "{turns} turns, each of 64 connections and the rest of a chain"
    );
    rig.finish(all);
}

/// Each of the two switches empties its own slot.
#[test]
fn switching_a_cache_off_empties_its_slots() {
    for name in ["net.ipv4.tcp_tx_skb_cache", "net.ipv4.tcp_rx_skb_cache"] {
        let (mut rig, sockets) = warm();
        rig.ends[SERVER].set(name, "0");
        rig.ends[SERVER].poll();
        for _ in 0..10 {
            rig.exchange(&sockets, 64);
            assert!(held(&rig) <= ONE);
        }
        rig.finish([sockets]);
    }
}

/// A host that is short of memory empties the caches.
#[test]
fn memory_pressure_empties_the_caches_of_idle_connections() {
    let (mut rig, sockets) = full();
    let other = rig.connect();
    assert!(held(&rig) >= ONE);
    rig.ends[SERVER].set("net.ipv4.tcp_mem", "1 2 100000");
    // Another connection raises the host above the threshold.
    for _ in 0..20 {
        let _ = rig.send(CLIENT, &other[CLIENT], &[1; 1400]);
        rig.settle();
    }
    assert_eq!(rig.ends[SERVER].count("TcpExtTCPMemoryPressures"), 1);
    assert_eq!(held(&rig), 0, "also of the idle connection");
    rig.exchange(&sockets, 64);
    assert_eq!(held(&rig), 0, "nothing is cached under pressure");
    rig.finish([sockets, other]);
}

/// RPS is enabled while a slot is full. The cached packet is freed as usual, and no further packet
/// is cached.
#[test]
fn packets_that_may_change_core_are_not_kept() {
    let (mut rig, sockets) = warm();
    rig.ends[SERVER].set("net.quietline.dev.default.rps_cpus", "1");
    let gated = rig.ends[SERVER].count("SkbRxCacheGated");
    for _ in 0..10 {
        rig.exchange(&sockets, 64);
        rig.settle();
    }
    assert_eq!(rig.ends[SERVER].count("SkbRxCacheGated"), gated + 10);
    rig.ends[SERVER].set("net.quietline.rx_skb_cache_rps_gate", "0");
    let handoffs = rig.ends[SERVER].count("SkbRxCacheHandoff");
    for _ in 0..10 {
        rig.exchange(&sockets, 64);
        rig.settle();
    }
    assert!(rig.ends[SERVER].count("SkbRxCacheHandoff") > handoffs, "caching is allowed again");
    rig.finish([sockets]);
}

/// SC10: idle connections that have received much data keep descriptors and no pages.
#[test]
fn idle_connections_keep_no_payload() {
    const CONNECTIONS: usize = 300;
    let mut rig = Rig::with_mode("socket_one");
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS {
        let sockets = rig.connect();
        for _ in 0..3 {
            assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[7; 14_000]), Ok(14_000));
            rig.pass(Duration::from_millis(1));
            rig.settle();
            assert!(rig.recv(SERVER, &sockets[SERVER], 20_000).is_ok());
            rig.exchange(&sockets, 1000);
        }
        all.push(sockets);
    }
    rig.pass(Duration::from_millis(300));
    rig.settle();
    let bound = (CONNECTIONS * 2 * DESCRIPTOR_BYTES) as u64;
    assert!((bound / 2..=bound).contains(&held(&rig)), "{} of {bound}", held(&rig));
    let stats = rig.memory.packets.stats();
    assert!(stats.pages_live < 20, "{stats:?}");
    rig.finish(all);
}

/// A recycled packet is retransmitted correctly, both after its first copy was lost and while it is
/// in flight.
#[test]
fn a_recycled_packet_is_retransmitted() {
    let (mut rig, sockets) = full();
    let hits = rig.ends[SERVER].count("SkbTxCacheHit");
    assert_eq!(rig.send(SERVER, &sockets[SERVER], &[9; 500]), Ok(500));
    assert_eq!(rig.ends[SERVER].count("SkbTxCacheHit"), hits + 1);
    // The segment is lost and retransmitted.
    rig.ends[CLIENT].nic.lose();
    rig.pass(Duration::from_millis(500));
    rig.settle();
    rig.pass(Duration::from_millis(500));
    rig.settle();
    assert!(rig.ends[SERVER].count("TcpRetransSegs") > 0);
    assert_eq!(rig.recv(CLIENT, &sockets[CLIENT], 500), Ok(vec![9; 500]));
    rig.finish([sockets]);
}
