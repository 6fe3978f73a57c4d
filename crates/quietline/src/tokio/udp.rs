//! `UdpSocket` of the feature `tokio`.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    task::{Context, Poll},
};

use stack::{
    Readiness,
    socket::{
        datagram::{ReceiveMessage, Received, SendMessage},
        options::SocketSettings,
    },
};
use sync::WatchKey;

use super::{poll_io, wait_io, wait_ready};
use crate::handle::Stack;

/// A UDP socket, as `tokio::net::UdpSocket`. All methods take `&self`, and any number of tasks may
/// use them.
#[derive(Debug)]
pub struct UdpSocket {
    inner: crate::UdpSocket,
    /// The tasks of the `poll_` methods.
    reader: WatchKey,
    writer: WatchKey,
}

impl UdpSocket {
    /// Opens a socket bound to `local`; port 0 takes a free port. Never waits, unless `local` is a
    /// host name, which the system resolves.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`](crate::UdpSocket::bind).
    pub fn bind(stack: &Stack, local: impl ToSocketAddrs) -> io::Result<Self> {
        Self::from_blocking(crate::UdpSocket::bind(stack, local)?)
    }

    /// Opens a socket with options that must be set before.
    ///
    /// # Errors
    /// As [`UdpSocket::bind_with`](crate::UdpSocket::bind_with).
    pub fn bind_with(
        stack: &Stack,
        local: impl ToSocketAddrs,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        Self::from_blocking(crate::UdpSocket::bind_with(stack, local, settings)?)
    }

    /// Makes a socket of a blocking one, whose clones become nonblocking, too.
    ///
    /// # Errors
    /// None at present.
    pub fn from_blocking(inner: crate::UdpSocket) -> io::Result<Self> {
        inner.set_nonblocking(true)?;
        Ok(Self { inner, reader: WatchKey::new(), writer: WatchKey::new() })
    }

    /// Returns the nonblocking socket below, for options, groups, and the calls of Linux that std
    /// does not have.
    #[must_use]
    pub const fn as_nonblocking(&self) -> &crate::UdpSocket {
        &self.inner
    }

    /// Connects to `remote`: nothing is sent.
    ///
    /// # Errors
    /// As [`UdpSocket::connect`](crate::UdpSocket::connect).
    pub fn connect(&self, remote: impl ToSocketAddrs) -> io::Result<()> {
        self.inner.connect(remote)
    }

    /// Returns the local address and port.
    ///
    /// # Errors
    /// None; the signature is that of tokio.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Returns the peer's address and port.
    ///
    /// # Errors
    /// `NotConnected` if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }

    /// Waits until the socket is ready for a part of `interest` or has an error, and returns its
    /// readiness.
    ///
    /// # Errors
    /// None at present.
    pub async fn ready(&self, interest: Readiness) -> io::Result<Readiness> {
        wait_ready(&**self.inner.socket(), interest).await
    }

    /// Waits until a receive does not wait.
    ///
    /// # Errors
    /// None at present.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Readiness::READ).await.map(drop)
    }

    /// Waits until a send does not wait.
    ///
    /// # Errors
    /// None at present.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Readiness::WRITE).await.map(drop)
    }

    /// Sends a datagram to the peer of a connected socket, and waits for space.
    ///
    /// # Errors
    /// As [`UdpSocket::send`](crate::UdpSocket::send).
    pub async fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.write(|| self.inner.send(payload)).await
    }

    /// Sends a datagram to `to`, and waits for space.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub async fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.write(|| self.inner.send_to(payload, to)).await
    }

    /// Sends messages in order, and waits for space for the first one; returns the number of those
    /// sent.
    ///
    /// # Errors
    /// As [`UdpSocket::send_batch`](crate::UdpSocket::send_batch).
    pub async fn send_batch(&self, messages: &[SendMessage<'_>]) -> io::Result<usize> {
        self.write(|| self.inner.send_batch(messages)).await
    }

    /// Receives a datagram, and waits for one. Bytes beyond the buffer are lost. A future that is
    /// dropped takes no datagram.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`](crate::UdpSocket::recv).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.read(|| self.inner.recv(buf)).await
    }

    /// Receives a datagram, and returns its length and its sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|| self.inner.recv_from(buf)).await
    }

    /// Receives a datagram with its description.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_message(&self, buf: &mut [u8]) -> io::Result<Received> {
        self.read(|| self.inner.recv_message(buf)).await
    }

    /// Receives as many datagrams as wait, one into each buffer; waits for the first one.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_batch(&self, messages: &mut [ReceiveMessage<'_>]) -> io::Result<usize> {
        self.read(|| self.inner.recv_batch(messages)).await
    }

    /// Copies a datagram and leaves it in the receive queue.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|| self.inner.peek_from(buf)).await
    }

    /// Calls `call`, which receives through [`as_nonblocking`](Self::as_nonblocking), when the
    /// socket is readable, and registers the task while it is not. A call replaces the waker of the
    /// last one.
    ///
    /// # Errors
    /// Errors of `call` except `WouldBlock`.
    pub fn poll_read<R>(
        &self,
        task: &mut Context<'_>,
        call: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        poll_io(&**self.inner.socket(), || self.reader, Readiness::READ, task, call)
    }

    /// As [`poll_read`](Self::poll_read), for a call that sends.
    ///
    /// # Errors
    /// Errors of `call` except `WouldBlock`.
    pub fn poll_write<R>(
        &self,
        task: &mut Context<'_>,
        call: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        poll_io(&**self.inner.socket(), || self.writer, Readiness::WRITE, task, call)
    }

    async fn read<R>(&self, call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        wait_io(&**self.inner.socket(), Readiness::READ, call).await
    }

    async fn write<R>(&self, call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        wait_io(&**self.inner.socket(), Readiness::WRITE, call).await
    }
}

/// The tasks of the `poll_` methods are not woken any more.
impl Drop for UdpSocket {
    fn drop(&mut self) {
        let watchers = self.inner.socket().watchers();
        watchers.remove_task(self.reader);
        watchers.remove_task(self.writer);
    }
}
