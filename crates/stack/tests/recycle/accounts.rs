//! The four memory counters of a socket, wakeups when they fall, and the bounds of packet caches:
//! SC5, SC10.

use std::{sync::atomic::Ordering, time::Duration};

use pkt::{DESCRIPTOR_BYTES, Pages};
use stack::{
    Readiness,
    socket::{
        Connection, SendFlags,
        options::{MemoryInfo, OptionValue, SocketOption},
    },
};

use super::rig::{CLIENT, Rig, SERVER};

const MODES: [&str; 5] =
    ["none", "socket_one", "list_after_unlock", "per_core_defer", "unified_pool"];

/// Size of a page of the TCP memory account, in bytes.
const PAGE: u32 = 4096;

fn memory(rig: &mut Rig, at: usize, socket: &Connection) -> MemoryInfo {
    let end = &mut rig.ends[at];
    socket.memory_info(&end.host, &mut end.app)
}

/// One write and its response, with a device that delays completions. An acknowledgment removes a
/// packet from `wmem_queued` but not from `wmem_alloc`; a completion changes only `wmem_alloc`.
/// `r`, `w` and `f` of `ss -m` behave the same in Linux: whole pages are charged.
#[test]
fn acknowledged_and_completed_bytes_are_counted_apart() {
    let mut rig = Rig::new(true, &[("net.ipv4.tcp_autocorking", "0")]);
    let sockets = rig.connect();
    rig.settle();
    rig.ends[CLIENT].nic.holds.store(true, Ordering::Relaxed);
    assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 1000]), Ok(1000));
    let sent = memory(&mut rig, CLIENT, &sockets[CLIENT]);
    let truesize = sent.wmem_queued;
    let descriptor = u32::try_from(DESCRIPTOR_BYTES).expect("some hundred bytes");
    assert!((descriptor..=descriptor + 1000).contains(&truesize), "{sent}");
    assert_eq!((sent.rmem_alloc, sent.wmem_alloc), (0, truesize), "{sent}");
    assert_eq!((sent.forward_alloc, sent.account_pages()), (PAGE - truesize, 1), "{sent}");

    rig.ends[SERVER].poll();
    let got = memory(&mut rig, SERVER, &sockets[SERVER]);
    assert!(got.rmem_alloc >= 1000 && got.rmem_alloc + got.forward_alloc == PAGE, "{got}");
    assert_eq!((got.wmem_queued, got.wmem_alloc), (0, 0), "{got}");
    assert_eq!(rig.recv(SERVER, &sockets[SERVER], 1000).map(|bytes| bytes.len()), Ok(1000));
    let read = memory(&mut rig, SERVER, &sockets[SERVER]);
    assert_eq!((read.rmem_alloc, read.forward_alloc), (0, 0), "{read}");

    assert_eq!(rig.send(SERVER, &sockets[SERVER], &[2; 10]), Ok(10));
    rig.ends[CLIENT].poll();
    let acked = memory(&mut rig, CLIENT, &sockets[CLIENT]);
    assert_eq!((acked.wmem_queued, acked.wmem_alloc), (0, truesize), "{acked}");
    assert!(acked.rmem_alloc > 0 && acked.rmem_alloc + acked.forward_alloc == PAGE, "{acked}");
    rig.ends[CLIENT].nic.holds.store(false, Ordering::Relaxed);
    rig.ends[CLIENT].poll();
    let done = memory(&mut rig, CLIENT, &sockets[CLIENT]);
    assert_eq!(done, MemoryInfo { wmem_alloc: 0, ..acked });

    // The option and the text of `ss -m` report the same values.
    let end = &mut rig.ends[CLIENT];
    let value = sockets[CLIENT].option(&end.host, &mut end.app, SocketOption::MemoryInfo);
    assert_eq!(value, Ok(OptionValue::from(done)));
    let MemoryInfo { rmem_alloc, rcvbuf, sndbuf, forward_alloc, .. } = done;
    assert_eq!(
        done.to_string(),
        format!("skmem:(r{rmem_alloc},rb{rcvbuf},t0,tb{sndbuf},f{forward_alloc},w0,o0,bl0,d0)")
    );
    assert_eq!(rig.recv(CLIENT, &sockets[CLIENT], 10).map(|bytes| bytes.len()), Ok(10));
    rig.finish([sockets]);
}

