//! Active opens: choice of the local address and port, and transmission of the SYN.
//!
//! Linux: `tcp_v4_connect`, `inet_hash_connect`. The call does not wait: the socket becomes
//! writable when the handshake is complete, or gets a pending error.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use pkt::Payload;
use tcp::{FastOpen, FourTuple, OpenParams, Reuse, Tcb};

use super::Connection;
use crate::{
    base::errno::Errno,
    cx::Cx,
    route::CachedDst,
    socket::net::Net,
    socket::{
        TimeWaitSocket,
        demux::{BindFlags, Entry, FlowName},
        family::{Family, canonical},
        fast_open::mode,
        options::SocketSettings,
    },
    transmit::ip_output,
};

/// Options of a connection to be opened: the local address and the settings.
///
/// Every setter of [`SocketSettings`] is also a setter of `ConnectOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until a socket connects with them"]
pub struct ConnectOptions {
    /// Local address and port. If the address is unspecified (0.0.0.0 or `[::]`), the route
    /// determines it. If the port is 0, the call chooses the port for the destination, as with
    /// `IP_BIND_ADDRESS_NO_PORT`: connections to different destinations may share a port.
    pub local: Option<SocketAddr>,
    /// Initial options of the connection.
    pub settings: SocketSettings,
}

impl ConnectOptions {
    /// Sets the local address and port ([`local`](Self::local)).
    pub const fn bind(mut self, local: SocketAddr) -> Self {
        self.local = Some(local);
        self
    }
}

impl Connection {
    /// Starts to connect to `remote`, from `local` if the application has bound an address.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    pub fn connect(
        net: &Net,
        cx: &mut Cx,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<Arc<Self>, Errno> {
        Self::connect_with(net, cx, remote, &ConnectOptions { local, ..ConnectOptions::default() })
    }

