//! Errors of the engine: what ended a connection, why a call moved no bytes, what ICMP reported.
//!
//! Above: the socket layer maps each error to its errno.

/// What ended a connection or an attempt. The socket layer maps each to its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpError {
    /// ECONNREFUSED: a reset answered our SYN.
    ConnectionRefused,
    /// ECONNRESET: a reset ended the connection.
    ConnectionReset,
    /// EPIPE: a reset came after the peer had closed its side.
    BrokenPipe,
    /// ETIMEDOUT: R2, keepalive or the user timeout gave up.
    TimedOut,
    /// EHOSTUNREACH: the network said so.
    HostUnreachable,
    /// ENETUNREACH: the network said so.
    NetworkUnreachable,
    /// ENOPROTOOPT: the peer's host does not speak TCP.
    ProtocolUnreachable,
    /// EHOSTDOWN: the last router does not know the host.
    HostDown,
    /// ENONET: a router says that our host is isolated.
    NotOnNetwork,
    /// EOPNOTSUPP: a source route failed.
    NotSupported,
    /// EPROTO: somebody on the way did not understand our header.
    Protocol,
    /// ECONNABORTED: the stack ended it.
    Aborted,
    /// ENETDOWN: the host has lost the local address together with the device that had it.
    NetworkDown,
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// EAGAIN: the send buffer is full, or the handshake is not done.
    WouldBlock,
    /// EPIPE: this side is closed for writing.
    BrokenPipe,
    /// ENOBUFS: no packet memory.
    NoMemory,
    /// The connection ended; reported once.
    Connection(TcpError),
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// EAGAIN: nothing has come yet.
    WouldBlock,
    /// ENOTCONN: there is no connection.
    NotConnected,
    /// EINVAL: no urgent data, or none that is not read in line.
    NoUrgentData,
    /// The connection ended; reported once, after everything received was read.
    Connection(TcpError),
}

/// What an ICMP error says, independent of the IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Fragmentation needed, or packet too big: the path takes IP packets of at most this many bytes.
    PacketTooBig {
        /// Next-hop MTU, as reported or guessed; the network layer bounds it from below.
        mtu: u32,
    },
    /// Network or host unreachable by the plain codes 0 and 1: the path is broken at present (RFC 6069 §4.1).
    PathBroken(TcpError),
    /// Any other destination unreachable, time exceeded, parameter problem.
    Unreachable(TcpError),
    /// Whatever says nothing that TCP may act upon.
    Other,
}
