//! `settle`: after a change of a connection's `Tcb`, brings all state outside the `Tcb` up to date.
//!
//! Segments are transmitted with the socket's route entry (dst), the timer is armed, a closed
//! connection leaves the tables, memory is charged, and readiness is published. Linux:
//! `tcp_push_pending_frames`, `__ip_queue_xmit` down to the route, `inet_csk_destroy_sock`,
//! `tcp_time_wait`.
//!
//! Not here: causes of the change (`softirq`, `send`, `recv`, `calls`), wakes (`Connection::wake`).

use std::sync::Arc;

use pkt::Instant;
use tcp::{HostQueue, State, TimeWait};

use super::{Connection, StreamState};
use crate::{
    base::{counters::Counter, tcp_memory::PAGE_BYTES},
    cx::Cx,
    device::{DeviceQueue, QueueId},
    header::ip::protocol,
    socket::net::Net,
    socket::{
        TimeWaitSocket,
        demux::{Entry, FlowName},
        wmem::{self, Wmem},
    },
    transmit::{
        ip_output::{self, MtuDiscover},
        link_output,
        qdisc::NetXmit,
    },
};

impl StreamState {
    /// Settles the connection at the end of a call. A call that has only read data, and owes no ACK
    /// now, causes no segment and only publishes the state. A full `settle` could also send,
    /// slightly too early, data that pacing or TCP Small Queues hold back; an armed timer or a
    /// completion sends that data anyway (Linux: `tcp_cleanup_rbuf` sends only an ACK).
    #[inline]
    pub(in crate::socket) fn settle_call(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        let only_read = core::mem::take(&mut self.only_read);
        if only_read && tcp::is_settled_after_read(&self.tcb) && self.hashed {
            self.publish(socket, cx);
        } else {
            self.settle(socket, net, cx);
        }
    }

    /// Brings all state outside the `Tcb` up to date.
    pub(in crate::socket) fn settle(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        self.sync_clock(cx);
        // A timer may have left segments in `cx.out`, which must be transmitted.
        let rests = self.is_plain() && cx.out.is_empty();
        if rests && tcp::output_nothing(&mut self.tcb, cx.now) {
            self.confirm_neighbor(cx.now);
        } else {
            self.settle_state(socket, net, cx);
        }
        if !self.prequeue.is_empty() {
            // If an ACK was sent above, it has canceled the delayed-ACK timer, which limits the
            // time that packets wait in the prequeue for the application to read. The timer is
            // armed again.
            self.tcb.arm_prequeue_delack(&cx.tcp());
        }
        debug_assert!(cx.out.is_empty(), "segments were not transmitted");
        socket.arm(net, self.tcb.next_deadline());
        self.publish(socket, cx);
    }

    /// Returns whether the connection is in the tables, is not an orphan (a connection that the
    /// application has closed), and has no Fast Open handshake to report.
    const fn is_plain(&self) -> bool {
        self.hashed && !self.orphan && !self.records_fast_open && self.early.is_none()
    }

    /// Sends, and updates the tables according to the connection's state.
    #[inline(never)]
    fn settle_state(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        if self.tcb.take_negative_advice() {
            self.dst = None;
        }
        // The route entry is checked before segmentation, because the path MTU may have changed.
        if self.hashed {
            self.refresh_dst(socket, net, cx);
        }
        self.output(socket, net, cx);
        self.confirm_neighbor(cx.now);
        match self.tcb.state() {
            State::Close => self.unhash(socket, net),
            State::TimeWait => self.enter_time_wait(socket, net, cx),
            _ => {}
        }
        self.count_orphan(socket, net, cx);
        self.report_fast_open(socket, net, cx);
    }

    /// Publishes readiness to lock-free readers and charges the TCP memory account.
    #[inline]
    fn publish(&mut self, socket: &Connection, cx: &mut Cx) {
        socket.publish(&self.tcb, !self.prequeue.is_empty(), &mut self.newly_ready);
        if socket.is_watched() {
            self.note_arrivals();
        }
        if self.tcb.keeps_packets() {
            self.tcb.trim_packet_cache(&mut cx.tcp());
        }
        self.charge(cx);
    }

