//! Pointers into slices, results into return values with `errno`, panics into errors.
//!
//! "(a)" to "(d)" are the promises at the head of the crate.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    fmt::Display,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::{iovec, socklen_t, ssize_t};
use posix::sockaddr;
use stack::Errno;

/// Largest number of buffers in one call (`IOV_MAX`).
const IOVECS_MAX: usize = 1024;

thread_local! {
    /// Text about the last failed call that builds a stack.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Error of a call: an errno, and perhaps a line of text.
pub(crate) struct Failure {
    errno: c_int,
    text: Option<String>,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { errno: errno.raw(), text: None }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or_else(|| match error.kind() {
            io::ErrorKind::NotFound => libc::ENOENT,
            io::ErrorKind::AlreadyExists => libc::EEXIST,
            io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            io::ErrorKind::OutOfMemory => libc::ENOBUFS,
            io::ErrorKind::BrokenPipe => libc::EPIPE,
            io::ErrorKind::Interrupted => libc::EINTR,
            _ => libc::EINVAL,
        });
        Self { errno, text: Some(error.to_string()) }
    }
}

impl Failure {
    pub(crate) const fn number(errno: c_int) -> Self {
        Self { errno, text: None }
    }

    pub(crate) fn text(errno: c_int, text: impl Display) -> Self {
        Self { errno, text: Some(text.to_string()) }
    }

    /// `EINVAL` with a text.
    pub(crate) fn invalid(text: impl Display) -> Self {
        Self::text(libc::EINVAL, text)
    }

    /// Sets `errno` of this thread, and the text.
    pub(crate) fn report(self) {
        if let Some(text) = self.text {
            let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
            TEXT.with_borrow_mut(|kept| *kept = CString::new(bytes).unwrap_or_default());
        }
        // SAFETY: the C library returns the valid address of this thread's errno.
        unsafe { *libc::__errno_location() = self.errno };
    }
}

/// The text about the last failed call of this thread. It is valid until the next one.
pub(crate) fn last_text() -> *const c_char {
    TEXT.with_borrow(|text| text.as_ptr())
}

/// Runs a call. An error becomes -1 with `errno`, a panic `EIO`.
pub(crate) fn answer<T: From<i8>>(work: impl FnOnce() -> Result<T, Failure>) -> T {
    match caught(work) {
        Ok(value) => value,
        Err(failure) => {
            failure.report();
            T::from(-1)
        }
    }
}

/// Runs a call that returns a handle. An error becomes a null pointer with `errno`.
pub(crate) fn handle<T>(work: impl FnOnce() -> Result<Box<T>, Failure>) -> *mut T {
    match caught(work) {
        Ok(value) => Box::into_raw(value),
        Err(failure) => {
            failure.report();
            std::ptr::null_mut()
        }
    }
}

pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::number(libc::EIO)))
}

pub(crate) fn zero((): ()) -> c_int {
    0
}

pub(crate) fn count(bytes: usize) -> ssize_t {
    ssize_t::try_from(bytes).unwrap_or(ssize_t::MAX)
}

pub(crate) fn int(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// The value behind a pointer.
///
/// # Safety
/// As (a) or (c).
pub(crate) unsafe fn one<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: null or valid, as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| Errno::EFAULT.into())
}

/// The value behind a pointer, to be written.
///
/// # Safety
/// As (a) or (c), and no other reference to the value exists.
pub(crate) unsafe fn one_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: null or valid, as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| Errno::EFAULT.into())
}

/// # Safety
/// As (b).
pub(crate) unsafe fn elements<'a, T>(from: *const T, len: usize) -> Result<&'a [T], Errno> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(Errno::EFAULT);
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, and by (b) readable for `len` elements, which fit the address space.
    Ok(unsafe { std::slice::from_raw_parts(from, len) })
}

