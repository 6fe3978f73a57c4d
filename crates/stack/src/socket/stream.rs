//! A TCP connection as the stack holds it: the engine's `Tcb` behind the socket lock, and what may be read without it.
//!
//! Softirq context enters with a packet, a timer or a flush: it runs at once if nobody holds the socket, else the
//! packet goes to the backlog and the rest becomes a DEFERRED bit, which the holder works off before it lets go.
//! Process context is in `calls.rs`. Linux: `tcp_v4_rcv`, `release_sock`, `tcp_release_cb`.
//!
//! After anybody has changed the `Tcb`, [`StreamState::settle`] (`settle`) brings everything outside it up to date: segments
//! leave, the timer is armed, a closed connection leaves the tables, readiness is published.

use std::{
    boxed::Box,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet};
use sync::{Entry as LockEntry, EventCount, Llist, SocketLock, Work, epoch::Section};
use tcp::{FourTuple, IcmpError, Readiness, SegmentHeader, SeqNum, State, Tcb};

use crate::{
    armed::Armed,
    core::{CoreId, TimerEntry},
    counters::Counter,
    cx::Cx,
    demux::BindFlags,
    device::QueueId,
    errno::Errno,
    host::Host,
    link::strip,
    route::{DstHandle, PacketDst, Path, leave_rcu, packet_dst::Left},
    socket::{
        BusyPoll, Listener,
        options::SharedSettings,
        prequeue::{Arrival, Prequeue},
        rx_dst::RxDst,
        wmem::Wmem,
    },
    tcp_memory::TcpMemory,
};

mod settle;

/// A shared connection.
pub type SocketRef = Arc<TcpSocket>;

/// Deferred work, as bits of the socket lock: `TCP_WRITE_TIMER_DEFERRED`, `TCP_DELACK_TIMER_DEFERRED` in Linux.
pub(super) const DEFERRED_TIMER: u8 = 1 << 0;
/// A batch has been received: send, acknowledge, wake.
pub(super) const DEFERRED_FLUSH: u8 = 1 << 1;
/// An ICMP error waits in `TcpSocket::icmp`.
const DEFERRED_ICMP: u8 = 1 << 2;
/// What waited below has shrunk: `TCP_TSQ_DEFERRED`.
const DEFERRED_TSQ: u8 = 1 << 3;

/// The caches of packets are to be looked at, and nothing else.
const DEFERRED_TRIM: u8 = 1 << 4;

/// Room a backlog gets beyond the socket's own buffers: `tcp_add_backlog` adds 64 KB for headers and ACKs.
const BACKLOG_EXTRA_BYTES: u32 = 64 * 1024;

/// In `TcpSocket::ready` beside the bits of [`Readiness`]: packets wait for the reader.
const PREQUEUED: u8 = 1 << 7;
const _: () = assert!(Readiness::all().bits() & PREQUEUED == 0);

/// Reports that wait for the holder of the socket; more are not believed in a hurry either.
const PENDING_ICMP_MAX: usize = 4;

