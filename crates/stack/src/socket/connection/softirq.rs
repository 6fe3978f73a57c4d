//! The softirq side of a connection: segments, timers, ICMP errors and completions, for a socket
//! that a thread may own.
//!
//! Above: `receive::tcp_input`, the timers and the tasklet of a core. If no thread owns the socket,
//! the work runs at once; otherwise a packet goes to the backlog, and other work becomes a DEFERRED
//! bit. Linux: `tcp_v4_rcv`, `tcp_write_timer`, `tcp_tasklet_func`, `tcp_v4_err`.
//!
//! Not here: the work itself (`work`), processing of the backlog by the owner (`backlog`).

use std::sync::{PoisonError, atomic::Ordering};

use pkt::{DropReason, Packet};
use sync::{Entry as LockEntry, Work, epoch::Section};
use tcp::{IcmpError, SeqNum};

use super::{
    Connection, DEFERRED_FLUSH, DEFERRED_ICMP, DEFERRED_TIMER, DEFERRED_TRIM, DEFERRED_TSQ,
    PENDING_ICMP_MAX, StreamState,
};
use crate::{
    base::counters::Counter,
    cx::Cx,
    socket::net::Net,
    transmit::{
        dst::DstHandle,
        packet_dst::{Left, OnceDst, PacketDst, leave_rcu},
    },
};

impl Connection {
    /// Softirq: processes one segment for this connection. `flush` must follow at the end of the
    /// batch. With `last`, and if no thread owns the socket, the flush is done at once under the
    /// same lock. Returns whether it was.
    pub(crate) fn segment(
        &self,
        net: &Net,
        cx: &mut Cx,
        rcu: &Section<'_>,
        dst: PacketDst<'_>,
        packet: Packet,
        last: bool,
    ) -> bool {
        let device = packet.meta().rx_device;
        let rx_dst_mode = cx.sysctls().rx_dst_mode;
        let arrival = Arrival::new(rcu, dst);
        let mut left = Left::Nothing;
        self.free_read_packets(cx);
        let leave = |packet: &mut Packet| {
            let serves = self.rx_dst.serves(net, rx_dst_mode, device, rcu);
            left = leave_rcu(packet, arrival.take_dst(), serves);
        };
        let (entry, flushed, newly_ready) = self.bring(net, cx, &arrival, (packet, last), leave);
        left.count(cx);
        arrival.take_dst().release(cx, rcu);
        match entry {
            LockEntry::Ran => self.wake(cx, newly_ready),
            LockEntry::Queued => cx.count(Counter::SocketBacklogQueued, 1),
            LockEntry::Full(packet) => {
                cx.counters().tcp.add(tcp::Counter::TcpExtTCPBacklogDrop, 1);
                self.backlog_drops.fetch_add(1, Ordering::Relaxed);
                cx.drop_packet(DropReason::SocketBacklog, packet);
            }
        }
        flushed
    }

    /// The part of [`segment`](Self::segment) at the lock; `leave` is called with a packet that
    /// will be queued. Returns the result for the packet, whether the socket was flushed, and the
    /// readiness bits to wake for.
    #[inline]
    pub(super) fn bring(
        &self,
        net: &Net,
        cx: &mut Cx,
        arrival: &Arrival<'_>,
        (packet, last): (Packet, bool),
        leave: impl FnOnce(&mut Packet),
    ) -> (LockEntry<Packet>, bool, u8) {
        let bytes = packet.truesize();
        let limit = self.published.backlog_limit.load(Ordering::Relaxed);
        let mut read = None;
        let (mut flushed, mut newly_ready) = (false, 0);
        let entry = self.lock.softirq(packet, bytes, limit, leave, |state, work| {
            let direct = matches!(work, Work::Direct(_));
            // Only for a segment that is processed here. A segment for a reader or from the backlog
            // means that a thread owns the socket, and the slot belongs to that thread.
            if direct && !state.prequeue.has_reader() {
                read = state.tcb.take_read_packet(&cx.counters().tcp);
            }
            state.softirq(self, net, cx, work, Some(arrival));
            // The following flush decides about waking the reader.
            if last && direct {
                state.flush(self, net, cx);
                flushed = true;
            }
            if flushed {
                newly_ready |= state.newly_ready.take();
            }
        });
        debug_assert!(cx.out.is_empty(), "segments of this socket were left in the context");
        if let Some(read) = read {
            cx.pool.free(read);
        }
        (entry, flushed, newly_ready)
    }

