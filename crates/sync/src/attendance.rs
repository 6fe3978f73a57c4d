//! Attendance of a core: which thread polls its queues, and whether its worker sleeps.
//!
//! Above: `stack::Core`, and the code that wakes its worker without running the core: doorbells,
//! transmit queues, TCP Small Queues. Below: [`core_lock`](crate::core_lock), the ownership of the
//! core. Linux: the sleep of ksoftirqd, the hrtimer that an earlier timer reprograms, and the
//! interrupts that NAPI_STATE_PREFER_BUSY_POLL keeps disabled during `napi_busy_loop`.
//!
//! ```text
//!  attendant      note_poll, suspend_worker
//!      ┌──────────────────────────────────────► Polled(until) ────┐
//!      │                                          │ ▲             │ stop_polling,
//!   Worker                            prefer_poll │ │ note_poll   │ leave_polling
//!    ▲ │                                          ▼ │             │
//!    │ └──────────────────────────────────────► Preferred(until) ─┤
//!    │            prefer_poll, leave_to_reader                    │
//!    └────────────────────────────────────────────────────────────┘
//!
//!  worker         prepare_sleep(Watching)
//!      ┌──────────────────────────────────────► Watching ─────┐ finish_sleep;
//!      │                                                      │ suspend_worker, which kicks
//!    Awake                                                    │
//!     ▲│                                                      │ finish_sleep; stop_polling,
//!     │└──────────────────────────────────────► Yielding ─────┤ leave_polling and
//!     │           prepare_sleep(Yielding)                     │ resume_worker, which kick
//!     └───────────────────────────────────────────────────────┘
//!
//!  Free: the attendant is the worker, no thread owns the core, and no run is owed.
//! ```
//!
//! A polling thread finds frames before a worker could be woken for them, and most likely polls
//! again. Therefore it becomes the attendant for a limited time. A worker that finds such an
//! attendant yields: it sleeps without watching the descriptors. The worker watches them again when
//! the thread stops polling, and at the latest when the time is over. The attendant is one word: of
//! several polling threads, the last one to poll is the attendant, and an earlier one that stops
//! changes nothing.
//!
//! No wake-up is lost. The worker announces its sleep, passes a fence, and then reads every word
//! that may end the sleep ([`Attendance::prepare_sleep`]). Every other thread does the reverse:
//!
//! | reason to wake | the thread writes | fence | then reads | kicks a worker that |
//! |---|---|---|---|---|
//! | a timer or a transmit deadline | the deadline | yes | `sleep_until_ns` | sleeps longer |
//! | a thread stops polling | the attendant | yes | `worker` | yields |
//! | a run ends | [`CoreLock`] | no | `worker` | yields; a missed one sleeps at most its limit |
//! | a run is handed over | `CoreLock`, a run is owed | no | nothing | exists: the next run is the worker's |
//!
//! Therefore at least one of the two sees the write of the other. A kick is remembered until the
//! worker has slept ([`Kick`]).
//!
//! Times are nanoseconds of one clock that all threads share. Not here: that clock, the sleep
//! itself, how long a thread may poll.

use core::fmt;

use crate::core_lock::CoreLock;
use crate::shim::{AtomicU32, AtomicU64, Ordering, StoreInOrder as _, fence, plain};

use attendant::Attendant;
pub use attendant::Poller;
use deadlines::{Deadlines, NEVER};
use hints::Hints;

mod attendant;
mod deadlines;
mod hints;
#[cfg(test)]
mod tests;

/// State of a worker that runs, or whose sleep a kick has ended.
const AWAKE: u32 = 0;
/// State of a worker that sleeps and watches the descriptors of its queues.
const WATCHING: u32 = 1;
/// State of a worker that sleeps without watching the descriptors, because another thread runs the
/// core or has polled it.
const YIELDING: u32 = 2;

/// Wakes the worker of a core. Implemented by crate `quietline`, which has the threads.
pub trait Kick: Send + Sync {
    /// Ends the sleep of the worker. A kick of an awake worker ends its next sleep, or a check
    /// before it.
    fn kick(&self);
}

/// Kind of a worker's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The worker watches the descriptors of its queues.
    Watching,
    /// The worker does not watch the descriptors, because another thread runs the core or has
    /// polled it.
    Yielding {
        /// Longest sleep, unless the attendant has requested a longer one.
        limit_ns: u64,
    },
}

