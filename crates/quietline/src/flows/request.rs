//! `TcpRequest`: an intercepted TCP connection whose SYN is not answered yet.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use stack::{
    Errno, Readiness,
    base::ids::DeviceIndex,
    header::icmp::Unreachable,
    receive::intercept::refuse_unreachable,
    socket::{BusyPoll, BusyPollParams, RequestSocket},
    sysctl::Sysctls,
};
use sync::WatchKey;

use crate::{
    clock::{self, with_cx},
    handle::Stack,
    observed,
    stream::TcpStream,
    wait::{Wait, wait_until},
};

/// Parameters of the polling stage of a wait.
pub(super) fn polling(sysctls: &Sysctls) -> BusyPollParams {
    BusyPoll::default().for_event(sysctls)
}

/// A TCP connection that a client opens to any address, and whose SYN is not answered yet.
///
/// To the client it looks like a SYN on its way: it repeats the SYN, and the request absorbs the
/// repetitions. [`accept`](Self::accept) answers. A program that dials first and then accepts gives
/// its client the errors of the dial ([`refuse`](Self::refuse)); one that must read first, such as
/// the name in a TLS handshake, accepts before it dials. Dropping a request refuses it.
pub struct TcpRequest {
    stack: Stack,
    request: Arc<RequestSocket>,
}

impl TcpRequest {
    pub(super) const fn new(stack: Stack, request: Arc<RequestSocket>) -> Self {
        Self { stack, request }
    }

    /// Returns the address and port of the client.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.request.source()
    }

    /// Returns the address and port that the client connects to.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.request.destination()
    }

    /// Returns the device that has brought the SYN.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.request.via().unwrap_or(DeviceIndex(0))
    }

    /// Sends the SYN-ACK, and waits until the client has completed the handshake: a round trip, and
    /// at most about a minute (`net.ipv4.tcp_synack_retries`). The local address of the stream is
    /// the [`destination`](Self::destination), its peer the [`source`](Self::source).
    ///
    /// # Errors
    /// `ConnectionReset` if the client has reset the connection, `TimedOut` if it did not answer,
    /// `ConnectionAborted` if an ICMP error, or the end of the device or stack, has ended it.
    pub fn accept(self) -> io::Result<TcpStream> {
        let Self { stack, request } = &self;
        self.answer()?;
        let wait = Wait {
            began: clock::now(),
            stack,
            core: request.core(),
            events: request.waiters(),
            deadline: None,
            polling,
        };
        wait_until(&wait, || !request.readiness().is_empty());
        self.try_take()
    }

    /// Sends the SYN-ACK if it was not sent yet, and returns the stream once the client has
    /// completed the handshake. For event loops: the request is readable then.
    ///
    /// # Errors
    /// `WouldBlock` before; as [`accept`](Self::accept).
    pub fn try_accept(&self) -> io::Result<TcpStream> {
        self.answer()?;
        self.try_take()
    }

    pub(crate) fn answer(&self) -> io::Result<()> {
        Ok(with_cx(|cx| self.request.answer(self.stack.host(), cx))?)
    }

    pub(crate) fn try_take(&self) -> io::Result<TcpStream> {
        Ok(TcpStream::new(self.stack.clone(), self.request.take()?))
    }

    /// Refuses the connection as a host or router would that has the error: with ICMP if the
    /// network or host is unreachable (`ENETUNREACH`, `EHOSTUNREACH`) or the access is forbidden
    /// (`EACCES`, `EPERM`), and with a reset for all other errors. A connection whose SYN-ACK was
    /// sent is reset, and so is one whose ICMP error the rate limit forbids.
    pub fn refuse(self, error: &io::Error) {
        let Self { stack, request } = &self;
        with_cx(|cx| match unreachable_of(error) {
            Some(why) => refuse_unreachable(stack.host(), cx, request, why),
            None => request.refuse(stack.host(), cx),
        });
    }

    /// Returns whether the client has given up: by a reset, or by sending no further SYN for 65
    /// seconds.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.request.is_cancelled()
    }

    /// Returns READ and WRITE once [`try_accept`](Self::try_accept) returns a stream, and HUP and
    /// ERROR once the client has given up.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.request.readiness()
    }

    /// Returns the readiness if the connection is open or has ended, and otherwise registers the
    /// waker of `task`, as [`TcpStream::poll_ready`](crate::TcpStream::poll_ready).
    pub fn poll_ready(&self, task: &mut Context<'_>) -> Poll<Readiness> {
        observed::poll_ready(&*self.request, WatchKey::BY_WAKER, Readiness::READ, task)
    }

    pub(crate) const fn socket(&self) -> &Arc<RequestSocket> {
        &self.request
    }
}

/// Returns the ICMP error that a router sends in the place of an error of a system call; `None` for
/// errors that a host answers with a reset.
fn unreachable_of(error: &io::Error) -> Option<Unreachable> {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw());
    match error.kind() {
        io::ErrorKind::NetworkUnreachable => Some(Unreachable::Network),
        io::ErrorKind::HostUnreachable => Some(Unreachable::Host),
        io::ErrorKind::PermissionDenied => Some(Unreachable::Prohibited),
        _ if is(Errno::EHOSTDOWN) => Some(Unreachable::Host),
        _ => None,
    }
}

impl Drop for TcpRequest {
    fn drop(&mut self) {
        self.request.watchers().clear();
        with_cx(|cx| self.request.refuse(self.stack.host(), cx));
    }
}

impl fmt::Debug for TcpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpRequest")
            .field("source", &self.source())
            .field("destination", &self.destination())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_dial_is_the_answer_to_the_client() {
        let answer = |errno: Errno| unreachable_of(&io::Error::from_raw_os_error(errno.raw()));
        for (errno, why) in [
            (Errno::ENETUNREACH, Some(Unreachable::Network)),
            (Errno::EHOSTUNREACH, Some(Unreachable::Host)),
            (Errno::EHOSTDOWN, Some(Unreachable::Host)),
            (Errno::EACCES, Some(Unreachable::Prohibited)),
            (Errno::EPERM, Some(Unreachable::Prohibited)),
            (Errno::ECONNREFUSED, None),
            (Errno::ETIMEDOUT, None),
        ] {
            assert_eq!(answer(errno), why, "{errno:?}");
        }
        assert_eq!(
            unreachable_of(&io::ErrorKind::NetworkUnreachable.into()),
            Some(Unreachable::Network)
        );
    }
}
