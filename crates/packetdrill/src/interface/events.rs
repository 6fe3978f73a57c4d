//! Calls that wait for events, the device, and the clock.

use std::{
    ffi::{c_int, c_long, c_longlong, c_uint, c_void},
    time::Duration,
};

use libc::{epoll_event, pollfd, timeval};
use posix::{EpollEvent, PollEntry};
use stack::Errno;

use super::{
    Userdata,
    pointers::{bytes, bytes_mut, call, zero},
};

pub(super) unsafe extern "C" fn poll(
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

pub(super) unsafe extern "C" fn netdev_send(u: Userdata, buf: *const c_void, len: usize) -> c_int {
    // SAFETY: (a) and (b).
    unsafe { call(u, |runtime| runtime.deliver(bytes(buf, len)?).map(zero)) }
}

pub(super) unsafe extern "C" fn netdev_receive(
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

pub(super) unsafe extern "C" fn usleep(u: Userdata, usec: c_uint) -> c_int {
    // SAFETY: (a).
    unsafe {
        call(u, |runtime| {
            runtime.sleep_for(Duration::from_micros(u64::from(usec)));
            Ok(0)
        })
    }
}

pub(super) unsafe extern "C" fn gettimeofday(
    u: Userdata,
    tv: *mut timeval,
    _zone: *mut c_void,
) -> c_int {
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

pub(super) unsafe extern "C" fn epoll_create(u: Userdata, size: c_int) -> c_int {
    // SAFETY: (a).
    unsafe { call(u, |runtime| runtime.epoll_create(size)) }
}

pub(super) unsafe extern "C" fn epoll_ctl(
    u: Userdata,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: (a) and (c).
    unsafe {
        call(u, |runtime| {
            let event = event.as_ref().map(|e| EpollEvent { events: e.events, data: e.u64 });
            runtime.epoll_ctl(epoll, operation, fd, event).map(zero)
        })
    }
}

pub(super) unsafe extern "C" fn epoll_wait(
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
                // At most `max` events, the length of the array.
                let event = epoll_event { events: event.events, u64: event.data };
                events.add(index).write_unaligned(event);
            }
            Ok(c_int::try_from(ready.len()).unwrap_or(c_int::MAX))
        })
    }
}
