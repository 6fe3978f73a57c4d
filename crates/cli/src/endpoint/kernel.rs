//! The kernel's sockets, through std.

use std::{
    convert::Infallible,
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

sockets! {
    type Prepared = Infallible;

    fn prepare(&self, _bytes: &[u8]) -> io::Result<Infallible> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send_prepared(&mut self, prepared: &Infallible, _from: usize) -> io::Result<usize> {
        match *prepared {}
    }

    fn wait_on_close(&self, _limit: Duration) -> io::Result<()> {
        // The kernel goes on after the program's end.
        Ok(())
    }
}
