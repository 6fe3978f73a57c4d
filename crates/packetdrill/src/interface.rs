//! The C boundary: the table of functions that packetdrill calls, and nothing else.
//!
//! Every function turns pointers into slices, calls `Runtime`, and answers as the system call does: -1 with `errno` for
//! an error. A panic ends here as `EIO`. The only room of this crate with unsafe code.
//!
//! # What packetdrill promises
//!
//! The SAFETY comments below refer to these: **(a)** `userdata` is what [`packetdrill_interface_init`] has put into the
//! table, until `free` is called, which is the last call. **(b)** A pointer with a length is null or points to that many
//! bytes (or elements), readable, and writable where the call writes, for the time of the call, and nobody else touches
//! them meanwhile. **(c)** A pointer without a length is null or points to one valid value.

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void},
    io::{IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use libc::{epoll_event, iovec, msghdr, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use stack::Errno;

use crate::{
    epoll::Event, flags::Flags, readiness::PollEntry, runtime::Runtime, socket::Way,
    transfer::Received,
};

/// Pieces one call may name (`IOV_MAX`).
const IOVECS_MAX: usize = 1024;
/// Type of the control message of `TCP_INQ`.
const TCP_CM_INQ: c_int = 36;
/// Bytes that one `splice` moves at most: what a pipe holds.
const SPLICE_BYTES_MAX: usize = 64 * 1024;

type Userdata = *mut c_void;

/// The stack of this process, for [`getsockopt`].
static CURRENT: Mutex<Weak<Runtime>> = Mutex::new(Weak::new());

/// The table packetdrill calls through. Order and types are packetdrill's `struct packetdrill_interface`; the two
/// variadic functions take their one further argument as a register, which is the same call on the machines Linux
/// runs on.
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

/// What packetdrill calls once it has loaded this library: makes a stack and fills the table. `flags` is the text of
/// `--so_flags` or null. A text that is not understood ends the process with one line on standard error, because there
/// is no other way to refuse.
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
    let runtime = Runtime::new(flags);
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&runtime);
    let userdata = Arc::into_raw(runtime).cast_mut().cast();
    // SAFETY: not null, and the caller promises room for the table; `write` reads nothing that was there.
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

/// libc's `getsockopt`, for packetdrill's `%{ }%` blocks, which ask for `TCP_INFO` by it and not by the table. It has an
/// effect when this library is also named by `LD_PRELOAD`; other descriptors than ours go to the C library.
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
        // SAFETY: `userdata` is a runtime that lives as long as `runtime`; the rest is as the caller promises.
        return unsafe { getsockopt_of(userdata, fd, level, name, value, len) };
    }
    // SAFETY: the name is a C string; RTLD_NEXT looks behind this library, so that it does not find this function.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getsockopt".as_ptr()) };
    if next.is_null() {
        return c_int::from(Answer::fail(Errno::ENOSYS));
    }
    // SAFETY: the C library's getsockopt has this type, and the arguments are as the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, Getsockopt>(next)(fd, level, name, value, len) }
}

/// What a call answers: the result, or -1 with `errno`.
struct Answer;

impl Answer {
    fn fail(errno: Errno) -> i8 {
        // SAFETY: the C library gives the address of this thread's errno.
        unsafe { *libc::__errno_location() = errno.raw() };
        -1
    }
}

/// Runs a call: `userdata` is the runtime, a panic is `EIO`.
///
/// # Safety
/// `userdata` is as (a) says.
unsafe fn call<T: From<i8>>(
    userdata: Userdata,
    work: impl FnOnce(&Runtime) -> Result<T, Errno>,
) -> T {
    // SAFETY: by (a) it is the pointer that `Arc::into_raw` gave, and `free` has not been called.
    let runtime = unsafe { &*userdata.cast::<Runtime>() };
    let result = catch_unwind(AssertUnwindSafe(|| work(runtime)));
    result.unwrap_or(Err(Errno::EIO)).unwrap_or_else(|errno| Answer::fail(errno).into())
}

