//! `accept`: takes a connection from a listening socket.
//!
//! Linux: `inet_csk_accept`, `do_accept`.

use std::{net::SocketAddr, time::Duration};

use stack::Errno;

use crate::{
    abi::SOCK_NONBLOCK,
    socket::{NEW_FLAGS, Open as _, Socket, State},
    step::{Answer, GiveUp, Step},
};

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// Its socket. It has the options of the listening socket, and `O_NONBLOCK` only from the
    /// flags.
    pub socket: Socket,
    /// Address of the peer.
    pub peer: SocketAddr,
}

/// A call of accept(2) or accept4(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Accept {
    flags: i32,
}

impl Accept {
    /// A call with the flags of accept4(2): `SOCK_NONBLOCK`, and `SOCK_CLOEXEC`, which is the
    /// driver's.
    #[must_use]
    pub const fn new(flags: i32) -> Self {
        Self { flags }
    }

    /// Takes the oldest connection.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags and for a socket that does not listen; `EAGAIN` without a
    /// connection when the socket is nonblocking.
    pub fn step(&self, socket: &Socket) -> Answer<Accepted> {
        let inner = socket.lock().open()?;
        if self.flags & !NEW_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let State::Listening(listener) = &inner.state else { return Err(Errno::EINVAL) };
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(Errno::EAGAIN) if !socket.is_nonblocking() => return Ok(Step::Blocks),
            Err(errno) => return Err(errno),
        };
        let peer = stream.remote();
        let nonblocking = self.flags & SOCK_NONBLOCK != 0;
        let socket = Socket::accepted(stream, &inner, nonblocking);
        Ok(Step::Ready(Accepted { socket, peer }))
    }

    /// Longest sleep (`SO_RCVTIMEO`); `None` is no limit.
    #[must_use]
    pub fn limit(&self, socket: &Socket) -> Option<Duration> {
        socket.lock().settings.receive_limit()
    }

    /// Ends the call without a connection.
    #[must_use]
    pub const fn give_up(self, why: GiveUp) -> Errno {
        why.errno(Errno::EAGAIN)
    }
}
