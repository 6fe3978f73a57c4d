//! Sleep until something changed, without a lock around the thing that changes.
//!
//! Above: blocking socket calls, idle workers, [`crate::socket_lock`]. Linux: wait queues with exclusive
//! waiters (`prepare_to_wait_exclusive`, `wake_up`); the shape is Vyukov's eventcount.
//!
//! ```text
//!  sleeper                                   notifier
//!  token = event.prepare()                   make the condition true
//!  condition true? → cancel(token), go on    event.notify_one()
//!  event.wait(token, timeout)
//! ```
//!
//! No wake-up is lost: each side first writes (its place in the queue; the condition), then passes a
//! sequentially consistent fence, then reads what the other wrote, so at least one of them sees the other.
//! With nobody waiting a notification costs that fence and one load, and writes nothing. A waiter leaves the
//! queue in the moment it is notified, so a burst of notifications makes one system call, not many.
//!
//! A task waits without a thread: [`EventCount::register`] queues its waker, which the next notification calls once.
//!
//! Not here: spinning before sleeping, and any knowledge of what is waited for.

use core::task::Waker;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shim::{self, Arc, AtomicBool, AtomicUsize, Mutex, Ordering, Thread, fence};

#[cfg(test)]
mod tests;

/// A queue of sleepers who each wait for a condition of their own choosing.
#[derive(Debug)]
pub struct EventCount {
    /// Length of `queue`, written under its lock, read by notifiers without it. Relaxed: the fences of
    /// `prepare` and `notify` order it.
    waiting: AtomicUsize,
    /// First come, first woken.
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

/// Why [`EventCount::wait`] came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum WaitResult {
    /// A notification chose this waiter: look at the condition again.
    Notified,
    /// The time was over first. The condition may have become true all the same.
    TimedOut,
}

impl EventCount {
    /// Without waiters.
    pub fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Announces this thread as a waiter. Look at the condition after this, then `wait` or `cancel`.
    pub fn prepare(&self) -> Token<'_> {
        let waiter = Waiter::of_this_thread();
        let mut queue = self.queue.lock();
        queue.push_back(Arc::clone(&waiter));
        self.waiting.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        // Pairs with the fence in `notify`: our place in the queue before the caller's look at the condition.
        fence(Ordering::SeqCst);
        Token { event: self, waiter, done: false }
    }

    /// Queues `waker`, to be called by the next notification, unless it is in the queue already. Look at the condition after
    /// this: with what is true by then there may be no notification. A waker whose task has ended meanwhile is called in vain,
    /// so that events which choose one waiter ([`notify_one`](Self::notify_one)) must not have any.
    pub fn register(&self, waker: &Waker) {
        let mut queue = self.queue.lock();
        if !queue.iter().any(|waiter| waiter.is_task(waker)) {
            queue.push_back(Waiter::of_task(waker));
            self.waiting.store(queue.len(), Ordering::Relaxed);
        }
        drop(queue);
        // As in `prepare`.
        fence(Ordering::SeqCst);
    }

    /// Sleeps until notified or until `timeout` has passed; `None` sleeps as long as it takes.
    ///
    /// # Panics
    ///
    /// When `token` is of another `EventCount`.
    pub fn wait(&self, token: Token<'_>, timeout: Option<Duration>) -> WaitResult {
        assert!(core::ptr::eq(self, token.event), "token of another EventCount");
        // A deadline beyond what the clock can tell is no deadline.
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
            // Who was notified need not know what time it is.
            if !token.waiter.is_notified() {
                left = deadline.saturating_duration_since(Instant::now());
            }
        }
        token.finish()
    }

    /// Takes back a `prepare`. A notification that had already chosen this waiter goes to the next one.
    pub fn cancel(&self, token: Token<'_>) {
        drop(token);
    }

    /// Wakes the waiter that came first. False, and cheap, when there is none.
    #[inline]
    pub fn notify_one(&self) -> bool {
        // Pairs with the fence in `prepare`: the caller's change of the condition before our look for waiters.
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0 && self.wake_one()
    }

    /// Wakes all waiters. False, and cheap, when there is none.
    #[inline]
    pub fn notify_all(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0 && self.wake_all()
    }

    /// As [`notify_all`](Self::notify_all), for a caller who has left a socket lock since the condition was made true, where
    /// waiters pass that lock between `prepare` and their look ([`SocketLock::pass`](crate::SocketLock::pass)): that orders what the
    /// fence would.
    #[inline]
    pub fn notify_all_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 && self.wake_all()
    }

    /// As [`notify_all`](Self::notify_all), but they are chosen only: they sleep until [`Wakes::wake`]. For a caller that has
    /// something in its hands which they want.
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

    /// Takes `waiter` out of the queue; false when a notifier was faster.
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
    /// Of nobody.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiters: Vec::new() }
    }

    /// Wakes those that were chosen, in the order in which they were.
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
#[must_use = "look at the condition, then wait or cancel"]
pub struct Token<'a> {
    event: &'a EventCount,
    waiter: Arc<Waiter>,
    /// Left the queue and owes nobody a notification.
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
            // Chosen but not waiting: whoever waits behind us must not miss what we were woken for.
            self.event.notify_one();
        }
        Waiter::keep(&self.waiter);
    }
}

#[cfg(not(loom))]
std::thread_local! {
    /// What this thread waited with last, so that going to sleep allocates nothing.
    static SPARE: core::cell::Cell<Option<Arc<Waiter>>> = const { core::cell::Cell::new(None) };
}

#[derive(Debug)]
struct Waiter {
    /// Set once by the notifier that took this waiter out of the queue. Release and Acquire: what the
    /// notifier did before is visible to the woken thread.
    notified: AtomicBool,
    sleeper: Sleeper,
}

/// What is woken.
#[derive(Debug)]
enum Sleeper {
    Thread(Thread),
    Task(Waker),
}

impl Waiter {
    fn new() -> Arc<Self> {
        Self::of(Sleeper::Thread(shim::current()))
    }

    fn of(sleeper: Sleeper) -> Arc<Self> {
        Arc::new(Self { notified: AtomicBool::new(false), sleeper })
    }

    fn of_task(waker: &Waker) -> Arc<Self> {
        Self::of(Sleeper::Task(waker.clone()))
    }

    fn is_task(&self, waker: &Waker) -> bool {
        matches!(&self.sleeper, Sleeper::Task(task) if task.will_wake(waker))
    }

    /// One that nobody else knows: the last one, if its notifier is done with it.
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

    /// For the next time.
    #[cfg(not(loom))]
    fn keep(waiter: &Arc<Self>) {
        // A thread that ends keeps nothing.
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
        match &self.sleeper {
            Sleeper::Thread(thread) => thread.unpark(),
            Sleeper::Task(waker) => waker.wake_by_ref(),
        }
    }
}
