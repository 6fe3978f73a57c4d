//! `close`: the last one, which ends the socket.
//!
//! Linux: `inet_release`, `__tcp_close`, `sk_stream_wait_close`.

use std::{mem, sync::Arc, time::Duration};

use stack::{Cx, host::Host, socket::Connection};

use crate::{
    socket::{Open as _, Socket, State},
    step::{Answer, Step},
};

/// A call of close(2) for the last descriptor of a socket.
#[derive(Debug, Default)]
pub struct Close {
    /// Connection that lingers (`SO_LINGER`), and how long the call waits for it.
    lingering: Option<(Arc<Connection>, Duration)>,
    begun: bool,
}

impl Close {
    /// A call that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Closes the socket. The first step ends the listener or begins to end the connection; with
    /// `SO_LINGER` the call then blocks until the peer has acknowledged the FIN, whether the socket
    /// is nonblocking or not.
    ///
    /// # Errors
    /// `EBADF` for a closed socket.
    pub fn step(&mut self, socket: &Socket, host: &Host, cx: &mut Cx) -> Answer<()> {
        if !mem::replace(&mut self.begun, true) {
            let state = {
                let mut inner = socket.lock().open()?;
                let state = mem::replace(&mut inner.state, State::Closed);
                inner.observers.end();
                state
            };
            match state {
                State::Unconnected | State::Closed => {}
                State::Listening(listener) => listener.close(host, cx),
                State::Stream(stream, _) => {
                    let linger = stream.linger(host, cx).filter(|time| !time.is_zero());
                    stream.close(host, cx);
                    self.lingering = linger.map(|time| (stream, time));
                }
            }
        }
        match &self.lingering {
            Some((stream, _)) if stream.is_finishing() => Ok(Step::Blocks),
            _ => Ok(Step::Ready(())),
        }
    }

    /// Longest sleep, once a step has answered `Blocks`. The call succeeds when the time is over:
    /// the connection ends without the program.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.lingering.as_ref().map(|(_, time)| *time)
    }
}
