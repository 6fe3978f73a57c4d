//! `UdpSession`: the datagrams that one client sends to any destination.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use stack::{Errno, Readiness, base::ids::DeviceIndex, socket::flows};
use sync::WatchKey;

use super::request::polling;
use crate::{
    clock::{self, with_cx},
    handle::Stack,
    observed,
    wait::{Wait, wait_until},
};

/// The datagrams of one client address and port to any destination (RFC 4787: endpoint-independent
/// mapping). Clones share the session; dropping the last one ends it, and a further datagram of the
/// client opens another session.
///
/// Any thread may receive and send. A session ends when it is idle for too long
/// ([`Intercept::udp_timeout`](crate::Intercept::udp_timeout)), or when newer sessions need its
/// place.
#[derive(Clone)]
pub struct UdpSession {
    shared: Arc<Shared>,
}

struct Shared {
    stack: Stack,
    session: Arc<flows::UdpSession>,
}

impl UdpSession {
    pub(super) fn new(stack: Stack, session: Arc<flows::UdpSession>) -> Self {
        Self { shared: Arc::new(Shared { stack, session }) }
    }

    /// Returns the address and port of the client.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.shared.session.source()
    }

    /// Returns the device that has brought the first datagram.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.shared.session.via()
    }

    /// Receives a datagram, and waits for one. Returns the number of bytes in `buf`, the rest of a
    /// longer datagram is lost, and the destination to which the client has sent it.
    ///
    /// # Errors
    /// After the end of the session: `TimedOut` if it was idle for too long, `ConnectionAborted` if
    /// a newer session has taken its place, `NetworkDown` if the stack or the device has ended.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            match self.take(buf) {
                Err(Errno::EAGAIN) => self.wait(None),
                result => return Ok(result?),
            };
        }
    }

    /// As [`recv`](Self::recv), and waits at most `timeout`.
    ///
    /// # Errors
    /// `WouldBlock` after `timeout`; as [`recv`](Self::recv).
    pub fn recv_timeout(
        &self,
        buf: &mut [u8],
        timeout: Duration,
    ) -> io::Result<(usize, SocketAddr)> {
        let deadline = clock::now() + timeout;
        loop {
            match self.take(buf) {
                Err(Errno::EAGAIN) if self.wait(Some(deadline)) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Receives a datagram without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if none waits; as [`recv`](Self::recv).
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Ok(self.take(buf)?)
    }

    fn take(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr), Errno> {
        let Shared { stack, session } = &*self.shared;
        with_cx(|cx| session.recv(stack.host(), cx, buf))
    }

    /// Waits for a datagram or the end of the session. Returns false at the deadline.
    fn wait(&self, deadline: Option<pkt::Instant>) -> bool {
        let Shared { stack, session } = &*self.shared;
        let wait = Wait {
            began: clock::now(),
            stack,
            core: session.core(),
            events: session.waiters(),
            deadline,
            polling,
        };
        wait_until(&wait, || session.readiness().contains(Readiness::READ))
    }

    /// Sends a datagram to the client. `from` becomes its source: for an answer, the destination
    /// of the datagram that it answers. Never waits.
    ///
    /// # Errors
    /// `InvalidInput` if `from` is not the address of one host and a port, or of another family;
    /// `EMSGSIZE` for a payload that does not fit a packet; as [`recv`](Self::recv) after the end
    /// of the session.
    pub fn send(&self, payload: &[u8], from: SocketAddr) -> io::Result<usize> {
        let Shared { stack, session } = &*self.shared;
        Ok(with_cx(|cx| session.send(stack.host(), cx, payload, from))?)
    }

    /// Returns READ if a datagram waits, always WRITE, and HUP and ERROR once the session has
    /// ended.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.shared.session.readiness()
    }

    /// Returns the readiness if a datagram waits or the session has ended, and otherwise registers
    /// the waker of `task`, as [`TcpStream::poll_ready`](crate::TcpStream::poll_ready).
    pub fn poll_readable(&self, task: &mut Context<'_>) -> Poll<Readiness> {
        let session = &*self.shared.session;
        observed::poll_ready(session, WatchKey::BY_WAKER, Readiness::READ, task)
    }

    pub(crate) fn socket(&self) -> &Arc<flows::UdpSession> {
        &self.shared.session
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.session.watchers().clear();
        with_cx(|cx| self.session.close(self.stack.host(), cx));
    }
}

impl fmt::Debug for UdpSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSession").field("source", &self.source()).finish_non_exhaustive()
    }
}