    /// Returns the input route for a packet that arrived by `device`, if this connection has a
    /// valid one cached, for early demux to attach.
    #[inline]
    pub(crate) fn rx_dst<'s>(
        &'s self,
        net: &Net,
        device: u32,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        self.rx_dst.check(net, device, rcu)
    }

    /// Softirq: ends the batch. Sends the segments that new acknowledgments allow, or one ACK, and
    /// wakes once.
    pub(crate) fn flush(&self, net: &Net, cx: &mut Cx) {
        let _ = self.deferred(net, cx, DEFERRED_FLUSH);
    }

    /// Softirq: processes the firing of a timer entry of this socket.
    pub(crate) fn on_timer(&self, net: &Net, cx: &mut Cx) {
        self.published.armed.fired(cx.now);
        let _ = self.deferred(net, cx, DEFERRED_TIMER);
    }

    /// Softirq: resumes the socket after completions have reduced its packet memory below TCP.
    pub(crate) fn on_tasklet(&self, net: &Net, cx: &mut Cx) {
        cx.count(Counter::TsqRuns, 1);
        self.wmem.handle(|| {
            // The backlog may hold packets for the reader meanwhile.
            if !matches!(self.deferred(net, cx, DEFERRED_TSQ), LockEntry::Ran) {
                cx.count(Counter::TsqDeferred, 1);
            }
        });
    }

    /// Softirq: processes a report by a router or the peer that a segment of this connection could
    /// not be delivered.
    pub(crate) fn icmp_error(&self, net: &Net, cx: &mut Cx, error: IcmpError, seq: SeqNum) {
        {
            let mut pending = self.icmp.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.len() >= PENDING_ICMP_MAX {
                return cx.counters().tcp.add(tcp::Counter::TcpExtLockDroppedIcmps, 1);
            }
            pending.push((error, seq));
        }
        let _ = self.deferred(net, cx, DEFERRED_ICMP);
    }

    /// Softirq: makes the connection free cached or held packets, because memory is scarce or the
    /// setting has changed.
    pub(crate) fn relieve(&self, net: &Net, cx: &mut Cx) {
        self.free_read_packets(cx);
        let _ = self.deferred(net, cx, DEFERRED_TRIM);
    }

    /// Frees packets that reads have emptied, without the lock. Linux: `sk_defer_free_flush`.
    #[inline]
    pub(in crate::socket) fn free_read_packets(&self, cx: &mut Cx) {
        if self.read_packets.is_empty() {
            return;
        }
        for packet in self.read_packets.take_all() {
            cx.count(Counter::SkbReadAfterUnlock, 1);
            cx.pool.free(packet);
        }
    }

    fn deferred(&self, net: &Net, cx: &mut Cx, bit: u8) -> LockEntry<Packet> {
        let mut newly_ready = 0;
        let entry = self.lock.defer(bit, |state, work| {
            state.softirq(self, net, cx, work, None);
            newly_ready |= state.newly_ready.take();
        });
        self.wake(cx, newly_ready);
        entry
    }
}

/// Context of a packet's arrival at its socket: the read section, and the dst, which is taken once.
pub(crate) struct Arrival<'s> {
    pub(in crate::socket) rcu: &'s Section<'s>,
    pub(in crate::socket) dst: OnceDst<'s>,
}

impl<'s> Arrival<'s> {
    pub(super) const fn new(rcu: &'s Section<'s>, dst: PacketDst<'s>) -> Self {
        Self { rcu, dst: OnceDst::new(dst) }
    }

    #[inline]
    pub(crate) fn take_dst(&self) -> PacketDst<'s> {
        self.dst.take()
    }
}

impl StreamState {
    /// Performs work in softirq context on a socket without owner. A received packet has an
    /// `arrival`.
    #[inline]
    pub(super) fn softirq(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        work: Work<Packet>,
        arrival: Option<&Arrival<'_>>,
    ) {
        if self.prequeue.has_reader() {
            return self.softirq_with_reader(socket, net, cx, work, arrival);
        }
        match (work, arrival) {
            (Work::Direct(packet), Some(arrival)) => {
                self.packet(socket, net, cx, packet, arrival.take_dst());
            }
            (work, _) => self.work(socket, net, cx, work),
        }
    }
}