/// Attendance of one core: its polling thread, and the sleep of its worker.
pub struct Attendance {
    /// Thread that polls the queues. Written by polling threads, read by the worker and by other
    /// polling threads. Relaxed: the fences of `return_to_worker` and `prepare_sleep` order it.
    attendant: AtomicU64,
    /// [`AWAKE`], [`WATCHING`] or [`YIELDING`]. Written by the worker, and by a thread that is
    /// about to kick it: one exchange decides which. Relaxed as `attendant`; the kick orders the
    /// data that the worker must see.
    worker: AtomicU32,
    /// End of the worker's sleep; 0 while it is awake, [`NEVER`] without a limit. Written by the
    /// worker, lowered by a thread that is about to kick it. Relaxed: the fences of `wake_before`
    /// and `prepare_sleep` order it.
    sleep_until_ns: AtomicU64,
    deadlines: Deadlines,
    hints: Hints,
    /// Kick of the worker. Removed with the host: a context that keeps the core for a while must
    /// not keep a descriptor open.
    kick: plain::Mutex<Option<plain::Arc<dyn Kick>>>,
    kicks: plain::Word,
    sleeps: plain::Word,
}

impl Default for Attendance {
    fn default() -> Self {
        Self {
            attendant: AtomicU64::new(Attendant::WORKER.to_bits()),
            worker: AtomicU32::new(AWAKE),
            sleep_until_ns: AtomicU64::new(0),
            deadlines: Deadlines::default(),
            hints: Hints::default(),
            kick: plain::Mutex::default(),
            kicks: plain::Word::new(0),
            sleeps: plain::Word::new(0),
        }
    }
}

impl fmt::Debug for Attendance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker = match self.worker.load(Ordering::Relaxed) {
            WATCHING => "watching",
            YIELDING => "yielding",
            _ => "awake",
        };
        f.debug_struct("Attendance")
            .field("attendant", &self.attendant())
            .field("worker", &worker)
            .field("sleep_until_ns", &self.sleep_until_ns.load(Ordering::Relaxed))
            .field("deadlines", &self.deadlines)
            .finish_non_exhaustive()
    }
}

/// Polling threads.
impl Attendance {
    /// Records that `poller` has polled, and most likely polls again before `until_ns`.
    #[inline]
    pub fn note_poll(&self, poller: Poller, until_ns: u64) {
        self.set_attendant(Attendant::polled(poller, until_ns));
    }

    /// Records that `poller` has requested that the worker does not watch the descriptors until
    /// `until_ns` (`SO_PREFER_BUSY_POLL`).
    #[inline]
    pub fn prefer_poll(&self, poller: Poller, until_ns: u64) {
        self.set_attendant(Attendant::preferred(poller, until_ns));
    }

    /// Leaves the queues until `until_ns` to a reader that the worker is about to wake. Any thread
    /// may end that.
    pub fn leave_to_reader(&self, until_ns: u64) {
        self.prefer_poll(Poller::ANY, until_ns);
    }

    /// Ends the polling of `poller`, which is about to sleep: the worker is the attendant again,
    /// and is kicked if it yields. Nothing changes if another thread has polled since and its time
    /// is not over at `now_ns`.
    pub fn stop_polling(&self, poller: Poller, now_ns: u64) {
        let attendant = self.attendant();
        let is_another = !attendant.is(poller) && !attendant.is(Poller::ANY);
        if !(is_another && attendant.until_ns() > now_ns) {
            self.return_to_worker();
        }
    }

    /// Ends the polling of `poller`, which does not poll this core again soon. Nothing changes if
    /// another thread has polled since: that thread owned the core after this one, and its end
    /// counts for both.
    pub fn leave_polling(&self, poller: Poller) {
        let attendant = self.attendant();
        // The worker is the attendant if a thread stopped polling while this one still owned the
        // core. A worker that found the core owned then yields.
        if attendant.is(poller) || attendant == Attendant::WORKER {
            self.return_to_worker();
        }
    }

    fn return_to_worker(&self) {
        self.set_attendant(Attendant::WORKER);
        // Pairs with the fence in `prepare_sleep`: either this thread sees that the worker yields,
        // or the worker sees that it is the attendant.
        fence(Ordering::SeqCst);
        self.resume_worker();
    }

    /// Returns whether a thread has polled recently and most likely polls again, or has requested
    /// time without the worker.
    #[inline]
    #[must_use]
    pub fn is_polled(&self, now_ns: u64) -> bool {
        self.attendant().until_ns() > now_ns
    }

    /// Returns whether no thread owns `core` or owes it a run, and no thread has polled it since
    /// polling last stopped.
    #[must_use]
    pub fn is_free<T>(&self, core: &CoreLock<T>) -> bool {
        self.attendant() == Attendant::WORKER && !core.is_scheduled()
    }

    fn attendant(&self) -> Attendant {
        Attendant::from_bits(self.attendant.load(Ordering::Relaxed))
    }

