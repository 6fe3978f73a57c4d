//! Tests of concurrent access to one socket through its lock.

use std::{
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
};

use sync::Entry;
use tcp::{Flags, SegmentHeader, SeqNum};

use super::*;
use crate::{
    cx::Memory,
    host::{Host, config::HostConfig},
    socket::{
        ConnectOptions, ListenOptions, Listener, Reader,
        rx::{LastFlow, Rx},
    },
    transmit::packet_dst::PacketDst,
};

/// Two ends of a connection over loopback, at time 0 of the clock and without timestamps. The
/// client has sent `data`, which the server has not read.
struct Pair {
    host: Arc<Host>,
    cx: Cx,
    listener: Arc<Listener>,
    client: Arc<Connection>,
    server: Arc<Connection>,
    _memory: Memory,
}

impl Pair {
    fn new(sysctls: &[(&str, &str)]) -> Self {
        let memory = Memory::new(1 << 24);
        let config = HostConfig { cores: 1, ..HostConfig::replay(7) };
        let host = Host::new(&memory, config).unwrap();
        for (name, value) in [("net.ipv4.tcp_timestamps", "0")].iter().chain(sysctls) {
            host.set_sysctl(name, value).unwrap();
        }
        let mut cx = Cx::replay(&memory, 7);
        let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let options = ListenOptions::default().backlog(8);
        let listener = Listener::listen_with(&host, &mut cx, at, &options).unwrap();
        let client =
            Connection::connect_with(&host, &mut cx, at, &ConnectOptions::default()).unwrap();
        poll(&host, &mut cx);
        let server = listener.accept().unwrap();
        assert_eq!(client.send(&host, &mut cx, &[IoSlice::new(b"data")]), Ok(4));
        poll(&host, &mut cx);
        Self { host, cx, listener, client, server, _memory: memory }
    }

    /// Passes a segment of the client to the server, in a batch that the caller flushes.
    fn arrives(&mut self, header: &SegmentHeader, payload: &[u8]) {
        let packet = packet(&mut self.cx, header, payload);
        let entered = self.cx.enter(&self.host);
        let reader = self.cx.reader();
        let rcu = reader.pin();
        let mut last_flow = LastFlow::default();
        let rx = &mut Rx::new(&self.host, &mut self.cx, &rcu, &mut last_flow);
        assert!(!self.server.segment(rx, PacketDst::None, packet), "the batch was flushed");
        drop(rcu);
        self.cx.leave(entered);
    }

    fn not_sent(&self) -> u32 {
        self.server.lock.own().tcb.info().notsent_bytes
    }
}

fn poll(host: &Host, cx: &mut Cx) {
    for _ in 0..8 {
        let _ = host.poll(cx);
    }
}

fn packet(cx: &mut Cx, header: &SegmentHeader, payload: &[u8]) -> Packet {
    let mut packet = cx.pool.alloc().expect("the pool has memory");
    assert_eq!(packet.append(&mut cx.pool, payload), payload.len());
    header.emit(packet.push(header.header_bytes()));
    packet
}

/// The last packet of a poll is queued for an owner that has released the socket meanwhile. The
/// packet is processed at once, but without a flush, and `queue` must report that: the caller then
/// flushes, and the required ACK does not wait for the next packet.
#[test]
fn a_segment_queued_for_an_owner_is_not_reported_as_flushed() {
    let Pair { host, mut cx, listener: _listener, client, server, _memory } = Pair::new(&[]);
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
        let packet = packet(&mut cx, &repeated, b"data");
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
        poll(&host, &mut cx);
    }
    host.shut_down(&mut cx);
}

/// Memory is reclaimed within a batch, between a segment that softirq context processes and one
/// that it queues for a reader (the prequeue).
#[test]
fn a_flush_sends_for_processed_segments_although_memory_was_reclaimed_and_packets_wait() {
    let mut pair = Pair::new(&[("net.quietline.rx_context", "prequeue_drop")]);
    let mut buf = [0; 8];
    assert_eq!(pair.server.recv(&pair.host, &mut pair.cx, &mut buf, false), Ok(4));
    let header = {
        let state = pair.server.lock.own();
        let (seq, ack) = (state.tcb.rcv_nxt(), state.tcb.snd_una());
        SegmentHeader { seq, ack, flags: Flags::ACK, ..SegmentHeader::default() }
    };
    let opens = SegmentHeader { window: 1000, ..header.clone() };
    // The window of the client is closed, and data of the server waits.
    pair.arrives(&header, b"");
    pair.server.flush(&pair.host, &mut pair.cx);
    let sent = pair.server.send(&pair.host, &mut pair.cx, &[IoSlice::new(b"answer")]);
    assert_eq!((sent, pair.not_sent()), (Ok(6), 6));
    let mut reader = Reader::new();
    let Pair { host, cx, server, .. } = &mut pair;
    let waits = server.recv_or_wait(host, cx, &mut reader, &mut [IoSliceMut::new(&mut buf)]);
    assert_eq!(waits, Err(Errno::EAGAIN));

    pair.arrives(&opens, b"");
    pair.server.reclaim_memory(&pair.host, &mut pair.cx);
    pair.arrives(&opens, b"more");
    assert!(!pair.server.lock.own().prequeue.is_empty(), "the data was not queued for the reader");
    pair.server.flush(&pair.host, &mut pair.cx);
    assert_eq!(pair.not_sent(), 0, "the answer waits for the reader");

    let Pair { host, cx, server, .. } = &mut pair;
    let read = server.recv_and_leave(host, cx, &mut reader, &mut [IoSliceMut::new(&mut buf)]);
    assert_eq!((read, &buf[..4]), (Ok(4), &b"more"[..]));
    host.shut_down(cx);
}
