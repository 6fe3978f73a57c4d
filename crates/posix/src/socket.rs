//! A socket with its state: fresh, bound, connecting, listening, connected, closed.
//!
//! The stack makes a connection when a program connects and a listener when it listens. Everything
//! that the program sets before is kept here until then. Linux: `struct socket`, net/socket.c.

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
        ConnectOptions, Connection, ListenOptions, Listener, ShutdownHow, options::SocketSettings,
    },
};
use tcp::State as TcpState;

use crate::{
    abi::{
        AF_INET, AF_INET6, SHUT_RD, SHUT_RDWR, SHUT_WR, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM,
    },
    watch::{Observable, Observers},
};

/// Bits of a socket type that are not flags (`SOCK_TYPE_MASK`).
pub(crate) const TYPE_MASK: i32 = 0xf;
/// First number that is no socket type (`SOCK_MAX`).
const TYPE_MAX: i32 = 11;
/// First number that is no protocol (`IPPROTO_MAX`).
const PROTOCOL_MAX: i32 = 263;

/// Flags that `socket` and `accept4` take.
pub(crate) const NEW_FLAGS: i32 = SOCK_NONBLOCK | SOCK_CLOEXEC;

/// The state of a socket as a program observes it. See the diagram at the head of the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// Neither bound nor connected.
    Fresh,
    /// `bind` has recorded an address.
    Bound,
    /// An attempt to connect whose result no call has reported.
    Connecting,
    /// `listen` was called.
    Listening,
    /// A connection, open or ended.
    Connected,
    /// `close` was called.
    Closed,
}

/// A TCP socket. Threads may share it.
#[derive(Debug)]
pub struct Socket {
    /// `O_NONBLOCK`. Relaxed: a flag orders nothing.
    nonblocking: AtomicBool,
    /// Held for state changes and lookups only, never while bytes move.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// Family: `AF_INET6`, otherwise `AF_INET`.
    pub(crate) is_v6: bool,
    /// Address that `bind` has recorded, for the next connection or listener.
    pub(crate) bound: Option<SocketAddr>,
    /// Another `bind` is refused. A port that the stack has chosen is released when the connection
    /// ends, and the socket may be bound again (Linux: `inet_num`, `SOCK_BINDPORT_LOCK`).
    pub(crate) is_bound: bool,
    /// `shutdown` has ended reading of a socket without a connection.
    pub(crate) shut_read: bool,
    /// Pending error of a socket without a connection (`sk_err`).
    pub(crate) error: Option<Errno>,
    /// `TCP_INQ`.
    pub(crate) inq: bool,
    /// Options that the program has set. A connection or a listener has a copy that counts; this
    /// one is for the next connection, as Linux keeps one `struct sock` through all of them.
    pub(crate) settings: SocketSettings,
    pub(crate) observers: Observers,
}

#[derive(Debug, Default)]
pub(crate) enum State {
    /// Fresh or bound.
    #[default]
    Unconnected,
    Listening(Arc<Listener>),
    Stream(Arc<Connection>, Phase),
    Closed,
}

impl State {
    /// The object of the stack that notifies observers.
    pub(crate) fn observable(&self) -> Option<&dyn Observable> {
        match self {
            Self::Listening(listener) => Some(&**listener),
            Self::Stream(stream, _) => Some(&**stream),
            Self::Unconnected | Self::Closed => None,
        }
    }
}

/// Linux's `sock->state` of a socket with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `SS_CONNECTING`.
    Connecting,
    /// `SS_CONNECTED`.
    Connected,
    /// `SS_DISCONNECTING`: shut down before it was connected.
    Disconnecting,
}

/// Returns the flags of socket(2) that are part of `kind`, with the checks that come before those
/// of the type and the protocol.
///
/// # Errors
/// `EINVAL` for unknown flags, `EAFNOSUPPORT`.
pub(crate) const fn flags_of_new(domain: i32, kind: i32) -> Result<i32, Errno> {
    let flags = kind & !TYPE_MASK;
    if flags & !NEW_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if domain != AF_INET && domain != AF_INET6 {
        return Err(Errno::EAFNOSUPPORT);
    }
    Ok(flags)
}

impl Default for Socket {
    fn default() -> Self {
        Self::with(Inner::default(), false)
    }
}

