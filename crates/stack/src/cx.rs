//! The running context: what a thread carries while it executes the stack.
//!
//! Linux keeps this in per-CPU variables. Here it splits: a `core::Core` holds the queues and is an object anybody may
//! own, a [`Cx`] belongs to the thread that runs: the time it read, its packet memory, its place in the RCU domain,
//! the counter page it writes, and the cores it must run before it returns to the application.
//!
//! Not here: any clock. `now` is set by whoever enters the stack, once per call or turn. The time limit of a turn needs
//! more: its owner may give a context a function that tells the time.

use std::{
    rc::Rc,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet, PacketList, Pool};
use sync::{Poller, epoch};

use crate::{
    base::{
        counters::{Counter, CounterPage},
        ids::CoreId,
    },
    sysctl::Sysctls,
};
use share::HostShare;
use sock_flows::SockFlows;

pub mod event;
mod polling;
pub mod share;
pub(crate) mod sock_flows;
pub(crate) mod softirq;
mod view;
mod wakes;

use polling::Polling;
use softirq::Softirq;
pub(crate) use softirq::{Owed, RunCore};
use view::HostView;
use wakes::HeldWakes;

/// Cores a context runs before it leaves the rest to others, as Linux's `MAX_SOFTIRQ_RESTART` leaves it to ksoftirqd: a thread that
/// only wanted to send must come back.
const SOFTIRQ_RESTART_MAX: usize = 64;

/// Cores between two looks at the clock, of a context that has one: with most calls it is one or two.
const SOFTIRQ_LOOK: usize = 8;

/// How long it runs them, from its first look on (`MAX_SOFTIRQ_TIME`).
const SOFTIRQ_TIME_MAX: Duration = Duration::from_millis(2);

/// What contexts and hosts that exchange packets share: packet memory and the RCU domain. One per process, or one per
/// simulation, so that a test can check that its packets have all gone home.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Packet memory.
    pub packets: pkt::Domain,
    /// Readers of the look-up tables.
    pub rcu: epoch::Domain,
}

impl Memory {
    /// Packet memory of at most `bytes_max` bytes, and an RCU domain.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self::with_source(bytes_max, &pkt::Heap)
    }

    /// As [`new`](Self::new), with packet memory from `source` instead of the global allocator.
    #[must_use]
    pub fn with_source(bytes_max: usize, source: &'static dyn pkt::SlabSource) -> Self {
        let config = pkt::DomainConfig { max_bytes: bytes_max };
        Self { packets: pkt::Domain::with_source(config, source), rcu: epoch::Domain::new() }
    }
}

/// The running context of one thread. Not shared: every worker, application thread and simulated CPU has its own.
#[derive(Debug)]
pub struct Cx {
    /// The time, as read when this context entered the stack.
    pub now: Instant,
    /// `now` is from before the thread's last [`rest`](Self::rest).
    stale: bool,
    /// How `now` is read again in the middle of a turn. None: time stands still until the caller moves it.
    clock: Option<fn() -> Instant>,
    /// Frames that this context has taken from devices, of whatever host.
    received: u64,
    /// Threads to be woken when the core is free.
    wakes: HeldWakes,
    /// The core that it has polled last.
    polling: Polling,
    /// The address of the listener whose next connection this thread polls for; 0: of none.
    pub(crate) accepts: usize,
    /// This thread accepts connections.
    pub(crate) is_acceptor: bool,
    /// Packet memory of this context.
    pub pool: Pool,
    /// What `pool` had refused when it was last asked.
    alloc_failed: u64,
    /// Chance: limits of challenges, ports, identifications.
    pub rng: tcp::Rng,
    /// Segments made by TCP and not yet handed to IP. Empty whenever no socket is held.
    pub(crate) out: PacketList,
    /// Packets that a read has emptied. Empty whenever no socket is held.
    pub(crate) read: PacketList,
    reader: Rc<epoch::Reader>,
    /// The softirq pending mask.
    softirq: Softirq,
    /// Of the host being run, or of the last one; of none at first.
    view: Box<HostView>,
    /// Hosts that have been entered and not left, one inside the other.
    depth: u32,
    /// Of the other hosts entered so far, and of none. They change places with `view`.
    #[expect(clippy::vec_box, reason = "what changes places is the pointer")]
    others: Vec<Box<HostView>>,
}

