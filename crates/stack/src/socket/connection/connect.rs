//! Active opens: selects the local end of the four-tuple and sends the SYN.
//!
//! Linux: `tcp_v4_connect`, `inet_hash_connect`. The call does not wait: the socket becomes
//! writable when the handshake completes, or has an error.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::Payload;
use tcp::{FastOpen, FourTuple, OpenParams, Reuse, SocketOptions, Tcb};

use super::TcpSocket;
use crate::{
    base::errno::Errno,
    cx::Cx,
    host::Host,
    route::Path,
    socket::{
        BusyPoll, TimeWaitSocket,
        demux::{BindFlags, Entry},
        fast_open::mode,
    },
    transmit::ip_output::{self, IpFields},
};

/// Options of a new connection, as set by socket calls before `connect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Local end bound by the application. The address may be unspecified (0.0.0.0) and the port 0:
    /// the port is then selected for the four-tuple, as with `IP_BIND_ADDRESS_NO_PORT`.
    pub local: Option<SocketAddr>,
    /// `SO_REUSEADDR`: a bound port is shared with connections that also set it, if the peers
    /// differ.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: a bound port is shared with any socket that also sets it.
    pub reuse_port: bool,
    /// `SO_RCVTIMEO`; `None` is unlimited.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`; `None` is unlimited.
    pub send_timeout: Option<Duration>,
    /// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`.
    pub busy_poll: BusyPoll,
    /// `IP_TOS` and `IP_TTL`.
    pub ip: IpFields,
    /// `TCP_FASTOPEN_CONNECT`: if a cookie of the peer is known, the SYN waits for the first write
    /// and carries it (RFC 7413). Only for requests that may be executed twice, because the network
    /// may duplicate a SYN.
    pub fast_open: bool,
    /// `TCP_FASTOPEN_NO_COOKIE`: with `fast_open`, data is sent with the SYN without requesting a
    /// cookie first.
    pub fast_open_no_cookie: bool,
    /// Options that the connection starts with.
    pub options: SocketOptions,
}

impl TcpSocket {
    /// Starts a connection to `remote`, from `local` if the application has bound one.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    pub fn connect(
        host: &Arc<Host>,
        cx: &mut Cx,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<Arc<Self>, Errno> {
        Self::connect_with(host, cx, remote, &ConnectOptions { local, ..ConnectOptions::default() })
    }

    /// Starts a connection to `remote`.
    ///
    /// # Errors
    /// Errors known at once: no route, no port, `EADDRINUSE` for a bound port that another socket
    /// owns, `EADDRNOTAVAIL` for an address that is not local or a four-tuple in use,
    /// `EAFNOSUPPORT` for an IPv6 address, because IPv6 is not supported yet.
    pub fn connect_with(
        host: &Arc<Host>,
        cx: &mut Cx,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Self>, Errno> {
        let entered = cx.enter(host);
        let socket = open(host, cx, remote, options);
        cx.do_softirq();
        cx.leave(entered);
        socket
    }

    /// Connects and sends in one call, as `sendto` with `MSG_FASTOPEN`: if a cookie of the peer is
    /// known, the SYN carries the start of `bufs` (RFC 7413). Returns the number of these bytes. If
    /// it is 0, no data is queued: the caller waits until the connection is established and writes
    /// then, or returns `EINPROGRESS`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if `net.ipv4.tcp_fastopen` does not allow clients; otherwise as
    /// [`connect_with`](Self::connect_with).
    pub fn connect_sending<P: Payload>(
        host: &Arc<Host>,
        cx: &mut Cx,
        remote: SocketAddr,
        options: &ConnectOptions,
        bufs: &[P],
    ) -> Result<(Arc<Self>, usize), Errno> {
        if cx.sysctls_of(host).tcp_fastopen & mode::CLIENT == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let options = ConnectOptions { fast_open: true, ..options.clone() };
        let socket = Self::connect_with(host, cx, remote, &options)?;
        let sent = socket.send_with_syn(host, cx, bufs).unwrap_or(0);
        Ok((socket, sent))
    }

    /// Performs the first write of a connection whose SYN waits for it
    /// ([`ConnectOptions::fast_open`]): sends the SYN with as much of `bufs` as it can carry, and
    /// returns the number of bytes. `None` if no SYN waits.
    pub fn send_with_syn<P: Payload>(&self, host: &Host, cx: &mut Cx, bufs: &[P]) -> Option<usize> {
        self.with_tcb(host, cx, |tcb, cx| {
            if !tcb.is_syn_held() {
                return None;
            }
            // Data that does not fit the SYN, or finds no memory, is written later.
            let sent = tcb.send(cx, bufs, false).unwrap_or(0);
            tcb.release_syn(cx);
            Some(sent)
        })
    }
}

fn open(
    host: &Arc<Host>,
    cx: &mut Cx,
    remote: SocketAddr,
    options: &ConnectOptions,
) -> Result<Arc<TcpSocket>, Errno> {
    let local = options.local;
    host.check_up()?;
    if remote.is_ipv6() {
        return Err(Errno::EAFNOSUPPORT);
    }
    // A connect to the unspecified address connects to the host itself, as in Linux.
    let remote = match remote.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::new(IpAddr::V4(core::net::Ipv4Addr::LOCALHOST), remote.port())
        }
        _ => remote,
    };
    if remote.port() == 0 {
        return Err(Errno::ECONNREFUSED);
    }
    if let Some(local) = local
        && local.is_ipv4() != remote.is_ipv4()
    {
        return Err(Errno::EAFNOSUPPORT);
    }
    let source = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
    let source = match source {
        Some(source) => source,
        None => host.source_for(cx, remote.ip())?,
    };
    let wanted = local.map_or(0, |local| local.port());
    if wanted != 0 {
        let tuple = FourTuple { local: SocketAddr::new(source, wanted), remote };
        return start(host, cx, tuple, options);
    }
    let range = cx.sysctls().ip_local_port_range.clone();
    for port in host.ports().candidates(source, remote, &range, cx.now) {
        if !host.demux().may_connect_from(port, &cx.reader().pin()) {
            continue;
        }
        let tuple = FourTuple { local: SocketAddr::new(source, port), remote };
        match start(host, cx, tuple, options) {
            Err(Errno::EADDRNOTAVAIL) => {}
            result => return result,
        }
    }
    Err(Errno::EADDRNOTAVAIL)
}

