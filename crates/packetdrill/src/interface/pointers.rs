//! Turns the pointers of a call into slices and addresses, and results into return values with
//! `errno`.
//!
//! "(a)", "(b)" and "(c)" are the promises at the head of `interface`.

use std::{
    ffi::{c_int, c_void},
    io::{IoSlice, IoSliceMut},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::{iovec, sockaddr, socklen_t, ssize_t};
use stack::Errno;

use super::Userdata;
use crate::runtime::Runtime;

/// Largest number of buffers in one call (`IOV_MAX`).
const IOVECS_MAX: usize = 1024;

/// The return value of a call: the result, or -1 with `errno`.
pub(super) struct Answer;

impl Answer {
    pub(super) fn fail(errno: Errno) -> i8 {
        // SAFETY: the C library returns the valid address of this thread's errno.
        unsafe { *libc::__errno_location() = errno.raw() };
        -1
    }
}

/// Runs a call on the runtime behind `userdata`. A panic becomes `EIO`.
///
/// # Safety
/// `userdata` is as (a) says.
pub(super) unsafe fn call<T: From<i8>>(
    userdata: Userdata,
    work: impl FnOnce(&Runtime) -> Result<T, Errno>,
) -> T {
    // SAFETY: by (a) `userdata` is the pointer that `Arc::into_raw` returned, and `free` has not
    // been called.
    let runtime = unsafe { &*userdata.cast::<Runtime>() };
    let result = catch_unwind(AssertUnwindSafe(|| work(runtime)));
    result.unwrap_or(Err(Errno::EIO)).unwrap_or_else(|errno| Answer::fail(errno).into())
}

pub(super) fn zero<T: From<i8>>((): ()) -> T {
    T::from(0)
}

pub(super) fn count(bytes: usize) -> ssize_t {
    ssize_t::try_from(bytes).unwrap_or(ssize_t::MAX)
}

/// The bytes behind a pointer of the caller.
///
/// # Safety
/// As (b).
pub(super) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    if len == 0 {
        return Ok(&[]);
    }
    if buf.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, and readable for `len` bytes by (b).
    Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) })
}

/// The writable bytes behind a pointer of the caller.
///
/// # Safety
/// As (b).
pub(super) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    if len == 0 {
        return Ok(&mut []);
    }
    if buf.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, and by (b) writable for `len` bytes, which no other thread touches.
    Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) })
}

/// The elements of an array of `iovec`.
///
/// # Safety
/// As (b), for the array and for the memory that its elements point to.
pub(super) unsafe fn pieces<'a>(iov: *const iovec, len: usize) -> Result<&'a [iovec], Errno> {
    if len > IOVECS_MAX {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, and readable for `len` elements by (b).
    Ok(unsafe { std::slice::from_raw_parts(iov, len) })
}

/// # Safety
/// As [`pieces`].
pub(super) unsafe fn io_slices<'a>(
    iov: *const iovec,
    len: usize,
) -> Result<Vec<IoSlice<'a>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { pieces(iov, len) }?
        .iter()
        // SAFETY: (b) holds for each element.
        .map(|piece| unsafe { bytes(piece.iov_base, piece.iov_len) }.map(IoSlice::new))
        .collect()
}

/// # Safety
/// As [`pieces`], writable.
pub(super) unsafe fn io_slices_mut<'a>(
    iov: *const iovec,
    len: usize,
) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { pieces(iov, len) }?
        .iter()
        // SAFETY: (b) holds for each element, and they do not overlap.
        .map(|piece| unsafe { bytes_mut(piece.iov_base, piece.iov_len) }.map(IoSliceMut::new))
        .collect()
}

pub(super) fn piece_count(iovcnt: c_int) -> Result<usize, Errno> {
    usize::try_from(iovcnt).map_err(|_| Errno::EINVAL)
}

/// The address that the caller passes.
///
/// # Safety
/// As (b).
pub(super) unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    unsafe { peer(addr, len) }?.ok_or(Errno::EAFNOSUPPORT)
}

/// The address that the caller passes to connect to; `None` for `AF_UNSPEC`.
///
/// # Safety
/// As (b).
pub(super) unsafe fn peer(
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(addr.cast(), len as usize) }?;
    let family = bytes.first_chunk::<2>().ok_or(Errno::EINVAL)?;
    match c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {}
        libc::AF_INET6 => return peer_v6(bytes).map(Some),
        libc::AF_UNSPEC => return Ok(None),
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    // Linux wants a whole `sockaddr_in`.
    if bytes.len() < size_of::<libc::sockaddr_in>() {
        return Err(Errno::EINVAL);
    }
    let rest = bytes.get(2..8).ok_or(Errno::EINVAL)?;
    let ip = Ipv4Addr::new(rest[2], rest[3], rest[4], rest[5]);
    let port = u16::from_be_bytes([rest[0], rest[1]]);
    Ok(Some(SocketAddr::V4(SocketAddrV4::new(ip, port))))
}

/// Reads a `sockaddr_in6`: family, port, flow label, address, scope.
fn peer_v6(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    // Linux also takes the 24 bytes of RFC 2133, without a scope (`SIN6_LEN_RFC2133`).
    let fixed: [u8; 24] = *bytes.first_chunk().ok_or(Errno::EINVAL)?;
    let scope = bytes.get(24..).and_then(|rest| rest.first_chunk()).copied();
    let (_, rest) = fixed.split_at(8);
    let ip: [u8; 16] = *rest.first_chunk().ok_or(Errno::EINVAL)?;
    let port = u16::from_be_bytes([fixed[2], fixed[3]]);
    let scope = u32::from_ne_bytes(scope.unwrap_or_default());
    Ok(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
}

/// Returns the bytes of a `sockaddr_in` or `sockaddr_in6`.
fn sockaddr_bytes(address: SocketAddr) -> Vec<u8> {
    let family = |family: c_int| u16::try_from(family).unwrap_or_default().to_ne_bytes();
    let port = address.port().to_be_bytes();
    match address {
        SocketAddr::V4(v4) => {
            let mut bytes = [&family(libc::AF_INET)[..], &port, &v4.ip().octets()].concat();
            bytes.resize(size_of::<libc::sockaddr_in>(), 0);
            bytes
        }
        SocketAddr::V6(v6) => {
            let (flow, scope) = ([0_u8; 4], v6.scope_id().to_ne_bytes());
            [&family(libc::AF_INET6)[..], &port, &flow, &v6.ip().octets(), &scope].concat()
        }
    }
}

/// Writes an address to the memory of the caller, cut to its length, as the kernel does.
///
/// # Safety
/// `len` is as (c), `addr` as (b) with `*len`.
pub(super) unsafe fn give_address(
    to: SocketAddr,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if addr.is_null() {
        return Ok(());
    }
    // SAFETY: null or valid by (c).
    let len = unsafe { len.as_mut() }.ok_or(Errno::EFAULT)?;
    let bytes = sockaddr_bytes(to);
    // SAFETY: (b) with `*len` bytes.
    let room = unsafe { bytes_mut(addr.cast(), *len as usize) }?;
    let fits = room.len().min(bytes.len());
    room[..fits].copy_from_slice(&bytes[..fits]);
    *len = socklen_t::try_from(bytes.len()).unwrap_or_default();
    Ok(())
}