    /// Starts to connect to `remote`.
    ///
    /// # Errors
    /// `EADDRINUSE` for a bound port that another socket owns; `EADDRNOTAVAIL` for an address that
    /// this host does not have, for a four-tuple in use, and if no port is free; `ECONNREFUSED` for
    /// remote port 0; `ENOBUFS` beyond `net.quietline.tcp_max_connections`; `EAFNOSUPPORT` for ends
    /// of two families; `EINVAL` for a link-local address
    /// without its scope; `ENETUNREACH` for a v4-mapped address with `IPV6_V6ONLY`, and if only one
    /// end is v4-mapped; `ENETDOWN` after the shutdown of the host, `ECONNABORTED` if it is shut
    /// down during the call; and the errors of the route.
    pub fn connect_with(
        net: &Net,
        cx: &mut Cx,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Self>, Errno> {
        let entered = cx.enter(net);
        let socket = open(net, cx, remote, options);
        cx.do_softirq();
        cx.leave(entered);
        socket
    }

    /// Connects and sends in one call, as `sendto` with `MSG_FASTOPEN`: if a cookie of the peer is
    /// cached or none is required, the SYN carries the beginning of `bufs` (RFC 7413). Returns the
    /// number of bytes sent. If it is 0, no data is queued: the caller waits until the connection
    /// is established and then writes, or returns `EINPROGRESS`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if `net.ipv4.tcp_fastopen` does not allow clients; otherwise as
    /// [`connect_with`](Self::connect_with).
    pub fn connect_and_send<P: Payload>(
        net: &Net,
        cx: &mut Cx,
        remote: SocketAddr,
        options: &ConnectOptions,
        bufs: &[P],
    ) -> Result<(Arc<Self>, usize), Errno> {
        if cx.sysctls_of(net).tcp_fastopen & mode::CLIENT == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let options = options.clone().fast_open_connect(true);
        let socket = Self::connect_with(net, cx, remote, &options)?;
        let sent = socket.send_with_syn(net, cx, bufs).unwrap_or(0);
        Ok((socket, sent))
    }

    /// Sends the SYN of a connection that has held its SYN for the first write
    /// ([`ConnectOptions::fast_open_connect`]), with as much of `bufs` as it can carry. Returns the
    /// number of bytes taken; `None` if no SYN is held.
    pub fn send_with_syn<P: Payload>(&self, net: &Net, cx: &mut Cx, bufs: &[P]) -> Option<usize> {
        self.with_tcb(net, cx, |tcb, cx| {
            if !tcb.is_syn_held() {
                return None;
            }
            // Bytes that do not fit in the SYN, or for which there is no memory, are written later.
            let sent = tcb.send(cx, bufs, false).unwrap_or(0);
            tcb.release_syn(cx);
            Some(sent)
        })
    }
}

fn open(
    net: &Net,
    cx: &mut Cx,
    remote: SocketAddr,
    options: &ConnectOptions,
) -> Result<Arc<Connection>, Errno> {
    net.check_up()?;
    let bind = options.settings.bind_flags(remote, cx.sysctls());
    let (mut remote, mut local) = ends(remote, options.local, bind.family)?;
    let is_scoped = matches!(remote, SocketAddr::V6(end) if end.scope_id() != 0);
    if is_scoped && net.is_local_end(cx, remote) {
        // A packet over loopback arrives on no link, so its addresses have no scope.
        remote = unscoped(remote);
        local = local.map(unscoped);
    }
    if remote.port() == 0 {
        return Err(Errno::ECONNREFUSED);
    }
    let source = match local.filter(|local| !local.ip().is_unspecified()) {
        Some(source) => source,
        None => net.source_end(cx, remote)?,
    };
    if net.connections_full(cx) {
        return Err(Errno::ENOBUFS);
    }
    let wanted = local.map_or(0, |local| local.port());
    if wanted != 0 {
        let tuple = FourTuple { local: with_port(source, wanted), remote };
        return start(net, cx, tuple, bind, options);
    }
    let range = cx.sysctls().ip_local_port_range.clone();
    for port in net.ports().candidates(source.ip(), remote, &range, cx.now) {
        if !net.demux().may_connect_from(port, &cx.reader().pin()) {
            continue;
        }
        let tuple = FourTuple { local: with_port(source, port), remote };
        match start(net, cx, tuple, bind, options) {
            Err(Errno::EADDRNOTAVAIL) => {}
            result => return result,
        }
    }
    Err(Errno::EADDRNOTAVAIL)
}

/// Returns both ends in the form that the tables use (`canonical`), for a socket of this family.
fn ends(
    remote: SocketAddr,
    local: Option<SocketAddr>,
    family: Family,
) -> Result<(SocketAddr, Option<SocketAddr>), Errno> {
    if local.is_some_and(|local| local.is_ipv4() != remote.is_ipv4()) {
        return Err(Errno::EAFNOSUPPORT);
    }
    let remote = family.destination(remote)?;
    let Some(mut local) = local.map(canonical).transpose()? else { return Ok((remote, None)) };
    // With `[::]`, the route determines the address: for a v4-mapped peer, an IPv4 address.
    if local.ip().is_unspecified() && remote.is_ipv4() {
        local.set_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    }
    // A v4-mapped local address has no route to an IPv6 peer, and an IPv6 address has none to a
    // v4-mapped peer (Linux: the route lookup fails).
    match local.is_ipv4() == remote.is_ipv4() {
        true => Ok((remote, Some(local))),
        false => Err(Errno::ENETUNREACH),
    }
}

/// Returns `end` without the scope of a link-local address.
pub(in crate::socket) fn unscoped(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip(), end.port())
}

/// Returns `end` with another port.
fn with_port(mut end: SocketAddr, port: u16) -> SocketAddr {
    end.set_port(port);
    end
}

