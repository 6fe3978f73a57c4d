//! One socket, and threads that meet at its lock.

use std::{
    io::IoSlice,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tcp::{Flags, SegmentHeader, SeqNum};

use super::*;
use crate::{
    config::HostConfig,
    cx::Memory,
    route::PacketDst,
    socket::{Listener, options::SocketSettings},
};

/// The last packet of a poll that was queued for an owner who has left meanwhile is worked off, and that is no flush: the ACK it
/// asks for would leave with the next one.
#[test]
fn a_segment_that_has_met_an_owner_is_flushed_all_the_same() {
    let memory = Memory::new(1 << 24);
    let config = HostConfig { cores: 1, seed: 7, ..HostConfig::default() };
    let host = Host::new(&memory, config).unwrap();
    host.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    let mut cx = Cx::new(&memory, 7);
    let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let settings = SocketSettings::default();
    let listener = Listener::listen_with(&host, &mut cx, at, &settings.listen_options(8)).unwrap();
    let client =
        TcpSocket::connect_with(&host, &mut cx, at, &settings.connect_options(None)).unwrap();
    let poll = |cx: &mut Cx| {
        for _ in 0..8 {
            let _ = host.poll(cx);
        }
    };
    poll(&mut cx);
    let server = listener.accept().unwrap();
    assert_eq!(client.send(&host, &mut cx, &[IoSlice::new(b"data")]), Ok(4));
    poll(&mut cx);
    // What has come already is answered at once, each time.
    let repeated = SegmentHeader {
        seq: SeqNum(client.lock.own().tcb.snd_una().0.wrapping_sub(4)),
        ack: server.lock.own().tcb.snd_una(),
        flags: Flags::ACK,
        window: 1000,
        ..SegmentHeader::default()
    };
    let done = AtomicBool::new(false);
    let (mut flushed_at_once, mut unanswered) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // About as long as a segment takes to be queued: so that it often finds the owner, and then not any more.
                let owner = server.lock.own();
                (0..20).for_each(|_| core::hint::spin_loop());
                drop(owner);
                (0..20).for_each(|_| core::hint::spin_loop());
            }
        });
        for _ in 0..300_000 {
            let mut packet = cx.pool.alloc().expect("memory");
            assert_eq!(packet.append(&mut cx.pool, b"data"), 4);
            repeated.emit(packet.push(repeated.header_bytes()));
            let entered = cx.enter(&host);
            let reader = cx.reader();
            let rcu = reader.pin();
            let flushed = server.segment(&host, &mut cx, &rcu, PacketDst::None, packet, true);
            let is_settled = || tcp::is_settled_after_read(&server.lock.own().tcb);
            if flushed {
                flushed_at_once += 1;
                unanswered += u32::from(!is_settled());
            }
            // One that meets the owner is left to the next: the owner does nothing.
            while !is_settled() {
                server.flush(&host, &mut cx);
            }
            drop(rcu);
            cx.leave(entered);
            let _ = host.poll(&mut cx);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(flushed_at_once > 0);
    assert_eq!(unanswered, 0, "of {flushed_at_once}");
    host.shut_down(&mut cx);
}