/// # Safety
/// As (b), for memory that the call writes.
pub(crate) unsafe fn elements_mut<'a, T>(from: *mut T, len: usize) -> Result<&'a mut [T], Errno> {
    if len == 0 {
        return Ok(&mut []);
    }
    if from.is_null() {
        return Err(Errno::EFAULT);
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, and by (b) writable for `len` elements, which no other thread touches.
    Ok(unsafe { std::slice::from_raw_parts_mut(from, len) })
}

/// # Safety
/// As (b).
pub(crate) unsafe fn bytes<'a>(from: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    // SAFETY: as the caller promises.
    unsafe { elements(from.cast(), len) }
}

/// # Safety
/// As (b), for memory that the call writes.
pub(crate) unsafe fn bytes_mut<'a>(from: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    // SAFETY: as the caller promises.
    unsafe { elements_mut(from.cast(), len) }
}

/// # Safety
/// As (d).
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Errno::EFAULT.into());
    }
    // SAFETY: not null, and ends with a zero byte by (d).
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid("a text that is not UTF-8"))
}

fn piece_count(count: usize) -> Result<usize, Errno> {
    if count > IOVECS_MAX { Err(Errno::EINVAL) } else { Ok(count) }
}

/// # Safety
/// As (b), for the array and for the memory that its elements point to.
pub(crate) unsafe fn io_slices<'a>(
    iov: *const iovec,
    len: usize,
) -> Result<Vec<IoSlice<'a>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { elements(iov, piece_count(len)?) }?
        .iter()
        // SAFETY: (b) holds for each element.
        .map(|piece| unsafe { bytes(piece.iov_base, piece.iov_len) }.map(IoSlice::new))
        .collect()
}

/// # Safety
/// As [`io_slices`], for memory that the call writes.
pub(crate) unsafe fn io_slices_mut<'a>(
    iov: *const iovec,
    len: usize,
) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { elements(iov, piece_count(len)?) }?
        .iter()
        // SAFETY: (b) holds for each element, and they do not overlap.
        .map(|piece| unsafe { bytes_mut(piece.iov_base, piece.iov_len) }.map(IoSliceMut::new))
        .collect()
}

/// The address that the program passes; `None` for `AF_UNSPEC`.
///
/// # Safety
/// As (b).
pub(crate) unsafe fn peer(
    address: *const libc::sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: as the caller promises.
    sockaddr::decode(unsafe { bytes(address.cast(), len as usize) }?)
}

/// As [`peer`], for a call that needs an address.
///
/// # Safety
/// As (b).
pub(crate) unsafe fn address(
    address: *const libc::sockaddr,
    len: socklen_t,
) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    unsafe { peer(address, len) }?.ok_or(Errno::EAFNOSUPPORT)
}

/// Room of the program for an address, checked before the call takes effect.
pub(crate) struct AddressRoom<'a>(Option<(&'a mut [u8], &'a mut socklen_t)>);

impl<'a> AddressRoom<'a> {
    /// # Safety
    /// `len` is as (c), `address` as (b) with `*len` bytes.
    pub(crate) unsafe fn of(
        address: *mut libc::sockaddr,
        len: *mut socklen_t,
    ) -> Result<Self, Failure> {
        if address.is_null() {
            return Ok(Self(None));
        }
        // SAFETY: null or valid by (c).
        let len = unsafe { one_mut(len) }?;
        // SAFETY: (b) with `*len` bytes.
        let room = unsafe { bytes_mut(address.cast(), *len as usize) }?;
        Ok(Self(Some((room, len))))
    }

    /// As [`of`](Self::of), for a call whose only purpose is the address.
    ///
    /// # Safety
    /// As [`of`](Self::of).
    pub(crate) unsafe fn required(
        address: *mut libc::sockaddr,
        len: *mut socklen_t,
    ) -> Result<Self, Failure> {
        if address.is_null() {
            return Err(Errno::EFAULT.into());
        }
        // SAFETY: as the caller promises.
        unsafe { Self::of(address, len) }
    }

    /// Writes an address, cut to the room; `None` is an address of zero bytes.
    pub(crate) fn give(self, address: Option<SocketAddr>) {
        if let Some((room, len)) = self.0 {
            let whole = address.map_or(0, |address| sockaddr::encode(address, room));
            *len = socklen_t::try_from(whole).unwrap_or_default();
        }
    }
}