/// Opens the connection and sends the SYN, unless Fast Open holds the SYN for the first write.
/// `EADDRNOTAVAIL` if the four-tuple is neither free nor that of a replaceable TIME-WAIT socket.
fn start(
    net: &Net,
    cx: &mut Cx,
    tuple: FourTuple,
    bind: BindFlags,
    options: &ConnectOptions,
) -> Result<Arc<Connection>, Errno> {
    let hash = net.demux().hash(&tuple);
    let name = FlowName { tuple, hash, core: net.core_of_flow(hash), via: None };
    let is_bound = options.local.is_some_and(|local| local.port() != 0);
    let bound = is_bound.then_some(bind);
    let time_wait = time_wait_of(net, cx, &name, bound)?;
    let source = Some(tuple.local.ip());
    let dst = net.route(cx, tuple.remote, source, Some(hash), name.core)?;
    let reuse = time_wait.as_ref().map(|(_, reuse)| *reuse);
    let params = open_params(net, cx, &name, &dst, &options.settings, reuse);
    let tcb = Tcb::connect(&mut cx.tcp(), &params);
    let socket = Connection::new(net, cx, &name, Box::new(tcb), Some(dst), bind);
    socket.settings().inherit(&options.settings);
    if params.fast_open != FastOpen::Off {
        socket.set_records_fast_open(net.fast_open().is_retry_due(cx.now));
    }
    // The socket is registered before the SYN is sent, because the reply may arrive on another core
    // at once.
    let begun = socket.begin(net, cx, |cx| {
        let time_wait = time_wait.as_ref().map(|(time_wait, _)| &**time_wait);
        register(net, cx, &socket, time_wait, bound)
    });
    if let Err(errno) = begun {
        ip_output::discard_output(cx);
        return Err(errno);
    }
    // If the host was shut down meanwhile, the connection is aborted, like those that the shutdown
    // found in the tables.
    if net.check_up().is_err() {
        socket.abort(net, cx);
        return Err(Errno::ECONNABORTED);
    }
    Ok(socket)
}

/// Returns `None` if the four-tuple is free. If the four-tuple belongs to a TIME-WAIT socket that a
/// new connection may replace, returns that socket and the values that the connection inherits.
/// `bound` is present if the application has chosen the port.
fn time_wait_of(
    net: &Net,
    cx: &Cx,
    name: &FlowName,
    bound: Option<BindFlags>,
) -> Result<Option<(Arc<TimeWaitSocket>, Reuse)>, Errno> {
    let reader = cx.reader();
    let rcu = reader.pin();
    let time_wait = match net.demux().established(name.hash, &name.tuple, &rcu) {
        None => return Ok(None),
        Some(Entry::TimeWait(time_wait)) => Arc::clone(time_wait),
        Some(_) => return Err(Errno::EADDRNOTAVAIL),
    };
    if bound.is_some_and(|bind| net.demux().is_in_use(name.tuple.local, bind, &rcu)) {
        // In Linux, bind(2) returns this error.
        return Err(Errno::EADDRINUSE);
    }
    let reuse = time_wait.reuse(cx, bound.is_some()).ok_or(Errno::EADDRNOTAVAIL)?;
    Ok(Some((time_wait, reuse)))
}

/// Returns the parameters with which the engine (crate `tcp`) opens the connection.
fn open_params(
    net: &Net,
    cx: &Cx,
    name: &FlowName,
    dst: &CachedDst,
    settings: &SocketSettings,
    reuse: Option<Reuse>,
) -> OpenParams {
    let mut params = net.open_params(name, dst, cx.now);
    params.options = settings.tcp.clone();
    if settings.fast_open_connect {
        let (to, no_cookie) = (name.tuple.remote.ip(), settings.fast_open_no_cookie);
        params.fast_open = net.fast_open().connect(cx.sysctls(), to, no_cookie, cx.now);
    }
    if let Some(reuse) = reuse {
        params.ts_recent = Some(reuse.ts_recent);
        params.iss = if params.iss.lt(reuse.iss) { reuse.iss } else { params.iss };
    }
    params
}

/// Inserts the connection into the table, in place of `time_wait` if there is one.
fn register(
    net: &Net,
    cx: &Cx,
    socket: &Arc<Connection>,
    time_wait: Option<&TimeWaitSocket>,
    bound: Option<BindFlags>,
) -> Result<(), Errno> {
    let (tuple, hash) = (*socket.tuple(), socket.hash());
    let entry = Entry::Stream(Arc::clone(socket));
    match (time_wait, bound) {
        (None, Some(bind)) => {
            net.demux().insert_bound(hash, tuple, entry, bind, &cx.reader().pin())
        }
        (None, None) => net.demux().insert(hash, tuple, entry),
        (Some(time_wait), _) => match time_wait.replace_with(net, cx, entry) {
            true => Ok(()),
            false => Err(Errno::EADDRNOTAVAIL),
        },
    }
}
