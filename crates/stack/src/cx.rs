//! Running context: the state of a thread that executes the stack.
//!
//! Linux keeps this state in per-CPU variables. Here it is split. A `core::Core` holds the queues,
//! and any thread may own the core and run it in turns (`core::turn`: one pass over its queues and
//! timers). A [`Cx`] belongs to the running thread and holds its clock reading, packet memory, RCU
//! reader, counter page, and the cores that it must run before it returns to the application.
//!
//! Not here: a clock. The caller sets `now` when it enters the stack, once per call or turn. For
//! the time limit of a turn, the creator of a context may give it a function that reads the clock.

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
        udp_memory::UdpMemory,
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
pub(crate) use softirq::{Owed, RunCore};
use softirq::{Raised, Softirq};
use view::HostView;
use wakes::HeldWakes;

/// Number of cores that a context runs before it hands the others to other threads, because a
/// thread that only sends must return. Linux: `MAX_SOFTIRQ_RESTART`, after which ksoftirqd
/// continues.
const SOFTIRQ_RESTART_MAX: usize = 64;

/// Number of cores that a context with a clock runs between two clock reads. Most calls run one or
/// two cores, and thus read no clock here.
const SOFTIRQ_LOOK: usize = 8;

/// Time for which a context runs cores, from its first clock read on (`MAX_SOFTIRQ_TIME`).
const SOFTIRQ_TIME_MAX: Duration = Duration::from_millis(2);

/// Packet memory and RCU domain, shared by contexts and hosts that exchange packets. A process has
/// one, and so has each simulation, so that a test can check that all its packets are freed.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Packet memory.
    pub packets: pkt::Domain,
    /// RCU domain of the lookup tables.
    pub rcu: epoch::Domain,
}

impl Memory {
    /// Creates packet memory of at most `bytes_max` bytes, and an RCU domain.
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

/// Running context of one thread. Not shared: every worker, application thread and simulated CPU
/// has its own.
#[derive(Debug)]
pub struct Cx {
    /// The time, as read when this context entered the stack.
    pub now: Instant,
    /// True if `now` was read before the thread's last [`rest`](Self::rest).
    stale: bool,
    /// Function that reads the clock in the middle of a turn. `None`: time stands still until the
    /// caller sets it.
    clock: Option<fn() -> Instant>,
    /// Frames that this context has received from devices, of any host.
    received: u64,
    /// Threads to wake after the release of the core.
    wakes: HeldWakes,
    /// Core that this thread polled last.
    polling: Polling,
    /// Address of the listener for whose next connection this thread polls; 0 for none.
    pub(crate) accepts: usize,
    /// True if this thread accepts connections.
    pub(crate) is_acceptor: bool,
    /// Packet memory of this context.
    pub pool: Pool,
    /// Failed allocations of `pool` at the last check.
    alloc_failed: u64,
    /// Random numbers: challenge limits, ports, identifications.
    pub rng: tcp::Rng,
    /// Segments made by TCP and not yet handed to IP. Empty while this context owns no socket.
    pub(crate) out: PacketList,
    /// Packets that a read has emptied. Empty while this context owns no socket.
    pub(crate) read: PacketList,
    reader: Rc<epoch::Reader>,
    /// Softirq pending mask: cores to run.
    softirq: Softirq,
    /// View of the current host, or of the last one between two calls. At first the view of no
    /// host.
    view: Box<HostView>,
    /// Number of hosts entered and not left, nested.
    depth: u32,
    /// Views of the other hosts entered so far, and the initial view of no host. They are swapped
    /// with `view`.
    #[expect(clippy::vec_box, reason = "the pointers are swapped")]
    others: Vec<Box<HostView>>,
}

/// Index at which the previous host's view lies. Returned by [`Cx::enter`] for [`Cx::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Entered(usize);

impl Entered {
    /// The host was already current.
    const HERE: Self = Self(usize::MAX);
}

impl Cx {
    /// Creates a context that uses `memory`, with random numbers from `seed`. Only for runs that
    /// must repeat: see [`tcp::Rng::new`].
    #[must_use]
    pub fn replay(memory: &Memory, seed: u64) -> Self {
        Self::new(memory, tcp::Rng::new(seed))
    }

    /// Creates a context that uses `memory` and `rng`: [`tcp::Rng::keyed`] for a stack that faces a
    /// network.
    #[must_use]
    pub fn new(memory: &Memory, rng: tcp::Rng) -> Self {
        /// Relaxed: the number orders nothing.
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
            view: Box::new(HostView::no_host()),
            depth: 0,
            others: Vec::new(),
        }
    }

