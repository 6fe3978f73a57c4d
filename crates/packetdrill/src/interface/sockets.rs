//! Calls on sockets that move no bytes: making, naming, connecting, options, closing.

use std::{
    ffi::{c_int, c_ulong, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use libc::{sockaddr, socklen_t};
use stack::Errno;

use super::{
    Userdata,
    pointers::{address, bytes, bytes_mut, call, give_address, peer, zero},
};
use crate::runtime::Runtime;

pub(super) unsafe extern "C" fn free(userdata: Userdata) {
    if userdata.is_null() {
        return;
    }
    // SAFETY: by (a) the pointer is that of `Arc::into_raw`, and this is the last call, which
    // releases the reference that the pointer stands for.
    let runtime = unsafe { Arc::from_raw(userdata.cast::<Runtime>().cast_const()) };
    let _ = catch_unwind(AssertUnwindSafe(|| runtime.stop()));
}

pub(super) unsafe extern "C" fn socket(
    u: Userdata,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.socket(domain, kind, protocol)) }
}

pub(super) unsafe extern "C" fn bind(
    u: Userdata,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: (a) and (b).
    unsafe { call(u, |runtime| runtime.bind(fd, address(addr, len)?).map(zero)) }
}

pub(super) unsafe extern "C" fn listen(u: Userdata, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.listen(fd, backlog).map(zero)) }
}

pub(super) unsafe extern "C" fn accept(
    u: Userdata,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: (a), (b) and (c).
    unsafe {
        call(u, |runtime| {
            let (accepted, peer) = runtime.accept(fd)?;
            give_address(peer, addr, len)?;
            Ok(accepted)
        })
    }
}

pub(super) unsafe extern "C" fn connect(
    u: Userdata,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: (a) and (b).
    unsafe { call(u, |runtime| runtime.connect(fd, peer(addr, len)?).map(zero)) }
}

pub(super) unsafe extern "C" fn fcntl(
    u: Userdata,
    fd: c_int,
    command: c_int,
    argument: usize,
) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.fcntl(fd, command, argument)) }
}

pub(super) unsafe extern "C" fn ioctl(
    u: Userdata,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> c_int {
    // SAFETY: (a) and (c): every known request takes a pointer to an int.
    unsafe {
        call(u, |runtime| {
            let mut number = argument.as_ref().copied().unwrap_or_default();
            runtime.ioctl(fd, request, &mut number)?;
            *argument.as_mut().ok_or(Errno::EFAULT)? = number;
            Ok(0)
        })
    }
}

pub(super) unsafe extern "C" fn close(u: Userdata, fd: c_int) -> c_int {
    // SAFETY: (a). The other descriptors are ends of the kernel's pipes, and closing a number is
    // safe.
    unsafe {
        call(
            u,
            |runtime| {
                if runtime.knows(fd) { runtime.close(fd).map(zero) } else { Ok(libc::close(fd)) }
            },
        )
    }
}

pub(super) unsafe extern "C" fn shutdown(u: Userdata, fd: c_int, how: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.shutdown(fd, how).map(zero)) }
}

pub(super) unsafe extern "C" fn getsockopt_of(
    u: Userdata,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: (a), (b) with `*len`, and (c).
    unsafe {
        call(u, |runtime| {
            let len = len.as_mut().ok_or(Errno::EFAULT)?;
            let room = bytes_mut(value, *len as usize)?;
            let written = runtime.getsockopt(fd, level, name, room)?;
            *len = socklen_t::try_from(written).unwrap_or_default();
            Ok(0)
        })
    }
}

pub(super) unsafe extern "C" fn setsockopt(
    u: Userdata,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            runtime.setsockopt(fd, level, name, bytes(value, len as usize)?).map(zero)
        })
    }
}
