//! A connected socket, whichever stack it belongs to.
//!
//! The fuzz target `http` includes this file, and the parsers of `serve::http`, to feed them from a socket of its own.
//!
//! Not here: listeners and hosts (`endpoint`).

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    time::Duration,
};

/// A connected socket.
pub(crate) trait Stream: Read + Write + Send + Sync + Sized + 'static {
    /// Bytes that can be sent again and again without a copy.
    type Prepared;

    /// Makes `bytes` ready to be sent with [`send_prepared`](Self::send_prepared); `Unsupported` where it cannot be done.
    fn prepare(&self, bytes: &[u8]) -> io::Result<Self::Prepared>;

    /// Writes what was prepared, from this byte on; returns how many were taken, as `write` does.
    fn send_prepared(&mut self, prepared: &Self::Prepared, from: usize) -> io::Result<usize>;

    /// A second handle to the same connection.
    fn try_clone(&self) -> io::Result<Self>;

    /// Reads what has come, without waiting: `WouldBlock` when that is nothing.
    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Closes one or both directions.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Switches Nagle's algorithm off or on.
    fn set_nodelay(&self, nodelay: bool) -> io::Result<()>;

    /// Limits how long a read may block.
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Limits how long a write may block.
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Makes the last drop wait until the peer has everything: for a program that ends right after, when its
    /// stack ends with it.
    fn wait_on_close(&self, limit: Duration) -> io::Result<()>;
}
