//! Cores. A core holds the state that Linux keeps per CPU for its softirqs; the thread that owns
//! the core runs it.
//!
//! A core is owned and run by its worker, by an application thread that waits, by the caller of
//! `Host::poll`, or by the simulator (`run`, `busy_poll`). All of them run turns (`turn`: one pass
//! over the queues, transmit completions and timers of the core). `receive::napi` holds the state
//! of one device queue. `sleep` computes when a core must run without an arrival. Linux:
//! `softnet_data`, ksoftirqd.
//!
//! The word of ownership (`sync::CoreLock`) has NAPI's bits SCHED and MISSED, and one bit for each
//! queue, set when the queue has signaled an arrival. A doorbell (the arrival signal of a device in
//! this process) that finds the core owned sets MISSED and the bit of its queue; the owner then
//! runs another turn before it releases the core. Therefore no frame waits for a second doorbell,
//! and a turn need not poll queues that could signal and did not.
//!
//! | core at a doorbell (`own_or_schedule`) | effect |
//! |---|---|
//! | not owned | The ringing thread owns the core and runs it in `Cx::do_softirq`. |
//! | owned | MISSED is set, so that the owner's release fails and the owner runs another turn. |

use std::{
    ops::Deref,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    vec::Vec,
};

use pkt::Instant;
pub use sync::Kick;
use sync::{Attendance, CoreLock, QUEUES_MAX};

use crate::{
    base::{
        counters::{Counter, Snapshot},
        ids::{CoreId, DeviceIndex, NapiId},
    },
    cx::RunCore,
    device::{DeviceQueue, QueueId},
    receive::{
        napi::Napi,
        rps::{Backlog, BacklogPoll, Outbox},
    },
    socket::{
        core_sockets::{CoreSockets, TimerEntry},
        net::Net,
        rx::LastFlow,
        wmem::Tasklet,
    },
};

pub(crate) use admin_state::AdminState;

mod admin_state;
mod busy_poll;
mod lifetime;
mod memory_map;
mod run;
mod sleep;
mod turn;

/// Index of a core's backlog (packets that other cores have steered to it) among its queues: the
/// last index, which no device queue gets.
const BACKLOG: usize = QUEUES_MAX - 1;

/// Device queues that one core can poll.
pub(crate) const DEVICE_QUEUES_MAX: usize = BACKLOG;

/// Queues that a turn polls, and its frame budget. Queues without an arrival signal are polled in
/// every turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Scheduled queues only: the worker watches the descriptors.
    Scheduled,
    /// Scheduled queues and all queues with a descriptor, because no thread watches the
    /// descriptors.
    All,
    /// All queues, with this frame budget: one cycle of busy polling. The budget is small because
    /// the first frame may be the awaited one.
    Busy(usize),
}

/// Result of a turn, as NAPI's poll returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PollReport {
    /// The budget was used up, or a walk over the connections is unfinished: another turn has work
    /// at once.
    Pending,
    /// Every polled queue was found empty, or its frames are left to a woken reader.
    AllDone,
}

/// Result of an attempt to run a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CoreRun {
    /// The core has no work left.
    Idle,
    /// New work arrives as fast as the core completes it. The caller must read the clock, do its
    /// other work, and call again.
    Pending,
    /// Another thread owns the core, and does the work for which this call was made.
    Elsewhere,
    /// Frames that have arrived or may arrive are left to a thread that polls the core itself: a
    /// reader that this call has woken, or a thread that has polled recently.
    Left,
}

/// State that only the owner of the core accesses.
#[derive(Debug)]
pub(crate) struct CoreState {
    /// Queues of this core; the index of a queue is its bit in the lock.
    napis: Vec<Napi>,
    /// Queues without an arrival signal: every turn polls them.
    unannounced: u64,
    /// Queues with a descriptor, through which the worker is notified of arrivals.
    descriptors: u64,
    /// Queues whose device reports transmit completions.
    completing: u64,
    /// Queues whose frames arrive in a ring that this core reads: a polling thread finds them
    /// without a doorbell.
    ringed: u64,
    /// Queues that held packets back in GRO after their last poll.
    holding: u64,
    /// Queues that are not polled, because their device is down or gone.
    applied: admin_state::AppliedStates,
    /// Round robin: index of the queue that the next turn polls first, if it is due.
    next_napi: usize,
    /// Buffer for due timers, kept so that a turn allocates none.
    due: Vec<TimerEntry>,
    /// Packets that other cores have steered to this core, and packets for other cores.
    backlog: BacklogPoll,
    outbox: Outbox,
    /// Walk that frees spare memory of connections.
    trim: turn::TrimWalk,
    /// Result of the last four-tuple lookup on this core.
    last_flow: LastFlow,
    /// Time at the end of the last turn. Each owner reads the clock for itself, and one that loses
    /// its CPU before it owns the core has an earlier time than the owner before it.
    latest: Instant,
}

impl CoreState {
    /// Records after a poll whether the queue still holds packets back.
    fn note_held(&mut self, index: usize) {
        let bit = u64::from(self.napis[index].holds()) << index;
        self.holding = self.holding & !(1 << index) | bit;
    }

