//! `TcpListener`, as in `std::net`.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use stack::{
    Errno,
    core::CoreId,
    socket::{
        Listener,
        options::{OptionValue, SocketOption},
    },
    sysctl::Sysctls,
};

use crate::{
    clock::{self, with_cx},
    options::ListenOptions,
    running::Stack,
    stream::TcpStream,
    wait::{Wait, wait_until},
};

/// A listening socket. It stops listening when the last clone is dropped; connections nobody accepted are reset.
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
    /// Listens on `local`; port 0 takes a free one.
    ///
    /// # Errors
    /// `EADDRINUSE`, or `EADDRNOTAVAIL` for an address that is not ours.
    pub fn bind(stack: &Stack, local: SocketAddr) -> io::Result<Self> {
        Self::options().listen(stack, local)
    }

    /// How to listen with more than an address: backlog, `SO_REUSEPORT`, options of the connections.
    pub fn options() -> ListenOptions {
        ListenOptions::default()
    }

    /// Listens with room for `backlog` connections that wait for `accept`, at most `net.core.somaxconn`.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with_backlog(stack: &Stack, local: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::options().backlog(backlog).listen(stack, local)
    }

    pub(crate) fn listen(
        stack: &Stack,
        local: SocketAddr,
        options: &stack::socket::ListenOptions,
    ) -> io::Result<Self> {
        let listener = with_cx(|cx| Listener::listen_with(stack.host(), cx, local, options))?;
        Ok(Self {
            shared: Arc::new(Shared {
                stack: stack.clone(),
                listener,
                nonblocking: AtomicBool::new(false),
            }),
        })
    }

    /// Takes the next connection, waiting for one.
    ///
    /// # Errors
    /// `WouldBlock` when nonblocking and there is none, or when none came within `SO_RCVTIMEO`; `EINVAL` when the stack was shut down.
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
                    // Nobody has to want a core that there is.
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
                    if !wait_until(&wait, ready) {
                        return Err(Errno::EAGAIN.into());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The connections as they come.
    #[must_use]
    pub const fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Where it listens, with the port that was chosen.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.listener.local())
    }

    /// Whether `accept` fails with `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Sets a socket option by Linux's rules; connections accepted later begin with it.
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

    /// Reads a socket option.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        let Shared { stack, listener, .. } = &*self.shared;
        Ok(with_cx(|cx| listener.option(stack.host(), cx, option))?)
    }

    /// Another handle to the same listener.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Stops listening now: threads that wait in `accept` return `EINVAL`.
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

/// Iterator over accepted connections. Never ends by itself.
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
