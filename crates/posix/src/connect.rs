//! `connect`: begins a connection, and reports how the attempt has ended.
//!
//! Linux: `__inet_stream_connect`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use stack::{Cx, Errno, host::Host, socket::Connection};
use tcp::State as TcpState;

use crate::{
    socket::{Inner, Open as _, Phase, Socket, State, is_opening, tcp_state},
    step::{Answer, GiveUp, Step},
};

/// A call of connect(2). `connect` to `AF_UNSPEC` is [`Socket::disconnect`].
#[derive(Debug)]
pub struct Connect {
    remote: SocketAddr,
    /// The connection that the call waits for.
    stream: Option<Arc<Connection>>,
    /// The errno of a call that does not wait: `EINPROGRESS` if the call has begun the attempt.
    pending: Errno,
}

impl Connect {
    /// A call that has not begun.
    #[must_use]
    pub const fn new(remote: SocketAddr) -> Self {
        Self { remote, stream: None, pending: Errno::EALREADY }
    }

    /// Begins the attempt, or reports its result.
    ///
    /// # Errors
    /// `EISCONN` for a socket that listens or is connected, `EINPROGRESS` and `EALREADY` for a
    /// nonblocking one; the error of an attempt that has failed, which then can be repeated; those
    /// of [`Connection::connect_with`].
    pub fn step(&mut self, socket: &Socket, host: &Arc<Host>, cx: &mut Cx) -> Answer<()> {
        let mut inner = socket.lock().open()?;
        let stream = match &self.stream {
            Some(stream) => Arc::clone(stream),
            None => match self.begin(&mut inner, host, cx)? {
                None => return Ok(Step::Ready(())),
                // Over loopback the handshake may have finished in this call. In Linux its segments
                // wait in the backlog until the call returns, so that the program never sees them
                // that early.
                Some(_) if self.pending == Errno::EINPROGRESS && socket.is_nonblocking() => {
                    return Err(Errno::EINPROGRESS);
                }
                Some(stream) => Arc::clone(self.stream.insert(stream)),
            },
        };
        match finish(&mut inner, &stream, host, cx)? {
            Step::Blocks if socket.is_nonblocking() => Err(self.pending),
            step => Ok(step),
        }
    }

    /// The first step. `None` if the call returns at once: with Fast Open the first write connects.
    fn begin(
        &mut self,
        inner: &mut Inner,
        host: &Arc<Host>,
        cx: &mut Cx,
    ) -> Result<Option<Arc<Connection>>, Errno> {
        match &inner.state {
            State::Closed => Err(Errno::EBADF),
            State::Listening(_) | State::Stream(_, Phase::Connected) => Err(Errno::EISCONN),
            State::Stream(_, Phase::Disconnecting) => Err(Errno::EINVAL),
            State::Stream(stream, Phase::Connecting) => {
                if is_syn_held(stream, host, cx) {
                    self.pending = Errno::EISCONN;
                }
                Ok(Some(Arc::clone(stream)))
            }
            State::Unconnected if self.remote.is_ipv6() != inner.is_v6 => Err(Errno::EAFNOSUPPORT),
            State::Unconnected => {
                let options = inner.connect_options();
                let stream = Connection::connect_with(host, cx, self.remote, &options)?;
                inner.begin(Arc::clone(&stream));
                self.pending = Errno::EINPROGRESS;
                Ok((!is_syn_held(&stream, host, cx)).then_some(stream))
            }
        }
    }

    /// Longest sleep (`SO_SNDTIMEO`); `None` is no limit.
    #[must_use]
    pub fn limit(&self, socket: &Socket) -> Option<Duration> {
        socket.lock().settings.send_limit()
    }

    /// Ends the call; the attempt goes on.
    #[must_use]
    pub const fn give_up(&self, why: GiveUp) -> Errno {
        why.errno(self.pending)
    }
}

/// Whether the SYN waits for the first write (`TCP_FASTOPEN_CONNECT`; Linux: `DEFER_CONNECT`).
pub(crate) fn is_syn_held(stream: &Connection, host: &Host, cx: &mut Cx) -> bool {
    stream.with_tcb(host, cx, |tcb, _| tcb.is_syn_held())
}

/// Reports the end of the handshake of `stream` to the calling program, if it has ended.
///
/// # Errors
/// The reason of a failed attempt, `ECONNABORTED` if another call has taken it. The socket can
/// connect again then.
pub(crate) fn finish(
    inner: &mut Inner,
    stream: &Arc<Connection>,
    host: &Host,
    cx: &mut Cx,
) -> Answer<()> {
    match &mut inner.state {
        State::Stream(current, phase) if Arc::ptr_eq(current, stream) => {
            let tcp = tcp_state(stream, host, cx);
            if is_opening(tcp) {
                return Ok(Step::Blocks);
            }
            if tcp != TcpState::Close {
                *phase = Phase::Connected;
                return Ok(Step::Ready(()));
            }
            let error = stream.take_error(host, cx).unwrap_or(Errno::ECONNABORTED);
            inner.disconnect(host, cx);
            Err(error)
        }
        // Another thread has ended the attempt.
        State::Closed => Err(Errno::EBADF),
        _ => Err(inner.error.take().unwrap_or(Errno::EPIPE)),
    }
}
