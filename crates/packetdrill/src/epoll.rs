//! epoll sets, level- and edge-triggered.
//!
//! Linux: fs/eventpoll.c. There a socket's wake-ups put it on the ready list, and an edge-triggered entry is told once
//! for each. Here an entry is looked at when somebody asks: an edge is a bit that was not there before, or more bytes
//! than before behind a bit that was.

use std::{collections::BTreeMap, os::fd::RawFd};

use stack::{Cx, Errno, host::Host};

use crate::{
    descriptor::Descriptor,
    readiness::patience_of,
    runtime::{Runtime, State},
};

const EPOLLET: u32 = 1 << 31;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLERR: u32 = 0x8;
const EPOLLHUP: u32 = 0x10;
/// Bits of `events` that are not events.
const MODES: u32 = EPOLLET | EPOLLONESHOT | 1 << 29 | 1 << 28;

/// What a program wants to know of one descriptor.
#[derive(Clone, Copy, Debug)]
struct Interest {
    events: u32,
    data: u64,
    /// What was told last, and how much had arrived and been acknowledged by then: one who waits for an edge is told
    /// again when either grows.
    told: (u32, u64),
}

/// An epoll set.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    interests: BTreeMap<RawFd, Interest>,
}

/// An event as `epoll_wait` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl Epoll {
    /// The descriptor was closed.
    pub(crate) fn forget(&mut self, fd: RawFd) {
        self.interests.remove(&fd);
    }

    fn control(&mut self, operation: i32, fd: RawFd, event: Option<Event>) -> Result<(), Errno> {
        if operation == libc::EPOLL_CTL_DEL {
            return self.interests.remove(&fd).map(drop).ok_or(Errno::ENOENT);
        }
        let Event { events, data } = event.ok_or(Errno::EFAULT)?;
        match (operation, self.interests.contains_key(&fd)) {
            (libc::EPOLL_CTL_ADD, true) => return Err(Errno::EEXIST),
            (libc::EPOLL_CTL_MOD, false) => return Err(Errno::ENOENT),
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _) => {}
            _ => return Err(Errno::EINVAL),
        }
        self.interests.insert(fd, Interest { events, data, told: (0, 0) });
        Ok(())
    }
}

impl Interest {
    /// What there is to tell about a descriptor with `ready` bits, of which `progress` bytes have come and gone.
    fn tell(&mut self, ready: u32, progress: u64) -> Option<Event> {
        if self.events & !MODES == 0 {
            return None;
        }
        let events = ready & (self.events | EPOLLERR | EPOLLHUP) & !MODES;
        if self.events & EPOLLET != 0 {
            let (told, then) = std::mem::replace(&mut self.told, (events, progress));
            if events & !told == 0 && progress == then {
                return None;
            }
        }
        if events == 0 {
            return None;
        }
        if self.events & EPOLLONESHOT != 0 {
            self.events &= MODES;
        }
        Some(Event { events, data: self.data })
    }
}

impl Runtime {
    pub(crate) fn epoll_create(&self, size: i32) -> Result<RawFd, Errno> {
        if size <= 0 {
            return Err(Errno::EINVAL);
        }
        self.run(|state, _, _| state.descriptors.insert(Descriptor::Epoll(Epoll::default())))
    }

    pub(crate) fn epoll_ctl(
        &self,
        epoll: RawFd,
        operation: i32,
        fd: RawFd,
        event: Option<Event>,
    ) -> Result<(), Errno> {
        self.run(|state, _, _| {
            state.descriptors.socket(fd)?;
            state.descriptors.epoll_mut(epoll)?.control(operation, fd, event)
        })
    }

    /// The events there are, at most `max`.
    pub(crate) fn epoll_wait(
        &self,
        epoll: RawFd,
        max: usize,
        timeout_ms: i32,
    ) -> Result<Vec<Event>, Errno> {
        if max == 0 {
            return Err(Errno::EINVAL);
        }
        let result = self.wait_for(patience_of(timeout_ms), |state, host, cx| {
            let events = state.epoll_events(epoll, max, host, cx)?;
            if events.is_empty() { Err(Errno::EAGAIN) } else { Ok(events) }
        });
        match result {
            Err(Errno::EAGAIN) => Ok(Vec::new()),
            result => result,
        }
    }
}

impl State {
    fn epoll_events(
        &mut self,
        epoll: RawFd,
        max: usize,
        host: &Host,
        cx: &mut Cx,
    ) -> Result<Vec<Event>, Errno> {
        let fds: Vec<RawFd> =
            self.descriptors.epoll_mut(epoll)?.interests.keys().copied().collect();
        let mut events = Vec::new();
        for fd in fds {
            if events.len() == max {
                break;
            }
            let ready = u32::from(self.poll_events(fd)?.cast_unsigned());
            let progress = self.descriptors.stream(fd)?.map_or(0, |stream| {
                let info = stream.with_tcb(host, cx, |tcb, _| tcb.info());
                info.bytes_received + info.bytes_acked
            });
            let epoll = self.descriptors.epoll_mut(epoll)?;
            let told = epoll.interests.get_mut(&fd).and_then(|i| i.tell(ready, progress));
            events.extend(told);
        }
        Ok(events)
    }
}
