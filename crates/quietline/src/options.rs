//! Builders of sockets with further options: the settings that `setsockopt` and `bind` make before
//! `listen` and `connect`.

use std::{
    io::{self, Write},
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use stack::{base::ids::CoreId, sysctl::FastOpenKey};
pub use tcp::SocketOptions;

use crate::{addresses::first_of, clock, handle::Stack, listener::TcpListener, stream::TcpStream};

/// Options of a listener. [`TcpListener::options`] creates it; every method takes and returns it.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until listen()"]
pub struct ListenOptions {
    inner: stack::socket::ListenOptions,
}

impl ListenOptions {
    /// Sets how many connections may wait for `accept`, at most `net.core.somaxconn`. Default 128.
    pub const fn backlog(mut self, connections: u32) -> Self {
        self.inner.backlog = connections;
        self
    }

    /// `SO_REUSEADDR`: remaining connections of an earlier listener do not block the port. Default
    /// on, as in `std::net`.
    pub const fn reuse_address(mut self, on: bool) -> Self {
        self.inner.reuse_address = on;
        self
    }

    /// `SO_REUSEPORT`: listeners that all set it share the port; the hash of a connection's flow
    /// selects one of them. Default off. A listener that closes resets the connections it has not
    /// accepted; the other listeners keep theirs.
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.inner.reuse_port = on;
        self
    }

    /// `SO_INCOMING_CPU`: of the listeners that share a port, this one receives the connections of
    /// core number `core`. With one listener and one accepting thread per core, the threads share
    /// no state.
    pub const fn incoming_core(mut self, core: u16) -> Self {
        self.inner.incoming_core = Some(CoreId(core));
        self
    }

    /// Limits the connections that one source address may have with this listener, including
    /// half-open connections and those that wait for `accept`. The stack drops a SYN above the
    /// limit without an answer (`SOURCE_LIMIT`, `ListenSourceLimit`). Default 0, no limit. A
    /// connection counts until it is closed on both sides or reset. Clients behind one NAT share an
    /// address. Forged SYNs can use up the limit of another address with half-open
    /// connections, unless `net.ipv4.tcp_syncookies` is 2. Each listener of a shared port counts
    /// separately. [`SocketOption::MaxPerSource`](crate::SocketOption::MaxPerSource) changes the
    /// limit later.
    pub const fn max_per_source(mut self, connections: u32) -> Self {
        self.inner.max_per_source = connections;
        self
    }

    /// `TCP_FASTOPEN`: upper bound of the connections whose SYN data may be read before the
    /// handshake has ended (RFC 7413), if `net.ipv4.tcp_fastopen` allows it. Only for applications
    /// that may execute a request twice: the network may repeat a SYN, and with it the request.
    /// Default 0.
    pub const fn fast_open(mut self, connections: u32) -> Self {
        self.inner.fast_open = connections;
        self
    }

    /// `TCP_FASTOPEN_NO_COOKIE`: accepts the data of a SYN without a cookie. Only for networks
    /// without forged addresses. Default off.
    pub const fn fast_open_no_cookie(mut self, on: bool) -> Self {
        self.inner.fast_open_no_cookie = on;
        self
    }

    /// `TCP_FASTOPEN_KEY`: sets the key of this listener's cookies in place of the stack's key.
    /// Cookies made with `backup`, the former key, are still accepted.
    pub const fn fast_open_key(mut self, primary: [u8; 16], backup: Option<[u8; 16]>) -> Self {
        self.inner.fast_open_key = Some(FastOpenKey { primary, backup });
        self
    }

    /// Sets the initial options of every accepted connection.
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.inner.options = options;
        self
    }

    /// Listens on `local`; port 0 takes a free port. If `local` has several addresses, they are
    /// tried in order until one is free.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn listen(&self, stack: &Stack, local: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::listen(stack, local, &self.inner)
    }
}

/// Options of a connection to be opened. [`TcpStream::options`] creates it; every method takes and
/// returns it.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until connect()"]
pub struct ConnectOptions {
    inner: stack::socket::ConnectOptions,
}