    #[inline]
    fn set_attendant(&self, attendant: Attendant) {
        self.attendant.store_in_order(attendant.to_bits());
    }
}

/// The worker.
impl Attendance {
    /// Announces that the worker of `core` is about to sleep, and returns until when it may: `None`
    /// without limit. `next` returns the core's next deadline. It is called after the announcement,
    /// so that no later frame or deadline is missed.
    #[must_use]
    pub fn prepare_sleep<T>(
        &self,
        core: &CoreLock<T>,
        now_ns: u64,
        sleep: Sleep,
        next: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        self.sleep_until_ns.store_in_order(NEVER);
        self.worker.store_in_order(if sleep == Sleep::Watching { WATCHING } else { YIELDING });
        // Pairs with the fences in `wake_before` and `return_to_worker`: either the other thread
        // sees that the worker sleeps, or the worker sees below what that thread has written.
        fence(Ordering::SeqCst);
        let mut until = next();
        if let Sleep::Yielding { limit_ns } = sleep {
            // The thread that ran or polled the core has stopped before it could see that the
            // worker yields.
            if self.is_free(core) {
                until = Some(now_ns);
            }
            let limit = self.attendant().preferred_until_ns(now_ns).unwrap_or(limit_ns);
            until = Some(until.map_or(limit, |until| until.max(now_ns).min(limit)));
        }
        self.sleep_until_ns.store_in_order(until.unwrap_or(NEVER));
        until
    }

    /// Records that the worker is awake; it checks its core next.
    pub fn finish_sleep(&self) {
        self.sleep_until_ns.store_in_order(0);
        self.worker.store_in_order(AWAKE);
    }
}

/// Threads that wake the worker.
impl Attendance {
    /// Kicks the worker if it sleeps past `deadline_ns`. The caller has already published the work
    /// that is due then.
    pub fn wake_before(&self, deadline_ns: u64) {
        // Pairs with the fence in `prepare_sleep`: either this thread sees the end of the worker's
        // sleep, or the worker sees the deadline or the frame.
        fence(Ordering::SeqCst);
        // Kicked once for each earlier deadline: from then on the worker counts as awake at that
        // time.
        if self.sleep_until_ns.load(Ordering::Relaxed) > deadline_ns
            && self.sleep_until_ns.fetch_min(deadline_ns, Ordering::Relaxed) > deadline_ns
        {
            let _ = self.kick_worker();
        }
    }

    /// Ends the sleep of a worker that yields, after the caller has run the core and released it.
    /// There is no fence, because every run makes this call: a worker whose sleep is missed here
    /// sleeps at most its limit.
    #[inline]
    pub fn resume_worker(&self) {
        if self.end_sleep(YIELDING) {
            let _ = self.kick_worker();
        }
    }

    /// Makes `poller`, which most likely polls until `until_ns`, the attendant if the worker
    /// watches the descriptors, and kicks the worker so that it yields. Otherwise every frame would
    /// wake it after `poller` has taken the frame. Returns whether the worker was kicked.
    #[inline]
    pub fn suspend_worker(&self, poller: Poller, until_ns: u64) -> bool {
        let relieves = self.end_sleep(WATCHING);
        if relieves {
            self.note_poll(poller, until_ns);
            let _ = self.kick_worker();
        }
        relieves
    }

    /// Ends the worker's sleep of this kind. Returns false if it does not sleep so, or another
    /// thread has ended that sleep.
    #[inline]
    fn end_sleep(&self, sleep: u32) -> bool {
        let worker = &self.worker;
        worker.load(Ordering::Relaxed) == sleep
            && worker.compare_exchange(sleep, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Wakes the worker. Returns false if the core has none.
    pub fn kick_worker(&self) -> bool {
        let Some(kick) = self.lock_kick().clone() else { return false };
        self.kicks.fetch_add(1, Ordering::Relaxed);
        kick.kick();
        true
    }

    /// Sets the kick of the worker, once per core.
    pub fn set_kick(&self, kick: plain::Arc<dyn Kick>) {
        let _ = self.lock_kick().get_or_insert(kick);
    }

    /// Removes the kick, because the core has no worker any more.
    pub fn remove_kick(&self) {
        let kick = self.lock_kick().take();
        drop(kick);
    }

    fn lock_kick(&self) -> plain::MutexGuard<'_, Option<plain::Arc<dyn Kick>>> {
        self.kick.lock().unwrap_or_else(plain::PoisonError::into_inner)
    }

    /// Returns the number of kicks.
    #[must_use]
    pub fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Returns the number of sleeps of the worker.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
}
