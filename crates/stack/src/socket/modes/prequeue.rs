//! The prequeue: packets that softirq context leaves, unprocessed, to a thread that waits in `recv`.
//!
//! Above: `reader.rs`, which installs a reader and processes what it finds. Linux before 4.14: `tcp_prequeue`,
//! `tcp_prequeue_process`, `struct ucopy`.
//!
//! The thread that waits has a CPU to give: it runs TCP itself, copies payload straight from the packet into its buffer,
//! and acknowledges. Softirq context only queues and wakes. `net.quietline.rx_context` says whether, and what happens to
//! the path of a packet that so outlives the RCU section it was received in ([`RxContext`]).
//!
//! - Receive queue, prequeue, backlog: each is older than the next, and is processed before it.
//! - Packets wait here only for an installed reader, who is woken for the first of them, and behind a timer: the
//!   delayed-ACK timer fetches them if the reader does not come.
//! - Their memory is bounded by the receive buffer, apart from what the receive queue holds; what exceeds it is processed
//!   in softirq, so nothing is lost.
//!
//! Everything here happens under the socket lock. With `bh`, the default, there is never a reader, and all of it is the one
//! test in `StreamState::softirq`.

use std::num::NonZeroU64;

use pkt::{Packet, PacketList};
use sync::Work;
use tcp::{SegmentHeader, wire::header::HEADER_BYTES_MIN};

use crate::{
    base::counters::Counter,
    cx::Cx,
    host::Host,
    socket::connection::{DEFERRED_FLUSH, StreamState, TcpSocket, parse, softirq::Arrival},
    sysctl::modes::RxContext,
    transmit::packet_dst::{PacketDst, leave_rcu},
};

/// With [`RxContext::PrequeueDropLimited`], the packet that ends the waiting: about 60 µs of work, where a receive buffer
/// of megabytes would let thousands wait for softirq context to process them in one go.
const LIMIT_PACKETS: usize = 32;

/// What a thread that waits is known by.
pub(super) type ReaderId = NonZeroU64;

/// See the module head.
#[derive(Debug, Default)]
pub(crate) struct Prequeue {
    /// The thread that will process the packets (Linux: `ucopy.task`).
    reader: Option<ReaderId>,
    packets: PacketList,
    /// Sum of `truesize` (Linux: `ucopy.memory`).
    memory: u32,
    /// Softirq context has processed something itself, so there is something to send or to tell.
    touched: bool,
    /// Readers installed so far.
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

    /// A thread begins to wait. `None` when another one does already: it stays the only one.
    pub(super) fn install(&mut self) -> Option<ReaderId> {
        if self.reader.is_some() {
            return None;
        }
        self.installed += 1;
        self.reader = NonZeroU64::new(self.installed);
        self.reader
    }

    /// The reader waits no more. It has emptied the queue before.
    pub(super) fn remove_reader(&mut self) {
        debug_assert!(self.is_empty(), "packets wait for nobody");
        self.reader = None;
    }

    fn push(&mut self, packet: Packet) {
        self.memory += packet.truesize();
        self.packets.push_back(packet);
    }

    /// Takes everything.
    fn take(&mut self) -> PacketList {
        self.memory = 0;
        core::mem::take(&mut self.packets)
    }

    /// Panics unless the sums and promises of the module head hold.
    pub(crate) fn check(&mut self) {
        let mut packets = core::mem::take(&mut self.packets);
        let mut memory = 0;
        while let Some(packet) = packets.pop_front() {
            memory += packet.truesize();
            self.packets.push_back(packet);
        }
        assert_eq!(memory, self.memory, "PQ3: memory is the sum of truesize");
        assert!(self.is_empty() || self.has_reader(), "PQ2: packets wait for nobody");
    }
}

impl StreamState {
    #[cold]
    pub(crate) fn softirq_with_reader(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &mut Cx,
        work: Work<Packet>,
        arrival: Option<&Arrival<'_>>,
    ) {
        match work {
            Work::Direct(packet) => {
                self.synchronise(cx);
                if let Err(packet) = self.enqueue(socket, host, cx, packet, arrival) {
                    self.prequeue.touched = true;
                    let dst = arrival.map(Arrival::take_dst).unwrap_or_default();
                    self.packet(socket, host, cx, packet, dst);
                }
            }
            Work::Item(packet) => {
                self.synchronise(cx);
                // From the backlog: it has left its dst already.
                if let Err(packet) = self.enqueue(socket, host, cx, packet, None) {
                    self.prequeue.touched = true;
                    self.work(socket, host, cx, Work::Item(packet));
                }
            }
            // A batch that went to the reader altogether: what it leads to is the reader's to send and to tell.
            Work::Deferred(DEFERRED_FLUSH)
                if !self.prequeue.is_empty() && !self.prequeue.touched => {}
            deferred @ Work::Deferred(_) => {
                self.prequeue.touched = false;
                self.work(socket, host, cx, deferred);
            }
        }
    }

