//! Sockets: making, naming, connecting, options, closing.

use std::{
    ffi::{c_int, c_long, c_ulong, c_void},
    net::SocketAddr,
    sync::Arc,
};

use libc::{sockaddr, socklen_t};
use posix::{
    Accept, Close, Connect, Datagram, GiveUp, Socket, Step,
    abi::{F_GETFL, F_SETFL, O_NONBLOCK, O_RDWR},
};
use stack::Errno;

use crate::{
    boundary::{AddressRoom, Failure, address, answer, bytes, bytes_mut, one, one_mut, peer, zero},
    call::block,
    stack::QlStack,
    table::{self, Holder, Object},
};

/// Bits of a socket type that are not flags (`SOCK_TYPE_MASK`).
const TYPE_MASK: c_int = 0xf;

/// Opens a socket of `stack`, as socket(2): `AF_INET` or `AF_INET6`, `SOCK_STREAM` or `SOCK_DGRAM`,
/// with `SOCK_NONBLOCK` if wanted. The number that it returns is for the calls of this library
/// only. It has to be closed by `ql_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_socket(
    stack: *const QlStack,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: (a).
        let stack = unsafe { one(stack) }?.stack.clone();
        let object = if kind & TYPE_MASK == libc::SOCK_DGRAM {
            Object::Datagram(Holder::new(stack, Datagram::open(domain, kind, protocol)?))
        } else {
            Object::Stream(Holder::new(stack, Socket::open(domain, kind, protocol)?))
        };
        Ok(table::insert(object)?)
    })
}

/// As bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        // SAFETY: (b).
        let local = unsafe { address(addr, len) }?;
        let bound = match &*object {
            Object::Stream(own) => own.stack.with_host(|host, cx| own.socket.bind(host, cx, local)),
            Object::Datagram(own) => {
                own.stack.with_host(|host, cx| own.socket.bind(host, cx, local))
            }
            Object::Epoll(_) => Err(Errno::ENOTSOCK),
        };
        Ok(bound.map(zero)?)
    })
}

/// Returns the stream behind a number; `other` is the errno for a datagram socket.
fn stream(object: &Object, other: Errno) -> Result<&Holder<Socket>, Errno> {
    match object {
        Object::Stream(own) => Ok(own),
        Object::Datagram(_) => Err(other),
        Object::Epoll(_) => Err(Errno::ENOTSOCK),
    }
}

/// As listen(2).
#[unsafe(no_mangle)]
pub extern "C" fn ql_listen(fd: c_int, backlog: c_int) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        let own = stream(&object, Errno::EOPNOTSUPP)?;
        Ok(own.stack.with_host(|host, cx| own.socket.listen(host, cx, backlog)).map(zero)?)
    })
}

/// As accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ql_accept4(fd, addr, len, 0) }
}

/// As accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        let own = stream(&object, Errno::EOPNOTSUPP)?;
        // SAFETY: (c), and (b) with `*len` bytes.
        let room = unsafe { AddressRoom::of(addr, len) }?;
        let call = Accept::new(flags);
        let limit = || call.limit(&own.socket);
        let accepted = block(&own.stack, &own.socket, limit, |_, _| call.step(&own.socket))?;
        let accepted = accepted.ok_or_else(|| call.give_up(GiveUp::TimedOut))?;
        let holder = Holder::new(own.stack.clone(), accepted.socket);
        let accepted_fd = table::insert(Object::Stream(holder))?;
        room.give(Some(accepted.peer));
        Ok(accepted_fd)
    })
}

/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        // SAFETY: (b).
        let remote = unsafe { peer(addr, len) }?;
        match (&*object, remote) {
            (Object::Epoll(_), _) => Err(Errno::ENOTSOCK),
            (Object::Stream(own), Some(remote)) => connect_stream(own, remote),
            (Object::Stream(own), None) => {
                own.stack.with_host(|host, cx| own.socket.disconnect(host, cx))
            }
            (Object::Datagram(own), Some(remote)) => {
                own.stack.with_host(|host, cx| own.socket.connect(host, cx, remote))
            }
            (Object::Datagram(own), None) => {
                own.stack.with_host(|host, cx| own.socket.disconnect(host, cx))
            }
        }
        .map(zero)
        .map_err(Failure::from)
    })
}

fn connect_stream(own: &Holder<Socket>, remote: SocketAddr) -> Result<(), Errno> {
    let mut call = Connect::new(remote);
    let limit = call.limit(&own.socket);
    let connected =
        block(&own.stack, &own.socket, || limit, |host, cx| call.step(&own.socket, host, cx))?;
    connected.ok_or_else(|| call.give_up(GiveUp::TimedOut))
}

/// As shutdown(2).
#[unsafe(no_mangle)]
pub extern "C" fn ql_shutdown(fd: c_int, how: c_int) -> c_int {
    answer(|| {
        let done = match &*table::find(fd)? {
            Object::Stream(own) => {
                own.stack.with_host(|host, cx| own.socket.shutdown(host, cx, how))
            }
            Object::Datagram(own) => own.socket.shutdown(how),
            Object::Epoll(_) => Err(Errno::ENOTSOCK),
        };
        Ok(done.map(zero)?)
    })
}

