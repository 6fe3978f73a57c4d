//! The requests of one listener: how many there are, and which, so that closing the listener ends them all.
//!
//! Linux: `struct request_sock_queue` keeps the count (`qlen`); its requests find out about a closed listener by
//! themselves. Here the last word on whether a request begins is spoken under the lock that closing takes, so that a SYN
//! handled on another core cannot leave a request behind whose listener is gone.
//!
//! Not here: the look-up of a request by its four-tuple (`demux`), the accept queue (`listener`).

use std::sync::{
    Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

use super::request::RequestSocket;

/// A request's place in its listener's queue.
pub(super) type Slot = usize;

/// Why a request may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The listener is closed.
    Closed,
    /// As many wait as may.
    Full,
}

/// See the module head.
#[derive(Debug)]
pub(in crate::socket) struct SynQueue {
    /// Length, to look without the lock. Written under it. Relaxed: the bound is decided under the lock.
    len: AtomicUsize,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    closed: bool,
    /// Weak: the established table owns the requests, and they own their listener.
    requests: Vec<Weak<RequestSocket>>,
    free: Vec<Slot>,
}

impl SynQueue {
    pub(super) fn new() -> Self {
        Self { len: AtomicUsize::new(0), slots: Mutex::default() }
    }

    /// Requests that wait, as far as can be told without the lock.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Takes a request in if fewer than `limit` wait. It counts until [`remove`](Self::remove), or until the queue is
    /// closed.
    pub(super) fn add(&self, request: Weak<RequestSocket>, limit: usize) -> Result<Slot, Refused> {
        let mut slots = self.lock();
        if slots.closed {
            return Err(Refused::Closed);
        }
        let len = self.len();
        if len >= limit {
            return Err(Refused::Full);
        }
        self.len.store(len + 1, Ordering::Relaxed);
        Ok(match slots.free.pop() {
            Some(slot) => {
                slots.requests[slot] = request;
                slot
            }
            None => {
                slots.requests.push(request);
                slots.requests.len() - 1
            }
        })
    }

    /// The request in `slot` has ended, one way or the other. Once for each that was added.
    pub(super) fn remove(&self, slot: Slot) {
        let mut slots = self.lock();
        // Closing has taken them all.
        if slots.closed {
            return;
        }
        slots.requests[slot] = Weak::new();
        slots.free.push(slot);
        self.len.store(self.len() - 1, Ordering::Relaxed);
    }

    /// Nothing begins from here on. The requests that wait are the caller's to end.
    pub(super) fn close(&self) -> Vec<Weak<RequestSocket>> {
        let mut slots = self.lock();
        slots.closed = true;
        slots.free = Vec::new();
        self.len.store(0, Ordering::Relaxed);
        core::mem::take(&mut slots.requests)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_kept_and_slots_are_used_again() {
        let queue = SynQueue::new();
        let first = queue.add(Weak::new(), 2).expect("room");
        let second = queue.add(Weak::new(), 2).expect("room");
        assert_ne!(first, second);
        assert_eq!(queue.add(Weak::new(), 2), Err(Refused::Full));
        queue.remove(first);
        assert_eq!((queue.len(), queue.add(Weak::new(), 2)), (1, Ok(first)));
    }

    #[test]
    fn nothing_begins_after_close_and_nothing_is_counted_twice() {
        let queue = SynQueue::new();
        let slot = queue.add(Weak::new(), 2).expect("room");
        assert_eq!(queue.close().len(), 1);
        queue.remove(slot);
        assert_eq!(queue.len(), 0);
        assert_eq!(queue.add(Weak::new(), 2), Err(Refused::Closed));
    }
}