/// A TCP connection.
#[derive(Debug)]
pub struct TcpSocket {
    // Read-mostly: the look-up key and where the socket lives.
    tuple: FourTuple,
    hash: u32,
    core: CoreId,
    /// The core that its packets went up on last (Linux: `sk_incoming_cpu`). Written when that changes, by whoever brings them.
    /// Relaxed: a hint.
    incoming: AtomicU16,
    /// Both ends are this host.
    over_loopback: bool,
    /// Who else may bind its local end.
    bind: BindFlags,
    this: Weak<Self>,
    // Written by the holder, read by anybody.
    /// The input route for packets to come.
    pub(super) rx_dst: RxDst,
    /// `Readiness` bits as of the last change, and `PREQUEUED`. Written under the lock, read by waiters without it.
    ready: AtomicU8,
    /// What the backlog may hold in bytes: a limit from the buffers, less what waits to be read. Relaxed: a limit orders
    /// nothing.
    backlog_limit: AtomicU32,
    /// `SO_RCVLOWAT`: bytes a blocking read waits for. Written under the lock. Relaxed: a limit orders nothing.
    rcvlowat: AtomicU32,
    /// Our FIN is on its way and not acknowledged: FIN-WAIT-1, CLOSING, LAST-ACK. Written under the lock.
    finishing: AtomicBool,
    /// Entries of this socket in timer wheels.
    armed: Armed,
    /// ICMP errors that nobody has told the `Tcb` yet, with the sequence numbers they quote: at most [`PENDING_ICMP_MAX`].
    icmp: Mutex<Vec<(IcmpError, SeqNum)>>,
    pub(super) lock: SocketLock<StreamState, Packet>,
    /// What devices that complete later still hold of ours.
    wmem: Arc<Wmem>,
    /// Packets that the backlog did not take. Relaxed: a counter orders nothing.
    pub(super) backlog_drops: AtomicU32,
    /// Packets that reads have emptied, with `skb_recycle` at `list_after_unlock`: for whoever comes first without the lock.
    /// Linux: the `defer_list` of a socket.
    pub(super) read_packets: Llist<Packet>,
    /// Options that calls look at without the lock.
    settings: SharedSettings,
    /// Threads that wait until there is something to read, or the connection has ended.
    readers: EventCount,
    /// Threads that wait for room to write.
    writers: EventCount,
}

/// What the holder of the socket lock may touch.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(super) tcb: Box<Tcb>,
    pub(super) dst: Option<Path>,
    /// Since when it is stopped because of what is below.
    throttled_since: Option<Instant>,
    /// Device and queue that its packets go by (Linux: `sk_tx_queue_mapping`).
    tx_mapping: Option<(u32, QueueId)>,
    /// What waits for a reader that waits, and which one that is.
    pub(super) prequeue: Prequeue,
    /// The four-tuple leads to this socket.
    hashed: bool,
    /// Counted among the host's orphans.
    orphan: bool,
    /// The listener that counts it as open before its handshake has ended.
    early: Option<Weak<Listener>>,
    /// The handshake will have something to tell about Fast Open.
    learns: bool,
    /// Fast Open was suspected before this connection began.
    on_trial: bool,
    /// The latest `now` this socket has seen. Contexts read the clock at different moments; a connection's time (its
    /// timestamps above all) must not run backwards when it passes from one to another.
    latest: Instant,
    /// SND.UNA when the next hop was last confirmed.
    confirmed: SeqNum,
    /// Bits of `TcpSocket::ready` that have come true and that nobody was woken for yet. Whoever lets the socket go takes them
    /// along, to [`TcpSocket::wake`].
    pub(super) news: u8,
    /// Pages that the host's account was charged for this socket.
    charged_pages: i64,
    /// Segments that TCP did not take. With those of the backlog Linux's `sk_drops`.
    pub(super) drops: u32,
    /// The call has taken from the receive queue, and done nothing else.
    pub(super) only_read: bool,
    /// Bytes taken from the application since it last polled the core in passing.
    sent_unpolled: usize,
    memory: Arc<TcpMemory>,
}

/// The socket is gone, and with it what it held.
impl Drop for StreamState {
    fn drop(&mut self) {
        self.memory.uncharge(self.charged_pages);
        self.memory.count_socket(-1);
    }
}