    /// Sends the segments that the windows, pacing and TCP Small Queues allow. If TCP Small Queues
    /// throttles the connection, the completion of packets resumes it. If enough packets have
    /// completed before the throttling is recorded, the loop continues at once.
    fn output(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        loop {
            let host_queue = self.host_queue(socket);
            if host_queue.completes {
                wmem::count_bytes(cx, host_queue.bytes);
                if let Some(since) = self.throttled_since.take() {
                    wmem::count_throttled(cx, since);
                }
            }
            tcp::output(&mut self.tcb, &mut tcp::Cx { host_queue, ..cx.tcp() });
            if self.hashed && self.dst.is_some() && !cx.out.is_empty() {
                // `settle_state` has just checked the route entry.
                self.hand_down(socket, cx, true);
            } else {
                self.transmit(socket, net, cx);
            }
            let Some(limit) = self.tcb.take_throttled() else { return };
            if socket.wmem.throttle(cx.sysctls().tsq_protocol, limit) {
                // Limit 0: a retransmission waits until the earlier copy of its data has left the
                // host's queues, whatever the connection's limit (`TCPSpuriousRtxHostQueues`).
                if limit > 0 {
                    self.throttled_since = Some(cx.now);
                    cx.count(Counter::TsqThrottled, 1);
                }
                return;
            }
            cx.count(Counter::TsqRecheck, 1);
        }
    }

    /// Returns the memory of the connection's packets below TCP that have not completed, and the
    /// properties of the device that TCP Small Queues and pacing need.
    #[inline]
    fn host_queue(&self, socket: &Connection) -> HostQueue {
        let bytes = socket.wmem.bytes();
        let Some(dst) = &self.dst else { return HostQueue { bytes, ..HostQueue::NONE } };
        HostQueue {
            bytes,
            completes: dst.completes,
            paces: dst.paces,
            direct: dst.at_once && link_output::is_resolved(dst),
        }
    }

    /// Charges the memory of the queues to the host's TCP memory account, in whole pages, whenever
    /// the state is published (`sk_forward_alloc`).
    #[inline]
    fn charge(&mut self, cx: &Cx) {
        let pages = i64::from(self.tcb.memory_bytes().div_ceil(PAGE_BYTES));
        let more = pages - self.charged_pages;
        if more != 0 {
            self.charged_pages = pages;
            cx.charge_tcp(more);
        }
    }

    /// Returns the bytes charged to the host's account beyond the content of the queues: after
    /// `settle`, the rest of the last page (`sk_forward_alloc`).
    pub(in crate::socket) fn forward_alloc(&self) -> u32 {
        let charged = u64::try_from(self.charged_pages).unwrap_or(0) * u64::from(PAGE_BYTES);
        u32::try_from(charged.saturating_sub(self.tcb.memory_bytes().into())).unwrap_or(u32::MAX)
    }

    /// Verifies that the charged pages cover the queues exactly, that the backlog is empty, and
    /// that the published readiness is current.
    ///
    /// # Panics
    /// If one of these conditions does not hold.
    pub(in crate::socket) fn check_account(&self, socket: &Connection) {
        let memory = self.tcb.memory_bytes();
        let pages = i64::from(memory.div_ceil(PAGE_BYTES));
        assert_eq!(self.charged_pages, pages, "the charged pages are not those of {memory} bytes");
        assert!(self.forward_alloc() < PAGE_BYTES, "`forward_alloc` has a whole page or more");
        assert_eq!(socket.lock.backlog_bytes(), 0, "the backlog is not empty");
        assert_eq!(socket.readiness(), self.tcb.readiness(), "the published readiness is stale");
    }

    /// Subtracts this connection from the listener's count of early connections, which are open
    /// before their handshake has completed.
    pub(super) fn end_early(&mut self) {
        if let Some(listener) = self.early.take().and_then(|listener| listener.upgrade()) {
            listener.uncount_early();
        }
    }

    /// Reports to the listener that the handshake of an early connection has ended. For an active
    /// open, records the result of Fast Open for later connects.
    fn report_fast_open(&mut self, socket: &Connection, net: &Net, cx: &Cx) {
        let state = self.tcb.state();
        if self.early.is_some() && state != State::SynRecv {
            self.end_early();
        }
        if !self.records_fast_open {
            return;
        }
        let memory = net.fast_open();
        if let Some(result) = self.tcb.take_fast_open_result() {
            memory.learn(socket.name.tuple.remote.ip(), &result, cx.now);
        }
        if self.tcb.take_fast_open_suspicion() && memory.suspect(cx.sysctls(), cx.now) {
            cx.counters().tcp.add(tcp::Counter::TcpExtTCPFastOpenBlackhole, 1);
        }
        if matches!(state, State::Close | State::TimeWait) {
            self.records_fast_open = false;
            if self.retries_fast_open && self.tcb.has_received_data() && !socket.is_over_loopback()
            {
                memory.clear_suspicion();
            }
        }
    }

