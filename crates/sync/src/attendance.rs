//! Who attends to a core: which thread polls its queues, and whether its worker sleeps.
//!
//! Above: `stack::Core`, and all that wakes its worker without running the core: doorbells, transmit queues, TCP Small
//! Queues. Below: [`core_lock`](crate::core_lock), which says who runs the core. Linux: the sleep of ksoftirqd, the hrtimer
//! that an earlier timer reprograms, and the interrupt that NAPI_STATE_PREFER_BUSY_POLL keeps off beside `napi_busy_loop`.
//!
//! ```text
//!  attendant      note_poll, relieve_worker
//!      ┌──────────────────────────────────────► Polled(until) ────┐
//!      │                                          │ ▲             │ stop_polling,
//!   Worker                            prefer_poll │ │ note_poll   │ leave_polling
//!    ▲ │                                          ▼ │             │
//!    │ └──────────────────────────────────────► Preferred(until) ─┤
//!    │            prefer_poll, leave_to_reader                    │
//!    └────────────────────────────────────────────────────────────┘
//!
//!  worker         prepare_sleep(Watching)
//!      ┌──────────────────────────────────────► Watching ─────────┐ finish_sleep; relieve_worker, which kicks
//!   Awake                                                         │
//!    ▲ └──────────────────────────────────────► Yielding ─────────┤ finish_sleep; stop_polling, leave_polling
//!    │            prepare_sleep(Yielding)                         │ and resume_worker, which kick
//!    └────────────────────────────────────────────────────────────┘
//!
//!  Free: the attendant is the worker, and no thread owns the core or is to run it.
//! ```
//!
//! A thread that polls finds frames before a worker could be woken for them, and most likely polls again. So it becomes the
//! attendant for a while, and a worker that finds it sleeps without the descriptors: it yields. The worker watches the
//! descriptors again when the thread stops polling, and at the latest when the time is over. The attendant is one word: of
//! several threads that poll in turn the last one is the attendant, and an earlier one that stops changes nothing.
//!
//! No wake-up is lost. The worker announces its sleep, passes a fence, and then reads all that may end the sleep
//! ([`Attendance::prepare_sleep`]). Every other thread does the reverse:
//!
//! | reason to wake | the thread writes | fence | then reads | kicks a worker that |
//! |---|---|---|---|---|
//! | a timer or a transmit deadline | the deadline | yes | `sleep_until_ns` | sleeps longer |
//! | a thread stops polling | the attendant | yes | `worker` | yields |
//! | a run ends | [`CoreLock`](crate::CoreLock) | no | `worker` | yields; one that is missed sleeps at most its limit |
//! | a run is handed over | `CoreLock`, a run is owed | no | nothing | exists: the next run is the worker's |
//!
//! So at least one of the two sees the other. A kick is remembered until the worker has slept ([`Kick`]).
//!
//! Times are nanoseconds by one clock for all threads. Not here: that clock, the sleep itself, how long a thread may poll.

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

/// The worker runs, or was kicked out of its sleep.
const AWAKE: u32 = 0;
/// The worker sleeps on the descriptors of the queues.
const WATCHING: u32 = 1;
/// The worker sleeps without the descriptors: another thread runs the core, or has polled it.
const YIELDING: u32 = 2;

/// Wakes the worker of a core. Implemented where the threads are: crate `quietline`.
pub trait Kick: Send + Sync {
    /// Ends the sleep of the worker. A kick that finds the worker awake ends its next sleep, or a look that precedes it.
    fn kick(&self);
}

/// How a worker sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// On the descriptors of its queues.
    Watching,
    /// Without them, because another thread runs the core or has polled it.
    Yielding {
        /// The longest sleep, unless the attendant has asked for a longer one.
        limit_ns: u64,
    },
}

/// Attendance of one core. See the module head.
pub struct Attendance {
    /// Which thread polls the queues. Written by threads that poll, read by the worker and by other threads that poll.
    /// Relaxed: the fences of `return_to_worker` and `prepare_sleep` order it.
    attendant: AtomicU64,
    /// [`AWAKE`], [`WATCHING`] or [`YIELDING`]. Written by the worker, and by a thread that is about to kick it: one exchange
    /// decides which. Relaxed: as `attendant`; what the worker must see is ordered by the kick.
    worker: AtomicU32,
    /// Until when the worker sleeps; 0 while it is awake, [`NEVER`] without a limit. Written by the worker, lowered by a
    /// thread that is about to kick it. Relaxed: the fences of `wake_before` and `prepare_sleep` order it.
    sleep_until_ns: AtomicU64,
    deadlines: Deadlines,
    hints: Hints,
    /// How to wake the worker. Removed with the host: a context that keeps the core for a while must not keep a descriptor open.
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

/// Threads that poll.
impl Attendance {
    /// `poller` has polled, and most likely polls again before `until_ns`.
    #[inline]
    pub fn note_poll(&self, poller: Poller, until_ns: u64) {
        self.set_attendant(Attendant::polled(poller, until_ns));
    }

    /// `poller` has asked that the worker leaves the descriptors alone until `until_ns` (`SO_PREFER_BUSY_POLL`).
    #[inline]
    pub fn prefer_poll(&self, poller: Poller, until_ns: u64) {
        self.set_attendant(Attendant::preferred(poller, until_ns));
    }

    /// The worker leaves the queues until `until_ns` to a reader that it is about to wake. Any thread may end that.
    pub fn leave_to_reader(&self, until_ns: u64) {
        self.prefer_poll(Poller::ANY, until_ns);
    }

