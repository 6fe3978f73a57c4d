//! `UdpSocket`, as in `std::net`, and the calls of Linux that std does not have: batches, control
//! messages, segmentation, the error queue.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use stack::{
    Errno, Readiness,
    base::ids::DeviceIndex,
    socket::{
        DatagramSocket,
        datagram::{QueuedError, ReceiveMessage, Received, SendMessage, SocketKind, SourceChange},
        options::{OptionValue, SocketOption, SocketSettings},
    },
};
use sync::WatchKey;

use crate::{
    addresses::first_of,
    blocking,
    clock::{with_cx, with_cx_untimed},
    handle::Stack,
    observed,
};

mod options;

/// A UDP socket. Clones from [`try_clone`](Self::try_clone) share it; dropping the last one closes
/// it. Any thread may use any clone.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use quietline::{Stack, UdpSocket};
///
/// let stack = Stack::builder().build()?;
/// let server = UdpSocket::bind(&stack, "127.0.0.1:7")?;
/// let client = UdpSocket::bind(&stack, "127.0.0.1:0")?;
/// client.connect("127.0.0.1:7")?;
/// client.send(b"hello")?;
///
/// let mut buffer = [0; 1500];
/// let (len, peer) = server.recv_from(&mut buffer)?;
/// server.send_to(&buffer[..len], peer)?;
/// assert_eq!(client.recv(&mut buffer)?, 5);
/// # Ok(())
/// # }
/// ```
pub struct UdpSocket {
    shared: Arc<Shared>,
}

struct Shared {
    stack: Stack,
    socket: Arc<DatagramSocket>,
    nonblocking: AtomicBool,
}

