//! Turns the pointers of a call into slices and addresses, and results into return values with
//! `errno`.
//!
//! "(a)", "(b)" and "(c)" are the promises at the head of `interface`.

use std::{
    ffi::{c_int, c_void},
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::{iovec, socklen_t, ssize_t};
use posix::sockaddr;
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
pub(super) unsafe fn address(
    addr: *const libc::sockaddr,
    len: socklen_t,
) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    unsafe { peer(addr, len) }?.ok_or(Errno::EAFNOSUPPORT)
}

/// The address that the caller passes to connect to; `None` for `AF_UNSPEC`.
///
/// # Safety
/// As (b).
pub(super) unsafe fn peer(
    addr: *const libc::sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(addr.cast(), len as usize) }?;
    sockaddr::decode(bytes)
}

/// Writes an address to the memory of the caller, cut to its length, as the kernel does.
///
/// # Safety
/// `len` is as (c), `addr` as (b) with `*len`.
pub(super) unsafe fn give_address(
    to: SocketAddr,
    addr: *mut libc::sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if addr.is_null() {
        return Ok(());
    }
    // SAFETY: null or valid by (c).
    let len = unsafe { len.as_mut() }.ok_or(Errno::EFAULT)?;
    // SAFETY: (b) with `*len` bytes.
    let room = unsafe { bytes_mut(addr.cast(), *len as usize) }?;
    *len = socklen_t::try_from(sockaddr::encode(to, room)).unwrap_or_default();
    Ok(())
}
