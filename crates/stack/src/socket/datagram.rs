//! Datagram sockets: UDP, and ICMP echo (`ping`). They use the same lock, options and waiting as
//! connections.
//!
//! Above: `receive::udp_input`, which passes datagrams, and crate `quietline`, which makes calls.
//! Below: `route`, `transmit`. Linux: net/ipv4/udp.c, net/ipv4/ping.c, net/ipv4/datagram.c,
//! net/ipv6/udp.c, net/ipv6/ping.c, net/ipv6/datagram.c.
//!
//! Softirq context enters with the datagrams of one batch, an ICMP report or a completion
//! (`softirq`). If no thread owns the socket, the datagrams are queued at once, under a single
//! acquisition of the lock, and readers are woken once; otherwise a datagram goes to the backlog
//! and other work becomes a DEFERRED bit. Process context owns the socket for a call (`call`). A
//! receive takes datagrams under the lock and, unless it peeks, copies them without it. A send
//! builds packets in the calling thread, and passes consecutive packets with one route entry (dst)
//! to the device as one list.
//!
//! Both IP versions have one type of socket. Its state and the tables hold canonical addresses
//! (`family`), so that a datagram from a v4-mapped peer is an IPv4 datagram everywhere below the
//! calls. A step that reads or writes header bytes takes the version from the address or from the
//! packet.
//!
//! A ping socket (`SOCK_DGRAM` with `IPPROTO_ICMP` or `IPPROTO_ICMPV6`) differs from a UDP socket
//! in its header: the application writes the ICMP header, and the identifier takes the place of the
//! port. Ping sockets have a table of their own, because identifiers and ports are independent.
//!
//! Invariant: `ReceiveQueue::rmem` is the sum of the `truesize` of the datagrams in the receive
//! queue, and the charged pages cover this sum.
//!
//! Differs from Linux: Linux has a separate lock for the receive queue; here the socket lock
//! protects it. Linux verifies a UDP checksum while it copies the data, unless the socket has a
//! filter; this stack verifies every checksum on arrival, so that a corrupt datagram never makes a
//! socket readable.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
    },
    time::Duration,
    vec::Vec,
};

use pkt::Packet;
use sync::{
    Conditions, EventCount, NewlyReady, RcuCell, SocketLock, Watch, WatchKey, Watchers,
    epoch::Section,
};
use tcp::{FourTuple, Readiness};

use super::{
    BusyPoll,
    connection::readiness::notify_watchers,
    family::Family,
    modes::rx_dst::RxDst,
    options::{SharedSettings, SocketSettings},
    wmem::{SendingSocket, Wmem},
};
use crate::{
    base::{
        errno::Errno,
        ids::{CoreId, DeviceIndex},
        tcp_memory::PAGE_BYTES,
        udp_memory::UdpMemory,
    },
    cx::Cx,
    route::CachedDst,
    socket::net::Net,
    transmit::dst::DstHandle,
};
use flags::DatagramFlags;
use groups::Joined;
use queue::ReceiveQueue;
pub use recv::{ReceiveMessage, Received};
pub use report::{ErrorOrigin, QueuedError};
pub use send::{SendControl, SendMessage};
pub use source_filter::SourceChange;
use target::Lookup;

mod bind;
pub(super) mod build;
mod call;
mod flags;
pub(crate) mod groups;
mod options;
mod queue;
mod recv;
pub(crate) mod report;
mod send;
mod softirq;
pub(crate) mod source_filter;
pub(crate) mod table;
mod target;

/// An ICMP report waits in `DatagramSocket::reports`.
const DEFERRED_REPORT: u8 = 1 << 0;
/// Packets of this socket have completed, so that the socket may be writable again.
const DEFERRED_TSQ: u8 = 1 << 1;

/// Protocol of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// UDP.
    Udp,
    /// Echo requests and replies of ICMP or ICMPv6.
    Ping,
}

