//! Waiting of blocking socket calls.

use std::{io, sync::atomic::Ordering};

use pkt::Instant;
use stack::{Errno, Readiness, socket::BusyPollParams, sysctl::Sysctls};

use super::{Shared, TcpStream};
use crate::{
    clock,
    wait::{Wait, wait_until},
};

impl TcpStream {
    /// Waits until the stream is ready for `interest`, or the connection has ended. Returns false
    /// at the deadline.
    pub(super) fn wait(&self, interest: Readiness, deadline: Option<Instant>) -> bool {
        let wanted = interest | Readiness::HUP | Readiness::ERROR;
        let wanted =
            if interest.contains(Readiness::READ) { wanted | Readiness::RDHUP } else { wanted };
        let socket = &self.shared.socket;
        let wait = self.how_to_wait(interest, clock::now(), deadline);
        wait_until(&wait, || {
            socket.pass_as_waiter();
            socket.readiness().intersects(wanted)
        })
    }

    pub(super) fn how_to_wait(
        &self,
        interest: Readiness,
        began: Instant,
        deadline: Option<Instant>,
    ) -> Wait<'_, impl Fn(&Sysctls) -> BusyPollParams> {
        let Shared { stack, socket, .. } = &*self.shared;
        let busy_poll = socket.busy_poll();
        Wait {
            stack,
            core: socket.polled_core(stack.host()),
            events: socket.waiters(interest),
            began,
            deadline,
            polling: move |sysctls: &Sysctls| match interest {
                Readiness::READ => busy_poll.for_read(sysctls),
                _ => busy_poll.for_event(sysctls),
            },
        }
    }

    /// Repeats `call` while it returns `EAGAIN`, and waits in between unless the socket is
    /// nonblocking.
    pub(super) fn blocking<R>(
        &self,
        interest: Readiness,
        mut call: impl FnMut() -> Result<R, Errno>,
    ) -> io::Result<R> {
        let mut deadline = None;
        loop {
            match call() {
                Err(Errno::EAGAIN) if !self.shared.nonblocking.load(Ordering::Relaxed) => {}
                Err(errno) => return Err(errno.into()),
                Ok(result) => return Ok(result),
            }
            if deadline.is_none() {
                let socket = &self.shared.socket;
                let limit = match interest {
                    Readiness::WRITE => socket.send_timeout(),
                    _ => socket.receive_timeout(),
                };
                deadline = limit.map(|limit| clock::now() + limit);
            }
            if !self.wait(interest, deadline) {
                return Err(Errno::EAGAIN.into());
            }
        }
    }
}
