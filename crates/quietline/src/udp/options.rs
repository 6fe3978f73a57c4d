//! Options of a datagram socket as typed methods, as in `std::net` and similar crates. Each sets or
//! reads one [`SocketOption`] by the rules of [`UdpSocket::set_option`].

use std::{io, net::Ipv4Addr, time::Duration};

use stack::{Errno, socket::options::SocketOption};

use super::UdpSocket;

impl UdpSocket {
    fn number(&self, option: SocketOption) -> io::Result<u32> {
        let number = self.option(option)?.as_int().ok_or(Errno::EINVAL)?;
        Ok(number.cast_unsigned())
    }

    fn set_number(&self, option: SocketOption, number: u32) -> io::Result<()> {
        self.set_option(option, i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// Allows sending to broadcast addresses (`SO_BROADCAST`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.set_option(SocketOption::Broadcast, broadcast)
    }

    /// Returns whether the socket may send to broadcast addresses.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::Broadcast)? != 0)
    }

    /// Sets the TTL of sent IPv4 datagrams (`IP_TTL`), 1 to 255. Default:
    /// `net.ipv4.ip_default_ttl`.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_number(SocketOption::TimeToLive, ttl)
    }

    /// Returns the TTL of sent IPv4 datagrams.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn ttl(&self) -> io::Result<u32> {
        self.number(SocketOption::TimeToLive)
    }

    /// Sets the type of service of sent IPv4 datagrams, with the ECN bits (`IP_TOS`).
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.set_option(SocketOption::TypeOfService, i32::from(tos))
    }

    /// Returns the type of service of sent IPv4 datagrams.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn tos(&self) -> io::Result<u8> {
        Ok(u8::try_from(self.number(SocketOption::TypeOfService)?).unwrap_or(u8::MAX))
    }

    /// Sets the hop limit of sent IPv6 datagrams (`IPV6_UNICAST_HOPS`), 0 to 255.
    ///
    /// # Errors
    /// `EINVAL` for any other number, `ENOPROTOOPT` on an IPv4 socket.
    pub fn set_unicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.set_number(SocketOption::UnicastHops, hops)
    }

    /// Returns the hop limit of sent IPv6 datagrams.
    ///
    /// # Errors
    /// `ENOPROTOOPT` on an IPv4 socket.
    pub fn unicast_hops_v6(&self) -> io::Result<u32> {
        self.number(SocketOption::UnicastHops)
    }

    /// Sets the traffic class of sent IPv6 datagrams, with the ECN bits (`IPV6_TCLASS`).
    ///
    /// # Errors
    /// `ENOPROTOOPT` on an IPv4 socket.
    pub fn set_tclass_v6(&self, class: u8) -> io::Result<()> {
        self.set_option(SocketOption::TrafficClass, i32::from(class))
    }

    /// Returns whether the socket has IPv6 peers only (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// `ENOPROTOOPT` on an IPv4 socket.
    pub fn only_v6(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::V6Only)? != 0)
    }

    /// Sets the device and the source address of datagrams to IPv4 groups (`IP_MULTICAST_IF`):
    /// those of the device with the address `interface`. 0.0.0.0 restores the choice by the routes.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` without such a device.
    pub fn set_multicast_if_v4(&self, interface: &Ipv4Addr) -> io::Result<()> {
        self.set_option(SocketOption::MulticastInterface, &interface.octets()[..])
    }

    /// Sets the device of datagrams to IPv6 groups (`IPV6_MULTICAST_IF`) by its index; 0 restores
    /// the choice by the routes.
    ///
    /// # Errors
    /// `ENODEV` without such a device, `ENOPROTOOPT` on an IPv4 socket.
    pub fn set_multicast_if_v6(&self, interface: u32) -> io::Result<()> {
        self.set_number(SocketOption::MulticastInterfaceV6, interface)
    }

    /// Sets the hop limit of datagrams to IPv6 groups (`IPV6_MULTICAST_HOPS`), 0 to 255. Default 1.
    ///
    /// # Errors
    /// `EINVAL` for any other number, `ENOPROTOOPT` on an IPv4 socket.
    pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.set_number(SocketOption::MulticastHopsV6, hops)
    }

    /// Sets whether datagrams to IPv6 groups also reach the members on this host
    /// (`IPV6_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// `ENOPROTOOPT` on an IPv4 socket.
    pub fn set_multicast_loop_v6(&self, looped: bool) -> io::Result<()> {
        self.set_option(SocketOption::MulticastLoopV6, looped)
    }

    /// Returns whether datagrams to IPv6 groups also reach the members on this host.
    ///
    /// # Errors
    /// `ENOPROTOOPT` on an IPv4 socket.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::MulticastLoopV6)? != 0)
    }

    /// Sets the TTL of datagrams to groups (`IP_MULTICAST_TTL`), 0 to 255. Default 1.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.set_number(SocketOption::MulticastTtl, ttl)
    }

    /// Returns the TTL of datagrams to groups.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.number(SocketOption::MulticastTtl)
    }

    /// Sets whether datagrams to groups also reach the members on this host (`IP_MULTICAST_LOOP`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_multicast_loop_v4(&self, looped: bool) -> io::Result<()> {
        self.set_option(SocketOption::MulticastLoop, looped)
    }

    /// Returns whether datagrams to groups also reach the members on this host.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::MulticastLoop)? != 0)
    }

    /// Sets the payload bytes of the datagrams into which every send is cut (`UDP_SEGMENT`); 0
    /// sends one datagram.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn set_segment(&self, bytes: u16) -> io::Result<()> {
        self.set_option(SocketOption::Segment, i32::from(bytes))
    }

    /// Sets whether a receive returns several waiting datagrams of one size at once (`UDP_GRO`);
    /// [`Received::segment`](crate::Received::segment) is that size.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn set_gro(&self, joins: bool) -> io::Result<()> {
        self.set_option(SocketOption::ReceiveOffload, joins)
    }

    /// Sets the size of the receive buffer (`SO_RCVBUF`), in bytes up to `net.core.rmem_max`. As in
    /// Linux, the stack doubles the number for its overhead.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn set_receive_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::ReceiveBuffer, bytes)
    }

    /// Returns the size of the receive buffer, in bytes of memory.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn receive_buffer_size(&self) -> io::Result<u32> {
        self.number(SocketOption::ReceiveBuffer)
    }

    /// Sets the size of the send buffer (`SO_SNDBUF`), in bytes up to `net.core.wmem_max`. As in
    /// Linux, the stack doubles the number for its overhead.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn set_send_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::SendBuffer, bytes)
    }

    /// Returns the size of the send buffer, in bytes of memory.
    ///
    /// # Errors
    /// None for a datagram socket.
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        self.number(SocketOption::SendBuffer)
    }
}

/// Refuses a timeout of zero, as `std::net` does.
pub(super) fn not_zero(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    match timeout {
        Some(Duration::ZERO) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "the timeout is zero"))
        }
        timeout => Ok(timeout),
    }
}
