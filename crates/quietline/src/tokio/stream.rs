//! `TcpStream` of the feature `tokio`.

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::{Shutdown, SocketAddr},
    pin::Pin,
    task::{Context, Poll, ready},
};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use stack::{Readiness, socket::ConnectOptions};
use sync::WatchKey;

use super::{
    poll_io,
    split::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf},
    wait_io, wait_ready,
};
use crate::handle::Stack;

/// A TCP connection, as `tokio::net::TcpStream`.
///
/// One task may read and one may write through [`AsyncRead`] and [`AsyncWrite`]; the methods that
/// take `&self` may be used by any number of tasks. Dropping the stream closes the connection;
/// queued data is still sent. With a linger time ([`SocketOption::Linger`]) the drop blocks its
/// thread, as a close does.
///
/// [`SocketOption::Linger`]: crate::SocketOption::Linger
#[derive(Debug)]
pub struct TcpStream {
    inner: crate::TcpStream,
    /// The tasks of `AsyncRead` and `AsyncWrite`.
    reader: WatchKey,
    writer: WatchKey,
    /// The task of a relay, which waits for a reset.
    relay: WatchKey,
}

impl TcpStream {
    /// Connects to `remote`. A future that is dropped ends the attempt.
    ///
    /// # Errors
    /// As [`TcpStream::connect`](crate::TcpStream::connect).
    pub async fn connect(stack: &Stack, remote: SocketAddr) -> io::Result<Self> {
        Self::connect_with(stack, remote, &ConnectOptions::default()).await
    }

    /// Connects with further options: local address, `SO_REUSEADDR`, options of the connection.
    ///
    /// # Errors
    /// As [`TcpStream::connect_with`](crate::TcpStream::connect_with).
    pub async fn connect_with(
        stack: &Stack,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let inner = crate::TcpStream::connect_nonblocking_with(stack, remote, options)?;
        let stream = Self::of(inner);
        stream.writable().await?;
        match stream.inner.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }

    /// Makes a stream of a blocking one, whose clones become nonblocking, too.
    ///
    /// # Errors
    /// None at present.
    pub fn from_blocking(inner: crate::TcpStream) -> io::Result<Self> {
        inner.set_nonblocking(true)?;
        Ok(Self::of(inner))
    }

    pub(super) fn of(inner: crate::TcpStream) -> Self {
        Self { inner, reader: WatchKey::new(), writer: WatchKey::new(), relay: WatchKey::new() }
    }

    /// Returns a blocking stream of the same connection.
    ///
    /// # Errors
    /// None at present.
    pub fn into_blocking(self) -> io::Result<crate::TcpStream> {
        let inner = self.inner.try_clone()?;
        inner.set_nonblocking(false)?;
        Ok(inner)
    }

    /// Returns the nonblocking stream below, for options and addresses.
    #[must_use]
    pub const fn as_nonblocking(&self) -> &crate::TcpStream {
        &self.inner
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
    /// None; the signature is that of tokio.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }

    /// Sets whether small segments are sent at once (`TCP_NODELAY`).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`](crate::TcpStream::set_nodelay).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.inner.set_nodelay(nodelay)
    }

    /// Returns whether small segments are sent at once.
    ///
    /// # Errors
    /// As [`TcpStream::nodelay`](crate::TcpStream::nodelay).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.inner.nodelay()
    }

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// None; the signature is that of tokio.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.inner.take_error()
    }

    /// Ends the connection at once: sends RST and drops all queued data.
    pub fn abort(&self) {
        self.inner.abort();
    }

    /// Waits until the stream is ready for a part of `interest` (READ, WRITE, PRI) or has ended,
    /// and returns its readiness. A following `try_` call may fail with `WouldBlock` nevertheless,
    /// if another task was faster.
    ///
    /// # Errors
    /// None at present.
    pub async fn ready(&self, interest: Readiness) -> io::Result<Readiness> {
        wait_ready(&**self.inner.socket(), interest).await
    }

    /// Waits until a read does not wait.
    ///
    /// # Errors
    /// None at present.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Readiness::READ).await.map(drop)
    }

    /// Waits until a write does not wait.
    ///
    /// # Errors
    /// None at present.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Readiness::WRITE).await.map(drop)
    }

    /// Reads what has arrived; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; as recv(2).
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (&self.inner).read(buf)
    }

    /// As [`try_read`](Self::try_read), into several buffers.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        (&self.inner).read_vectored(bufs)
    }

    /// Writes as much as the send buffer takes.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; as send(2).
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        (&self.inner).write(buf)
    }

    /// As [`try_write`](Self::try_write), from several buffers.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.inner).write_vectored(bufs)
    }

    /// Waits for data, copies it, and leaves it in the receive queue.
    ///
    /// # Errors
    /// As recv(2).
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        wait_io(&**self.inner.socket(), Readiness::READ, || self.inner.peek(buf)).await
    }

    /// As [`peek`](Self::peek), for the task of [`AsyncRead`].
    ///
    /// # Errors
    /// As recv(2).
    pub fn poll_peek(
        &self,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let socket = &**self.inner.socket();
        let peek = || self.inner.peek(buf.initialize_unfilled());
        let count = ready!(poll_io(socket, || self.reader, Readiness::READ, task, peek))?;
        buf.advance(count);
        Poll::Ready(Ok(count))
    }

    /// Borrows the two directions, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::split(self)
    }

    /// Divides the stream into its directions, for two tasks. Dropping the writing half sends FIN.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split::into_split(self)
    }

    pub(super) fn poll_read_shared(
        &self,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let socket = &**self.inner.socket();
        let read = || (&self.inner).read(buf.initialize_unfilled());
        let count = ready!(poll_io(socket, || self.reader, Readiness::READ, task, read))?;
        buf.advance(count);
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_write_shared(
        &self,
        task: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let socket = &**self.inner.socket();
        let write = || (&self.inner).write_vectored(bufs);
        poll_io(socket, || self.writer, Readiness::WRITE, task, write)
    }

    pub(super) const fn relay_key(&self) -> WatchKey {
        self.relay
    }

    /// Ends the writing direction. A connection that has ended already needs no FIN.
    pub(super) fn finish(&self) -> io::Result<()> {
        match self.inner.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}

/// The tasks of the two directions are not woken any more.
impl Drop for TcpStream {
    fn drop(&mut self) {
        let watchers = self.inner.socket().watchers();
        watchers.remove_task(self.reader);
        watchers.remove_task(self.writer);
        watchers.remove_task(self.relay);
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_shared(task, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_shared(task, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_shared(task, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Data is sent at once.
    fn poll_flush(self: Pin<&mut Self>, _task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends FIN after the queued data.
    fn poll_shutdown(self: Pin<&mut Self>, _task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish())
    }
}
