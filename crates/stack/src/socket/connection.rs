//! A TCP connection in the stack: the engine's `Tcb` under the socket lock, and the state that is
//! read without it.
//!
//! Softirq context enters with a packet, a timer or a flush (`softirq`). If no thread owns the
//! socket, the work runs at once; otherwise a packet goes to the backlog and other work becomes a
//! DEFERRED bit, both of which the owner processes before it releases the socket (`work`). Process
//! context enters in `call`. Linux: `tcp_v4_rcv`, `release_sock`, `tcp_release_cb`.
//!
//! After every change of the `Tcb`, [`StreamState::settle`] (`settle`) updates the state outside of
//! it: segments are transmitted, the timer is armed, a closed connection leaves the tables, and
//! readiness is published (`readiness`).

use std::{
    boxed::Box,
    mem::offset_of,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
    },
    time::Duration,
};

use pkt::{Instant, Packet};
use sync::{Conditions, EventCount, Llist, NewlyReady, SocketLock};
use tcp::{FourTuple, IcmpError, SeqNum, Tcb};

use super::{
    demux::{BindFlags, FlowName},
    listener::source_limit::SourcePlace,
    modes::{prequeue::Prequeue, rx_dst::RxDst},
    wmem::{SendingSocket, StreamTimer, Wmem},
};
use crate::{
    base::{armed_timers::ArmedTimers, errno::Errno, ids::CoreId, tcp_memory::TcpMemory},
    cx::Cx,
    device::DeviceQueue,
    route::Path,
    socket::core_sockets::TimerEntry,
    socket::net::Net,
    socket::{BusyPoll, Listener, options::SharedSettings},
};

pub(super) use work::parse;

pub(crate) mod backlog;
pub(crate) mod busy_poll;
pub(crate) mod call;
pub(crate) mod calls;
pub(crate) mod connect;
mod memory_map;
mod readiness;
pub(crate) mod recv;
pub(crate) mod send;
mod settle;
pub(crate) mod softirq;
mod work;

/// A shared connection.
pub type SocketRef = Arc<Connection>;

/// Deferred work, as bits of the socket lock. Linux: `TCP_WRITE_TIMER_DEFERRED`,
/// `TCP_DELACK_TIMER_DEFERRED`.
pub(super) const DEFERRED_TIMER: u8 = 1 << 0;
/// A batch has been received: transmit, acknowledge, wake.
pub(super) const DEFERRED_FLUSH: u8 = 1 << 1;
/// An ICMP error waits in `Connection::icmp`.
const DEFERRED_ICMP: u8 = 1 << 2;
/// Packet memory below TCP has been completed: `TCP_TSQ_DEFERRED`.
const DEFERRED_TSQ: u8 = 1 << 3;

/// Packet caches are to be trimmed; no other work.
const DEFERRED_TRIM: u8 = 1 << 4;

/// Size of a backlog beyond the socket's own buffers: `tcp_add_backlog` adds 64 KB for headers and
/// ACKs.
const BACKLOG_EXTRA_BYTES: u32 = 64 * 1024;

/// Maximum number of ICMP reports that wait for the owner of the socket; further ones are dropped.
const PENDING_ICMP_MAX: usize = 4;

/// A TCP connection.
///
/// # Layout
/// Cache lines of 64 bytes, by reader and writer:
///
/// | cache lines | written by | read by |
/// |---|---|---|
/// | 0, 1 | no thread in the steady state | softirq: lookup, early demux; every call |
/// | 2, `Published` | the owner, at the end of its work | softirq: backlog limit; waiting threads |
/// | 3 | every thread that enters: word and backlog of the lock | the same |
/// | from 4 on | the owner; after its state, threads that wait or drop | the same |
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Connection {
    /// Lookup key, and the core of the socket.
    name: FlowName,
    /// Core that received its last packets (Linux: `sk_incoming_cpu`). Written by the receiving
    /// thread when it changes. Relaxed: a hint.
    incoming: AtomicU16,
    /// Whether both ends are this host.
    over_loopback: bool,
    /// Flags that allow other sockets to bind its local end.
    bind: BindFlags,
    /// Packet memory of this socket in devices that complete later. Its words are on cache lines of
    /// their own.
    wmem: Arc<Wmem>,
    /// Input route for later packets. Written by the owner when the route changes.
    pub(super) rx_dst: RxDst,
    published: Published,
    pub(super) lock: SocketLock<StreamState, Packet>,
    /// Number of packets that the backlog refused. Relaxed: a counter orders nothing.
    pub(super) backlog_drops: AtomicU32,
    /// Packets emptied by reads, with `skb_recycle` set to `list_after_unlock`. The next thread
    /// without the lock frees them. Linux: the `defer_list` of a socket.
    pub(super) read_packets: Llist<Packet>,
    /// ICMP errors not yet passed to the `Tcb`, with the sequence numbers they quote: at most
    /// [`PENDING_ICMP_MAX`].
    icmp: Mutex<Vec<(IcmpError, SeqNum)>>,
    /// Options that calls read without the lock.
    settings: SharedSettings,
    /// Threads that wait for data, or for the end of the connection.
    readers: EventCount,
    /// Threads that wait for space to write.
    writers: EventCount,
}

