//! Socket options: one table defines each option's name, Linux's numbers, the form of its value,
//! and its access.
//!
//! Above: `setsockopt` and `getsockopt` of the socket calls. Linux: net/core/sock.c
//! (`sk_setsockopt`), net/ipv4/tcp.c (`do_tcp_setsockopt`), net/ipv4/ip_sockglue.c; numbers in
//! include/uapi.
//!
//! `value.rs` converts between bytes and an [`OptionValue`], with exactly Linux's lengths. A socket
//! without a connection (fresh, bound or listening) keeps its options in a [`SocketSettings`],
//! which a listener copies to every connection it makes; a connection keeps them in its `Tcb` and
//! its socket. Both validate values by the same rules (`check.rs`): Linux's bounds, clamping and
//! errors.
//!
//! Options that Linux does not have belong to the level [`SOL_QUIETLINE`], which no Linux protocol
//! uses.
//!
//! To add an option, add a row here and a match arm in `settings.rs` and `stream.rs`. A test checks
//! both for every row.
//!
//! Not here: the effect of an option (`tcp::Tcb`'s setters, `socket`).

use core::time::Duration;

mod check;
mod memory_info;
mod settings;
mod shared;
mod stream;
mod tcp_info;
mod value;

#[cfg(test)]
mod tests;

pub use memory_info::MemoryInfo;
pub use settings::SocketSettings;
pub(super) use shared::SharedSettings;
pub use value::OptionValue;

/// `SOL_SOCKET` of the generic table (x86-64, AArch64, RISC-V).
pub const SOL_SOCKET: i32 = 1;
/// `IPPROTO_IP`.
pub const IPPROTO_IP: i32 = 0;
/// `IPPROTO_TCP`.
pub const IPPROTO_TCP: i32 = 6;

/// Level of the options that Linux does not have: "QL".
pub const SOL_QUIETLINE: i32 = 0x514c;

/// Form of an option's value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An `int`.
    Int,
    /// An `int`, or a single byte: options of IP.
    ByteOrInt,
    /// An unsigned `int`, or an unsigned `long` if the buffer is large enough.
    IntOrLong,
    /// `struct linger`: two `int`s.
    Linger,
    /// `struct timeval` with 64-bit fields.
    Time,
    /// A name of at most 15 bytes.
    Name,
    /// Bytes of any length.
    Bytes,
}

/// Calls that an option supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `getsockopt` only.
    Read,
    /// `setsockopt` only.
    Write,
    /// Both.
    Both,
}

