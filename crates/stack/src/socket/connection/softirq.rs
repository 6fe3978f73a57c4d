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
use sync::{Admitted, Entry, Queued, Softirq, Work, epoch::Section};
use tcp::{IcmpError, SeqNum};

use super::{
    Connection, DEFERRED_FLUSH, DEFERRED_ICMP, DEFERRED_TIMER, DEFERRED_TRIM, DEFERRED_TSQ,
    PENDING_ICMP_MAX, PendingIcmp, RouterAdvice, StreamState,
};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    socket::{net::Net, rx::Rx},
    transmit::{
        dst::DstHandle,
        packet_dst::{PacketDst, leave_rcu},
    },
};

impl Connection {
    /// Softirq: processes one segment for this connection, or queues it for the thread that owns
    /// the socket. If this is the last packet of a poll and no thread owns the socket, also flushes
    /// under the same lock, and returns true. Otherwise returns false: the caller must call `flush`
    /// at the end of the batch.
    pub(crate) fn segment(&self, rx: &mut Rx<'_, '_>, dst: PacketDst<'_>, packet: Packet) -> bool {
        self.free_read_packets(rx.cx);
        let limit = self.published.backlog_limit.load(Ordering::Relaxed);
        match self.lock.softirq(packet.truesize(), limit) {
            Entry::Free(state) => self.process(rx, state, dst, packet),
            Entry::Held(place) => self.queue(rx, place, dst, packet),
            Entry::Full => self.refuse(rx, dst, packet),
        }
    }

    /// Processes a segment on a socket that no thread owns.
    #[inline]
    fn process(
        &self,
        rx: &mut Rx<'_, '_>,
        mut state: Softirq<'_, StreamState, Packet>,
        dst: PacketDst<'_>,
        packet: Packet,
    ) -> bool {
        let (net, last) = (rx.net, rx.flow.is_last());
        state.run_older(&mut |state, work| state.softirq(self, net, rx.cx, work));
        let mut read = None;
        if state.prequeue.has_reader() {
            state.segment_with_reader(self, rx, dst, packet);
        } else {
            read = state.tcb.take_read_packet(&rx.cx.counters().tcp);
            state.packet(self, net, rx.cx, packet, dst);
        }
        let mut newly_ready = 0;
        if last {
            state.flush(self, net, rx.cx);
            newly_ready = state.newly_ready.take();
        }
        // Without a flush here, the flush at the end of the batch decides whether the reader is
        // woken.
        state.leave(&mut |state, work| {
            state.softirq(self, net, rx.cx, work);
            if last {
                newly_ready |= state.newly_ready.take();
            }
        });
        debug_assert!(rx.cx.out.is_empty(), "segments of this socket were left in the context");
        if let Some(read) = read {
            rx.cx.pool.free(read);
        }
        self.wake(rx.cx, newly_ready);
        last
    }

    /// Queues a segment for the thread that owns the socket. The segment outlives the read section,
    /// so it may keep its route entry (dst) only with a reference.
    #[cold]
    pub(super) fn queue(
        &self,
        rx: &mut Rx<'_, '_>,
        place: Admitted<'_, StreamState, Packet>,
        dst: PacketDst<'_>,
        mut packet: Packet,
    ) -> bool {
        let device = DeviceIndex(packet.meta().rx_device);
        let replaced =
            self.rx_dst.replaces_packet_dst(rx.net, rx.cx.sysctls().rx_dst_mode, device, rx.rcu);
        leave_rcu(&mut packet, dst, replaced).count(rx.cx);
        let net = rx.net;
        let queued = place.queue(packet, &mut |state, work| state.softirq(self, net, rx.cx, work));
        if queued == Queued::ForHolder {
            rx.cx.count(Counter::SocketBacklogQueued, 1);
        }
        false
    }

    /// Drops a segment for which the backlog has no space.
    #[cold]
    fn refuse(&self, rx: &mut Rx<'_, '_>, dst: PacketDst<'_>, packet: Packet) -> bool {
        dst.release(rx.cx, rx.rcu);
        rx.cx.counters().tcp.add(tcp::Counter::TcpExtTCPBacklogDrop, 1);
        self.backlog_drops.fetch_add(1, Ordering::Relaxed);
        rx.cx.drop_packet(DropReason::SocketBacklog, packet);
        false
    }

    /// Returns the cached input route entry, if it is valid for a packet that arrived on `device`.
    /// IP input uses the entry if early demux has found this connection.
    #[inline]
    pub(crate) fn rx_dst<'s>(
        &'s self,
        net: &Net,
        device: DeviceIndex,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        self.rx_dst.check(net, device, rcu)
    }

    /// Softirq: ends the batch. Sends the segments that new acknowledgments allow, or one ACK, and
    /// wakes the waiting threads once.
    pub(crate) fn flush(&self, net: &Net, cx: &mut Cx) {
        let _ = self.deferred(net, cx, DEFERRED_FLUSH);
    }

    /// Softirq: handles an expired timer entry of this socket.
    pub(crate) fn on_timer(&self, net: &Net, cx: &mut Cx) {
        self.published.armed.fired(cx.now);
        let _ = self.deferred(net, cx, DEFERRED_TIMER);
    }

    /// Softirq: resumes the socket after completions have reduced the memory of its uncompleted
    /// packets.
    pub(crate) fn on_tasklet(&self, net: &Net, cx: &mut Cx) {
        cx.count(Counter::TsqRuns, 1);
        self.wmem.handle(|| {
            if self.deferred(net, cx, DEFERRED_TSQ) == Queued::ForHolder {
                cx.count(Counter::TsqDeferred, 1);
            }
        });
    }

    /// Softirq: processes a report by a router or the peer that a segment of this connection could
    /// not be delivered.
    pub(crate) fn icmp_error(&self, net: &Net, cx: &mut Cx, error: IcmpError, seq: SeqNum) {
        self.icmp_message(net, cx, PendingIcmp::Error(error), seq);
    }

    /// Softirq: processes a redirect that quotes a segment with `seq`.
    pub(crate) fn redirect(&self, net: &Net, cx: &mut Cx, advice: RouterAdvice, seq: SeqNum) {
        self.icmp_message(net, cx, PendingIcmp::Redirect(advice), seq);
    }

    fn icmp_message(&self, net: &Net, cx: &mut Cx, message: PendingIcmp, seq: SeqNum) {
        {
            let mut pending = self.icmp.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.len() >= PENDING_ICMP_MAX {
                return cx.counters().tcp.add(tcp::Counter::TcpExtLockDroppedIcmps, 1);
            }
            pending.push((message, seq));
        }
        let _ = self.deferred(net, cx, DEFERRED_ICMP);
    }

    /// Softirq: frees packets that reads have emptied, and makes the owner reclaim the other spare
    /// memory of the connection, because memory is scarce or the setting has changed.
    pub(crate) fn reclaim_memory(&self, net: &Net, cx: &mut Cx) {
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

    fn deferred(&self, net: &Net, cx: &mut Cx, bit: u8) -> Queued {
        let mut newly_ready = 0;
        let queued = self.lock.defer(bit, |state, work| {
            state.softirq(self, net, cx, work);
            newly_ready |= state.newly_ready.take();
        });
        self.wake(cx, newly_ready);
        queued
    }
}

impl StreamState {
    /// Processes one item of the backlog, or deferred work, in softirq context.
    #[inline]
    pub(super) fn softirq(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        work: Work<Packet>,
    ) {
        if self.prequeue.has_reader() {
            self.softirq_with_reader(socket, net, cx, work);
        } else {
            self.work(socket, net, cx, work);
        }
    }
}
