//! `TcpListener` of the feature `tokio`.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    task::{Context, Poll},
};

use stack::{Readiness, socket::ListenOptions};
use sync::WatchKey;

use super::{TcpStream, poll_io, wait_io};
use crate::handle::Stack;

/// A listening socket, as `tokio::net::TcpListener`. Several tasks may accept; a connection wakes
/// all of them. Dropping the listener resets the connections that were not accepted.
#[derive(Debug)]
pub struct TcpListener {
    inner: crate::TcpListener,
    /// The task of `poll_accept`.
    acceptor: WatchKey,
}

impl TcpListener {
    /// Listens on `local`; port 0 takes a free port. Never waits, unless `local` is a host name,
    /// which the system resolves.
    ///
    /// # Errors
    /// As [`TcpListener::bind`](crate::TcpListener::bind).
    pub fn bind(stack: &Stack, local: impl ToSocketAddrs) -> io::Result<Self> {
        Self::from_blocking(crate::TcpListener::bind(stack, local)?)
    }

    /// Listens with further options: backlog, `SO_REUSEPORT`, options of the connections.
    ///
    /// # Errors
    /// As [`TcpListener::bind`](crate::TcpListener::bind).
    pub fn listen_with(
        stack: &Stack,
        local: impl ToSocketAddrs,
        options: &ListenOptions,
    ) -> io::Result<Self> {
        Self::from_blocking(crate::TcpListener::listen_with(stack, local, options)?)
    }

    /// Makes a listener of a blocking one, whose clones become nonblocking, too.
    ///
    /// # Errors
    /// None at present.
    pub fn from_blocking(inner: crate::TcpListener) -> io::Result<Self> {
        inner.set_nonblocking(true)?;
        Ok(Self { inner, acceptor: WatchKey::new() })
    }

    /// Returns the nonblocking listener below, for options.
    #[must_use]
    pub const fn as_nonblocking(&self) -> &crate::TcpListener {
        &self.inner
    }

    /// Returns the local address, with the port that was chosen.
    ///
    /// # Errors
    /// None; the signature is that of tokio.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Returns the next connection, and waits for one. A future that is dropped takes no
    /// connection.
    ///
    /// # Errors
    /// `InvalidInput` if the stack was shut down or the listener was closed.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        wait_io(&**self.inner.socket(), Readiness::READ, || self.try_accept()).await
    }

    /// As [`accept`](Self::accept), for one task: a call replaces the waker of the last one.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, task: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let socket = &**self.inner.socket();
        poll_io(socket, || self.acceptor, Readiness::READ, task, || self.try_accept())
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// `WouldBlock` if none waits; as [`accept`](Self::accept).
    pub fn try_accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.inner.accept()?;
        Ok((TcpStream::from_blocking(stream)?, peer))
    }
}

/// The task of `poll_accept` is not woken any more.
impl Drop for TcpListener {
    fn drop(&mut self) {
        self.inner.socket().watchers().remove_task(self.acceptor);
    }
}
