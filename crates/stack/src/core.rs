//! The core: what Linux keeps per CPU for its softirqs, as an object that somebody owns while running it.
//!
//! Whoever owns a core runs it: a worker thread, an application thread that waits, the caller of `Host::poll`, the
//! simulator (`run`, `busy_poll`). `turn` is the one code path for all of them, `napi` what a core keeps per device queue,
//! `timers` and `sleep` when it has to be run although nothing arrives. Here: what a core is. Linux: `softnet_data`, ksoftirqd.
//!
//! Ownership is NAPI's SCHED bit with its MISSED companion (`sync::CoreLock`), and beside them a bit for each queue that has
//! something: a doorbell that finds the core owned leaves MISSED and its queue's bit behind, and the owner runs once more
//! before it lets go. So no frame waits for a second doorbell, and no queue is polled that nothing was heard of.
//!
//! ```text
//!   doorbell ──own_or_schedule()──► idle?  yes: the caller owns it, raised in its Cx, run by Cx::do_softirq
//!                                        no: MISSED; the owner's release fails and it runs another turn
//! ```

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    vec::Vec,
};

use pkt::Instant;
use sync::{CoreLock, Descriptors, QUEUES_MAX};

use crate::{
    base::{
        counters::{Counter, Snapshot},
        ids::{CoreId, NapiId},
        timer::TimerWheel,
    },
    device::QueueId,
    host::Host,
    receive::{
        flow::LastFlow,
        napi::Napi,
        rps::{Backlog, BacklogPoll, Outbox},
    },
    socket::{RequestSocket, StreamTimer, Tasklet, TimeWaitSocket},
    transmit::neighbor::table::NeighborEntry,
};

pub(crate) use power::PowerChange;

mod busy_poll;
mod lifetime;
mod power;
mod run;
mod sleep;
mod timers;
mod trim;
mod turn;

/// The place of a core's backlog among its queues: the last one, which no device gets.
const BACKLOG: usize = QUEUES_MAX - 1;

/// Device queues that one core can poll.
pub(crate) const DEVICE_QUEUES_MAX: usize = BACKLOG;

/// Which queues a turn looks at besides those that nobody announces arrivals of, and how much it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Those that are scheduled: the descriptors are watched by the worker.
    Scheduled,
    /// Also those with a descriptor: nobody else looks at them now.
    All,
    /// All of them, this many frames at most: a cycle of busy polling. What it waits for may be the first.
    Busy(usize),
}

/// What a turn leaves behind: NAPI's answer from a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PollReport {
    /// The budget ran out first; another turn has work at once.
    Pending,
    /// Every queue was found empty.
    AllDone,
}

/// What came of an attempt to run a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CoreRun {
    /// It has nothing left to do.
    Idle,
    /// Work comes in as fast as it is done: read the clock, do what else there is, and call again.
    Pending,
    /// Another thread runs it, and will see what this caller came for.
    Elsewhere,
    /// More has arrived, which is left to a reader that has been woken and polls for itself.
    Left,
}

/// A timer that is due belongs to one of these. Weak: a timer keeps nothing alive.
#[derive(Debug)]
pub(crate) enum TimerEntry {
    Stream(StreamTimer),
    Request(Weak<RequestSocket>),
    TimeWait(Weak<TimeWaitSocket>),
    Neighbor(Weak<NeighborEntry>),
    /// Addresses that the host claims (RFC 5227).
    Claims,
}

/// Wakes the thread that is parked on a core. Implemented where threads are: crate `quietline`.
pub trait Kick: Send + Sync {
    /// Makes the parked thread look at its core again.
    fn kick(&self);
}

/// What only the owner of the core touches.
#[derive(Debug)]
pub(crate) struct CoreState {
    /// Every queue of this core; a queue's place is its bit in the lock.
    napis: Vec<Napi>,
    /// The queues that nobody announces arrivals of: every turn polls them.
    unannounced: u64,
    /// The queues whose arrivals the worker hears of, through a descriptor.
    descriptors: u64,
    /// The queues whose device tells completions.
    completing: u64,
    /// The queues whose frames come by a ring that this core has the end of: whoever polls finds them without being told.
    ringed: u64,
    /// The queues that hold packets which have not gone up yet, while a thread polls without end.
    holding: u64,
    /// The queues that are not polled.
    powered: power::Powered,
    /// Round robin: the queue that the next turn polls first, if it is scheduled.
    next_napi: usize,
    due: Vec<TimerEntry>,
    /// Packets from other cores, and for them.
    backlog: BacklogPoll,
    outbox: Outbox,
    /// What connections keep and that has to go.
    trim: trim::TrimWalk,
    /// Of the four-tuple that was last looked up here.
    last_flow: LastFlow,
}

impl CoreState {
    /// A queue has been polled: does it hold anything?
    fn note_held(&mut self, index: usize) {
        let bit = u64::from(self.napis[index].holds()) << index;
        self.holding = self.holding & !(1 << index) | bit;
    }

    /// Of the queues that have a ring, those with something in it.
    fn arrived(&self) -> u64 {
        let polled = queues_in(self.ringed & !self.powered.disabled());
        polled.map(|index| u64::from(self.napis[index].has_arrived()) << index).sum()
    }

