//! The kernel's sockets, through std.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use super::{Host, Listener, Stream};

/// The machine itself as a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelHost;

impl Host for KernelHost {
    type Stream = TcpStream;
    type Listener = TcpListener;

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Self::accept(self)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

impl Stream for TcpStream {
    fn try_clone(&self) -> io::Result<Self> {
        Self::try_clone(self)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Self::shutdown(self, how)
    }

    fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Self::set_nodelay(self, nodelay)
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Self::set_read_timeout(self, limit)
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Self::set_write_timeout(self, limit)
    }

    fn wait_on_close(&self, _limit: Duration) -> io::Result<()> {
        // The kernel goes on after the program's end.
        Ok(())
    }
}
