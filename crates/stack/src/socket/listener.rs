//! Passive opens: the listener with its SYN queue and accept queue.
//!
//! A SYN becomes a small request in the established table; the third segment turns the request into a connection,
//! which waits in the accept queue. Both queues are bounded: the accept queue by the backlog of `listen` (and
//! `net.core.somaxconn`), the SYN queue by `net.ipv4.tcp_max_syn_backlog`. Linux: net/ipv4/inet_connection_sock.c.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use pkt::{DropReason, Packet};
use sync::EventCount;
use tcp::{Counter as TcpCounter, Flags, FourTuple, SegmentHeader, SeqNum};

use super::{request::RequestSocket, stream::TcpSocket};
use crate::{counters::Counter, cx::Cx, errno::Errno, host::Host, sysctl::Sysctls};

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    local: SocketAddr,
    /// Connections that may wait for `accept`.
    backlog: usize,
    /// Requests in the table. A gauge; the bound is checked against it before a request is made.
    requests: AtomicUsize,
    accept_queue: Mutex<VecDeque<Arc<TcpSocket>>>,
    /// Length of `accept_queue`, to look without the lock.
    waiting: AtomicUsize,
    closed: AtomicBool,
    acceptors: EventCount,
}

impl Listener {
    /// Listens on `local`; port 0 takes any free port. `backlog` is limited by `net.core.somaxconn`.
    pub fn listen(
        host: &Arc<Host>,
        cx: &mut Cx,
        mut local: SocketAddr,
        backlog: u32,
    ) -> Result<Arc<Self>, Errno> {
        host.check_up()?;
        if !local.ip().is_unspecified() && !host.is_local(local.ip()) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let any_port = local.port() == 0;
        let sysctls = host.sysctls();
        let listener = loop {
            if any_port {
                local.set_port(unused_port(host, cx, local, &sysctls.ip_local_port_range)?);
            }
            let listener = Arc::new(Self::new(&sysctls, local, backlog));
            match host.demux().listen(&cx.reader(), &listener) {
                Ok(()) => break listener,
                // Another thread has taken the port since it was looked for.
                Err(Errno::EADDRINUSE) if any_port => {}
                Err(errno) => return Err(errno),
            }
        };
        host.check_up().inspect_err(|_| listener.close(host, cx))?;
        Ok(listener)
    }

    fn new(sysctls: &Sysctls, local: SocketAddr, backlog: u32) -> Self {
        Self {
            local,
            backlog: backlog.clamp(1, sysctls.somaxconn) as usize,
            requests: AtomicUsize::new(0),
            accept_queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            acceptors: EventCount::new(),
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Takes the oldest finished connection; `EAGAIN` when there is none.
    pub fn accept(&self) -> Result<Arc<TcpSocket>, Errno> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Errno::EINVAL);
        }
        let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = queue.pop_front().ok_or(Errno::EAGAIN)?;
        self.waiting.store(queue.len(), Ordering::Release);
        Ok(socket)
    }

    /// Whether `accept` would succeed, or fail for good.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.closed.load(Ordering::Acquire)
    }

    /// Where threads wait for a connection.
    #[must_use]
    pub const fn acceptors(&self) -> &EventCount {
        &self.acceptors
    }

    /// Stops listening; connections nobody accepted are reset, as Linux does.
    pub fn close(self: &Arc<Self>, host: &Host, cx: &mut Cx) {
        if self.closed.swap(true, Ordering::AcqRel) {
            // The port may be another listener's by now.
            return;
        }
        host.demux().unlisten(&cx.reader(), self);
        let abandoned = {
            let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(0, Ordering::Release);
            core::mem::take(&mut *queue)
        };
        for socket in abandoned {
            socket.abort(host, cx);
            socket.close(host, cx);
        }
        self.acceptors.notify_all();
    }

    /// Softirq: a segment for a port we listen on, of a connection we do not know. `iss_min` is set when the four-tuple
    /// has just left TIME-WAIT.
    pub(crate) fn segment(
        self: &Arc<Self>,
        host: &Host,
        cx: &mut Cx,
        (tuple, hash): (FourTuple, u32),
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        // RFC 9293 §3.10.7.2: first RST, second ACK, third SYN.
        if header.has(Flags::RST) {
            return cx.drop_packet(DropReason::TcpReset, packet);
        }
        if header.has(Flags::ACK) {
            return host.reply_with_reset(cx, &tuple, header, DropReason::TcpFlags, packet);
        }
        if !header.has(Flags::SYN) {
            return cx.drop_packet(DropReason::TcpFlags, packet);
        }
        match self.admit(cx.sysctls().tcp_max_syn_backlog) {
            Ok(()) => RequestSocket::open(host, cx, self, (tuple, hash), iss_min, header, packet),
            Err(reason) => {
                let counters = &cx.counters().tcp;
                counters.add(TcpCounter::TcpExtListenDrops, 1);
                counters.add(
                    match reason {
                        DropReason::ListenOverflow => TcpCounter::TcpExtListenOverflows,
                        _ => TcpCounter::TcpExtTCPReqQFullDrop,
                    },
                    1,
                );
                cx.drop_packet(reason, packet);
            }
        }
    }

    /// Room for one more SYN among `syn_backlog`? A full accept queue refuses new ones first, as in Linux.
    fn admit(&self, syn_backlog: u32) -> Result<(), DropReason> {
        if self.is_accept_queue_full() {
            return Err(DropReason::ListenOverflow);
        }
        if self.requests.load(Ordering::Relaxed) >= syn_backlog as usize {
            return Err(DropReason::SynQueueFull);
        }
        Ok(())
    }

    /// Linux's `sk_acceptq_is_full`: one more than the backlog may wait.
    pub(super) fn is_accept_queue_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > self.backlog
    }

    pub(super) fn request_added(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn request_gone(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A finished connection for whoever accepts next.
    pub(super) fn offer(&self, host: &Host, cx: &mut Cx, socket: Arc<TcpSocket>) {
        let refused = {
            let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
            // Checked under the lock that `close` takes: after it nobody would ever accept this one.
            if self.is_closed() {
                Some(socket)
            } else {
                queue.push_back(socket);
                self.waiting.store(queue.len(), Ordering::Release);
                None
            }
        };
        if let Some(socket) = refused {
            socket.abort(host, cx);
            return socket.close(host, cx);
        }
        if self.acceptors.notify_one() {
            cx.count(Counter::SocketWakes, 1);
        }
    }
}

/// A port nobody listens on.
fn unused_port(
    host: &Host,
    cx: &mut Cx,
    local: SocketAddr,
    range: &RangeInclusive<u16>,
) -> Result<u16, Errno> {
    // Any remote end will do: it only chooses where the search begins.
    let port = u16::try_from(cx.rng.below(1 << 16)).unwrap_or_default();
    let remote = SocketAddr::new(local.ip(), port);
    let candidates = host.ports().candidates(local.ip(), remote, range);
    host.demux().unused_port(candidates).ok_or(Errno::EADDRINUSE)
}