    /// Counts an orphan (a connection that the application has closed and that has not ended)
    /// against `tcp_max_orphans`. If the limit is reached, or without memory, the orphan is reset
    /// (Linux: `tcp_check_oom`).
    fn count_orphan(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        let is_orphan =
            self.tcb.is_orphan() && !matches!(self.tcb.state(), State::Close | State::TimeWait);
        if is_orphan == self.orphan {
            return;
        }
        if !is_orphan {
            net.orphan_release();
        } else if self.tcb.is_out_of_memory(&cx.tcp().memory)
            || !net.orphan_admit(cx.sysctls().tcp_max_orphans)
        {
            self.tcb.abort_on_memory(&mut cx.tcp());
            self.transmit(socket, net, cx);
            return self.unhash(socket, net);
        }
        self.orphan = is_orphan;
    }

    /// Confirms that the next hop is reachable when new data was acknowledged, because that data
    /// has passed through the next hop (`dst_confirm`).
    #[inline]
    fn confirm_neighbor(&mut self, now: Instant) {
        let snd_una = self.tcb.snd_una();
        if core::mem::replace(&mut self.confirmed, snd_una) != snd_una
            && let Some(neighbor) = self.dst.as_ref().and_then(|dst| dst.neighbor.as_ref())
        {
            neighbor.confirm(now);
        }
    }

    /// Passes the segments in `cx.out` to IP, with the socket's route entry.
    pub(in crate::socket) fn transmit(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        if cx.out.is_empty() {
            return;
        }
        let current = self.refresh_dst(socket, net, cx);
        self.hand_down(socket, cx, current);
    }

    /// Like [`transmit`](Self::transmit), without a check of the route entry. `current` is true if
    /// the cached entry was valid, which is counted.
    fn hand_down(&mut self, socket: &Connection, cx: &mut Cx, current: bool) {
        if current {
            cx.count(Counter::DstHit, 1);
        }
        let queue = self.tx_queue(socket, cx);
        match &self.dst {
            Some(dst) => {
                let mut list = core::mem::take(&mut cx.out);
                if dst.completes {
                    list = Wmem::charge(&socket.wmem, list);
                }
                let sender = ip_output::Sender {
                    tuple: &socket.name.tuple,
                    protocol: protocol::TCP,
                    fields: socket.settings.packet_fields(socket.name.tuple.is_ipv4()),
                    ids: Some(&mut self.ip_id),
                };
                let sent = ip_output::output_as(cx, dst.dst.handle(), sender, queue, list);
                match sent {
                    NetXmit::Success => {}
                    NetXmit::Drop(from) if dst.paces => self.tcb.on_local_drop(from),
                    NetXmit::Cn | NetXmit::Drop(_) => self.tcb.on_local_congestion(),
                }
            }
            None => ip_output::discard_unroutable(cx, &socket.name.tuple),
        }
    }

    /// Returns the transmit queue of the socket's packets. The socket keeps its queue on the same
    /// device while packets of the connection have not completed, because packets in another queue
    /// could overtake them; if the route changes to another device, the queue changes at once.
    /// Linux: `netdev_pick_tx`, `sk_tx_queue_mapping`, `ooo_okay`.
    fn tx_queue(&mut self, socket: &Connection, cx: &Cx) -> QueueId {
        let Some(dst) = &self.dst else { return QueueId(0) };
        let queue = dst.tx.pick_queue(cx, socket.name.core, socket.name.hash);
        let mapping = DeviceQueue { device: dst.tx.device_index(), queue };
        if self.tx_mapping != Some(mapping) {
            self.change_tx_queue(socket, cx, mapping)
        } else {
            mapping.queue
        }
    }

    #[cold]
    fn change_tx_queue(&mut self, socket: &Connection, cx: &Cx, to: DeviceQueue) -> QueueId {
        match self.tx_mapping {
            Some(DeviceQueue { device, queue }) if device == to.device => {
                // The socket's entry in the list of the TCP Small Queues tasklet counts as one
                // byte.
                if socket.wmem.bytes() > 1 {
                    cx.count(Counter::TxQueueKept, 1);
                    return queue;
                }
                cx.count(Counter::TxQueueChanges, 1);
            }
            _ => {}
        }
        self.tx_mapping = Some(to);
        to.queue
    }

