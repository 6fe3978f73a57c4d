//! Tests of concurrent access to one socket through its lock.

use std::{io::IoSlice, net::SocketAddr};

use sync::Entry;
use tcp::{Flags, SegmentHeader, SeqNum};

use super::*;
use crate::{
    cx::Memory,
    host::{Host, config::HostConfig},
    socket::{
        ConnectOptions, ListenOptions, Listener,
        rx::{LastFlow, Rx},
    },
    transmit::packet_dst::PacketDst,
};

/// The last packet of a poll is queued for an owner that has released the socket meanwhile. The
/// packet is processed at once, but without a flush, and `queue` must report that: the caller then
/// flushes, and the required ACK does not wait for the next packet.
#[test]
fn a_segment_queued_for_an_owner_is_not_reported_as_flushed() {
    let memory = Memory::new(1 << 24);
    let config = HostConfig { cores: 1, ..HostConfig::replay(7) };
    let host = Host::new(&memory, config).unwrap();
    host.set_sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    let mut cx = Cx::replay(&memory, 7);
    let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let listener =
        Listener::listen_with(&host, &mut cx, at, &ListenOptions::default().backlog(8)).unwrap();
    let client = Connection::connect_with(&host, &mut cx, at, &ConnectOptions::default()).unwrap();
    let poll = |cx: &mut Cx| {
        for _ in 0..8 {
            let _ = host.poll(cx);
        }
    };
    poll(&mut cx);
    let server = listener.accept().unwrap();
    assert_eq!(client.send(&host, &mut cx, &[IoSlice::new(b"data")]), Ok(4));
    poll(&mut cx);
    // Each segment with duplicate data requires an immediate ACK.
    let repeated = SegmentHeader {
        seq: SeqNum(client.lock.own().tcb.snd_una().0.wrapping_sub(4)),
        ack: server.lock.own().tcb.snd_una(),
        flags: Flags::ACK,
        window: 1000,
        ..SegmentHeader::default()
    };
    let is_answered = || tcp::is_settled_after_read(&server.lock.own().tcb);
    for (meets_owner, last) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut packet = cx.pool.alloc().expect("the pool has memory");
        assert_eq!(packet.append(&mut cx.pool, b"data"), 4);
        repeated.emit(packet.push(repeated.header_bytes()));
        let entered = cx.enter(&host);
        let reader = cx.reader();
        let rcu = reader.pin();
        let mut last_flow = LastFlow::default();
        let rx = &mut Rx::new(&host, &mut cx, &rcu, &mut last_flow);
        rx.flow.set_last(last);
        let flushed = if meets_owner {
            let owner = server.lock.own();
            let entry = server.lock.softirq(packet.truesize(), u32::MAX);
            let Entry::Held(place) = entry else { panic!("the socket is owned") };
            // The owner releases the socket before the packet is queued.
            drop(owner);
            server.queue(rx, place, PacketDst::None, packet)
        } else {
            server.segment(rx, PacketDst::None, packet)
        };
        assert_eq!(server.lock.backlog_bytes(), 0, "the packet is still on the backlog");
        assert_eq!(flushed, is_answered(), "meets an owner: {meets_owner}, last: {last}");
        assert_eq!(flushed, last && !meets_owner);
        // The receive path does the same after the last packet of a connection.
        server.flush(&host, &mut cx);
        assert!(is_answered());
        drop(rcu);
        cx.leave(entered);
        poll(&mut cx);
    }
    host.shut_down(&mut cx);
}
