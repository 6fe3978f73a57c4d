//! Errors as applications see them.
//!
//! Below: the engine's errors (`tcp::TcpError`) and the stack's (a missing route, a full table)
//! become an [`Errno`] at the end of a socket call. Above: the POSIX layer returns the `Errno`
//! unchanged, the std-like API as `std::io::Error`. Linux: include/uapi/asm-generic/errno.h; the
//! texts are those of strerror(3).
//!
//! Not here: reasons of packet drops (`pkt::DropReason`), which no application sees.

use std::fmt;
use std::io;

use tcp::TcpError;

/// A Linux error number, as `errno` holds it after a failed call. Always greater than zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(i32);

/// One row per number: its name, its value on every architecture with the generic table (x86-64,
/// AArch64, RISC-V), and its text.
macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// Every number that the stack itself can return.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the symbolic name, `"ECONNREFUSED"`; `"E?"` for a number that is not in the
            /// table.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)*
                    _ => "E?",
                }
            }

            const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EINTR = 4, "Interrupted system call";
    EIO = 5, "Input/output error";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    EBUSY = 16, "Device or resource busy";
    EEXIST = 17, "File exists";
    ENODEV = 19, "No such device";
    EINVAL = 22, "Invalid argument";
    ENFILE = 23, "Too many open files in system";
    EMFILE = 24, "Too many open files";
    ENOTTY = 25, "Inappropriate ioctl for device";
    EPIPE = 32, "Broken pipe";
    EDOM = 33, "Numerical argument out of domain";
    ERANGE = 34, "Numerical result out of range";
    ENOSYS = 38, "Function not implemented";
    ENONET = 64, "Machine is not on the network";
    EPROTO = 71, "Protocol error";
    ENOTSOCK = 88, "Socket operation on non-socket";
    EDESTADDRREQ = 89, "Destination address required";
    EMSGSIZE = 90, "Message too long";
    EPROTOTYPE = 91, "Protocol wrong type for socket";
    ENOPROTOOPT = 92, "Protocol not available";
    EPROTONOSUPPORT = 93, "Protocol not supported";
    ESOCKTNOSUPPORT = 94, "Socket type not supported";
    EOPNOTSUPP = 95, "Operation not supported";
    EAFNOSUPPORT = 97, "Address family not supported by protocol";
    EADDRINUSE = 98, "Address already in use";
    EADDRNOTAVAIL = 99, "Cannot assign requested address";
    ENETDOWN = 100, "Network is down";
    ENETUNREACH = 101, "Network is unreachable";
    ENETRESET = 102, "Network dropped connection on reset";
    ECONNABORTED = 103, "Software caused connection abort";
    ECONNRESET = 104, "Connection reset by peer";
    ENOBUFS = 105, "No buffer space available";
    EISCONN = 106, "Transport endpoint is already connected";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ESHUTDOWN = 108, "Cannot send after transport endpoint shutdown";
    ETIMEDOUT = 110, "Connection timed out";
    ECONNREFUSED = 111, "Connection refused";
    EHOSTDOWN = 112, "Host is down";
    EHOSTUNREACH = 113, "No route to host";
    EALREADY = 114, "Operation already in progress";
    EINPROGRESS = 115, "Operation now in progress";
    ECANCELED = 125, "Operation canceled";
}

impl Errno {
    /// Linux uses one number for both names.
    pub const EWOULDBLOCK: Self = Self::EAGAIN;

    /// Largest number that Linux reserves for errors (MAX_ERRNO in include/linux/err.h).
    const MAX: i32 = 4095;

    /// Converts an error number of another origin (a device's system call); `None` outside
    /// 1..=4095.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Option<Self> {
        if raw >= 1 && raw <= Self::MAX { Some(Self(raw)) } else { None }
    }

    /// Returns the number, for `errno` and `SO_ERROR`.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    /// Prints the text of strerror(3).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "Unknown error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::error::Error for Errno {}

impl From<TcpError> for Errno {
    fn from(error: TcpError) -> Self {
        match error {
            TcpError::ConnectionRefused => Self::ECONNREFUSED,
            TcpError::ConnectionReset => Self::ECONNRESET,
            TcpError::BrokenPipe => Self::EPIPE,
            TcpError::TimedOut => Self::ETIMEDOUT,
            TcpError::HostUnreachable => Self::EHOSTUNREACH,
            TcpError::NetworkUnreachable => Self::ENETUNREACH,
            TcpError::Prohibited => Self::EACCES,
            TcpError::ProtocolUnreachable => Self::ENOPROTOOPT,
            TcpError::HostDown => Self::EHOSTDOWN,
            TcpError::NotOnNetwork => Self::ENONET,
            TcpError::NotSupported => Self::EOPNOTSUPP,
            TcpError::Protocol => Self::EPROTO,
            TcpError::Aborted => Self::ECONNABORTED,
            TcpError::NetworkDown => Self::ENETDOWN,
        }
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_match_the_number() {
        assert_eq!(Errno::ECONNREFUSED.raw(), 111);
        assert_eq!(Errno::ECONNREFUSED.name(), "ECONNREFUSED");
        assert_eq!(Errno::ECONNREFUSED.to_string(), "Connection refused");
        assert_eq!(format!("{:?}", Errno::EPIPE), "EPIPE(32)");
        assert_eq!(Errno::EWOULDBLOCK.name(), "EAGAIN");
    }

    /// The C library is the reference: std gets the text of every number from strerror_r.
    #[test]
    fn texts_are_those_of_the_system() {
        for &errno in Errno::ALL {
            let expected = format!("{errno} (os error {})", errno.raw());
            assert_eq!(io::Error::from(errno).to_string(), expected, "{errno:?}");
        }
    }

    #[test]
    fn table_is_sorted_and_free_of_duplicates() {
        assert!(Errno::ALL.is_sorted_by(|a, b| a.raw() < b.raw()));
    }

    #[test]
    fn raw_numbers_are_bounded() {
        assert_eq!(Errno::from_raw(0), None);
        assert_eq!(Errno::from_raw(-11), None);
        assert_eq!(Errno::from_raw(4096), None);
        assert_eq!(Errno::from_raw(11), Some(Errno::EAGAIN));
        let foreign = Errno::from_raw(4000).unwrap();
        assert_eq!(foreign.name(), "E?");
        assert_eq!(foreign.to_string(), "Unknown error 4000");
    }

    #[test]
    fn an_errno_becomes_the_matching_io_error_kind() {
        assert_eq!(io::Error::from(Errno::EAGAIN).kind(), io::ErrorKind::WouldBlock);
        assert_eq!(io::Error::from(Errno::ECONNRESET).kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(io::Error::from(Errno::ETIMEDOUT).kind(), io::ErrorKind::TimedOut);
    }
}