impl TcpSocket {
    pub(super) fn new(
        host: &Host,
        cx: &Cx,
        (tuple, hash, core): (FourTuple, u32, CoreId),
        tcb: Box<Tcb>,
        dst: Option<Path>,
        bind: BindFlags,
    ) -> Arc<Self> {
        let (latest, confirmed) = (Instant::ZERO, tcb.snd_una());
        let memory = Arc::clone(host.tcp_memory());
        memory.count_socket(1);
        Arc::new_cyclic(|this| Self {
            tuple,
            hash,
            core,
            incoming: AtomicU16::new(core.0),
            over_loopback: host.is_local(cx, tuple.remote.ip()),
            bind,
            this: this.clone(),
            rx_dst: RxDst::new(host.rcu()),
            ready: AtomicU8::new(tcb.readiness().bits()),
            backlog_limit: AtomicU32::new(u32::MAX),
            rcvlowat: AtomicU32::new(tcb.rcvlowat()),
            finishing: AtomicBool::new(false),
            armed: Armed::new(),
            icmp: Mutex::default(),
            lock: SocketLock::new(StreamState {
                tcb,
                dst,
                throttled_since: None,
                tx_mapping: None,
                prequeue: Prequeue::default(),
                hashed: true,
                orphan: false,
                early: None,
                learns: false,
                on_trial: false,
                latest,
                confirmed,
                news: 0,
                charged_pages: 0,
                drops: 0,
                only_read: false,
                sent_unpolled: 0,
                memory,
            }),
            wmem: Wmem::new(this.clone(), host.core(core)),
            backlog_drops: AtomicU32::new(0),
            read_packets: Llist::new(),
            settings: SharedSettings::new(bind),
            readers: EventCount::new(),
            writers: EventCount::new(),
        })
    }

    pub(super) const fn settings(&self) -> &SharedSettings {
        &self.settings
    }

    /// How long receiving waits (`SO_RCVTIMEO`); `None` for ever.
    #[must_use]
    pub fn receive_timeout(&self) -> Option<Duration> {
        self.settings.receive_timeout()
    }

    /// How a thread polls that waits for the socket (`SO_BUSY_POLL` and its companions).
    #[must_use]
    pub fn busy_poll(&self) -> BusyPoll {
        self.settings.busy_poll()
    }

    /// How long sending waits (`SO_SNDTIMEO`); `None` for ever.
    #[must_use]
    pub fn send_timeout(&self) -> Option<Duration> {
        self.settings.send_timeout()
    }

    pub(crate) const fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    pub(crate) const fn bind_flags(&self) -> BindFlags {
        self.bind
    }

    pub(crate) const fn is_over_loopback(&self) -> bool {
        self.over_loopback
    }

