//! A TCP connection in the stack: the `Tcb` of crate `tcp` under the socket lock, and the state
//! that threads read without the lock.
//!
//! Softirq context enters with a packet, a timer, or a flush at the end of a batch of packets
//! (`softirq`). If no thread owns the socket, the work runs at once. Otherwise a packet is added to
//! the backlog, and other work becomes a DEFERRED bit; the owner processes both before it releases
//! the socket (`backlog`, `work`). Process context, a socket call, enters in `call`. Linux:
//! `tcp_v4_rcv`, `release_sock`, `tcp_release_cb`.
//!
//! After the `Tcb` has changed, at the latest at the end of a batch of packets or of a call,
//! [`StreamState::settle`] (`settle`) brings the rest of the connection up to date: it transmits
//! segments, arms the timer, removes a closed connection from the tables, charges memory, and
//! publishes readiness (`readiness`).

use std::{
    boxed::Box,
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
    },
    time::Duration,
};

use pkt::{Instant, Packet};
use sync::{Conditions, EventCount, Llist, NewlyReady, SocketLock, Watchers};
use tcp::{FourTuple, IcmpError, SeqNum, Tcb};

use super::{
    demux::{BindFlags, FlowName},
    listener::source_limit::SourcePermit,
    modes::{prequeue::Prequeue, rx_dst::RxDst},
    wmem::{SendingSocket, StreamTimer, Wmem},
};
use crate::{
    base::{
        armed_timers::ArmedTimers,
        errno::Errno,
        ids::{CoreId, DeviceIndex},
        tcp_memory::TcpMemory,
    },
    cx::Cx,
    device::DeviceQueue,
    route::CachedDst,
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
pub(super) mod readiness;
pub(crate) mod recv;
pub(crate) mod send;
mod settle;
pub(crate) mod softirq;
mod work;

/// A shared connection.
pub type SocketRef = Arc<Connection>;

/// A timer has fired: `TCP_WRITE_TIMER_DEFERRED`, `TCP_DELACK_TIMER_DEFERRED`. This constant and
/// the following ones are the bits of the socket lock that stand for deferred work.
pub(super) const DEFERRED_TIMER: u8 = 1 << 0;
/// A batch of packets has been received: output, the ACK decision and wakes are due.
pub(super) const DEFERRED_FLUSH: u8 = 1 << 1;
/// An ICMP message waits in `Connection::icmp`.
const DEFERRED_ICMP: u8 = 1 << 2;
/// A device has completed packets, so TCP Small Queues may admit more segments: `TCP_TSQ_DEFERRED`.
const DEFERRED_TSQ: u8 = 1 << 3;

/// Memory must be reclaimed (`Tcb::reclaim_memory`). If no other bit is set, `settle` runs only if
/// data was dropped.
const DEFERRED_TRIM: u8 = 1 << 4;

/// Headroom of the backlog, added to the limit that follows from the socket's buffers. Linux:
/// `tcp_add_backlog` adds 64 KB, because only the owner can prune the queues of the socket.
const BACKLOG_EXTRA_BYTES: u32 = 64 * 1024;

/// Maximum number of ICMP messages that wait for the owner of the socket. Further ones are dropped.
const PENDING_ICMP_MAX: usize = 4;

/// ICMP message about a segment of a connection.
#[derive(Clone, Copy, Debug)]
enum PendingIcmp {
    Error(IcmpError),
    Redirect(RouterAdvice),
}

/// Redirect for IPv4: `router` of the link of `device` advises to use `gateway` instead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterAdvice {
    pub(crate) device: DeviceIndex,
    pub(crate) router: IpAddr,
    pub(crate) gateway: IpAddr,
}

/// A TCP connection.
///
/// # Layout
/// The cache lines of 64 bytes, with the threads that write and read them:
///
/// | cache lines | written by | read by |
/// |---|---|---|
/// | 0, 1 | no thread in the steady state | softirq: lookup, early demux; every call |
/// | 2, `Published` | mostly the owner, at the end of its work | softirq; waiting threads |
/// | 3, lock word, backlog | threads that take the lock or leave work to its owner | the same |
/// | from 4 on | the owner; the fields after the lock: all threads | the same |
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Connection {
    /// Lookup key, and the core of the socket.
    name: FlowName,
    /// Core that received the last packets of the connection (Linux: `sk_incoming_cpu`). The
    /// receiving thread writes the field when the core changes. Relaxed: a hint.
    incoming: AtomicU16,
    /// Whether both ends of the connection are on this host.
    over_loopback: bool,
    /// Flags that allow other sockets to bind the local address and port of this one.
    bind: BindFlags,
    /// Accounting of the sent packets of this socket that devices still hold. It has separate cache
    /// lines.
    wmem: Arc<Wmem>,
    /// Cached route entry (dst) for received packets. Written by the owner when the entry changes.
    pub(super) rx_dst: RxDst,
    published: Published,
    pub(super) lock: SocketLock<StreamState, Packet>,
    /// Number of packets that the backlog refused. Relaxed: a counter orders nothing.
    pub(super) backlog_drops: AtomicU32,
    /// Packets whose data has been read, if `skb_recycle` is `list_after_unlock`. A thread that
    /// does not own the lock frees them. Linux: the `defer_list` of a socket.
    pub(super) read_packets: Llist<Packet>,
    /// ICMP messages not yet processed, each with the sequence number that it quotes: at most
    /// [`PENDING_ICMP_MAX`].
    icmp: Mutex<Vec<(PendingIcmp, SeqNum)>>,
    /// Options that calls read without the lock.
    settings: SharedSettings,
    /// Event count of the threads that wait for data, or for the end of the connection.
    readers: EventCount,
    /// Event count of the threads that wait for space to write.
    writers: EventCount,
    /// Tasks and event loops.
    watchers: Watchers,
}

