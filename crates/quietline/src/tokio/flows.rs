//! `Flows`, `TcpRequest` and `UdpSession` of the feature `tokio`.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
};

use stack::{Readiness, base::ids::DeviceIndex};
use sync::WatchKey;

use super::{TcpStream, poll_io, wait_io};
use crate::{EchoRequest, OtherPacket, handle::Stack};

/// An intercepted flow that is new, as [`Flow`](crate::Flow).
#[derive(Debug)]
#[non_exhaustive]
pub enum Flow {
    /// A TCP connection whose SYN is not answered yet.
    Tcp(TcpRequest),
    /// The datagrams of a client that has no session yet.
    Udp(UdpSession),
    /// An echo request (ping).
    Echo(EchoRequest),
    /// A packet of another protocol.
    Other(OtherPacket),
}

/// The new flows of all devices that intercept, as [`Flows`](crate::Flows). Several tasks may take
/// flows; a flow wakes all of them.
#[derive(Debug)]
pub struct Flows {
    inner: crate::Flows,
    /// The task of `poll_next`.
    taker: WatchKey,
}

impl Flows {
    /// Returns a handle to the intercepted flows of a stack.
    ///
    /// # Errors
    /// As [`Stack::flows`].
    pub fn new(stack: &Stack) -> io::Result<Self> {
        Ok(Self { inner: stack.flows()?, taker: WatchKey::new() })
    }

    /// Returns the next flow, and waits for one; `None` once the stack was shut down. A future that
    /// is dropped takes no flow.
    pub async fn next(&self) -> Option<Flow> {
        wait_io(&**self.inner.socket(), Readiness::READ, || self.try_next()).await.ok()
    }

    /// As [`next`](Self::next), for one task: a call replaces the waker of the last one.
    pub fn poll_next(&self, task: &mut Context<'_>) -> Poll<Option<Flow>> {
        let socket = &**self.inner.socket();
        poll_io(socket, || self.taker, Readiness::READ, task, || self.try_next()).map(Result::ok)
    }

    /// Returns the next flow.
    ///
    /// # Errors
    /// `WouldBlock` if none waits; `ENETDOWN` once the stack was shut down.
    pub fn try_next(&self) -> io::Result<Flow> {
        Ok(match self.inner.try_next()? {
            crate::Flow::Tcp(request) => Flow::Tcp(TcpRequest { inner: request }),
            crate::Flow::Udp(session) => Flow::Udp(UdpSession { inner: session }),
            crate::Flow::Echo(request) => Flow::Echo(request),
            crate::Flow::Other(packet) => Flow::Other(packet),
        })
    }
}

/// The task of `poll_next` is not woken any more.
impl Drop for Flows {
    fn drop(&mut self) {
        self.inner.socket().watchers().remove_task(self.taker);
    }
}

/// A TCP connection whose SYN is not answered yet, as [`TcpRequest`](crate::TcpRequest). Dropping
/// it refuses the connection.
#[derive(Debug)]
pub struct TcpRequest {
    inner: crate::TcpRequest,
}

impl TcpRequest {
    /// Returns the address and port of the client.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.inner.source()
    }

    /// Returns the address and port that the client connects to.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.inner.destination()
    }

    /// Returns the device that has brought the SYN.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.inner.device()
    }

    /// Sends the SYN-ACK, and waits until the client has completed the handshake. A future that is
    /// dropped refuses the connection.
    ///
    /// # Errors
    /// As [`TcpRequest::accept`](crate::TcpRequest::accept).
    pub async fn accept(self) -> io::Result<TcpStream> {
        self.inner.answer()?;
        let socket = &**self.inner.socket();
        let stream = wait_io(socket, Readiness::READ, || self.inner.try_take()).await?;
        TcpStream::from_blocking(stream)
    }

    /// Waits until the client has given up ([`is_cancelled`](Self::is_cancelled)).
    pub async fn cancelled(&self) {
        // The end is part of every interest.
        let _ended = wait_io(&**self.inner.socket(), Readiness::empty(), || Ok(())).await;
    }

    /// Returns whether the client has given up.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled()
    }

    /// Refuses the connection, as [`TcpRequest::refuse`](crate::TcpRequest::refuse).
    pub fn refuse(self, error: &io::Error) {
        self.inner.refuse(error);
    }

    /// Returns the blocking form.
    #[must_use]
    pub fn into_blocking(self) -> crate::TcpRequest {
        self.inner
    }
}

/// The datagrams of one client to any destination, as [`UdpSession`](crate::UdpSession). Clones
/// share the session.
#[derive(Clone, Debug)]
pub struct UdpSession {
    inner: crate::UdpSession,
}

impl UdpSession {
    /// Returns the address and port of the client.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.inner.source()
    }

    /// Returns the device that has brought the first datagram.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.inner.device()
    }

    /// Receives a datagram, and waits for one. Returns the number of bytes in `buf` and the
    /// destination to which the client has sent it. A future that is dropped takes no datagram.
    ///
    /// # Errors
    /// As [`UdpSession::recv`](crate::UdpSession::recv).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let socket = &**self.inner.socket();
        wait_io(socket, Readiness::READ, || self.inner.try_recv(buf)).await
    }

    /// Sends a datagram to the client, with the source `from`. Never waits.
    ///
    /// # Errors
    /// As [`UdpSession::send`](crate::UdpSession::send).
    pub fn send(&self, payload: &[u8], from: SocketAddr) -> io::Result<usize> {
        self.inner.send(payload, from)
    }

    /// Returns the blocking form.
    #[must_use]
    pub fn into_blocking(self) -> crate::UdpSession {
        self.inner
    }
}
