//! The sockets of a quietline stack.

use std::{
    io::{self, Read as _},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use quietline::{Readiness, SendBuffer, SendFlags, Stack, TcpListener, TcpStream, UdpSocket};

use super::{Datagrams, Host, Listener, OnReadable, Stream, Watch};

/// Limit of the accept queue: the Linux default (`net.core.somaxconn`), so that a thousand
/// simultaneous clients fit.
const BACKLOG: u32 = 4096;

/// A quietline stack as a host.
#[derive(Debug, Clone)]
pub(crate) struct StackHost(pub(crate) Stack);

impl Host for StackHost {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Watch = Wakers;
    type Datagrams = UdpSocket;

    fn watch(&self, on_readable: OnReadable) -> io::Result<Wakers> {
        Ok(Wakers(on_readable))
    }

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind_with_backlog(&self.0, address, BACKLOG)
    }

    fn bind_datagrams(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::bind(&self.0, address)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(&self.0, address)
    }
}

/// Readiness notification by the wakers of the connections.
pub(crate) struct Wakers(OnReadable);

struct Readable {
    key: u64,
    notify: OnReadable,
}

impl Wake for Readable {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        (self.notify)(self.key);
    }
}

impl Watch for Wakers {
    type Stream = TcpStream;

    fn arm(&self, key: u64, stream: &TcpStream) -> io::Result<bool> {
        let waker = Waker::from(Arc::new(Readable { key, notify: Arc::clone(&self.0) }));
        Ok(stream.poll_ready(Readiness::READ, &mut Context::from_waker(&waker)).is_ready())
    }
}

sockets! {
    type Prepared = SendBuffer;

    /// Copies the bytes into packet memory, from which they are sent without another copy.
    fn prepare(&self, bytes: &[u8]) -> io::Result<SendBuffer> {
        let mut buffer = SendBuffer::new(self.stack(), bytes.len())?;
        buffer.write_at(0, bytes)?;
        Ok(buffer)
    }

    fn send_prepared(&mut self, prepared: &SendBuffer, from: usize) -> io::Result<usize> {
        self.send_buffer(prepared, from..prepared.len(), SendFlags::empty())
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.set_nonblocking(true)?;
        let result = self.read(buffer);
        self.set_nonblocking(false)?;
        result
    }

    fn wait_on_close(&self, limit: Duration) -> io::Result<()> {
        self.set_linger(Some(limit))
    }
}
