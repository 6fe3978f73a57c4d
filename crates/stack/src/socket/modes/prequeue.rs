//! The prequeue: packets that softirq context leaves unprocessed for a thread that waits in `recv`.
//!
//! Above: `reader.rs`, which installs a waiting thread as reader and processes the queue. Linux
//! before 4.14: `tcp_prequeue`, `tcp_prequeue_process`, `struct ucopy`.
//!
//! The waiting thread has CPU time to spare: it runs TCP itself, copies payload from the packet
//! directly into its buffer, and acknowledges. Softirq context only queues the packets and wakes
//! the thread. `net.quietline.rx_context` enables the prequeue, unless `net.ipv4.tcp_low_latency`
//! is on. The setting also selects the treatment of a packet's route entry (dst), because a queued
//! packet outlives the RCU section in which it was received ([`RxContext`]).
//!
//! - The receive queue has the oldest packets, the prequeue newer ones, and the backlog the newest.
//!   Older packets are processed first.
//! - Packets are queued here only for an installed reader, which is woken for the first of them. If
//!   the reader does not process them in time, the delayed-ACK timer does.
//! - The size of the receive buffer bounds their memory: with `PrequeueDropLimited` together with
//!   the receive queue, otherwise apart from it. At the bound, softirq context processes all of
//!   them, so none is lost.
//!
//! All functions here run under the socket lock. With `bh`, the default, no reader is installed,
//! and the only cost is a few tests of `has_reader` and `is_empty`.

use std::num::NonZeroU64;

use pkt::{Packet, PacketList};
use sync::Work;
use tcp::{SegmentHeader, wire::header::HEADER_BYTES_MIN};

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    socket::connection::{Connection, DEFERRED_FLUSH, StreamState, parse},
    socket::{net::Net, rx::Rx},
    sysctl::modes::RxContext,
    transmit::packet_dst::{PacketDst, leave_rcu},
};

/// Number of packets at which softirq context processes the queue with
/// [`RxContext::PrequeueDropLimited`]: about 60 µs of work. A receive buffer of megabytes would let
/// thousands of packets wait, which softirq context would then process at once.
const LIMIT_PACKETS: usize = 32;

/// Identifier of a waiting thread.
pub(super) type ReaderId = NonZeroU64;

/// Prequeue of one connection.
#[derive(Debug, Default)]
pub(crate) struct Prequeue {
    /// Thread that will process the packets (Linux: `ucopy.task`).
    reader: Option<ReaderId>,
    packets: PacketList,
    /// Sum of `truesize` (Linux: `ucopy.memory`).
    memory: u32,
    /// Whether softirq context has processed a packet itself, so that ACKs or notifications are
    /// pending.
    touched: bool,
    /// Number of readers installed so far.
    installed: u64,
}

impl Prequeue {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(crate) fn has_reader(&self) -> bool {
        self.reader.is_some()
    }

    pub(super) fn is_reader(&self, id: Option<ReaderId>) -> bool {
        id.is_some() && self.reader == id
    }

    /// Installs a waiting thread as the reader. `None` if another thread is already installed.
    pub(super) fn install(&mut self) -> Option<ReaderId> {
        if self.reader.is_some() {
            return None;
        }
        self.installed += 1;
        self.reader = NonZeroU64::new(self.installed);
        self.reader
    }

    /// Removes the reader. The queue must be empty.
    pub(super) fn remove_reader(&mut self) {
        debug_assert!(self.is_empty(), "packets wait without a reader");
        self.reader = None;
    }

    fn push(&mut self, packet: Packet) {
        self.memory += packet.truesize();
        self.packets.push_back(packet);
    }

    /// Takes all packets.
    fn take(&mut self) -> PacketList {
        self.memory = 0;
        core::mem::take(&mut self.packets)
    }

    /// Verifies the memory sum and the invariants of the prequeue.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn check(&mut self) {
        let mut packets = core::mem::take(&mut self.packets);
        let mut memory = 0;
        while let Some(packet) = packets.pop_front() {
            memory += packet.truesize();
            self.packets.push_back(packet);
        }
        assert_eq!(memory, self.memory, "PQ3: `memory` is not the sum of truesize");
        assert!(self.is_empty() || self.has_reader(), "PQ2: packets wait without a reader");
    }
}

impl StreamState {
    /// Softirq: queues a segment for the reader, or processes the segment if it need not wait for
    /// the reader.
    #[cold]
    pub(crate) fn segment_with_reader(
        &mut self,
        socket: &Connection,
        rx: &mut Rx<'_, '_>,
        dst: PacketDst<'_>,
        mut packet: Packet,
    ) {
        let net = rx.net;
        self.sync_clock(rx.cx);
        if !self.is_for_reader(socket, net, rx.cx, &packet) {
            self.prequeue.touched = true;
            return self.packet(socket, net, rx.cx, packet, dst);
        }
        let (device, settings) = (DeviceIndex(packet.meta().rx_device), rx.cx.sysctls());
        let replaced = settings.rx_context != RxContext::PrequeueRef
            && socket.rx_dst.replaces_packet_dst(net, settings.rx_dst_mode, device, rx.rcu);
        leave_rcu(&mut packet, dst, replaced).count(rx.cx);
        self.enqueue(socket, net, rx.cx, packet);
    }

