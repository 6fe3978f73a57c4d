//! Calls that move bytes: reading, writing, messages with addresses and control data, pipes.

use std::{
    ffi::{c_int, c_uint, c_void},
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
};

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use posix::{Received, Recv, abi::TCP_INQ};
use stack::Errno;

use super::{
    Userdata,
    pointers::{bytes, bytes_mut, call, count, io_slices, io_slices_mut, peer, piece_count},
};

/// Largest number of bytes that one `splice` moves: the capacity of a pipe.
const SPLICE_BYTES_MAX: usize = 64 * 1024;

pub(super) unsafe extern "C" fn read(
    u: Userdata,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let buf = IoSliceMut::new(bytes_mut(buf, len)?);
            runtime.recv(fd, &mut [buf], Recv::read()).map(|received| count(received.bytes))
        })
    }
}

pub(super) unsafe extern "C" fn readv(
    u: Userdata,
    fd: c_int,
    iov: *const iovec,
    iovcnt: c_int,
) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let mut bufs = io_slices_mut(iov, piece_count(iovcnt)?)?;
            runtime.recv(fd, &mut bufs, Recv::read()).map(|received| count(received.bytes))
        })
    }
}

pub(super) unsafe extern "C" fn recv(
    u: Userdata,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let buf = IoSliceMut::new(bytes_mut(buf, len)?);
            runtime.recv(fd, &mut [buf], Recv::new(flags)).map(|received| count(received.bytes))
        })
    }
}

pub(super) unsafe extern "C" fn recvfrom(
    u: Userdata,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    _addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // A stream has no sender address: Linux leaves the address alone and sets its length to zero.
    // SAFETY: null or valid by (c).
    if let Some(addr_len) = unsafe { addr_len.as_mut() } {
        *addr_len = 0;
    }
    // SAFETY: as the caller promises.
    unsafe { recv(u, fd, buf, len, flags) }
}

pub(super) unsafe extern "C" fn recvmsg(
    u: Userdata,
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: (a), (b) and (c).
    unsafe {
        call(u, |runtime| {
            let msg = msg.as_mut().ok_or(Errno::EFAULT)?;
            let mut bufs = io_slices_mut(msg.msg_iov, msg.msg_iovlen)?;
            let received = runtime.recv(fd, &mut bufs, Recv::new(flags))?;
            give_control(msg, received)?;
            msg.msg_namelen = 0;
            msg.msg_flags = received.flags;
            Ok(count(received.bytes))
        })
    }
}

/// Writes the control message of `recvmsg` with the bytes left to read, if the program has asked
/// for it.
///
/// # Safety
/// As (b), for the control buffer of `msg`.
pub(super) unsafe fn give_control(msg: &mut msghdr, received: Received) -> Result<(), Errno> {
    let room = std::mem::take(&mut msg.msg_controllen);
    let Some(inq) = received.inq.filter(|_| !msg.msg_control.is_null()) else { return Ok(()) };
    // SAFETY: (b) with the length that the caller has set.
    let control = unsafe { bytes_mut(msg.msg_control, room) }?;
    // `struct cmsghdr`: a length that counts itself, level, type, then the data.
    let parts: [&[u8]; 4] = [
        &(16 + size_of_val(&inq)).to_ne_bytes(),
        &libc::IPPROTO_TCP.to_ne_bytes(),
        &TCP_INQ.to_ne_bytes(),
        &inq.to_ne_bytes(),
    ];
    let message = parts.concat();
    if let Some(control) = control.get_mut(..message.len()) {
        control.copy_from_slice(&message);
        // The next message would begin at a multiple of eight bytes.
        msg.msg_controllen = message.len().next_multiple_of(8).min(room);
    }
    Ok(())
}

pub(super) unsafe extern "C" fn write(
    u: Userdata,
    fd: c_int,
    buf: *const c_void,
    len: usize,
) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { send(u, fd, buf, len, 0) }
}

pub(super) unsafe extern "C" fn writev(
    u: Userdata,
    fd: c_int,
    iov: *const iovec,
    iovcnt: c_int,
) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let bufs = io_slices(iov, piece_count(iovcnt)?)?;
            runtime.send(fd, &bufs, 0, None).map(count)
        })
    }
}

pub(super) unsafe extern "C" fn send(
    u: Userdata,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let buf = IoSlice::new(bytes(buf, len)?);
            runtime.send(fd, &[buf], flags, None).map(count)
        })
    }
}

pub(super) unsafe extern "C" fn sendto(
    u: Userdata,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let buf = IoSlice::new(bytes(buf, len)?);
            let to = destination(flags, addr, addr_len)?;
            runtime.send(fd, &[buf], flags, to).map(count)
        })
    }
}

/// The address to which a call with `MSG_FASTOPEN` connects. Without that flag Linux ignores the
/// address of a call on a stream.
///
/// # Safety
/// As [`address`].
pub(super) unsafe fn destination(
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if flags & libc::MSG_FASTOPEN == 0 || addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    match unsafe { peer(addr, len) }? {
        None => Err(Errno::EOPNOTSUPP),
        to => Ok(to),
    }
}

pub(super) unsafe extern "C" fn sendmsg(
    u: Userdata,
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: (a), (b) and (c).
    unsafe {
        call(u, |runtime| {
            let msg = msg.as_ref().ok_or(Errno::EFAULT)?;
            let bufs = io_slices(msg.msg_iov, msg.msg_iovlen)?;
            let to = destination(flags, msg.msg_name.cast(), msg.msg_namelen)?;
            runtime.send(fd, &bufs, flags, to).map(count)
        })
    }
}

/// Makes a pipe of the kernel: the stack needs one for `splice` only.
pub(super) unsafe extern "C" fn pipe(u: Userdata, fds: *mut c_int) -> c_int {
    // SAFETY: (a), and room for two descriptors by (b).
    unsafe { call(u, |_| if fds.is_null() { Err(Errno::EFAULT) } else { Ok(libc::pipe(fds)) }) }
}

pub(super) unsafe extern "C" fn splice(
    u: Userdata,
    from: c_int,
    _from_offset: *mut libc::loff_t,
    to: c_int,
    _to_offset: *mut libc::loff_t,
    len: usize,
    _flags: c_uint,
) -> ssize_t {
    let mut buf = vec![0; len.min(SPLICE_BYTES_MAX)];
    // SAFETY: (a); the pipe is read into `buf` and written from `buf`, whose length bounds both.
    unsafe {
        call(u, |runtime| {
            if runtime.knows(from) {
                let bufs = &mut [IoSliceMut::new(&mut buf)];
                let bytes = runtime.recv(from, bufs, Recv::new(0))?.bytes;
                return Ok(libc::write(to, buf.as_ptr().cast(), bytes));
            }
            let bytes = libc::read(from, buf.as_mut_ptr().cast(), buf.len());
            match usize::try_from(bytes) {
                Ok(bytes) => runtime.send(to, &[IoSlice::new(&buf[..bytes])], 0, None).map(count),
                // The C library has set errno.
                Err(_) => Ok(bytes),
            }
        })
    }
}