    /// Address and port of our end.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.tuple.local
    }

    /// Address and port of the peer.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.tuple.remote
    }

    /// The core whose queue this connection uses, and whose timers until its packets come by another.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// The core that its packets went up on last (`SO_INCOMING_CPU`), and where its timers are armed from then on.
    #[must_use]
    pub fn incoming_core(&self) -> CoreId {
        CoreId(self.incoming.load(Ordering::Relaxed))
    }

    /// Its packets go up on this core. Linux: `sk_incoming_cpu_update`.
    #[inline]
    pub(crate) fn note_incoming(&self, core: CoreId) {
        if self.incoming.load(Ordering::Relaxed) != core.0 {
            self.incoming.store(core.0, Ordering::Relaxed);
        }
    }

    pub(crate) const fn hash(&self) -> u32 {
        self.hash
    }

    /// The core whose polls bring this connection's packets: with RFS where its application was seen last.
    #[must_use]
    pub fn polled_core(&self, host: &Host) -> CoreId {
        if !host.rfs_needed() {
            return self.core;
        }
        let flows = host.sock_flows(host.sysctls().rps_sock_flow_entries);
        let by_socket = flows.and_then(|flows| flows.core_of(self.hash));
        by_socket.filter(|core| usize::from(core.0) < host.cores().len()).unwrap_or(self.core)
    }

    /// What the socket is ready for, without taking it.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.ready.load(Ordering::Acquire))
    }

    /// Where threads wait for something to read (or for the end), and where for room to write.
    #[must_use]
    pub const fn waiters(&self, interest: Readiness) -> &EventCount {
        if interest.contains(Readiness::WRITE) { &self.writers } else { &self.readers }
    }

    /// Bytes of packet memory below TCP, in devices that complete later (`sk_wmem_alloc`, the `t` of `ss`'s skmem).
    #[must_use]
    pub fn wmem_alloc(&self) -> u32 {
        self.wmem.bytes()
    }

    /// The beginning of a socket: `register` makes it known, then its first segments leave. They are in `cx.out`
    /// already, so nobody else may hold the socket in between; what comes in meanwhile waits on the backlog.
    pub(super) fn begin(
        &self,
        host: &Host,
        cx: &mut Cx,
        register: impl FnOnce(&Cx) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.lock.own();
        register(cx)?;
        state.settle(self, host, cx);
        state.release(|state, work| {
            state.work(self, host, cx, work);
            state.settle(self, host, cx);
        });
        Ok(())
    }

    /// The listener counts this connection until its handshake has ended. Before `begin`.
    pub(super) fn set_early(&self, listener: &Arc<Listener>) {
        self.lock.own().early = Some(Arc::downgrade(listener));
    }

    /// The handshake will have something to tell about Fast Open. Before `begin`.
    pub(super) fn set_learns(&self, on_trial: bool) {
        let mut state = self.lock.own();
        (state.learns, state.on_trial) = (true, on_trial);
    }

    /// Ends a connection that could not begin. What it would send is the caller's to throw away.
    pub(super) fn discard(&self, cx: &mut Cx) {
        let mut state = self.lock.own();
        state.tcb.abort(&mut cx.tcp());
        state.end_early();
    }

    /// Softirq: one segment for this connection. `flush` follows once the batch is through; with `last`, if nobody holds the
    /// socket, it is done at once, under the same lock. True if it was.
    pub(crate) fn segment(
        &self,
        host: &Host,
        cx: &mut Cx,
        rcu: &Section<'_>,
        dst: PacketDst<'_>,
        packet: Packet,
        last: bool,
    ) -> bool {
        let bytes = packet.truesize();
        let limit = self.backlog_limit.load(Ordering::Relaxed);
        let device = packet.meta().rx_device;
        let rx_dst_mode = cx.sysctls().rx_dst_mode;
        let arrival = Arrival::new(rcu, dst);
        let mut left = Left::Nothing;
        let mut read = None;
        let (mut flushed, mut news) = (false, 0);
        self.free_read_packets(cx);
        let leave = |packet: &mut Packet| {
            let serves = self.rx_dst.serves(host, rx_dst_mode, device, rcu);
            left = leave_rcu(packet, arrival.take_dst(), serves);
        };
        let entry = self.lock.softirq(packet, bytes, limit, leave, |state, work| {
            let direct = matches!(work, Work::Direct(_));
            // Only for a segment that is processed here and now: what goes to a reader or comes off the backlog finds
            // an owner, whose slot it is.
            if direct && !state.prequeue.has_reader() {
                read = state.tcb.take_read_packet(&cx.counters().tcp);
            }
            state.softirq(self, host, cx, work, Some(&arrival));
            // What becomes of the reader's wake is the flush's, which follows.
            if last && direct {
                state.flush(self, host, cx);
                flushed = true;
            }
            if flushed {
                news |= core::mem::take(&mut state.news);
            }
        });
        debug_assert!(cx.out.is_empty(), "a segment that another socket would send as its own");
        if let Some(read) = read {
            cx.pool.free(read);
        }
        left.count(cx);
        arrival.take_dst().release(cx, rcu);
        match entry {
            LockEntry::Ran => self.wake(cx, news),
            LockEntry::Queued => cx.count(Counter::SocketBacklogQueued, 1),
            LockEntry::Full(packet) => {
                cx.counters().tcp.add(tcp::Counter::TcpExtTCPBacklogDrop, 1);
                self.backlog_drops.fetch_add(1, Ordering::Relaxed);
                cx.drop_packet(DropReason::SocketBacklog, packet);
            }
        }
        flushed
    }

    /// The input route for a packet that came by `device`, if this connection remembers a valid one: what early demux
    /// attaches.
    #[inline]
    pub(crate) fn rx_dst<'s>(
        &'s self,
        host: &Host,
        device: u32,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        self.rx_dst.check(host, device, rcu)
    }

    /// Softirq: the batch is through. Sends what the new acknowledgements allow, or one ACK, and wakes once.
    pub(crate) fn flush(&self, host: &Host, cx: &mut Cx) {
        let _ = self.deferred(host, cx, DEFERRED_FLUSH);
    }

    /// Softirq: an entry of this socket in the timer wheel has fired.
    pub(crate) fn on_timer(&self, host: &Host, cx: &mut Cx) {
        self.armed.fired(cx.now);
        let _ = self.deferred(host, cx, DEFERRED_TIMER);
    }

    /// Softirq: what this socket had below has shrunk, and it may send again.
    pub(crate) fn on_tasklet(&self, host: &Host, cx: &mut Cx) {
        cx.count(Counter::TsqRuns, 1);
        self.wmem.handle(|| {
            // What waits on the backlog meanwhile may be the reader's.
            if !matches!(self.deferred(host, cx, DEFERRED_TSQ), LockEntry::Ran) {
                cx.count(Counter::TsqDeferred, 1);
            }
        });
    }

    /// Softirq: a router or the peer reports that a segment of this connection could not be delivered.
    pub(crate) fn icmp_error(&self, host: &Host, cx: &mut Cx, error: IcmpError, seq: SeqNum) {
        {
            let mut pending = self.icmp.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.len() >= PENDING_ICMP_MAX {
                return cx.counters().tcp.add(tcp::Counter::TcpExtLockDroppedIcmps, 1);
            }
            pending.push((error, seq));
        }
        let _ = self.deferred(host, cx, DEFERRED_ICMP);
    }

    /// Softirq: what the connection keeps may have to go, as memory is scarce or the setting has changed.
    pub(crate) fn trim_packet_cache(&self, host: &Host, cx: &mut Cx) {
        self.free_read_packets(cx);
        let _ = self.deferred(host, cx, DEFERRED_TRIM);
    }

    /// Frees what reads have emptied, if anything; without the lock. Linux: `sk_defer_free_flush`.
    #[inline]
    pub(super) fn free_read_packets(&self, cx: &mut Cx) {
        if self.read_packets.is_empty() {
            return;
        }
        for packet in self.read_packets.take_all() {
            cx.count(Counter::SkbReadAfterUnlock, 1);
            cx.pool.free(packet);
        }
    }

    fn deferred(&self, host: &Host, cx: &mut Cx, bit: u8) -> LockEntry<Packet> {
        let mut news = 0;
        let entry = self.lock.defer(bit, |state, work| {
            state.softirq(self, host, cx, work, None);
            news |= core::mem::take(&mut state.news);
        });
        self.wake(cx, news);
        entry
    }

    /// Wakes those for whom something has come true: `news`, which was taken from the state. Outside the lock: a wake is a
    /// system call, and the woken thread wants the socket. Who finds its condition true does not sleep, so what was true
    /// before needs no second wake.
    #[inline]
    pub(super) fn wake(&self, cx: &mut Cx, news: u8) {
        if news != 0 {
            self.wake_for(cx, news);
        }
    }

    fn wake_for(&self, cx: &mut Cx, news: u8) {
        let prequeued = news & PREQUEUED != 0;
        let news = Readiness::from_bits_truncate(news);
        let ended = Readiness::HUP | Readiness::ERROR;
        let read = Readiness::READ | Readiness::PRI | Readiness::RDHUP;
        if news.intersects(read | ended) && cx.notify_all(&self.readers, true) {
            cx.count(Counter::SocketWakes, 1);
        }
        if prequeued && cx.notify_all(&self.readers, true) {
            cx.count(Counter::PrequeueWakes, 1);
        }
        if news.intersects(Readiness::WRITE | ended) && cx.notify_all(&self.writers, false) {
            cx.count(Counter::SocketWakes, 1);
        }
    }

    /// Whether the end of our stream has still to be acknowledged: what a lingering close waits for
    /// (`sk_stream_wait_close`). HUP comes earlier, as soon as both directions are shut.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Acquire)
    }

    /// `SO_RCVLOWAT`: bytes that a blocking read waits for, if it wants as many.
    #[must_use]
    pub fn rcvlowat(&self) -> u32 {
        self.rcvlowat.load(Ordering::Relaxed)
    }

    /// Packets wait for whoever is installed as the reader.
    pub(super) fn has_prequeued(&self) -> bool {
        self.ready.load(Ordering::Acquire) & PREQUEUED != 0
    }

    /// What may be looked at without the lock follows `tcb`. Answers the bits of `ready` that have come true by that.
    #[inline]
    fn publish(&self, tcb: &Tcb, prequeued: bool) -> u8 {
        self.rcvlowat.store(tcb.rcvlowat(), Ordering::Relaxed);
        // Linux: `sk_rcvqueues_full`, which adds `sk_rmem_alloc` to the backlog on the other side of the comparison. While
        // somebody owns the socket that is what it was when they last settled.
        let limit = tcb
            .rcvbuf()
            .saturating_mul(2)
            .saturating_add(tcb.sndbuf() / 2)
            .saturating_add(BACKLOG_EXTRA_BYTES);
        self.backlog_limit.store(limit.saturating_sub(tcb.rmem_alloc()), Ordering::Relaxed);
        let ready = tcb.readiness().bits();
        let mut news = ready & !self.ready.load(Ordering::Relaxed);
        let prequeued = if prequeued { PREQUEUED } else { 0 };
        self.ready.store(ready | prequeued, Ordering::Release);
        let finishing = matches!(tcb.state(), State::FinWait1 | State::Closing | State::LastAck);
        if self.finishing.load(Ordering::Relaxed) != finishing {
            if !finishing {
                // A lingering close waits for this.
                news |= Readiness::HUP.bits();
            }
            self.finishing.store(finishing, Ordering::Release);
        }
        news
    }

    /// An entry of the timer wheel will fire in time for `deadline`. Under the lock.
    pub(super) fn is_armed(&self, deadline: Instant) -> bool {
        self.armed.covers(deadline)
    }

    /// Where its packets go up: a flow that moves takes its timers along as they are armed anew, in Linux by whichever CPU
    /// arms them. What is armed elsewhere fires there, late at most.
    #[inline]
    pub(super) fn arm(&self, host: &Host, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.armed.must_arm(deadline) {
            let core = host.core(self.incoming_core());
            core.arm(deadline, TimerEntry::Stream(self.this.clone()));
        }
    }
}

