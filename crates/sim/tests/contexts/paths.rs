//! The route reference of a packet that is queued for a reader: each packet keeps one, or drops it
//! (PQ4 to PQ7).
//!
//! Differs from Linux 3.18 in one count when the routes change: a packet with a reference gives it
//! to a socket that has none, because the kernel's way, a second get for the socket and a put for
//! the packet, has the same result.

use std::{io::IoSlice, io::IoSliceMut, sync::Arc};

use sim::{
    World,
    apps::{connect, listen},
};
use stack::{
    Errno,
    base::counters::Snapshot,
    device::WireConfig,
    socket::Reader,
    sysctl::{Sysctls, modes::RxContext},
};

use super::waiting::{PREQUEUES, Waiting};

/// Gets and puts of each data packet in the steady state: a get in softirq and a put in the
/// reader's thread, or none.
const fn counts_each(context: RxContext) -> u64 {
    matches!(context, RxContext::PrequeueRef) as u64
}

fn changes(after: &Snapshot, before: &Snapshot, names: &[&str]) -> Vec<u64> {
    let change = after.since(before);
    names.iter().map(|name| change.get(name).expect("a counter")).collect()
}

/// Opens a connection that has cached its input route, and takes the counters.
fn steady(context: RxContext) -> (Waiting, Snapshot) {
    let mut waiting = Waiting::new(context);
    waiting.arrives(b"first");
    assert_eq!(waiting.recv(10, false).expect("data"), b"first");
    waiting.wait();
    let before = waiting.host.counters();
    (waiting, before)
}

/// PQ5: five packets to a sleeping reader cost five gets and five puts, or nothing.
#[test]
fn five_packets_to_a_reader_keep_or_drop_their_route() {
    for context in PREQUEUES {
        let (mut waiting, before) = steady(context);
        for number in 0..5 {
            waiting.arrives(&[number; 100]);
        }
        let each = counts_each(context);
        let queued =
            changes(&waiting.host.counters(), &before, &["DstGet", "DstPut", "DstDropNoref"]);
        assert_eq!(queued, [5 * each, 0, 5 * (1 - each)], "{context:?}, in softirq");
        assert_eq!(waiting.read(1000).expect("data").len(), 500);
        let names = ["DstGet", "DstPut", "RxDstSet", "RxDstSetNullSkipped", "RxRouteLookups"];
        let all = changes(&waiting.host.counters(), &before, &names);
        assert_eq!(all, [5 * each, 5 * each, 0, 0, 0], "{context:?}, when the reader has run");
        waiting.finish();
    }
}

/// Cost of each context over a wire, with a host as the peer and a reader that always sleeps when
/// data arrives: two reference counts for each data packet in `prequeue_ref`, none in the others.
#[test]
fn a_data_packet_over_a_wire_costs_two_dst_operations_or_none() {
    const PACKETS: u64 = 200;
    const CONTEXT: &str = "net.quietline.rx_context";
    const PRESET: &str = "net.quietline.preset";
    for (setting, word, each) in [
        (CONTEXT, "prequeue_ref", 2),
        (CONTEXT, "prequeue_drop", 0),
        (CONTEXT, "prequeue_drop_limited", 0),
        (CONTEXT, "bh", 0),
        (PRESET, "linux-3.5", 2),
        (PRESET, "linux-3.6", 2),
        (PRESET, "linux-3.18", 0),
        (PRESET, "linux-5.2", 0),
    ] {
        let mut world = World::pair(1, &WireConfig::default()).expect("a wire");
        let [sends, waits] = [0, 1].map(|index| Arc::clone(&world.hosts[index]));
        waits.set_sysctl(setting, word).expect("a value");
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        let mut reader = Reader::new();
        let mut step = |world: &mut World| {
            let mut buf = [0; 100];
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            server.recv_or_wait(&waits, &mut world.cx, &mut reader, bufs)
        };
        let mut before = waits.counters();
        for packet in 0..=PACKETS {
            assert_eq!(step(&mut world), Err(Errno::EAGAIN));
            if packet == 1 {
                before = waits.counters();
            }
            let sent = client.send(&sends, &mut world.cx, &[IoSlice::new(&[7; 64])]);
            assert_eq!(sent, Ok(64));
            world.settle();
            assert_eq!(step(&mut world), Ok(64));
        }
        let change = changes(&waits.counters(), &before, &["DstGet", "DstPut", "PrequeueQueued"]);
        assert_eq!(change[0] + change[1], each * PACKETS, "{word}: {change:?}");
        let in_softirq = matches!(word, "bh" | "linux-5.2");
        assert_eq!(change[2], if in_softirq { 0 } else { PACKETS }, "{word}");
    }
}

