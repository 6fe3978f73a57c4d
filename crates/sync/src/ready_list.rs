//! The list of an event loop: the sockets with news, and the thread that sleeps until there is one.
//!
//! Above: `quietline::poll` and `posix::epoll`. Below: [`crate::watchers`], which calls
//! [`Item::on_ready`](Watch::on_ready). Linux: the ready list of fs/eventpoll.c.
//!
//! An item is at most once in the list. It leaves the list before its socket is examined, so that
//! news after that examination puts it there again:
//!
//! ```text
//!  loop                                      socket
//!  item = list.pop()                         change the condition
//!  examine the condition                     item.on_ready(bits) → push, unless listed
//! ```
//!
//! Both sides take the lock of the list. Either the socket comes second and finds that the item has
//! left, or the loop comes second and sees the changed condition.
//!
//! Not here: the conditions, level and edge triggering (`quietline::poll`).

use core::fmt;
use std::collections::VecDeque;
use std::time::Duration;

use crate::eventcount::{EventCount, Token, WaitResult};
use crate::shim::plain::Arc;
use crate::shim::{AtomicBool, AtomicU8, AtomicUsize, Mutex, Ordering};
use crate::watchers::Watch;

#[cfg(test)]
mod tests;

/// A signal for another event loop, given while the list has items.
pub trait Bell: Send + Sync + fmt::Debug {
    /// The list has got an item.
    fn ring(&self);
    /// The list is empty.
    fn silence(&self);
}

/// Items with news, oldest first.
#[derive(Debug)]
pub struct ReadyList<T> {
    queue: Mutex<Queue<T>>,
    /// Threads that wait for an item.
    sleepers: EventCount,
    /// Number of times that a waiting thread was woken. Relaxed: a counter orders nothing.
    wakes: AtomicUsize,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<Arc<Item<T>>>,
    bell: Option<Box<dyn Bell>>,
    /// Whether the bell has rung since it was silenced.
    rung: bool,
    /// Whether the loop has ended, so that no item is listed any more.
    closed: bool,
}

/// One registered socket of a loop.
#[derive(Debug)]
pub struct Item<T> {
    list: Arc<ReadyList<T>>,
    /// Bits whose news put the item on the list.
    interest: AtomicU8,
    /// Whether the item is on the list. Written under the lock of the list. Relaxed: the lock
    /// orders it.
    listed: AtomicBool,
    /// Whether the socket has been removed from the loop. Relaxed: news that was under way may
    /// still be reported.
    removed: AtomicBool,
    /// Value of the loop.
    pub value: T,
}

impl<T> ReadyList<T> {
    /// Returns an empty list.
    #[must_use]
    pub fn new() -> Self {
        let queue = Queue { items: VecDeque::new(), bell: None, rung: false, closed: false };
        Self { queue: Mutex::new(queue), sleepers: EventCount::new(), wakes: AtomicUsize::new(0) }
    }

    /// Puts `item` at the end unless it is listed, and wakes a thread that waits.
    pub fn push(&self, item: &Arc<Item<T>>) {
        if self.append(item, true) && self.sleepers.notify_one() {
            self.wakes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Puts `item` at the end unless it is listed, for the thread that has just taken it: wakes no
    /// thread. [`settle`](Self::settle) must follow.
    pub fn put_back(&self, item: &Arc<Item<T>>) {
        self.append(item, false);
    }

    fn append(&self, item: &Arc<Item<T>>, rings: bool) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed || item.listed.load(Ordering::Relaxed) {
            return false;
        }
        item.listed.store(true, Ordering::Relaxed);
        queue.items.push_back(Arc::clone(item));
        if rings {
            queue.ring();
        }
        true
    }

    /// Takes the oldest item. The caller examines its condition afterwards.
    pub fn pop(&self) -> Option<Arc<Item<T>>> {
        let mut queue = self.queue.lock();
        let item = queue.items.pop_front()?;
        item.listed.store(false, Ordering::Relaxed);
        Some(item)
    }

    /// Returns the number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.lock().items.len()
    }

    /// Returns whether no item has news.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the bell agree with the list, and wakes a thread that waits if items are left: the
    /// thread that took them first may not come back, and an item that is listed wakes no thread
    /// again.
    pub fn settle(&self) {
        let has_items = {
            let mut queue = self.queue.lock();
            let has_items = !queue.items.is_empty();
            if has_items {
                queue.ring();
            } else {
                queue.silence();
            }
            has_items
        };
        if has_items && self.sleepers.notify_one() {
            self.wakes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the bell, which rings at once if there is an item. Returns false, and changes nothing,
    /// if the list has one already.
    pub fn set_bell(&self, bell: Box<dyn Bell>) -> bool {
        let mut queue = self.queue.lock();
        if queue.bell.is_some() {
            return false;
        }
        (queue.bell, queue.rung) = (Some(bell), false);
        if !queue.items.is_empty() {
            queue.ring();
        }
        true
    }

    /// Sleeps until there is an item, at most `timeout`. Returns false after that time.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let token: Token<'_> = self.sleepers.prepare();
        if !self.is_empty() {
            self.sleepers.cancel(token);
            return true;
        }
        self.sleepers.wait(token, timeout) == WaitResult::Notified || !self.is_empty()
    }

    /// Returns how often a waiting thread was woken.
    #[must_use]
    pub fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Ends the list: its items are dropped, and none is listed any more.
    pub fn close(&self) {
        let items = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            queue.silence();
            core::mem::take(&mut queue.items)
        };
        drop(items);
    }
}

impl<T> Queue<T> {
    fn ring(&mut self) {
        if let Some(bell) = self.bell.as_ref().filter(|_| !self.rung) {
            self.rung = true;
            bell.ring();
        }
    }

    fn silence(&mut self) {
        if let Some(bell) = self.bell.as_ref().filter(|_| self.rung) {
            self.rung = false;
            bell.silence();
        }
    }
}

impl<T> Default for ReadyList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Item<T> {
    /// Returns an item of `list`, which is put there by news of `interest`.
    #[must_use]
    pub fn new(list: &Arc<ReadyList<T>>, interest: u8, value: T) -> Arc<Self> {
        Arc::new(Self {
            list: Arc::clone(list),
            interest: AtomicU8::new(interest),
            listed: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            value,
        })
    }

    /// Ends the interest in any news, for a report that is the only one. Returns whether there was
    /// an interest: of two threads that found the same news, one makes the report.
    #[must_use]
    pub fn disarm(&self) -> bool {
        self.interest.swap(0, Ordering::Relaxed) != 0
    }

    /// Returns whether the socket has been removed from the loop.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Returns the bits whose news put the item on the list.
    #[must_use]
    pub fn interest(&self) -> u8 {
        self.interest.load(Ordering::Relaxed)
    }
}

/// A watch that puts its item on the list.
#[derive(Debug)]
pub struct Listing<T>(pub Arc<Item<T>>);

impl<T: Send + Sync + fmt::Debug> Watch for Listing<T> {
    fn on_ready(&self, bits: u8) {
        if self.0.interest() & bits != 0 {
            self.0.list.push(&self.0);
        }
    }

    fn on_removed(&self) {
        self.0.removed.store(true, Ordering::Relaxed);
    }
}
