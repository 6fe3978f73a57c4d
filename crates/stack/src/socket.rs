//! Sockets: connections, listeners, datagram sockets, and the tables that find them. A socket is
//! used both by softirq work (packets, timers) and by the calls of applications.
//!
//! `connection` is a TCP connection: its softirq side, its process side (send, recv, shutdown,
//! close), and the backlog between them. `datagram` is a UDP or ping socket, and the table of these
//! sockets. `modes` has the optional steps of a connection, each controlled by a setting;
//! `listener`, passive opens with their requests; `time_wait`, the compact TIME-WAIT state;
//! `demux`, the lookup tables of TCP; `net`, the state of a host that its sockets share;
//! `core_sockets`, the timers and the throttled sockets of one core; `rx`, the arguments of the
//! receive steps; `reset`, replies without a connection; `fast_open`, Fast Open cookies; `flows`,
//! intercepted flows; `wmem`, the accounting of a socket's packets that devices hold; `family`, the
//! addresses that an application sees; and `options`, the socket options.
//!
//! Above: receive steps, which pass packets, and crate `quietline`, which makes calls. Below:
//! `route`, `transmit`, crate `tcp`. Linux: net/ipv4/{tcp.c, tcp_ipv4.c, inet_connection_sock.c},
//! net/core/sock.c.

pub(crate) mod connection;
pub(crate) mod core_sockets;
pub mod datagram;
pub(crate) mod demux;
pub(crate) mod family;
pub(crate) mod fast_open;
pub mod flows;
mod listener;
mod modes;
pub mod net;
pub mod options;
pub(crate) mod reset;
pub(crate) mod rx;
mod time_wait;
pub(crate) mod wmem;

pub(crate) use connection::RouterAdvice;
pub use connection::busy_poll::{BUSY_POLL_BUDGET, BusyPoll, BusyPollParams};
pub use connection::calls::ShutdownHow;
pub use connection::connect::ConnectOptions;
pub use connection::send::SendFlags;
pub use connection::{Connection, SocketRef};
pub use datagram::DatagramSocket;
pub use listener::request::RequestSocket;
pub use listener::{BACKLOG_DEFAULT, ListenOptions, Listener};
pub use modes::reader::Reader;
pub(crate) use time_wait::TimeWaitSocket;
