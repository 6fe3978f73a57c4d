//! Waiting of blocking socket calls, the same for streams and datagram sockets.
//!
//! Above: `stream`, `udp`. Below: `wait`.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    base::ids::CoreId,
    host::Host,
    socket::{BusyPoll, BusyPollParams, Connection, DatagramSocket},
    sysctl::Sysctls,
};
use sync::EventCount;

use crate::{
    clock,
    handle::Stack,
    observed::Observed,
    wait::{Wait, wait_until},
};

/// Socket of the stack that a thread waits for.
pub(crate) trait Awaited: Observed {
    fn waiters(&self, interest: Readiness) -> &EventCount;
    /// Core that receives the socket's packets.
    fn polled_core(&self, host: &Host) -> CoreId;
    fn busy_poll(&self) -> BusyPoll;
    fn receive_timeout(&self) -> Option<Duration>;
    fn send_timeout(&self) -> Option<Duration>;
}

impl Awaited for Connection {
    fn waiters(&self, interest: Readiness) -> &EventCount {
        Self::waiters(self, interest)
    }

    fn polled_core(&self, host: &Host) -> CoreId {
        Self::polled_core(self, host)
    }

    fn busy_poll(&self) -> BusyPoll {
        Self::busy_poll(self)
    }

    fn receive_timeout(&self) -> Option<Duration> {
        Self::receive_timeout(self)
    }

    fn send_timeout(&self) -> Option<Duration> {
        Self::send_timeout(self)
    }
}

impl Awaited for DatagramSocket {
    fn waiters(&self, interest: Readiness) -> &EventCount {
        Self::waiters(self, interest)
    }

    fn polled_core(&self, _host: &Host) -> CoreId {
        self.incoming_core()
    }

    fn busy_poll(&self) -> BusyPoll {
        Self::busy_poll(self)
    }

    fn receive_timeout(&self) -> Option<Duration> {
        Self::receive_timeout(self)
    }

    fn send_timeout(&self) -> Option<Duration> {
        Self::send_timeout(self)
    }
}

/// Returns the parameters of a wait for `interest`.
pub(crate) fn how_to_wait<'a>(
    stack: &'a Stack,
    socket: &'a impl Awaited,
    interest: Readiness,
    began: Instant,
    deadline: Option<Instant>,
) -> Wait<'a, impl Fn(&Sysctls) -> BusyPollParams> {
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

/// Waits until the socket is ready for `interest`, or has ended. Returns false at the deadline.
pub(crate) fn wait_ready(
    stack: &Stack,
    socket: &impl Awaited,
    interest: Readiness,
    deadline: Option<Instant>,
) -> bool {
    let wanted = socket.wanted(interest);
    let wait = how_to_wait(stack, socket, interest, clock::now(), deadline);
    wait_until(&wait, || {
        socket.sync_with_owner();
        socket.readiness().intersects(wanted)
    })
}

/// Repeats `call` while it returns `EAGAIN`, and waits in between unless the socket is nonblocking.
pub(crate) fn blocking<R>(
    stack: &Stack,
    socket: &impl Awaited,
    nonblocking: &AtomicBool,
    interest: Readiness,
    mut call: impl FnMut() -> Result<R, Errno>,
) -> io::Result<R> {
    let mut deadline = None;
    loop {
        match call() {
            Err(Errno::EAGAIN) if !nonblocking.load(Ordering::Relaxed) => {}
            Err(errno) => return Err(errno.into()),
            Ok(result) => return Ok(result),
        }
        if deadline.is_none() {
            let limit = match interest {
                Readiness::WRITE => socket.send_timeout(),
                _ => socket.receive_timeout(),
            };
            deadline = limit.map(|limit| clock::now() + limit);
        }
        if !wait_ready(stack, socket, interest, deadline) {
            return Err(Errno::EAGAIN.into());
        }
    }
}