/// Returned by [`Cx::enter`]; gives the previous host's counters back to [`Cx::leave`]: their place.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Entered(usize);

impl Entered {
    /// It was this host before.
    const HERE: Self = Self(usize::MAX);
}

impl Cx {
    /// A context that uses `memory`, whose chance is that of `seed`. Only for runs that must repeat: see [`tcp::Rng::new`].
    #[must_use]
    pub fn replay(memory: &Memory, seed: u64) -> Self {
        Self::new(memory, tcp::Rng::new(seed))
    }

    /// A context that uses `memory`, with chance from `rng`: [`tcp::Rng::keyed`] in whatever faces a network.
    #[must_use]
    pub fn new(memory: &Memory, rng: tcp::Rng) -> Self {
        /// Relaxed: a number orders nothing.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            now: Instant::ZERO,
            stale: false,
            clock: None,
            received: 0,
            wakes: HeldWakes::default(),
            polling: Polling::new(number),
            accepts: 0,
            is_acceptor: false,
            pool: memory.packets.pool(),
            alloc_failed: 0,
            rng,
            out: PacketList::new(),
            read: PacketList::new(),
            reader: Rc::new(memory.rcu.reader()),
            softirq: Softirq::default(),
            view: Box::new(HostView::nowhere()),
            depth: 0,
            others: Vec::new(),
        }
    }

    /// With a clock for the one thing that cannot wait for the end of a turn: the turn's own time limit.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Its thread has read the clock.
    #[inline]
    pub const fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.stale = false;
    }

    /// The present time: later than `now` was, if this context has a clock.
    pub(crate) fn read_clock(&mut self) -> Instant {
        self.stale = false;
        if let Some(clock) = self.clock {
            self.now = self.now.max(clock());
        }
        self.now
    }

    /// Before `now` is used by who may have been called without: a look at the clock costs as much as half a segment.
    #[inline]
    pub(crate) fn freshen(&mut self) {
        if self.stale {
            self.read_clock();
        }
    }

    /// Which context this is among those that poll a core.
    pub(crate) const fn poller(&self) -> Poller {
        self.polling.poller()
    }

    /// The core has been told that this context polls it.
    pub(crate) fn note_polled(&mut self, core: &Weak<dyn RunCore>) {
        self.polling.note(core);
    }

    /// This context has closed a socket, and may do anything now: the worker of the core that it has polled last looks at the
    /// descriptors again. A thread that also accepts connections will most likely wait for the next one at once, and poll for it:
    /// the worker would only be in its way.
    pub(crate) fn leave_polling(&mut self) {
        if !self.is_acceptor {
            self.polling.leave();
        }
    }

    /// Frames that this context has taken from devices so far: whoever polls can tell whether it found any.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    pub(crate) const fn on_received(&mut self, frames: usize) {
        self.received += frames as u64;
    }

    /// Packet memory was at its limit when this context wanted some, since it was last asked.
    #[inline]
    pub(crate) fn has_lacked_memory(&mut self) -> bool {
        let failed = self.pool.alloc_failed();
        core::mem::replace(&mut self.alloc_failed, failed) != failed
    }

    /// The RCU reader of this context. Cloned so that a read section does not borrow the context.
    #[must_use]
    pub(crate) fn reader(&self) -> Rc<epoch::Reader> {
        Rc::clone(&self.reader)
    }

    /// Counts for `host` from here on, until `leave`.
    #[inline]
    pub(crate) fn enter(&mut self, host: &HostShare) -> Entered {
        self.depth += 1;
        if self.view.host == host.id() && self.view.generation == host.live_sysctls().generation() {
            return Entered::HERE;
        }
        self.enter_other(host)
    }

    /// From another host, or with other settings.
    fn enter_other(&mut self, host: &HostShare) -> Entered {
        let mut entered = Entered::HERE;
        if self.view.host != host.id() {
            let known = self.others.iter().position(|view| view.host == host.id());
            let place = known.unwrap_or_else(|| self.add_view(host));
            core::mem::swap(&mut self.view, &mut self.others[place]);
            // Nobody goes back: whoever comes next most likely comes for this host again.
            if self.depth > 1 {
                entered = Entered(place);
            }
        }
        self.view.refresh(host);
        self.follow_free_mode();
        entered
    }

    /// Packets die as the host being run wants it.
    #[inline]
    fn follow_free_mode(&mut self) {
        if self.view.host != 0 && self.pool.free_mode() != self.view.free_mode {
            self.pool.set_free_mode(self.view.free_mode);
        }
    }

    /// Back to the counters that were current before `entered`. The outermost host stays the current one.
    #[inline]
    pub(crate) fn leave(&mut self, entered: Entered) {
        self.depth -= 1;
        if entered != Entered::HERE {
            core::mem::swap(&mut self.view, &mut self.others[entered.0]);
            self.follow_free_mode();
        }
    }

    /// A host that is entered for the first time. A context that outlives many hosts must not keep their pages: only ours is left
    /// then. While it is in one already their places are not touched.
    #[cold]
    fn add_view(&mut self, host: &HostShare) -> usize {
        if self.depth == 1 {
            self.others.retain(|view| Arc::strong_count(&view.page) > 1);
        }
        self.others.push(Box::new(HostView::new(host)));
        self.others.len() - 1
    }

    /// The counter page of the host being run.
    #[must_use]
    pub fn counters(&self) -> &CounterPage {
        &self.view.page
    }

    /// The settings of the host being run, as they were when it was entered.
    #[inline]
    #[must_use]
    pub fn sysctls(&self) -> &Sysctls {
        &self.view.sysctls
    }

    /// The settings of `host`, for who is about to enter it.
    pub fn sysctls_of(&mut self, host: &HostShare) -> &Sysctls {
        let entered = self.enter(host);
        let place = entered.0;
        self.leave(entered);
        // Where it was, or where it has gone back to.
        &self.others.get(place).unwrap_or(&self.view).sysctls
    }

    /// Number of the settings that [`sysctls`](Self::sysctls) are.
    pub(crate) fn generation(&self) -> u64 {
        self.view.generation
    }

    /// Whether packets of the host being run may change core.
    #[inline]
    pub(crate) fn rps_needed(&self) -> bool {
        self.view.rps_needed
    }

    /// Where applications of the host being run read their flows; `None` when nobody wants to know.
    #[inline]
    pub(crate) fn sock_flows(&self) -> Option<&SockFlows> {
        self.view.sock_flows.as_deref()
    }

    /// The core of the host being run whose turn this context is in. `None` in process context.
    pub(crate) fn running(&self) -> Option<CoreId> {
        self.view.running
    }

    /// The core as whose work this counts: the one whose turn it is; in process context, where packets follow their applications
    /// (RFS), the one where the thread is at home. Linux: `smp_processor_id`.
    pub(crate) fn place(&self) -> Option<CoreId> {
        let view = &self.view;
        view.running.or_else(|| view.sock_flows.as_ref().and(view.home))
    }

    /// A turn of a core of the host being run begins, or the turn around it goes on. Returns what was before.
    pub(crate) fn set_running(&mut self, core: Option<CoreId>) -> Option<CoreId> {
        core::mem::replace(&mut self.view.running, core)
    }

    /// The core of `host` that this context last ran of its own accord: a worker its own, an application thread the one it
    /// polled while it waited.
    pub fn home(&mut self, host: &HostShare) -> Option<CoreId> {
        let entered = self.enter(host);
        let home = self.view.home;
        self.leave(entered);
        home
    }

    pub(crate) fn set_home(&mut self, host: &HostShare, core: CoreId) {
        let entered = self.enter(host);
        self.view.home = Some(core);
        self.leave(entered);
    }

    /// A socket call on the flow of `hash`: its packets had better come to where this thread is. Linux:
    /// `sock_rps_record_flow`.
    #[inline]
    pub(crate) fn record_flow(&self, hash: u32) {
        let view = &self.view;
        if let (Some(flows), Some(home)) = (&view.sock_flows, view.home) {
            flows.record(hash, home);
        }
    }

    /// Adds `n` to a counter of the host being run.
    #[inline]
    pub fn count(&self, counter: Counter, n: u64) {
        self.counters().stack.add(counter, n);
    }

    /// Counts why a packet dies and gives its memory back.
    #[cold]
    pub fn drop_packet(&mut self, reason: DropReason, packet: Packet) {
        self.counters().drops.add(reason, 1);
        if packet.has_dst() {
            self.count(Counter::DstPut, 1);
        }
        self.pool.free(packet);
    }

    /// The view of this context that the TCP engine takes. What the connection has below it is added by who runs its output.
    pub(crate) fn tcp(&mut self) -> tcp::Cx<'_> {
        let view = &self.view;
        tcp::Cx {
            now: self.now,
            pool: &mut self.pool,
            counters: &view.page.tcp,
            out: &mut self.out,
            read: &mut self.read,
            config: &view.sysctls.tcp,
            rng: &mut self.rng,
            challenges: &view.challenges,
            memory: view.memory.state(&view.sysctls.tcp_mem),
            rps_needed: view.rps_needed,
            host_queue: tcp::HostQueue::NONE,
        }
    }

    /// A socket of the host being run holds `pages` more of TCP memory, or fewer.
    #[inline]
    pub(crate) fn charge_tcp(&self, pages: i64) {
        let HostView { page, sysctls, memory, .. } = &*self.view;
        memory.charge(&page.tcp_reserve, pages, &sysctls.tcp_mem, &page.tcp, self.now);
    }

    /// Time does not run backwards between contexts: what this one receives was sent before now. `now` is read once
    /// per call, so a context that entered the stack earlier may learn here that it is later than it read.
    #[inline]
    pub(crate) fn not_before(&mut self, then: Instant) {
        self.now = self.now.max(then);
    }

    /// The thread that owns this context is about to run cores again and again: its read sections become free, and
    /// memory taken out of tables waits for its turns.
    pub fn stay_online(&self) {
        self.reader.stay_online();
    }

    /// The thread comes for one call after the other: the read sections of a call cost as much as one, and memory taken out of
    /// tables waits for the end of it, [`rest`](Self::rest).
    pub fn linger(&self) {
        self.reader.linger();
    }

    /// The end of a call of a thread that lingers. When it comes again `now` is old, until it says [`set_now`](Self::set_now):
    /// some calls ask no time, and look at the clock themselves where they have to.
    #[inline]
    pub fn rest(&mut self) {
        self.stale = true;
        self.reader.rest();
    }

    /// The thread is about to sleep.
    pub fn go_offline(&self) {
        self.reader.go_offline();
    }

    /// Remembers a core that this context has to run, in [`Cx::do_softirq`].
    pub(crate) fn raise(&mut self, core: &Arc<dyn RunCore>, owed: Owed) {
        self.softirq.raise(core, owed);
    }

    /// Runs every raised core, and those their packets raise, until none is left, but not for ever: what is left then is for their
    /// workers, or for whoever comes next. Process context calls it after it has transmitted, as Linux does when it enables bottom
    /// halves.
    #[inline]
    pub fn do_softirq(&mut self) {
        if self.softirq.is_pending() {
            self.run_raised();
        }
    }

    fn run_raised(&mut self) {
        let (mut runs, mut end) = (0, None);
        while let Some((core, place, owed)) = self.softirq.take_next() {
            if runs < SOFTIRQ_RESTART_MAX {
                core.run_scheduled(self, owed);
                runs += 1;
                if runs % SOFTIRQ_LOOK == 0 && self.is_past(&mut end) {
                    runs = SOFTIRQ_RESTART_MAX;
                }
            } else {
                core.hand_over(self, owed);
            }
            self.softirq.put_back(place, core);
        }
    }

    /// Whether it is later than `end`, which is set by the first look.
    fn is_past(&mut self, end: &mut Option<Instant>) -> bool {
        let now = self.read_clock();
        now >= *end.get_or_insert(now + SOFTIRQ_TIME_MAX)
    }

    /// Whether a core waits to be run by this context.
    #[must_use]
    pub fn softirq_pending(&self) -> bool {
        self.softirq.is_pending()
    }
}
