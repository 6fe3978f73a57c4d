//! Waiting of blocking socket calls, the same for streams and datagram sockets.
//!
//! Above: `stream`, `udp`. Below: `wait`.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
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
    wait::{Wait, wait_until},
};

/// Socket of the stack that a thread waits for.
pub(crate) trait Awaited {
    fn readiness(&self) -> Readiness;
    fn waiters(&self, interest: Readiness) -> &EventCount;
    fn sync_with_owner(&self);
    /// Core that receives the socket's packets.
    fn polled_core(&self, host: &Host) -> CoreId;
    fn busy_poll(&self) -> BusyPoll;
    fn receive_timeout(&self) -> Option<Duration>;
    fn send_timeout(&self) -> Option<Duration>;
}

impl Awaited for Connection {
    fn readiness(&self) -> Readiness {
        Self::readiness(self)
    }

    fn waiters(&self, interest: Readiness) -> &EventCount {
        Self::waiters(self, interest)
    }

    fn sync_with_owner(&self) {
        Self::sync_with_owner(self);
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
    fn readiness(&self) -> Readiness {
        Self::readiness(self)
    }

    fn waiters(&self, interest: Readiness) -> &EventCount {
        Self::waiters(self, interest)
    }

    fn sync_with_owner(&self) {
        Self::sync_with_owner(self);
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

/// Returns the readiness that ends a wait for `interest`: also an error, or the end of the socket.
fn wanted(interest: Readiness) -> Readiness {
    let mut wanted = interest | Readiness::HUP | Readiness::ERROR;
    if interest.contains(Readiness::READ) {
        wanted |= Readiness::RDHUP;
    }
    wanted
}

/// Waits until the socket is ready for `interest`, or has ended. Returns false at the deadline.
pub(crate) fn wait_ready(
    stack: &Stack,
    socket: &impl Awaited,
    interest: Readiness,
    deadline: Option<Instant>,
) -> bool {
    let wanted = wanted(interest);
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

/// Returns the readiness of the socket if it includes a part of `interest`, an error or the end.
/// Otherwise registers the waker of `task`.
pub(crate) fn poll_ready(
    socket: &impl Awaited,
    interest: Readiness,
    task: &Context<'_>,
) -> Poll<Readiness> {
    let wanted = wanted(interest);
    let ready = socket.readiness();
    if ready.intersects(wanted) {
        return Poll::Ready(ready);
    }
    for queue in [Readiness::READ, Readiness::WRITE] {
        if interest.contains(queue) {
            socket.waiters(queue).register(task.waker());
        }
    }
    // Check again after the registration: any later change finds the waker.
    socket.sync_with_owner();
    let ready = socket.readiness();
    if ready.intersects(wanted) { Poll::Ready(ready) } else { Poll::Pending }
}
