//! Active opens: choosing our end of the four-tuple and sending the SYN.
//!
//! Linux: `tcp_v4_connect`, `inet_hash_connect`. The call does not wait: the socket becomes writable when the
//! handshake is done, or carries an error.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tcp::{FourTuple, Tcb};

use super::stream::TcpSocket;
use crate::{cx::Cx, demux::Entry, errno::Errno, host::Host, ip, route::Dst};

impl TcpSocket {
    /// Starts to connect to `remote`, from `local` where the application has bound one.
    pub fn connect(
        host: &Arc<Host>,
        cx: &mut Cx,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<Arc<Self>, Errno> {
        let entered = cx.enter(host);
        let socket = open(host, cx, local, remote);
        cx.do_softirq();
        cx.leave(entered);
        socket
    }
}

fn open(
    host: &Arc<Host>,
    cx: &mut Cx,
    local: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<Arc<TcpSocket>, Errno> {
    host.check_up()?;
    // Linux connects to itself when asked for the unspecified address.
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
    let dst = host.route(cx, remote.ip(), source)?;
    let source = source.unwrap_or(dst.source);
    let wanted = local.map_or(0, |local| local.port());
    if wanted != 0 {
        let tuple = FourTuple { local: SocketAddr::new(source, wanted), remote };
        return start(host, cx, tuple, &dst);
    }
    let range = cx.sysctls().ip_local_port_range.clone();
    for port in host.ports().candidates(source, remote, &range) {
        if !host.demux().may_connect_from(port) {
            continue;
        }
        let tuple = FourTuple { local: SocketAddr::new(source, port), remote };
        match start(host, cx, tuple, &dst) {
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
    dst: &Arc<Dst>,
) -> Result<Arc<TcpSocket>, Errno> {
    let hash = host.demux().hash(&tuple);
    let core = host.core_of_flow(hash);
    if host.demux().established(hash, &tuple, &cx.reader().pin()).is_some() {
        return Err(Errno::EADDRNOTAVAIL);
    }
    let params = host.open_params(tuple, hash, dst, cx.now);
    let tcb = Tcb::connect(&mut cx.tcp(), &params);
    let socket = TcpSocket::new(host, tuple, hash, core, Box::new(tcb), Some(Arc::clone(dst)));
    // Registered before the SYN leaves: the answer may come on another core at once.
    let entry = Entry::Stream(Arc::clone(&socket));
    if let Err(errno) = socket.begin(host, cx, || host.demux().insert(hash, tuple, entry)) {
        ip::discard_output(cx);
        return Err(errno);
    }
    host.check_up().inspect_err(|_| socket.abort(host, cx))?;
    Ok(socket)
}