impl ConnectOptions {
    /// Connects from this address and port. Address 0.0.0.0 lets the route choose the address. With
    /// port 0 the port is chosen when the four-tuple is known, as with `IP_BIND_ADDRESS_NO_PORT`,
    /// so that connections to different destinations may share a port.
    pub const fn bind(mut self, local: SocketAddr) -> Self {
        self.inner.local = Some(local);
        self
    }

    /// `SO_REUSEADDR`: shares a bound port with connections that set the option too, TIME-WAIT
    /// included, as long as the peers differ. Default off.
    pub const fn reuse_address(mut self, on: bool) -> Self {
        self.inner.reuse_address = on;
        self
    }

    /// `SO_REUSEPORT`: shares a bound port with sockets that set the option too. Default off.
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.inner.reuse_port = on;
        self
    }

    /// `TCP_FASTOPEN_CONNECT`: if the peer has sent a cookie before, `connect` returns at once and
    /// the SYN carries the first write (RFC 7413). Only for requests that may be executed twice:
    /// the network may repeat a SYN, and with it the data.
    pub const fn fast_open(mut self, on: bool) -> Self {
        self.inner.fast_open = on;
        self
    }

    /// Connects and sends the beginning of `data` (`sendto` with `MSG_FASTOPEN`): in the SYN if the
    /// peer has sent a cookie before, otherwise when the connection is established. Returns the
    /// number of bytes taken, at least one if `data` is not empty.
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and a write; `EOPNOTSUPP` if `net.ipv4.tcp_fastopen` does not
    /// allow clients.
    pub fn connect_with_data(
        &self,
        stack: &Stack,
        remote: impl ToSocketAddrs,
        data: &[u8],
    ) -> io::Result<(TcpStream, usize)> {
        first_of(remote, |remote| {
            let (stream, taken) = TcpStream::start_sending(stack, remote, &self.inner, data)?;
            if taken == 0 && !data.is_empty() {
                stream.expect_write();
            }
            stream.wait_connected(None)?;
            let later = if taken == 0 { (&stream).write(data)? } else { 0 };
            Ok((stream, taken + later))
        })
    }

    /// `TCP_FASTOPEN_NO_COOKIE`: Fast Open sends data in the SYN without asking for a cookie first.
    /// Only for networks without forged addresses. Default off.
    pub const fn fast_open_no_cookie(mut self, on: bool) -> Self {
        self.inner.fast_open_no_cookie = on;
        self
    }

    /// Sets the initial options of the connection.
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.inner.options = options;
        self
    }

    /// Connects to `remote` and waits until the connection is established. If `remote` has several
    /// addresses, they are tried in order until one connects.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; `EADDRINUSE` for a bound port that another socket owns.
    pub fn connect(&self, stack: &Stack, remote: impl ToSocketAddrs) -> io::Result<TcpStream> {
        first_of(remote, |remote| {
            let stream = TcpStream::start(stack, remote, &self.inner)?;
            stream.wait_connected(None)?;
            Ok(stream)
        })
    }

    /// Connects and waits at most `timeout`, for all addresses together if there are several. The
    /// time that the system's resolver needs for a host name does not count.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `ETIMEDOUT` when the time is over, `InvalidInput` if
    /// `timeout` is zero.
    pub fn connect_timeout(
        &self,
        stack: &Stack,
        remote: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the timeout is zero"));
        }
        let mut deadline = None;
        first_of(remote, |remote| {
            let deadline = *deadline.get_or_insert_with(|| clock::now() + timeout);
            let stream = TcpStream::start(stack, remote, &self.inner)?;
            stream.wait_connected(Some(deadline))?;
            Ok(stream)
        })
    }

    /// Starts to connect and returns at once. The stream is nonblocking and becomes writable when
    /// it is connected; [`TcpStream::take_error`] returns the error of a failed attempt. Takes one
    /// address, because resolving a name and trying several addresses block.
    ///
    /// # Errors
    /// Errors that are known at once: no route, no free port.
    pub fn connect_nonblocking(&self, stack: &Stack, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::start(stack, remote, &self.inner)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}