/// State that the owner of the lock publishes for threads that do not own it.
#[derive(Debug)]
#[repr(C, align(64))]
struct Published {
    /// `Readiness` bits since the last change, and `PREQUEUED`. Written under the lock, read by
    /// waiting threads without it.
    ready: Conditions,
    /// Whether our FIN is sent and unacknowledged: FIN-WAIT-1, CLOSING, LAST-ACK. Written under the
    /// lock.
    finishing: AtomicBool,
    /// Maximum bytes in the backlog: a limit derived from the buffers, minus unread data. Relaxed:
    /// a limit orders nothing.
    backlog_limit: AtomicU32,
    /// `SO_RCVLOWAT`: bytes that a blocking read waits for. Written under the lock. Relaxed: a
    /// limit orders nothing.
    rcvlowat: AtomicU32,
    /// Entries of this socket in timer wheels.
    armed: ArmedTimers,
}

// The groups of "Layout".
const LINE: usize = 64;
const _: () = assert!(align_of::<Connection>() == LINE && offset_of!(Connection, name) == 0);
const _: () = assert!(size_of::<FlowName>() <= 2 * LINE);
const _: () = assert!(offset_of!(Connection, rx_dst) + size_of::<RxDst>() <= 2 * LINE);
const _: () = assert!(offset_of!(Connection, published) == 2 * LINE);
const _: () = assert!(offset_of!(Connection, lock) == 3 * LINE && size_of::<Published>() == LINE);
const _: () = assert!(offset_of!(Connection, backlog_drops).is_multiple_of(LINE));

/// State that only the owner of the socket lock may access.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(super) tcb: Box<Tcb>,
    pub(super) dst: Option<Path>,
    /// Time since which TCP Small Queues throttles the socket.
    throttled_since: Option<Instant>,
    /// Device and queue that transmit its packets (Linux: `sk_tx_queue_mapping`).
    tx_mapping: Option<DeviceQueue>,
    /// IPv4 identification of the next segment that has one (Linux: `inet_id`).
    ip_id: u16,
    /// Packets left to a waiting reader, and the reader's identity.
    pub(super) prequeue: Prequeue,
    /// Whether the four-tuple table refers to this socket.
    hashed: bool,
    /// Whether the socket is counted as an orphan of the host.
    orphan: bool,
    /// Place among the connections of its source with its listener; returned when the connection
    /// leaves the table.
    place: Option<Box<SourcePlace>>,
    /// Listener that counts it as open before its handshake has completed.
    early: Option<Weak<Listener>>,
    /// Whether the handshake will have a Fast Open result to record for later connections.
    records_fast_open: bool,
    /// Whether the connection tries Fast Open again after a suspected black hole (Linux:
    /// `tcp_fastopen_active_disable`).
    retries_fast_open: bool,
    /// Latest `now` that this socket has seen. Contexts read the clock at different times; the time
    /// of a connection (above all its timestamps) must not run backwards when it passes from one
    /// context to another.
    latest: Instant,
    /// SND.UNA at the last confirmation of the next hop.
    confirmed: SeqNum,
    /// Bits of `Published::ready` that have become set and whose waiting threads have not been
    /// woken yet. The thread that releases the socket takes them and passes them to
    /// [`Connection::wake`].
    pub(super) newly_ready: NewlyReady,
    /// Pages charged to the host's account for this socket.
    charged_pages: i64,
    /// Segments that TCP dropped. Together with those of the backlog they are Linux's `sk_drops`.
    pub(super) drops: u32,
    /// Whether the current call has only taken data from the receive queue.
    pub(super) only_read: bool,
    /// Bytes taken from the application since it last polled the core while sending.
    sent_unpolled: usize,
    memory: Arc<TcpMemory>,
}