/// State that the owner of the lock publishes for threads that do not own it.
#[derive(Debug)]
#[repr(C, align(64))]
struct Published {
    /// Present `Readiness` bits, and `PREQUEUED`. Written under the lock; waiting threads read the
    /// bits without the lock.
    ready: Conditions,
    /// Whether our FIN is queued or sent, and not acknowledged: FIN-WAIT-1, CLOSING, LAST-ACK.
    /// Written under the lock.
    finishing: AtomicBool,
    /// Whether an event loop is notified of data that arrives behind readable data. Written by the
    /// loop, read under the lock. Relaxed: the loop passes the lock after it has registered.
    watched: AtomicBool,
    /// Maximum bytes in the backlog: a limit derived from the buffers, minus unread data. Relaxed:
    /// a limit orders nothing.
    backlog_limit: AtomicU32,
    /// `SO_RCVLOWAT`: bytes that a blocking read waits for. Written under the lock. Relaxed: a
    /// limit orders nothing.
    rcvlowat: AtomicU32,
    /// Entries of this socket in timer wheels.
    armed: ArmedTimers,
}

// These assertions check the table in "Layout" of `Connection`.
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
    pub(super) dst: Option<CachedDst>,
    /// Time at which TCP Small Queues began to throttle the socket; `None` while it does not.
    throttled_since: Option<Instant>,
    /// Device and queue that transmit the packets of this socket (Linux: `sk_tx_queue_mapping`).
    tx_mapping: Option<DeviceQueue>,
    /// Next IPv4 identification, for segments that carry one (Linux: `inet_id`).
    ip_id: u16,
    /// Prequeue: packets that a waiting reader will process, and the identity of the reader.
    pub(super) prequeue: Prequeue,
    /// Whether the four-tuple table refers to this socket.
    hashed: bool,
    /// Whether the socket is counted as an orphan of the host.
    orphan: bool,
    /// Count of this connection in the listener's limit per source address
    /// (`listener::source_limit`). Dropped when the connection leaves the table.
    permit: Option<Box<SourcePermit>>,
    /// Listener that counts this connection while its handshake has not completed.
    early: Option<Weak<Listener>>,
    /// Whether the result of Fast Open in this handshake is to be recorded for later connections.
    records_fast_open: bool,
    /// Whether the connection tries Fast Open again after a suspected black hole (Linux:
    /// `tcp_fastopen_active_disable`).
    retries_fast_open: bool,
    /// Latest time at which this socket was used. Contexts read the clock at different times, but
    /// the time of a connection (above all its TCP timestamps) must not run backwards when another
    /// context takes the socket.
    latest: Instant,
    /// SND.UNA when the reachability of the next hop was last confirmed to the neighbor table.
    confirmed: SeqNum,
    /// RCV.NXT when readiness was last published, while `Published::watched` is set.
    watched_nxt: SeqNum,
    /// Bits of `Published::ready` that have become set while the threads that wait for them have
    /// not been woken yet. The thread that releases the socket takes the bits and passes them to
    /// [`Connection::wake`].
    pub(super) newly_ready: NewlyReady,
    /// Pages of TCP memory that the host's account has charged for this socket.
    charged_pages: i64,
    /// Number of segments that TCP dropped. The sum with `backlog_drops` is Linux's `sk_drops`.
    pub(super) drops: u32,
    /// Whether the current call has only taken data from the receive queue.
    pub(super) only_read: bool,
    /// Bytes that the application has sent since it last polled the devices of the core
    /// (`poll_in_passing`).
    sent_unpolled: usize,
    memory: Arc<TcpMemory>,
}

