//! Notification of tasks and event loops about the conditions of a socket.
//!
//! Above: every socket in `stack` has [`Watchers`] beside its event counts. Linux: entries of a
//! wait queue with a function of their own (`ep_poll_callback`).
//!
//! There are two kinds of observers. A **watch** is registered until it is removed, and is called
//! for every notification. A **task** is a `Waker` that one notification consumes.
//!
//! ```text
//!  observer                                  notifier
//!  add, or set_task                          make the condition true
//!  pass the lock of the condition            pass the same lock
//!  condition true? → go on                   notify(bits)
//! ```
//!
//! No notification is lost: of the two passes through the lock, one is second and sees what came
//! before the other. A notifier passes the lock anyway, because it changes the condition under it
//! ([`SocketLock::pass`](crate::SocketLock::pass), or a mutex). A notification without observers is
//! one relaxed load.
//!
//! Observers are called without any lock held, so that they may add and remove observers. For that
//! reason a watch may be called once more after its removal, by a notifier that was already under
//! way.
//!
//! Not here: the meaning of the bits, and the list of an event loop ([`crate::ready_list`]).

use core::fmt;
use core::task::Waker;

use crate::shim::plain::Arc;
use crate::shim::{AtomicBool, Mutex, Ordering, unique_number};

#[cfg(test)]
mod tests;

/// An observer that stays registered.
pub trait Watch: Send + Sync + fmt::Debug {
    /// Called when conditions in `bits` have become true, or have been true and something was added
    /// to them: more bytes to read, space after a write that found none. Runs on a thread of the
    /// stack, which may own the socket of a call or a core, so it must not call a socket and must
    /// not wait, and should only notify another thread.
    fn on_ready(&self, bits: u8);

    /// Called after the watch was removed, or its socket was closed by the application.
    fn on_removed(&self) {}
}

/// Name of an observer of any number of sockets. No two observers of a process have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchKey(u64);

impl WatchKey {
    /// Key of tasks that have none: a task is then known by its waker.
    pub const BY_WAKER: Self = Self(u64::MAX);

    /// Returns a new key.
    #[must_use]
    pub fn new() -> Self {
        Self(unique_number())
    }
}

impl Default for WatchKey {
    fn default() -> Self {
        Self::new()
    }
}

/// The observers of one socket.
#[derive(Debug)]
pub struct Watchers {
    /// Whether `observers` has any. Written under its lock, read by notifiers without it. Relaxed:
    /// the lock of the condition orders it.
    any: AtomicBool,
    observers: Mutex<Option<Box<Observers>>>,
}

/// One version of the list of watches.
type Watches = Arc<[(WatchKey, Arc<dyn Watch>)]>;

#[derive(Debug, Default)]
struct Observers {
    /// A notifier calls the watches of one version of the list after it has released the lock.
    watches: Option<Watches>,
    tasks: Vec<Task>,
}

/// A task that waits for one notification.
#[derive(Debug)]
struct Task {
    key: WatchKey,
    /// Bits that it waits for.
    bits: u8,
    waker: Waker,
}

impl Watchers {
    /// Returns a socket's list, without observers.
    #[must_use]
    pub fn new() -> Self {
        Self { any: AtomicBool::new(false), observers: Mutex::new(None) }
    }

    /// Adds a watch. Returns false, and changes nothing, if there is one with this key. The caller
    /// then passes the lock of the condition and checks the condition.
    pub fn add(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        let mut observers = self.observers.lock();
        let list = observers.get_or_insert_default();
        let before = list.watches.as_deref().unwrap_or_default();
        if before.iter().any(|(other, _)| *other == key) {
            return false;
        }
        list.watches = Some(before.iter().cloned().chain([(key, watch)]).collect());
        self.any.store(true, Ordering::Relaxed);
        true
    }

    /// Removes the watch with this key. Returns false if there is none.
    pub fn remove(&self, key: WatchKey) -> bool {
        let mut observers = self.observers.lock();
        let Some(list) = observers.as_mut() else { return false };
        let before = list.watches.as_deref().unwrap_or_default();
        let found = before.iter().find(|(other, _)| *other == key);
        let Some((_, removed)) = found.cloned() else { return false };
        let rest: Arc<[_]> = before.iter().filter(|(other, _)| *other != key).cloned().collect();
        let old = core::mem::replace(&mut list.watches, Some(rest).filter(|rest| !rest.is_empty()));
        self.note(list);
        drop(observers);
        drop(old);
        removed.on_removed();
        true
    }