/// The routes change while three packets without a route reference are queued.
#[test]
fn a_change_of_routes_while_packets_are_queued_costs_one_look_up() {
    let (mut waiting, before) = steady(RxContext::PrequeueDrop);
    for _ in 0..3 {
        waiting.arrives(b"old");
    }
    waiting.host.invalidate_routes();
    assert_eq!(waiting.read(100).expect("data").len(), 9);
    // A further get belongs to the ACK: the output route must be looked up again, too.
    let names = ["RxDstInvalidated", "DstPut", "RxDstSetNullSkipped", "RxRouteLookups", "DstForce"];
    let processed = changes(&waiting.host.counters(), &before, &names);
    assert_eq!(processed, [1, 1, 3, 0, 0], "one reference released, three packets without one");
    waiting.wait();
    let before = waiting.host.counters();
    waiting.arrives(b"new");
    let names = ["RxRouteLookups", "DstForce", "DstGet", "RxDstSet", "DstPut"];
    let queued = changes(&waiting.host.counters(), &before, &names);
    assert_eq!(queued, [1, 1, 1, 0, 0], "looked up, and kept with the packet");
    assert_eq!(waiting.read(100).expect("data"), b"new");
    let processed = changes(&waiting.host.counters(), &before, &names);
    assert_eq!(processed, [1, 1, 1, 1, 0], "given to the socket");
    waiting.wait();
    let before = waiting.host.counters();
    waiting.arrives(b"next");
    assert_eq!(waiting.read(100).expect("data"), b"next");
    assert_eq!(changes(&waiting.host.counters(), &before, &names), [0; 5]);
    waiting.finish();
}

/// The peer's packets arrive on another interface. The first version of the drop does not compare
/// interfaces: it drops the new route of a packet that the socket could have cached, and the next
/// packet needs a lookup as well. It costs two lookups; the mode that compares costs one.
#[test]
fn a_change_of_interface_costs_two_look_ups_or_one() {
    let names = [
        "RxRouteLookups",
        "DstDropNoref",
        "DstForce",
        "RxDstInvalidated",
        "RxDstSetNullSkipped",
        "RxDstSet",
    ];
    let optimistic = [[1, 1, 0, 1, 1, 0], [1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]];
    let compared = [[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]];
    for (mode, expected) in [("optimistic_drop", optimistic), ("rcu_clear_then_release", compared)]
    {
        let mut sysctls = Sysctls { rx_context: RxContext::PrequeueDrop, ..Sysctls::default() };
        sysctls.set("net.quietline.rx_dst_mode", mode).expect("a mode");
        let mut waiting = Waiting::with(sysctls);
        waiting.arrives(b"first");
        assert_eq!(waiting.recv(10, false).expect("data"), b"first");
        for (number, expected) in expected.into_iter().enumerate() {
            waiting.wait();
            let before = waiting.host.counters();
            waiting.arrives_elsewhere(b"data");
            assert_eq!(waiting.read(10).expect("data"), b"data");
            let change = changes(&waiting.host.counters(), &before, &names);
            assert_eq!(change, expected, "{mode}: packet {number}: {names:?}");
        }
        waiting.finish();
    }
}

/// PQ6: with up to forty packets queued, one more packet restores the connection's route.
#[test]
fn a_change_of_routes_is_repaired_by_one_more_packet() {
    for context in PREQUEUES {
        for queued in 1..=40 {
            let (mut waiting, _) = steady(context);
            for _ in 0..queued {
                waiting.arrives(b"x");
            }
            waiting.host.invalidate_routes();
            assert_eq!(waiting.read(100).expect("data").len(), queued);
            for _ in 0..2 {
                waiting.wait();
                waiting.arrives(b"y");
                assert_eq!(waiting.read(10).expect("data"), b"y");
            }
            waiting.wait();
            let before = waiting.host.counters();
            waiting.arrives(b"z");
            assert_eq!(waiting.read(10).expect("data"), b"z");
            let names = ["RxRouteLookups", "RxDstInvalidated", "RxDstSet", "RxDstSetNullSkipped"];
            let change = changes(&waiting.host.counters(), &before, &names);
            assert_eq!(change, [0; 4], "{context:?}, {queued} queued");
            waiting.finish();
        }
    }
}

/// PQ7: the references of packets that are still queued when the connection ends are released.
#[test]
fn references_of_queued_packets_are_released() {
    for context in PREQUEUES {
        let (mut waiting, _) = steady(context);
        for _ in 0..7 {
            waiting.arrives(b"x");
        }
        let Waiting { socket, host, rig, .. } = &mut waiting;
        socket.abort(host, &mut rig.world.cx);
        assert_eq!(waiting.read(10), Err(Errno::ECONNABORTED));
        waiting.rig.settle();
        for entry in waiting.host.dst_entries() {
            assert_eq!(entry.refs, 1, "{context:?}: {entry:?}");
        }
        waiting.finish();
    }
}
