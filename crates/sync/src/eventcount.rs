//! Sleeping until a condition changes, without a lock around the condition.
//!
//! Above: blocking socket calls, idle workers, [`crate::socket_lock`]. Linux: wait queues with
//! exclusive waiters (`prepare_to_wait_exclusive`, `wake_up`); the design is Vyukov's eventcount.
//!
//! ```text
//!  sleeper                                   notifier
//!  token = event.prepare()                   make the condition true
//!  condition true? → cancel(token), go on    event.notify_one()
//!  event.wait(token, timeout)
//! ```
//!
//! No wake-up is lost: each side first writes (its place in the queue; the condition), then passes
//! a sequentially consistent fence, then reads the other side's write, so at least one of them sees
//! the other. Without a waiter a notification costs that fence and one load, and writes nothing. A
//! waiter leaves the queue at the moment it is notified, so a burst of notifications makes one
//! system call, not many.
//!
//! Not here: spinning before sleeping, the conditions themselves, and tasks, which wait without a
//! thread ([`crate::watchers`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shim::{self, Arc, AtomicBool, AtomicUsize, Mutex, Ordering, Thread, fence};

#[cfg(test)]
mod tests;

/// A queue of waiters, each with a condition of its own.
#[derive(Debug)]
pub struct EventCount {
    /// Length of `queue`, written under its lock, read by notifiers without it. Relaxed: the fences
    /// of `prepare` and `notify` order it.
    waiting: AtomicUsize,
    /// Waiters, woken first come, first served.
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

/// Reason why [`EventCount::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum WaitResult {
    /// A notification chose this waiter: the caller must check the condition again.
    Notified,
    /// The timeout expired first. The condition may have become true nevertheless.
    TimedOut,
}

impl EventCount {
    /// Makes an event count without waiters.
    pub fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Queues this thread as a waiter. The caller then checks the condition, and calls `wait` or
    /// `cancel`.
    pub fn prepare(&self) -> Token<'_> {
        let waiter = Waiter::of_this_thread();
        let mut queue = self.queue.lock();
        queue.push_back(Arc::clone(&waiter));
        self.waiting.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        // Pairs with the fence in `notify`: the place in the queue comes before the caller's check
        // of the condition.
        fence(Ordering::SeqCst);
        Token { event: self, waiter, done: false }
    }

    /// Sleeps until notified or until `timeout` has passed; `None` sleeps without limit.
    ///
    /// # Panics
    ///
    /// If `token` is of another `EventCount`.
    pub fn wait(&self, token: Token<'_>, timeout: Option<Duration>) -> WaitResult {
        assert!(core::ptr::eq(self, token.event), "token of another EventCount");
        // A deadline that the clock cannot represent is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout.unwrap_or_default();
        while !token.waiter.is_notified() {
            let Some(deadline) = deadline else {
                shim::park();
                continue;
            };
            if left.is_zero() {
                return token.time_out();
            }
            shim::park_timeout(left);
            // The clock is read only if the thread was not notified.
            if !token.waiter.is_notified() {
                left = deadline.saturating_duration_since(Instant::now());
            }
        }
        token.finish()
    }

    /// Withdraws a `prepare`. A notification that had already chosen this waiter goes to the next
    /// one.
    pub fn cancel(&self, token: Token<'_>) {
        drop(token);
    }

    /// Wakes the waiter that came first. Returns false, at low cost, if there is none.
    #[inline]
    pub fn notify_one(&self) -> bool {
        // Pairs with the fence in `prepare`: the caller's change of the condition comes before this
        // check for waiters.
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0 && self.wake_one()
    }

    /// Wakes all waiters. Returns false, at low cost, if there is none.
    #[inline]
    pub fn notify_all(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0 && self.wake_all()
    }

    /// As [`notify_all`](Self::notify_all), without the fence: for a caller that has released a
    /// socket lock since the condition became true, where waiters pass that lock between `prepare`
    /// and their check ([`SocketLock::pass`](crate::SocketLock::pass)). The lock orders both sides
    /// as the fence would.
    #[inline]
    pub fn notify_all_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 && self.wake_all()
    }

    /// As [`notify_all`](Self::notify_all), but only removes the waiters from the queue: they sleep
    /// until [`Wakes::wake`]. For a caller that still holds a resource which they want.
    #[inline]
    pub fn notify_all_later(&self, wakes: &mut Wakes) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0 && self.choose_all(wakes)
    }

    #[cold]
    fn wake_one(&self) -> bool {
        let mut queue = self.queue.lock();
        let waiter = queue.pop_front();
        self.waiting.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        if let Some(waiter) = &waiter {
            waiter.wake();
        }
        waiter.is_some()
    }

    #[cold]
    fn wake_all(&self) -> bool {
        let mut queue = self.queue.lock();
        let waiters = core::mem::take(&mut *queue);
        self.waiting.store(0, Ordering::Relaxed);
        drop(queue);
        waiters.iter().for_each(|waiter| waiter.wake());
        !waiters.is_empty()
    }

    #[cold]
    fn choose_all(&self, wakes: &mut Wakes) -> bool {
        let mut queue = self.queue.lock();
        let before = wakes.waiters.len();
        wakes.waiters.extend(queue.drain(..));
        self.waiting.store(0, Ordering::Relaxed);
        wakes.waiters.len() > before
    }

    /// Removes `waiter` from the queue; returns false if a notifier has removed it before.
    fn withdraw(&self, waiter: &Arc<Waiter>) -> bool {
        let mut queue = self.queue.lock();
        let Some(place) = queue.iter().position(|queued| Arc::ptr_eq(queued, waiter)) else {
            return false;
        };
        queue.remove(place);
        self.waiting.store(queue.len(), Ordering::Relaxed);
        true
    }
}

