//! Errors of the engine: why a connection ended, why a call moved no bytes, and the ICMP errors.
//!
//! Above: the socket layer maps each error to its errno.

/// The reason why a connection or an attempt to connect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpError {
    /// ECONNREFUSED: a reset answered our SYN, or an ICMP error reported that the port is
    /// unreachable.
    ConnectionRefused,
    /// ECONNRESET: a reset ended the connection, or `shutdown` ended the attempt to connect.
    ConnectionReset,
    /// EPIPE: a reset came after the peer had closed its side.
    BrokenPipe,
    /// ETIMEDOUT: the R2 limit of RFC 9293 §3.8.3, keepalive, the user timeout, the idle timeout or
    /// the limit of SYN retransmissions was reached.
    TimedOut,
    /// EHOSTUNREACH: an ICMP error reported that packets do not reach the peer's host.
    HostUnreachable,
    /// ENETUNREACH: an ICMP error reported that the peer's network is unreachable.
    NetworkUnreachable,
    /// EACCES: an ICMPv6 error reported that a filter on the path forbids the packets.
    Prohibited,
    /// ENOPROTOOPT: an ICMP error reported that the peer's host does not implement TCP.
    ProtocolUnreachable,
    /// EHOSTDOWN: an ICMP error reported that the peer's host is unknown.
    HostDown,
    /// ENONET: an ICMP error reported that our host is isolated.
    NotOnNetwork,
    /// EOPNOTSUPP: a source route failed.
    NotSupported,
    /// EPROTO: a host on the path reported a problem with our header.
    Protocol,
    /// ECONNABORTED: the stack ended the connection.
    Aborted,
    /// ENETDOWN: the host has lost the local address together with the device that had it.
    NetworkDown,
}

/// Reason why a call sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// EAGAIN: the send buffer is full, memory is scarce, or the handshake is not done.
    WouldBlock,
    /// EPIPE: this side is closed for writing.
    BrokenPipe,
    /// ENOBUFS: no packet memory.
    NoMemory,
    /// The connection ended; reported once.
    Connection(TcpError),
}

/// Reason why a call received nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// EAGAIN: no data has arrived yet.
    WouldBlock,
    /// ENOTCONN: there is no connection.
    NotConnected,
    /// EINVAL: there is no urgent data, it was already read, or `SO_OOBINLINE` leaves the urgent
    /// byte in the stream.
    NoUrgentData,
    /// The connection ended; reported once, after all received data was read.
    Connection(TcpError),
}

/// The meaning of an ICMP error, independent of the IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Fragmentation needed, or packet too big: the path accepts IP packets of at most `mtu` bytes.
    PacketTooBig {
        /// Next-hop MTU, as reported or guessed; the network layer enforces a lower bound.
        mtu: u32,
    },
    /// Network or host unreachable (codes 0 and 1; in ICMPv6 0, 2 and 3): the path is broken at
    /// present (RFC 6069 §4.1).
    PathBroken(TcpError),
    /// Any other destination unreachable, time exceeded, parameter problem.
    Unreachable(TcpError),
    /// An error that TCP does not act upon.
    Other,
}