macro_rules! options {
    ($($(#[doc = $doc:literal])* $option:ident = $level:ident $number:literal, $name:literal, $form:ident, $access:ident;)*) => {
        /// A socket option of Linux or of [`SOL_QUIETLINE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum SocketOption {
            $($(#[doc = $doc])* $option,)*
        }

        impl SocketOption {
            /// Every option.
            pub const ALL: &[Self] = &[$(Self::$option),*];

            /// Returns the level: [`SOL_SOCKET`], [`IPPROTO_IP`], [`IPPROTO_TCP`] or
            /// [`SOL_QUIETLINE`].
            #[must_use]
            pub const fn level(self) -> i32 {
                match self { $(Self::$option => $level,)* }
            }

            /// Returns the number within the level.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self { $(Self::$option => $number,)* }
            }

            /// Returns the name in Linux's headers, or one that starts with `QUIETLINE_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$option => $name,)* }
            }

            /// Returns the form of the value in memory.
            #[must_use]
            pub const fn form(self) -> Form {
                match self { $(Self::$option => Form::$form,)* }
            }

            /// Returns whether the option can be read, written or both.
            #[must_use]
            pub const fn access(self) -> Access {
                match self { $(Self::$option => Access::$access,)* }
            }
        }
    };
}

options! {
    /// Allows other sockets to bind the address while its connections are in TIME-WAIT.
    ReuseAddress = SOL_SOCKET 2, "SO_REUSEADDR", Int, Both;
    /// Socket type: 1, a stream.
    Type = SOL_SOCKET 3, "SO_TYPE", Int, Read;
    /// Pending error; reading clears it.
    Error = SOL_SOCKET 4, "SO_ERROR", Int, Read;
    /// Size of the send buffer in bytes. Linux stores twice the given value, at most twice
    /// `net.core.wmem_max`.
    SendBuffer = SOL_SOCKET 7, "SO_SNDBUF", Int, Both;
    /// Size of the receive buffer in bytes. Linux stores twice the given value, at most twice
    /// `net.core.rmem_max`.
    ReceiveBuffer = SOL_SOCKET 8, "SO_RCVBUF", Int, Both;
    /// Sends probes on an idle connection.
    KeepAlive = SOL_SOCKET 9, "SO_KEEPALIVE", Int, Both;
    /// Leaves urgent data in the stream.
    OobInline = SOL_SOCKET 10, "SO_OOBINLINE", Int, Both;
    /// Priority of transmitted packets, 0 to 6: queueing disciplines with several bands select the
    /// band by it. `IP_TOS` sets it too.
    Priority = SOL_SOCKET 12, "SO_PRIORITY", Int, Both;
    /// Treatment of unsent data on close.
    Linger = SOL_SOCKET 13, "SO_LINGER", Linger, Both;
    /// Allows several sockets to listen on one address and share its connections.
    ReusePort = SOL_SOCKET 15, "SO_REUSEPORT", Int, Both;
    /// Number of readable bytes that makes a socket readable.
    ReceiveLowWater = SOL_SOCKET 18, "SO_RCVLOWAT", Int, Both;
    /// Number of free bytes that makes a socket writable: always 1.
    SendLowWater = SOL_SOCKET 19, "SO_SNDLOWAT", Int, Read;
    /// Maximum time that a receive call waits; zero is unlimited.
    ReceiveTimeout = SOL_SOCKET 20, "SO_RCVTIMEO", Time, Both;
    /// Maximum time that a send call waits; zero is unlimited.
    SendTimeout = SOL_SOCKET 21, "SO_SNDTIMEO", Time, Both;
    /// Whether the socket listens.
    AcceptConnections = SOL_SOCKET 30, "SO_ACCEPTCONN", Int, Read;
    /// `SO_SNDBUF` without the bound of the sysctl.
    SendBufferForce = SOL_SOCKET 32, "SO_SNDBUFFORCE", Int, Write;
    /// `SO_RCVBUF` without the bound of the sysctl.
    ReceiveBufferForce = SOL_SOCKET 33, "SO_RCVBUFFORCE", Int, Write;
    /// Protocol: 6, TCP.
    Protocol = SOL_SOCKET 38, "SO_PROTOCOL", Int, Read;
    /// Address family: 2 for IPv4, 10 for IPv6.
    Domain = SOL_SOCKET 39, "SO_DOMAIN", Int, Read;
    /// Time that a read polls its core before it sleeps, in microseconds.
    BusyPoll = SOL_SOCKET 46, "SO_BUSY_POLL", Int, Both;
    /// Maximum pacing rate in bytes per second; all ones, in 32 or 64 bits, is no limit.
    MaxPacingRate = SOL_SOCKET 47, "SO_MAX_PACING_RATE", IntOrLong, Both;
    /// Core that receives the connection's segments. For listeners that share a port: the core
    /// whose connections the listener prefers.
    IncomingCpu = SOL_SOCKET 49, "SO_INCOMING_CPU", Int, Both;
    /// Use of the socket's memory, as nine numbers.
    MemoryInfo = SOL_SOCKET 55, "SO_MEMINFO", Bytes, Read;
    /// Tells that a thread that stops polling will return, so that its queues stay masked.
    PreferBusyPoll = SOL_SOCKET 69, "SO_PREFER_BUSY_POLL", Int, Both;
    /// Maximum frames per cycle of busy polling.
    BusyPollBudget = SOL_SOCKET 70, "SO_BUSY_POLL_BUDGET", Int, Write;

    /// Differentiated services field of transmitted packets (RFC 2474 §3); TCP controls the ECN
    /// bits.
    TypeOfService = IPPROTO_IP 1, "IP_TOS", ByteOrInt, Both;
    /// TTL of transmitted packets; -1 selects `net.ipv4.ip_default_ttl`.
    TimeToLive = IPPROTO_IP 2, "IP_TTL", ByteOrInt, Both;
    /// Path MTU discovery, `IP_PMTUDISC_DONT` to `IP_PMTUDISC_OMIT`.
    MtuDiscover = IPPROTO_IP 10, "IP_MTU_DISCOVER", ByteOrInt, Both;
    /// Reports ICMP errors of an open connection at once, instead of as the reason when a timer
    /// expires.
    ReceiveError = IPPROTO_IP 11, "IP_RECVERR", ByteOrInt, Both;
    /// Path MTU of a connection, in bytes.
    PathMtu = IPPROTO_IP 14, "IP_MTU", Int, Read;

    /// Sends small segments at once (disables the Nagle algorithm).
    NoDelay = IPPROTO_TCP 1, "TCP_NODELAY", Int, Both;
    /// Largest payload of a segment.
    MaxSegment = IPPROTO_TCP 2, "TCP_MAXSEG", Int, Both;
    /// Sends only full segments.
    Cork = IPPROTO_TCP 3, "TCP_CORK", Int, Both;
    /// Idle time before the first keepalive probe, in seconds.
    KeepIdle = IPPROTO_TCP 4, "TCP_KEEPIDLE", Int, Both;
    /// Interval between keepalive probes, in seconds.
    KeepInterval = IPPROTO_TCP 5, "TCP_KEEPINTVL", Int, Both;
    /// Number of unanswered probes after which the connection is aborted.
    KeepCount = IPPROTO_TCP 6, "TCP_KEEPCNT", Int, Both;
    /// Number of SYN retransmissions, in addition to the linear ones.
    SynCount = IPPROTO_TCP 7, "TCP_SYNCNT", Int, Both;
    /// Time that a closed socket waits in FIN-WAIT-2, in seconds.
    Linger2 = IPPROTO_TCP 8, "TCP_LINGER2", Int, Both;
    /// Time that handshakes of a listener wait for data, in seconds.
    DeferAccept = IPPROTO_TCP 9, "TCP_DEFER_ACCEPT", Int, Both;
    /// Largest window to advertise, in bytes.
    WindowClamp = IPPROTO_TCP 10, "TCP_WINDOW_CLAMP", Int, Both;
    /// State and statistics of the connection, as `struct tcp_info`.
    Info = IPPROTO_TCP 11, "TCP_INFO", Bytes, Read;
    /// Sends ACKs at once.
    QuickAck = IPPROTO_TCP 12, "TCP_QUICKACK", Int, Both;
    /// Name of the congestion control algorithm.
    Congestion = IPPROTO_TCP 13, "TCP_CONGESTION", Name, Both;
    /// Keeps the first retransmission timeouts linear for a stream with few segments in flight.
    ThinLinearTimeouts = IPPROTO_TCP 16, "TCP_THIN_LINEAR_TIMEOUTS", Int, Both;
    /// Time that sent data may stay unacknowledged, in milliseconds (RFC 5482).
    UserTimeout = IPPROTO_TCP 18, "TCP_USER_TIMEOUT", Int, Both;
    /// Number of connections of a listener that may deliver data before their handshake has
    /// completed (RFC 7413).
    FastOpen = IPPROTO_TCP 23, "TCP_FASTOPEN", Int, Both;
    /// Limit of unsent bytes: the socket is writable only below it.
    NotSentLowWater = IPPROTO_TCP 25, "TCP_NOTSENT_LOWAT", Int, Both;
    /// Sends the first write with the SYN if a cookie of the peer is known (RFC 7413).
    FastOpenConnect = IPPROTO_TCP 30, "TCP_FASTOPEN_CONNECT", Int, Both;
    /// Key of a listener's cookies, or the key and the previous one: 16 or 32 bytes.
    FastOpenKey = IPPROTO_TCP 33, "TCP_FASTOPEN_KEY", Bytes, Both;
    /// Sends data with the SYN, or accepts it, without a cookie.
    FastOpenNoCookie = IPPROTO_TCP 34, "TCP_FASTOPEN_NO_COOKIE", Int, Both;
    /// Maximum retransmission timeout, in milliseconds.
    RtoMax = IPPROTO_TCP 44, "TCP_RTO_MAX_MS", Int, Both;

    /// Maximum connections of one source address with a listener, including half-open ones; 0 is no
    /// limit.
    MaxPerSource = SOL_QUIETLINE 1, "QUIETLINE_MAX_PER_SOURCE", Int, Both;
    /// Time without progress after which a connection is reset, in seconds; 0 is no limit, and -1
    /// selects `net.quietline.tcp_idle_timeout`.
    IdleTimeout = SOL_QUIETLINE 2, "QUIETLINE_IDLE_TIMEOUT", Int, Both;
}

impl SocketOption {
    /// Returns the option of a level and number; `None` stands for `ENOPROTOOPT`. The numbers that
    /// C libraries use for 64-bit times (`SO_RCVTIMEO_NEW`, `SO_SNDTIMEO_NEW`) select the same
    /// options.
    #[must_use]
    pub fn from_number(level: i32, number: i32) -> Option<Self> {
        match (level, number) {
            (SOL_SOCKET, 66) => return Some(Self::ReceiveTimeout),
            (SOL_SOCKET, 67) => return Some(Self::SendTimeout),
            _ => {}
        }
        Self::ALL
            .iter()
            .copied()
            .find(|option| (option.level(), option.number()) == (level, number))
    }

    /// Returns the unit of an option that is a time stored as an `int`, for which a [`Duration`]
    /// may be given.
    const fn unit(self) -> Option<Duration> {
        match self {
            Self::KeepIdle
            | Self::KeepInterval
            | Self::Linger2
            | Self::DeferAccept
            | Self::IdleTimeout => Some(Duration::from_secs(1)),
            Self::UserTimeout | Self::RtoMax => Some(Duration::from_millis(1)),
            Self::BusyPoll => Some(Duration::from_micros(1)),
            _ => None,
        }
    }

    /// Returns the option with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|option| option.name() == name)
    }
}