impl Default for EventCount {
    fn default() -> Self {
        Self::new()
    }
}

/// Waiters that were chosen and are still to be woken. Dropping it wakes them.
#[derive(Debug, Default)]
pub struct Wakes {
    waiters: Vec<Arc<Waiter>>,
}

impl Wakes {
    /// Makes an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiters: Vec::new() }
    }

    /// Wakes the chosen waiters, in the order in which they were chosen.
    #[inline]
    pub fn wake(&mut self) {
        self.waiters.drain(..).for_each(|waiter| waiter.wake());
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A place in the queue of an [`EventCount`]. Dropping it is `cancel`.
#[derive(Debug)]
#[must_use = "check the condition, then wait or cancel"]
pub struct Token<'a> {
    event: &'a EventCount,
    waiter: Arc<Waiter>,
    /// Whether the waiter has left the queue and owes no other waiter a notification.
    done: bool,
}

impl Token<'_> {
    fn finish(mut self) -> WaitResult {
        self.done = true;
        WaitResult::Notified
    }

    fn time_out(mut self) -> WaitResult {
        self.done = true;
        if self.event.withdraw(&self.waiter) { WaitResult::TimedOut } else { WaitResult::Notified }
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        if !self.done && !self.event.withdraw(&self.waiter) {
            // This waiter was chosen but does not wait: the notification must go to the next
            // waiter.
            self.event.notify_one();
        }
        Waiter::keep(&self.waiter);
    }
}

#[cfg(not(loom))]
std::thread_local! {
    /// Waiter that this thread used last, kept so that going to sleep allocates nothing.
    static SPARE: core::cell::Cell<Option<Arc<Waiter>>> = const { core::cell::Cell::new(None) };
}

#[derive(Debug)]
struct Waiter {
    /// Whether the waiter was notified: set once by the notifier that removed it from the queue.
    /// Release and Acquire: the notifier's earlier writes are visible to the woken thread.
    notified: AtomicBool,
    thread: Thread,
}

impl Waiter {
    fn new() -> Arc<Self> {
        Arc::new(Self { notified: AtomicBool::new(false), thread: shim::current() })
    }

    /// Returns a waiter that no other thread refers to: the last one, if its notifier has dropped
    /// it.
    #[cfg(not(loom))]
    fn of_this_thread() -> Arc<Self> {
        let spare = SPARE.try_with(core::cell::Cell::take).ok().flatten();
        let Some(mut waiter) = spare else { return Self::new() };
        match Arc::get_mut(&mut waiter) {
            Some(own) => {
                *own.notified.get_mut() = false;
                waiter
            }
            None => Self::new(),
        }
    }

    /// Keeps a waiter for the next use.
    #[cfg(not(loom))]
    fn keep(waiter: &Arc<Self>) {
        // A thread that is ending keeps none.
        let _ = SPARE.try_with(|spare| spare.set(Some(Arc::clone(waiter))));
    }

    #[cfg(loom)]
    fn of_this_thread() -> Arc<Self> {
        Self::new()
    }

    #[cfg(loom)]
    fn keep(_waiter: &Arc<Self>) {}

    fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    fn wake(&self) {
        self.notified.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
