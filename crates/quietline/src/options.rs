//! Builders for sockets that want more than the defaults: what `setsockopt` and `bind` say before `listen` and `connect`.

use std::{
    io::{self, Write},
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use stack::{base::ids::CoreId, sysctl::FastOpenKey};
pub use tcp::SocketOptions;

use crate::{addresses::first_of, clock, listener::TcpListener, running::Stack, stream::TcpStream};

/// How to listen. Made by [`TcpListener::options`]; every method takes and returns it.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until listen()"]
pub struct ListenOptions {
    inner: stack::socket::ListenOptions,
}

impl ListenOptions {
    /// Connections that may wait for `accept`, at most `net.core.somaxconn`. Default 128.
    pub const fn backlog(mut self, connections: u32) -> Self {
        self.inner.backlog = connections;
        self
    }

    /// `SO_REUSEADDR`: connections left of an earlier listener do not keep the port. Default on, as in `std::net`.
    pub const fn reuse_address(mut self, on: bool) -> Self {
        self.inner.reuse_address = on;
        self
    }

    /// `SO_REUSEPORT`: listeners that all set it share the port; each connection goes to one of them, by its flow.
    /// Default off. A listener that closes resets the connections it has not accepted, the others keep theirs.
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.inner.reuse_port = on;
        self
    }

    /// `SO_INCOMING_CPU`: of listeners that share a port, this one wants the connections of core number `core`. One
    /// listener and one accepting thread per core never meet.
    pub const fn incoming_core(mut self, core: u16) -> Self {
        self.inner.incoming_core = Some(CoreId(core));
        self
    }

    /// Connections that one source address may have with this listener, half-open ones and those that wait for `accept` included.
    /// A SYN of an address that has as many is dropped without an answer (`SOURCE_LIMIT`, `ListenSourceLimit`). 0 is no limit, the
    /// default. A connection counts until it is closed on both sides or reset. Clients behind one NAT share an address. A
    /// forger of addresses can fill the limit of others with half-open connections, unless `net.ipv4.tcp_syncookies` is 2. Listeners
    /// that share a port count each for itself. [`SocketOption::MaxPerSource`](crate::SocketOption::MaxPerSource) changes the
    /// limit later.
    pub const fn max_per_source(mut self, connections: u32) -> Self {
        self.inner.max_per_source = connections;
        self
    }

    /// `TCP_FASTOPEN`: so many connections may have data read from their SYN, before the handshake has ended (RFC 7413), once
    /// `net.ipv4.tcp_fastopen` allows it. Only for applications that may carry a request out twice: the network may repeat a
    /// SYN, and with it the request. Default 0.
    pub const fn fast_open(mut self, connections: u32) -> Self {
        self.inner.fast_open = connections;
        self
    }

    /// `TCP_FASTOPEN_NO_COOKIE`: data is read from a SYN without a cookie, too. For networks where nobody forges addresses.
    /// Default off.
    pub const fn fast_open_no_cookie(mut self, on: bool) -> Self {
        self.inner.fast_open_no_cookie = on;
        self
    }

    /// `TCP_FASTOPEN_KEY`: makes this listener's cookies in place of the stack's key; `backup` is the one before, whose
    /// cookies are still read.
    pub const fn fast_open_key(mut self, primary: [u8; 16], backup: Option<[u8; 16]>) -> Self {
        self.inner.fast_open_key = Some(FastOpenKey { primary, backup });
        self
    }

    /// What every accepted connection starts with.
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.inner.options = options;
        self
    }

    /// Listens on `local`; port 0 takes a free one. Of several addresses the first that can be had.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn listen(&self, stack: &Stack, local: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::listen(stack, local, &self.inner)
    }
}

/// How to connect. Made by [`TcpStream::options`]; every method takes and returns it.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until connect()"]
pub struct ConnectOptions {
    inner: stack::socket::ConnectOptions,
}

impl ConnectOptions {
    /// Connects from this address and port. 0.0.0.0 leaves the address open. Port 0 leaves the port open until the
    /// four-tuple is known, as with `IP_BIND_ADDRESS_NO_PORT`, so that ports are shared between destinations.
    pub const fn bind(mut self, local: SocketAddr) -> Self {
        self.inner.local = Some(local);
        self
    }

    /// `SO_REUSEADDR`: a bound port is shared with connections that set it too, TIME-WAIT included, as long as the
    /// peers differ. Default off.
    pub const fn reuse_address(mut self, on: bool) -> Self {
        self.inner.reuse_address = on;
        self
    }

    /// `SO_REUSEPORT`: a bound port is shared with sockets that set it too. Default off.
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.inner.reuse_port = on;
        self
    }

    /// `TCP_FASTOPEN_CONNECT`: if the peer has given us a cookie before, `connect` returns at once and the first write leaves
    /// with the SYN (RFC 7413). Only for what may be done twice: the network may repeat a SYN, and with it the data.
    pub const fn fast_open(mut self, on: bool) -> Self {
        self.inner.fast_open = on;
        self
    }

    /// Connects and sends the beginning of `data` (`sendto` with `MSG_FASTOPEN`): in the SYN if the peer has given us a cookie
    /// before, else when the connection is established. Returns how much was taken, at least one byte of any.
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and a write; `EOPNOTSUPP` where `net.ipv4.tcp_fastopen` does not allow clients.
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

    /// `TCP_FASTOPEN_NO_COOKIE`: with Fast Open, data goes with the SYN without asking for a cookie first. For networks where
    /// nobody forges addresses. Default off.
    pub const fn fast_open_no_cookie(mut self, on: bool) -> Self {
        self.inner.fast_open_no_cookie = on;
        self
    }

    /// What the connection starts with.
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.inner.options = options;
        self
    }

    /// Connects to `remote` and waits until the connection is established. Of several addresses the first that answers.
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

    /// Connects and waits at most `timeout`, for all addresses together if there are several. The time that the system's
    /// resolver needs for a host name is not counted.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `ETIMEDOUT` when the time is over, `InvalidInput` for a zero timeout.
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

    /// Starts to connect and returns at once, nonblocking. The stream becomes writable when it is connected;
    /// [`TcpStream::take_error`] tells a failure. It takes one address, because resolving a name and trying several wait.
    ///
    /// # Errors
    /// What can be told without waiting: no route, no port.
    pub fn connect_nonblocking(&self, stack: &Stack, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::start(stack, remote, &self.inner)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}
