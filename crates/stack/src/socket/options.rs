//! Socket options: one table says the name, Linux's numbers, how the value is written, and who may touch it.
//!
//! Above: `setsockopt` and `getsockopt` of the socket calls. Linux: net/core/sock.c (`sk_setsockopt`), net/ipv4/tcp.c
//! (`do_tcp_setsockopt`), net/ipv4/ip_sockglue.c; numbers in include/uapi.
//!
//! `value.rs` turns bytes into an [`OptionValue`] and back, exactly as long as Linux wants them. A socket without
//! connection (fresh, bound or listening) keeps its options in a [`SocketSettings`], which a listener hands to every
//! connection it makes; a connection has them in its `Tcb` and its socket. Both check values by the same rules
//! (`check.rs`): Linux's bounds, clamping and errors.
//!
//! Options that Linux does not have are those of [`SOL_QUIETLINE`], a level that no protocol of Linux uses.
//!
//! To add an option: its row here, its arm in `settings.rs` and its arm in `stream.rs`. A test asks both for every row.
//!
//! Not here: what an option does (`tcp::Tcb`'s setters, `socket`).

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

/// The level of options that Linux does not have: "QL".
pub const SOL_QUIETLINE: i32 = 0x514c;

/// How an option's value looks in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An `int`.
    Int,
    /// An `int`, or a single byte: options of IP.
    ByteOrInt,
    /// An unsigned `int`, or an unsigned `long` where there is room for one.
    IntOrLong,
    /// `struct linger`: two `int`s.
    Linger,
    /// `struct timeval` with 64-bit fields.
    Time,
    /// A name of at most 15 bytes.
    Name,
    /// As many bytes as there are.
    Bytes,
}

/// Which of the two calls an option has.
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
        /// A socket option: of Linux, or of [`SOL_QUIETLINE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum SocketOption {
            $($(#[doc = $doc])* $option,)*
        }

        impl SocketOption {
            /// Every option there is.
            pub const ALL: &[Self] = &[$(Self::$option),*];

            /// The level: [`SOL_SOCKET`], [`IPPROTO_IP`], [`IPPROTO_TCP`] or [`SOL_QUIETLINE`].
            #[must_use]
            pub const fn level(self) -> i32 {
                match self { $(Self::$option => $level,)* }
            }

            /// The number within its level.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self { $(Self::$option => $number,)* }
            }

            /// The name in Linux's headers, or one that begins with `QUIETLINE_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$option => $name,)* }
            }

            /// How its value looks in memory.
            #[must_use]
            pub const fn form(self) -> Form {
                match self { $(Self::$option => Form::$form,)* }
            }

            /// Whether it can be read, written or both.
            #[must_use]
            pub const fn access(self) -> Access {
                match self { $(Self::$option => Access::$access,)* }
            }
        }
    };
}