/// A datagram socket.
///
/// In the steady state, no thread writes the fields from `core` to `kept`, except `incoming` when
/// the flow moves to another core.
#[derive(Debug)]
pub struct DatagramSocket {
    /// Protocol. Never changes.
    kind: SocketKind,
    /// Family, which determines how the application sees addresses. Never changes.
    family: Family,
    /// Core of the socket: selects the transmit queue, and resumes the socket after completions.
    core: CoreId,
    /// Core that received the socket's last datagrams. Relaxed: a hint.
    incoming: AtomicU16,
    /// Accounting of this socket's packets that have not completed.
    wmem: Arc<Wmem>,
    /// Input route entry (dst) for later datagrams, while the socket is connected. Written by the
    /// owner of the lock.
    rx_dst: RxDst,
    /// Options that softirq context and every send read without the lock.
    flags: DatagramFlags,
    /// Multicast groups that the socket has joined.
    memberships: RcuCell<Vec<Joined>>,
    /// Options that connections have, too, read without the lock.
    settings: SharedSettings,
    /// All options as set. This lock is held during a call that reads or sets an option.
    kept: Mutex<SocketSettings>,
    /// `Readiness` bits. Written under the lock, read by waiting threads without it.
    ready: Conditions,
    /// Whether an event loop is notified of datagrams that arrive behind others. Written by the
    /// loop, read under the lock. Relaxed: the loop passes the lock after it has registered.
    watched: AtomicBool,
    /// Maximum bytes in the backlog: the free space in the receive buffer when the state was last
    /// published. Relaxed: a limit orders nothing.
    backlog_limit: AtomicU32,
    lock: SocketLock<DatagramState, Packet>,
    /// Datagrams that the backlog refused. Relaxed: a counter orders nothing.
    backlog_drops: AtomicU32,
    /// ICMP reports that no owner of the lock has processed yet.
    reports: Mutex<Vec<QueuedError>>,
    /// Threads that wait for a datagram.
    readers: EventCount,
    /// Threads that wait for space to send.
    writers: EventCount,
    /// Tasks and event loops.
    watchers: Watchers,
}

/// State that only the owner of the socket lock may access.
#[derive(Debug)]
struct DatagramState {
    /// Local end; the address may be unspecified.
    local: SocketAddr,
    /// Local end as it was bound, to which a disconnected socket returns.
    bound: SocketAddr,
    /// Source address of the socket's datagrams; `None` if the route determines it.
    source: Option<IpAddr>,
    /// Peer of a connected socket.
    remote: Option<SocketAddr>,
    /// Device that `bind` or `connect` has named by the scope of an address (`sk_bound_dev_if`).
    device: Option<DeviceIndex>,
    queue: ReceiveQueue,
    /// Limit of the memory of `queue` in bytes (`sk_rcvbuf`). The last datagram may exceed the
    /// limit.
    rcvbuf: u32,
    /// Limit of the packets in devices, in bytes (`sk_sndbuf`).
    sndbuf: u32,
    /// Pages charged to the host's account.
    charged_pages: i64,
    memory: Arc<UdpMemory>,
    /// Pending error (`SO_ERROR`).
    error: Option<Errno>,
    /// Reports of `IP_RECVERR`, oldest first: at most [`report::ERRORS_MAX`].
    errors: Vec<QueuedError>,
    /// Route entry (dst) of the destination that the first message of the last send named. Cached
    /// only for the peer, and for a destination that the first message of the send before named,
    /// too.
    dst: Option<DatagramDst>,
    /// Lookup of the last destination for which no valid route entry was cached.
    last_lookup: Option<Lookup>,
    /// Four-tuple of the last message, with its hash.
    last_flow: Option<(FourTuple, u32)>,
    /// IPv4 identification of the next datagram while the socket is connected (Linux: `inet_id`).
    ip_id: u16,
    /// Bits of `ready` whose waiting threads have not been woken yet.
    newly_ready: NewlyReady,
    /// Datagrams dropped because the receive buffer was full or the host had no memory for
    /// datagrams (`sk_drops`).
    drops: u32,
    /// True once the socket has been closed: by a call, by the shutdown of the host, or because the
    /// host has lost the address.
    closed: bool,
    /// Bytes sent since a sending thread last polled the core of the socket.
    sent_unpolled: usize,
}

/// Route entry (dst), with the lookup that has found it.
#[derive(Debug)]
struct DatagramDst {
    lookup: Lookup,
    dst: CachedDst,
}

/// Returns the charges when the socket is dropped.
impl Drop for DatagramState {
    fn drop(&mut self) {
        self.memory.uncharge(self.charged_pages);
    }
}

