//! The sockets a command talks through: the kernel's, or those of a quietline stack.
//!
//! Every workload and service is written once over these three traits, so that a comparison measures two
//! stacks and not two programs.

use std::{io, net::SocketAddr, sync::Arc};

pub(crate) use self::{kernel::KernelHost, stack::StackHost, stream::Stream};

/// One host's socket layer.
pub(crate) trait Host: Clone + Send + Sync + 'static {
    /// Connected sockets.
    type Stream: Stream;
    /// Listening sockets.
    type Listener: Listener<Stream = Self::Stream>;
    /// What tells which of many connections have something to read.
    type Watch: Watch<Stream = Self::Stream>;

    /// Watches connections for as long as the process runs. `on_readable` is called with the key of each that has something
    /// to read, on a thread that must not be kept.
    fn watch(&self, on_readable: OnReadable) -> io::Result<Self::Watch>;

    /// Listens on an address; port 0 takes a free one.
    fn bind(&self, address: SocketAddr) -> io::Result<Self::Listener>;

    /// Connects, and returns when the handshake is done.
    fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream>;
}

/// Called with the key of a connection that has something to read, or has ended.
pub(crate) type OnReadable = Arc<dyn Fn(u64) + Send + Sync>;

/// Tells which of many connections have something to read.
pub(crate) trait Watch: Send + Sync + 'static {
    /// What it watches.
    type Stream;

    /// Watches a connection until it has something to read, or has ended; then the function given to [`Host::watch`] is called
    /// once. True: it has already, and may be told of or not.
    fn arm(&self, key: u64, stream: &Self::Stream) -> io::Result<bool>;
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
mod stream;
