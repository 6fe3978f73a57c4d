//! Linux's socket calls over the stack: socket states, errno, flags, options by number, readiness.
//!
//! # Theory of operation
//!
//! A [`Socket`] is the part of Linux's `struct socket` that a program can observe: its state, its
//! `O_NONBLOCK` flag, the address that `bind` has recorded, its options, and the errno of every
//! call in every state. The connection or the listener behind it belongs to the stack.
//!
//! ```text
//!            bind            listen
//!   Fresh ─────────► Bound ─────────► Listening ── accept ──► (a new socket, Connected)
//!     │  listen ───────┼─────────────►    │
//!     │                │                  │ shutdown(SHUT_RD), disconnect
//!     │                │ ◄────────────────┘
//!     └── connect ─────┤
//!                      ▼
//!                 Connecting ── a call has reported the handshake ──► Connected
//!                      │                                                  │
//!                      │ a call has reported the failure,                 │ disconnect
//!                      │ shutdown before the SYN-ACK, disconnect          │
//!                      └──────► Fresh or Bound ◄──────────────────────────┘
//!
//!   every state ── close ──► Closed: every call answers EBADF
//! ```
//!
//! Connecting ends when a *call* reports the result, not when the handshake does: a nonblocking
//! program calls `connect` a second time and gets 0 once, then `EISCONN`. A failed attempt makes
//! the socket usable for another `connect`, from the address that the program has bound, with the
//! options that it has set. Linux: `__inet_stream_connect`, `inet_shutdown` in net/ipv4/af_inet.c.
//!
//! # Calls
//!
//! No call of this crate blocks, sleeps or reads a clock; the time is `Cx::now`. Calls that never
//! block are methods of [`Socket`]. A call that may block is a value with its progress ([`Accept`],
//! [`Connect`], [`Send`], [`Recv`], [`Close`]), and its `step` answers
//!
//! - [`Step::Ready`]: the result.
//! - [`Step::Blocks`]: the calling thread has to sleep. The driver waits until the socket's
//!   readiness changes, and calls `step` again. A call on a nonblocking socket, or with
//!   `MSG_DONTWAIT`, never answers `Blocks`: it fails with `EAGAIN` or its like.
//!
//! The driver limits the sleep by `limit` (`SO_RCVTIMEO`, `SO_SNDTIMEO`, `SO_LINGER`). When the
//! time is over or a signal arrives, it calls `give_up`, which answers the bytes moved so far or
//! the errno ([`GiveUp`]).
//!
//! A [`Datagram`] is a socket of UDP or ICMP echo. It has no states beside bound and connected, and
//! its calls are [`SendDatagram`] and [`RecvDatagram`].
//!
//! # Division of work with the driver
//!
//! The driver owns
//!
//! - the *descriptor table*. A kernel number, an index or a handle of a C interface stands for an
//!   `Arc<Socket>`; all methods take `&self`, so that threads share a socket. `EBADF` for a number
//!   without a socket, `ENOTSOCK`, `FD_CLOEXEC`, `dup` and the last close are the driver's.
//! - *blocking*. [`Socket::stream`] and [`Socket::listener`] lead to the stack's event counts, on
//!   which threads sleep. [`Watched`] names an observer of a socket in any state, which a thread
//!   registers before its last look.
//! - *pointers*. `EFAULT` and the layout of `sockaddr`, `msghdr` and `iovec` are the driver's.
//!   Options are bytes here, with their lengths.
//! - *signals*. A `Send` that fails with `EPIPE` without `MSG_NOSIGNAL` raises `SIGPIPE`.
//!
//! [`poll()`] and [`EpollSet`] work on the driver's descriptors by a function that answers the
//! events of one of them.
//!
//! # Not here
//!
//! - `MSG_ZEROCOPY`, `SO_TIMESTAMPING`, `O_ASYNC`, `select`.
//! - A port table for `bind`. Differs from Linux: `bind` checks and records the address, and
//!   `EADDRINUSE` comes from `listen` or `connect`, because the stack has no bound socket without a
//!   connection or a listener.
//! - A socket in use by a blocked call keeps its connection open in Linux until that call returns.
//!   Differs from Linux: [`Close`] takes effect at once, because the driver decides when the last
//!   reference is gone.
//!
//! Below: `stack`, `tcp`. Above: the packetdrill object and the packet scripts of `sim`.

#![forbid(unsafe_code)]

pub mod abi;
mod accept;
mod close;
mod connect;
mod control;
mod datagram;
mod epoll;
mod options;
mod poll;
mod recv;
mod send;
pub mod sockaddr;
mod socket;
mod step;
mod watch;

#[cfg(test)]
mod tests;

pub use accept::{Accept, Accepted};
pub use close::Close;
pub use connect::Connect;
pub use datagram::{ControlMessage, Datagram, ReceivedDatagram, RecvDatagram, SendDatagram};
pub use epoll::{EpollEvent, EpollSet, Interest};
pub use poll::{PollEntry, limit_of_ms, poll};
pub use recv::{Received, Recv};
pub use send::Send;
pub use socket::{Socket, SocketState};
pub use stack::Errno;
pub use step::{Answer, GiveUp, Step};
pub use watch::Watched;
