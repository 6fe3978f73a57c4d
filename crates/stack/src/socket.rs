//! Sockets: where the two contexts meet.
//!
//! `connection` is a connection: its softirq side, the process side (send, recv, shutdown, close), and the backlog between them.
//! `modes` are steps of it that a setting adds, `listener` passive opens with their requests, `time_wait` the state that needs less
//! than a socket, `demux` the table of all of them, `options` socket options.
//!
//! Above: receive steps, which bring packets, and crate `quietline`, which makes calls. Below: `route`, `transmit`, the engine. Linux: net/ipv4/{tcp.c, tcp_ipv4.c, inet_connection_sock.c}, net/core/sock.c.

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
