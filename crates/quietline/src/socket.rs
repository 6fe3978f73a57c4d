//! `TcpSocket`: a socket that is neither connected nor listening yet, for options that must be set before.
//!
//! [`TcpListener::options`] and [`TcpStream::options`] say the same in one expression, for a program that knows beforehand
//! which of both it wants.
//!
//! Above: applications, and whatever speaks `socket`, `setsockopt`, `bind`, `connect` and `listen` one call at a time.

use std::{io, net::SocketAddr};

use stack::socket::options::{OptionValue, SocketOption, SocketSettings};

use crate::{handle::Stack, listener::TcpListener, stream::TcpStream};

/// A TCP socket without connection. What is set here is there from the first segment on: the receive buffer in the window
/// scale of the SYN, the largest segment in its MSS.
///
/// Its calls take one address, as the system's do; [`TcpStream::connect`] and [`TcpListener::bind`] try several.
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
}

impl TcpSocket {
    /// A socket for IPv4.
    #[must_use]
    pub fn new_v4(stack: &Stack) -> Self {
        Self { stack: stack.clone(), settings: SocketSettings::default(), local: None }
    }

    /// Sets a socket option by Linux's rules.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOPROTOOPT`, `EINVAL`, `ENOENT`.
    pub fn set_option(
        &mut self,
        option: SocketOption,
        value: impl Into<OptionValue>,
    ) -> io::Result<()> {
        let sysctls = self.stack.host().sysctls();
        Ok(self.settings.set(option, &value.into(), &sysctls)?)
    }

    /// Reads a socket option.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        Ok(self.settings.get(option, &self.stack.host().sysctls())?)
    }

    /// Chooses this end's address; port 0 is any. It is looked at when the socket connects or listens.
    pub const fn bind(&mut self, local: SocketAddr) {
        self.local = Some(local);
    }

    /// Connects to `remote` and waits until the connection is established, at most `SO_SNDTIMEO`.
    ///
    /// # Errors
    /// As connect(2); `EINPROGRESS` when the time is over, as Linux.
    pub fn connect(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.start(remote)?;
        stream.wait_connected_within(self.settings.send_timeout)?;
        Ok(stream)
    }

    fn start(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::start(&self.stack, remote, &self.settings.connect_options(self.local))
    }

    /// Starts to connect and returns at once, nonblocking.
    ///
    /// # Errors
    /// What can be told without waiting: no route, no port.
    pub fn connect_nonblocking(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.start(remote)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Listens with room for `backlog` connections that wait for `accept`. Without [`bind`](Self::bind) on any address
    /// and a port of the stack's choice.
    ///
    /// # Errors
    /// `EADDRINUSE`, or `EADDRNOTAVAIL` for an address that is not ours.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let local = self.local.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        TcpListener::listen(&self.stack, local, &self.settings.listen_options(backlog))
    }
}
