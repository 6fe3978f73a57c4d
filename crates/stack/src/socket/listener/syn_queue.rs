//! The requests (half-open connections) of one listener: their number, and the list from which
//! `Listener::close` ends them all.
//!
//! Linux: `struct request_sock_queue` keeps only the count (`qlen`); there, each request checks for
//! itself whether its listener is closed. Here a request is admitted under the lock that `close`
//! takes, so a SYN processed on another core cannot leave a request whose listener is closed.
//!
//! An interceptor of flows has such a queue, too.
//!
//! Not here: the lookup of a request by its four-tuple (`demux`), the accept queue (`listener`).

use std::sync::{
    Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

use super::request::RequestSocket;

/// Index of a request in its listener's queue.
pub(super) type Slot = usize;

/// Reason why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The listener is closed.
    Closed,
    /// The queue is full.
    Full,
}

/// Requests of one listener.
#[derive(Debug)]
pub(in crate::socket) struct SynQueue {
    /// Number of requests, to read without the lock. Written under the lock. Relaxed: the bound is
    /// checked under the lock.
    len: AtomicUsize,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    closed: bool,
    /// Requests by slot. Weak: the established table owns the requests, and they own their
    /// listener.
    requests: Vec<Weak<RequestSocket>>,
    free: Vec<Slot>,
}

impl SynQueue {
    pub(in crate::socket) fn new() -> Self {
        Self { len: AtomicUsize::new(0), slots: Mutex::default() }
    }

    /// Returns the number of requests, read without the lock.
    pub(in crate::socket) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Adds a request if there are fewer than `limit`. The request counts until
    /// [`remove`](Self::remove), or until the queue is closed.
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

    /// Removes the request in `slot`, which has ended. Called once for each added request.
    pub(super) fn remove(&self, slot: Slot) {
        let mut slots = self.lock();
        // `close` has taken all requests.
        if slots.closed {
            return;
        }
        slots.requests[slot] = Weak::new();
        slots.free.push(slot);
        self.len.store(self.len() - 1, Ordering::Relaxed);
    }

    /// Closes the queue to new requests and returns the existing ones, which the caller must end.
    pub(in crate::socket) fn close(&self) -> Vec<Weak<RequestSocket>> {
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
    fn the_number_of_requests_is_bounded_and_slots_are_reused() {
        let queue = SynQueue::new();
        let first = queue.add(Weak::new(), 2).expect("room");
        let second = queue.add(Weak::new(), 2).expect("room");
        assert_ne!(first, second);
        assert_eq!(queue.add(Weak::new(), 2), Err(Refused::Full));
        queue.remove(first);
        assert_eq!((queue.len(), queue.add(Weak::new(), 2)), (1, Ok(first)));
    }

    #[test]
    fn after_close_no_request_is_added_and_a_removal_changes_nothing() {
        let queue = SynQueue::new();
        let slot = queue.add(Weak::new(), 2).expect("room");
        assert_eq!(queue.close().len(), 1);
        queue.remove(slot);
        assert_eq!(queue.len(), 0);
        assert_eq!(queue.add(Weak::new(), 2), Err(Refused::Closed));
    }
}