/// Returns the charges when the socket is dropped.
impl Drop for StreamState {
    fn drop(&mut self) {
        self.memory.uncharge(self.charged_pages);
        self.memory.count_socket(-1);
    }
}

impl Connection {
    pub(super) fn new(
        net: &Net,
        cx: &Cx,
        name: &FlowName,
        tcb: Box<Tcb>,
        dst: Option<Path>,
        bind: BindFlags,
    ) -> Arc<Self> {
        let (latest, confirmed) = (Instant::ZERO, tcb.snd_una());
        let memory = Arc::clone(net.tcp_memory());
        memory.count_socket(1);
        Arc::new_cyclic(|this| Self {
            name: *name,
            incoming: AtomicU16::new(name.core.0),
            over_loopback: net.is_local(cx, name.tuple.remote.ip()),
            bind,
            wmem: Wmem::new(
                SendingSocket::Stream(this.clone()),
                net.core_sockets(name.core).tasklet(),
            ),
            rx_dst: RxDst::new(net.rcu()),
            published: Published {
                ready: Conditions::new(tcb.readiness().bits()),
                finishing: AtomicBool::new(false),
                backlog_limit: AtomicU32::new(u32::MAX),
                rcvlowat: AtomicU32::new(tcb.rcvlowat()),
                armed: ArmedTimers::new(),
            },
            lock: SocketLock::new(StreamState {
                tcb,
                dst,
                throttled_since: None,
                tx_mapping: None,
                ip_id: net.ip_ids().of_connection(&name.tuple),
                prequeue: Prequeue::default(),
                hashed: true,
                orphan: false,
                place: None,
                early: None,
                records_fast_open: false,
                retries_fast_open: false,
                latest,
                confirmed,
                newly_ready: NewlyReady::default(),
                charged_pages: 0,
                drops: 0,
                only_read: false,
                sent_unpolled: 0,
                memory,
            }),
            backlog_drops: AtomicU32::new(0),
            read_packets: Llist::new(),
            icmp: Mutex::default(),
            settings: SharedSettings::new(bind),
            readers: EventCount::new(),
            writers: EventCount::new(),
        })
    }

    pub(super) const fn settings(&self) -> &SharedSettings {
        &self.settings
    }

    /// Returns the maximum time that a receive call waits (`SO_RCVTIMEO`); `None` is unlimited.
    #[must_use]
    pub fn receive_timeout(&self) -> Option<Duration> {
        self.settings.receive_timeout()
    }

    /// Returns the busy polling options (`SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and
    /// `SO_BUSY_POLL_BUDGET`).
    #[must_use]
    pub fn busy_poll(&self) -> BusyPoll {
        self.settings.busy_poll()
    }

    /// Returns the maximum time that a send call waits (`SO_SNDTIMEO`); `None` is unlimited.
    #[must_use]
    pub fn send_timeout(&self) -> Option<Duration> {
        self.settings.send_timeout()
    }

    pub(crate) const fn tuple(&self) -> &FourTuple {
        &self.name.tuple
    }

    pub(crate) const fn bind_flags(&self) -> BindFlags {
        self.bind
    }

    pub(crate) const fn is_over_loopback(&self) -> bool {
        self.over_loopback
    }