/// Properties with which a socket is opened.
#[derive(Clone, Copy, Debug)]
struct Ends {
    kind: SocketKind,
    family: Family,
    local: SocketAddr,
    device: Option<DeviceIndex>,
}

impl DatagramSocket {
    /// Creates a socket that is not in a table yet.
    fn new(net: &Net, cx: &Cx, ends: &Ends, core: CoreId, kept: SocketSettings) -> Arc<Self> {
        let Ends { kind, family, local, device } = *ends;
        let sysctls = cx.sysctls();
        let rcvbuf = kept.tcp.rcvbuf.unwrap_or(sysctls.rmem_default);
        let sndbuf = kept.tcp.sndbuf.unwrap_or(sysctls.wmem_default);
        let settings = SharedSettings::new(kept.bind_flags(local, sysctls));
        settings.copy_from(&kept);
        Arc::new_cyclic(|this| Self {
            kind,
            family,
            core,
            incoming: AtomicU16::new(core.0),
            wmem: Wmem::new(
                SendingSocket::Datagram(this.clone()),
                net.core_sockets(core).tasklet(),
            ),
            rx_dst: RxDst::new(net.rcu()),
            flags: DatagramFlags::new(&kept),
            memberships: RcuCell::new(net.rcu(), Vec::new()),
            settings,
            kept: Mutex::new(kept),
            ready: Conditions::new(Readiness::WRITE.bits()),
            watched: AtomicBool::new(false),
            backlog_limit: AtomicU32::new(rcvbuf),
            lock: SocketLock::new(DatagramState {
                local,
                bound: local,
                source: Some(local.ip()).filter(|ip| net.is_local(cx, *ip)),
                remote: None,
                device,
                queue: ReceiveQueue::default(),
                rcvbuf,
                sndbuf,
                charged_pages: 0,
                memory: Arc::clone(net.udp_memory()),
                error: None,
                errors: Vec::new(),
                dst: None,
                last_lookup: None,
                last_flow: None,
                ip_id: 0,
                newly_ready: NewlyReady::default(),
                drops: 0,
                closed: false,
                sent_unpolled: 0,
            }),
            backlog_drops: AtomicU32::new(0),
            reports: Mutex::default(),
            readers: EventCount::new(),
            writers: EventCount::new(),
            watchers: Watchers::new(),
        })
    }

    /// Returns the core of the socket, which selects the transmit queue.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// Returns the core that received the socket's last datagrams (`SO_INCOMING_CPU`). A waiting
    /// thread polls this core.
    #[must_use]
    pub fn incoming_core(&self) -> CoreId {
        CoreId(self.incoming.load(Ordering::Relaxed))
    }

    /// Records the core that receives the socket's datagrams.
    #[inline]
    pub(crate) fn note_incoming(&self, core: CoreId) {
        if self.incoming.load(Ordering::Relaxed) != core.0 {
            self.incoming.store(core.0, Ordering::Relaxed);
        }
    }

