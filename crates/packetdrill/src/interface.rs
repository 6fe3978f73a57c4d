//! The C boundary: the table of functions that packetdrill calls, and nothing else.
//!
//! Every function turns pointers into slices, calls `Runtime`, and returns as the system call does:
//! -1 with `errno` for an error. A panic is caught and becomes `EIO`. The only module of this crate
//! with unsafe code.
//!
//! # What packetdrill promises
//!
//! The SAFETY comments below refer to these promises: **(a)** `userdata` is the pointer that
//! [`packetdrill_interface_init`] has put into the table, until `free` is called, which is the last
//! call. **(b)** A pointer with a length is null or points to that many bytes (or elements), which
//! are readable, and writable where the call writes, for the time of the call, and no other thread
//! touches them meanwhile. **(c)** A pointer without a length is null or points to one valid value.

use std::{
    ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulong, c_void},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use libc::{epoll_event, iovec, msghdr, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use stack::Errno;

use crate::{flags::Flags, runtime::Runtime};

use events::{
    epoll_create, epoll_ctl, epoll_wait, gettimeofday, netdev_receive, netdev_send, poll, usleep,
};
use pointers::Answer;
use sockets::{
    accept, bind, close, connect, fcntl, free, getsockopt_of, ioctl, listen, setsockopt, shutdown,
    socket,
};
use transfers::{
    pipe, read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, splice, write, writev,
};

mod events;
mod pointers;
mod sockets;
mod transfers;

type Userdata = *mut c_void;

/// The stack of this process, for [`getsockopt`].
static CURRENT: Mutex<Weak<Runtime>> = Mutex::new(Weak::new());

/// The table through which packetdrill calls. Order and types are those of packetdrill's `struct
/// packetdrill_interface`. The two variadic functions take their last argument in a register, as a
/// function with a fixed argument does on the machines on which Linux runs.
#[repr(C)]
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "each is the system call of its name, its first argument `userdata`"
)]
pub struct Interface {
    pub userdata: Userdata,
    pub free: unsafe extern "C" fn(Userdata),
    pub socket: unsafe extern "C" fn(Userdata, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(Userdata, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(Userdata, c_int, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(Userdata, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: unsafe extern "C" fn(Userdata, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(Userdata, c_int, *mut c_void, usize) -> ssize_t,
    pub readv: unsafe extern "C" fn(Userdata, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: unsafe extern "C" fn(Userdata, c_int, *mut c_void, usize, c_int) -> ssize_t,
    pub recvfrom: unsafe extern "C" fn(
        Userdata,
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(Userdata, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: unsafe extern "C" fn(Userdata, c_int, *const c_void, usize) -> ssize_t,
    pub writev: unsafe extern "C" fn(Userdata, c_int, *const iovec, c_int) -> ssize_t,
    pub send: unsafe extern "C" fn(Userdata, c_int, *const c_void, usize, c_int) -> ssize_t,
    pub sendto: unsafe extern "C" fn(
        Userdata,
        c_int,
        *const c_void,
        usize,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(Userdata, c_int, *const msghdr, c_int) -> ssize_t,
    pub fcntl: unsafe extern "C" fn(Userdata, c_int, c_int, usize) -> c_int,
    pub ioctl: unsafe extern "C" fn(Userdata, c_int, c_ulong, *mut c_int) -> c_int,
    pub close: unsafe extern "C" fn(Userdata, c_int) -> c_int,
    pub shutdown: unsafe extern "C" fn(Userdata, c_int, c_int) -> c_int,
    pub getsockopt:
        unsafe extern "C" fn(Userdata, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub setsockopt:
        unsafe extern "C" fn(Userdata, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(Userdata, *mut pollfd, libc::nfds_t, c_int) -> c_int,
    pub netdev_send: unsafe extern "C" fn(Userdata, *const c_void, usize) -> c_int,
    pub netdev_receive:
        unsafe extern "C" fn(Userdata, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(Userdata, c_uint) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(Userdata, *mut timeval, *mut c_void) -> c_int,
    pub epoll_create: unsafe extern "C" fn(Userdata, c_int) -> c_int,
    pub epoll_ctl: unsafe extern "C" fn(Userdata, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait: unsafe extern "C" fn(Userdata, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: unsafe extern "C" fn(Userdata, *mut c_int) -> c_int,
    pub splice: unsafe extern "C" fn(
        Userdata,
        c_int,
        *mut libc::loff_t,
        c_int,
        *mut libc::loff_t,
        usize,
        c_uint,
    ) -> ssize_t,
}

/// Makes a stack and fills the table. packetdrill calls it once after it has loaded this library.
/// `flags` is the text of `--so_flags` or null. A text that cannot be parsed ends the process with
/// one line on standard error, because the function cannot return an error.
///
/// # Safety
/// `flags` is null or a C string; `out` is null or points to memory for an [`Interface`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, out: *mut Interface) {
    let text = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: not null, and the caller promises a C string.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    let flags = match Flags::parse(&text) {
        Ok(flags) => flags,
        Err(error) => {
            eprintln!("quietline: {error}");
            std::process::exit(2);
        }
    };
    if out.is_null() {
        return;
    }
    let runtime = match Runtime::new(flags) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("quietline: so_flags: netns: {error}");
            std::process::exit(2);
        }
    };
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&runtime);
    let userdata = Arc::into_raw(runtime).cast_mut().cast();
    // SAFETY: not null, and the caller promises memory for the table; `write` does not read the
    // memory.
    unsafe { out.write(table(userdata)) };
}

fn table(userdata: Userdata) -> Interface {
    Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt: getsockopt_of,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    }
}

/// libc's `getsockopt`, for packetdrill's `%{ }%` blocks, which read `TCP_INFO` by it and not by
/// the table. It takes effect when `LD_PRELOAD` names this library, too. Calls for other
/// descriptors go to the C library.
///
/// # Safety
/// As getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    type Getsockopt =
        unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    let runtime = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    if let Some(runtime) = runtime.filter(|runtime| runtime.knows(fd)) {
        let userdata = Arc::as_ptr(&runtime).cast_mut().cast();
        // SAFETY: `userdata` points to the runtime that `runtime` keeps; the rest is as the caller
        // promises.
        return unsafe { getsockopt_of(userdata, fd, level, name, value, len) };
    }
    // SAFETY: the name is a C string; RTLD_NEXT searches after this library, so that it does not
    // find this function.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getsockopt".as_ptr()) };
    if next.is_null() {
        return c_int::from(Answer::fail(Errno::ENOSYS));
    }
    // SAFETY: the C library's getsockopt has this type, and the arguments are as the caller
    // promises.
    unsafe { std::mem::transmute::<*mut c_void, Getsockopt>(next)(fd, level, name, value, len) }
}
