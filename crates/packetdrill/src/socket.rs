//! A socket before, during and after its connection.
//!
//! The stack makes a socket when it connects or listens; what a program sets before is kept here until then. Linux:
//! `struct socket`, whose `sock` exists from the start.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use stack::socket::{Listener, TcpSocket, options::SocketSettings};

use crate::runtime::Patience;

/// What a program's TCP socket has become.
#[derive(Debug, Default)]
pub(crate) enum Kind {
    /// Nothing yet, or nothing any more.
    #[default]
    Fresh,
    /// `listen` was called.
    Listening(Arc<Listener>),
    /// A connection, or an attempt at one.
    Stream(Arc<TcpSocket>),
}

/// A TCP socket.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    pub(crate) kind: Kind,
    /// `O_NONBLOCK`.
    pub(crate) nonblocking: bool,
    /// `connect` was called and nobody has been told how it ended.
    pub(crate) connecting: bool,
    /// Where `bind` has put it.
    pub(crate) bound: Option<SocketAddr>,
    /// `SO_RCVTIMEO`.
    pub(crate) receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`.
    pub(crate) send_timeout: Option<Duration>,
    /// `TCP_INQ`: `recvmsg` tells how many bytes are left.
    pub(crate) inq: bool,
    /// Options, until there is a connection or a listener that has them.
    pub(crate) settings: SocketSettings,
}

/// Which way a call moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Towards the program: `accept`, too.
    Receive,
    /// Towards the peer: `connect`, too.
    Send,
}

impl Socket {
    /// A socket around a connection that was accepted.
    pub(crate) fn accepted(stream: Arc<TcpSocket>, nonblocking: bool, inq: bool) -> Self {
        Self { kind: Kind::Stream(stream), nonblocking, inq, ..Self::default() }
    }

    /// `connect`, or a call that sends and connects, has begun.
    pub(crate) fn connect_begun(&mut self, stream: Arc<TcpSocket>) {
        self.bound = Some(stream.local());
        self.kind = Kind::Stream(stream);
        self.connecting = true;
    }

    pub(crate) const fn stream(&self) -> Option<&Arc<TcpSocket>> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) const fn listener(&self) -> Option<&Arc<Listener>> {
        match &self.kind {
            Kind::Listening(listener) => Some(listener),
            _ => None,
        }
    }

    /// How long a call may wait; `dont_wait` is `MSG_DONTWAIT`.
    pub(crate) fn patience(&self, way: Way, dont_wait: bool) -> Patience {
        if self.nonblocking || dont_wait {
            return Patience::None;
        }
        let timeout = match way {
            Way::Receive => self.receive_timeout,
            Way::Send => self.send_timeout,
        };
        timeout.map_or(Patience::Endless, Patience::For)
    }
}
