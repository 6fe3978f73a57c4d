//! Many streams in one thread: wakes a task when a stream becomes ready.
//!
//! Linux: `poll` of a file with a wait queue, as epoll uses it with `EPOLLONESHOT`.

use std::task::{Context, Poll};

use stack::Readiness;
use sync::WatchKey;

use super::TcpStream;
use crate::observed;

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
        observed::poll_ready(&*self.shared.socket, WatchKey::BY_WAKER, interest, task)
    }
}