/// Sends the SYN if the four-tuple is free.
fn start(
    host: &Arc<Host>,
    cx: &mut Cx,
    tuple: FourTuple,
    options: &ConnectOptions,
) -> Result<Arc<TcpSocket>, Errno> {
    let hash = host.demux().hash(&tuple);
    let core = host.core_of_flow(hash);
    let bind = BindFlags { reuse_address: options.reuse_address, reuse_port: options.reuse_port };
    let is_bound = options.local.is_some_and(|local| local.port() != 0);
    let bound = is_bound.then_some(bind);
    let remnant = remnant_of(host, cx, (&tuple, hash), bound)?;
    let path = host.route(cx, tuple.remote.ip(), Some(tuple.local.ip()), core)?;
    let reuse = remnant.as_ref().map(|(_, reuse)| *reuse);
    let params = open_params(host, cx, (tuple, hash), &path, options, reuse);
    let tcb = Tcb::connect(&mut cx.tcp(), &params);
    let name = (tuple, hash, core);
    let socket = TcpSocket::new(host, cx, name, Box::new(tcb), Some(path), bind);
    socket.settings().set_receive_timeout(options.receive_timeout);
    socket.settings().set_send_timeout(options.send_timeout);
    socket.settings().set_busy_poll(options.busy_poll);
    socket.settings().set_ip_fields(options.ip);
    if params.fast_open != FastOpen::Off {
        socket.set_learns(host.fast_open().is_on_trial(cx.now));
    }
    // Registered before the SYN is sent: the reply may arrive on another core at once.
    let begun = socket.begin(host, cx, |cx| {
        let remnant = remnant.as_ref().map(|(remnant, _)| &**remnant);
        register(host, cx, &socket, remnant, bound)
    });
    if let Err(errno) = begun {
        ip_output::discard_output(cx);
        return Err(errno);
    }
    // The host was shut down meanwhile, whether or not that found this socket: the connection ends
    // like those that it found.
    if host.check_up().is_err() {
        socket.abort(host, cx);
        return Err(Errno::ECONNABORTED);
    }
    Ok(socket)
}

/// Returns the connection in TIME-WAIT that has the four-tuple, if it may be replaced, and the
/// state to inherit; none when the four-tuple is free. `bound` says that the application has chosen
/// the port.
fn remnant_of(
    host: &Host,
    cx: &Cx,
    (tuple, hash): (&FourTuple, u32),
    bound: Option<BindFlags>,
) -> Result<Option<(Arc<TimeWaitSocket>, Reuse)>, Errno> {
    let reader = cx.reader();
    let rcu = reader.pin();
    let remnant = match host.demux().established(hash, tuple, &rcu) {
        None => return Ok(None),
        Some(Entry::TimeWait(remnant)) => Arc::clone(remnant),
        Some(_) => return Err(Errno::EADDRNOTAVAIL),
    };
    if bound.is_some_and(|bind| host.demux().is_in_use(tuple.local, bind, &rcu)) {
        // The error of bind(2).
        return Err(Errno::EADDRINUSE);
    }
    let reuse = remnant.reuse(cx, bound.is_some()).ok_or(Errno::EADDRNOTAVAIL)?;
    Ok(Some((remnant, reuse)))
}

/// Builds the engine's parameters of the connection.
fn open_params(
    host: &Host,
    cx: &Cx,
    (tuple, hash): (FourTuple, u32),
    path: &Path,
    options: &ConnectOptions,
    reuse: Option<Reuse>,
) -> OpenParams {
    let mut params = host.open_params(tuple, hash, path, cx.now);
    params.options = options.options.clone();
    if options.fast_open {
        let (to, no_cookie) = (tuple.remote.ip(), options.fast_open_no_cookie);
        params.fast_open = host.fast_open().connect(cx.sysctls(), to, no_cookie, cx.now);
    }
    if let Some(reuse) = reuse {
        params.ts_recent = Some(reuse.ts_recent);
        params.iss = if params.iss.lt(reuse.iss) { reuse.iss } else { params.iss };
    }
    params
}

/// Inserts the connection under its four-tuple, in place of `remnant` if there is one.
fn register(
    host: &Host,
    cx: &Cx,
    socket: &Arc<TcpSocket>,
    remnant: Option<&TimeWaitSocket>,
    bound: Option<BindFlags>,
) -> Result<(), Errno> {
    let (tuple, hash) = (*socket.tuple(), socket.hash());
    let entry = Entry::Stream(Arc::clone(socket));
    match (remnant, bound) {
        (None, Some(bind)) => {
            host.demux().insert_bound(hash, tuple, entry, bind, &cx.reader().pin())
        }
        (None, None) => host.demux().insert(hash, tuple, entry),
        (Some(remnant), _) => match remnant.give_way(host, cx, entry) {
            true => Ok(()),
            false => Err(Errno::EADDRNOTAVAIL),
        },
    }
}
