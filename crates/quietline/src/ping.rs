//! `PingSocket`: echo requests and replies of ICMP and ICMPv6, as Linux's
//! `socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)`.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use stack::{
    Errno,
    header::icmp::IcmpMessage,
    socket::{
        datagram::{QueuedError, Received, SendMessage, SocketKind},
        options::{OptionValue, SocketOption, SocketSettings},
    },
};

use crate::{handle::Stack, udp::UdpSocket};

/// A socket for echo requests (`ping`). The stack numbers the requests of a socket with an
/// identifier of its own, and delivers the replies with this identifier. Any program of the stack
/// may open one: `net.ipv4.ping_group_range` does not apply in user space.
///
/// A message begins with the ICMP header of eight bytes: type, code, checksum, identifier, sequence
/// number. In sent messages, the stack fills in the checksum and the identifier.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use quietline::{PingSocket, Stack};
///
/// let stack = Stack::builder().build()?;
/// let socket = PingSocket::open(&stack, "127.0.0.1".parse().unwrap())?;
/// socket.send_echo("127.0.0.1".parse().unwrap(), 1, b"hello")?;
///
/// let mut buffer = [0; 1500];
/// let (len, peer) = socket.recv_from(&mut buffer)?;
/// assert_eq!((&buffer[8..len], peer), (&b"hello"[..], "127.0.0.1".parse().unwrap()));
/// # Ok(())
/// # }
/// ```
pub struct PingSocket {
    socket: UdpSocket,
    is_v4: bool,
}

impl PingSocket {
    /// Opens a socket bound to the address `local`, with a free identifier. An unspecified address
    /// of IPv4 or IPv6 selects the family only.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the stack does not have the address.
    pub fn open(stack: &Stack, local: IpAddr) -> io::Result<Self> {
        let settings = SocketSettings::default();
        let local = SocketAddr::new(local, 0);
        let socket = UdpSocket::open(stack, SocketKind::Ping, local, &settings)?;
        Ok(Self { socket, is_v4: local.is_ipv4() })
    }

    /// Returns the identifier of the socket's messages.
    ///
    /// # Errors
    /// None; errors may be added.
    pub fn identifier(&self) -> io::Result<u16> {
        self.socket.local_addr().map(|local| local.port())
    }

    /// Connects to `remote`: [`send`](Self::send) sends there, and only replies from there are
    /// received.
    ///
    /// # Errors
    /// As [`UdpSocket::connect`].
    pub fn connect(&self, remote: IpAddr) -> io::Result<()> {
        self.socket.connect(SocketAddr::new(remote, 0))
    }

    /// Sends an echo request with this sequence number and data.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send_echo(&self, to: IpAddr, sequence: u16, data: &[u8]) -> io::Result<usize> {
        let request = IcmpMessage::EchoRequest { id: 0, seq: sequence };
        let header = match self.is_v4 {
            true => request.header_bytes::<true>(),
            false => request.header_bytes::<false>(),
        };
        self.send_to(&[&header[..], data].concat(), to)
    }

    /// Sends a message, which is an echo request, to the peer of a connected socket.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to); `EDESTADDRREQ` without a peer.
    pub fn send(&self, message: &[u8]) -> io::Result<usize> {
        self.socket.send_message(&SendMessage::new(message))
    }

    /// Sends a message, which is an echo request, to `to`.
    ///
    /// # Errors
    /// `EINVAL` for any other message, `EMSGSIZE` for one that does not fit the path, errors of the
    /// route, and the error of an earlier request.
    pub fn send_to(&self, message: &[u8], to: IpAddr) -> io::Result<usize> {
        self.socket.send_message(&SendMessage::to(message, SocketAddr::new(to, 0)))
    }

    /// Receives an echo reply, and returns its length and its sender.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, IpAddr)> {
        self.recv_message(buf).map(|received| (received.len, received.source.ip()))
    }

    /// Receives an echo reply with its description, such as its TTL.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub fn recv_message(&self, buf: &mut [u8]) -> io::Result<Received> {
        self.socket.recv_message(buf)
    }

    /// Takes the oldest report of the error queue (`IP_RECVERR`, `IPV6_RECVERR`): a router on the
    /// path has reported an error about a request.
    #[must_use]
    pub fn take_report(&self) -> Option<QueuedError> {
        self.socket.take_report()
    }

    /// Sets the TTL or hop limit of requests.
    ///
    /// # Errors
    /// `EINVAL` for a number outside 1 to 255.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        let option = if self.is_v4 { SocketOption::TimeToLive } else { SocketOption::UnicastHops };
        let hops = i32::try_from(hops).ok().filter(|hops| *hops > 0).ok_or(Errno::EINVAL)?;
        self.socket.set_option(option, hops)
    }

    /// Sets the maximum time that a receive waits; `None` is no limit.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// Sets whether calls fail with `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    /// Sets a socket option by Linux's rules.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOPROTOOPT`, `EINVAL`.
    pub fn set_option(
        &self,
        option: SocketOption,
        value: impl Into<OptionValue>,
    ) -> io::Result<()> {
        self.socket.set_option(option, value)
    }
}

impl fmt::Debug for PingSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PingSocket")
            .field("identifier", &self.identifier().ok())
            .finish_non_exhaustive()
    }
}