    /// Queues a packet for the reader, or gives it back to be processed now.
    fn enqueue(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &mut Cx,
        mut packet: Packet,
        arrival: Option<&Arrival<'_>>,
    ) -> Result<(), Packet> {
        if !cx.sysctls().has_prequeue() {
            self.drain_prequeue(socket, host, cx);
            self.prequeue.remove_reader();
            return Err(packet);
        }
        if self.prequeue.is_empty() && !has_payload(&packet) {
            // The reader waits for data: an ACK is no reason to wake it.
            return Err(packet);
        }
        if let Some(Arrival { rcu, dst }) = arrival {
            let settings = cx.sysctls();
            let serves = settings.rx_context != RxContext::PrequeueRef
                && socket.rx_dst.serves(host, settings.rx_dst_mode, packet.meta().rx_device, rcu);
            leave_rcu(&mut packet, dst.take(), serves).count(cx);
        }
        self.prequeue.push(packet);
        cx.count(Counter::PrequeueQueued, 1);
        if self.is_prequeue_full(cx.sysctls().rx_context) {
            let count = self.drain_prequeue(socket, host, cx);
            self.prequeue.touched = true;
            let counters = &cx.counters().tcp;
            counters.add(tcp::Counter::TcpExtTCPPrequeueDropped, count as u64);
        } else if self.prequeue.packets.len() == 1 {
            self.publish_prequeued(socket);
            self.tcb.watch_reader(&cx.tcp());
            socket.arm(host, self.tcb.next_deadline());
        }
        Ok(())
    }

    /// The packet queued last is one too many.
    fn is_prequeue_full(&self, context: RxContext) -> bool {
        let Prequeue { packets, memory, .. } = &self.prequeue;
        if context == RxContext::PrequeueDropLimited {
            let memory = memory.saturating_add(self.tcb.rmem_alloc());
            packets.len() >= LIMIT_PACKETS || memory > self.tcb.rcvbuf()
        } else {
            *memory > self.tcb.rcvbuf()
        }
    }

    /// Processes what waits, and answers how many packets that was: whoever holds the socket may, if it may not do so for
    /// younger packets before. Whoever does settles afterwards.
    pub(crate) fn drain_prequeue(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) -> usize {
        if self.prequeue.is_empty() {
            return 0;
        }
        self.process_prequeue(socket, host, cx, &mut []).0
    }

    /// The timer that is to acknowledge finds that nobody has processed what came: it does so itself. The reader is not
    /// trusted with more until it comes again. Differs from Linux, where it is, and where a reader that died would delay
    /// every packet to come.
    pub(crate) fn fetch_prequeue(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        if self.prequeue.is_empty() || !self.tcb.is_delack_due(cx.now) {
            return;
        }
        cx.counters().tcp.add(tcp::Counter::TcpExtTCPSchedulerFailed, 1);
        self.drain_prequeue(socket, host, cx);
        self.prequeue.remove_reader();
    }

    /// The reader processes what waits for it, and takes what is next in the stream into `user`; answers how many bytes.
    pub(super) fn read_prequeue(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &mut Cx,
        user: &mut [u8],
    ) -> usize {
        if self.prequeue.is_empty() {
            return 0;
        }
        let (_, copied) = self.process_prequeue(socket, host, cx, user);
        let counters = &cx.counters().tcp;
        counters.add(tcp::Counter::TcpExtTCPPrequeued, 1);
        counters.add(tcp::Counter::TcpExtTCPDirectCopyFromPrequeue, copied as u64);
        if copied > 0 {
            self.tcb.on_direct_read(&mut cx.tcp(), copied);
        }
        copied
    }

    /// Processes everything in order. Answers the packets, and the bytes that went to `user`.
    fn process_prequeue(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &mut Cx,
        user: &mut [u8],
    ) -> (usize, usize) {
        self.synchronise(cx);
        let mut packets = self.prequeue.take();
        self.retract_prequeued();
        let count = packets.len();
        cx.count(length_counter(count), 1);
        let mut copied = 0;
        while let Some(mut packet) = packets.pop_front() {
            let dst = PacketDst::taken_from(&mut packet);
            self.remember(socket, host, cx, packet.meta().rx_device, dst);
            let mut header = SegmentHeader::default();
            if let Some(packet) = parse(cx, packet, &mut header) {
                copied += self.input_to_user(cx, &header, packet, &mut user[copied..]);
            }
            // A duplicate ACK or a reset must not be merged with the next.
            self.transmit(socket, host, cx);
        }
        (count, copied)
    }
}

/// TCP will find data in this packet, whose header is still in front.
fn has_payload(packet: &Packet) -> bool {
    let header = packet.linear().get(..HEADER_BYTES_MIN);
    let header_len = header.map_or(0, |header| usize::from(header[12] >> 4) * 4);
    packet.len() > header_len
}

/// The histogram of lengths, in powers of two.
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