    /// Softirq: processes one item of the backlog, or deferred work, on a connection with a reader.
    #[cold]
    pub(crate) fn softirq_with_reader(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        work: Work<Packet>,
    ) {
        match work {
            Work::Item(packet) => {
                self.sync_clock(cx);
                if self.is_for_reader(socket, net, cx, &packet) {
                    // A packet of the backlog has left its read section before.
                    self.enqueue(socket, net, cx, packet);
                } else {
                    self.prequeue.touched = true;
                    self.work(socket, net, cx, Work::Item(packet));
                }
            }
            // The whole batch was queued for the reader, which will transmit and notify.
            Work::Deferred(DEFERRED_FLUSH)
                if !self.prequeue.is_empty() && !self.prequeue.touched => {}
            deferred @ Work::Deferred(_) => {
                self.prequeue.touched = false;
                self.work(socket, net, cx, deferred);
            }
        }
    }

    /// Returns whether `packet` must wait for the reader. If the setting was changed and allows no
    /// reader, processes the queue and removes the reader.
    fn is_for_reader(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        packet: &Packet,
    ) -> bool {
        if !cx.sysctls().has_prequeue() {
            self.drain_prequeue(socket, net, cx);
            self.prequeue.remove_reader();
            return false;
        }
        // The reader waits for data, so a pure ACK does not wake it.
        !self.prequeue.is_empty() || has_payload(packet)
    }

    /// Queues a packet for the reader.
    fn enqueue(&mut self, socket: &Connection, net: &Net, cx: &mut Cx, packet: Packet) {
        self.prequeue.push(packet);
        cx.count(Counter::PrequeueQueued, 1);
        if self.is_prequeue_full(cx.sysctls().rx_context) {
            let count = self.drain_prequeue(socket, net, cx);
            self.prequeue.touched = true;
            let counters = &cx.counters().tcp;
            counters.add(tcp::Counter::TcpExtTCPPrequeueDropped, count as u64);
        } else if self.prequeue.packets.len() == 1 {
            self.publish_prequeued(socket);
            self.tcb.arm_prequeue_delack(&cx.tcp());
            socket.arm(net, self.tcb.next_deadline());
        }
    }

    /// Returns whether the queue has reached its limit of packets or exceeds its limit of memory.
    fn is_prequeue_full(&self, context: RxContext) -> bool {
        let Prequeue { packets, memory, .. } = &self.prequeue;
        if context == RxContext::PrequeueDropLimited {
            let memory = memory.saturating_add(self.tcb.rmem_alloc());
            packets.len() >= LIMIT_PACKETS || memory > self.tcb.rcvbuf()
        } else {
            *memory > self.tcb.rcvbuf()
        }
    }

    /// Processes the queued packets and returns their number. Any owner of the socket may call this
    /// before it processes younger packets, and must call `settle` afterwards.
    pub(crate) fn drain_prequeue(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) -> usize {
        if self.prequeue.is_empty() {
            return 0;
        }
        self.process_prequeue(socket, net, cx, &mut []).0
    }

    /// Processes the queue if the delayed-ACK timer expires before the reader has done so, and
    /// removes the reader, which is installed again when it waits next. Differs from Linux, which
    /// keeps the reader: a reader that has stopped waiting would then delay every later packet.
    pub(crate) fn fetch_prequeue(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        if self.prequeue.is_empty() || !self.tcb.is_delack_due(cx.now) {
            return;
        }
        cx.counters().tcp.add(tcp::Counter::TcpExtTCPSchedulerFailed, 1);
        self.drain_prequeue(socket, net, cx);
        self.prequeue.remove_reader();
    }

    /// Processes the queue for the reader, copies the next bytes of the stream into `user`, and
    /// returns their number.
    pub(super) fn read_prequeue(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        user: &mut [u8],
    ) -> usize {
        if self.prequeue.is_empty() {
            return 0;
        }
        let (_, copied) = self.process_prequeue(socket, net, cx, user);
        let counters = &cx.counters().tcp;
        counters.add(tcp::Counter::TcpExtTCPPrequeued, 1);
        counters.add(tcp::Counter::TcpExtTCPDirectCopyFromPrequeue, copied as u64);
        if copied > 0 {
            self.tcb.on_direct_read(&mut cx.tcp(), copied);
        }
        copied
    }

    /// Processes all packets in order. Returns the number of packets, and of bytes copied to
    /// `user`.
    fn process_prequeue(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        user: &mut [u8],
    ) -> (usize, usize) {
        self.sync_clock(cx);
        let mut packets = self.prequeue.take();
        self.retract_prequeued();
        let count = packets.len();
        cx.count(length_counter(count), 1);
        let mut copied = 0;
        while let Some(mut packet) = packets.pop_front() {
            let dst = PacketDst::taken_from(&mut packet);
            self.cache_rx_dst(socket, net, cx, DeviceIndex(packet.meta().rx_device), dst);
            let mut header = SegmentHeader::default();
            if let Some(packet) = parse(cx, packet, &mut header) {
                copied += self.input_to_user(cx, &header, packet, &mut user[copied..]);
            }
            // Transmit now: a duplicate ACK or a reset must not be merged with the output of the
            // next packet.
            self.transmit(socket, net, cx);
        }
        (count, copied)
    }
}

/// Returns whether the packet, whose header is still in front, has payload.
fn has_payload(packet: &Packet) -> bool {
    let header = packet.linear().get(..HEADER_BYTES_MIN);
    let header_len = header.map_or(0, |header| usize::from(header[12] >> 4) * 4);
    packet.len() > header_len
}

/// Returns the counter of the length histogram, in powers of two.
fn length_counter(packets: usize) -> Counter {
    match packets {
        0..2 => Counter::PrequeueLength1,
        2..4 => Counter::PrequeueLength2,
        4..8 => Counter::PrequeueLength4,
        8..16 => Counter::PrequeueLength8,
        16..32 => Counter::PrequeueLength16,
        _ => Counter::PrequeueLength32,
    }
}
