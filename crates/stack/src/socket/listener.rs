//! Passive opens: the listener with its SYN queue and accept queue.
//!
//! A SYN becomes a small request in the established table. The third segment turns the request into
//! a connection, which waits in the accept queue. Fast Open makes the connection at once (`early`).
//! Both queues are bounded by the backlog of `listen` (and `net.core.somaxconn`), the SYN queue
//! also by `net.ipv4.tcp_max_syn_backlog`. When the SYN queue is full, SYNs are answered with
//! cookies (`net.ipv4.tcp_syncookies`), which need no state. Linux:
//! net/ipv4/inet_connection_sock.c, tcp_conn_request.
//!
//! Not here: selection of the listener of a segment (`demux`), requests (`request`, `syn_queue`),
//! the limit per source address (`source_limit`).

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use pkt::Packet;
use sync::{EventCount, RcuCell, Watchers};
use tcp::{Readiness, SegmentHeader, SeqNum};

use super::{
    connection::{Connection, readiness::notify_watchers},
    demux::{BindFlags, FlowName},
    family::{self, Family},
    options::SocketSettings,
};
use crate::{
    base::{counters::Counter, errno::Errno, ids::CoreId},
    cx::Cx,
    socket::net::Net,
    sysctl::Sysctls,
};
use accept_queue::AcceptQueue;
use source_limit::SourceLimit;
use syn_queue::SynQueue;

pub(crate) mod accept_queue;
pub(crate) mod early;
mod input;
mod options;
pub(crate) mod request;
pub(crate) mod source_limit;
pub(crate) mod syn_queue;

pub use options::{BACKLOG_DEFAULT, ListenOptions};

/// A SYN that a listener answers.
#[derive(Debug)]
struct Syn<'a> {
    name: &'a FlowName,
    /// Lower bound of the initial sequence number, if the four-tuple has just left TIME-WAIT.
    iss_min: Option<SeqNum>,
    header: &'a SegmentHeader,
    /// Payload of the SYN.
    packet: Packet,
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    /// Canonical address ([`family::canonical`]).
    address: SocketAddr,
    flags: BindFlags,
    incoming_core: Option<CoreId>,
    /// Maximum number of connections that wait for `accept`. Relaxed: a bound orders nothing.
    backlog: AtomicUsize,
    /// Options that every connection starts with. Read by every SYN and third segment.
    settings: RcuCell<SocketSettings>,
    syn_queue: SynQueue,
    /// Limit of connections per source address, and their counts.
    source_limit: Arc<SourceLimit>,
    /// Number of connections that are open before their handshake has completed (Fast Open).
    /// Relaxed: a bound orders nothing.
    early: AtomicUsize,
    accept_queue: Mutex<AcceptQueue>,
    /// Length of `accept_queue`, to read without the lock.
    waiting: AtomicUsize,
    /// Time of the last SYN cookie in nanoseconds; 0 if none was sent. Relaxed: if an ACK is
    /// processed before the store is visible, the peer repeats the ACK.
    cookie_sent_ns: AtomicU64,
    closed: AtomicBool,
    /// Whether the host has lost the address: `accept` then fails with `ENETDOWN` instead of
    /// `EINVAL`. Written before `closed`, read after it.
    address_lost: AtomicBool,
    acceptors: EventCount,
    /// Tasks and event loops.
    watchers: Watchers,
}

impl Listener {
    /// Listens on `local` with the defaults of [`ListenOptions`]; port 0 selects any free port.
    ///
    /// # Errors
    /// As [`listen_with`](Self::listen_with).
    pub fn listen(
        net: &Net,
        cx: &mut Cx,
        local: SocketAddr,
        backlog: u32,
    ) -> Result<Arc<Self>, Errno> {
        Self::listen_with(net, cx, local, &ListenOptions { backlog, ..ListenOptions::default() })
    }

