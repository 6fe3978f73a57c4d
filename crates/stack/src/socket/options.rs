//! Socket options: one table defines them.
//!
//! Above: `setsockopt` and `getsockopt` of the socket calls. Linux: net/core/sock.c
//! (`sk_setsockopt`), net/ipv4/tcp.c (`do_tcp_setsockopt`), net/ipv4/ip_sockglue.c; numbers in
//! include/uapi.
//!
//! `table.rs` has one row for each option: its name, level, number and form, the socket states that
//! allow it, the check of its value, and the places that keep it. `value.rs` turns bytes into an
//! [`OptionValue`] and back, with Linux's lengths. A stream socket without a connection (fresh,
//! bound or listening) and a datagram socket keep their options in a [`SocketSettings`], which a
//! listener copies to each of its connections; a connection keeps them in its `Tcb` and its socket.
//! Both check values by the same functions (`check.rs`): Linux's bounds, clamping and errors.
//!
//! Options that Linux does not have belong to the level [`SOL_QUIETLINE`], which no protocol of
//! Linux uses.
//!
//! To add an option, add its row, and the field that stores it.
//!
//! Not here: the effect of an option (the setters of `tcp::Tcb`, `socket`).

use core::time::Duration;
use std::net::SocketAddr;

mod check;
mod expand;
mod memory_info;
mod settings;
mod shared;
mod stream;
mod table;
mod tcp_info;
mod value;

#[cfg(test)]
mod tests;

pub use memory_info::MemoryInfo;
pub use settings::SocketSettings;
pub(super) use settings::VersionSettings;
pub(super) use shared::SharedSettings;
pub use table::SocketOption;
pub use value::OptionValue;

use crate::base::errno::Errno;

/// `SOL_SOCKET` of the generic table (x86-64, AArch64, RISC-V).
pub const SOL_SOCKET: i32 = 1;
/// `IPPROTO_IP`.
pub const IPPROTO_IP: i32 = 0;
/// `IPPROTO_TCP`.
pub const IPPROTO_TCP: i32 = 6;
/// `IPPROTO_IPV6`.
pub const IPPROTO_IPV6: i32 = 41;

/// `IPPROTO_UDP`, also `SOL_UDP`.
pub const IPPROTO_UDP: i32 = 17;

/// Value of `SO_DOMAIN`: `AF_INET`.
pub(super) const AF_INET: i32 = 2;
/// Value of `SO_DOMAIN`: `AF_INET6`.
pub(super) const AF_INET6: i32 = 10;

/// Level of options that Linux does not have: "QL".
pub const SOL_QUIETLINE: i32 = 0x514c;

/// Form of an option's value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An `int`.
    Int,
    /// An `int`, or a single byte: options of IP.
    ByteOrInt,
    /// An unsigned `int`, or an unsigned `long` if the buffer has space for one.
    IntOrLong,
    /// `struct linger`: two `int`s.
    Linger,
    /// `struct timeval` with 64-bit fields.
    Time,
    /// A number of bytes as an `int`. A 64-bit number becomes the largest `int`.
    Size,
    /// An `int` whose 32 bits are an unsigned number.
    Unsigned,
    /// A number of seconds as an `int`.
    Seconds,
    /// A number of milliseconds as an `int`.
    Milliseconds,
    /// A number of microseconds as an `int`.
    Microseconds,
    /// A name of at most 15 bytes.
    Name,
    /// Any number of bytes.
    Bytes,
}

impl Form {
    /// Returns the unit of a time that is an `int`, for which a [`Duration`] may also be given;
    /// `None` for all other forms.
    const fn unit(self) -> Option<Duration> {
        match self {
            Self::Seconds => Some(Duration::from_secs(1)),
            Self::Milliseconds => Some(Duration::from_millis(1)),
            Self::Microseconds => Some(Duration::from_micros(1)),
            _ => None,
        }
    }
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

/// Returns the value of `SO_DOMAIN` of a socket whose local address is shown as `local`. A socket
/// for both IP versions shows IPv6 addresses only.
#[must_use]
pub const fn domain_of(local: SocketAddr) -> OptionValue {
    OptionValue::Int(if local.is_ipv4() { AF_INET } else { AF_INET6 })
}

/// States of a socket that differ in the options they allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// Neither connected nor listening, bound or not.
    Fresh,
    /// A listener.
    Listening,
    /// A connection, from its SYN on.
    Connected,
    /// A datagram socket, connected or not.
    Datagram,
}

impl SocketState {
    /// Returns the value of `SO_TYPE`: `SOCK_STREAM` or `SOCK_DGRAM`.
    const fn kind(self) -> i32 {
        if matches!(self, Self::Datagram) { 2 } else { 1 }
    }

    /// Returns the value of `SO_PROTOCOL`.
    const fn protocol(self) -> i32 {
        if matches!(self, Self::Datagram) { IPPROTO_UDP } else { IPPROTO_TCP }
    }

    /// Returns the state in `struct tcp_info` of a socket without a connection.
    const fn of_tcp(self) -> tcp::State {
        match self {
            Self::Listening => tcp::State::Listen,
            _ => tcp::State::Close,
        }
    }
}

impl SocketOption {
    /// Returns the option of a level and number; `None` if there is none (`ENOPROTOOPT`).
    /// `SO_RCVTIMEO_NEW` and `SO_SNDTIMEO_NEW`, which C libraries use for 64-bit times, select the
    /// same options as the old numbers.
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

    /// Fails with `ENOPROTOOPT` if sockets of the family do not have the option, as setsockopt(2):
    /// an IPv4 socket has no options of IPv6.
    ///
    /// # Errors
    /// `ENOPROTOOPT`.
    pub const fn check_set(self, is_v6: bool) -> Result<(), Errno> {
        if is_v6 || self.level() != IPPROTO_IPV6 { Ok(()) } else { Err(Errno::ENOPROTOOPT) }
    }

    /// As [`check_set`](Self::check_set), for getsockopt(2), which has another error in Linux.
    ///
    /// # Errors
    /// `EOPNOTSUPP`.
    pub const fn check_get(self, is_v6: bool) -> Result<(), Errno> {
        if is_v6 || self.level() != IPPROTO_IPV6 { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    /// Fails with `EINVAL` unless the option can be set in `state`.
    fn check_state(self, state: SocketState) -> Result<(), Errno> {
        if self.settable_in().contains(&state) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Returns the option with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|option| option.name() == name)
    }
}