    /// Everything that can arrive here comes by a ring, or somebody tells of it.
    fn hears_of_all(&self) -> bool {
        (self.unannounced | self.descriptors) & !self.powered.disabled() == 0
    }
}

/// The places of the queues in a mask of one bit each.
fn queues_in(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(index)
    })
}

/// One core of a host.
pub struct Core {
    id: CoreId,
    host: Weak<Host>,
    lock: CoreLock<CoreState>,
    /// Device and queue of each queue polled here.
    places: Mutex<Vec<(u32, QueueId)>>,
    backlog: Backlog,
    timers: Mutex<TimerWheel<TimerEntry>>,
    /// Earliest timer in nanoseconds, `u64::MAX` when none: lets a turn skip the lock. Written under it.
    next_timer_ns: AtomicU64,
    /// Until when the parked worker sleeps in nanoseconds; 0 while it is awake.
    sleep_until_ns: AtomicU64,
    /// Whether the worker watches the descriptors, or leaves them to the application thread that polls the core.
    descriptors: Descriptors,
    /// The last frames that came by a descriptor were superframes. A hint, written by the owner.
    bulk: AtomicBool,
    /// The thread that went to sleep last has polled, and will when it is woken.
    sleeper_polls: AtomicBool,
    /// Queues whose descriptor is not to be watched, one bit each. Written by the owner, read by the worker that it wakes
    /// or is.
    masked: AtomicU64,
    /// Which queues are to be polled at all.
    power: power::Power,
    /// When a queue is polled by time, in nanoseconds, `u64::MAX` when none. Written by the owner.
    next_napi_ns: AtomicU64,
    /// When a transmit queue of this core is to be run, in nanoseconds, or earlier; `u64::MAX` when none. Lowered by whoever has left
    /// something in a queue, with Release, after the queue's own moment; raised by the owner, which then looks at every queue.
    next_tx_ns: AtomicU64,
    /// Some queue has a descriptor that the worker watches. Written while the host is being built.
    has_descriptors: AtomicBool,
    /// Taken away with the host: a context that keeps the core for a while must not keep a descriptor open.
    kick: Mutex<Option<Arc<dyn Kick>>>,
    /// Sockets that TCP Small Queues have stopped and that may go on.
    tasklet: Tasklet,
    /// Counted here, not on a page: whoever kicks or parks has no context at hand. Relaxed: counters order nothing.
    kicks: AtomicU64,
    sleeps: AtomicU64,
}

impl core::fmt::Debug for Core {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Core {
    /// One of `cores` cores of `host`.
    pub(crate) fn new(id: CoreId, cores: u16, host: Weak<Host>) -> Self {
        let state = CoreState {
            napis: Vec::new(),
            unannounced: 0,
            descriptors: 0,
            completing: 0,
            ringed: 0,
            holding: 0,
            powered: power::Powered::default(),
            next_napi: 0,
            due: Vec::new(),
            trim: trim::TrimWalk::default(),
            backlog: BacklogPoll::default(),
            outbox: Outbox::new(id, cores),
            last_flow: LastFlow::default(),
        };
        Self {
            id,
            host,
            lock: CoreLock::new(state),
            backlog: Backlog::new(cores),
            places: Mutex::default(),
            timers: Mutex::new(TimerWheel::new(Instant::ZERO)),
            next_timer_ns: AtomicU64::new(u64::MAX),
            sleep_until_ns: AtomicU64::new(0),
            descriptors: Descriptors::default(),
            bulk: AtomicBool::new(false),
            sleeper_polls: AtomicBool::new(false),
            masked: AtomicU64::new(0),
            power: power::Power::default(),
            next_napi_ns: AtomicU64::new(u64::MAX),
            next_tx_ns: AtomicU64::new(u64::MAX),
            has_descriptors: AtomicBool::new(false),
            kick: Mutex::default(),
            tasklet: Tasklet::default(),
            kicks: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        }
    }

    /// Which core of its host this is.
    #[must_use]
    pub const fn id(&self) -> CoreId {
        self.id
    }

    /// Its worker is no more: nobody is kicked.
    pub(crate) fn lose_worker(&self) {
        drop(self.kick.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Names the thread to kick when the core has work and its worker sleeps. Once per core.
    pub fn set_kick(&self, kick: Arc<dyn Kick>) {
        let _ = self.kick.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(kick);
    }

    /// Packets that other cores have handed to this one.
    pub(crate) const fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// The place of a device's queue among those of this core. For whoever watches descriptors, once.
    #[must_use]
    pub fn napi_of(&self, device: u32, queue: QueueId) -> Option<NapiId> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.iter().position(|place| *place == (device, queue))?;
        u8::try_from(place).ok().map(NapiId)
    }

    /// A transmit queue of this core is to be run at `at`.
    pub(crate) fn note_transmit_deadline(&self, at: Instant) {
        self.next_tx_ns.fetch_min(at.as_nanos(), Ordering::Release);
    }

    pub(crate) const fn tasklet(&self) -> &Tasklet {
        &self.tasklet
    }

    /// Adds what is counted here to a sum over pages.
    pub(crate) fn add_counts(&self, sums: &mut Snapshot) {
        sums.add_stack(Counter::CoreKicks, self.kicks.load(Ordering::Relaxed));
        sums.add_stack(Counter::CoreSleeps, self.sleeps.load(Ordering::Relaxed));
    }
}