/// The header as values, and the packet without it.
#[inline]
pub(super) fn parse(cx: &mut Cx, mut packet: Packet) -> Option<(SegmentHeader, Packet)> {
    match SegmentHeader::parse(packet.linear()) {
        Ok(header) => {
            strip(&mut packet, usize::from(header.header_len));
            Some((header, packet))
        }
        Err(reason) => {
            cx.counters().tcp.add(tcp::Counter::TcpInErrs, 1);
            cx.drop_packet(reason, packet);
            None
        }
    }
}

impl StreamState {
    /// The largest superframe that its path takes.
    pub(super) fn superframe_bytes(&self) -> usize {
        self.dst.as_ref().map_or(0, |dst| dst.gso_max_bytes as usize)
    }

    pub(super) const fn note_sent(&mut self, bytes: usize) {
        self.sent_unpolled += bytes;
    }

    /// Whether `every` bytes were sent since this was last true.
    pub(super) const fn take_poll_due(&mut self, every: usize) -> bool {
        let due = self.sent_unpolled >= every;
        if due {
            self.sent_unpolled = 0;
        }
        due
    }

    /// The holder's clock and the socket's agree from here on.
    #[inline]
    pub(super) fn synchronise(&mut self, cx: &mut Cx) {
        cx.freshen();
        cx.not_before(self.latest);
        self.latest = cx.now;
    }