fn zero<T: From<i8>>((): ()) -> T {
    T::from(0)
}

fn count(bytes: usize) -> ssize_t {
    ssize_t::try_from(bytes).unwrap_or(ssize_t::MAX)
}

/// The bytes behind a pointer of the caller.
///
/// # Safety
/// As (b).
unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    if len == 0 {
        return Ok(&[]);
    }
    if buf.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, and readable for `len` bytes by (b).
    Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) })
}

/// The bytes behind a pointer of the caller, to write.
///
/// # Safety
/// As (b).
unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    if len == 0 {
        return Ok(&mut []);
    }
    if buf.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, and writable by nobody else for `len` bytes by (b).
    Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) })
}

/// The pieces that an array of `iovec` names.
///
/// # Safety
/// As (b), for the array and for what its elements point to.
unsafe fn pieces<'a>(iov: *const iovec, len: usize) -> Result<&'a [iovec], Errno> {
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
unsafe fn io_slices<'a>(iov: *const iovec, len: usize) -> Result<Vec<IoSlice<'a>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { pieces(iov, len) }?
        .iter()
        // SAFETY: (b) holds for each element.
        .map(|piece| unsafe { bytes(piece.iov_base, piece.iov_len) }.map(IoSlice::new))
        .collect()
}

/// # Safety
/// As [`pieces`], writable.
unsafe fn io_slices_mut<'a>(iov: *const iovec, len: usize) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { pieces(iov, len) }?
        .iter()
        // SAFETY: (b) holds for each element, and they do not overlap.
        .map(|piece| unsafe { bytes_mut(piece.iov_base, piece.iov_len) }.map(IoSliceMut::new))
        .collect()
}

fn piece_count(iovcnt: c_int) -> Result<usize, Errno> {
    usize::try_from(iovcnt).map_err(|_| Errno::EINVAL)
}

/// An address as the caller gives it. Only IPv4 is spoken.
///
/// # Safety
/// As (b).
unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(addr.cast(), len as usize) }?;
    let family = bytes.first_chunk::<2>().ok_or(Errno::EINVAL)?;
    if c_int::from(u16::from_ne_bytes(*family)) != libc::AF_INET {
        return Err(Errno::EAFNOSUPPORT);
    }
    let rest = bytes.get(2..8).ok_or(Errno::EINVAL)?;
    let ip = Ipv4Addr::new(rest[2], rest[3], rest[4], rest[5]);
    let port = u16::from_be_bytes([rest[0], rest[1]]);
    Ok(SocketAddr::V4(SocketAddrV4::new(ip, port)))
}

/// Gives an address to the caller, cut to the room there is, as the kernel does.
///
/// # Safety
/// `len` is as (c), `addr` as (b) with `*len`.
unsafe fn give_address(
    to: SocketAddr,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if addr.is_null() {
        return Ok(());
    }
    // SAFETY: null or valid by (c).
    let len = unsafe { len.as_mut() }.ok_or(Errno::EFAULT)?;
    let SocketAddr::V4(to) = to else { return Err(Errno::EAFNOSUPPORT) };
    let family = u16::try_from(libc::AF_INET).unwrap_or_default();
    let mut bytes = [0; size_of::<libc::sockaddr_in>()];
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&to.ip().octets());
    // SAFETY: (b) with `*len` bytes.
    let room = unsafe { bytes_mut(addr.cast(), *len as usize) }?;
    let fits = room.len().min(bytes.len());
    room[..fits].copy_from_slice(&bytes[..fits]);
    *len = socklen_t::try_from(bytes.len()).unwrap_or_default();
    Ok(())
}

