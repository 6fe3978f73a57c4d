//! What follows a change of a connection's `Tcb`: everything outside it is brought up to date.
//!
//! Segments leave along the socket's path, the timer is armed, a closed connection leaves the tables, the account of memory
//! follows, readiness is published. Linux: `tcp_push_pending_frames`, `__ip_queue_xmit` down to the route,
//! `inet_csk_destroy_sock`, `tcp_time_wait`.
//!
//! Not here: what has changed it (`stream`, `calls`), wakes (`TcpSocket::wake`).

use std::sync::Arc;

use pkt::Instant;
use tcp::{HostQueue, State, TimeWait};

use super::{
    StreamState, TcpSocket,
    wmem::{self, Wmem},
};
use crate::{
    base::{counters::Counter, tcp_memory::PAGE_BYTES},
    cx::Cx,
    device::QueueId,
    host::Host,
    socket::{TimeWaitSocket, demux::Entry},
    transmit::{
        ip_output::{self, MtuDiscover},
        link_output,
        qdisc::NetXmit,
    },
};

impl StreamState {
    /// At the end of a call. One that has only read leaves most as it was, and there is nothing to hand down. A full `settle` might
    /// send what the pace or the queue below has held, a little before its time: that is resumed by its timer, which is armed,
    /// or by a completion, as it is where nobody reads (Linux: tcp_cleanup_rbuf sends an ACK and nothing else).
    #[inline]
    pub(in crate::socket) fn settle_call(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        let only_read = core::mem::take(&mut self.only_read);
        if only_read && tcp::is_settled_after_read(&self.tcb) && self.hashed {
            self.publish(socket, cx);
        } else {
            self.settle(socket, host, cx);
        }
    }

    /// Brings everything outside the `Tcb` up to date with it.
    pub(in crate::socket) fn settle(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        self.synchronise(cx);
        // What a timer has sent waits there.
        let rests = self.is_plain() && cx.out.is_empty();
        if rests && tcp::output_nothing(&mut self.tcb, cx.now) {
            self.confirm_neighbor(cx.now);
        } else {
            self.settle_state(socket, host, cx);
        }
        if !self.prequeue.is_empty() {
            // An ACK that has just left took the timer with it that stands in for the reader.
            self.tcb.watch_reader(&cx.tcp());
        }
        debug_assert!(cx.out.is_empty(), "segments that nobody hands down");
        socket.arm(host, self.tcb.next_deadline());
        self.publish(socket, cx);
    }

    /// The connection is in the tables, somebody holds it, and its handshake is nobody's business any more.
    const fn is_plain(&self) -> bool {
        self.hashed && !self.orphan && !self.learns && self.early.is_none()
    }

    /// Sends, and follows the connection where its state leads.
    #[inline(never)]
    fn settle_state(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        if self.tcb.take_route_doubt() {
            self.dst = None;
        }
        // Before segments are cut: the path may have become narrower, or wider.
        if self.hashed {
            self.check_path(socket, host, cx);
        }
        self.output(socket, host, cx);
        self.confirm_neighbor(cx.now);
        match self.tcb.state() {
            State::Close => self.unhash(socket, host),
            State::TimeWait => self.enter_time_wait(socket, host, cx),
            _ => {}
        }
        self.count_orphan(socket, host, cx);
        self.follow_fast_open(socket, host, cx);
    }

    /// Tells whoever looks without the lock, and the account of memory.
    #[inline]
    fn publish(&mut self, socket: &TcpSocket, cx: &mut Cx) {
        socket.publish(&self.tcb, !self.prequeue.is_empty(), &mut self.news);
        if self.tcb.keeps_packets() {
            self.tcb.trim_packet_cache(&mut cx.tcp());
        }
        self.charge(cx);
    }

