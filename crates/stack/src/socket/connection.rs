//! A TCP connection as the stack holds it: the engine's `Tcb` behind the socket lock, and what may be read without it.
//!
//! Softirq context enters with a packet, a timer or a flush (`softirq`): it runs at once if nobody holds the socket, else the
//! packet goes to the backlog and the rest becomes a DEFERRED bit, which the holder works off before it lets go (`work`).
//! Process context begins in `call`. Linux: `tcp_v4_rcv`, `release_sock`, `tcp_release_cb`.
//!
//! After anybody has changed the `Tcb`, [`StreamState::settle`] (`settle`) brings everything outside it up to date: segments
//! leave, the timer is armed, a closed connection leaves the tables, readiness is published (`readiness`).

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
use sync::{Conditions, EventCount, Llist, News, SocketLock};
use tcp::{FourTuple, IcmpError, SeqNum, Tcb};

use super::{
    demux::BindFlags,
    listener::source_limit::SourcePlace,
    modes::{prequeue::Prequeue, rx_dst::RxDst},
};
use crate::{
    base::{armed::Armed, errno::Errno, ids::CoreId, tcp_memory::TcpMemory},
    core::TimerEntry,
    cx::Cx,
    device::QueueId,
    host::Host,
    route::Path,
    socket::{BusyPoll, Listener, options::SharedSettings},
};
use wmem::{StreamTimer, Wmem};

pub(super) use work::parse;

pub(crate) mod backlog;
pub(crate) mod busy_poll;
pub(crate) mod call;
pub(crate) mod calls;
pub(crate) mod connect;
mod readiness;
pub(crate) mod recv;
pub(crate) mod send;
mod settle;
pub(crate) mod softirq;
pub(crate) mod wmem;
mod work;

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

/// Reports that wait for the holder of the socket; more are not believed in a hurry either.
const PENDING_ICMP_MAX: usize = 4;

/// A TCP connection.
///
/// # Layout
/// Lines of 64 bytes, by reader and writer:
///
/// | lines | written by | read by |
/// |---|---|---|
/// | 0, 1 | nobody in the steady state | softirq: look-up, early demux; every call |
/// | 2, [`Published`] | the holder, at the end of its work | softirq: limit of the backlog; threads that wait, without the lock |
/// | 3 | everybody who enters: the lock's word and its backlog | the same |
/// | from 4 on | the holder, and behind its state whoever waits or drops | the same |
#[derive(Debug)]
#[repr(C, align(64))]
pub struct TcpSocket {
    /// Key of the look-up.
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
    /// What devices that complete later still hold of ours. Its words are on lines of their own.
    wmem: Arc<Wmem>,
    /// The input route for packets to come. Written by the holder when the route changes.
    pub(super) rx_dst: RxDst,
    published: Published,
    pub(super) lock: SocketLock<StreamState, Packet>,
    /// Packets that the backlog did not take. Relaxed: a counter orders nothing.
    pub(super) backlog_drops: AtomicU32,
    /// Packets that reads have emptied, with `skb_recycle` at `list_after_unlock`: for whoever comes first without the lock.
    /// Linux: the `defer_list` of a socket.
    pub(super) read_packets: Llist<Packet>,
    /// ICMP errors that nobody has told the `Tcb` yet, with the sequence numbers they quote: at most [`PENDING_ICMP_MAX`].
    icmp: Mutex<Vec<(IcmpError, SeqNum)>>,
    /// Options that calls look at without the lock.
    settings: SharedSettings,
    /// Threads that wait until there is something to read, or the connection has ended.
    readers: EventCount,
    /// Threads that wait for room to write.
    writers: EventCount,
}

