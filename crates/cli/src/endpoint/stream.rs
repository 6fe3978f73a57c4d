//! The interface of a connected socket, for the kernel's sockets and those of a quietline stack.
//!
//! The fuzz target `http` includes this file and the parsers of `serve::http`, and implements the
//! interface by a socket of its own.
//!
//! Not here: listeners and hosts (`endpoint`).

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    time::Duration,
};

/// A connected socket.
pub(crate) trait Stream: Read + Write + Send + Sync + Sized + 'static {
    /// Buffer that can be sent repeatedly without a copy.
    type Prepared;

    /// Prepares `bytes` for [`send_prepared`](Self::send_prepared). Fails with `Unsupported` if the
    /// socket has no zero-copy sends.
    fn prepare(&self, bytes: &[u8]) -> io::Result<Self::Prepared>;

    /// Sends the prepared bytes from offset `from`; returns the number of accepted bytes, as
    /// `write` does.
    fn send_prepared(&mut self, prepared: &Self::Prepared, from: usize) -> io::Result<usize>;

    /// Returns a second handle to the same connection.
    fn try_clone(&self) -> io::Result<Self>;

    /// Reads received bytes without waiting; `WouldBlock` when there are none.
    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Closes one or both directions.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Switches Nagle's algorithm off or on.
    fn set_nodelay(&self, nodelay: bool) -> io::Result<()>;

    /// Limits how long a read may block.
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Limits how long a write may block.
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Makes the last drop wait until the peer has acknowledged all data. Needed by a program that
    /// exits right after the drop, because its stack ends with it.
    fn wait_on_close(&self, limit: Duration) -> io::Result<()>;
}