/// Linux: `sk_stream_write_space`. A waiting thread is woken once, when a third of the buffer is
/// free.
#[test]
fn a_writer_is_woken_once_when_a_third_of_the_buffer_is_free() {
    let mut rig = Rig::new(false, &[]);
    let sockets = rig.connect();
    let end = &mut rig.ends[CLIENT];
    sockets[CLIENT].with_tcb(&end.host, &mut end.app, |tcb, _| tcb.set_sndbuf(60_000));
    while rig.send(CLIENT, &sockets[CLIENT], &[1; 4000]).is_ok() {}
    let full = memory(&mut rig, CLIENT, &sockets[CLIENT]);
    assert!(full.wmem_queued >= 60_000, "{full}");
    let waiter = sockets[CLIENT].waiters(Readiness::WRITE).prepare();
    let wakes = rig.ends[CLIENT].count("SocketWakes");
    for step in 0.. {
        assert!(step < 1000, "no room");
        rig.ends[SERVER].poll();
        while rig.recv(SERVER, &sockets[SERVER], 2000).is_ok() {}
        rig.pass(Duration::from_millis(1));
        rig.ends[CLIENT].poll();
        let queued = memory(&mut rig, CLIENT, &sockets[CLIENT]).wmem_queued;
        if sockets[CLIENT].readiness().contains(Readiness::WRITE) {
            assert!(queued <= 40_000, "{queued}");
            break;
        }
        assert!(queued > 40_000, "{queued}");
        assert_eq!(rig.ends[CLIENT].count("SocketWakes"), wakes, "not before");
    }
    assert_eq!(rig.ends[CLIENT].count("SocketWakes"), wakes + 1);
    sockets[CLIENT].waiters(Readiness::WRITE).cancel(waiter);
    rig.settle();
    assert_eq!(rig.ends[CLIENT].count("SocketWakes"), wakes + 1, "no thread waits");
    rig.finish([sockets]);
}

/// SC5: the acknowledgment returns memory that was sent without a copy to its owner, even if the
/// packet that referred to it is kept for the next write.
#[test]
fn lent_memory_returns_with_the_acknowledgment() {
    for mode in MODES {
        let mut rig = Rig::with_mode(mode);
        let sockets = rig.connect();
        for _ in 0..50 {
            rig.exchange(&sockets, 64);
        }
        let end = &mut rig.ends[SERVER];
        let mut pages = Pages::new(&mut end.app.pool, 1000).expect("memory");
        let range = pages.range(0..1000);
        let sent = sockets[SERVER].send_pages(&end.host, &mut end.app, range, SendFlags::empty());
        assert_eq!(sent, Ok(1000));
        pages.recall();
        rig.ends[CLIENT].poll();
        assert_eq!(rig.recv(CLIENT, &sockets[CLIENT], 1000).map(|bytes| bytes.len()), Ok(1000));
        assert!(!pages.is_back(), "{mode}: before the acknowledgment");
        assert_eq!(rig.send(CLIENT, &sockets[CLIENT], &[1; 64]), Ok(64));
        rig.ends[SERVER].poll();
        assert!(pages.is_back(), "{mode}: with the acknowledgment, not with the next write");
        let kept = rig.ends[SERVER].count("SkbSocketCacheBytes");
        assert_eq!(kept > 0, mode == "socket_one", "{mode}: {kept} bytes");
        assert!(pages.collect() && pages.is_idle());
        drop(pages);
        assert_eq!(rig.recv(SERVER, &sockets[SERVER], 64).map(|bytes| bytes.len()), Ok(64));
        rig.finish([sockets]);
    }
}

/// SC10: in every mode the caches hold a bounded number of descriptors, and the gauges report it.
#[test]
fn the_contents_of_caches_are_bounded_and_reported() {
    const CONNECTIONS: usize = 40;
    const ONE: u64 = DESCRIPTOR_BYTES as u64;
    for mode in MODES {
        let mut rig = Rig::with_mode(mode);
        let all: Vec<_> = (0..CONNECTIONS).map(|_| rig.connect()).collect();
        let mut taken = 0;
        for round in 0..20 {
            for sockets in &all {
                rig.exchange(sockets, 1000);
            }
            let stats = rig.memory.packets.stats();
            if round == 9 {
                taken = stats.bytes;
            }
            let held = |name| rig.ends.iter().map(|end| end.count(name)).collect::<Vec<_>>();
            let kept: u64 = held("SkbSocketCacheBytes").iter().sum();
            let most = if mode == "socket_one" { 4 * CONNECTIONS as u64 * ONE } else { 0 };
            assert!(kept <= most, "{mode}: {kept} bytes in sockets");
            // Both hosts share one packet memory, so their gauges agree.
            let free = stats.descriptors_free.unsigned_abs() * ONE;
            assert_eq!(held("SkbFreeBytes"), [free; 2], "{mode}");
            let deferred = stats.packets_deferred.unsigned_abs();
            assert_eq!(held("SkbDeferredBytes"), [deferred * ONE; 2], "{mode}");
            let most = if mode == "per_core_defer" { 64 * stats.pools as u64 } else { 0 };
            assert!(deferred <= most, "{mode}: {deferred} deferred packets");
        }
        assert_eq!(rig.memory.packets.stats().bytes, taken, "{mode}: no more memory was allocated");
        rig.finish(all);
    }
}
