//! Datagram sockets: UDP, and echo requests of ICMP and ICMPv6.
//!
//! Linux: net/ipv4/udp.c, net/ipv6/udp.c, net/ipv4/ping.c, net/ipv6/datagram.c, net/socket.c.
//!
//! Every datagram socket of the stack is bound, but a program may set options and join groups
//! before it binds. Until `bind`, or the first `connect` or send, which bind to any address and a
//! free port, a [`Datagram`] therefore keeps options and memberships, and checks them with a
//! *provisional* socket, which the bound one replaces.
//!
//! Not here: `MSG_MORE`, `UDP_CORK`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use stack::{
    Cx, Errno,
    host::Host,
    socket::{
        DatagramSocket, ShutdownHow,
        datagram::SocketKind,
        options::{IPPROTO_UDP, OptionValue, SocketOption, SocketSettings, SocketState},
    },
};

use crate::{
    abi::{
        AF_INET, AF_INET6, IPPROTO_ICMP, IPPROTO_ICMPV6, POLLHUP, POLLIN, POLLRDHUP, POLLRDNORM,
        SHUT_RD, SHUT_RDWR, SHUT_WR, SOCK_DGRAM, SOCK_NONBLOCK,
    },
    options::unknown_to_get,
    socket::{TYPE_MASK, flags_of_new},
    watch::{Observable, Observers},
};
use control::Wanted;

mod control;
mod recv;
mod send;

pub use control::ControlMessage;
pub use recv::{ReceivedDatagram, RecvDatagram};
pub use send::SendDatagram;

/// A datagram socket. Threads may share it.
#[derive(Debug)]
pub struct Datagram {
    /// `O_NONBLOCK`. Relaxed: a flag orders nothing.
    nonblocking: AtomicBool,
    kind: SocketKind,
    is_v6: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Socket of the stack.
    socket: Option<Arc<DatagramSocket>>,
    /// Whether `socket` is the provisional one of a program that has not bound it.
    is_provisional: bool,
    is_connected: bool,
    is_closed: bool,
    shut_read: bool,
    shut_write: bool,
    /// Options that were set before the socket was bound and decide how its port is shared.
    settings: SocketSettings,
    /// Other options that were set before the socket was bound.
    options: Vec<(SocketOption, OptionValue)>,
    /// Memberships of the provisional socket: the options that have changed them, in order.
    memberships: Vec<Membership>,
    /// Control messages that the program wants.
    wanted: Wanted,
    observers: Observers,
}

/// Level, number and value of an option that has changed a membership.
type Membership = ((i32, i32), Vec<u8>);

impl Inner {
    const fn is_bound(&self) -> bool {
        self.socket.is_some() && !self.is_provisional
    }

    /// Sets the kept options and joins the kept groups.
    fn repeat_options(
        &self,
        socket: &Arc<DatagramSocket>,
        host: &Host,
        cx: &mut Cx,
    ) -> Result<(), Errno> {
        for (option, value) in &self.options {
            socket.set_option(host, cx, *option, value)?;
        }
        for (number, value) in &self.memberships {
            control::change_membership(socket, host, cx, *number, value)?;
        }
        Ok(())
    }

    /// Closes the provisional socket.
    fn end_provisional(&mut self, host: &Host, cx: &mut Cx) {
        if self.is_provisional
            && let Some(socket) = self.socket.take()
        {
            socket.close(host, cx);
        }
        self.is_provisional = false;
    }
}

impl Datagram {
    /// A socket as socket(2) makes it. `FD_CLOEXEC` is the driver's. Differs from Linux: any
    /// program may open one for ICMP (`net.ipv4.ping_group_range`).
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`.
    pub fn open(domain: i32, kind: i32, protocol: i32) -> Result<Self, Errno> {
        let flags = flags_of_new(domain, kind)?;
        if kind & TYPE_MASK != SOCK_DGRAM {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        let kind = match (protocol, domain) {
            (0 | IPPROTO_UDP, _) => SocketKind::Udp,
            (IPPROTO_ICMP, AF_INET) | (IPPROTO_ICMPV6, AF_INET6) => SocketKind::Ping,
            _ => return Err(Errno::EPROTONOSUPPORT),
        };
        Ok(Self {
            nonblocking: AtomicBool::new(flags & SOCK_NONBLOCK != 0),
            kind,
            is_v6: domain == AF_INET6,
            inner: Mutex::default(),
        })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Errno> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.is_closed { Err(Errno::EBADF) } else { Ok(inner) }
    }

    /// Calls `work` with the observers, and the object behind the socket that notifies them.
    pub(crate) fn with_observers<R>(
        &self,
        work: impl FnOnce(&mut Observers, Option<&dyn Observable>) -> R,
    ) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { observers, socket, .. } = &mut *inner;
        work(observers, socket.as_deref().map(|socket| socket as &dyn Observable))
    }

    /// `O_NONBLOCK`.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets or clears `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// The stack's socket, if the socket is bound: threads sleep on its
    /// [`waiters`](DatagramSocket::waiters).
    #[must_use]
    pub fn socket(&self) -> Option<Arc<DatagramSocket>> {
        self.lock().ok()?.socket.clone()
    }

