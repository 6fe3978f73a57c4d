//! Socket options whose values are structures of the kernel.
//!
//! Above: `interface`, `af_packet`, `af_xdp`. Linux: setsockopt(2), getsockopt(2), packet(7).
//!
//! Not here: options for which rustix has a function.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_uint, socklen_t};
use rustix::io::Errno;

/// A value that the kernel reads and writes as bytes: all bytes are valid.
///
/// # Safety
/// Every bit pattern of the type is valid, and it contains no pointer that any code follows.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for c_int {}
// SAFETY: integers.
unsafe impl Plain for c_uint {}
// SAFETY: a structure of integers.
unsafe impl Plain for libc::packet_mreq {}

/// Sets an option.
///
/// # Errors
/// The error of the kernel.
pub(super) fn set_option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<(), Errno> {
    let len = len_of::<T>();
    // SAFETY: the kernel reads `len` bytes, the size of the target of `value`, and keeps no
    // pointer.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Reads an option. A value of fewer bytes is an error (EINVAL), because it is another structure.
///
/// # Errors
/// The error of the kernel.
pub(super) fn option<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = len_of::<T>();
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`, and the length that it
    // wrote.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    if result != 0 {
        return Err(last_errno());
    }
    if len != len_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: zeroed above and perhaps overwritten; any bytes are a valid `T` (`Plain`).
    Ok(unsafe { value.assume_init() })
}

/// Attaches a socket filter (SO_ATTACH_FILTER): the kernel drops the packets that it does not
/// accept.
///
/// # Errors
/// The error of the kernel; EINVAL for an invalid filter.
pub(super) fn attach_filter(fd: BorrowedFd<'_>, filter: &[libc::sock_filter]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `program` and, through its pointer, the `len` instructions of
    // `filter`; it writes neither and keeps no pointer.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            len_of::<libc::sock_fprog>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

fn len_of<T>() -> socklen_t {
    const { assert!(size_of::<T>() <= 4096) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    {
        size_of::<T>() as socklen_t
    }
}

/// Returns the error of the last system call of this thread.
pub(super) fn last_errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_option_is_read_back() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let fd = socket.as_fd();
        set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &3).expect("no privilege is needed");
        assert_eq!(option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PRIORITY), Ok(3));
        let error = set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, &1);
        assert!(error.is_err(), "not a packet socket");
    }
}
