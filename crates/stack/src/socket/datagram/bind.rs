//! Opening, connecting and closing datagram sockets.
//!
//! Above: crate `quietline`. Below: `table`. Linux: `inet_bind`, `inet6_bind`, `udp_lib_get_port`,
//! `ping_get_port`, `__ip4_datagram_connect`, `__ip6_datagram_connect`, `udp_disconnect`,
//! `udp_destroy_sock`.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use pkt::DropReason;

use super::{
    DatagramDst, DatagramSocket, Ends, SendControl, SocketKind,
    table::{Bound, DatagramTable},
    target::scope_of,
};
use crate::{
    base::errno::Errno,
    cx::Cx,
    route::router::Destination,
    socket::{
        family::{Family, canonical},
        net::Net,
        options::SocketSettings,
        rx::scoped,
    },
};

impl DatagramSocket {
    /// Opens a UDP socket bound to `local`; port 0 selects any free port. A socket on an IPv6
    /// address is one for both families, unless the settings have `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for an address that is neither local nor a broadcast or multicast address,
    /// `EADDRINUSE` for a port that another socket owns and if no port is free, `EINVAL` for a
    /// link-local address without its scope and for a v4-mapped one with `IPV6_V6ONLY`, `ENETDOWN`
    /// after the shutdown of the host.
    pub fn bind(
        net: &Net,
        cx: &mut Cx,
        local: SocketAddr,
        settings: &SocketSettings,
    ) -> Result<Arc<Self>, Errno> {
        Self::open(net, cx, SocketKind::Udp, local, settings)
    }