    /// The address of a socket without one.
    fn any(&self) -> SocketAddr {
        let ip = match self.is_v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        SocketAddr::new(ip, 0)
    }

    fn open_at(
        &self,
        inner: &mut Inner,
        host: &Host,
        cx: &mut Cx,
        local: SocketAddr,
    ) -> Result<Arc<DatagramSocket>, Errno> {
        let socket = DatagramSocket::open(host, cx, self.kind, local, &inner.settings)?;
        inner.end_provisional(host, cx);
        if let Err(errno) = inner.repeat_options(&socket, host, cx) {
            socket.close(host, cx);
            return Err(errno);
        }
        inner.observers.follow(&*socket);
        Ok(Arc::clone(inner.socket.insert(socket)))
    }

    /// The socket of the stack; a socket that is not bound yet is bound to a free port.
    fn bound(
        &self,
        inner: &mut Inner,
        host: &Host,
        cx: &mut Cx,
    ) -> Result<Arc<DatagramSocket>, Errno> {
        let socket = self.any_socket(inner, host, cx)?;
        inner.is_provisional = false;
        Ok(socket)
    }

    /// The socket of the stack, bound or provisional.
    fn any_socket(
        &self,
        inner: &mut Inner,
        host: &Host,
        cx: &mut Cx,
    ) -> Result<Arc<DatagramSocket>, Errno> {
        if let Some(socket) = &inner.socket {
            return Ok(Arc::clone(socket));
        }
        let socket = self.open_at(inner, host, cx, self.any())?;
        inner.is_provisional = true;
        Ok(socket)
    }

    /// Binds the socket, as bind(2).
    ///
    /// # Errors
    /// `EINVAL` for a socket that is bound, `EAFNOSUPPORT` for an address of the other family;
    /// those of [`DatagramSocket::bind`].
    pub fn bind(&self, host: &Host, cx: &mut Cx, local: SocketAddr) -> Result<(), Errno> {
        let mut inner = self.lock()?;
        if local.is_ipv6() != self.is_v6 {
            return Err(Errno::EAFNOSUPPORT);
        }
        if inner.is_bound() {
            return Err(Errno::EINVAL);
        }
        self.open_at(&mut inner, host, cx, local).map(drop)
    }

    /// Sets the peer, as connect(2). `connect` to `AF_UNSPEC` is [`disconnect`](Self::disconnect).
    ///
    /// # Errors
    /// Those of [`DatagramSocket::connect`].
    pub fn connect(&self, host: &Host, cx: &mut Cx, remote: SocketAddr) -> Result<(), Errno> {
        let mut inner = self.lock()?;
        self.bound(&mut inner, host, cx)?.connect(host, cx, remote)?;
        inner.is_connected = true;
        Ok(())
    }

    /// Removes the peer. Differs from Linux: a port that the stack has chosen stays bound.
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    pub fn disconnect(&self, host: &Host, cx: &mut Cx) -> Result<(), Errno> {
        let mut inner = self.lock()?;
        if let Some(socket) = &inner.socket {
            socket.disconnect(host, cx);
        }
        inner.is_connected = false;
        (inner.shut_read, inner.shut_write) = (false, false);
        Ok(())
    }

    /// Shuts down one or both directions of a connected socket, as shutdown(2): receives of an
    /// empty queue return nothing, sends fail with `EPIPE`. No packet leaves.
    ///
    /// # Errors
    /// `EINVAL` for an unknown direction, `ENOTCONN` without a peer.
    pub fn shutdown(&self, how: i32) -> Result<(), Errno> {
        let mut inner = self.lock()?;
        let how = match how {
            SHUT_RD => ShutdownHow::Read,
            SHUT_WR => ShutdownHow::Write,
            SHUT_RDWR => ShutdownHow::Both,
            _ => return Err(Errno::EINVAL),
        };
        if !inner.is_connected {
            return Err(Errno::ENOTCONN);
        }
        inner.shut_read |= how != ShutdownHow::Write;
        inner.shut_write |= how != ShutdownHow::Read;
        inner.observers.notify();
        Ok(())
    }