    /// Returns the readiness without owning the socket.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.ready.load())
    }

    /// Returns the event count of threads that wait for a datagram, or for space to send.
    #[must_use]
    pub const fn waiters(&self, interest: Readiness) -> &EventCount {
        if interest.contains(Readiness::WRITE) { &self.writers } else { &self.readers }
    }

    /// Synchronizes a waiting thread with the owner, as for a connection
    /// ([`Connection::sync_with_owner`](super::Connection::sync_with_owner)).
    pub fn sync_with_owner(&self) {
        self.lock.pass();
    }

    /// Returns the tasks and event loops that the socket notifies, as
    /// [`Connection::watchers`](super::Connection::watchers).
    #[must_use]
    pub const fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Registers an event loop, as [`Connection::watch`](super::Connection::watch). `watch` is
    /// called for every batch of datagrams.
    pub fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        let added = self.watchers.add(key, watch);
        self.watched.store(true, Ordering::Relaxed);
        self.sync_with_owner();
        added
    }

    /// Records that a send has found no space, so that waiting threads are notified of space. Under
    /// the lock.
    #[cold]
    fn note_full(&self) {
        self.ready.retract(Readiness::WRITE.bits());
    }

    /// Returns the maximum time that a receive waits (`SO_RCVTIMEO`); `None` is unlimited.
    #[must_use]
    pub fn receive_timeout(&self) -> Option<Duration> {
        self.settings.receive_timeout()
    }

    /// Returns the maximum time that a send waits (`SO_SNDTIMEO`); `None` is unlimited.
    #[must_use]
    pub fn send_timeout(&self) -> Option<Duration> {
        self.settings.send_timeout()
    }

    /// Returns the busy polling options.
    #[must_use]
    pub fn busy_poll(&self) -> BusyPoll {
        self.settings.busy_poll()
    }

    /// Returns the cached input route entry, if the socket is connected and the entry is valid for
    /// a datagram that arrived on `device`.
    #[inline]
    pub(crate) fn rx_dst<'s>(
        &'s self,
        net: &Net,
        device: DeviceIndex,
        rcu: &'s Section<'_>,
    ) -> Option<DstHandle<'s>> {
        self.rx_dst.check(net, device, rcu)
    }

    /// Wakes the threads that wait for the conditions in `newly_ready`. Called without the lock.
    #[inline]
    fn wake(&self, cx: &mut Cx, newly_ready: u8) {
        if newly_ready == 0 {
            return;
        }
        let newly_ready = Readiness::from_bits_truncate(newly_ready);
        let ended = Readiness::HUP | Readiness::ERROR;
        for (bits, waiters, read) in [
            (Readiness::READ | ended, &self.readers, true),
            (Readiness::WRITE | ended, &self.writers, false),
        ] {
            if newly_ready.intersects(bits) && cx.notify_all(waiters, read) {
                cx.count(crate::base::counters::Counter::SocketWakes, 1);
            }
        }
        notify_watchers(&self.watchers, cx, newly_ready & self.readiness());
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, SocketSettings> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DatagramState {
    /// Publishes the state that is read without the lock, and notes the conditions that have become
    /// true. Linux: `datagram_poll`.
    fn publish(&mut self, socket: &DatagramSocket, cx: &Cx) {
        let mut ready = Readiness::empty();
        if !self.queue.is_empty() || self.error.is_some() || self.closed {
            ready |= Readiness::READ;
        }
        if self.error.is_some() || !self.errors.is_empty() {
            ready |= Readiness::ERROR;
        }
        if self.closed {
            ready |= Readiness::HUP;
        }
        if self.is_writable(socket, cx) {
            ready |= Readiness::WRITE;
        }
        let room = self.rcvbuf.saturating_sub(self.queue.rmem());
        if socket.backlog_limit.load(Ordering::Relaxed) != room {
            socket.backlog_limit.store(room, Ordering::Relaxed);
        }
        socket.ready.publish(ready.bits(), &mut self.newly_ready);
    }

    /// Returns whether at most half of the send buffer is in devices (`sock_writeable`). If more
    /// is, a completion publishes the state again.
    fn is_writable(&self, socket: &DatagramSocket, cx: &Cx) -> bool {
        let limit = self.sndbuf / 2;
        socket.wmem.bytes() <= limit || !socket.wmem.throttle(cx.sysctls().tsq_protocol, limit)
    }

    /// Charges pages for the receive queue, which is about to grow to `rmem` bytes. Returns false,
    /// and charges nothing, if the host has no more pages for datagrams.
    #[inline]
    fn charge(&mut self, cx: &Cx, rmem: u32) -> bool {
        let more = i64::from(rmem.div_ceil(PAGE_BYTES)) - self.charged_pages;
        if more <= 0 {
            return true;
        }
        let charged = cx.charge_udp(&self.memory, more);
        if charged {
            self.charged_pages += more;
        }
        charged
    }

    /// Uncharges unused pages after reads, once they exceed a quarter of the receive buffer or the
    /// queue is empty (Linux: `udp_rmem_release`).
    #[inline]
    fn uncharge(&mut self, cx: &Cx) {
        let spare = self.charged_pages - i64::from(self.queue.rmem().div_ceil(PAGE_BYTES));
        let enough = i64::from(self.rcvbuf / 4 / PAGE_BYTES).max(1);
        if spare > enough || (spare > 0 && self.queue.is_empty()) {
            self.charged_pages -= spare;
            let _ = cx.charge_udp(&self.memory, -spare);
        }
    }
}
