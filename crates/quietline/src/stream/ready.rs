//! Many streams in one thread: wakes a task when a stream becomes ready.
//!
//! Linux: `poll` of a file with a wait queue, as epoll uses it with `EPOLLONESHOT`.

use std::task::{Context, Poll};

use stack::Readiness;

use super::TcpStream;

impl TcpStream {
    /// Returns the readiness of the stream if it includes a part of `interest`, an error or the end
    /// of the connection. Otherwise registers the waker of `task`, which is called once when the
    /// readiness may have changed; the caller then calls `poll_ready` again. One waker may wait for
    /// any number of streams, and several wakers for one stream.
    ///
    /// The waker runs on a thread of the stack and delays it, so a waker should only notify another
    /// thread. Until the stream is dropped, a task may be woken although it is not interested any
    /// more.
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
        // Check again after the registration: any later change finds the waker.
        socket.pass_as_waiter();
        let ready = socket.readiness();
        if ready.intersects(wanted) { Poll::Ready(ready) } else { Poll::Pending }
    }
}
