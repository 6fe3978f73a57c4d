//! Passive opens: the listener with its SYN queue and accept queue.
//!
//! A SYN becomes a small request in the established table; the third segment turns the request into a connection,
//! which waits in the accept queue. Both queues are bounded by the backlog of `listen` (and `net.core.somaxconn`), the
//! SYN queue by `net.ipv4.tcp_max_syn_backlog` as well. When the SYN queue is full, SYNs are answered with cookies
//! (`net.ipv4.tcp_syncookies`) and nothing is kept. Linux: net/ipv4/inet_connection_sock.c, tcp_conn_request.
//!
//! Not here: which listener a segment is for (`demux`), requests (`request`, `syn_queue`).

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet};
use sync::{EventCount, RcuCell, epoch::Section};
use tcp::{
    Counter as TcpCounter, Flags, FourTuple, OpenParams, Request, SegmentHeader, SeqNum,
    SocketOptions, syn_cookie::COOKIE_LIFETIME_SECONDS,
};

use super::{
    BusyPoll,
    accept_queue::AcceptQueue,
    options::{OptionValue, SocketOption, SocketSettings},
    request::RequestSocket,
    stream::TcpSocket,
    syn_queue::SynQueue,
};
use crate::{
    core::CoreId,
    counters::Counter,
    cx::Cx,
    demux::BindFlags,
    errno::Errno,
    host::Host,
    ip::{self, IpFields},
    route::DstHandle,
    sysctl::{FastOpenKey, Sysctls},
};

/// Connections that may wait for `accept` unless the caller says otherwise: what `std::net` asks for.
pub const BACKLOG_DEFAULT: u32 = 128;

/// How a listener is to be made: what the socket calls set before `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may wait for `accept`, at most `net.core.somaxconn`. Default 128, as `std::net`.
    pub backlog: u32,
    /// `SO_REUSEADDR`: connections that are left of an earlier listener do not keep the port. Default on, as
    /// `std::net`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: listeners that all set it share the port, and connections are spread over them by their flow.
    /// Default off.
    pub reuse_port: bool,
    /// `SO_INCOMING_CPU`: in a group that shares a port, connections of this core come here first. Default none.
    pub incoming_core: Option<CoreId>,
    /// `SO_RCVTIMEO`; `None` waits for ever.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`; `None` waits for ever.
    pub send_timeout: Option<Duration>,
    /// `SO_BUSY_POLL` and its companions.
    pub busy_poll: BusyPoll,
    /// `IP_TOS` and `IP_TTL`.
    pub ip: IpFields,
    /// `TCP_FASTOPEN`: connections whose data is read before their handshake has ended (RFC 7413). Only for applications
    /// that may carry a request out twice: the network may repeat a SYN. Default 0: none. `net.ipv4.tcp_fastopen` has to
    /// allow it, too.
    pub fast_open: u32,
    /// `TCP_FASTOPEN_NO_COOKIE`: data is read from a SYN without a cookie, too. Anybody may then make the application work by
    /// packets of a forged address. Default off.
    pub fast_open_no_cookie: bool,
    /// `TCP_FASTOPEN_KEY`: makes this listener's cookies in place of the host's key. Default none.
    pub fast_open_key: Option<FastOpenKey>,
    /// What every connection starts with.
    pub options: SocketOptions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            backlog: BACKLOG_DEFAULT,
            reuse_address: true,
            reuse_port: false,
            incoming_core: None,
            receive_timeout: None,
            send_timeout: None,
            busy_poll: BusyPoll::default(),
            ip: IpFields::default(),
            fast_open: 0,
            fast_open_no_cookie: false,
            fast_open_key: None,
            options: SocketOptions::default(),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    local: SocketAddr,
    flags: BindFlags,
    incoming_core: Option<CoreId>,
    /// Connections that may wait for `accept`.
    backlog: usize,
    /// What every connection starts with. Read by every SYN and third segment.
    settings: RcuCell<SocketSettings>,
    syn_queue: SynQueue,
    /// Connections that are open before their handshake has ended. Relaxed: a bound, not an order.
    early: AtomicUsize,
    accept_queue: Mutex<AcceptQueue>,
    /// Length of `accept_queue`, to look without the lock.
    waiting: AtomicUsize,
    /// When the last cookie was sent, in nanoseconds; 0 for never. Relaxed: an ACK that misses it is repeated.
    cookie_sent_ns: AtomicU64,
    closed: AtomicBool,
    acceptors: EventCount,
}

