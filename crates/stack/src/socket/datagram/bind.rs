//! Opening, connecting and closing datagram sockets.
//!
//! Above: crate `quietline`. Below: `table`. Linux: `inet_bind`, `udp_lib_get_port`,
//! `__ip4_datagram_connect`, `udp_destroy_sock`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
};

use pkt::DropReason;

use super::{DatagramDst, DatagramSocket, table::Bound};
use crate::{
    base::errno::Errno,
    cx::Cx,
    socket::{net::Net, options::SocketSettings},
};

impl DatagramSocket {
    /// Opens a socket bound to `local`; port 0 selects any free port.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for an address that is not local, `EADDRINUSE` for a port that another
    /// socket owns and if no port is free, `ENETDOWN` after the shutdown of the host,
    /// `EAFNOSUPPORT` for an IPv6 address, because datagram sockets are IPv4 only.
    pub fn bind(
        net: &Net,
        cx: &mut Cx,
        local: SocketAddr,
        settings: &SocketSettings,
    ) -> Result<Arc<Self>, Errno> {
        let entered = cx.enter(net);
        let socket = open(net, cx, local, settings);
        cx.leave(entered);
        socket
    }

    /// Connects to `remote`: from then on, the socket receives only datagrams of `remote`, and a
    /// `send` without a destination sends to `remote`. The call itself sends no packet. A second
    /// call changes the peer.
    ///
    /// # Errors
    /// Errors of the route; `EACCES` for a broadcast address without `SO_BROADCAST`, `EAFNOSUPPORT`
    /// for another family, `ENETDOWN` for a closed socket.
    pub fn connect(
        self: &Arc<Self>,
        net: &Net,
        cx: &mut Cx,
        remote: SocketAddr,
    ) -> Result<(), Errno> {
        let mut call = self.begin_call(net, cx);
        let connected = call.connect(self, cx, remote);
        call.end(cx);
        connected
    }

    /// Returns the local address and port.
    #[must_use]
    pub fn local(&self, net: &Net, cx: &mut Cx) -> SocketAddr {
        let call = self.begin_untimed_call(net, cx);
        let local = call.state.local;
        call.end(cx);
        local
    }

    /// Returns the peer; `None` if the socket is not connected.
    #[must_use]
    pub fn remote(&self, net: &Net, cx: &mut Cx) -> Option<SocketAddr> {
        let call = self.begin_untimed_call(net, cx);
        let remote = call.state.remote;
        call.end(cx);
        remote
    }

    /// Takes the pending error, as `SO_ERROR` does.
    pub fn take_error(&self, net: &Net, cx: &mut Cx) -> Option<Errno> {
        let mut call = self.begin_untimed_call(net, cx);
        let error = call.state.error.take();
        call.end(cx);
        error
    }

    /// Takes the oldest report of the error queue (`IP_RECVERR`, `MSG_ERRQUEUE`).
    pub fn take_report(&self, net: &Net, cx: &mut Cx) -> Option<super::QueuedError> {
        let mut call = self.begin_untimed_call(net, cx);
        let errors = &mut call.state.errors;
        let report = (!errors.is_empty()).then(|| errors.remove(0));
        call.end(cx);
        report
    }

    /// Returns the number of datagrams that were dropped because the receive buffer was full or the
    /// host had no memory for datagrams.
    #[must_use]
    pub fn drops(&self, net: &Net, cx: &mut Cx) -> u32 {
        let call = self.begin_untimed_call(net, cx);
        let drops = call.state.drops.wrapping_add(self.backlog_drops.load(Ordering::Relaxed));
        call.end(cx);
        drops
    }

    /// Closes the socket. Datagrams that were not received are dropped.
    pub fn close(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        self.end(net, cx);
        cx.leave_polling();
    }

