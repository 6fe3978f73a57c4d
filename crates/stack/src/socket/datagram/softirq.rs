//! The softirq side of a datagram socket: datagrams of one batch, ICMP reports and completions, for
//! a socket that a thread may own.
//!
//! Above: `receive::udp_input`, `receive::icmp_input`, the tasklet of a core. Linux:
//! `udp_queue_rcv_one_skb`, `sock_def_readable`, `sock_wfree`.

use std::sync::atomic::Ordering;

use pkt::{DropReason, Packet, PacketList};
use sync::{Entry, Softirq, Work};
use tcp::Readiness;

use super::{DEFERRED_REPORT, DEFERRED_TSQ, DatagramSocket, DatagramState, SocketKind};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    header::ip,
    socket::net::Net,
    transmit::packet_dst::PacketDst,
};

impl DatagramSocket {
    /// Softirq: delivers the datagrams of one batch, whose headers are stripped and which carry no
    /// route entry (dst). If no thread owns the socket, they are queued under a single acquisition
    /// of the lock, and readers are woken once.
    pub(crate) fn deliver(&self, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            let limit = self.backlog_limit.load(Ordering::Relaxed);
            match self.lock.softirq(packet.truesize(), limit) {
                Entry::Free(state) => return self.deliver_now(cx, state, packet, list),
                Entry::Held(place) => {
                    let mut newly_ready = 0;
                    let _ = place.queue(packet, &mut |state, work| {
                        state.work(self, cx, work);
                        newly_ready |= state.newly_ready.take();
                    });
                    self.wake(cx, newly_ready);
                }
                Entry::Full => {
                    self.backlog_drops.fetch_add(1, Ordering::Relaxed);
                    self.refuse(cx, packet);
                }
            }
        }
    }

    fn deliver_now(
        &self,
        cx: &mut Cx,
        mut state: Softirq<'_, DatagramState, Packet>,
        first: Packet,
        list: &mut PacketList,
    ) {
        state.run_older(&mut |state, work| state.work(self, cx, work));
        state.enqueue(self, cx, first);
        while let Some(packet) = list.pop_front() {
            state.enqueue(self, cx, packet);
        }
        state.publish(self, cx);
        let mut newly_ready = state.newly_ready.take();
        state.leave(&mut |state, work| {
            state.work(self, cx, work);
            newly_ready |= state.newly_ready.take();
        });
        self.wake(cx, newly_ready);
    }

    /// Softirq: stores the input route entry of a datagram that arrived on `device`, if the socket
    /// is connected. Early demux attaches the entry to later datagrams. If a thread owns the
    /// socket, the entry is only released, and a later datagram stores its entry.
    #[cold]
    pub(crate) fn cache_rx_dst(
        &self,
        net: &Net,
        cx: &mut Cx,
        device: DeviceIndex,
        dst: PacketDst<'_>,
    ) {
        match self.lock.softirq(0, u32::MAX) {
            Entry::Free(mut state) => {
                state.run_older(&mut |state, work| state.work(self, cx, work));
                if state.remote.is_some() && !state.closed {
                    self.rx_dst.on_packet(net, cx, device, dst);
                } else {
                    dst.release_outside(cx);
                }
                let mut newly_ready = state.newly_ready.take();
                state.leave(&mut |state, work| {
                    state.work(self, cx, work);
                    newly_ready |= state.newly_ready.take();
                });
                self.wake(cx, newly_ready);
            }
            Entry::Held(_) | Entry::Full => dst.release_outside(cx),
        }
    }

    /// Softirq: publishes the socket after packets of it have completed.
    pub(crate) fn on_tasklet(&self, cx: &mut Cx) {
        self.wmem.handle(|| self.deferred(cx, DEFERRED_TSQ));
    }

    pub(super) fn deferred(&self, cx: &mut Cx, bit: u8) {
        let mut newly_ready = 0;
        let _ = self.lock.defer(bit, |state, work| {
            state.work(self, cx, work);
            newly_ready |= state.newly_ready.take();
        });
        self.wake(cx, newly_ready);
    }
}

impl DatagramState {
    /// Processes one item from softirq context, at once or from the backlog.
    pub(super) fn work(&mut self, socket: &DatagramSocket, cx: &mut Cx, work: Work<Packet>) {
        match work {
            Work::Item(packet) => self.enqueue(socket, cx, packet),
            Work::Deferred(bits) => {
                if bits & DEFERRED_REPORT != 0 {
                    self.take_reports(socket);
                }
            }
        }
        self.publish(socket, cx);
    }

    /// Queues one datagram, or drops it if the receive buffer is full or the host has no memory for
    /// datagrams.
    #[inline]
    fn enqueue(&mut self, socket: &DatagramSocket, cx: &mut Cx, packet: Packet) {
        if self.closed {
            return cx.drop_packet(DropReason::SocketClosed, packet);
        }
        let rmem = self.queue.rmem();
        // As in Linux, the last datagram may exceed the limit.
        if rmem > self.rcvbuf {
            self.drops = self.drops.wrapping_add(1);
            return socket.refuse(cx, packet);
        }
        if !self.charge(cx, rmem.saturating_add(packet.truesize())) {
            self.drops = self.drops.wrapping_add(1);
            socket.count_drop(cx, &packet, Counter::UdpMemErrors);
            return cx.drop_packet(DropReason::NoMemory, packet);
        }
        let joins = socket.kind == SocketKind::Udp && socket.flags.gro();
        self.queue.push(&mut cx.pool, packet, self.rcvbuf, joins);
        if socket.watched.load(Ordering::Relaxed) {
            self.newly_ready.note(Readiness::READ.bits());
        }
    }
}

impl DatagramSocket {
    /// Drops a datagram for which the receive buffer has no space.
    #[cold]
    fn refuse(&self, cx: &mut Cx, packet: Packet) {
        self.count_drop(cx, &packet, Counter::UdpRcvbufErrors);
        cx.drop_packet(DropReason::SocketRcvBuff, packet);
    }

    /// Counts a received datagram that is dropped for the reason `counter`. Linux counts the drops
    /// of ping sockets only for each socket.
    fn count_drop(&self, cx: &Cx, packet: &Packet, counter: Counter) {
        if self.kind == SocketKind::Udp {
            let v4 = ip::is_v4(packet.network_header());
            cx.count(counter.of_version(v4), 1);
            cx.count(Counter::UdpInErrors.of_version(v4), 1);
        }
    }
}
