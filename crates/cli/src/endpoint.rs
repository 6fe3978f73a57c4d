//! Sockets of a command: the kernel's, or those of a quietline stack.
//!
//! Every workload and service is written once over these traits, so that a comparison measures two
//! stacks and not two programs.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

pub(crate) use self::{kernel::KernelHost, stack::StackHost, stream::Stream};

/// One host's socket layer.
pub(crate) trait Host: Clone + Send + Sync + 'static {
    /// Type of connected sockets.
    type Stream: Stream;
    /// Type of listening sockets.
    type Listener: Listener<Stream = Self::Stream>;
    /// Readiness notification for many connections.
    type Watch: Watch<Stream = Self::Stream>;
    /// Type of datagram sockets.
    type Datagrams: Datagrams;

    /// Starts to watch connections, for as long as the process runs. `on_readable` is called with
    /// the key of each readable connection, on a thread that it must not block.
    fn watch(&self, on_readable: OnReadable) -> io::Result<Self::Watch>;

    /// Listens on an address; port 0 selects a free port.
    fn bind(&self, address: SocketAddr) -> io::Result<Self::Listener>;

    /// Opens a datagram socket on an address.
    fn bind_datagrams(&self, address: SocketAddr) -> io::Result<Self::Datagrams>;

    /// Connects, and returns when the handshake is complete.
    fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream>;
}

/// Callback with the key of a connection that is readable or has ended.
pub(crate) type OnReadable = Arc<dyn Fn(u64) + Send + Sync>;

/// Readiness notification for many connections.
pub(crate) trait Watch: Send + Sync + 'static {
    /// Type of the watched connections.
    type Stream;

    /// Arms one notification: when the connection is readable or has ended, the function given to
    /// [`Host::watch`] is called once. True: the connection is already readable, and a notification
    /// may or may not follow.
    fn arm(&self, key: u64, stream: &Self::Stream) -> io::Result<bool>;
}

/// A listening socket.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Type of accepted connections.
    type Stream: Stream;

    /// Accepts the next connection, and returns it with the address of its peer.
    fn accept(&self) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Returns the address that the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// A datagram socket.
pub(crate) trait Datagrams: Send + Sync + 'static {
    /// Receives a datagram; returns its length and its sender.
    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sets the peer of `send` and `receive`.
    fn connect(&self, peer: SocketAddr) -> io::Result<()>;

    /// Sends a datagram to the peer; returns its length.
    fn send(&self, payload: &[u8]) -> io::Result<usize>;

    /// Receives a datagram of the peer; returns its length.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Limits how long a receive may block.
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Sends a datagram; returns its length.
    fn send_to(&self, payload: &[u8], peer: SocketAddr) -> io::Result<usize>;

    /// Returns the address that the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// Implements the methods that both socket types have under the same names. Zero-copy sends,
/// nonblocking reads and the behavior on close differ, and are passed in.
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

        impl Datagrams for UdpSocket {
            fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
                self.recv_from(buffer)
            }

            fn connect(&self, peer: SocketAddr) -> io::Result<()> {
                Self::connect(self, peer)
            }

            fn send(&self, payload: &[u8]) -> io::Result<usize> {
                Self::send(self, payload)
            }

            fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.recv(buffer)
            }

            fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                Self::set_read_timeout(self, limit)
            }

            fn send_to(&self, payload: &[u8], peer: SocketAddr) -> io::Result<usize> {
                Self::send_to(self, payload, peer)
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
