//! The sockets of a resolver: those of a stack, or of a test in virtual time.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use quietline::{Stack, TcpStream, UdpSocket};

/// Sockets and time, as a resolver needs them.
pub(crate) trait Network {
    /// A UDP socket with a new random port, which receives from one server only.
    type Socket;

    /// Returns the time since any start.
    fn now(&self) -> Duration;

    /// Returns a number that an attacker cannot predict.
    fn random(&mut self) -> u16;

    /// Opens a socket to `server`.
    fn open(&mut self, server: SocketAddr) -> io::Result<Self::Socket>;

    /// Sends a datagram.
    fn send(&mut self, socket: &Self::Socket, bytes: &[u8]) -> io::Result<()>;

    /// Receives a datagram. `None` if none arrives within `limit`.
    fn receive(
        &mut self,
        socket: &Self::Socket,
        buffer: &mut [u8],
        limit: Duration,
    ) -> io::Result<Option<usize>>;

    /// Sends a query over TCP, and returns the answer, both without their length fields.
    fn exchange(
        &mut self,
        server: SocketAddr,
        query: &[u8],
        limit: Duration,
    ) -> io::Result<Vec<u8>>;
}

/// The sockets of a stack.
pub(super) struct StackNetwork<'a> {
    stack: &'a Stack,
    start: Instant,
}

impl<'a> StackNetwork<'a> {
    pub(super) fn new(stack: &'a Stack) -> Self {
        Self { stack, start: Instant::now() }
    }
}

impl Network for StackNetwork<'_> {
    type Socket = UdpSocket;

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn random(&mut self) -> u16 {
        let [first, second, ..] = crate::unpredictable().to_ne_bytes();
        u16::from_ne_bytes([first, second])
    }

    fn open(&mut self, server: SocketAddr) -> io::Result<UdpSocket> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(self.stack, any)?;
        socket.connect(server)?;
        Ok(socket)
    }

    fn send(&mut self, socket: &UdpSocket, bytes: &[u8]) -> io::Result<()> {
        socket.send(bytes).map(drop)
    }

    fn receive(
        &mut self,
        socket: &UdpSocket,
        buffer: &mut [u8],
        limit: Duration,
    ) -> io::Result<Option<usize>> {
        socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        match socket.recv(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn exchange(
        &mut self,
        server: SocketAddr,
        query: &[u8],
        limit: Duration,
    ) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + limit;
        let mut stream = TcpStream::connect_timeout(self.stack, server, limit)?;
        let len = u16::try_from(query.len()).map_err(io::Error::other)?;
        stream.set_write_timeout(Some(limit))?;
        stream.write_all(&[&len.to_be_bytes(), query].concat())?;
        let mut len = [0; 2];
        read_until(&mut stream, &mut len, deadline)?;
        let mut answer = vec![0; u16::from_be_bytes(len).into()];
        read_until(&mut stream, &mut answer, deadline)?;
        Ok(answer)
    }
}

/// Fills the buffer, or fails with `TimedOut` at `deadline`, however slowly bytes arrive.
fn read_until(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