/// As close(2), for sockets and epoll sets. A thread in a call on the socket returns with an error.
#[unsafe(no_mangle)]
pub extern "C" fn ql_close(fd: c_int) -> c_int {
    answer(|| {
        match &*table::remove(fd)? {
            Object::Stream(own) => close_stream(own)?,
            Object::Datagram(own) => {
                own.stack.with_host(|host, cx| own.socket.close(host, cx))?;
            }
            Object::Epoll(_) => {}
        }
        Ok(0)
    })
}

fn close_stream(own: &Holder<Socket>) -> Result<(), Errno> {
    let mut call = Close::new();
    if own.stack.with_host(|host, cx| call.step(&own.socket, host, cx))? == Step::Ready(()) {
        return Ok(());
    }
    // The connection lingers, and the closed socket has no observers any more.
    let deadline = call.limit().and_then(|limit| std::time::Instant::now().checked_add(limit));
    while own.stack.with_host(|host, cx| call.step(&own.socket, host, cx))? == Step::Blocks
        && deadline.is_none_or(|deadline| std::time::Instant::now() < deadline)
    {
        if own.stack.is_manual() {
            let _ = own.stack.poll();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// As getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let local = |object: &Object| match object {
        Object::Stream(own) => own.socket.local_name(),
        Object::Datagram(own) => own.stack.with_host(|host, cx| own.socket.local_name(host, cx)),
        Object::Epoll(_) => Err(Errno::ENOTSOCK),
    };
    // SAFETY: as the caller promises.
    unsafe { give_name(fd, addr, len, local) }
}

/// As getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let remote = |object: &Object| match object {
        Object::Stream(own) => own.stack.with_host(|host, cx| own.socket.peer_name(host, cx)),
        Object::Datagram(own) => own.stack.with_host(|host, cx| own.socket.peer_name(host, cx)),
        Object::Epoll(_) => Err(Errno::ENOTSOCK),
    };
    // SAFETY: as the caller promises.
    unsafe { give_name(fd, addr, len, remote) }
}

/// Writes the address that `name` returns for the socket of `fd`.
///
/// # Safety
/// As (c) for `addr` and `len`, and as (b) for `addr` with `*len` bytes.
unsafe fn give_name(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    name: impl FnOnce(&Object) -> Result<SocketAddr, Errno>,
) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        // SAFETY: as the caller promises.
        let room = unsafe { AddressRoom::required(addr, len) }?;
        room.give(Some(name(&object)?));
        Ok(0)
    })
}

/// As setsockopt(2), with the numbers of Linux.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        // SAFETY: (b).
        let value = unsafe { bytes(value, len as usize) }?;
        let set = match &*object {
            Object::Stream(own) => own
                .stack
                .with_host(|host, cx| own.socket.setsockopt(host, cx, (level, name), value)),
            Object::Datagram(own) => own
                .stack
                .with_host(|host, cx| own.socket.setsockopt(host, cx, (level, name), value)),
            Object::Epoll(_) => Err(Errno::ENOTSOCK),
        };
        Ok(set.map(zero)?)
    })
}

/// As getsockopt(2), with the numbers of Linux.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        // SAFETY: (c).
        let len = unsafe { one_mut(len) }?;
        // SAFETY: (b) with `*len` bytes.
        let room = unsafe { bytes_mut(value, *len as usize) }?;
        let number = (level, name);
        let written = match &*object {
            Object::Stream(own) => {
                own.stack.with_host(|host, cx| own.socket.getsockopt(host, cx, number, room))
            }
            Object::Datagram(own) => {
                own.stack.with_host(|host, cx| own.socket.getsockopt(host, cx, number, room))
            }
            Object::Epoll(_) => Err(Errno::ENOTSOCK),
        };
        *len = socklen_t::try_from(written?).unwrap_or_default();
        Ok(0)
    })
}

/// As fcntl(2): `F_GETFL` and `F_SETFL`, of which `O_NONBLOCK` has an effect.
#[unsafe(no_mangle)]
pub extern "C" fn ql_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    answer(|| {
        let object: Arc<Object> = table::find(fd)?;
        let argument = c_int::try_from(argument).map_err(|_| Errno::EINVAL)?;
        Ok(match &*object {
            Object::Stream(own) => own.socket.fcntl(command, argument)?,
            Object::Datagram(own) => match command {
                F_GETFL => O_RDWR | if own.socket.is_nonblocking() { O_NONBLOCK } else { 0 },
                F_SETFL => {
                    own.socket.set_nonblocking(argument & O_NONBLOCK != 0);
                    0
                }
                _ => return Err(Errno::EINVAL.into()),
            },
            Object::Epoll(_) => return Err(Errno::EINVAL.into()),
        })
    })
}

/// As ioctl(2) on a TCP socket: `FIONREAD`, `FIONBIO`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
    answer(|| {
        let object = table::find(fd)?;
        let own = stream(&object, Errno::ENOTTY)?;
        // SAFETY: (c).
        let argument = unsafe { one_mut(argument) }?;
        own.stack.with_host(|host, cx| own.socket.ioctl(host, cx, request, argument))?;
        Ok(0)
    })
}