    /// Closes the socket: by `close`, or because the host is shut down or has lost the socket's
    /// address. Later calls fail with `ENETDOWN`.
    pub(crate) fn end(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        let mut call = self.begin_untimed_call(net, cx);
        let state = &mut *call.state;
        let ends = !state.closed;
        if ends {
            state.closed = true;
            let port = state.local.port();
            net.datagrams().unbind(net.demux(), &cx.reader(), self, port);
            // The table may keep the socket until the end of a grace period. The socket must not
            // keep devices for that time.
            state.dst = None;
            self.rx_dst.end();
            while let Some(packet) = state.queue.pop() {
                cx.drop_packet(DropReason::SocketClosed, packet);
            }
            state.uncharge(cx);
        }
        call.end(cx);
        if ends {
            self.leave_all(net, cx);
        }
    }
}

fn open(
    net: &Net,
    cx: &mut Cx,
    mut local: SocketAddr,
    settings: &SocketSettings,
) -> Result<Arc<DatagramSocket>, Errno> {
    net.check_up()?;
    if local.is_ipv6() {
        return Err(Errno::EAFNOSUPPORT);
    }
    // As in Linux, broadcast and multicast addresses can be bound, too.
    let is_ours = net.fib(&cx.reader().pin()).local_kind(local.ip()).is_some();
    if !local.ip().is_unspecified() && !is_ours {
        return Err(Errno::EADDRNOTAVAIL);
    }
    let preferred = settings.incoming_core.or_else(|| cx.home(net));
    let core = preferred
        .filter(|core| core.0 < net.core_count())
        .unwrap_or_else(|| net.core_of_flow(cx.rng.next_u32()));
    let any_port = local.port() == 0;
    let range = cx.sysctls().ip_local_port_range.clone();
    let socket = loop {
        if any_port {
            let reader = cx.reader();
            let port = net.datagrams().unused_port(&range, &mut cx.rng, &reader.pin());
            local.set_port(port.ok_or(Errno::EADDRINUSE)?);
        }
        let socket = DatagramSocket::new(net, cx, local, core, settings.clone());
        let bound = Bound {
            socket: Arc::clone(&socket),
            local,
            remote: None,
            flags: settings.bind_flags(local, cx.sysctls()),
            incoming_core: settings.incoming_core,
        };
        match net.datagrams().bind(&cx.reader(), bound) {
            Ok(()) => break socket,
            // Another thread has taken the port since the search.
            Err(Errno::EADDRINUSE) if any_port => {}
            Err(errno) => return Err(errno),
        }
    };
    net.check_up().inspect_err(|_| socket.end(net, cx))?;
    Ok(socket)
}

impl super::call::Call<'_> {
    fn connect(
        &mut self,
        socket: &Arc<DatagramSocket>,
        cx: &Cx,
        remote: SocketAddr,
    ) -> Result<(), Errno> {
        let (net, state) = (self.net, &mut *self.state);
        if state.closed {
            return Err(Errno::ENETDOWN);
        }
        if remote.is_ipv6() != state.local.is_ipv6() {
            return Err(Errno::EAFNOSUPPORT);
        }
        let remote = SocketAddr::new(this_host(remote.ip()), remote.port());
        let broadcast = socket.flags.broadcast();
        let hop = net.datagram_hop(cx, remote.ip(), state.source, broadcast, None)?;
        let source = hop.source;
        let dst = net.dst_of_hop(cx, &hop, socket.core)?;
        let local = SocketAddr::new(source, state.local.port());
        state.dst = Some(DatagramDst { remote: remote.ip(), source: Some(source), dst });
        (state.local, state.source, state.remote) = (local, Some(source), Some(remote));
        let tuple = tcp::FourTuple { local, remote };
        state.ip_id = net.ip_ids().of_connection(&tuple);
        // The cached input route entry is that of the former peer.
        socket.rx_dst.end();
        net.datagrams().change(net.demux(), &cx.reader(), socket, local, Some(remote));
        Ok(())
    }
}

/// Returns `ip`, or the loopback address if `ip` is unspecified: as in Linux, the unspecified
/// address as a destination means this host.
pub(super) fn this_host(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}