    /// Sends what may leave. Where TCP stops because of what is below, a completion will resume it, unless enough has
    /// completed by the time that is announced: then it goes on at once.
    fn output(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
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
                // The path has just been looked at.
                self.hand_down(socket, host, cx, true);
            } else {
                self.transmit(socket, host, cx);
            }
            let Some(limit) = self.tcb.take_throttled() else { return };
            if socket.wmem.throttle(cx.sysctls().tsq_protocol, limit) {
                self.throttled_since = Some(cx.now);
                return cx.count(Counter::TsqThrottled, 1);
            }
            cx.count(Counter::TsqRecheck, 1);
        }
    }

    /// What the connection has below TCP.
    #[inline]
    fn host_queue(&self, socket: &TcpSocket) -> HostQueue {
        let bytes = socket.wmem.bytes();
        let Some(dst) = &self.dst else { return HostQueue { bytes, ..HostQueue::NONE } };
        HostQueue {
            bytes,
            completes: dst.completes,
            paces: dst.paces,
            direct: dst.at_once && link_output::is_resolved(dst),
        }
    }

    /// The host's account follows what the queues hold (`sk_forward_alloc`): in whole pages, once per batch.
    #[inline]
    fn charge(&mut self, cx: &Cx) {
        let pages = i64::from(self.tcb.memory_bytes().div_ceil(PAGE_BYTES));
        let more = pages - self.charged_pages;
        if more != 0 {
            self.charged_pages = pages;
            cx.charge_tcp(more);
        }
    }

    /// What the host's account was charged beyond what the queues hold: the rest of the last page, once settled
    /// (`sk_forward_alloc`).
    pub(in crate::socket) fn forward_alloc(&self) -> u32 {
        let charged = u64::try_from(self.charged_pages).unwrap_or(0) * u64::from(PAGE_BYTES);
        u32::try_from(charged.saturating_sub(self.tcb.memory_bytes().into())).unwrap_or(u32::MAX)
    }

    /// What the account was charged is what the queues hold, in whole pages, and everybody can see what is so.
    ///
    /// # Panics
    /// When that does not hold.
    pub(in crate::socket) fn check_account(&self, socket: &TcpSocket) {
        let memory = self.tcb.memory_bytes();
        let pages = i64::from(memory.div_ceil(PAGE_BYTES));
        assert_eq!(self.charged_pages, pages, "pages charged for {memory} bytes");
        assert!(self.forward_alloc() < PAGE_BYTES, "forward_alloc is the rest of a page");
        assert_eq!(socket.lock.backlog_bytes(), 0, "the backlog is worked off");
        assert_eq!(socket.readiness(), self.tcb.readiness(), "what waiters see");
    }

    /// The listener counts it no more.
    pub(super) fn end_early(&mut self) {
        if let Some(listener) = self.early.take().and_then(|listener| listener.upgrade()) {
            listener.early_done();
        }
    }

    /// What becomes of a handshake with Fast Open is the listener's business, or the next connect's.
    fn follow_fast_open(&mut self, socket: &TcpSocket, host: &Host, cx: &Cx) {
        let state = self.tcb.state();
        if self.early.is_some() && state != State::SynRecv {
            self.end_early();
        }
        if !self.learns {
            return;
        }
        let memory = host.fast_open();
        if let Some(news) = self.tcb.take_fast_open_news() {
            memory.learn(socket.tuple.remote.ip(), &news, cx.now);
        }
        if self.tcb.take_fast_open_suspicion() && memory.suspect(cx.sysctls(), cx.now) {
            cx.counters().tcp.add(tcp::Counter::TcpExtTCPFastOpenBlackhole, 1);
        }
        if matches!(state, State::Close | State::TimeWait) {
            self.learns = false;
            if self.on_trial && self.tcb.has_received_data() && !socket.is_over_loopback() {
                memory.acquit();
            }
        }
    }

    /// A connection that nobody holds and that is not done counts against `tcp_max_orphans`; beyond it is reset (Linux:
    /// `tcp_check_oom`).
    fn count_orphan(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        let is_orphan =
            self.tcb.is_orphan() && !matches!(self.tcb.state(), State::Close | State::TimeWait);
        if is_orphan == self.orphan {
            return;
        }
        if !is_orphan {
            host.orphan_gone();
        } else if self.tcb.is_out_of_memory(&cx.tcp().memory)
            || !host.orphan_admit(cx.sysctls().tcp_max_orphans)
        {
            self.tcb.abort_on_memory(&mut cx.tcp());
            self.transmit(socket, host, cx);
            return self.unhash(socket, host);
        }
        self.orphan = is_orphan;
    }

    /// What the peer has acknowledged has passed the next hop: it need not be asked whether it is there (`dst_confirm`).
    #[inline]
    fn confirm_neighbor(&mut self, now: Instant) {
        let snd_una = self.tcb.snd_una();
        if core::mem::replace(&mut self.confirmed, snd_una) != snd_una
            && let Some(neighbor) = self.dst.as_ref().and_then(|dst| dst.neighbor.as_ref())
        {
            neighbor.confirm(now);
        }
    }

    /// Hands the segments in `cx.out` to IP along the socket's cached path.
    pub(in crate::socket) fn transmit(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        if cx.out.is_empty() {
            return;
        }
        let current = self.check_path(socket, host, cx);
        self.hand_down(socket, host, cx, current);
    }

    /// As [`transmit`](Self::transmit), along the path as it is; `current` if it was there already.
    fn hand_down(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx, current: bool) {
        if current {
            cx.count(Counter::DstHit, 1);
        }
        let queue = self.tx_queue(socket, cx);
        match &self.dst {
            Some(dst) => {
                if dst.completes {
                    Wmem::charge(&socket.wmem, &mut cx.out);
                }
                let sender = ip_output::Sender {
                    tuple: &socket.tuple,
                    fields: socket.settings.ip_fields(),
                    ids: Some(&mut self.ip_id),
                };
                let sent = ip_output::output_as(host, cx, dst.dst.handle(), sender, queue);
                match sent {
                    NetXmit::Success => {}
                    NetXmit::Drop(from) if dst.paces => self.tcb.on_local_drop(from),
                    NetXmit::Cn | NetXmit::Drop(_) => self.tcb.on_local_congestion(),
                }
            }
            None => ip_output::discard_unroutable(cx),
        }
    }

    /// The transmit queue that the socket's packets go by. It stays with the one that it has while data of it is below: there it
    /// would be overtaken. Linux: `netdev_pick_tx`, `sk_tx_queue_mapping`, `ooo_okay`.
    fn tx_queue(&mut self, socket: &TcpSocket, cx: &Cx) -> QueueId {
        let Some(path) = &self.dst else { return QueueId(0) };
        let mapping = (path.tx.device_index(), path.tx.pick_queue(cx, socket.core, socket.hash));
        if self.tx_mapping != Some(mapping) {
            self.change_tx_queue(socket, cx, mapping)
        } else {
            mapping.1
        }
    }

    #[cold]
    fn change_tx_queue(&mut self, socket: &TcpSocket, cx: &Cx, to: (u32, QueueId)) -> QueueId {
        match self.tx_mapping {
            Some((device, queue)) if device == to.0 => {
                // An entry of the tasklet's list counts as one.
                if socket.wmem.bytes() > 1 {
                    cx.count(Counter::TxQueueKept, 1);
                    return queue;
                }
                cx.count(Counter::TxQueueChanges, 1);
            }
            _ => {}
        }
        self.tx_mapping = Some(to);
        to.1
    }

    /// Resolves the path of the socket if it has none, or if what it was made from has changed. True if that was not
    /// needed. TCP learns the present MTU (Linux: `tcp_current_mss`).
    #[inline]
    pub(in crate::socket) fn check_path(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &Cx,
    ) -> bool {
        let current = self.dst.as_ref().is_some_and(|path| host.is_current(cx, path));
        if !current {
            self.resolve_path(socket, host, cx);
        }
        current
    }

    #[cold]
    fn resolve_path(&mut self, socket: &TcpSocket, host: &Host, cx: &Cx) {
        cx.count(Counter::DstMiss, 1);
        // By the next one it may not be stopped at all.
        if let Some(since) = self.throttled_since.take() {
            wmem::count_throttled(cx, since);
        }
        let local = Some(socket.tuple.local.ip());
        self.dst = host.route(cx, socket.tuple.remote.ip(), local, socket.core).ok();
        if let Some(dst) = &self.dst {
            self.tcb.set_device(dst.gso_max_bytes, dst.sums_payload);
            // Who takes no reports goes by the device alone.
            let mtu = if takes_reports(socket) { dst.mtu } else { dst.device.caps().mtu };
            self.tcb.set_path_mtu(mtu);
        }
    }

    /// DST4: a path that counts as current is the one that the routes would answer now. DST3: what is held is counted.
    ///
    /// # Panics
    /// When that does not hold.
    pub(in crate::socket) fn check_dst(&self, socket: &TcpSocket, host: &Host, cx: &Cx) {
        let Some(path) = &self.dst else { return };
        assert!(path.dst.refs() > 0, "a path that nobody holds: {path:?}");
        if host.is_current(cx, path) {
            let (local, remote) = (socket.tuple.local.ip(), socket.tuple.remote.ip());
            assert!(host.would_answer(cx, path, remote, local), "a stale path: {path:?}");
        }
    }

    #[cold]
    fn enter_time_wait(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        if !self.hashed {
            return;
        }
        let remnant = TimeWait::from_tcb(&self.tcb, cx.now);
        self.tcb.release_time_wait(&mut cx.tcp());
        if host.time_wait_admit(cx.sysctls().tcp_max_tw_buckets) {
            let name = (socket.tuple, socket.hash, socket.core);
            let time_wait = TimeWaitSocket::new(name, remnant, socket.bind);
            host.demux().replace(
                socket.hash,
                socket.tuple,
                Entry::TimeWait(Arc::clone(&time_wait)),
            );
            self.hashed = false;
            self.place = None;
            self.dst = None;
            socket.rx_dst.end();
            time_wait.arm(host);
        } else {
            cx.counters().tcp.add(tcp::Counter::TcpExtTCPTimeWaitOverflow, 1);
            self.unhash(socket, host);
        }
    }

    #[cold]
    pub(super) fn unhash(&mut self, socket: &TcpSocket, host: &Host) {
        // A table may keep the socket for a while: not its device, too.
        self.dst = None;
        socket.rx_dst.end();
        socket.disarm(host);
        if core::mem::replace(&mut self.hashed, false) {
            host.demux().remove(socket.hash, &socket.tuple, |entry| {
                matches!(entry, Entry::Stream(stream) if std::ptr::eq(&raw const **stream, socket))
            });
            self.place = None;
        }
    }
}

/// Whether what is reported about the path changes the socket's segments (`IP_MTU_DISCOVER`).
pub(super) fn takes_reports(socket: &TcpSocket) -> bool {
    socket.settings().ip_fields().mtu_discover.is_none_or(MtuDiscover::takes_reports)
}
