//! Calls that move bytes.
//!
//! Differs from Linux: a send that fails with `EPIPE` raises no `SIGPIPE`, because a library must
//! not end its program; and no call is interrupted by a signal.

use std::{
    ffi::{c_int, c_void},
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
};

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use posix::{GiveUp, Recv, RecvDatagram, Send, SendDatagram};
use stack::Errno;

use crate::{
    boundary::{
        AddressRoom, Failure, answer, bytes, bytes_mut, count, io_slices, io_slices_mut, one,
        one_mut, peer,
    },
    call::block,
    table::{self, Object},
};

/// Sends the bytes of `bufs`, to `to` or to the peer.
fn send(
    fd: c_int,
    bufs: &[IoSlice<'_>],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<ssize_t, Failure> {
    match &*table::find(fd)? {
        Object::Stream(own) => {
            // Without Fast Open Linux ignores the address of a call on a stream.
            let to = to.filter(|_| flags & libc::MSG_FASTOPEN != 0);
            let mut call = Send::new(flags, to);
            let limit = call.limit(&own.socket);
            let sent = block(
                &own.stack,
                &own.socket,
                || limit,
                |host, cx| call.step(&own.socket, host, cx, bufs),
            )?;
            match sent {
                Some(sent) => Ok(count(sent)),
                None => Ok(count(call.give_up(GiveUp::TimedOut)?)),
            }
        }
        Object::Datagram(own) => {
            let call =
                SendDatagram::new(flags, to, stack::socket::datagram::SendControl::default());
            let limit = || call.limit(&own.socket);
            let sent = block(&own.stack, &own.socket, limit, |host, cx| {
                call.step(&own.socket, host, cx, bufs)
            })?;
            Ok(count(sent.ok_or_else(|| call.give_up(GiveUp::TimedOut))?))
        }
        Object::Epoll(_) => Err(Errno::ENOTSOCK.into()),
    }
}

/// Result of a call that receives.
struct Taken {
    bytes: usize,
    flags: c_int,
    source: Option<SocketAddr>,
}

fn receive(
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    mut call: Recv,
    flags: c_int,
) -> Result<Taken, Failure> {
    match &*table::find(fd)? {
        Object::Stream(own) => {
            let limit = call.limit(&own.socket);
            let received = block(
                &own.stack,
                &own.socket,
                || limit,
                |host, cx| call.step(&own.socket, host, cx, bufs),
            )?;
            let received = match received {
                Some(received) => received,
                None => own.stack.with_host(|host, cx| {
                    call.give_up(&own.socket, host, cx, bufs, GiveUp::TimedOut)
                })?,
            };
            Ok(Taken { bytes: received.bytes, flags: received.flags, source: None })
        }
        Object::Datagram(own) => {
            let call = RecvDatagram::new(flags);
            let limit = || call.limit(&own.socket);
            let received = block(&own.stack, &own.socket, limit, |host, cx| {
                call.step(&own.socket, host, cx, bufs)
            })?;
            let received = received.ok_or_else(|| call.give_up(GiveUp::TimedOut))?;
            // Messages about the datagram are not passed on.
            let cut = if received.control.is_empty() { 0 } else { libc::MSG_CTRUNC };
            Ok(Taken {
                bytes: received.bytes,
                flags: received.flags | cut,
                source: received.source,
            })
        }
        Object::Epoll(_) => Err(Errno::ENOTSOCK.into()),
    }
}

/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_send(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    answer(|| {
        // SAFETY: (b).
        send(fd, &[IoSlice::new(unsafe { bytes(buf, len) }?)], flags, None)
    })
}

/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    answer(|| {
        // SAFETY: (b).
        let (bytes, to) = unsafe { (bytes(buf, len)?, destination(addr, addr_len)?) };
        send(fd, &[IoSlice::new(bytes)], flags, to)
    })
}

/// As sendmsg(2). Control messages are refused with `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    answer(|| {
        // SAFETY: (c), and (b) for the members.
        let msg = unsafe { one(msg) }?;
        if msg.msg_controllen != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        // SAFETY: as above.
        let bufs = unsafe { io_slices(msg.msg_iov, msg.msg_iovlen) }?;
        // SAFETY: as above.
        let to = unsafe { destination(msg.msg_name.cast(), msg.msg_namelen) }?;
        send(fd, &bufs, flags, to)
    })
}

/// The address of a call that sends; `None` for a null pointer.
///
/// # Safety
/// As (b).
unsafe fn destination(addr: *const sockaddr, len: socklen_t) -> Result<Option<SocketAddr>, Errno> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    match unsafe { peer(addr, len) }? {
        None => Err(Errno::EAFNOSUPPORT),
        to => Ok(to),
    }
}

/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_write(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { ql_send(fd, buf, len, 0) }
}

/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_writev(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    answer(|| {
        let pieces = usize::try_from(iovcnt).map_err(|_| Errno::EINVAL)?;
        // SAFETY: (b).
        send(fd, &unsafe { io_slices(iov, pieces) }?, 0, None)
    })
}

/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    answer(|| {
        // SAFETY: (b).
        let buf = IoSliceMut::new(unsafe { bytes_mut(buf, len) }?);
        let taken = receive(fd, &mut [buf], Recv::new(flags).without_reader(), flags)?;
        Ok(count(taken.bytes))
    })
}

/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    answer(|| {
        // SAFETY: (b).
        let buf = IoSliceMut::new(unsafe { bytes_mut(buf, len) }?);
        // SAFETY: (c), and (b) with `*addr_len` bytes.
        let room = unsafe { AddressRoom::of(addr, addr_len) }?;
        let taken = receive(fd, &mut [buf], Recv::new(flags).without_reader(), flags)?;
        room.give(taken.source);
        Ok(count(taken.bytes))
    })
}

/// As recvmsg(2). No control message is passed on; `MSG_CTRUNC` says that there was one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    answer(|| {
        // SAFETY: (c), and (b) for the members.
        let msg = unsafe { one_mut(msg) }?;
        // SAFETY: as above.
        let mut bufs = unsafe { io_slices_mut(msg.msg_iov, msg.msg_iovlen) }?;
        // SAFETY: as above; the length is a member of the structure.
        let room = unsafe { AddressRoom::of(msg.msg_name.cast(), &raw mut msg.msg_namelen) }?;
        let taken = receive(fd, &mut bufs, Recv::new(flags).without_reader(), flags)?;
        room.give(taken.source);
        msg.msg_controllen = 0;
        msg.msg_flags = taken.flags;
        Ok(count(taken.bytes))
    })
}

/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_read(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    answer(|| {
        // SAFETY: (b).
        let buf = IoSliceMut::new(unsafe { bytes_mut(buf, len) }?);
        Ok(count(receive(fd, &mut [buf], Recv::read().without_reader(), 0)?.bytes))
    })
}

/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_readv(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    answer(|| {
        let pieces = usize::try_from(iovcnt).map_err(|_| Errno::EINVAL)?;
        // SAFETY: (b).
        let mut bufs = unsafe { io_slices_mut(iov, pieces) }?;
        Ok(count(receive(fd, &mut bufs, Recv::read().without_reader(), 0)?.bytes))
    })
}