impl Socket {
    /// A socket as socket(2) makes it. `FD_CLOEXEC` is the driver's.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, types and protocols, `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`,
    /// `EPROTONOSUPPORT`: in the order in which Linux checks them.
    pub fn open(domain: i32, kind: i32, protocol: i32) -> Result<Self, Errno> {
        let flags = flags_of_new(domain, kind)?;
        let kind = kind & TYPE_MASK;
        if kind >= TYPE_MAX || !(0..PROTOCOL_MAX).contains(&protocol) {
            return Err(Errno::EINVAL);
        }
        if kind != SOCK_STREAM {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if protocol != 0 && protocol != stack::socket::options::IPPROTO_TCP {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let inner = Inner { is_v6: domain == AF_INET6, ..Inner::default() };
        Ok(Self::with(inner, flags & SOCK_NONBLOCK != 0))
    }

    /// A socket around an accepted connection.
    pub(crate) fn accepted(stream: Arc<Connection>, listening: &Inner, nonblocking: bool) -> Self {
        let inner = Inner {
            state: State::Stream(stream, Phase::Connected),
            is_v6: listening.is_v6,
            settings: listening.settings.clone(),
            inq: listening.inq,
            ..Inner::default()
        };
        Self::with(inner, nonblocking)
    }

    const fn with(inner: Inner, nonblocking: bool) -> Self {
        Self { nonblocking: AtomicBool::new(nonblocking), inner: Mutex::new(inner) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The state as a program observes it.
    #[must_use]
    pub fn state(&self) -> SocketState {
        let inner = self.lock();
        match &inner.state {
            State::Unconnected if inner.is_bound => SocketState::Bound,
            State::Unconnected => SocketState::Fresh,
            State::Listening(_) => SocketState::Listening,
            State::Stream(_, Phase::Connecting) => SocketState::Connecting,
            State::Stream(..) => SocketState::Connected,
            State::Closed => SocketState::Closed,
        }
    }

    /// The stack's connection, if the socket has one: threads that read or write sleep on its
    /// [`waiters`](Connection::waiters).
    #[must_use]
    pub fn stream(&self) -> Option<Arc<Connection>> {
        match &self.lock().state {
            State::Stream(stream, _) => Some(Arc::clone(stream)),
            _ => None,
        }
    }

    /// The stack's listener, if the socket listens: threads in `accept` sleep on its
    /// [`acceptors`](Listener::acceptors).
    #[must_use]
    pub fn listener(&self) -> Option<Arc<Listener>> {
        match &self.lock().state {
            State::Listening(listener) => Some(Arc::clone(listener)),
            _ => None,
        }
    }

    /// Records the local address, as bind(2).
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for an address of the other family, `EADDRNOTAVAIL` for an address that is
    /// not the host's, `EINVAL` for a socket that is bound, listens or has a connection.
    pub fn bind(&self, host: &Host, cx: &mut Cx, local: SocketAddr) -> Result<(), Errno> {
        let mut inner = self.lock().open()?;
        if local.is_ipv6() != inner.is_v6 {
            return Err(Errno::EAFNOSUPPORT);
        }
        if !local.ip().is_unspecified() && !host.is_local_end(cx, local) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let allowed = match &inner.state {
            State::Unconnected => !inner.is_bound,
            State::Stream(stream, _) => {
                // The port of a connection that has ended is free, unless the program has chosen
                // it.
                inner.bound.is_none_or(|bound| bound.port() == 0)
                    && tcp_state(stream, host, cx) == TcpState::Close
            }
            State::Listening(_) | State::Closed => false,
        };
        if !allowed {
            return Err(Errno::EINVAL);
        }
        (inner.bound, inner.is_bound) = (Some(local), true);
        Ok(())
    }

    /// Listens, as listen(2). A socket that listens gets a new backlog; a negative one is the
    /// largest, `net.core.somaxconn`.
    ///
    /// # Errors
    /// `EINVAL` for a socket that has a connection; those of [`Listener::listen_with`].
    pub fn listen(&self, host: &Arc<Host>, cx: &mut Cx, backlog: i32) -> Result<(), Errno> {
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        let mut inner = self.lock().open()?;
        match &inner.state {
            State::Stream(..) => return Err(Errno::EINVAL),
            State::Listening(listener) => {
                listener.set_backlog(host, backlog);
                return Ok(());
            }
            State::Unconnected | State::Closed => {}
        }
        let options = ListenOptions { backlog, settings: inner.settings.clone() };
        let local = inner.bound.unwrap_or_else(|| inner.any());
        let listener = Listener::listen_with(host, cx, local, &options)?;
        inner.error = None;
        inner.observers.follow(&*listener);
        inner.state = State::Listening(listener);
        Ok(())
    }

    /// Shuts down one or both halves, as shutdown(2).
    ///
    /// Of a listening socket `SHUT_RD` ends the listener; of an attempt before the SYN-ACK every
    /// direction ends the attempt, and `ECONNRESET` is pending then.
    ///
    /// # Errors
    /// `EINVAL` for an unknown direction, `ENOTCONN` without a connection.
    pub fn shutdown(&self, host: &Host, cx: &mut Cx, how: i32) -> Result<(), Errno> {
        let mut inner = self.lock().open()?;
        let how = match how {
            SHUT_RD => ShutdownHow::Read,
            SHUT_WR => ShutdownHow::Write,
            SHUT_RDWR => ShutdownHow::Both,
            _ => return Err(Errno::EINVAL),
        };
        match &mut inner.state {
            State::Unconnected | State::Closed => {
                inner.shut_read |= how != ShutdownHow::Write;
                inner.observers.notify();
                Err(Errno::ENOTCONN)
            }
            State::Listening(_) if how == ShutdownHow::Write => Ok(()),
            State::Listening(_) => {
                inner.disconnect(host, cx);
                Ok(())
            }
            State::Stream(stream, phase) => {
                let tcp = tcp_state(stream, host, cx);
                if *phase == Phase::Connecting {
                    let unconnected =
                        matches!(tcp, TcpState::SynSent | TcpState::SynRecv | TcpState::Close);
                    *phase = if unconnected { Phase::Disconnecting } else { Phase::Connected };
                }
                let result = stream.shutdown(host, cx, how);
                if tcp == TcpState::SynSent {
                    inner.disconnect(host, cx);
                    inner.error = Some(Errno::ECONNRESET);
                    inner.observers.notify();
                }
                result
            }
        }
    }

    /// Ends the connection or the listener, as connect(2) to `AF_UNSPEC`. An open connection is
    /// reset. The socket is fresh or bound then, with `ECONNRESET` pending if a peer had a part in
    /// it.
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    pub fn disconnect(&self, host: &Host, cx: &mut Cx) -> Result<(), Errno> {
        let mut inner = self.lock().open()?;
        let error = match &inner.state {
            State::Stream(stream, _) => match tcp_state(stream, host, cx) {
                TcpState::Close | TcpState::TimeWait | TcpState::Closing | TcpState::LastAck => {
                    None
                }
                _ => Some(Errno::ECONNRESET),
            },
            _ => None,
        };
        if let (Some(_), State::Stream(stream, _)) = (error, &inner.state) {
            stream.abort(host, cx);
        }
        inner.disconnect(host, cx);
        inner.error = error.or(inner.error);
        inner.observers.notify();
        Ok(())
    }

    /// The local address, as getsockname(2).
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    pub fn local_name(&self) -> Result<SocketAddr, Errno> {
        let inner = self.lock();
        Ok(match &inner.state {
            State::Unconnected => inner.bound.unwrap_or_else(|| inner.any()),
            State::Listening(listener) => listener.local(),
            State::Stream(stream, _) => stream.local(),
            State::Closed => return Err(Errno::EBADF),
        })
    }

    /// The peer's address, as getpeername(2).
    ///
    /// # Errors
    /// `ENOTCONN` before the handshake and after a reset.
    pub fn peer_name(&self, host: &Host, cx: &mut Cx) -> Result<SocketAddr, Errno> {
        let inner = self.lock().open()?;
        let State::Stream(stream, _) = &inner.state else { return Err(Errno::ENOTCONN) };
        match tcp_state(stream, host, cx) {
            TcpState::Close | TcpState::SynSent => Err(Errno::ENOTCONN),
            _ => Ok(stream.remote()),
        }
    }
}

/// A guard of a socket's state.
pub(crate) trait Open: Sized {
    /// The guard itself.
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    fn open(self) -> Result<Self, Errno>;
}

impl Open for MutexGuard<'_, Inner> {
    fn open(self) -> Result<Self, Errno> {
        if matches!(self.state, State::Closed) { Err(Errno::EBADF) } else { Ok(self) }
    }
}

impl Inner {
    /// The address of a socket without one.
    pub(crate) const fn any(&self) -> SocketAddr {
        let ip = match self.is_v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        SocketAddr::new(ip, 0)
    }

    /// Options of a connection that starts now.
    pub(crate) fn connect_options(&self) -> ConnectOptions {
        ConnectOptions { local: self.bound, settings: self.settings.clone() }
    }

    /// An attempt to connect has begun.
    pub(crate) fn begin(&mut self, stream: Arc<Connection>) {
        self.error = None;
        self.observers.follow(&*stream);
        self.state = State::Stream(stream, Phase::Connecting);
    }

    /// Releases the connection or the listener: the socket is fresh or bound.
    pub(crate) fn disconnect(&mut self, host: &Host, cx: &mut Cx) {
        self.shut_read = false;
        match std::mem::take(&mut self.state) {
            State::Unconnected => return,
            State::Listening(listener) => listener.close(host, cx),
            State::Stream(stream, _) => stream.close(host, cx),
            State::Closed => self.state = State::Closed,
        }
        self.is_bound &= self.bound.is_some_and(|bound| bound.port() != 0);
        self.observers.notify();
    }
}

/// State of the connection in TCP.
pub(crate) fn tcp_state(stream: &Connection, host: &Host, cx: &mut Cx) -> TcpState {
    stream.with_tcb(host, cx, |tcb, _| tcb.state())
}

/// Whether the handshake of an active open is not finished.
pub(crate) const fn is_opening(state: TcpState) -> bool {
    matches!(state, TcpState::SynSent | TcpState::SynRecv)
}
