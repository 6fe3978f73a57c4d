//! `TcpListener`, as in `std::net`.

use std::{
    fmt, io,
    iter::FusedIterator,
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use stack::{
    Errno, Readiness,
    base::ids::CoreId,
    socket::{
        ListenOptions, Listener,
        options::{OptionValue, SocketOption},
    },
    sysctl::Sysctls,
};
use sync::WatchKey;

use crate::{
    addresses::first_of,
    clock::{self, with_cx},
    handle::Stack,
    observed,
    stream::TcpStream,
    wait::{Wait, poll_first, sleep_until},
};

/// A listening socket. Dropping the last clone stops it and resets the connections that were not
/// accepted.
#[derive(Clone)]
pub struct TcpListener {
    shared: Arc<Shared>,
}

struct Shared {
    stack: Stack,
    listener: Arc<Listener>,
    nonblocking: AtomicBool,
}

impl TcpListener {
    /// Listens on `local`; port 0 takes a free port. If `local` has several addresses, they are
    /// tried in order until one is free. As for `std::net`, the system resolves host names through
    /// its own network, not through `stack`.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EADDRNOTAVAIL` if the stack does not have the address; `InvalidInput` for
    /// text that is not an address, and the resolver's error for a host name. With several
    /// addresses, the error of the last one.
    pub fn bind(stack: &Stack, local: impl ToSocketAddrs) -> io::Result<Self> {
        Self::listen_with(stack, local, &ListenOptions::default())
    }

    /// Listens with a queue of `backlog` connections that wait for `accept`, at most
    /// `net.core.somaxconn`.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with_backlog(
        stack: &Stack,
        local: impl ToSocketAddrs,
        backlog: u32,
    ) -> io::Result<Self> {
        Self::listen_with(stack, local, &ListenOptions::default().backlog(backlog))
    }

    /// Listens with further options: backlog, `SO_REUSEPORT`, options of the connections. Port 0
    /// takes a free port. If `local` has several addresses, they are tried in order until one is
    /// free.
    ///
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// # let stack = quietline::Stack::builder().build()?;
    /// use quietline::{ListenOptions, TcpListener};
    ///
    /// let options = ListenOptions::default().backlog(64).reuse_port(true).nodelay(true);
    /// let listener = TcpListener::listen_with(&stack, "10.0.0.2:80", &options)?;
    /// # let _ = listener;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn listen_with(
        stack: &Stack,
        local: impl ToSocketAddrs,
        options: &ListenOptions,
    ) -> io::Result<Self> {
        let listener = first_of(local, |local| {
            Ok(with_cx(|cx| Listener::listen_with(stack.host(), cx, local, options))?)
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                stack: stack.clone(),
                listener,
                nonblocking: AtomicBool::new(false),
            }),
        })
    }

    /// Returns the next connection, and waits for one unless the listener is nonblocking.
    ///
    /// # Errors
    /// `WouldBlock` if the listener is nonblocking and no connection waits, or if none arrived
    /// within `SO_RCVTIMEO`; `EINVAL` if the stack was shut down.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Shared { stack, listener, nonblocking } = &*self.shared;
        let mut deadline = None;
        loop {
            let near = with_cx(|cx| cx.home(stack.host()));
            match listener.accept_near(near) {
                Ok(socket) => {
                    let peer = socket.remote();
                    return Ok((TcpStream::new(stack.clone(), socket), peer));
                }
                Err(Errno::EAGAIN) if !nonblocking.load(Ordering::Relaxed) => {
                    if deadline.is_none() {
                        let limit = with_cx(|cx| listener.receive_timeout(cx));
                        deadline = limit.map(|limit| clock::now() + limit);
                    }
                    let ready = || listener.is_ready();
                    // `incoming_core` may name a core that the stack does not have.
                    let wanted = listener.incoming_core();
                    let exists = |core: &CoreId| usize::from(core.0) < stack.host().cores().len();
                    let core = wanted.filter(exists).or(near).unwrap_or(CoreId(0));
                    let busy_poll = with_cx(|cx| listener.busy_poll(cx));
                    let wait = Wait {
                        began: clock::now(),
                        stack,
                        core,
                        events: listener.acceptors(),
                        deadline,
                        polling: |sysctls: &Sysctls| busy_poll.for_event(sysctls),
                    };
                    with_cx(|cx| cx.polls_to_accept(Some(listener)));
                    let polled = poll_first(&wait, &ready);
                    with_cx(|cx| cx.polls_to_accept(None));
                    if !polled && !sleep_until(&wait, ready) {
                        return Err(Errno::EAGAIN.into());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns an iterator that accepts one connection after the other.
    #[must_use]
    pub const fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// As [`incoming`](Self::incoming), for an iterator that owns the listener.
    #[must_use]
    pub const fn into_incoming(self) -> IntoIncoming {
        IntoIncoming { listener: self }
    }

    /// Returns the local address, with the port that was chosen.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.listener.local())
    }

    /// Sets whether `accept` fails with `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether `accept` fails with `WouldBlock` instead of waiting.
    #[must_use]
    pub fn nonblocking(&self) -> bool {
        self.shared.nonblocking.load(Ordering::Relaxed)
    }

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let number = self.option(SocketOption::Error)?.as_int().unwrap_or_default();
        Ok(Errno::from_raw(number).map(io::Error::from))
    }

    /// Sets the TTL or hop limit of packets of accepted connections (`IP_TTL`, and on an IPv6
    /// address also `IPV6_UNICAST_HOPS`), 1 to 255. Default: `net.ipv4.ip_default_ttl`,
    /// `net.ipv6.conf.all.hop_limit`.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_option(SocketOption::TimeToLive, ttl)?;
        if self.local_addr()?.is_ipv6() {
            self.set_option(SocketOption::UnicastHops, ttl)?;
        }
        Ok(())
    }

    /// Returns the TTL of IPv4 packets of accepted connections.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn ttl(&self) -> io::Result<u32> {
        let ttl = self.option(SocketOption::TimeToLive)?.as_int().ok_or(Errno::EINVAL)?;
        Ok(ttl.cast_unsigned())
    }

    /// Sets a socket option by Linux's rules. Connections that are accepted later inherit it.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOPROTOOPT`, `EINVAL`, `ENOENT`.
    pub fn set_option(
        &self,
        option: SocketOption,
        value: impl Into<OptionValue>,
    ) -> io::Result<()> {
        let Shared { stack, listener, .. } = &*self.shared;
        Ok(listener.set_option(stack.host(), option, &value.into())?)
    }

    /// Returns a socket option.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        let Shared { stack, listener, .. } = &*self.shared;
        Ok(with_cx(|cx| listener.option(stack.host(), cx, option))?)
    }

    /// Returns READ if a connection waits to be accepted, and HUP once the listener is closed.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.shared.listener.readiness()
    }

    /// Returns the readiness if a connection waits or the listener is closed, and otherwise
    /// registers the waker of `task`, as
    /// [`TcpStream::poll_ready`](crate::TcpStream::poll_ready).
    pub fn poll_ready(&self, task: &mut Context<'_>) -> Poll<Readiness> {
        observed::poll_ready(&*self.shared.listener, WatchKey::BY_WAKER, Readiness::READ, task)
    }

    pub(crate) fn socket(&self) -> &Arc<Listener> {
        &self.shared.listener
    }

    /// Returns another handle to the same listener.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Stops listening at once: threads that wait in `accept` return `EINVAL`.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    fn close(&self) {
        with_cx(|cx| self.listener.close(self.stack.host(), cx));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.listener.watchers().clear();
        self.close();
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.shared.listener.local())
            .finish_non_exhaustive()
    }
}

/// Iterator that accepts one connection after the other. Never ends.
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}

/// Iterator that owns its listener and accepts one connection after the other. Never ends.
#[derive(Debug)]
pub struct IntoIncoming {
    listener: TcpListener,
}

impl Iterator for IntoIncoming {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for IntoIncoming {}

impl<'a> IntoIterator for &'a TcpListener {
    type Item = io::Result<TcpStream>;
    type IntoIter = Incoming<'a>;

    fn into_iter(self) -> Incoming<'a> {
        self.incoming()
    }
}

impl IntoIterator for TcpListener {
    type Item = io::Result<TcpStream>;
    type IntoIter = IntoIncoming;

    fn into_iter(self) -> IntoIncoming {
        self.into_incoming()
    }
}
