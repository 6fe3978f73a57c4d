//! epoll sets, level- and edge-triggered.
//!
//! Linux: fs/eventpoll.c. There a wake-up of a socket puts its entry on the ready list, and an
//! edge-triggered entry is reported once for each. Differs from Linux: a set is scanned when the
//! driver asks, because the stack's sockets notify threads and not sets. An edge is a bit that the
//! last report did not have, or more bytes behind a bit that it had.
//!
//! The driver's descriptors are the keys. Not here: nested sets, and waiting.

use std::collections::VecDeque;

use stack::{Cx, Errno, host::Host};

use crate::{
    abi::{
        EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP,
        EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLWAKEUP,
    },
    socket::Socket,
};

/// Bits of `events` that are not events.
const MODES: u32 = EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
/// Bits that an exclusive entry may have (Linux: `EPOLLEXCLUSIVE_OK_BITS`).
const EXCLUSIVE_OK: u32 =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

/// An event of epoll_ctl(2) and epoll_wait(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// Bits of events.
    pub events: u32,
    /// The program's data.
    pub data: u64,
}

/// An epoll set over descriptors of type `K`.
#[derive(Debug)]
pub struct EpollSet<K> {
    /// Entries in the order in which they are reported: a reported entry moves to the end.
    interests: VecDeque<Interest<K>>,
}

/// One descriptor of a set.
#[derive(Clone, Copy, Debug)]
struct Interest<K> {
    key: K,
    events: u32,
    data: u64,
    /// Bits of the last report, and the progress of the connection by then.
    reported: (u32, u64),
}

impl<K> Default for EpollSet<K> {
    fn default() -> Self {
        Self { interests: VecDeque::new() }
    }
}

impl<K: Copy + PartialEq> EpollSet<K> {
    /// Removes a descriptor that was closed.
    pub fn forget(&mut self, key: K) {
        self.interests.retain(|interest| interest.key != key);
    }

    /// Adds, changes or removes a descriptor, as epoll_ctl(2). `event` is `None` for a null
    /// pointer.
    ///
    /// # Errors
    /// `EFAULT` without an event, `EEXIST`, `ENOENT`, `EINVAL` for an unknown operation or a misuse
    /// of `EPOLLEXCLUSIVE`. `EBADF`, `EPERM` and `ELOOP` are the driver's.
    pub fn control(
        &mut self,
        operation: i32,
        key: K,
        event: Option<EpollEvent>,
    ) -> Result<(), Errno> {
        let place = self.interests.iter().position(|interest| interest.key == key);
        if operation == EPOLL_CTL_DEL {
            return place.and_then(|at| self.interests.remove(at)).map(drop).ok_or(Errno::ENOENT);
        }
        let EpollEvent { events, data } = event.ok_or(Errno::EFAULT)?;
        let exclusive = events & EPOLLEXCLUSIVE != 0;
        if exclusive && (operation == EPOLL_CTL_MOD || events & !EXCLUSIVE_OK != 0) {
            return Err(Errno::EINVAL);
        }
        let interest = Interest { key, events, data, reported: (0, 0) };
        match (operation, place) {
            (EPOLL_CTL_ADD, None) => self.interests.push_back(interest),
            (EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EEXIST),
            (EPOLL_CTL_MOD, None) => return Err(Errno::ENOENT),
            (EPOLL_CTL_MOD, Some(at)) if self.interests[at].events & EPOLLEXCLUSIVE != 0 => {
                return Err(Errno::EINVAL);
            }
            (EPOLL_CTL_MOD, Some(at)) => self.interests[at] = interest,
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// At most `max` events. `status` answers the events of a descriptor and its progress
    /// ([`Socket::progress`]); `None` for a descriptor that is not open.
    ///
    /// A reported entry moves behind the others, so that a small `max` reaches all of them in turn.
    pub fn collect(
        &mut self,
        max: usize,
        mut status: impl FnMut(K) -> Option<(u32, u64)>,
    ) -> Vec<EpollEvent> {
        let mut events = Vec::new();
        let mut waiting = VecDeque::with_capacity(self.interests.len());
        let mut reported = VecDeque::new();
        for mut interest in self.interests.drain(..) {
            let is_room = events.len() < max;
            let event = is_room
                .then(|| status(interest.key))
                .flatten()
                .and_then(|(ready, progress)| interest.report(ready, progress));
            match event {
                Some(event) => {
                    events.push(event);
                    reported.push_back(interest);
                }
                None => waiting.push_back(interest),
            }
        }
        waiting.append(&mut reported);
        self.interests = waiting;
        events
    }
}

impl<K> Interest<K> {
    /// The event to report of a descriptor with `ready` bits, of which `progress` bytes have been
    /// received and acknowledged.
    fn report(&mut self, ready: u32, progress: u64) -> Option<EpollEvent> {
        if self.events & !MODES == 0 {
            return None;
        }
        let events = ready & (self.events | EPOLLERR | EPOLLHUP) & !MODES;
        if self.events & EPOLLET != 0 {
            let (bits, then) = std::mem::replace(&mut self.reported, (events, progress));
            if events & !bits == 0 && progress == then {
                return None;
            }
        }
        if events == 0 {
            return None;
        }
        if self.events & EPOLLONESHOT != 0 {
            self.events &= MODES;
        }
        Some(EpollEvent { events, data: self.data })
    }
}

impl Socket {
    /// Bytes that were received and acknowledged so far. An edge-triggered entry is reported again
    /// when they grow.
    #[must_use]
    pub fn progress(&self, host: &Host, cx: &mut Cx) -> u64 {
        self.stream().map_or(0, |stream| {
            let info = stream.with_tcb(host, cx, |tcb, _| tcb.info());
            info.bytes_received + info.bytes_acked
        })
    }
}