    /// Returns the local address and port, in the family of the socket.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.bind.family.present(self.name.tuple.local)
    }

    /// Returns the address and port of the peer, in the family of the socket.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.bind.family.present(self.name.tuple.remote)
    }

    /// Returns the home core of this connection. The connection sends by the queue of this core,
    /// and uses its timers until packets arrive on another core.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.name.core
    }

    /// Returns the core that received its last packets (`SO_INCOMING_CPU`), which also runs its
    /// timers.
    #[must_use]
    pub fn incoming_core(&self) -> CoreId {
        CoreId(self.incoming.load(Ordering::Relaxed))
    }

    /// Records the core that receives its packets. Linux: `sk_incoming_cpu_update`.
    #[inline]
    pub(crate) fn note_incoming(&self, core: CoreId) {
        if self.incoming.load(Ordering::Relaxed) != core.0 {
            self.incoming.store(core.0, Ordering::Relaxed);
        }
    }

    pub(crate) const fn hash(&self) -> u32 {
        self.name.hash
    }

    /// Returns the core that polls for this connection's packets: with RFS the one where its
    /// application ran last.
    #[must_use]
    pub fn polled_core(&self, net: &Net) -> CoreId {
        if !net.rfs_needed() {
            return self.name.core;
        }
        let flows = net.sock_flows(net.sysctls().rps_sock_flow_entries);
        let by_socket = flows.and_then(|flows| flows.core_of(self.name.hash));
        by_socket.filter(|core| core.0 < net.core_count()).unwrap_or(self.name.core)
    }

    /// Returns the bytes of packet memory in devices that complete later (`sk_wmem_alloc`, the `t`
    /// of `ss`'s skmem).
    #[must_use]
    pub fn wmem_alloc(&self) -> u32 {
        self.wmem.bytes()
    }

    /// Starts a socket: `register` inserts it into the tables, then its first segments are
    /// transmitted. These are already in `cx.out`, so no other thread may own the socket in
    /// between; packets that arrive meanwhile wait in the backlog.
    pub(super) fn begin(
        &self,
        net: &Net,
        cx: &mut Cx,
        register: impl FnOnce(&Cx) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.lock.own();
        register(cx)?;
        state.settle(self, net, cx);
        state.release(|state, work| {
            state.work(self, net, cx, work);
            state.settle(self, net, cx);
        });
        Ok(())
    }

    /// Records the listener that counts this connection until its handshake has completed. Called
    /// before `begin`.
    pub(super) fn set_early(&self, listener: &Arc<Listener>) {
        self.lock.own().early = Some(Arc::downgrade(listener));
    }

    /// Stores the place that the connection holds while it is in the table. Called before `begin`.
    pub(super) fn set_place(&self, place: Option<Box<SourcePlace>>) {
        if place.is_some() {
            self.lock.own().place = place;
        }
    }

    /// Marks the handshake as one with a Fast Open result to record. Called before `begin`.
    pub(super) fn set_records_fast_open(&self, retries_fast_open: bool) {
        let mut state = self.lock.own();
        (state.records_fast_open, state.retries_fast_open) = (true, retries_fast_open);
    }

    /// Ends a connection that could not start. The caller discards the segments that it would send.
    pub(super) fn discard(&self, cx: &mut Cx) {
        let mut state = self.lock.own();
        state.tcb.abort(&mut cx.tcp());
        state.end_early();
        state.place = None;
    }

    /// Returns whether an entry of the timer wheel fires in time for `deadline`. Called under the
    /// lock.
    pub(super) fn is_armed(&self, deadline: Instant) -> bool {
        self.published.armed.covers(deadline)
    }

    /// Arms the timer on the core that receives its packets. When a flow moves, its timers follow
    /// as they are armed again; in Linux the arming CPU runs them. Entries on other cores still
    /// fire there.
    #[inline]
    pub(super) fn arm(&self, net: &Net, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.published.armed.must_arm(deadline) {
            let core = net.core_sockets(self.incoming_core());
            let entry = TimerEntry::Stream(StreamTimer::of(&self.wmem));
            self.published.armed.record(core.arm(deadline, entry));
        }
    }

    /// Disarms the timers of a connection that has ended. Called under the lock.
    pub(super) fn disarm(&self, net: &Net) {
        for handle in self.published.armed.take_handles().into_iter().flatten() {
            net.core_sockets(handle.core).disarm(handle);
        }
    }
}

impl StreamState {
    /// Returns the largest superframe that its path accepts.
    pub(super) fn superframe_bytes(&self) -> usize {
        self.dst.as_ref().map_or(0, |dst| dst.gso_max_bytes as usize)
    }

    pub(super) const fn note_sent(&mut self, bytes: usize) {
        self.sent_unpolled += bytes;
    }

    /// Returns whether `every` bytes were sent since it last returned true.
    pub(super) const fn take_poll_due(&mut self, every: usize) -> bool {
        let due = self.sent_unpolled >= every;
        if due {
            self.sent_unpolled = 0;
        }
        due
    }

    /// Synchronizes the context's clock with the latest time of the socket.
    #[inline]
    pub(super) fn sync_clock(&mut self, cx: &mut Cx) {
        cx.freshen();
        cx.not_before(self.latest);
        self.latest = cx.now;
    }

    /// For calls that need no exact time: only ensures that `now` is not earlier than the socket's
    /// latest time.
    #[inline]
    pub(super) fn not_before_latest(&self, cx: &mut Cx) {
        cx.not_before(self.latest);
    }
}

#[cfg(test)]
mod tests;