    /// Returns the queues whose ring holds a frame.
    fn arrived(&self) -> u64 {
        let polled = queues_in(self.ringed & !self.applied.disabled());
        polled.map(|index| u64::from(self.napis[index].has_arrived()) << index).sum()
    }

    /// Returns whether every queue has a ring or a doorbell, so that no arrival goes unnoticed.
    fn signals_every_arrival(&self) -> bool {
        (self.unannounced | self.descriptors) & !self.applied.disabled() == 0
    }
}

/// Iterates over the indices of the bits set in `mask`.
fn queues_in(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(index)
    })
}

/// A core's reference to its host. Each run of the core holds a count of this reference.
///
/// Each core has its own reference on its own cache lines. If all cores used the reference count of
/// the host itself, every doorbell would write one shared line twice (docs/model.md). The [`Host`]
/// owns these references, so they end with the host.
///
/// [`Host`]: crate::host::Host
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct CoreNet(OnceLock<Arc<Net>>);

impl CoreNet {
    /// Sets the host, once, while it is built.
    pub(crate) fn set(&self, net: &Arc<Net>) {
        let set = self.0.set(Arc::clone(net));
        debug_assert!(set.is_ok(), "the core already has a host");
    }
}

impl Deref for CoreNet {
    type Target = Net;

    #[inline]
    fn deref(&self) -> &Net {
        self.0.get().expect("no core runs before its host is built")
    }
}

impl core::fmt::Debug for CoreNet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CoreNet").finish_non_exhaustive()
    }
}

/// One core of a host.
pub struct Core {
    id: CoreId,
    /// Reference of the core to itself, for contexts that poll this core.
    this: Weak<dyn RunCore>,
    net: Weak<CoreNet>,
    lock: CoreLock<CoreState>,
    /// Device and queue of each queue polled here.
    places: Mutex<Vec<DeviceQueue>>,
    /// Packets that other cores have handed to this one.
    backlog: Arc<Backlog>,
    /// TCP Small Queues list of `sockets`.
    tasklet: Arc<Tasklet>,
    /// Timers and the TCP Small Queues list. Sockets use them without owning the core.
    sockets: Arc<CoreSockets>,
    /// Record of the thread that polls the queues, of the worker's sleep, and of the way to wake
    /// the worker.
    attendance: Arc<Attendance>,
    /// Requested state of the queues: polled, disabled, or gone.
    requested: admin_state::RequestedStates,
}

impl core::fmt::Debug for Core {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Core {
    /// Creates a core of the host `net`; `backlogs` are those of all cores of the host.
    pub(crate) fn new(
        id: CoreId,
        net: Weak<CoreNet>,
        backlogs: Arc<[Arc<Backlog>]>,
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
            applied: admin_state::AppliedStates::default(),
            next_napi: 0,
            due: Vec::new(),
            trim: turn::TrimWalk::default(),
            backlog: BacklogPoll::default(),
            outbox: Outbox::new(id, Arc::clone(&backlogs)),
            last_flow: LastFlow::default(),
            latest: Instant::ZERO,
        };
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            id,
            this: this.clone(),
            net,
            lock: CoreLock::new(state),
            backlog: Arc::clone(&backlogs[usize::from(id.0)]),
            tasklet: Arc::clone(sockets.tasklet()),
            places: Mutex::default(),
            sockets,
            requested: admin_state::RequestedStates::default(),
            attendance,
        })
    }

    /// Returns the number of this core in its host.
    #[must_use]
    pub const fn id(&self) -> CoreId {
        self.id
    }

    /// Returns the record of the polling thread and of the worker's sleep.
    pub(crate) const fn attendance(&self) -> &Arc<Attendance> {
        &self.attendance
    }

    /// Forgets the worker of the core after it has ended.
    pub(crate) fn lose_worker(&self) {
        self.attendance.remove_kick();
    }

    /// Sets how the worker of the core is woken. Called once per core.
    pub fn set_kick(&self, kick: Arc<dyn Kick>) {
        self.attendance.set_kick(kick);
    }

    /// Returns the packets that other cores have steered to this core.
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    #[cfg(test)]
    pub(crate) const fn shared_backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Returns the index of a device's queue on this core. The thread that watches descriptors
    /// calls it once per queue.
    #[must_use]
    pub fn napi_of(&self, device: DeviceIndex, queue: QueueId) -> Option<NapiId> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.iter().position(|place| *place == DeviceQueue { device, queue })?;
        u8::try_from(place).ok().map(NapiId)
    }

    /// Returns the number of entries in the timer wheel, including stale ones.
    #[must_use]
    pub fn timers_armed(&self) -> usize {
        self.sockets.timers_armed()
    }

    /// Adds the counts that this core keeps outside counter pages.
    pub(crate) fn add_counts(&self, sums: &mut Snapshot) {
        sums.add_stack(Counter::CoreKicks, self.attendance.kicks());
        sums.add_stack(Counter::CoreSleeps, self.attendance.sleeps());
    }
}