options! {
    /// Others may bind the address while connections of it are in TIME-WAIT.
    ReuseAddress = SOL_SOCKET 2, "SO_REUSEADDR", Int, Both;
    /// The kind of socket: 1, a stream.
    Type = SOL_SOCKET 3, "SO_TYPE", Int, Read;
    /// The pending error, which reading takes.
    Error = SOL_SOCKET 4, "SO_ERROR", Int, Read;
    /// Send buffer, bytes. Linux keeps twice what it is given, at most twice `net.core.wmem_max`.
    SendBuffer = SOL_SOCKET 7, "SO_SNDBUF", Int, Both;
    /// Receive buffer, bytes. Linux keeps twice what it is given, at most twice `net.core.rmem_max`.
    ReceiveBuffer = SOL_SOCKET 8, "SO_RCVBUF", Int, Both;
    /// Probe an idle connection.
    KeepAlive = SOL_SOCKET 9, "SO_KEEPALIVE", Int, Both;
    /// Urgent data is read with the stream.
    OobInline = SOL_SOCKET 10, "SO_OOBINLINE", Int, Both;
    /// How urgent what is sent is, 0 to 6: disciplines of several bands choose by it. `IP_TOS` sets it, too.
    Priority = SOL_SOCKET 12, "SO_PRIORITY", Int, Both;
    /// What close does with unsent data.
    Linger = SOL_SOCKET 13, "SO_LINGER", Linger, Both;
    /// Several sockets may listen at one address, each in turn.
    ReusePort = SOL_SOCKET 15, "SO_REUSEPORT", Int, Both;
    /// How many bytes make a socket readable.
    ReceiveLowWater = SOL_SOCKET 18, "SO_RCVLOWAT", Int, Both;
    /// How many bytes make a socket writable: always 1.
    SendLowWater = SOL_SOCKET 19, "SO_SNDLOWAT", Int, Read;
    /// How long receiving waits; zero for ever.
    ReceiveTimeout = SOL_SOCKET 20, "SO_RCVTIMEO", Time, Both;
    /// How long sending waits; zero for ever.
    SendTimeout = SOL_SOCKET 21, "SO_SNDTIMEO", Time, Both;
    /// Whether the socket listens.
    AcceptConnections = SOL_SOCKET 30, "SO_ACCEPTCONN", Int, Read;
    /// `SO_SNDBUF` without the bound of the sysctl.
    SendBufferForce = SOL_SOCKET 32, "SO_SNDBUFFORCE", Int, Write;
    /// `SO_RCVBUF` without the bound of the sysctl.
    ReceiveBufferForce = SOL_SOCKET 33, "SO_RCVBUFFORCE", Int, Write;
    /// The protocol: 6, TCP.
    Protocol = SOL_SOCKET 38, "SO_PROTOCOL", Int, Read;
    /// The address family: 2 for IPv4, 10 for IPv6.
    Domain = SOL_SOCKET 39, "SO_DOMAIN", Int, Read;
    /// Microseconds that a read polls its core before it sleeps.
    BusyPoll = SOL_SOCKET 46, "SO_BUSY_POLL", Int, Both;
    /// Bytes per second that segments leave at, at most; all ones, in 32 bits or in 64, is no limit.
    MaxPacingRate = SOL_SOCKET 47, "SO_MAX_PACING_RATE", IntOrLong, Both;
    /// The core that receives the connection's segments; for listeners that share a port, whose connections they want.
    IncomingCpu = SOL_SOCKET 49, "SO_INCOMING_CPU", Int, Both;
    /// What the socket's memory is used for, nine numbers.
    MemoryInfo = SOL_SOCKET 55, "SO_MEMINFO", Bytes, Read;
    /// A thread that stops polling will be back.
    PreferBusyPoll = SOL_SOCKET 69, "SO_PREFER_BUSY_POLL", Int, Both;
    /// Frames that one cycle of polling takes.
    BusyPollBudget = SOL_SOCKET 70, "SO_BUSY_POLL_BUDGET", Int, Write;

    /// The differentiated services field of what is sent (RFC 2474 §3); the bits of ECN stay TCP's.
    TypeOfService = IPPROTO_IP 1, "IP_TOS", ByteOrInt, Both;
    /// The TTL of what is sent; -1 is `net.ipv4.ip_default_ttl`.
    TimeToLive = IPPROTO_IP 2, "IP_TTL", ByteOrInt, Both;
    /// Path MTU discovery, `IP_PMTUDISC_DONT` to `IP_PMTUDISC_OMIT`.
    MtuDiscover = IPPROTO_IP 10, "IP_MTU_DISCOVER", ByteOrInt, Both;
    /// What ICMP reports about an open connection is an error at once, instead of the reason when a timer gives up.
    ReceiveError = IPPROTO_IP 11, "IP_RECVERR", ByteOrInt, Both;
    /// The path MTU that a connection knows, bytes.
    PathMtu = IPPROTO_IP 14, "IP_MTU", Int, Read;

    /// Small segments leave at once.
    NoDelay = IPPROTO_TCP 1, "TCP_NODELAY", Int, Both;
    /// Largest payload of a segment.
    MaxSegment = IPPROTO_TCP 2, "TCP_MAXSEG", Int, Both;
    /// Only full segments leave.
    Cork = IPPROTO_TCP 3, "TCP_CORK", Int, Both;
    /// Idle seconds before the first keepalive probe.
    KeepIdle = IPPROTO_TCP 4, "TCP_KEEPIDLE", Int, Both;
    /// Seconds between keepalive probes.
    KeepInterval = IPPROTO_TCP 5, "TCP_KEEPINTVL", Int, Both;
    /// Unanswered probes after which the connection is dead.
    KeepCount = IPPROTO_TCP 6, "TCP_KEEPCNT", Int, Both;
    /// How often the SYN is repeated, besides the linear ones.
    SynCount = IPPROTO_TCP 7, "TCP_SYNCNT", Int, Both;
    /// Seconds that a closed socket waits in FIN-WAIT-2.
    Linger2 = IPPROTO_TCP 8, "TCP_LINGER2", Int, Both;
    /// Seconds that a listener's handshakes wait for data.
    DeferAccept = IPPROTO_TCP 9, "TCP_DEFER_ACCEPT", Int, Both;
    /// Largest window to announce, bytes.
    WindowClamp = IPPROTO_TCP 10, "TCP_WINDOW_CLAMP", Int, Both;
    /// Everything about the connection, as `struct tcp_info`.
    Info = IPPROTO_TCP 11, "TCP_INFO", Bytes, Read;
    /// ACKs leave at once.
    QuickAck = IPPROTO_TCP 12, "TCP_QUICKACK", Int, Both;
    /// Congestion control, by name.
    Congestion = IPPROTO_TCP 13, "TCP_CONGESTION", Name, Both;
    /// The first timeouts of a stream with few segments in flight do not double.
    ThinLinearTimeouts = IPPROTO_TCP 16, "TCP_THIN_LINEAR_TIMEOUTS", Int, Both;
    /// Milliseconds that sent data may stay unacknowledged (RFC 5482).
    UserTimeout = IPPROTO_TCP 18, "TCP_USER_TIMEOUT", Int, Both;
    /// Connections of a listener whose data is read before their handshake has ended (RFC 7413).
    FastOpen = IPPROTO_TCP 23, "TCP_FASTOPEN", Int, Both;
    /// Writable only below this many unsent bytes.
    NotSentLowWater = IPPROTO_TCP 25, "TCP_NOTSENT_LOWAT", Int, Both;
    /// The first write goes with the SYN if the peer's cookie is known (RFC 7413).
    FastOpenConnect = IPPROTO_TCP 30, "TCP_FASTOPEN_CONNECT", Int, Both;
    /// The key of a listener's cookies, or the key and the one before: 16 or 32 bytes.
    FastOpenKey = IPPROTO_TCP 33, "TCP_FASTOPEN_KEY", Bytes, Both;
    /// Data goes with the SYN, or is taken from it, without a cookie.
    FastOpenNoCookie = IPPROTO_TCP 34, "TCP_FASTOPEN_NO_COOKIE", Int, Both;
    /// The longest retransmission timeout, milliseconds.
    RtoMax = IPPROTO_TCP 44, "TCP_RTO_MAX_MS", Int, Both;

    /// Connections that one source address may have with a listener, half-open ones included; 0 is no limit.
    MaxPerSource = SOL_QUIETLINE 1, "QUIETLINE_MAX_PER_SOURCE", Int, Both;
    /// Seconds without progress after which a connection is reset; 0 is no limit, and -1 `net.quietline.tcp_idle_timeout`.
    IdleTimeout = SOL_QUIETLINE 2, "QUIETLINE_IDLE_TIMEOUT", Int, Both;
}

impl SocketOption {
    /// The option of a level and number; `None` is `ENOPROTOOPT`. The numbers that C libraries use for 64-bit
    /// times (`SO_RCVTIMEO_NEW`, `SO_SNDTIMEO_NEW`) mean the same options.
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

    /// The unit of an option that is a time in an `int`, where a [`Duration`] may be given for the number.
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

    /// The option of a [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|option| option.name() == name)
    }
}
