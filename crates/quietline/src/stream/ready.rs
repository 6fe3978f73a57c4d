//! Many streams in one thread: a task is woken when a stream becomes ready.
//!
//! Linux: `poll` of a file with a wait queue, as epoll uses it with `EPOLLONESHOT`.

use std::task::{Context, Poll};

use stack::Readiness;

use super::TcpStream;

impl TcpStream {
    /// What the stream is ready for, once that is something of `interest`, or its end or an error. Otherwise the waker of
    /// `task` is called once when it may be; the caller then asks again. One waker may wait for any number of streams, and
    /// several may wait for one.
    ///
    /// The waker runs on a thread of the stack, which goes on when it returns: it should only make another thread look. A task
    /// that has lost interest may be woken in vain until the stream is dropped.
    pub fn poll_ready(&self, interest: Readiness, task: &mut Context<'_>) -> Poll<Readiness> {
        let mut wanted = interest | Readiness::HUP | Readiness::ERROR;
        if interest.contains(Readiness::READ) {
            wanted |= Readiness::RDHUP;
        }
        let socket = &self.shared.socket;
        let ready = socket.readiness();
        if ready.intersects(wanted) {
            return Poll::Ready(ready);
        }
        for queue in [Readiness::READ, Readiness::WRITE] {
            if interest.contains(queue) {
                socket.waiters(queue).register(task.waker());
            }
        }
        // The look behind the registration: what becomes true after it finds the waker.
        socket.pass_as_waiter();
        let ready = socket.readiness();
        if ready.intersects(wanted) { Poll::Ready(ready) } else { Poll::Pending }
    }
}