unsafe extern "C" fn free(userdata: Userdata) {
    if userdata.is_null() {
        return;
    }
    // SAFETY: by (a) the pointer of `Arc::into_raw`, and this is the last call: the count it stands for ends here.
    let runtime = unsafe { Arc::from_raw(userdata.cast::<Runtime>().cast_const()) };
    let _ = catch_unwind(AssertUnwindSafe(|| runtime.stop()));
}

unsafe extern "C" fn socket(u: Userdata, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.socket(domain, kind, protocol)) }
}

unsafe extern "C" fn bind(u: Userdata, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: (a) and (b).
    unsafe { call(u, |runtime| runtime.bind(fd, address(addr, len)?).map(zero)) }
}

unsafe extern "C" fn listen(u: Userdata, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.listen(fd, backlog).map(zero)) }
}

unsafe extern "C" fn accept(
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

unsafe extern "C" fn connect(
    u: Userdata,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: (a) and (b).
    unsafe { call(u, |runtime| runtime.connect(fd, address(addr, len)?).map(zero)) }
}

unsafe extern "C" fn read(u: Userdata, fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { recv(u, fd, buf, len, 0) }
}

unsafe extern "C" fn readv(u: Userdata, fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let mut bufs = io_slices_mut(iov, piece_count(iovcnt)?)?;
            runtime.recv(fd, &mut bufs, 0).map(|received| count(received.bytes))
        })
    }
}

unsafe extern "C" fn recv(
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
            runtime.recv(fd, &mut [buf], flags).map(|received| count(received.bytes))
        })
    }
}

unsafe extern "C" fn recvfrom(
    u: Userdata,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    _addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // A connected stream names no sender: the address is left alone and its length is zero, as in Linux.
    // SAFETY: null or valid by (c).
    if let Some(addr_len) = unsafe { addr_len.as_mut() } {
        *addr_len = 0;
    }
    // SAFETY: as the caller promises.
    unsafe { recv(u, fd, buf, len, flags) }
}

unsafe extern "C" fn recvmsg(u: Userdata, fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: (a), (b) and (c).
    unsafe {
        call(u, |runtime| {
            let msg = msg.as_mut().ok_or(Errno::EFAULT)?;
            let mut bufs = io_slices_mut(msg.msg_iov, msg.msg_iovlen)?;
            let received = runtime.recv(fd, &mut bufs, flags)?;
            give_control(msg, received)?;
            msg.msg_namelen = 0;
            msg.msg_flags = 0;
            Ok(count(received.bytes))
        })
    }
}

/// The control messages of `recvmsg`: how much is left to read, if the program has asked for it.
///
/// # Safety
/// As (b), for the control buffer of `msg`.
unsafe fn give_control(msg: &mut msghdr, received: Received) -> Result<(), Errno> {
    let room = std::mem::take(&mut msg.msg_controllen);
    let Some(inq) = received.inq.filter(|_| !msg.msg_control.is_null()) else { return Ok(()) };
    // SAFETY: (b) with the length that the caller gave.
    let control = unsafe { bytes_mut(msg.msg_control, room) }?;
    // `struct cmsghdr`: a length that counts itself, level, type, then the data.
    let parts: [&[u8]; 4] = [
        &(16 + size_of_val(&inq)).to_ne_bytes(),
        &libc::IPPROTO_TCP.to_ne_bytes(),
        &TCP_CM_INQ.to_ne_bytes(),
        &inq.to_ne_bytes(),
    ];
    let message = parts.concat();
    if let Some(control) = control.get_mut(..message.len()) {
        control.copy_from_slice(&message);
        // The next message would begin at a multiple of eight.
        msg.msg_controllen = message.len().next_multiple_of(8).min(room);
    }
    Ok(())
}

unsafe extern "C" fn write(u: Userdata, fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { send(u, fd, buf, len, 0) }
}

unsafe extern "C" fn writev(u: Userdata, fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let bufs = io_slices(iov, piece_count(iovcnt)?)?;
            runtime.send(fd, &bufs, 0).map(count)
        })
    }
}

