//! epoll sets, level- and edge-triggered.
//!
//! A set has a ready list ([`sync::ReadyList`]). A socket that has news puts its entry on the list,
//! and [`EpollSet::collect`] examines only the entries there. Linux: `ep_poll_callback` and
//! `ep_send_events` in fs/eventpoll.c.
//!
//! A level-triggered entry that was reported returns to the end of the list, and leaves it when it
//! is found not ready. An edge-triggered entry is reported once for each notification of its
//! socket: a bit that becomes true, or more bytes behind a bit that was true.
//!
//! The driver's descriptors are the keys. Not here: nested sets. A driver that waits for events
//! sleeps on [`EpollSet::ready_list`].

use std::{
    collections::{BTreeMap, btree_map::Entry as Place},
    fmt::Debug,
    sync::Arc,
};

use stack::{Errno, Readiness};
use sync::{Item, Listing, ReadyList, Watch, WatchKey};

use crate::{
    abi::{
        EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP,
        EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLWAKEUP, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM,
    },
    watch::Watched,
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

/// One descriptor of a set.
#[derive(Clone, Copy, Debug)]
pub struct Interest<K> {
    key: K,
    /// Events and modes that the program has set; `EPOLLERR` and `EPOLLHUP` always.
    event: EpollEvent,
}

/// An epoll set over descriptors of type `K`.
#[derive(Debug)]
pub struct EpollSet<K> {
    list: Arc<ReadyList<Interest<K>>>,
    /// Name of the set among the observers of a socket.
    watch_key: WatchKey,
    entries: BTreeMap<K, Arc<Item<Interest<K>>>>,
}

impl<K> Default for EpollSet<K> {
    fn default() -> Self {
        Self {
            list: Arc::new(ReadyList::new()),
            watch_key: WatchKey::new(),
            entries: BTreeMap::new(),
        }
    }
}

impl<K: Copy + Ord + Debug + Send + Sync + 'static> EpollSet<K> {
    /// Removes a descriptor that was closed.
    pub fn forget(&mut self, key: K) {
        if let Some(item) = self.entries.remove(&key) {
            // Its socket may still have the watch, if a call uses it.
            Listing(item).on_removed();
        }
    }

    /// Adds, changes or removes a descriptor, as epoll_ctl(2). `socket` is the one that `key`
    /// stands for; `event` is `None` for a null pointer.
    ///
    /// # Errors
    /// `EFAULT` without an event, `EEXIST`, `ENOENT`, `EINVAL` for an unknown operation or a misuse
    /// of `EPOLLEXCLUSIVE`. `EBADF`, `EPERM` and `ELOOP` are the driver's.
    pub fn control(
        &mut self,
        operation: i32,
        key: K,
        socket: &(impl Watched + ?Sized),
        event: Option<EpollEvent>,
    ) -> Result<(), Errno> {
        if operation == EPOLL_CTL_DEL {
            self.entries.remove(&key).ok_or(Errno::ENOENT)?;
            socket.unwatch(self.watch_key);
            return Ok(());
        }
        let event = event.ok_or(Errno::EFAULT)?;
        let exclusive = event.events & EPOLLEXCLUSIVE != 0;
        if exclusive && (operation == EPOLL_CTL_MOD || event.events & !EXCLUSIVE_OK != 0) {
            return Err(Errno::EINVAL);
        }
        let interest = || {
            let events = event.events | EPOLLERR | EPOLLHUP;
            let value = Interest { key, event: EpollEvent { events, ..event } };
            Item::new(&self.list, readiness_of(events).bits(), value)
        };
        let item = match (operation, self.entries.entry(key)) {
            (EPOLL_CTL_ADD, Place::Vacant(place)) => Arc::clone(place.insert(interest())),
            (EPOLL_CTL_ADD, Place::Occupied(_)) => return Err(Errno::EEXIST),
            (EPOLL_CTL_MOD, Place::Vacant(_)) => return Err(Errno::ENOENT),
            (EPOLL_CTL_MOD, Place::Occupied(mut place)) => {
                if place.get().value.event.events & EPOLLEXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                let item = interest();
                place.insert(Arc::clone(&item));
                socket.unwatch(self.watch_key);
                item
            }
            _ => return Err(Errno::EINVAL),
        };
        socket.watch(self.watch_key, Arc::new(Listing(Arc::clone(&item))));
        // The socket may be ready: the next call examines it.
        self.list.push(&item);
        Ok(())
    }

    /// At most `max` events. `status` answers the events of a descriptor; `None` for a descriptor
    /// that is not open.
    ///
    /// A reported entry moves behind the others, so that a small `max` reaches all of them in turn.
    pub fn collect(&self, max: usize, mut status: impl FnMut(K) -> Option<u32>) -> Vec<EpollEvent> {
        let mut events = Vec::new();
        // Level-triggered entries return to the end of the list, and are examined once.
        for _ in 0..self.list.len() {
            if events.len() >= max {
                break;
            }
            let Some(item) = self.list.pop() else { break };
            let Interest { key, event } = item.value;
            if item.is_removed() || item.interest() == 0 {
                continue;
            }
            let ready = status(key).unwrap_or(0) & event.events & !MODES;
            if ready == 0 || (event.events & EPOLLONESHOT != 0 && !item.disarm()) {
                continue;
            }
            events.push(EpollEvent { events: ready, ..event });
            if event.events & (EPOLLET | EPOLLONESHOT) == 0 {
                self.list.put_back(&item);
            }
        }
        self.list.settle();
        events
    }

    /// The list on which a driver sleeps until an entry has news.
    #[must_use]
    pub const fn ready_list(&self) -> &Arc<ReadyList<Interest<K>>> {
        &self.list
    }
}

impl<K> Drop for EpollSet<K> {
    fn drop(&mut self) {
        // Sockets may have watches that refer to the list until they are closed.
        self.list.close();
    }
}

/// Returns the conditions of a socket whose news may change one of `events`.
fn readiness_of(events: u32) -> Readiness {
    let of = |bits: u32, readiness: Readiness| {
        if events & bits == 0 { Readiness::empty() } else { readiness }
    };
    let bit = |bit: i16| u32::from(bit.cast_unsigned());
    Readiness::HUP
        | Readiness::ERROR
        | of(EPOLLIN | bit(POLLRDNORM), Readiness::READ | Readiness::RDHUP)
        | of(EPOLLOUT | bit(POLLWRNORM), Readiness::WRITE)
        | of(bit(POLLPRI), Readiness::PRI)
        | of(bit(POLLRDHUP), Readiness::RDHUP)
}
