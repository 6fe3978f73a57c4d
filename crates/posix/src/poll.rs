//! `poll`: the events of a socket, and of a list of descriptors.
//!
//! Linux: `tcp_poll`, `inet_csk_listen_poll`, fs/select.c.

use std::time::Duration;

use stack::Readiness;

use crate::{
    abi::{
        POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM,
    },
    datagram::Datagram,
    socket::{Socket, State},
};

/// One entry of a poll(2) call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEntry {
    /// Descriptor; a negative one is ignored.
    pub fd: i32,
    /// Events that the program asks for.
    pub events: i16,
    /// Events that have occurred.
    pub revents: i16,
}

/// Fills `revents` of every entry and returns how many entries have any. `events_of` answers the
/// events of a descriptor, `None` for one that is not open.
pub fn poll(entries: &mut [PollEntry], mut events_of: impl FnMut(i32) -> Option<i16>) -> usize {
    let mut ready = 0;
    for entry in entries {
        entry.revents = match entry.fd {
            ..0 => 0,
            fd => {
                events_of(fd).map_or(POLLNVAL, |events| events & (entry.events | POLLERR | POLLHUP))
            }
        };
        ready += usize::from(entry.revents != 0);
    }
    ready
}

/// The time limit of poll(2) and epoll_wait(2) from milliseconds; a negative number is no limit.
#[must_use]
pub fn limit_of_ms(timeout_ms: i32) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

impl Socket {
    /// The events of the socket, as bits of poll(2) and epoll.
    #[must_use]
    pub fn poll_events(&self) -> i16 {
        let inner = self.lock();
        match &inner.state {
            State::Unconnected => {
                let error = if inner.error.is_some() { POLLERR } else { 0 };
                let shut = if inner.shut_read { POLLRDHUP | POLLIN | POLLRDNORM } else { 0 };
                POLLOUT | POLLWRNORM | POLLHUP | error | shut
            }
            State::Listening(listener) if listener.is_ready() => POLLIN | POLLRDNORM,
            State::Listening(_) => 0,
            State::Stream(stream, _) => events_of(stream.readiness()),
            State::Closed => POLLNVAL,
        }
    }
}

impl Datagram {
    /// The events of the socket, as bits of poll(2) and epoll. Differs from Linux: a pending error
    /// also makes the socket readable.
    #[must_use]
    pub fn poll_events(&self) -> i16 {
        let shut = self.shut_events();
        let ready =
            self.socket().map_or(POLLOUT | POLLWRNORM, |socket| events_of(socket.readiness()));
        shut.map_or(POLLNVAL, |shut| ready | shut)
    }
}

/// Readiness as bits of poll(2).
fn events_of(ready: Readiness) -> i16 {
    [
        (Readiness::READ, POLLIN | POLLRDNORM),
        (Readiness::WRITE, POLLOUT | POLLWRNORM),
        (Readiness::RDHUP, POLLRDHUP | POLLIN | POLLRDNORM),
        (Readiness::HUP, POLLHUP),
        (Readiness::ERROR, POLLERR),
        (Readiness::PRI, POLLPRI),
    ]
    .into_iter()
    .filter(|(bit, _)| ready.contains(*bit))
    .fold(0, |events, (_, more)| events | more)
}