impl Listener {
    /// Listens on `local` with the defaults of [`ListenOptions`]; port 0 takes any free port.
    ///
    /// # Errors
    /// As [`listen_with`](Self::listen_with).
    pub fn listen(
        host: &Arc<Host>,
        cx: &mut Cx,
        local: SocketAddr,
        backlog: u32,
    ) -> Result<Arc<Self>, Errno> {
        Self::listen_with(host, cx, local, &ListenOptions { backlog, ..ListenOptions::default() })
    }

    /// Listens on `local`; port 0 takes any free port.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for an address that is not ours, `EADDRINUSE` as bind(2) and listen(2) decide it, `ENETDOWN`.
    pub fn listen_with(
        host: &Arc<Host>,
        cx: &mut Cx,
        mut local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Arc<Self>, Errno> {
        host.check_up()?;
        if !local.ip().is_unspecified() && !host.is_local(cx, local.ip()) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let any_port = local.port() == 0;
        let sysctls = host.sysctls();
        let listener = loop {
            if any_port {
                local.set_port(unused_port(host, cx, local, &sysctls.ip_local_port_range)?);
            }
            let listener = Arc::new(Self::new(&sysctls, cx, local, options));
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

    fn new(sysctls: &Sysctls, cx: &Cx, local: SocketAddr, options: &ListenOptions) -> Self {
        let backlog = options.backlog.clamp(1, sysctls.somaxconn);
        Self {
            local,
            flags: BindFlags {
                reuse_address: options.reuse_address,
                reuse_port: options.reuse_port,
            },
            incoming_core: options.incoming_core,
            backlog: backlog as usize,
            settings: RcuCell::new(
                cx.reader().domain(),
                SocketSettings::of_listener(options, local),
            ),
            syn_queue: SynQueue::new(),
            early: AtomicUsize::new(0),
            accept_queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            cookie_sent_ns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            acceptors: EventCount::new(),
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whom it shares its port with.
    pub(crate) const fn flags(&self) -> BindFlags {
        self.flags
    }

    /// The core whose connections it wants.
    #[must_use]
    pub const fn incoming_core(&self) -> Option<CoreId> {
        self.incoming_core
    }

    /// Half-open connections.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.syn_queue.len()
    }

    /// Takes the oldest finished connection; `EAGAIN` when there is none.
    ///
    /// # Errors
    /// `EAGAIN`, or `EINVAL` once it is closed.
    pub fn accept(&self) -> Result<Arc<TcpSocket>, Errno> {
        self.accept_near(None)
    }

    /// As [`accept`](Self::accept), for a thread that is at home on core `near`: connections of that core come first, but
    /// none is passed over for ever.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_near(&self, near: Option<CoreId>) -> Result<Arc<TcpSocket>, Errno> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Errno::EINVAL);
        }
        let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = queue.take(near).ok_or(Errno::EAGAIN)?;
        self.waiting.store(queue.len(), Ordering::Release);
        Ok(socket)
    }

    /// Whether `accept` would succeed, or fail for good.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.closed.load(Ordering::Acquire)
    }

    /// Sets an option; connections whose handshake ends from here on begin with it.
    ///
    /// # Errors
    /// As [`SocketSettings::set`].
    pub fn set_option(
        &self,
        host: &Host,
        option: SocketOption,
        value: &OptionValue,
    ) -> Result<(), Errno> {
        let sysctls = host.sysctls();
        let mut result = Ok(());
        self.settings.update(|settings| {
            let mut next = settings.clone();
            result = next.set(option, value, &sysctls);
            next
        });
        result
    }

    /// Reads an option.
    ///
    /// # Errors
    /// As [`SocketSettings::get`].
    pub fn option(&self, host: &Host, cx: &Cx, option: SocketOption) -> Result<OptionValue, Errno> {
        self.settings(&cx.reader().pin()).get(option, &host.sysctls())
    }

    /// The options at this moment.
    pub(crate) fn settings<'s>(&'s self, rcu: &'s Section<'_>) -> &'s SocketSettings {
        self.settings.load(rcu)
    }

    /// How long `accept` waits (`SO_RCVTIMEO`); `None` for ever.
    #[must_use]
    pub fn receive_timeout(&self, cx: &Cx) -> Option<Duration> {
        self.settings(&cx.reader().pin()).receive_timeout
    }

    /// How a thread polls that waits in `accept`.
    #[must_use]
    pub fn busy_poll(&self, cx: &Cx) -> BusyPoll {
        self.settings(&cx.reader().pin()).busy_poll
    }

    /// Where threads wait for a connection.
    #[must_use]
    pub const fn acceptors(&self) -> &EventCount {
        &self.acceptors
    }

    /// Stops listening. Half-open connections are forgotten, connections nobody accepted are reset, as Linux does.
    pub fn close(self: &Arc<Self>, host: &Host, cx: &mut Cx) {
        if self.closed.swap(true, Ordering::AcqRel) {
            // The port may be another listener's by now.
            return;
        }
        host.demux().unlisten(&cx.reader(), self);
        for request in self.syn_queue.close().iter().filter_map(std::sync::Weak::upgrade) {
            request.give_up(host);
        }
        let abandoned = {
            let mut queue = self.accept_queue.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(0, Ordering::Release);
            queue.take_all()
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
        name: (FourTuple, u32),
        iss_min: Option<SeqNum>,
        header: &SegmentHeader,
        packet: Packet,
    ) {
        // RFC 9293 §3.10.7.2: first RST, second ACK, third SYN.
        if header.has(Flags::RST) {
            return cx.drop_packet(DropReason::TcpReset, packet);
        }
        if header.has(Flags::ACK) {
            return self.third_segment(host, cx, name, header, packet);
        }
        if !header.has(Flags::SYN) || header.has(Flags::FIN) {
            return cx.drop_packet(DropReason::TcpFlags, packet);
        }
        match self.admit(cx, iss_min.is_some()) {
            Ok(Answer::Request) => {
                self.open(host, cx, name, iss_min, header, packet);
            }
            Ok(Answer::Cookie) => self.send_cookie(host, cx, name, header, packet),
            Err(reason) => {
                cx.counters().tcp.add(TcpCounter::TcpExtListenDrops, 1);
                cx.drop_packet(reason, packet);
            }
        }
    }

    /// Requests that may wait for their third segment.
    pub(super) fn syn_backlog(&self, cx: &Cx) -> usize {
        self.backlog.min(cx.sysctls().tcp_max_syn_backlog as usize)
    }

    /// How a SYN is answered. A SYN that reopens a connection in TIME-WAIT needs a number above the old ones, which no
    /// cookie can promise.
    fn admit(&self, cx: &Cx, reopens: bool) -> Result<Answer, DropReason> {
        let counters = &cx.counters().tcp;
        let policy = cx.sysctls().tcp_syncookies;
        let full = self.syn_queue.len() >= self.syn_backlog(cx);
        let answer = if full || (policy == 2 && !reopens) {
            if policy == 0 || reopens {
                counters.add(TcpCounter::TcpExtTCPReqQFullDrop, 1);
                return Err(DropReason::SynQueueFull);
            }
            counters.add(TcpCounter::TcpExtTCPReqQFullDoCookies, 1);
            Answer::Cookie
        } else {
            Answer::Request
        };
        if self.is_accept_queue_full() {
            counters.add(TcpCounter::TcpExtListenOverflows, 1);
            return Err(DropReason::ListenOverflow);
        }
        Ok(answer)
    }

    fn send_cookie(
        &self,
        host: &Host,
        cx: &mut Cx,
        (tuple, hash): (FourTuple, u32),
        header: &SegmentHeader,
        packet: Packet,
    ) {
        let reader = cx.reader();
        let rcu = reader.pin();
        let Some((dst, params)) = self.open_params(host, cx, (tuple, hash), None, &rcu) else {
            return cx.drop_packet(DropReason::IpNoRoute, packet);
        };
        let mut tcx = cx.tcp();
        let (cookies, ecn) = (host.syn_cookies(), packet.meta().ecn);
        if let Err(reason) = Request::send_cookie(&mut tcx, &params, header, cookies, ecn) {
            return cx.drop_packet(reason, packet);
        }
        cx.pool.free(packet);
        self.note_cookie(cx.now);
        ip::output(host, cx, dst, &tuple, host.core_for(cx, hash));
    }

    /// Written at most once a second: the line is shared.
    fn note_cookie(&self, now: Instant) {
        let sent = Instant::from_nanos(self.cookie_sent_ns.load(Ordering::Relaxed));
        if now.checked_duration_since(sent).is_some_and(|age| age >= Duration::from_secs(1)) {
            self.cookie_sent_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    fn expects_cookies(&self, cx: &Cx) -> bool {
        let sent = self.cookie_sent_ns.load(Ordering::Relaxed);
        cx.sysctls().tcp_syncookies != 0
            && sent != 0
            && cx.now - Instant::from_nanos(sent) <= Duration::from_secs(COOKIE_LIFETIME_SECONDS)
    }

    /// An ACK for no connection: a cookie that comes back, or somebody to be reset.
    fn third_segment(
        self: &Arc<Self>,
        host: &Host,
        cx: &mut Cx,
        (tuple, hash): (FourTuple, u32),
        header: &SegmentHeader,
        packet: Packet,
    ) {
        if header.has(Flags::SYN) || !self.expects_cookies(cx) {
            return host.reply_with_reset(cx, &tuple, header, DropReason::TcpFlags, packet);
        }
        let params = {
            let reader = cx.reader();
            let rcu = reader.pin();
            let Some((_, params)) = self.open_params(host, cx, (tuple, hash), None, &rcu) else {
                return cx.drop_packet(DropReason::IpNoRoute, packet);
            };
            params
        };
        let tcx = cx.tcp();
        let Some(request) = Request::from_cookie(&tcx, &params, header, host.syn_cookies()) else {
            return host.reply_with_reset(cx, &tuple, header, DropReason::TcpFlags, packet);
        };
        RequestSocket::open_from_cookie(host, cx, self, (tuple, hash), request, (header, packet));
    }

    /// What a connection to this listener starts with, and the way to its peer. `None` without one.
    pub(super) fn open_params<'s>(
        &self,
        host: &'s Host,
        cx: &Cx,
        (tuple, hash): (FourTuple, u32),
        iss_min: Option<SeqNum>,
        rcu: &'s Section<'_>,
    ) -> Option<(DstHandle<'s>, OpenParams)> {
        let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
        let dst = host.reply_path(cx, remote, Some(local), host.core_of_flow(hash), rcu).ok()?;
        let options = self.settings(rcu).tcp.clone();
        let mut params = OpenParams { options, ..host.open_params(tuple, hash, &dst, cx.now) };
        if let Some(iss_min) = iss_min
            && params.iss.lt(iss_min)
        {
            params.iss = iss_min;
        }
        Some((dst, params))
    }

    /// What a connection inherits besides the engine's options.
    pub(super) fn settle_options(&self, cx: &Cx, socket: &TcpSocket) {
        let reader = cx.reader();
        let rcu = reader.pin();
        let settings = self.settings(&rcu);
        socket.settings().set_receive_timeout(settings.receive_timeout);
        socket.settings().set_send_timeout(settings.send_timeout);
        socket.settings().set_busy_poll(settings.busy_poll);
        socket.settings().set_ip_fields(settings.ip);
    }

    pub(super) const fn backlog(&self) -> usize {
        self.backlog
    }

    pub(super) const fn early(&self) -> &AtomicUsize {
        &self.early
    }

    pub(super) const fn syn_queue(&self) -> &SynQueue {
        &self.syn_queue
    }

    /// Linux's `sk_acceptq_is_full`: one more than the backlog may wait.
    pub(super) fn is_accept_queue_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > self.backlog
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
                queue.push(socket);
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

/// What a SYN gets.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// A request that waits for the third segment.
    Request,
    /// A number that says everything: nothing waits.
    Cookie,
}

/// A port nobody uses.
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
    let reader = cx.reader();
    host.demux().unused_port(candidates, &reader.pin()).ok_or(Errno::EADDRINUSE)
}
