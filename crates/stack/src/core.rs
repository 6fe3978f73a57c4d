//! The core: what Linux keeps per CPU for its softirqs, as an object that somebody owns while running it.
//!
//! Whoever owns a core runs it: a worker thread, an application thread that waits, the caller of `Host::poll`, the
//! simulator. `turn` is the one code path for all of them, `napi` what a core keeps per device queue. Here: who owns
//! the core, its timers, and how its worker sleeps. Linux: `softnet_data`, ksoftirqd.
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
use sync::{CoreGuard, CoreLock, QUEUES_MAX};

use crate::{
    counters::{Counter, Snapshot},
    cx::{Cx, Owed},
    device::{Device, QueueId, RxSignal},
    host::Host,
    neighbour_table::NeighborEntry,
    rps::{Backlog, BacklogPoll, Outbox},
    socket::{LastFlow, RequestSocket, Tasklet, TcpSocket, TimeWaitSocket},
    timer::TimerWheel,
    tx_queue::DeviceTx,
};

use napi::Napi;
pub use napi::WEIGHT;
pub(crate) use power::PowerChange;
use turn::turn;

mod deferral;
mod napi;
mod power;
mod sleep;
mod trim;
mod turn;

/// Turns of a core before its runner does something else. As Linux's `MAX_SOFTIRQ_RESTART`: with a budget of 300 frames
/// each, a few milliseconds.
const TURNS_MAX: usize = 10;

/// Index of a core of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreId(pub u16);

/// The place of a core's backlog among its queues: the last one, which no device gets.
const BACKLOG: usize = QUEUES_MAX - 1;

/// Looks at a core whose host is gone before its end is left to its owner.
const LOOKS_MAX: u32 = 1000;

/// Looks between two cycles of busy polling that found nothing.
const LOOKS: u32 = 32;

/// Device queues that one core can poll.
pub(crate) const DEVICE_QUEUES_MAX: usize = BACKLOG;

/// One of the queues that a core polls: NAPI's instance, by its place among those of its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiId(u8);