    /// Listens on `local`; port 0 selects any free port.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for an address that is not local, `EADDRINUSE` as for bind(2) and listen(2),
    /// `ENETDOWN` after the shutdown of the host, `EINVAL` for a link-local address without its
    /// scope, and for a v4-mapped address with `IPV6_V6ONLY`.
    pub fn listen_with(
        net: &Net,
        cx: &mut Cx,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Arc<Self>, Errno> {
        net.check_up()?;
        let sysctls = net.sysctls();
        let flags = options.settings.bind_flags(local, &sysctls);
        let mut local = family::canonical(local)?;
        if local.is_ipv4() && flags.family == Family::V6Only {
            return Err(Errno::EINVAL);
        }
        if !local.ip().is_unspecified() && !net.is_local_end(cx, local) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let any_port = local.port() == 0;
        let listener = loop {
            if any_port {
                local.set_port(unused_port(net, cx, local, &sysctls.ip_local_port_range)?);
            }
            let listener = Arc::new(Self::new(&sysctls, cx, (local, flags), options));
            match net.demux().listen(&cx.reader(), &listener) {
                Ok(()) => break listener,
                // Another thread has taken the port since the search.
                Err(Errno::EADDRINUSE) if any_port => {}
                Err(errno) => return Err(errno),
            }
        };
        net.check_up().inspect_err(|_| listener.close(net, cx))?;
        Ok(listener)
    }

    fn new(
        sysctls: &Sysctls,
        cx: &Cx,
        (address, flags): (SocketAddr, BindFlags),
        options: &ListenOptions,
    ) -> Self {
        Self {
            address,
            flags,
            incoming_core: options.settings.incoming_core,
            backlog: AtomicUsize::new(bounded_backlog(sysctls, options.backlog)),
            settings: RcuCell::new(cx.reader().domain(), options.settings.clone()),
            syn_queue: SynQueue::new(),
            source_limit: SourceLimit::new(options.settings.max_per_source),
            early: AtomicUsize::new(0),
            accept_queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            cookie_sent_ns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            address_lost: AtomicBool::new(false),
            acceptors: EventCount::new(),
            watchers: Watchers::new(),
        }
    }

    /// Returns the local address, in the family of the socket.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.flags.family.present(self.address)
    }

    /// Returns the local address as the tables know it.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the flags that allow sharing the port.
    pub(crate) const fn flags(&self) -> BindFlags {
        self.flags
    }

    /// Returns the core whose connections the listener prefers.
    #[must_use]
    pub const fn incoming_core(&self) -> Option<CoreId> {
        self.incoming_core
    }

