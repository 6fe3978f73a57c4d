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
    sync::{Arc, Mutex, PoisonError, Weak},
    vec::Vec,
};

pub use sync::Kick;
use sync::{Attendance, CoreLock, QUEUES_MAX};

pub(crate) use crate::{
    base::{
        counters::{Counter, Snapshot},
        ids::{CoreId, NapiId},
    },
    cx::RunCore,
    device::QueueId,
    host::Host,
    receive::{
        flow::LastFlow,
        napi::Napi,
        rps::{Backlog, BacklogPoll, Outbox},
    },
    socket::core_sockets::{CoreSockets, TimerEntry},
};

pub(crate) use power::PowerChange;

mod busy_poll;
mod lifetime;
mod power;
mod run;
mod sleep;
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
    trim: turn::TrimWalk,
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
    /// Itself, for contexts that poll it.
    this: Weak<dyn RunCore>,
    host: Weak<Host>,
    lock: CoreLock<CoreState>,
    /// Device and queue of each queue polled here.
    places: Mutex<Vec<(u32, QueueId)>>,
    /// Packets that cores have handed to each other, by the core that receives them.
    backlogs: Arc<[Backlog]>,
    /// Timers and the list of TCP Small Queues, which sockets know without the core.
    sockets: Arc<CoreSockets>,
    /// Which thread polls the queues, whether the worker sleeps, and what wakes it.
    attendance: Arc<Attendance>,
    /// Which queues are to be polled at all.
    power: power::Power,
}

impl core::fmt::Debug for Core {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Core {
    /// A core of `host`; `backlogs` are those of all its cores.
    pub(crate) fn new(
        id: CoreId,
        host: Weak<Host>,
        backlogs: Arc<[Backlog]>,
        attendance: Arc<Attendance>,
        sockets: Arc<CoreSockets>,
    ) -> Arc<Self> {
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
            trim: turn::TrimWalk::default(),
            backlog: BacklogPoll::default(),
            outbox: Outbox::new(id, Arc::clone(&backlogs)),
            last_flow: LastFlow::default(),
        };
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            id,
            this: this.clone(),
            host,
            lock: CoreLock::new(state),
            backlogs,
            places: Mutex::default(),
            sockets,
            power: power::Power::default(),
            attendance,
        })
    }

    /// Which core of its host this is.
    #[must_use]
    pub const fn id(&self) -> CoreId {
        self.id
    }

    /// Which thread polls the queues, and whether the worker sleeps.
    pub(crate) const fn attendance(&self) -> &Arc<Attendance> {
        &self.attendance
    }

    /// The core has no worker any more.
    pub(crate) fn lose_worker(&self) {
        self.attendance.remove_kick();
    }

    /// Sets how to wake the worker of the core. Once per core.
    pub fn set_kick(&self, kick: Arc<dyn Kick>) {
        self.attendance.set_kick(kick);
    }

    /// Packets that other cores have handed to this one.
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlogs[usize::from(self.id.0)]
    }

    /// Those of every core.
    #[cfg(test)]
    pub(crate) const fn backlogs(&self) -> &Arc<[Backlog]> {
        &self.backlogs
    }

    /// The place of a device's queue among those of this core. For whoever watches descriptors, once.
    #[must_use]
    pub fn napi_of(&self, device: u32, queue: QueueId) -> Option<NapiId> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.iter().position(|place| *place == (device, queue))?;
        u8::try_from(place).ok().map(NapiId)
    }

    /// Entries in the timer wheel, those included that nobody waits for any more.
    #[must_use]
    pub fn timers_armed(&self) -> usize {
        self.sockets.timers_armed()
    }

    /// Adds what is counted here to a sum over pages.
    pub(crate) fn add_counts(&self, sums: &mut Snapshot) {
        sums.add_stack(Counter::CoreKicks, self.attendance.kicks());
        sums.add_stack(Counter::CoreSleeps, self.attendance.sleeps());
    }
}