impl NapiId {
    /// Its bit in the lock of its core.
    const fn bit(self) -> u64 {
        1 << self.0
    }
}

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
    Stream(Weak<TcpSocket>),
    Request(Weak<RequestSocket>),
    TimeWait(Weak<TimeWaitSocket>),
    Neighbor(Weak<NeighborEntry>),
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
    /// The worker found the core in other hands and sleeps until it is let go.
    worker_yields: AtomicBool,
    /// Until when the descriptors are left to the application thread that polls the core, in nanoseconds; 0 when it has gone
    /// to sleep since. Relaxed: the fences of `stop_polling` and `prepare_sleep` order it.
    polled_until_ns: AtomicU64,
    /// It said that it would be back by then.
    preferred: AtomicBool,
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
            worker_yields: AtomicBool::new(false),
            polled_until_ns: AtomicU64::new(0),
            preferred: AtomicBool::new(false),
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

    /// Adds a device queue to those this core polls; `None` when it has [`DEVICE_QUEUES_MAX`]. Only while the host is being built.
    pub(crate) fn add_queue(
        &self,
        (device, tx): (Arc<dyn Device>, Arc<DeviceTx>),
        index: u32,
        queue: QueueId,
    ) -> Option<NapiId> {
        let mut guard = self.lock.try_own().expect("nobody runs a core that is being built");
        let id = guard.napis.len();
        if id == DEVICE_QUEUES_MAX {
            return None;
        }
        match device.rx_signal(queue) {
            RxSignal::Doorbell => {}
            RxSignal::Descriptor => {
                guard.descriptors |= 1 << id;
                self.has_descriptors.store(true, Ordering::Relaxed);
            }
            RxSignal::None => guard.unannounced |= 1 << id,
        }
        let napi = Napi::new((device, tx), index, queue);
        guard.completing |= u64::from(napi.completes()) << id;
        guard.ringed |= u64::from(napi.has_ring()) << id;
        guard.napis.push(napi);
        self.places.lock().unwrap_or_else(PoisonError::into_inner).push((index, queue));
        let _ = guard.release();
        Some(NapiId(u8::try_from(id).expect("at most 61")))
    }

    /// Forgets the device queues: the host is gone, so nobody runs them any more. Another thread may own the core for a moment, and
    /// is waited for: who opens the same device again finds it closed. One that has rung it and does not come to it, as this very
    /// thread may have, finds the host gone, and forgets them then.
    pub(crate) fn remove_queues(&self) {
        for _ in 0..LOOKS_MAX {
            if let Some(guard) = self.lock.try_own() {
                return self.forget(guard);
            }
            sync::yield_now();
        }
    }

    /// The end of a core without a host: its devices, its timers and whom to kick.
    fn forget(&self, mut guard: CoreGuard<'_, CoreState>) {
        guard.napis.clear();
        (guard.completing, guard.ringed) = (0, 0);
        // Contexts that have run the core may keep it for a while: not what it remembers of the host's sockets, too.
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        if !timers.is_empty() {
            *timers = TimerWheel::new(Instant::ZERO);
        }
        drop(timers);
        drop(self.kick.lock().unwrap_or_else(PoisonError::into_inner).take());
        guard.backlog.clear(&self.backlog);
    }

    /// A context that owes this core a run ends before it comes to it: its thread panics. The worker runs it, or whoever is rung
    /// next.
    #[cold]
    pub(crate) fn disown(&self, owed: Owed) {
        let guard = match owed {
            Owed::Claim(claim) => Some(self.lock.adopt(claim)),
            Owed::Run => self.lock.claim(),
        };
        let Some(guard) = guard else { return };
        match self.host.upgrade() {
            Some(host) if host.check_up().is_ok() => {
                // If it has no worker the core is owed a run, of which nobody knows: then it is nobody's.
                guard.reschedule();
                if !self.kick_worker() {
                    drop(self.lock.claim());
                }
            }
            Some(_) => drop(guard),
            None => self.forget(guard),
        }
    }

    /// Names the thread to kick when the core has work and its worker sleeps. Once per core.
    pub fn set_kick(&self, kick: Arc<dyn Kick>) {
        let _ = self.kick.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(kick);
    }

    /// A frame arrived on `napi`: the caller's context runs this core unless somebody runs it already.
    pub fn schedule(this: &Arc<Self>, napi: NapiId, cx: &mut Cx) {
        if let Some(claim) = this.lock.own_or_schedule(napi.bit()) {
            cx.raise(this, Owed::Claim(claim));
        }
    }

    /// Packets that other cores have handed to this one.
    pub(crate) const fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Packets have been put into the backlog, which was empty: the worker runs this core, or the caller's context where
    /// there is none, unless somebody runs it already. Linux: `napi_schedule_rps`.
    pub(crate) fn kick_backlog(this: &Arc<Self>, cx: &mut Cx) {
        if !this.lock.schedule(1 << BACKLOG) {
            return;
        }
        let is_up = this.host.upgrade().is_some_and(|host| host.check_up().is_ok());
        if !(is_up && this.kick_worker()) {
            cx.raise(this, Owed::Run);
        }
    }

    /// The place of a device's queue among those of this core. For whoever watches descriptors, once.
    #[must_use]
    pub fn napi_of(&self, device: u32, queue: QueueId) -> Option<NapiId> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.iter().position(|place| *place == (device, queue))?;
        u8::try_from(place).ok().map(NapiId)
    }

    /// The descriptor of a queue says that frames have arrived: the next turn polls it, whoever runs it. The caller goes on
    /// with [`run_interrupted`](Self::run_interrupted). Linux: a device's interrupt handler.
    pub fn interrupt(&self, napi: NapiId) {
        self.lock.mark(napi.bit());
    }

    /// Runs a core that `schedule` has given to this context.
    pub(crate) fn run_scheduled(&self, cx: &mut Cx, owed: Owed) {
        let guard = match owed {
            Owed::Claim(claim) => self.lock.adopt(claim),
            Owed::Run => match self.lock.claim() {
                Some(guard) => guard,
                None => return,
            },
        };
        match self.host.upgrade() {
            Some(host) => {
                let entered = cx.enter(&host);
                cx.count(Counter::CoreDoorbells, 1);
                self.run_for_another(&host, guard, cx);
                cx.leave(entered);
            }
            None => self.forget(guard),
        }
    }

    /// As [`run_scheduled`](Self::run_scheduled), by the worker if there is one: this context has run cores for long enough.
    #[cold]
    pub(crate) fn hand_over(&self, cx: &mut Cx, owed: Owed) {
        if let Owed::Claim(claim) = owed {
            self.lock.adopt(claim).reschedule();
        }
        if !self.hand_to_worker(cx) {
            self.run_scheduled(cx, Owed::Run);
        }
    }

    /// Runs turns until every queue is empty, if nobody else runs the core, but not for ever.
    pub fn try_run(&self, host: &Host, cx: &mut Cx) -> CoreRun {
        self.run(host, cx, Scope::All)
    }

    /// As [`try_run`](Self::try_run), for whoever watches the descriptors: of the queues that have one, only those that
    /// [`interrupt`](Self::interrupt) has named are polled.
    pub fn run_interrupted(&self, host: &Host, cx: &mut Cx) -> CoreRun {
        self.run(host, cx, Scope::Scheduled)
    }

    fn run(&self, host: &Host, cx: &mut Cx, scope: Scope) -> CoreRun {
        let Some(guard) = self.lock.try_own() else { return CoreRun::Elsewhere };
        cx.set_home(host, self.id);
        match self.run_turns(host, guard, cx, scope) {
            Some(_) => CoreRun::Pending,
            None => CoreRun::Idle,
        }
    }

    /// As [`try_run`](Self::try_run), or with `watched` [`run_interrupted`](Self::run_interrupted), for the core's worker.
    ///
    /// It wakes threads when the core is free, for what they do first is to want it. When one of them is a reader who polls, and
    /// more has arrived by descriptors, that is left to it ([`CoreRun::Left`]): fetched here it would be in other caches.
    /// So is what comes until it has been there.
    pub fn run_as_worker(&self, host: &Host, cx: &mut Cx, watched: bool) -> CoreRun {
        if self.is_left_alone(cx.now) {
            return CoreRun::Left;
        }
        let Some(guard) = self.lock.try_own() else { return CoreRun::Elsewhere };
        cx.set_home(host, self.id);
        if self.is_bulk() && self.sleeper_polls.load(Ordering::Relaxed) {
            cx.hold_wakes();
        }
        let scope = if watched { Scope::Scheduled } else { Scope::All };
        let owed = self.run_turns(host, guard, cx, scope).is_some();
        let leaves = !owed && cx.has_left();
        if leaves {
            cx.now = cx.read_clock();
            self.leave_to_reader(cx);
        }
        cx.release_wakes();
        match (owed, leaves) {
            (true, _) => CoreRun::Pending,
            (false, true) => CoreRun::Left,
            (false, false) => CoreRun::Idle,
        }
    }

    /// Runs cycles of at most `budget` frames until `done`, if nobody else runs the core: for a caller that waits for
    /// something. It keeps the ownership in between, as busy polling keeps NAPI's, so that frames are processed where they
    /// are awaited and not by their senders, who write nothing but the ring that a frame comes by. False when somebody else
    /// runs it: that thread will do the work. Linux: `napi_busy_loop`.
    ///
    /// The end is `busy_poll_stop`'s: what the last cycle left over keeps the ownership here, and is polled as any
    /// other run would. Once the ownership is given up nothing of the core is touched again, since it may be running
    /// elsewhere by then.
    pub fn busy_poll(
        &self,
        host: &Host,
        cx: &mut Cx,
        budget: usize,
        mut done: impl FnMut(&mut Cx) -> bool,
    ) -> bool {
        cx.set_home(host, self.id);
        let Some(mut guard) = self.lock.own_if_idle() else { return false };
        guard.poll_queues(guard.ringed);
        loop {
            let _ = turn(host, self, &mut guard, cx, Scope::Busy(budget));
            cx.do_softirq();
            if done(cx) {
                break;
            }
            self.look_out(&guard);
        }
        turn::stop_cycles(host, &mut guard, cx);
        cx.do_softirq();
        // The worker is not resumed: this thread will most likely be back before a worker could take over. It says so
        // with `stop_polling` when it is not.
        self.note_poll(cx);
        let unannounced = guard.stop_polling();
        let arrived = guard.arrived() & unannounced;
        if arrived != 0 {
            guard.put_back(arrived);
        }
        if let Err(guard) = guard.release() {
            self.run_for_another(host, guard, cx);
            // What it has sent may have raised other cores, and nobody else will run them.
            cx.do_softirq();
        }
        true
    }

    /// Between two cycles that found nothing: waits for a sign that the next one will find something, for as long as a cycle or two
    /// take. A sign costs two loads, a cycle and the look at the clock behind it as much as ten signs.
    fn look_out(&self, guard: &CoreGuard<'_, CoreState>) {
        if !guard.hears_of_all() {
            return;
        }
        let nothing = || !guard.is_wanted() && guard.arrived() == 0 && !self.tasklet.is_pending();
        let mut looks = 0;
        while looks < LOOKS && nothing() {
            looks += 1;
        }
    }

    /// One turn on the way, if nobody else runs the core: a thread that sends in bulk takes the acknowledgements itself, and
    /// the worker need not be woken for each of them. Only where there are descriptors that it would be woken by.
    pub(crate) fn poll_in_passing(&self, host: &Host, cx: &mut Cx) {
        if !self.has_descriptors.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut guard) = self.lock.own_if_idle() else { return };
        // The call that brought us here read the clock a superframe ago.
        cx.now = cx.read_clock();
        let report = turn(host, self, &mut guard, cx, Scope::All);
        self.note_poll(cx);
        // Queues that nobody announces keep no core from being let go.
        let owed = match report {
            PollReport::Pending => Some(guard),
            PollReport::AllDone => guard.release().err(),
        };
        if let Some(guard) = owed {
            self.run_for_another(host, guard, cx);
        }
        cx.do_softirq();
    }

    /// For a thread that came for something else: if work keeps coming in, the worker takes over.
    ///
    /// Differs from Linux: without a worker it goes on until nothing is left, because nobody else would ever come for it.
    fn run_for_another(&self, host: &Host, guard: CoreGuard<'_, CoreState>, cx: &mut Cx) {
        let scope = Scope::Scheduled;
        let Some(guard) = self.run_turns(host, guard, cx, scope) else { return };
        guard.reschedule();
        if self.hand_to_worker(cx) {
            return;
        }
        let mut owned = self.lock.claim();
        while let Some(guard) = owned {
            owned = self.run_turns(host, guard, cx, scope);
        }
    }

    /// Runs turns until every queue is empty and lets the core go, or gives it back after [`TURNS_MAX`]: the caller has
    /// other things to do, and the time it has read grows old.
    fn run_turns<'a>(
        &self,
        host: &Host,
        mut guard: CoreGuard<'a, CoreState>,
        cx: &mut Cx,
        scope: Scope,
    ) -> Option<CoreGuard<'a, CoreState>> {
        for _ in 0..TURNS_MAX {
            if turn(host, self, &mut guard, cx, scope) == PollReport::Pending {
                cx.wake_held();
                continue;
            }
            match guard.release() {
                Ok(()) => {
                    self.resume_worker();
                    return None;
                }
                Err(still_owned) => guard = still_owned,
            }
            let entered = cx.enter(host);
            cx.count(Counter::CoreMissed, 1);
            cx.leave(entered);
        }
        Some(guard)
    }

    /// Arms a timer. Any context may call it.
    pub(crate) fn arm(&self, deadline: Instant, entry: TimerEntry) {
        let next = {
            let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
            timers.insert(deadline, entry);
            self.publish_next_timer(&timers)
        };
        // What a sleeper compares with: the wheel's moment, not the exact one, or it would be woken for nothing.
        self.wake_before(next);
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

    /// Entries in the timer wheel, those included that nobody waits for any more.
    #[must_use]
    pub fn timers_armed(&self) -> usize {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn publish_next_timer(&self, timers: &TimerWheel<TimerEntry>) -> Instant {
        let next = timers.next_deadline().unwrap_or(Instant::FAR_FUTURE);
        self.next_timer_ns.store(next.as_nanos(), Ordering::Relaxed);
        next
    }
}
