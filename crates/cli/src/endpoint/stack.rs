//! The sockets of a quietline stack.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use quietline::{SendBuffer, SendFlags, Stack, TcpListener, TcpStream};

use super::{Host, Listener, Stream};

/// Connections that may wait for `accept`: the limit Linux sets by default (`net.core.somaxconn`), so that a
/// thousand clients at once find room.
const BACKLOG: u32 = 4096;

/// A stack as a host.
#[derive(Debug, Clone)]
pub(crate) struct StackHost(pub(crate) Stack);

impl Host for StackHost {
    type Stream = TcpStream;
    type Listener = TcpListener;

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind_with_backlog(&self.0, address, BACKLOG)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(&self.0, address)
    }
}

sockets! {
    type Prepared = SendBuffer;

    /// In packet memory, to be sent without a copy.
    fn prepare(&self, bytes: &[u8]) -> io::Result<SendBuffer> {
        let mut buffer = SendBuffer::new(self.stack(), bytes.len())?;
        buffer.write_at(0, bytes)?;
        Ok(buffer)
    }

    fn send_prepared(&mut self, prepared: &SendBuffer, from: usize) -> io::Result<usize> {
        self.send_buffer(prepared, from..prepared.len(), SendFlags::empty())
    }

    fn wait_on_close(&self, limit: Duration) -> io::Result<()> {
        self.set_linger(Some(limit))
    }
}
