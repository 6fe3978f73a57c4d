//! Sockets: where the two contexts meet.
//!
//! `stream.rs` is a connection and what both sides share, `stream/softirq.rs` its softirq side, `calls.rs` the process side (send, recv,
//! shutdown, close), `backlog.rs` and `prequeue.rs` what softirq context leaves for it, `reader.rs` a `recv` that waits,
//! `options.rs` socket options, `listener.rs` passive opens, `request.rs` and `time_wait.rs` the two states that need less than a
//! socket. Linux: net/ipv4/{tcp.c, tcp_ipv4.c, inet_connection_sock.c}, net/core/sock.c.

pub(crate) mod connection;
pub(crate) mod demux;
pub(crate) mod fast_open;
mod listener;
mod modes;
pub(crate) mod net;
pub mod options;
pub(crate) mod reset;
mod time_wait;

pub use connection::busy_poll::{BUSY_POLL_BUDGET, BusyPoll, BusyPollParams};
pub use connection::calls::{SendFlags, ShutdownHow};
pub use connection::connect::ConnectOptions;
pub(crate) use connection::wmem::{StreamTimer, Tasklet};
pub use connection::{SocketRef, TcpSocket};
pub(crate) use listener::request::RequestSocket;
pub use listener::{BACKLOG_DEFAULT, ListenOptions, Listener};
pub use modes::reader::Reader;
pub(crate) use time_wait::TimeWaitSocket;