unsafe extern "C" fn send(
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
            runtime.send(fd, &[buf], flags).map(count)
        })
    }
}

unsafe extern "C" fn sendto(
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
            runtime.send_to(fd, &[buf], flags, to).map(count)
        })
    }
}

/// Where a call sends that connects first (`MSG_FASTOPEN`). The address of a stream is else that of its connection, and
/// Linux does not look at the one of the call.
///
/// # Safety
/// As [`address`].
unsafe fn destination(
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if flags & libc::MSG_FASTOPEN == 0 || addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    match unsafe { address(addr, len) } {
        // Linux says so of AF_UNSPEC, which would end a connection.
        Err(Errno::EAFNOSUPPORT) => Err(Errno::EOPNOTSUPP),
        to => to.map(Some),
    }
}

unsafe extern "C" fn sendmsg(u: Userdata, fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: (a), (b) and (c).
    unsafe {
        call(u, |runtime| {
            let msg = msg.as_ref().ok_or(Errno::EFAULT)?;
            let bufs = io_slices(msg.msg_iov, msg.msg_iovlen)?;
            let to = destination(flags, msg.msg_name.cast(), msg.msg_namelen)?;
            runtime.send_to(fd, &bufs, flags, to).map(count)
        })
    }
}

unsafe extern "C" fn fcntl(u: Userdata, fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.fcntl(fd, command, argument)) }
}

unsafe extern "C" fn ioctl(
    u: Userdata,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> c_int {
    // SAFETY: (a) and (c): every request that is known takes a pointer to an int.
    unsafe {
        call(u, |runtime| {
            let number = runtime.ioctl(fd, request)?;
            *argument.as_mut().ok_or(Errno::EFAULT)? = number;
            Ok(0)
        })
    }
}

unsafe extern "C" fn close(u: Userdata, fd: c_int) -> c_int {
    // SAFETY: (a). The two ends of a pipe are the kernel's, and closing a number is safe.
    unsafe {
        call(
            u,
            |runtime| {
                if runtime.knows(fd) { runtime.close(fd).map(zero) } else { Ok(libc::close(fd)) }
            },
        )
    }
}

unsafe extern "C" fn shutdown(u: Userdata, fd: c_int, how: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.shutdown(fd, how).map(zero)) }
}

unsafe extern "C" fn getsockopt_of(
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
            let answer = runtime.getsockopt(fd, level, name)?;
            let room = bytes_mut(value, *len as usize)?;
            let fits = room.len().min(answer.len());
            room[..fits].copy_from_slice(&answer[..fits]);
            *len = socklen_t::try_from(fits).unwrap_or_default();
            Ok(0)
        })
    }
}

unsafe extern "C" fn setsockopt(
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

unsafe extern "C" fn poll(
    u: Userdata,
    fds: *mut pollfd,
    len: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
            let fds = match (len, fds.is_null()) {
                (0, _) => &mut [],
                (_, true) => return Err(Errno::EFAULT),
                (_, false) => std::slice::from_raw_parts_mut(fds, len),
            };
            let entry = |fd: &pollfd| PollEntry { fd: fd.fd, events: fd.events, revents: 0 };
            let mut entries: Vec<_> = fds.iter().map(entry).collect();
            let ready = runtime.poll(&mut entries, timeout)?;
            for (fd, entry) in fds.iter_mut().zip(&entries) {
                fd.revents = entry.revents;
            }
            Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
        })
    }
}

unsafe extern "C" fn netdev_send(u: Userdata, buf: *const c_void, len: usize) -> c_int {
    // SAFETY: (a) and (b).
    unsafe { call(u, |runtime| runtime.deliver(bytes(buf, len)?).map(zero)) }
}