    /// For a call that asks no time: none that is earlier than what this socket has seen.
    #[inline]
    pub(super) fn not_before_latest(&self, cx: &mut Cx) {
        cx.not_before(self.latest);
    }

    /// Softirq: the batch is through. Sends what the new acknowledgements allow, or one ACK, and tells.
    #[inline]
    fn flush(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        if self.prequeue.has_reader() {
            self.softirq(socket, host, cx, Work::Deferred(DEFERRED_FLUSH), None);
        } else {
            self.settle(socket, host, cx);
        }
    }

    /// Packets wait for the reader, who is to be woken by whoever lets the socket go.
    pub(super) fn publish_prequeued(&mut self, socket: &TcpSocket) {
        let ready = socket.ready.load(Ordering::Relaxed) | PREQUEUED;
        socket.ready.store(ready, Ordering::Release);
        self.news |= PREQUEUED;
    }

    /// Nothing waits for the reader any more, so that it need not be woken.
    pub(super) const fn retract_prequeued(&mut self) {
        self.news &= !PREQUEUED;
    }

    /// Works off one item that softirq context brought, at once or from the backlog.
    pub(super) fn work(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &mut Cx,
        work: Work<Packet>,
    ) {
        match work {
            Work::Item(mut packet) | Work::Direct(mut packet) => {
                let dst = PacketDst::taken_from(&mut packet);
                self.packet(socket, host, cx, packet, dst);
            }
            Work::Deferred(DEFERRED_TRIM) => self.tcb.trim_packet_cache(&mut cx.tcp()),
            Work::Deferred(bits) => {
                self.synchronise(cx);
                // `settle` looks at the path before it sends; what else there is to do looks here.
                if self.hashed && bits != DEFERRED_FLUSH {
                    self.check_path(socket, host, cx);
                }
                if bits & DEFERRED_ICMP != 0 {
                    self.take_reports(socket, host, cx);
                }
                if bits & DEFERRED_TIMER != 0 {
                    self.fetch_prequeue(socket, host, cx);
                    tcp::on_timer(&mut self.tcb, &mut cx.tcp());
                }
                self.settle(socket, host, cx);
            }
        }
    }