    /// The local address, as getsockname(2).
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    pub fn local_name(&self, host: &Host, cx: &mut Cx) -> Result<SocketAddr, Errno> {
        let inner = self.lock()?;
        Ok(match &inner.socket {
            Some(socket) if inner.is_bound() => socket.local(host, cx),
            _ => self.any(),
        })
    }

    /// The peer's address, as getpeername(2).
    ///
    /// # Errors
    /// `ENOTCONN` without a peer.
    pub fn peer_name(&self, host: &Host, cx: &mut Cx) -> Result<SocketAddr, Errno> {
        let inner = self.lock()?;
        let remote = inner.socket.as_ref().and_then(|socket| socket.remote(host, cx));
        remote.ok_or(Errno::ENOTCONN)
    }

    /// Sets an option from its bytes, as setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option, `EINVAL` for a value that is too short or not allowed;
    /// those of the option.
    pub fn setsockopt(
        &self,
        host: &Host,
        cx: &mut Cx,
        (level, number): (i32, i32),
        value: &[u8],
    ) -> Result<(), Errno> {
        let mut inner = self.lock()?;
        if let Some(done) = inner.wanted.set(self.is_v6, (level, number), value) {
            return done;
        }
        if control::is_membership(level, number) {
            let socket = self.any_socket(&mut inner, host, cx)?;
            control::change_membership(&socket, host, cx, (level, number), value)?;
            if inner.is_provisional {
                control::keep_membership(&mut inner.memberships, (level, number), value);
            }
            return Ok(());
        }
        let option = SocketOption::from_number(level, number).ok_or(Errno::ENOPROTOOPT)?;
        let value = OptionValue::decode(option, value)?;
        if !inner.is_bound() && option.settable_in().contains(&SocketState::Fresh) {
            inner.settings.set(option, &value, &host.sysctls())?;
            // The next provisional socket is opened with the option.
            inner.end_provisional(host, cx);
            return Ok(());
        }
        self.any_socket(&mut inner, host, cx)?.set_option(host, cx, option, &value)?;
        if inner.is_provisional {
            inner.options.retain(|(kept, _)| *kept != option);
            inner.options.push((option, value));
        }
        Ok(())
    }

    /// Writes the value of an option into `room`, as getsockopt(2), and returns the bytes written.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an unknown option, and `EOPNOTSUPP` for any of a level that an IPv4 socket
    /// does not have; those of the option.
    pub fn getsockopt(
        &self,
        host: &Host,
        cx: &mut Cx,
        (level, number): (i32, i32),
        room: &mut [u8],
    ) -> Result<usize, Errno> {
        let mut inner = self.lock()?;
        if let Some(on) = inner.wanted.get(self.is_v6, (level, number)) {
            let value = i32::from(on).to_ne_bytes();
            let len = room.len().min(value.len());
            room[..len].copy_from_slice(&value[..len]);
            return Ok(len);
        }
        let unknown = unknown_to_get(self.is_v6, level, IPPROTO_UDP);
        let option = SocketOption::from_number(level, number).ok_or(unknown)?;
        let value = self.any_socket(&mut inner, host, cx)?.option(host, cx, option)?;
        Ok(value.encode(option, room))
    }

    /// Events that `shutdown` has made permanent; `None` for a closed socket. Linux:
    /// `datagram_poll`.
    pub(crate) fn shut_events(&self) -> Option<i16> {
        let inner = self.lock().ok()?;
        let read = if inner.shut_read { POLLRDHUP | POLLIN | POLLRDNORM } else { 0 };
        let both = if inner.shut_read && inner.shut_write { POLLHUP } else { 0 };
        Some(read | both)
    }

    /// Closes the socket.
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    pub fn close(&self, host: &Host, cx: &mut Cx) -> Result<(), Errno> {
        let mut inner = self.lock()?;
        inner.is_closed = true;
        inner.observers.end();
        if let Some(socket) = inner.socket.take() {
            socket.close(host, cx);
        }
        Ok(())
    }
}
