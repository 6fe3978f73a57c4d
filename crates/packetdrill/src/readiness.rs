//! `poll`: what a descriptor is ready for.
//!
//! Linux: `tcp_poll`, `inet_csk_listen_poll`, fs/select.c.

use std::{os::fd::RawFd, time::Duration};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};
use stack::{Errno, Readiness};

use crate::{
    runtime::{Patience, Runtime, State},
    socket::Kind,
};

/// One line of a `poll` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollEntry {
    pub(crate) fd: RawFd,
    pub(crate) events: i16,
    pub(crate) revents: i16,
}

impl Runtime {
    /// Fills `revents`; returns how many lines have any. A negative timeout is endless.
    pub(crate) fn poll(&self, entries: &mut [PollEntry], timeout_ms: i32) -> Result<usize, Errno> {
        let result = self.wait_for(patience_of(timeout_ms), |state, _, _| {
            let mut ready = 0;
            for entry in entries.iter_mut() {
                let wanted = entry.events | POLLERR | POLLHUP | POLLNVAL;
                entry.revents = match entry.fd {
                    ..0 => 0,
                    fd => state.poll_events(fd).unwrap_or(POLLNVAL) & wanted,
                };
                ready += usize::from(entry.revents != 0);
            }
            if ready == 0 { Err(Errno::EAGAIN) } else { Ok(ready) }
        });
        match result {
            Err(Errno::EAGAIN) => Ok(0),
            result => result,
        }
    }
}

impl State {
    /// What a socket is ready for, in the bits of `poll`.
    pub(crate) fn poll_events(&self, fd: RawFd) -> Result<i16, Errno> {
        Ok(match &self.descriptors.socket(fd)?.kind {
            Kind::Fresh => POLLOUT | POLLWRNORM | POLLHUP,
            Kind::Listening(listener) if listener.is_ready() => POLLIN | POLLRDNORM,
            Kind::Listening(_) => 0,
            Kind::Stream(stream) => events_of(stream.readiness()),
        })
    }
}

/// Readiness in the bits of `poll`.
fn events_of(ready: Readiness) -> i16 {
    let table = [
        (Readiness::READ, POLLIN | POLLRDNORM),
        (Readiness::WRITE, POLLOUT | POLLWRNORM),
        (Readiness::RDHUP, POLLRDHUP | POLLIN | POLLRDNORM),
        (Readiness::HUP, POLLHUP),
        (Readiness::ERROR, POLLERR),
    ];
    table.iter().filter(|(bit, _)| ready.contains(*bit)).fold(0, |events, (_, more)| events | more)
}

/// A timeout in milliseconds as `poll` and `epoll_wait` take it.
pub(crate) fn patience_of(timeout_ms: i32) -> Patience {
    match u64::try_from(timeout_ms) {
        Ok(0) => Patience::None,
        Ok(ms) => Patience::For(Duration::from_millis(ms)),
        Err(_) => Patience::Endless,
    }
}
