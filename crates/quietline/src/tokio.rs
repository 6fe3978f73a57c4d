//! Sockets for the runtime tokio (feature `tokio`): [`TcpListener`], [`TcpStream`], [`UdpSocket`],
//! intercepted [`Flows`], and [`relay()`].
//!
//! The types have the methods of `tokio::net`, with a `&Stack` as the first argument of those that
//! make a socket. They run on any runtime of tokio, with one thread or with several: the stack
//! wakes the tasks itself, without tokio's I/O driver. Every future may be dropped at any time:
//! nothing that it has not returned is lost, and its task is not woken any more.
//!
//! ```
//! use quietline::{Stack, tokio::{TcpListener, TcpStream}};
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//!
//! # fn main() -> std::io::Result<()> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let stack = Stack::builder().build()?;
//! let listener = TcpListener::bind(&stack, "127.0.0.1:80")?;
//! let mut stream = TcpStream::connect(&stack, "127.0.0.1:80".parse().unwrap()).await?;
//! let (mut accepted, _peer) = listener.accept().await?;
//! stream.write_all(b"hello").await?;
//! let mut hello = [0; 5];
//! accepted.read_exact(&mut hello).await?;
//! assert_eq!(&hello, b"hello");
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! Below: the blocking sockets of this crate in nonblocking mode, and `observed`. A call runs the
//! stack on the thread of the task, as a blocking call does. It needs no worker of tokio while it
//! waits.
//!
//! Not here: names of hosts. Calls take a `SocketAddr`; `tokio::net::lookup_host` resolves names
//! through the system.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll, ready},
};

use stack::Readiness;
use sync::WatchKey;

use crate::observed::Observed;

pub use flows::{Flow, Flows, TcpRequest, UdpSession};
pub use listener::TcpListener;
pub use relay::{Plain, RelayEnd, relay};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
pub use udp::UdpSocket;

mod flows;
mod listener;
mod relay;
mod split;
mod stream;
mod udp;

/// Calls `call` when the socket is ready for `interest`, and registers the task that `key` names
/// while it is not, or while `call` fails with `WouldBlock`.
fn poll_io<R>(
    socket: &impl Observed,
    key: impl FnOnce() -> WatchKey,
    interest: Readiness,
    task: &mut Context<'_>,
    mut call: impl FnMut() -> io::Result<R>,
) -> Poll<io::Result<R>> {
    // A task that always finds its sockets ready gives way to others from time to time.
    let turn = ready!(::tokio::task::coop::poll_proceed(task));
    let wanted = socket.wanted(interest);
    let mut attempt = || {
        if !socket.readiness().intersects(wanted) {
            return Poll::Pending;
        }
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        }
    };
    let mut result = attempt();
    if result.is_pending() {
        socket.watchers().set_task(key(), wanted.bits(), task.waker());
        // Any change after this finds the waker.
        socket.sync_with_owner();
        result = attempt();
    }
    if result.is_ready() {
        turn.made_progress();
    }
    result
}

/// A future's registration, which its end removes: a task that has given up is not woken.
struct Waiting<'a, S: Observed> {
    socket: &'a S,
    key: Option<WatchKey>,
}

impl<S: Observed> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.socket.watchers().remove_task(key);
        }
    }
}

/// As [`poll_io`], as a future. Any number of tasks may wait.
async fn wait_io<R>(
    socket: &impl Observed,
    interest: Readiness,
    mut call: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let mut waiting = Waiting { socket, key: None };
    poll_fn(|task| {
        let key = || *waiting.key.get_or_insert_with(WatchKey::new);
        poll_io(socket, key, interest, task, &mut call)
    })
    .await
}

/// Waits until the socket is ready for `interest`, and returns its readiness.
async fn wait_ready(socket: &impl Observed, interest: Readiness) -> io::Result<Readiness> {
    wait_io(socket, interest, || Ok(socket.readiness())).await
}