    /// Returns the number of half-open connections.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.syn_queue.len()
    }

    /// Returns the number of half-open and open connections of `source` that the limit counts
    /// ([`ListenOptions::max_per_source`]): 0 without a limit.
    #[must_use]
    pub fn connections_of(&self, source: IpAddr) -> u32 {
        self.source_limit.count(source)
    }

    /// Returns the number of source addresses with a counted connection; an IPv6 /64 counts as one.
    #[must_use]
    pub fn sources(&self) -> usize {
        self.source_limit.sources()
    }

    /// Takes the oldest established connection.
    ///
    /// # Errors
    /// `EAGAIN` when there is none; `EINVAL` once the listener is closed; `ENETDOWN` once the host
    /// has lost the listener's address with its device.
    pub fn accept(&self) -> Result<Arc<Connection>, Errno> {
        self.accept_near(None)
    }

    /// Like [`accept`](Self::accept), for a thread that runs on core `near`: connections of that
    /// core are preferred, but no connection is passed over forever.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_near(&self, near: Option<CoreId>) -> Result<Arc<Connection>, Errno> {
        if self.closed.load(Ordering::Acquire) {
            let lost = self.address_lost.load(Ordering::Relaxed);
            return Err(if lost { Errno::ENETDOWN } else { Errno::EINVAL });
        }
        let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = queue.take(near).ok_or(Errno::EAGAIN)?;
        self.waiting.store(queue.len(), Ordering::Release);
        Ok(socket)
    }

    /// Returns whether `accept` would succeed, or fail permanently.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.closed.load(Ordering::Acquire)
    }

    /// Returns the event count of threads that wait for a connection.
    #[must_use]
    pub const fn acceptors(&self) -> &EventCount {
        &self.acceptors
    }

    /// Returns the registry of the tasks and event loops that the listener notifies of every
    /// connection. A caller that has registered calls [`sync_with_owner`](Self::sync_with_owner)
    /// and then checks [`readiness`](Self::readiness).
    #[must_use]
    pub const fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Synchronizes a task with the contexts that queue connections, as
    /// [`Connection::sync_with_owner`].
    pub fn sync_with_owner(&self) {
        drop(self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns READ if a connection waits, and READ and HUP once the listener is closed.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        ready.set(Readiness::READ, self.is_ready());
        ready.set(Readiness::HUP, self.is_closed());
        ready
    }

    /// Stops listening. Half-open connections are dropped, and connections not yet accepted are
    /// reset, as in Linux.
    pub fn close(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        if self.closed.swap(true, Ordering::AcqRel) {
            // The port may already belong to another listener.
            return;
        }
        net.demux().unlisten(&cx.reader(), self);
        for request in self.syn_queue.close().iter().filter_map(std::sync::Weak::upgrade) {
            request.give_up(net);
        }
        let abandoned = {
            let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(0, Ordering::Release);
            queue.take_all()
        };
        for socket in abandoned {
            socket.abort(net, cx);
            socket.close(net, cx);
        }
        self.acceptors.notify_all();
        notify_watchers(&self.watchers, cx, Readiness::READ | Readiness::HUP);
        cx.leave_polling();
    }

    /// Stops listening because the host has lost the address permanently. Linux's accept(2) lists
    /// `ENETDOWN` among the network errors that it passes on.
    pub(crate) fn lose_address(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        self.address_lost.store(true, Ordering::Relaxed);
        self.close(net, cx);
    }

    /// Changes the maximum number of connections that wait for `accept`, at most
    /// `net.core.somaxconn`, as a second listen(2) does. Waiting connections stay.
    pub fn set_backlog(&self, net: &Net, backlog: u32) {
        self.backlog.store(bounded_backlog(&net.sysctls(), backlog), Ordering::Relaxed);
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    pub(super) const fn early_count(&self) -> &AtomicUsize {
        &self.early
    }

    pub(super) const fn syn_queue(&self) -> &SynQueue {
        &self.syn_queue
    }

    /// Returns whether the queue is full. Like Linux's `sk_acceptq_is_full`, one more connection
    /// than the backlog may wait.
    pub(super) fn is_accept_queue_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > self.backlog()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Queues a connection for `accept`; resets it if the listener is closed.
    pub(super) fn offer(&self, net: &Net, cx: &mut Cx, socket: Arc<Connection>) {
        let refused = {
            let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
            // Checked under the lock that `close` takes: a connection queued after `close` has
            // emptied the queue would never be accepted.
            if self.is_closed() {
                Some(socket)
            } else {
                queue.push(socket);
                self.waiting.store(queue.len(), Ordering::Release);
                None
            }
        };
        if let Some(socket) = refused {
            socket.abort(net, cx);
            return socket.close(net, cx);
        }
        if !cx.accepts_next_of(self) && self.acceptors.notify_one() {
            cx.count(Counter::SocketWakes, 1);
        }
        notify_watchers(&self.watchers, cx, Readiness::READ);
    }
}

fn bounded_backlog(sysctls: &Sysctls, backlog: u32) -> usize {
    backlog.clamp(1, sysctls.somaxconn) as usize
}

/// Returns an unused port.
fn unused_port(
    net: &Net,
    cx: &mut Cx,
    local: SocketAddr,
    range: &RangeInclusive<u16>,
) -> Result<u16, Errno> {
    // The remote end only selects the port at which the search starts, so its port is random.
    let port = u16::try_from(cx.rng.below(1 << 16)).unwrap_or_default();
    let remote = SocketAddr::new(local.ip(), port);
    let candidates = net.ports().candidates(local.ip(), remote, range, cx.now);
    let reader = cx.reader();
    net.demux().unused_port(candidates, &reader.pin()).ok_or(Errno::EADDRINUSE)
}

impl Cx {
    /// Declares that this thread polls for the next connection of `listener`, and checks for the
    /// connection each time it has run a core. No other waiting thread needs to be woken for that
    /// connection. `None` declares that the thread has stopped polling.
    pub fn polls_to_accept(&mut self, listener: Option<&Listener>) {
        self.accepts = listener.map_or(0, |listener| core::ptr::from_ref(listener).addr());
        self.is_acceptor |= listener.is_some();
    }

    /// Returns whether this thread will accept the connection that `listener` has just queued. Each
    /// declaration with `polls_to_accept` covers one connection.
    pub(crate) fn accepts_next_of(&mut self, listener: &Listener) -> bool {
        let accepts = self.accepts == core::ptr::from_ref(listener).addr();
        if accepts {
            self.accepts = 0;
        }
        accepts
    }
}