    /// Registers `waker` for the next notification with one of `bits`, in place of the waker that
    /// has the same key. With [`WatchKey::BY_WAKER`] a waker is registered once, for the bits of
    /// all its calls since it was woken. The caller then passes the lock of the condition and
    /// checks the condition.
    pub fn set_task(&self, key: WatchKey, bits: u8, waker: &Waker) {
        let mut observers = self.observers.lock();
        let tasks = &mut observers.get_or_insert_default().tasks;
        let is_same = |task: &&mut Task| {
            task.key == key && (key != WatchKey::BY_WAKER || task.waker.will_wake(waker))
        };
        let mut replaced = None;
        match tasks.iter_mut().find(is_same) {
            // The task may wait in one poll for data and in the next for space.
            Some(task) if key == WatchKey::BY_WAKER => task.bits |= bits,
            Some(task) if task.waker.will_wake(waker) => task.bits = bits,
            Some(task) => {
                task.bits = bits;
                replaced = Some(core::mem::replace(&mut task.waker, waker.clone()));
            }
            None => tasks.push(Task { key, bits, waker: waker.clone() }),
        }
        self.any.store(true, Ordering::Relaxed);
        drop(observers);
        // The end of a waker may be the end of its task, which runs foreign code.
        drop(replaced);
    }

    /// Removes the task with this key, which then is not woken any more.
    pub fn remove_task(&self, key: WatchKey) {
        let mut observers = self.observers.lock();
        let Some(list) = observers.as_mut() else { return };
        let place = list.tasks.iter().position(|task| task.key == key);
        let removed = place.map(|place| list.tasks.swap_remove(place));
        self.note(list);
        drop(observers);
        drop(removed);
    }

    /// Removes all observers.
    pub fn clear(&self) {
        // Relaxed: the caller has no observer that is added at the same time.
        if self.any.load(Ordering::Relaxed) {
            let removed = {
                let mut observers = self.observers.lock();
                self.any.store(false, Ordering::Relaxed);
                observers.take()
            };
            let watches = removed.as_ref().and_then(|observers| observers.watches.as_deref());
            watches.unwrap_or_default().iter().for_each(|(_, watch)| watch.on_removed());
        }
    }

    /// Calls every watch, and wakes the tasks that wait for one of `bits`. The caller has changed
    /// the condition under its lock and has released that lock. Returns the number of tasks woken
    /// and watches called, at low cost if there are none.
    #[inline]
    pub fn notify(&self, bits: u8) -> usize {
        if self.any.load(Ordering::Relaxed) { self.call(bits) } else { 0 }
    }

    #[cold]
    fn call(&self, bits: u8) -> usize {
        let mut observers = self.observers.lock();
        let Some(list) = observers.as_mut() else { return 0 };
        let watches = list.watches.clone();
        // Nearly always one task: only the second one needs memory.
        let (mut first, mut others) = (None, Vec::new());
        let mut at = 0;
        while let Some(task) = list.tasks.get(at) {
            if task.bits & bits == 0 {
                at += 1;
                continue;
            }
            let waker = list.tasks.swap_remove(at).waker;
            match first {
                None => first = Some(waker),
                Some(_) => others.push(waker),
            }
        }
        self.note(list);
        drop(observers);
        let watches = watches.as_deref().unwrap_or_default();
        let count = watches.len() + usize::from(first.is_some()) + others.len();
        watches.iter().for_each(|(_, watch)| watch.on_ready(bits));
        first.into_iter().chain(others).for_each(Waker::wake);
        count
    }

    /// Under the lock of `list`: records whether there are observers.
    fn note(&self, list: &Observers) {
        self.any.store(list.watches.is_some() || !list.tasks.is_empty(), Ordering::Relaxed);
    }
}

impl Default for Watchers {
    fn default() -> Self {
        Self::new()
    }
}