    /// Works off one packet, with the dst it came with or the reference that it brought along.
    #[inline]
    pub(super) fn packet(
        &mut self,
        socket: &TcpSocket,
        host: &Host,
        cx: &mut Cx,
        packet: Packet,
        dst: PacketDst<'_>,
    ) {
        self.synchronise(cx);
        self.remember(socket, host, cx, packet.meta().rx_device, dst);
        if let Some((header, packet)) = parse(cx, packet) {
            self.input(cx, &header, packet);
        }
        // A duplicate ACK or a reset: before the flush another thread may own the socket.
        self.transmit(socket, host, cx);
    }

    /// The dst of a packet that came by `device` has served; an established connection without one of its own keeps it.
    #[inline]
    pub(super) fn remember(
        &self,
        socket: &TcpSocket,
        host: &Host,
        cx: &Cx,
        device: u32,
        dst: PacketDst<'_>,
    ) {
        if self.tcb.state() == State::Established {
            socket.rx_dst.on_packet(host, cx, device, dst);
        } else {
            dst.release_outside(cx);
        }
    }

    /// Judges the ICMP errors that have come; a smaller path MTU is noted for every connection to the destination.
    fn take_reports(&mut self, socket: &TcpSocket, host: &Host, cx: &mut Cx) {
        let pending =
            core::mem::take(&mut *socket.icmp.lock().unwrap_or_else(PoisonError::into_inner));
        for (error, seq) in pending {
            let mtu = tcp::on_icmp(&mut self.tcb, &mut cx.tcp(), error, seq);
            if let (Some(mtu), Some(dst)) = (mtu, &self.dst)
                && settle::takes_reports(socket)
                && host.learn_path_mtu(socket.tuple.remote.ip(), dst, mtu, cx)
            {
                self.check_path(socket, host, cx);
            }
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

    /// As `input`, by a reader that takes what is next into `user`; answers how much that was.
    pub(super) fn input_to_user(
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

#[cfg(test)]
mod tests;
