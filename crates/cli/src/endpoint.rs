//! The sockets a command talks through: the kernel's, or those of a quietline stack.
//!
//! Every workload and service is written once over these three traits, so that a comparison measures two
//! stacks and not two programs.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

pub(crate) use self::{kernel::KernelHost, stack::StackHost};

/// One host's socket layer.
pub(crate) trait Host: Clone + Send + Sync + 'static {
    /// Connected sockets.
    type Stream: Stream;
    /// Listening sockets.
    type Listener: Listener<Stream = Self::Stream>;

    /// Listens on an address; port 0 takes a free one.
    fn bind(&self, address: SocketAddr) -> io::Result<Self::Listener>;

    /// Connects, and returns when the handshake is done.
    fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream>;
}

/// A listening socket.
pub(crate) trait Listener: Send + Sync + 'static {
    /// What it accepts.
    type Stream: Stream;

    /// The next connection and its peer.
    fn accept(&self) -> io::Result<(Self::Stream, SocketAddr)>;

    /// The address it is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

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

/// What both kinds of socket have under the same names: everything but how they send without a copy, and what they do on close.
macro_rules! sockets {
    ($($own:item)*) => {
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

            $($own)*
        }
    };
}

mod kernel;
mod stack;