    /// Looks up the route entry if the socket has none or its cached one is stale, and passes the
    /// MTU of a new entry to TCP (Linux: `tcp_current_mss`). Returns whether the cached entry was
    /// current.
    #[inline]
    pub(in crate::socket) fn refresh_dst(
        &mut self,
        socket: &Connection,
        net: &Net,
        cx: &Cx,
    ) -> bool {
        let current = self.dst.as_ref().is_some_and(|dst| net.is_current(cx, dst));
        if !current {
            self.lookup_dst(socket, net, cx);
        }
        current
    }

    #[cold]
    fn lookup_dst(&mut self, socket: &Connection, net: &Net, cx: &Cx) {
        cx.count(Counter::DstMiss, 1);
        // The throttled time ends here: the new entry's device might not use TCP Small Queues.
        if let Some(since) = self.throttled_since.take() {
            wmem::count_throttled(cx, since);
        }
        let FlowName { tuple, hash, core, .. } = socket.name;
        let (peer, source) = (socket.name.peer(), Some(tuple.local.ip()));
        self.dst = net.route(cx, peer, source, Some(hash), core).ok();
        if let Some(dst) = &self.dst {
            self.tcb.set_device(dst.gso_max_bytes, dst.sums_payload);
            self.tcb.set_route_quickack(dst.metrics.quickack);
            // A socket that ignores reports of the path MTU uses the device's MTU.
            let mtu = if takes_reports(socket) { dst.mtu } else { dst.device.caps().mtu };
            self.tcb.set_path_mtu(mtu);
        }
    }

    /// Verifies the invariants DST4 and DST3 (docs/invariants.md): a cached route entry that counts
    /// as current equals the result of a lookup now, and a held entry has references.
    ///
    /// # Panics
    /// If either does not hold.
    pub(in crate::socket) fn check_dst(&self, socket: &Connection, net: &Net, cx: &Cx) {
        let Some(dst) = &self.dst else { return };
        assert!(dst.dst.refs() > 0, "a held route entry without references: {dst:?}");
        if net.is_current(cx, dst) {
            let FlowName { tuple, hash, .. } = socket.name;
            assert!(
                net.agrees_with_lookup(cx, dst, socket.name.peer(), tuple.local.ip(), Some(hash)),
                "a stale entry counts as current: {dst:?}"
            );
        }
    }

    #[cold]
    fn enter_time_wait(&mut self, socket: &Connection, net: &Net, cx: &mut Cx) {
        if !self.hashed {
            return;
        }
        let wait_state = TimeWait::from_tcb(&self.tcb, cx.now);
        self.tcb.release_time_wait(&mut cx.tcp());
        if net.time_wait_admit(cx.sysctls().tcp_max_tw_buckets) {
            let FlowName { tuple, hash, .. } = socket.name;
            let time_wait = TimeWaitSocket::new(&socket.name, wait_state, socket.bind);
            net.demux().replace(hash, tuple, Entry::TimeWait(Arc::clone(&time_wait)));
            self.hashed = false;
            self.permit = None;
            self.dst = None;
            socket.rx_dst.end();
            time_wait.arm(net);
        } else {
            cx.counters().tcp.add(tcp::Counter::TcpExtTCPTimeWaitOverflow, 1);
            self.unhash(socket, net);
        }
    }

    #[cold]
    pub(super) fn unhash(&mut self, socket: &Connection, net: &Net) {
        // The table may keep the socket until the end of a grace period. The socket must not keep
        // the device for that time.
        self.dst = None;
        socket.rx_dst.end();
        socket.disarm(net);
        if core::mem::replace(&mut self.hashed, false) {
            net.demux().remove(socket.name.hash, &socket.name.tuple, |entry| {
                matches!(entry, Entry::Stream(stream) if std::ptr::eq(&raw const **stream, socket))
            });
            self.permit = None;
        }
    }
}

/// Returns whether reports of the path MTU affect the socket's segments (`IP_MTU_DISCOVER`).
pub(super) fn takes_reports(socket: &Connection) -> bool {
    let fields = socket.settings().packet_fields(socket.name.tuple.is_ipv4());
    fields.mtu_discover.is_none_or(MtuDiscover::takes_reports)
}