/// Returns the charges to the host's account.
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
        dst: Option<CachedDst>,
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
                watched: AtomicBool::new(false),
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
                permit: None,
                early: None,
                records_fast_open: false,
                retries_fast_open: false,
                latest,
                confirmed,
                watched_nxt: SeqNum(0),
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
            watchers: Watchers::new(),
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

    /// Returns the home core of this connection. The connection sends through the device queue of
    /// this core, unless `xps_cpus` selects another queue. The timers of the connection run on this
    /// core, too, until packets arrive on another core.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.name.core
    }

    /// Returns the core that received the last packets of this connection (`SO_INCOMING_CPU`). This
    /// core also runs the timers of the connection.
    #[must_use]
    pub fn incoming_core(&self) -> CoreId {
        CoreId(self.incoming.load(Ordering::Relaxed))
    }

    /// Records the core that receives the packets of this connection. Linux:
    /// `sk_incoming_cpu_update`.
    #[inline]
    pub(crate) fn note_incoming(&self, core: CoreId) {
        if self.incoming.load(Ordering::Relaxed) != core.0 {
            self.incoming.store(core.0, Ordering::Relaxed);
        }
    }

    pub(crate) const fn hash(&self) -> u32 {
        self.name.hash
    }

    /// Returns whether `device` may bring segments of the connection: any device, or the one that
    /// has brought an intercepted flow.
    pub(crate) fn may_come_by(&self, device: DeviceIndex) -> bool {
        self.name.via.is_none_or(|via| via == device)
    }

    /// Returns the device of an intercepted flow.
    pub(crate) const fn via(&self) -> Option<DeviceIndex> {
        self.name.via
    }

    /// Returns the core that processes this connection's packets: with RFS, the home core
    /// ([`Cx::home`]) of the thread that made the last call on the connection; otherwise
    /// [`core`](Self::core).
    #[must_use]
    pub fn polled_core(&self, net: &Net) -> CoreId {
        if !net.rfs_needed() {
            return self.name.core;
        }
        let flows = net.sock_flows(net.sysctls().rps_sock_flow_entries);
        let by_socket = flows.and_then(|flows| flows.core_of(self.name.hash));
        by_socket.filter(|core| core.0 < net.core_count()).unwrap_or(self.name.core)
    }

    /// Returns the bytes of sent packets that devices still hold (`sk_wmem_alloc`, the `t` of
    /// `ss`'s skmem).
    #[must_use]
    pub fn wmem_alloc(&self) -> u32 {
        self.wmem.bytes()
    }

    /// Starts a socket: `register` inserts it into the tables; then its first segments, which are
    /// already in `cx.out`, are transmitted. The thread takes the socket before the registration,
    /// so that packets that arrive before these segments are sent wait in the backlog.
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

    /// Records the listener that counts this connection until its handshake has completed. Must be
    /// called before `begin`.
    pub(super) fn set_early_listener(&self, listener: &Arc<Listener>) {
        self.lock.own().early = Some(Arc::downgrade(listener));
    }

    /// Stores the count of this connection in the limit per source address. Must be called before
    /// `begin`.
    pub(super) fn set_permit(&self, permit: Option<Box<SourcePermit>>) {
        if permit.is_some() {
            self.lock.own().permit = permit;
        }
    }

    /// Makes the connection record the result of Fast Open after the handshake. Must be called
    /// before `begin`.
    pub(super) fn set_records_fast_open(&self, retries_fast_open: bool) {
        let mut state = self.lock.own();
        (state.records_fast_open, state.retries_fast_open) = (true, retries_fast_open);
    }

    /// Ends a connection that could not be started. The caller discards the segments in `cx.out`.
    pub(super) fn discard(&self, cx: &mut Cx) {
        let mut state = self.lock.own();
        state.tcb.abort(&mut cx.tcp());
        state.end_early();
        state.permit = None;
    }

    /// Returns whether an armed timer of the connection fires in time for `deadline`. Must be
    /// called under the lock.
    pub(super) fn is_armed(&self, deadline: Instant) -> bool {
        self.published.armed.covers(deadline)
    }

    /// Arms a timer for `deadline` on the core that receives the connection's packets, unless an
    /// armed timer fires no later. Differs from Linux, where the CPU that arms a timer runs it.
    /// When the flow moves to another core, timers that are already armed still fire on the old
    /// core; later ones are armed on the new core.
    #[inline]
    pub(super) fn arm(&self, net: &Net, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.published.armed.must_arm(deadline) {
            let core = net.core_sockets(self.incoming_core());
            let entry = TimerEntry::Stream(StreamTimer::of(&self.wmem));
            self.published.armed.record(core.arm(deadline, entry));
        }
    }

    /// Disarms the timers of a connection that has ended. Must be called under the lock.
    pub(super) fn disarm(&self, net: &Net) {
        for handle in self.published.armed.take_handles().into_iter().flatten() {
            net.core_sockets(handle.core).disarm(handle);
        }
    }
}

impl StreamState {
    /// Returns the maximum bytes of a superframe (packet of several segments) on the route of the
    /// connection; 0 without a route.
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

    /// Reads the clock if `now` may be stale, and ensures that neither `now` nor the latest time of
    /// the socket runs backwards.
    #[inline]
    pub(super) fn sync_clock(&mut self, cx: &mut Cx) {
        cx.refresh_clock();
        cx.advance_clock_to(self.latest);
        self.latest = cx.now;
    }

    /// Ensures that `now` is not earlier than the socket's latest time, without reading the clock.
    /// For calls that need no exact time.
    #[inline]
    pub(super) fn advance_clock_to_latest(&self, cx: &mut Cx) {
        cx.advance_clock_to(self.latest);
    }
}

#[cfg(test)]
mod tests;