impl UdpSocket {
    /// Opens a socket bound to `local`; port 0 takes a free port. A socket on `[::]` also has IPv4
    /// peers, by v4-mapped addresses, unless [`SocketSettings::v6_only`] says otherwise. If `local`
    /// has several addresses, they are tried in order until one is free.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EADDRNOTAVAIL` if the stack does not have the address; `InvalidInput` for
    /// text that is not an address, and the resolver's error for a host name.
    pub fn bind(stack: &Stack, local: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, &SocketSettings::default())
    }

    /// Opens a socket with options that must be set before: `SO_REUSEADDR`, `SO_REUSEPORT`,
    /// `SO_INCOMING_CPU`. Otherwise as [`bind`](Self::bind).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(
        stack: &Stack,
        local: impl ToSocketAddrs,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        first_of(local, |local| Self::open(stack, SocketKind::Udp, local, settings))
    }

    /// Opens a socket of any kind.
    pub(crate) fn open(
        stack: &Stack,
        kind: SocketKind,
        local: SocketAddr,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        let socket = with_cx(|cx| DatagramSocket::open(stack.host(), cx, kind, local, settings))?;
        let (stack, nonblocking) = (stack.clone(), AtomicBool::new(false));
        Ok(Self { shared: Arc::new(Shared { stack, socket, nonblocking }) })
    }

    /// Connects to `remote`: [`send`](Self::send) sends there, and only datagrams from there are
    /// received. Nothing is sent. If `remote` has several addresses, the first with a route is
    /// used.
    ///
    /// # Errors
    /// As connect(2): `ENETUNREACH` without a route, `EACCES` for a broadcast address.
    pub fn connect(&self, remote: impl ToSocketAddrs) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        first_of(remote, |remote| Ok(with_cx(|cx| socket.connect(stack.host(), cx, remote))?))
    }

    /// Sends a datagram to the peer of a connected socket. Returns the number of bytes sent.
    ///
    /// # Errors
    /// As send(2): `EDESTADDRREQ` without a peer, `EMSGSIZE` for a datagram above 65,507 bytes, or
    /// above the path MTU if it may not be fragmented (`IP_MTU_DISCOVER`), and the error of an
    /// earlier datagram, such as `ECONNREFUSED`.
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_message(&SendMessage::new(payload))
    }

    /// Sends a datagram to `to`, the first of several addresses. Returns the number of bytes sent.
    ///
    /// # Errors
    /// As [`send`](Self::send); errors of the route.
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let Some(to) = to.to_socket_addrs()?.next() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no addresses to send data to",
            ));
        };
        self.send_message(&SendMessage::to(payload, to))
    }

    /// Sends one message with its own values for header fields and segmentation (`sendmsg`).
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send_message(&self, message: &SendMessage<'_>) -> io::Result<usize> {
        self.send_batch(core::slice::from_ref(message))?;
        Ok(message.payload.len())
    }

    /// Sends messages in order in one call (`sendmmsg`), and returns the number of those sent.
    /// Messages with one path reach the device as one list. Stops at the first that fails; its
    /// error is returned if it is the first of all.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send_batch(&self, messages: &[SendMessage<'_>]) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::WRITE, || {
            with_cx(|cx| socket.send_batch(stack.host(), cx, messages))
        })
    }

    /// Receives a datagram into `buf`, and returns its length. Bytes beyond the buffer are lost.
    ///
    /// # Errors
    /// As recv(2): `WouldBlock` if the socket is nonblocking and no datagram waits, or if none
    /// arrived within the timeout; the error of an earlier datagram, such as `ECONNREFUSED`.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_message(buf).map(|received| received.len)
    }

    /// Receives a datagram, and returns its length and its sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_message(buf).map(|received| (received.len, received.source))
    }

    /// Receives a datagram with its description: addresses, device, marks, segmentation
    /// (`recvmsg`).
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_message(&self, buf: &mut [u8]) -> io::Result<Received> {
        self.receive(buf, false)
    }

    /// Copies a datagram and leaves it in the receive queue; returns its length.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(buf, true).map(|received| received.len)
    }

    /// Copies a datagram and leaves it in the receive queue; returns its length and its sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buf, true).map(|received| (received.len, received.source))
    }

    fn receive(&self, buf: &mut [u8], peek: bool) -> io::Result<Received> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::READ, || {
            with_cx_untimed(|cx| socket.recv(stack.host(), cx, buf, peek))
        })
    }

    /// Receives as many datagrams as wait, one into each buffer, and returns their number
    /// (`recvmmsg`). Waits for the first one unless the socket is nonblocking.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_batch(&self, messages: &mut [ReceiveMessage<'_>]) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::READ, || {
            with_cx_untimed(|cx| socket.recv_batch(stack.host(), cx, messages))
        })
    }

    /// Takes the oldest report of the error queue, which `IP_RECVERR`
    /// ([`SocketOption::ReceiveError`]) fills (`MSG_ERRQUEUE`).
    #[must_use]
    pub fn take_report(&self) -> Option<QueuedError> {
        let Shared { stack, socket, .. } = &*self.shared;
        with_cx(|cx| socket.take_report(stack.host(), cx))
    }

    fn blocking<R>(
        &self,
        interest: Readiness,
        call: impl FnMut() -> Result<R, Errno>,
    ) -> io::Result<R> {
        let Shared { stack, socket, nonblocking } = &*self.shared;
        blocking::blocking(stack, &**socket, nonblocking, interest, call)
    }

    pub(crate) fn socket(&self) -> &Arc<DatagramSocket> {
        &self.shared.socket
    }

    /// Returns another handle to the same socket.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { shared: Arc::clone(&self.shared) })
    }

    /// Returns the stack of the socket.
    #[must_use]
    pub fn stack(&self) -> &Stack {
        &self.shared.stack
    }

    /// Returns the local address and port.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let Shared { stack, socket, .. } = &*self.shared;
        Ok(with_cx(|cx| socket.local(stack.host(), cx)))
    }

    /// Returns the peer's address and port.
    ///
    /// # Errors
    /// `NotConnected` if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let Shared { stack, socket, .. } = &*self.shared;
        let remote = with_cx(|cx| socket.remote(stack.host(), cx));
        remote.ok_or_else(|| Errno::ENOTCONN.into())
    }

    /// Sets whether calls fail with `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether calls fail with `WouldBlock` instead of waiting.
    #[must_use]
    pub fn nonblocking(&self) -> bool {
        self.shared.nonblocking.load(Ordering::Relaxed)
    }

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let Shared { stack, socket, .. } = &*self.shared;
        Ok(with_cx(|cx| socket.take_error(stack.host(), cx)).map(io::Error::from))
    }

    /// Returns the readiness of the socket.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.shared.socket.readiness()
    }

    /// Returns the readiness if it includes a part of `interest` or an error, and otherwise
    /// registers the waker of `task`, as
    /// [`TcpStream::poll_ready`](crate::TcpStream::poll_ready).
    pub fn poll_ready(&self, interest: Readiness, task: &mut Context<'_>) -> Poll<Readiness> {
        observed::poll_ready(&*self.shared.socket, WatchKey::BY_WAKER, interest, task)
    }

    /// Joins a multicast group on the device with the address `interface`, or for 0.0.0.0 on the
    /// device by which datagrams to the group leave.
    ///
    /// # Errors
    /// `EINVAL` for an address that is no group, `EADDRINUSE` if the socket is a member already,
    /// `ENODEV` without such a device.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        let host = stack.host();
        Ok(with_cx(|cx| {
            let device = host.multicast_device(cx, (*interface).into())?;
            socket.join(host, cx, (*group).into(), device)
        })?)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member, `ENODEV` without such a device.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        let host = stack.host();
        Ok(with_cx(|cx| {
            let device = host.multicast_device(cx, (*interface).into())?;
            socket.leave(host, cx, (*group).into(), device)
        })?)
    }

    /// Joins an IPv6 multicast group (`IPV6_JOIN_GROUP`) on the device with the index `interface`,
    /// or for 0 on the device by which datagrams to the group leave.
    ///
    /// # Errors
    /// As [`join_multicast_v4`](Self::join_multicast_v4); `ENOPROTOOPT` on an IPv4 socket.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        let (group, device) = (IpAddr::V6(*group), device(interface));
        Ok(with_cx(|cx| socket.join(stack.host(), cx, group, device))?)
    }

    /// Leaves an IPv6 multicast group (`IPV6_LEAVE_GROUP`).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        let (group, device) = (IpAddr::V6(*group), device(interface));
        Ok(with_cx(|cx| socket.leave(stack.host(), cx, group, device))?)
    }

    /// Joins an IPv4 group for the datagrams of one source alone (`IP_ADD_SOURCE_MEMBERSHIP`);
    /// further calls add sources. `interface` is as for
    /// [`join_multicast_v4`](Self::join_multicast_v4).
    ///
    /// # Errors
    /// As [`join_multicast_v4`](Self::join_multicast_v4); `EADDRNOTAVAIL` for a source that was
    /// added before, `EINVAL` if the group was joined for all sources and some are blocked,
    /// `ENOBUFS` above `net.ipv4.igmp_max_msf` sources.
    pub fn join_ssm_v4(
        &self,
        source: &Ipv4Addr,
        group: &Ipv4Addr,
        interface: &Ipv4Addr,
    ) -> io::Result<()> {
        self.change_source_v4(SourceChange::Join, source, group, interface)
    }

    /// Ends the reception from a source of an IPv4 group (`IP_DROP_SOURCE_MEMBERSHIP`), and with
    /// the last source the membership.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for another source, `EINVAL` without such a membership.
    pub fn leave_ssm_v4(
        &self,
        source: &Ipv4Addr,
        group: &Ipv4Addr,
        interface: &Ipv4Addr,
    ) -> io::Result<()> {
        self.change_source_v4(SourceChange::Leave, source, group, interface)
    }

    /// Blocks a source of an IPv4 group that the socket has joined (`IP_BLOCK_SOURCE`).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for a source that is blocked already, `EINVAL` without a membership for all
    /// sources, `ENOBUFS` above `net.ipv4.igmp_max_msf` sources.
    pub fn block_source_v4(
        &self,
        source: &Ipv4Addr,
        group: &Ipv4Addr,
        interface: &Ipv4Addr,
    ) -> io::Result<()> {
        self.change_source_v4(SourceChange::Block, source, group, interface)
    }

    /// Receives from a blocked source of an IPv4 group again (`IP_UNBLOCK_SOURCE`).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for a source that is not blocked, `EINVAL` without a membership for all
    /// sources.
    pub fn unblock_source_v4(
        &self,
        source: &Ipv4Addr,
        group: &Ipv4Addr,
        interface: &Ipv4Addr,
    ) -> io::Result<()> {
        self.change_source_v4(SourceChange::Unblock, source, group, interface)
    }

    fn change_source_v4(
        &self,
        change: SourceChange,
        source: &Ipv4Addr,
        group: &Ipv4Addr,
        interface: &Ipv4Addr,
    ) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        let host = stack.host();
        let addresses = ((*group).into(), (*source).into());
        Ok(with_cx(|cx| {
            let device = host.multicast_device(cx, (*interface).into())?;
            socket.change_source(host, cx, change, addresses, device)
        })?)
    }

    /// Changes the source filter of an IPv6 group (`MCAST_JOIN_SOURCE_GROUP` and its siblings) on
    /// the device with the index `interface`, or for 0 on the device by which datagrams to the
    /// group leave.
    ///
    /// # Errors
    /// Those of the methods for IPv4, such as [`join_ssm_v4`](Self::join_ssm_v4); the limit is
    /// `net.ipv6.mld_max_msf`. `ENOPROTOOPT` on an IPv4 socket.
    pub fn change_source_v6(
        &self,
        change: SourceChange,
        source: &Ipv6Addr,
        group: &Ipv6Addr,
        interface: u32,
    ) -> io::Result<()> {
        let Shared { stack, socket, .. } = &*self.shared;
        let addresses = (IpAddr::V6(*group), IpAddr::V6(*source));
        let device = device(interface);
        Ok(with_cx(|cx| socket.change_source(stack.host(), cx, change, addresses, device))?)
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
        let Shared { stack, socket, .. } = &*self.shared;
        let value = value.into();
        Ok(with_cx(|cx| socket.set_option(stack.host(), cx, option, &value))?)
    }

    /// Returns a socket option. Reading [`SocketOption::Error`] also clears the error.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        let Shared { stack, socket, .. } = &*self.shared;
        Ok(with_cx(|cx| socket.option(stack.host(), cx, option))?)
    }

    /// Sets the maximum time that a receive waits (`SO_RCVTIMEO`); `None` is no limit.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = options::not_zero(timeout)?;
        self.set_option(SocketOption::ReceiveTimeout, OptionValue::Time(timeout))
    }

    /// Sets the maximum time that a send waits (`SO_SNDTIMEO`); `None` is no limit.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = options::not_zero(timeout)?;
        self.set_option(SocketOption::SendTimeout, OptionValue::Time(timeout))
    }

    /// Returns the maximum time that a receive waits.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.socket.receive_timeout())
    }

    /// Returns the maximum time that a send waits.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.socket.send_timeout())
    }
}

/// Returns the device with this interface index; 0 means any.
fn device(interface: u32) -> Option<DeviceIndex> {
    (interface != 0).then_some(DeviceIndex(interface))
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.socket.watchers().clear();
        with_cx(|cx| self.socket.close(self.stack.host(), cx));
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.local_addr().ok()).finish_non_exhaustive()
    }
}