    /// `poller` is about to sleep: the worker attends to the core again, and is kicked if it yields. Nothing changes when
    /// another thread has polled since and is expected back at `now_ns`.
    pub fn stop_polling(&self, poller: Poller, now_ns: u64) {
        let attendant = self.attendant();
        let is_another = !attendant.is(poller) && !attendant.is(Poller::ANY);
        if !(is_another && attendant.until_ns() > now_ns) {
            self.return_to_worker();
        }
    }

    /// `poller`, which has polled, does not poll this core again soon. Nothing changes when another thread has polled since:
    /// that thread owned the core after this one, and stops for both.
    pub fn leave_polling(&self, poller: Poller) {
        let attendant = self.attendant();
        // The worker is the attendant if a thread stopped while this one still owned the core. A worker that found the core
        // owned then yields.
        if attendant.is(poller) || attendant == Attendant::WORKER {
            self.return_to_worker();
        }
    }

    fn return_to_worker(&self) {
        self.set_attendant(Attendant::WORKER);
        // Pairs with the fence in `prepare_sleep`: either this thread sees that the worker yields, or the worker sees that it
        // is the attendant.
        fence(Ordering::SeqCst);
        self.resume_worker();
    }

    /// A thread has polled a moment ago and most likely polls again, or has asked to be left alone.
    #[inline]
    #[must_use]
    pub fn is_polled(&self, now_ns: u64) -> bool {
        self.attendant().until_ns() > now_ns
    }

    /// No thread owns `core` or is to run it, nor has polled it since polling was last stopped.
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
    /// Announces that the worker of `core` is about to sleep, and answers until when it may: `None` for ever. `next` answers
    /// when the core has something to do although nothing arrives; it is called after the announcement, as no frame or
    /// deadline that comes later is missed.
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
        // Pairs with the fences in `wake_before` and `return_to_worker`: either the other thread sees that the worker sleeps,
        // or the worker sees below what that thread has written.
        fence(Ordering::SeqCst);
        let mut until = next();
        if let Sleep::Yielding { limit_ns } = sleep {
            // The thread that ran the core or polled it has stopped before it could see that the worker yields.
            if self.is_free(core) {
                until = Some(now_ns);
            }
            let limit = self.attendant().preferred_until_ns(now_ns).unwrap_or(limit_ns);
            until = Some(until.map_or(limit, |until| until.max(now_ns).min(limit)));
        }
        self.sleep_until_ns.store_in_order(until.unwrap_or(NEVER));
        until
    }

    /// The worker is awake again. It looks at its core next.
    pub fn finish_sleep(&self) {
        self.sleep_until_ns.store_in_order(0);
        self.worker.store_in_order(AWAKE);
    }
}

/// Threads that wake the worker.
impl Attendance {
    /// Kicks the worker if it sleeps past `deadline_ns`. The caller has published before what is due then.
    pub fn wake_before(&self, deadline_ns: u64) {
        // Pairs with the fence in `prepare_sleep`: either this thread sees how long the worker sleeps, or the worker sees the
        // deadline or the frame.
        fence(Ordering::SeqCst);
        // Kicked once for each earlier deadline: from then on the worker counts as awake at that time.
        if self.sleep_until_ns.load(Ordering::Relaxed) > deadline_ns
            && self.sleep_until_ns.fetch_min(deadline_ns, Ordering::Relaxed) > deadline_ns
        {
            let _ = self.kick_worker();
        }
    }

    /// The caller has run the core and has let it go: a worker that yields attends to its queues again. Without a fence, as
    /// this is part of every run: a worker whose sleep is missed here sleeps at most its limit.
    #[inline]
    pub fn resume_worker(&self) {
        if self.end_sleep(YIELDING) {
            let _ = self.kick_worker();
        }
    }

    /// `poller` begins to poll, and most likely polls until `until_ns`. True if the worker slept on the descriptors and was
    /// kicked, so that it yields: every frame would wake it otherwise, and `poller` would have taken the frame by then.
    #[inline]
    pub fn relieve_worker(&self, poller: Poller, until_ns: u64) -> bool {
        let relieves = self.end_sleep(WATCHING);
        if relieves {
            self.note_poll(poller, until_ns);
            let _ = self.kick_worker();
        }
        relieves
    }

    /// Whether the worker is in this sleep and no other thread has kicked it for that.
    #[inline]
    fn end_sleep(&self, sleep: u32) -> bool {
        let worker = &self.worker;
        worker.load(Ordering::Relaxed) == sleep
            && worker.compare_exchange(sleep, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Wakes the worker. False if the core has none.
    pub fn kick_worker(&self) -> bool {
        let Some(kick) = self.lock_kick().clone() else { return false };
        self.kicks.fetch_add(1, Ordering::Relaxed);
        kick.kick();
        true
    }

    /// Sets how to wake the worker, once per core.
    pub fn set_kick(&self, kick: plain::Arc<dyn Kick>) {
        let _ = self.lock_kick().get_or_insert(kick);
    }

    /// The core has no worker any more.
    pub fn remove_kick(&self) {
        let kick = self.lock_kick().take();
        drop(kick);
    }

    fn lock_kick(&self) -> plain::MutexGuard<'_, Option<plain::Arc<dyn Kick>>> {
        self.kick.lock().unwrap_or_else(plain::PoisonError::into_inner)
    }

    /// Kicks so far.
    #[must_use]
    pub fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Sleeps of the worker so far.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
}
