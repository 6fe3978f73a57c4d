//! Waiting for many sockets: poll and epoll.

use std::{ffi::c_int, sync::Arc, time::Instant};

use libc::{epoll_event, nfds_t, pollfd};
use posix::{EpollEvent, PollEntry, limit_of_ms};
use stack::Errno;

use crate::{
    boundary::{answer, elements_mut, int},
    call::{Waiter, sleep_on},
    table::{self, Epoll, Object},
};

/// Largest number of events of one call (`EP_MAX_EVENTS`).
const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// As poll(2), for sockets of this library. `POLLNVAL` for any other number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_poll(fds: *mut pollfd, len: nfds_t, timeout_ms: c_int) -> c_int {
    answer(|| {
        let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
        // SAFETY: (b).
        let fds = unsafe { elements_mut(fds, len) }?;
        let entry = |fd: &pollfd| PollEntry { fd: fd.fd, events: fd.events, revents: 0 };
        let mut entries: Vec<_> = fds.iter().map(entry).collect();
        let ready = poll(&mut entries, timeout_ms);
        for (fd, entry) in fds.iter_mut().zip(&entries) {
            fd.revents = entry.revents;
        }
        Ok(int(ready))
    })
}

fn poll(entries: &mut [PollEntry], timeout_ms: c_int) -> usize {
    let look = |entries: &mut [PollEntry]| {
        posix::poll(entries, |fd| Some(table::find(fd).ok()?.poll_events()))
    };
    let ready = look(entries);
    if ready > 0 || timeout_ms == 0 {
        return ready;
    }
    let deadline = limit_of_ms(timeout_ms).and_then(|limit| Instant::now().checked_add(limit));
    let objects: Vec<Arc<Object>> =
        entries.iter().filter_map(|entry| table::find(entry.fd).ok()).collect();
    let sockets = || objects.iter().filter_map(|object| object.watched());
    let waiter = Waiter::new();
    sockets().for_each(|socket| {
        waiter.watch(socket);
    });
    let ready = loop {
        let ready = look(entries);
        if ready > 0 || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            break ready;
        }
        waiter.sleep(objects.iter().filter_map(|object| object.stack()), deadline);
    };
    sockets().for_each(|socket| waiter.unwatch(socket));
    ready
}

/// As epoll_create1(2). The flags have no effect: no descriptor of the kernel is opened.
#[unsafe(no_mangle)]
pub extern "C" fn ql_epoll_create1(flags: c_int) -> c_int {
    answer(|| {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Errno::EINVAL.into());
        }
        Ok(table::insert(Object::Epoll(Epoll::default()))?)
    })
}

/// Returns the epoll set behind a number.
fn set(object: &Object) -> Result<&Epoll, Errno> {
    match object {
        Object::Epoll(epoll) => Ok(epoll),
        _ => Err(Errno::EINVAL),
    }
}

/// As epoll_ctl(2). A set contains sockets, and no other sets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    answer(|| {
        let (epoll, object) = (table::find(epfd)?, table::find(fd)?);
        // SAFETY: (c). The structure is packed, so its fields are read by value.
        let event = unsafe { event.as_ref() };
        let event = event.map(|event| EpollEvent { events: event.events, data: event.u64 });
        let socket = object.watched().ok_or(Errno::EINVAL)?;
        set(&epoll)?.lock().control(operation, fd, socket, event)?;
        object.joins(&epoll);
        set(&epoll)?.note_stack(object.stack());
        Ok(0)
    })
}

/// As epoll_wait(2). Costs as much as there are sockets with news, however many the set has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    answer(|| {
        let object = table::find(epfd)?;
        let epoll = set(&object)?;
        let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
        if max == 0 || max > EVENTS_MAX {
            return Err(Errno::EINVAL.into());
        }
        if events.is_null() {
            return Err(Errno::EFAULT.into());
        }
        let ready = wait(epoll, max, timeout_ms);
        for (place, event) in ready.iter().enumerate() {
            let event = epoll_event { events: event.events, u64: event.data };
            // SAFETY: not null, and by (b) writable for `max` elements, of which `ready` has no
            // more. The memory of the program need not be initialized.
            unsafe { events.add(place).write_unaligned(event) };
        }
        Ok(int(ready.len()))
    })
}

fn wait(epoll: &Epoll, max: usize, timeout_ms: c_int) -> Vec<EpollEvent> {
    let deadline = limit_of_ms(timeout_ms).and_then(|limit| Instant::now().checked_add(limit));
    let list = Arc::clone(epoll.lock().ready_list());
    loop {
        let ready = epoll.lock().collect(max, |fd| {
            Some(u32::from(table::find(fd).ok()?.poll_events().cast_unsigned()))
        });
        if !ready.is_empty() || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return ready;
        }
        sleep_on(&list, epoll.manual_stacks().iter(), deadline);
    }
}