    /// Opens a socket of any kind. The port of a ping socket is the identifier of its messages, and
    /// its family is that of `local` alone.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn open(
        net: &Net,
        cx: &mut Cx,
        kind: SocketKind,
        local: SocketAddr,
        settings: &SocketSettings,
    ) -> Result<Arc<Self>, Errno> {
        let entered = cx.enter(net);
        let socket = open(net, cx, kind, local, settings);
        cx.leave(entered);
        socket
    }

    /// Connects to `remote`: from then on, the socket receives only datagrams of `remote`, and a
    /// `send` without a destination sends to `remote`. The call itself sends no packet. A second
    /// call changes the peer.
    ///
    /// # Errors
    /// Errors of the route; `EACCES` for a broadcast address without `SO_BROADCAST`, `EAFNOSUPPORT`
    /// for an IPv6 address on an IPv4 socket or from a local IPv4 address, `ENETUNREACH` for an
    /// IPv4 address with `IPV6_V6ONLY` or from a local IPv6 address, `EINVAL` for a link-local
    /// address without its scope, `ENETDOWN` for a closed socket.
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

    /// Disconnects: the socket receives from any peer again, at the address to which it was bound
    /// (`connect` to `AF_UNSPEC`). Does nothing for a socket that is not connected.
    pub fn disconnect(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        let mut call = self.begin_call(net, cx);
        call.disconnect(self, cx);
        call.end(cx);
    }

    /// Returns the local address and port.
    #[must_use]
    pub fn local(&self, net: &Net, cx: &mut Cx) -> SocketAddr {
        let call = self.begin_untimed_call(net, cx);
        let local = call.state.local;
        call.end(cx);
        self.family.present(local)
    }

    /// Returns the peer; `None` if the socket is not connected.
    #[must_use]
    pub fn remote(&self, net: &Net, cx: &mut Cx) -> Option<SocketAddr> {
        let call = self.begin_untimed_call(net, cx);
        let remote = call.state.remote;
        call.end(cx);
        remote.map(|remote| self.family.present(remote))
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
        report.map(|report| report.presented(self.family))
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
    /// address. Later calls that send, receive, connect or join a group fail with `ENETDOWN`.
    pub(crate) fn end(self: &Arc<Self>, net: &Net, cx: &mut Cx) {
        let mut call = self.begin_untimed_call(net, cx);
        let state = &mut *call.state;
        let ends = !state.closed;
        if ends {
            state.closed = true;
            let port = state.local.port();
            net.table_of(self.kind).unbind(net.demux(), &cx.reader(), self, port);
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
    kind: SocketKind,
    local: SocketAddr,
    settings: &SocketSettings,
) -> Result<Arc<DatagramSocket>, Errno> {
    net.check_up()?;
    let mut flags = settings.bind_flags(local, cx.sysctls());
    if kind == SocketKind::Ping && flags.family == Family::Dual {
        // ICMP and ICMPv6 are two protocols.
        flags.family = Family::V6Only;
    }
    let device = scope_of(local);
    let mut local = canonical(local)?;
    if local.is_ipv4() && flags.family == Family::V6Only {
        return Err(Errno::EINVAL);
    }
    // As in Linux, broadcast and multicast addresses can be bound, too.
    let is_ours = match Destination::from(local).device {
        Some(device) => net.is_local_on(cx, device, local.ip()),
        None => net.fib(&cx.reader().pin()).local_kind(local.ip()).is_some(),
    };
    if !local.ip().is_unspecified() && !is_ours {
        return Err(Errno::EADDRNOTAVAIL);
    }
    let table = net.table_of(kind);
    let preferred = settings.incoming_core.or_else(|| cx.home(net));
    let core = preferred
        .filter(|core| core.0 < net.core_count())
        .unwrap_or_else(|| net.core_of_flow(cx.rng.next_u32()));
    let any_port = local.port() == 0;
    let range = cx.sysctls().ip_local_port_range.clone();
    let socket = loop {
        if any_port {
            let reader = cx.reader();
            let port = table.unused_port(&range, &mut cx.rng, &reader.pin());
            local.set_port(port.ok_or(Errno::EADDRINUSE)?);
        }
        let ends = Ends { kind, family: flags.family, local, device };
        let socket = DatagramSocket::new(net, cx, &ends, core, settings.clone());
        let bound = Bound {
            socket: Arc::clone(&socket),
            local,
            remote: None,
            flags,
            incoming_core: settings.incoming_core,
        };
        match table.bind(&cx.reader(), bound) {
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
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let (net, state) = (self.net, &mut *self.state);
        if state.closed {
            return Err(Errno::ENETDOWN);
        }
        let target = state.target_at(socket, net, cx, to, &SendControl::default())?;
        let (remote, mut lookup) = (target.remote, target.lookup);
        let hop = lookup.hop(net, cx, socket.flags.broadcast())?;
        let dst = net.dst_of_hop(cx, &hop, socket.core)?;
        let local = scoped(hop.source, state.local.port(), hop.index);
        lookup.source = Some(hop.source);
        state.dst = Some(DatagramDst { lookup, dst });
        (state.local, state.source, state.remote) = (local, lookup.source, Some(remote));
        state.device = scope_of(to).or(state.device);
        let tuple = tcp::FourTuple { local, remote };
        state.ip_id = net.ip_ids().of_connection(&tuple);
        // The cached input route entry is that of the former peer.
        socket.rx_dst.end();
        let table = net.table_of(socket.kind);
        table.change(net.demux(), &cx.reader(), socket, local, Some(remote));
        Ok(())
    }
}

impl super::call::Call<'_> {
    fn disconnect(&mut self, socket: &Arc<DatagramSocket>, cx: &Cx) {
        let (net, state) = (self.net, &mut *self.state);
        if state.closed || state.remote.is_none() {
            return;
        }
        let local = state.bound;
        (state.local, state.remote, state.dst) = (local, None, None);
        state.source = Some(local.ip()).filter(|ip| net.is_local(cx, *ip));
        state.device = scope_of(local);
        socket.rx_dst.end();
        net.table_of(socket.kind).change(net.demux(), &cx.reader(), socket, local, None);
    }
}

impl Net {
    /// Returns the table of the datagram sockets of one kind.
    pub(crate) const fn table_of(&self, kind: SocketKind) -> &DatagramTable {
        match kind {
            SocketKind::Udp => &self.datagrams,
            SocketKind::Ping => &self.pings,
        }
    }
}
