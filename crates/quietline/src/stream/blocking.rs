//! Waiting of a stream's blocking calls.

use std::io;

use pkt::Instant;
use stack::{Errno, Readiness, socket::BusyPollParams, sysctl::Sysctls};

use super::{Shared, TcpStream};
use crate::{blocking, wait::Wait};

impl TcpStream {
    /// Waits until the stream is ready for `interest`, or the connection has ended. Returns false
    /// at the deadline.
    pub(super) fn wait(&self, interest: Readiness, deadline: Option<Instant>) -> bool {
        let Shared { stack, socket, .. } = &*self.shared;
        blocking::wait_ready(stack, &**socket, interest, deadline)
    }

    pub(super) fn how_to_wait(
        &self,
        interest: Readiness,
        began: Instant,
        deadline: Option<Instant>,
    ) -> Wait<'_, impl Fn(&Sysctls) -> BusyPollParams> {
        let Shared { stack, socket, .. } = &*self.shared;
        blocking::how_to_wait(stack, &**socket, interest, began, deadline)
    }

    /// Repeats `call` while it returns `EAGAIN`, and waits in between unless the socket is
    /// nonblocking.
    pub(super) fn blocking<R>(
        &self,
        interest: Readiness,
        call: impl FnMut() -> Result<R, Errno>,
    ) -> io::Result<R> {
        let Shared { stack, socket, nonblocking } = &*self.shared;
        blocking::blocking(stack, &**socket, nonblocking, interest, call)
    }
}