    /// Adds a function that reads the clock, so that a turn can check its time limit.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets the time that the thread has just read.
    #[inline]
    pub const fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.stale = false;
    }

    /// Reads the clock, if this context has one, and returns the time.
    pub(crate) fn read_clock(&mut self) -> Instant {
        self.stale = false;
        if let Some(clock) = self.clock {
            self.now = self.now.max(clock());
        }
        self.now
    }

    /// Reads the clock if `now` may be stale. A clock read costs half as much as the processing of
    /// a segment.
    #[inline]
    pub(crate) fn refresh_clock(&mut self) {
        if self.stale {
            self.read_clock();
        }
    }

    /// Returns the number by which a core knows this context as a poller.
    pub(crate) const fn poller(&self) -> Poller {
        self.polling.poller()
    }

    /// Records the core that this context has polled.
    pub(crate) fn note_polled(&mut self, core: &Weak<dyn RunCore>) {
        self.polling.note(core);
    }

    /// Ends the polling of this context after its thread has closed a socket, because the thread
    /// may not call the stack again soon. The worker of the core that was polled last then watches
    /// the descriptors again. A thread that also accepts connections most likely polls for the next
    /// one at once, so for such a thread the worker is not woken.
    pub(crate) fn leave_polling(&mut self) {
        if !self.is_acceptor {
            self.polling.leave();
        }
    }

    /// Returns the number of frames that this context has received from devices. A polling thread
    /// compares the number before a poll with that after it.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    pub(crate) const fn on_received(&mut self, frames: usize) {
        self.received += frames as u64;
    }

    /// Returns whether an allocation has failed since the last call, because packet memory was at
    /// its limit.
    #[inline]
    pub(crate) fn take_alloc_failure(&mut self) -> bool {
        let failed = self.pool.alloc_failed();
        core::mem::replace(&mut self.alloc_failed, failed) != failed
    }

    /// Returns the RCU reader of this context, as a clone, so that a read section does not borrow
    /// the context.
    #[must_use]
    pub(crate) fn reader(&self) -> Rc<epoch::Reader> {
        Rc::clone(&self.reader)
    }

    /// Makes `host` the current host, until `leave`.
    #[inline]
    pub(crate) fn enter(&mut self, host: &HostShare) -> Entered {
        self.depth += 1;
        if self.view.host == host.id() && self.view.generation == host.live_sysctls().generation() {
            return Entered::HERE;
        }
        self.enter_other(host)
    }

    /// Enters `host` from another host, or with changed settings.
    fn enter_other(&mut self, host: &HostShare) -> Entered {
        let mut entered = Entered::HERE;
        if self.view.host != host.id() {
            let known = self.others.iter().position(|view| view.host == host.id());
            let place = known.unwrap_or_else(|| self.add_view(host));
            core::mem::swap(&mut self.view, &mut self.others[place]);
            // The outermost call leaves this host current, because the next call is most likely for
            // this host again.
            if self.depth > 1 {
                entered = Entered(place);
            }
        }
        self.view.refresh(host);
        self.follow_free_mode();
        entered
    }

    /// Applies the setting of the current host for how packets are freed.
    #[inline]
    fn follow_free_mode(&mut self) {
        if self.view.host != 0 && self.pool.free_mode() != self.view.free_mode {
            self.pool.set_free_mode(self.view.free_mode);
        }
    }

    /// Returns to the host that was current before `entered`. After the outermost call the host
    /// stays current.
    #[inline]
    pub(crate) fn leave(&mut self, entered: Entered) {
        self.depth -= 1;
        if entered != Entered::HERE {
            core::mem::swap(&mut self.view, &mut self.others[entered.0]);
            self.follow_free_mode();
        }
    }

    /// Adds the view of a host that is entered for the first time. The views of hosts that are gone
    /// are dropped, so that a context that outlives many hosts does not keep their counter pages.
    /// While the context is inside another host, no view is dropped, because callers hold indices
    /// into `others` (`Entered`).
    #[cold]
    fn add_view(&mut self, host: &HostShare) -> usize {
        if self.depth == 1 {
            self.others.retain(|view| Arc::strong_count(&view.page) > 1);
        }
        self.others.push(Box::new(HostView::new(host)));
        self.others.len() - 1
    }

    /// Returns the counter page of the current host.
    #[must_use]
    pub fn counters(&self) -> &CounterPage {
        &self.view.page
    }

    /// Returns the settings of the current host, as they were when the context entered it.
    #[inline]
    #[must_use]
    pub fn sysctls(&self) -> &Sysctls {
        &self.view.sysctls
    }

    /// Returns the settings of `host`, for a caller that is about to enter it.
    pub fn sysctls_of(&mut self, host: &HostShare) -> &Sysctls {
        let entered = self.enter(host);
        let place = entered.0;
        self.leave(entered);
        // The view of `host` is current, or was swapped back to `place`.
        &self.others.get(place).unwrap_or(&self.view).sysctls
    }

    /// Returns the generation of [`sysctls`](Self::sysctls).
    pub(crate) fn generation(&self) -> u64 {
        self.view.generation
    }

    /// Returns whether packets of the current host may change core.
    #[inline]
    pub(crate) fn rps_needed(&self) -> bool {
        self.view.rps_needed
    }

    /// Returns the table of the cores on which applications of the current host read their flows;
    /// `None` without RFS.
    #[inline]
    pub(crate) fn sock_flows(&self) -> Option<&SockFlows> {
        self.view.sock_flows.as_deref()
    }

    /// Returns the core of the current host that this context runs in a turn; `None` in process
    /// context.
    pub(crate) fn running(&self) -> Option<CoreId> {
        self.view.running
    }

    /// Returns the core to which work of this context is attributed: in softirq context, the core
    /// that the context runs; in process context with RFS, the home core of the thread. Linux:
    /// `smp_processor_id`.
    pub(crate) fn current_core(&self) -> Option<CoreId> {
        let view = &self.view;
        view.running.or_else(|| view.sock_flows.as_ref().and(view.home))
    }

    /// Sets the core that this context runs, at the beginning of a turn or when the enclosing turn
    /// continues. Returns the previous value.
    pub(crate) fn set_running(&mut self, core: Option<CoreId>) -> Option<CoreId> {
        core::mem::replace(&mut self.view.running, core)
    }

    /// Returns the home core of this thread, that is the core of `host` that the thread last ran on
    /// its own initiative: a worker's own core, or the core that an application thread polled while
    /// it waited.
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

    /// Records a socket call on the flow of `hash`, so that RFS steers packets of the flow to the
    /// home core of this thread. Linux: `sock_rps_record_flow`.
    #[inline]
    pub(crate) fn record_flow(&self, hash: u32) {
        let view = &self.view;
        if let (Some(flows), Some(home)) = (&view.sock_flows, view.home) {
            flows.record(hash, home);
        }
    }

    /// Adds `n` to a counter of the current host.
    #[inline]
    pub fn count(&self, counter: Counter, n: u64) {
        self.counters().stack.add(counter, n);
    }

    /// Counts the reason of a drop and frees the packet.
    #[cold]
    pub fn drop_packet(&mut self, reason: DropReason, packet: Packet) {
        self.counters().drops.add(reason, 1);
        if packet.has_dst() {
            self.count(Counter::DstPut, 1);
        }
        self.pool.free(packet);
    }

    /// Returns the view of this context that the TCP engine uses. The caller that runs the output
    /// adds `host_queue`.
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

    /// Charges `pages` of TCP memory to the current host; negative values uncharge.
    #[inline]
    pub(crate) fn charge_tcp(&self, pages: i64) {
        let HostView { page, sysctls, memory, .. } = &*self.view;
        memory.charge(&page.tcp_reserve, pages, &sysctls.tcp_mem, &page.tcp, self.now);
    }

    /// Charges `pages` of datagrams to `memory`, the account of the current host, or uncharges them
    /// if negative. Returns false, and charges nothing, above the limit.
    #[inline]
    pub(crate) fn charge_udp(&self, memory: &UdpMemory, pages: i64) -> bool {
        let HostView { page, sysctls, .. } = &*self.view;
        memory.charge(&page.udp_reserve, pages, &sysctls.udp_mem)
    }

    /// Advances `now` to `then`, if `then` is later. Contexts read the clock once per call, so this
    /// context may receive packets that were sent after its reading. Time must not run backwards
    /// from sender to receiver.
    #[inline]
    pub(crate) fn advance_clock_to(&mut self, then: Instant) {
        self.now = self.now.max(then);
    }

    /// Keeps the RCU reader online, for a thread that runs cores again and again. The read sections
    /// of that thread then cost nothing, and retired memory is freed only after a quiescent state,
    /// which each of its turns reports.
    pub fn stay_online(&self) {
        self.reader.stay_online();
    }

    /// Keeps the RCU reader online until [`rest`](Self::rest), for a thread that makes one call
    /// after the other. All read sections of a call then cost as much as one, and retired memory is
    /// freed only after the end of the call.
    pub fn linger(&self) {
        self.reader.linger();
    }

    /// Ends a call of a thread that lingers. In the next call `now` is stale until
    /// [`set_now`](Self::set_now) or a clock read, so that a call which needs no time saves the
    /// read.
    #[inline]
    pub fn rest(&mut self) {
        self.stale = true;
        self.reader.rest();
    }

    /// Takes the RCU reader offline, because the thread is about to sleep.
    pub fn go_offline(&self) {
        self.reader.go_offline();
    }

    /// Raises a core: adds it to the cores that [`Cx::do_softirq`] must run.
    pub(crate) fn raise(&mut self, core: &Arc<dyn RunCore>, owed: Owed) {
        self.softirq.raise(core, owed);
    }

    /// Runs every raised core, and the cores that are raised meanwhile, until none is left or a
    /// limit is reached; the remaining cores are handed to their workers, or to the next thread
    /// that runs them. Process context calls it after a transmission, as Linux does when it enables
    /// bottom halves.
    #[inline]
    pub fn do_softirq(&mut self) {
        if self.softirq.is_pending() {
            self.run_raised();
        }
    }

    fn run_raised(&mut self) {
        let (mut runs, mut end) = (0, None);
        while let Some(Raised { core, place, owed }) = self.softirq.take_next() {
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

    /// Returns whether `end` has passed; the first call sets `end`.
    fn is_past(&mut self, end: &mut Option<Instant>) -> bool {
        let now = self.read_clock();
        now >= *end.get_or_insert(now + SOFTIRQ_TIME_MAX)
    }

    /// Returns whether a core is raised in this context.
    #[must_use]
    pub fn softirq_pending(&self) -> bool {
        self.softirq.is_pending()
    }
}