unsafe extern "C" fn netdev_receive(
    u: Userdata,
    buf: *mut c_void,
    len: *mut usize,
    time_usecs: *mut c_longlong,
) -> c_int {
    // SAFETY: (a), (b) with `*len`, and (c).
    unsafe {
        call(u, |runtime| {
            let len = len.as_mut().ok_or(Errno::EFAULT)?;
            let room = bytes_mut(buf, std::mem::take(len))?;
            if let Some(sent) = runtime.next_sent() {
                let fits = room.len().min(sent.bytes.len());
                room[..fits].copy_from_slice(&sent.bytes[..fits]);
                *len = fits;
                if let Some(time_usecs) = time_usecs.as_mut() {
                    *time_usecs = c_longlong::try_from(sent.at.as_micros()).unwrap_or_default();
                }
            }
            Ok(0)
        })
    }
}

unsafe extern "C" fn usleep(u: Userdata, usec: c_uint) -> c_int {
    // SAFETY: (a).
    unsafe {
        call(u, |runtime| {
            runtime.sleep_for(Duration::from_micros(u64::from(usec)));
            Ok(0)
        })
    }
}

unsafe extern "C" fn gettimeofday(u: Userdata, tv: *mut timeval, _zone: *mut c_void) -> c_int {
    // SAFETY: (a) and (c).
    unsafe {
        call(u, |runtime| {
            let micros = runtime.read_clock().as_micros();
            if let Some(tv) = tv.as_mut() {
                tv.tv_sec = c_long::try_from(micros / 1_000_000).unwrap_or(c_long::MAX);
                tv.tv_usec = c_long::try_from(micros % 1_000_000).unwrap_or_default();
            }
            Ok(0)
        })
    }
}

unsafe extern "C" fn epoll_create(u: Userdata, size: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.epoll_create(size)) }
}

unsafe extern "C" fn epoll_ctl(
    u: Userdata,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: (a) and (c).
    unsafe {
        call(u, |runtime| {
            let event = event.as_ref().map(|e| Event { events: e.events, data: e.u64 });
            runtime.epoll_ctl(epoll, operation, fd, event).map(zero)
        })
    }
}

unsafe extern "C" fn epoll_wait(
    u: Userdata,
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: (a) and (b).
    unsafe {
        call(u, |runtime| {
            let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
            if events.is_null() {
                return Err(Errno::EFAULT);
            }
            let ready = runtime.epoll_wait(epoll, max, timeout)?;
            for (index, event) in ready.iter().enumerate() {
                // At most `max` events, which is what the array holds.
                let event = epoll_event { events: event.events, u64: event.data };
                events.add(index).write_unaligned(event);
            }
            Ok(c_int::try_from(ready.len()).unwrap_or(c_int::MAX))
        })
    }
}

/// A pipe of the kernel: what a stack has to do with pipes is `splice`.
unsafe extern "C" fn pipe(u: Userdata, fds: *mut c_int) -> c_int {
    // SAFETY: (a), and room for two descriptors by (b).
    unsafe { call(u, |_| if fds.is_null() { Err(Errno::EFAULT) } else { Ok(libc::pipe(fds)) }) }
}

unsafe extern "C" fn splice(
    u: Userdata,
    from: c_int,
    _from_offset: *mut libc::loff_t,
    to: c_int,
    _to_offset: *mut libc::loff_t,
    len: usize,
    _flags: c_uint,
) -> ssize_t {
    let mut buf = vec![0; len.min(SPLICE_BYTES_MAX)];
    // SAFETY: (a); the pipe is read from and written into memory of our own.
    unsafe {
        call(u, |runtime| {
            if runtime.knows(from) {
                let bytes = runtime.splice(from, Way::Receive, &mut buf)?;
                return Ok(libc::write(to, buf.as_ptr().cast(), bytes));
            }
            let bytes = libc::read(from, buf.as_mut_ptr().cast(), buf.len());
            match usize::try_from(bytes) {
                Ok(bytes) => runtime.splice(to, Way::Send, &mut buf[..bytes]).map(count),
                // errno is what the C library has just set.
                Err(_) => Ok(bytes),
            }
        })
    }
}
