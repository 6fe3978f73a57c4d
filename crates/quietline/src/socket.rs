//! `TcpSocket`: a socket that is neither connected nor listening, for options that must be set
//! before.
//!
//! A program that knows which of the two it needs can use [`TcpListener::listen_with`] and
//! [`TcpStream::connect_with`] instead.
//!
//! Above: applications, and adapters that translate `socket`, `setsockopt`, `bind`, `connect` and
//! `listen` one call at a time.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use stack::socket::{
    ConnectOptions, ListenOptions,
    options::{OptionValue, SocketOption, SocketSettings, domain_of},
};

use crate::{handle::Stack, listener::TcpListener, stream::TcpStream};

/// A TCP socket without a connection. Its options apply from the first segment on: the receive
/// buffer sets the window scale of the SYN, the maximum segment its MSS option.
///
/// Calls take one address, as the system calls do; [`TcpStream::connect`] and [`TcpListener::bind`]
/// try several.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// # let stack = quietline::Stack::builder().build()?;
/// use quietline::{SocketOption, TcpSocket};
///
/// let mut socket = TcpSocket::new_v4(&stack);
/// socket.set_option(SocketOption::ReceiveBuffer, 1 << 20)?;
/// socket.set_option(SocketOption::NoDelay, true)?;
/// let stream = socket.connect("10.0.0.2:80".parse().unwrap())?;
/// # let _ = stream;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TcpSocket {
    stack: Stack,
    settings: SocketSettings,
    local: Option<SocketAddr>,
    /// Address of the family that a listener without an address is bound to.
    any: SocketAddr,
}

impl TcpSocket {
    /// Returns a socket for IPv4.
    #[must_use]
    pub fn new_v4(stack: &Stack) -> Self {
        Self::new(stack, Ipv4Addr::UNSPECIFIED.into())
    }

    /// Returns a socket for IPv6 and, unless [`SocketOption::V6Only`] is set, for IPv4 peers by
    /// v4-mapped addresses.
    #[must_use]
    pub fn new_v6(stack: &Stack) -> Self {
        Self::new(stack, Ipv6Addr::UNSPECIFIED.into())
    }

    fn new(stack: &Stack, any: IpAddr) -> Self {
        let settings = SocketSettings::default();
        Self { stack: stack.clone(), settings, local: None, any: SocketAddr::new(any, 0) }
    }

    /// Sets a socket option by Linux's rules.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOPROTOOPT`, also for an option of IPv6 on an IPv4 socket, `EINVAL`,
    /// `ENOENT`.
    pub fn set_option(
        &mut self,
        option: SocketOption,
        value: impl Into<OptionValue>,
    ) -> io::Result<()> {
        option.check_set(self.any.is_ipv6())?;
        let sysctls = self.stack.host().sysctls();
        Ok(self.settings.set(option, &value.into(), &sysctls)?)
    }

    /// Returns a socket option.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`; `EOPNOTSUPP` for an option of IPv6 on an IPv4 socket.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        option.check_get(self.any.is_ipv6())?;
        if option == SocketOption::Domain {
            return Ok(domain_of(self.any));
        }
        Ok(self.settings.get(option, &self.stack.host().sysctls())?)
    }

    /// Sets the local address; port 0 is any port. The address is checked when the socket connects
    /// or listens.
    pub const fn bind(&mut self, local: SocketAddr) {
        self.local = Some(local);
    }

    /// Connects to `remote` and waits until the connection is established, at most `SO_SNDTIMEO`.
    ///
    /// # Errors
    /// As connect(2); `EINPROGRESS` when the time is over, as Linux.
    pub fn connect(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.start(remote)?;
        stream.wait_connected_within(self.settings.send_limit())?;
        Ok(stream)
    }

    fn start(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        let options = ConnectOptions { local: self.local, settings: self.settings.clone() };
        TcpStream::start(&self.stack, remote, &options)
    }

    /// Starts to connect and returns at once. The stream is nonblocking.
    ///
    /// # Errors
    /// Errors that are known at once: no route, no free port.
    pub fn connect_nonblocking(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.start(remote)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Listens with a queue of `backlog` connections that wait for `accept`. Without
    /// [`bind`](Self::bind) it listens on all addresses and a free port.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EADDRNOTAVAIL` if the stack does not have the address.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let local = self.local.unwrap_or(self.any);
        let options = ListenOptions { backlog, settings: self.settings };
        TcpListener::listen_with(&self.stack, local, &options)
    }
}
