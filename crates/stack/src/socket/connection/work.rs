//! Work from softirq context, processed by the owner of the socket: at once, or from the backlog.
//!
//! Above: `softirq`, `backlog`, `modes`. Below: the engine (`tcp::input`, `tcp::on_timer`,
//! `tcp::on_icmp`). Linux: `tcp_v4_do_rcv`, `tcp_release_cb`.
//!
//! Not here: the consequences of the work (`settle`).

use std::sync::PoisonError;

use pkt::Packet;
use sync::Work;
use tcp::{SegmentHeader, SeqNum, State};

use super::{
    Connection, DEFERRED_FLUSH, DEFERRED_ICMP, DEFERRED_TIMER, DEFERRED_TRIM, PendingIcmp,
    RouterAdvice, StreamState, settle::takes_reports,
};
use crate::{
    base::ids::DeviceIndex, cx::Cx, header::strip, socket::net::Net,
    transmit::packet_dst::PacketDst,
};

impl StreamState {
    /// Softirq: ends a batch. `settle` sends the segments that new acknowledgments allow, or one
    /// ACK, and publishes the readiness. If a reader is installed (`modes::prequeue`), this may be
    /// left to the reader.
    #[inline]
    pub(super) fn flush(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        if self.prequeue.has_reader() {
            self.softirq(socket, net, cx, Work::Deferred(DEFERRED_FLUSH));
        } else {
            self.settle(socket, net, cx);
        }
    }

    /// Processes one item from softirq context, at once or from the backlog.
    pub(in crate::socket) fn work(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        work: Work<Packet>,
    ) {
        match work {
            Work::Item(mut packet) => {
                let dst = PacketDst::taken_from(&mut packet);
                self.packet(socket, net, cx, packet, dst);
            }
            Work::Deferred(DEFERRED_TRIM) => self.reclaim_memory(socket, net, cx),
            Work::Deferred(bits) => {
                self.sync_clock(cx);
                // `settle` checks the route entry before it sends. Other work may send segments
                // before `settle`, so the entry is checked here.
                if self.hashed && bits != DEFERRED_FLUSH {
                    self.refresh_dst(socket, net, cx);
                }
                if bits & DEFERRED_ICMP != 0 {
                    self.take_reports(socket, net, cx);
                }
                if bits & DEFERRED_TRIM != 0 {
                    self.tcb.reclaim_memory(&mut cx.tcp());
                }
                if bits & DEFERRED_TIMER != 0 {
                    self.fetch_prequeue(socket, net, cx);
                    tcp::on_timer(&mut self.tcb, &mut cx.tcp());
                }
                self.settle(socket, net, cx);
            }
        }
    }

    /// Frees cached packets, and condenses or drops received data while memory is scarce. Runs
    /// `settle` only if data was dropped.
    fn reclaim_memory(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        if self.tcb.reclaim_memory(&mut cx.tcp()) {
            self.settle(socket, net, cx);
        }
    }

    /// Processes one packet. `dst` is the packet's route entry: borrowed from the receive step, or
    /// the reference that a queued packet holds.
    #[inline]
    pub(in crate::socket) fn packet(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        packet: Packet,
        dst: PacketDst<'_>,
    ) {
        self.sync_clock(cx);
        self.cache_rx_dst(socket, net, cx, DeviceIndex(packet.meta().rx_device), dst);
        let mut header = SegmentHeader::default();
        if let Some(packet) = parse(cx, packet, &mut header) {
            self.input(cx, &header, packet);
        }
        // A duplicate ACK or a reset is transmitted now, because another thread may take the socket
        // before the flush.
        self.transmit(socket, net, cx);
    }

    /// Stores the route entry (dst) of a packet that arrived on `device`, if the connection is
    /// established and has no valid input route entry; otherwise releases the entry.
    #[inline]
    pub(in crate::socket) fn cache_rx_dst(
        &self,
        socket: &Connection,
        net: &Net,
        cx: &Cx,
        device: DeviceIndex,
        dst: PacketDst<'_>,
    ) {
        if self.tcb.state() == State::Established {
            socket.rx_dst.on_packet(net, cx, device, dst);
        } else {
            dst.release_outside(cx);
        }
    }

    /// Processes pending ICMP messages; a smaller path MTU is recorded for all connections to the
    /// destination.
    fn take_reports(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        let pending =
            core::mem::take(&mut *socket.icmp.lock().unwrap_or_else(PoisonError::into_inner));
        for (message, seq) in pending {
            let error = match message {
                PendingIcmp::Error(error) => error,
                PendingIcmp::Redirect(advice) => {
                    self.take_redirect(socket, net, cx, advice, seq);
                    continue;
                }
            };
            let mtu = tcp::on_icmp(&mut self.tcb, &mut cx.tcp(), error, seq);
            if let (Some(mtu), Some(dst)) = (mtu, &self.dst)
                && takes_reports(socket)
                && net.learn_path_mtu(socket.name.tuple.remote.ip(), dst, mtu, cx)
            {
                self.refresh_dst(socket, net, cx);
            }
        }
    }

    /// Applies a redirect for the peer, if it quotes a segment in flight. The next segment looks
    /// its route up again.
    fn take_redirect(
        &self,
        socket: &Connection,
        net: &Net,
        cx: &mut Cx,
        advice: RouterAdvice,
        seq: SeqNum,
    ) {
        let RouterAdvice { device, router, gateway } = advice;
        if tcp::is_credible(&self.tcb, &mut cx.tcp(), seq) {
            let remote = socket.name.tuple.remote.ip();
            let _ = net.redirect(cx, device, (router, remote, gateway));
        }
    }

    #[inline]
    fn input(&mut self, cx: &mut Cx, header: &SegmentHeader, packet: Packet) {
        let verdict = tcp::input(&mut self.tcb, header, packet, &mut cx.tcp());
        if let pkt::Verdict::Drop(reason, packet) = verdict {
            self.drops = self.drops.wrapping_add(1);
            cx.drop_packet(reason, packet);
        }
    }

    /// Like `input`, for a reader that takes the next bytes into `user`; returns their number.
    pub(in crate::socket) fn input_to_user(
        &mut self,
        cx: &mut Cx,
        header: &SegmentHeader,
        packet: Packet,
        user: &mut [u8],
    ) -> usize {
        let (verdict, copied) =
            tcp::input_to_user(&mut self.tcb, header, packet, &mut cx.tcp(), user);
        if let pkt::Verdict::Drop(reason, packet) = verdict {
            self.drops = self.drops.wrapping_add(1);
            cx.drop_packet(reason, packet);
        }
        copied
    }
}

/// Returns the packet without its header, and stores the header's values in `header`, which must be
/// empty.
#[inline]
pub(in crate::socket) fn parse(
    cx: &mut Cx,
    mut packet: Packet,
    header: &mut SegmentHeader,
) -> Option<Packet> {
    match header.read(packet.linear()) {
        Ok(()) => {
            strip(&mut packet, usize::from(header.header_len));
            Some(packet)
        }
        Err(reason) => {
            cx.counters().tcp.add(tcp::Counter::TcpInErrs, 1);
            cx.drop_packet(reason, packet);
            None
        }
    }
}