/// What the holder of the lock publishes for those who do not hold it.
#[derive(Debug)]
#[repr(C, align(64))]
struct Published {
    /// `Readiness` bits as of the last change, and `PREQUEUED`. Written under the lock, read by waiters without it.
    ready: Conditions,
    /// Our FIN is on its way and not acknowledged: FIN-WAIT-1, CLOSING, LAST-ACK. Written under the lock.
    finishing: AtomicBool,
    /// What the backlog may hold in bytes: a limit from the buffers, less what waits to be read. Relaxed: a limit orders
    /// nothing.
    backlog_limit: AtomicU32,
    /// `SO_RCVLOWAT`: bytes a blocking read waits for. Written under the lock. Relaxed: a limit orders nothing.
    rcvlowat: AtomicU32,
    /// Entries of this socket in timer wheels.
    armed: Armed,
}

// The groups of "Layout".
const LINE: usize = 64;
const _: () = assert!(align_of::<TcpSocket>() == LINE && offset_of!(TcpSocket, tuple) == 0);
const _: () = assert!(offset_of!(TcpSocket, hash) == LINE);
const _: () = assert!(offset_of!(TcpSocket, rx_dst) + size_of::<RxDst>() <= 2 * LINE);
const _: () = assert!(offset_of!(TcpSocket, published) == 2 * LINE);
const _: () = assert!(offset_of!(TcpSocket, lock) == 3 * LINE && size_of::<Published>() == LINE);
const _: () = assert!(offset_of!(TcpSocket, backlog_drops).is_multiple_of(LINE));

/// What the holder of the socket lock may touch.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(super) tcb: Box<Tcb>,
    pub(super) dst: Option<Path>,
    /// Since when it is stopped because of what is below.
    throttled_since: Option<Instant>,
    /// Device and queue that its packets go by (Linux: `sk_tx_queue_mapping`).
    tx_mapping: Option<(u32, QueueId)>,
    /// IPv4 identification of the next segment that has one (Linux: `inet_id`).
    ip_id: u16,
    /// What waits for a reader that waits, and which one that is.
    pub(super) prequeue: Prequeue,
    /// The four-tuple leads to this socket.
    hashed: bool,
    /// Counted among the host's orphans.
    orphan: bool,
    /// Its place among the connections of its source with its listener; returned when it leaves the table of connections.
    place: Option<Box<SourcePlace>>,
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
    pub(super) news: News,
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
            wmem: Wmem::new(this.clone(), host.core(core).tasklet()),
            rx_dst: RxDst::new(host.rcu()),
            published: Published {
                ready: Conditions::new(tcb.readiness().bits()),
                finishing: AtomicBool::new(false),
                backlog_limit: AtomicU32::new(u32::MAX),
                rcvlowat: AtomicU32::new(tcb.rcvlowat()),
                armed: Armed::new(),
            },
            lock: SocketLock::new(StreamState {
                tcb,
                dst,
                throttled_since: None,
                tx_mapping: None,
                ip_id: host.ip_ids().of_connection(&tuple),
                prequeue: Prequeue::default(),
                hashed: true,
                orphan: false,
                place: None,
                early: None,
                learns: false,
                on_trial: false,
                latest,
                confirmed,
                news: News::default(),
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

    /// What the connection keeps while its four-tuple leads to it. Before `begin`.
    pub(super) fn set_place(&self, place: Option<Box<SourcePlace>>) {
        if place.is_some() {
            self.lock.own().place = place;
        }
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
        state.place = None;
    }

    /// An entry of the timer wheel will fire in time for `deadline`. Under the lock.
    pub(super) fn is_armed(&self, deadline: Instant) -> bool {
        self.published.armed.covers(deadline)
    }

    /// Where its packets go up: a flow that moves takes its timers along as they are armed anew, in Linux by whichever CPU
    /// arms them. What is armed elsewhere fires there, late at most.
    #[inline]
    pub(super) fn arm(&self, host: &Host, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.published.armed.must_arm(deadline) {
            let core = host.core(self.incoming_core());
            let entry = TimerEntry::Stream(StreamTimer::of(&self.wmem));
            self.published.armed.armed(core.arm(deadline, entry));
        }
    }

    /// The connection waits for nothing any more. Under the lock.
    pub(super) fn disarm(&self, host: &Host) {
        for handle in self.published.armed.take_handles().into_iter().flatten() {
            host.core(handle.core).disarm(handle);
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
}

#[cfg(test)]
mod tests;
