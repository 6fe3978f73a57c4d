//! One lock around the stack, sleeping calls, and time.
//!
//! Every call of packetdrill locks [`State`], runs the host until it has nothing more to do at the
//! present moment, and releases the lock. A call that blocks sleeps in [`Runtime::wait_for`], which
//! steps the call again after every change.
//!
//! **Virtual time.** packetdrill uses two threads: the *driver*, which loads this library and sends
//! and receives packets, and one for calls that block according to the script, which is a *sleeper*
//! while it sleeps. The driver advances time in [`Runtime::step`], from one deadline to the next.
//! After each advance [`Runtime::settle`] lets every sleeper step its call. packetdrill reads the
//! clock when a call has returned, and time does not advance before that reading: a call returns at
//! the moment at which it could.
//!
//! **Wall-clock time.** A thread of this library runs the host when a timer is due. All other
//! threads wait on the condition variable with a timeout.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use ipnet::{Ipv4Net, Ipv6Net};
use pkt::Instant;
use posix::{Answer, Step};
use stack::{
    Cx, Errno, Memory, Secrets,
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    route::fib::RouteSpec,
    sysctl::Sysctls,
};

use crate::{
    clock::{Clock, READING},
    control::ControlFile,
    descriptor::Descriptors,
    device::{PacketDevice, Sent},
    flags::Flags,
    namespace::Namespace,
};

/// Packet memory of the stack.
const MEMORY_BYTES_MAX: usize = 256 << 20;

/// Time, on the clock of the script, after which a receiver reports that no packet has come. The
/// script fails then.
const RECEIVE_LIMIT: Duration = Duration::from_secs(10);

/// Real time for which the driver waits until every sleeper has stepped its call or returned. Far
/// above the time in which a thread is scheduled. The limit exists because packetdrill may keep a
/// returned call from reading the clock.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// Real time in which a returned call passes its result to packetdrill, for example a new
/// descriptor, before the next event of the script uses it. The driver waits when it sleeps,
/// because packetdrill's own lock is free only then.
const RETURN_GRACE: Duration = Duration::from_millis(10);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Running contexts of this thread, by runtime.
    static CONTEXTS: RefCell<HashMap<u64, Box<Cx>>> = RefCell::default();
}

/// State of the library behind `userdata`.
#[derive(Debug)]
pub(crate) struct Runtime {
    id: u64,
    flags: Flags,
    memory: Memory,
    device: Arc<PacketDevice>,
    driver: ThreadId,
    state: Mutex<State>,
    /// Notified when something has changed: waiting threads check again.
    changed: Condvar,
    /// Notified when a sleeper has stepped its call or returned.
    settled: Condvar,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) clock: Clock,
    pub(crate) descriptors: Descriptors,
    /// Built by the first call.
    host: Option<Arc<Host>>,
    control: ControlFile,
    /// Watched namespace, with the flag `netns`.
    namespace: Option<Namespace>,
    sleepers: BTreeMap<u64, Sleeper>,
    next_sleeper: u64,
    /// Threads whose call has returned after a sleep, until they read the clock.
    returning: HashSet<ThreadId>,
    /// A returned thread has read the clock since the driver last slept.
    has_returned: bool,
    /// Number of the last request that sleepers step their calls.
    generation: u64,
    stopped: bool,
}

/// A call that sleeps on a thread other than the driver.
#[derive(Debug)]
struct Sleeper {
    /// Generation at which the call was last stepped.
    seen: u64,
    deadline: Option<Instant>,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Runtime {
    /// Makes a stack with these flags. The calling thread is the driver.
    ///
    /// # Errors
    /// When the settings of the network namespace cannot be watched.
    pub(crate) fn new(flags: Flags) -> io::Result<Arc<Self>> {
        let watch = || Namespace::watch(Path::new("/proc/sys"), followed());
        let namespace = flags.netns.then(watch).transpose()?;
        let runtime = Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flags,
            memory: Memory::new(MEMORY_BYTES_MAX),
            device: Arc::new(PacketDevice::new(flags.mtu)),
            driver: thread::current().id(),
            state: Mutex::new(State {
                clock: Clock::new(flags.virtual_time),
                descriptors: Descriptors::default(),
                host: None,
                control: ControlFile::from_environment(),
                namespace,
                sleepers: BTreeMap::new(),
                next_sleeper: 0,
                returning: HashSet::new(),
                has_returned: false,
                generation: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
            settled: Condvar::new(),
        });
        if !flags.virtual_time {
            let clock = Arc::clone(&runtime);
            thread::spawn(move || clock.run_timers());
        }
        Ok(runtime)
    }

    /// Ends the thread that runs timers, if there is one. Descriptors stay open: packetdrill closes
    /// them itself.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.descriptors.leak();
        self.changed.notify_all();
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` at the present moment, and steps the sleepers.
    pub(crate) fn run<R>(&self, work: impl FnOnce(&mut State, &Arc<Host>, &mut Cx) -> R) -> R {
        let mut guard = self.lock();
        let result = self.enter(&mut guard, work);
        self.notify_others(guard);
        result
    }

    /// Steps a call until it returns, for at most `limit`. `None` when the time is over.
    ///
    /// # Errors
    /// The error of a step; `EDEADLK` when no timer is armed and no thread can change anything.
    pub(crate) fn wait_for<R>(
        &self,
        limit: Option<Duration>,
        mut step: impl FnMut(&mut State, &Arc<Host>, &mut Cx) -> Answer<R>,
    ) -> Result<Option<R>, Errno> {
        let mut guard = self.lock();
        let deadline = limit.map(|limit| guard.clock.now() + limit);
        let mut sleeper = None;
        let result = loop {
            match self.enter(&mut guard, &mut step) {
                Ok(Step::Ready(value)) => break Ok(Some(value)),
                Ok(Step::Blocks) => {}
                Err(errno) => break Err(errno),
            }
            if deadline.is_some_and(|deadline| deadline <= guard.clock.now()) {
                break Ok(None);
            }
            guard = if guard.clock.is_virtual() && self.is_driver() {
                let moved;
                (guard, moved) = self.step(guard, deadline);
                if !moved {
                    // No other thread advances time, and no timer is armed: the call would never
                    // return.
                    break Err(raw_errno(libc::EDEADLK));
                }
                guard
            } else {
                self.sleep(guard, &mut sleeper, deadline)
            };
        };
        if let Some(id) = sleeper {
            guard.sleepers.remove(&id);
            guard.returning.insert(thread::current().id());
            self.settled.notify_all();
        }
        self.notify_others(guard);
        result
    }

    /// Delivers a packet of packetdrill.
    pub(crate) fn deliver(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.run(
            |_, _, cx| {
                if self.device.deliver(cx, bytes) { Ok(()) } else { Err(Errno::ENOBUFS) }
            },
        )
    }

    /// Returns the next packet that the stack sends; `None` after [`RECEIVE_LIMIT`] without one.
    pub(crate) fn next_sent(&self) -> Option<Sent> {
        let mut guard = self.lock();
        let limit = guard.clock.now() + RECEIVE_LIMIT;
        loop {
            if let Some(sent) = self.device.take() {
                return Some(sent);
            }
            if guard.clock.now() >= limit {
                return None;
            }
            guard = self.pass(guard, limit);
        }
    }

    /// Sleeps for `time`.
    pub(crate) fn sleep_for(&self, time: Duration) {
        let mut guard = self.lock();
        if !guard.clock.is_virtual() {
            drop(guard);
            return thread::sleep(time);
        }
        if std::mem::take(&mut guard.has_returned) {
            drop(guard);
            thread::sleep(RETURN_GRACE);
            guard = self.lock();
        }
        let target = guard.clock.now() + time;
        while guard.clock.now() < target {
            guard = self.pass(guard, target);
        }
    }

    /// Reads the clock for packetdrill.
    pub(crate) fn read_clock(&self) -> Instant {
        let mut guard = self.lock();
        let returned = guard.returning.remove(&thread::current().id());
        if returned {
            guard.has_returned = true;
            self.settled.notify_all();
        } else if guard.clock.is_virtual() {
            let next = guard.clock.now() + READING;
            guard.clock.advance_to(next);
            if guard.next_deadline().is_some_and(|deadline| deadline <= next) {
                self.enter(&mut guard, |_, _, _| ());
                guard = self.settle(guard);
            }
        }
        guard.clock.now()
    }

    /// Lets time pass until an event, at most until `limit`.
    fn pass<'a>(&'a self, guard: Guard<'a>, limit: Instant) -> Guard<'a> {
        if guard.clock.is_virtual() {
            return self.step(guard, Some(limit)).0;
        }
        let time = limit.saturating_duration_since(guard.clock.now());
        self.changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Advances virtual time to the next deadline, at most to `limit`, and runs the host. False
    /// without a deadline and without a limit.
    fn step<'a>(&'a self, mut guard: Guard<'a>, limit: Option<Instant>) -> (Guard<'a>, bool) {
        guard = self.settle(guard);
        let sleepers = guard.sleepers.values().filter_map(|sleeper| sleeper.deadline);
        let next = sleepers.chain(guard.next_deadline()).chain(limit).min();
        let Some(next) = next else { return (guard, false) };
        // A host that is due at once runs after the smallest time that packetdrill can observe.
        let next = next.max(guard.clock.now() + READING);
        guard.clock.advance_to(limit.map_or(next, |limit| next.min(limit)));
        self.enter(&mut guard, |_, _, _| ());
        (self.settle(guard), true)
    }

    /// Lets every sleeper step its call, and those whose calls are done return. Virtual time only.
    fn settle<'a>(&'a self, mut guard: Guard<'a>) -> Guard<'a> {
        if guard.sleepers.is_empty() && guard.returning.is_empty() {
            return guard;
        }
        guard.generation += 1;
        self.changed.notify_all();
        let busy = |state: &mut State| {
            let generation = state.generation;
            !state.returning.is_empty() || state.sleepers.values().any(|s| s.seen != generation)
        };
        let settled = self.settled.wait_timeout_while(guard, SETTLE_LIMIT, busy);
        settled.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for a change on a thread that does not advance time.
    fn sleep<'a>(
        &'a self,
        mut guard: Guard<'a>,
        sleeper: &mut Option<u64>,
        deadline: Option<Instant>,
    ) -> Guard<'a> {
        if !guard.clock.is_virtual() {
            let time = deadline.map_or(RECEIVE_LIMIT, |deadline| {
                deadline.saturating_duration_since(guard.clock.now())
            });
            return self
                .changed
                .wait_timeout(guard, time)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let generation = guard.generation;
        let id = *sleeper.get_or_insert_with(|| {
            guard.next_sleeper += 1;
            guard.next_sleeper
        });
        guard.sleepers.insert(id, Sleeper { seen: generation, deadline });
        self.settled.notify_all();
        let unchanged = |state: &mut State| state.generation == generation;
        self.changed.wait_while(guard, unchanged).unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies other threads of a change.
    fn notify_others(&self, guard: Guard<'_>) {
        if guard.clock.is_virtual() && self.is_driver() {
            drop(self.settle(guard));
        } else {
            self.changed.notify_all();
        }
    }

    /// Wall-clock time: runs the host whenever a timer is due.
    fn run_timers(&self) {
        let mut guard = self.lock();
        while !guard.stopped {
            if guard.host.is_some() {
                self.enter(&mut guard, |_, _, _| ());
                self.changed.notify_all();
            }
            let now = guard.clock.now();
            let time = guard
                .next_deadline()
                .map_or(RECEIVE_LIMIT, |deadline| deadline.saturating_duration_since(now));
            let wait = self.changed.wait_timeout(guard, time.max(READING));
            guard = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Runs `work` in the context of this thread, then the host until it has nothing more to do at
    /// this moment.
    fn enter<R>(
        &self,
        guard: &mut Guard<'_>,
        work: impl FnOnce(&mut State, &Arc<Host>, &mut Cx) -> R,
    ) -> R {
        let host = self.host(guard);
        let known = CONTEXTS.with_borrow_mut(|contexts| contexts.remove(&self.id));
        let mut cx = known.unwrap_or_else(|| Box::new(Cx::replay(&self.memory, self.flags.seed)));
        cx.now = guard.clock.now();
        let result = work(guard, &host, &mut cx);
        host.poll(&mut cx);
        CONTEXTS.with_borrow_mut(|contexts| contexts.insert(self.id, cx));
        result
    }

    /// Returns the host with the present settings.
    fn host(&self, state: &mut State) -> Arc<Host> {
        let host = match &state.host {
            Some(host) => Arc::clone(host),
            None => Arc::clone(state.host.insert(self.build_host())),
        };
        state.read_control(&host, self.flags.report);
        host
    }

    fn build_host(&self) -> Arc<Host> {
        let Flags { local, gateway, local_v6, gateway_v6, .. } = self.flags;
        let (any, any_v6) = (Ipv4Net::default(), Ipv6Net::default());
        let device = Arc::clone(&self.device);
        let config = HostConfig {
            name: String::from("packetdrill"),
            devices: vec![DeviceConfig { device, addresses: vec![local.into(), local_v6.into()] }],
            routes: vec![
                RouteSpec::via(any.into(), gateway.into()),
                RouteSpec::via(any_v6.into(), gateway_v6.into()),
            ],
            ..HostConfig::new(Secrets::replay(self.flags.seed))
        };
        Host::new(&self.memory, config).expect("a valid configuration")
    }

    fn is_driver(&self) -> bool {
        thread::current().id() == self.driver
    }
}

impl State {
    fn next_deadline(&self) -> Option<Instant> {
        self.host.as_ref()?.next_deadline()
    }

    /// Applies the settings of the script. `report` prints those without effect.
    fn read_control(&mut self, host: &Host, report: bool) {
        let (mut settings, others) = self.control.read_new();
        if let Some(namespace) = &mut self.namespace {
            settings.extend(namespace.read_new().unwrap_or_else(|error| {
                // A script that runs with other settings than its own proves nothing.
                eprintln!("quietline: the sysctls of the network namespace: {error}");
                std::process::exit(2);
            }));
        }
        for setting in settings {
            let result = host.set_sysctl(&setting.name, &setting.value);
            if let Err(error) = result
                && report
            {
                eprintln!("quietline: {error}");
            }
        }
        for line in others {
            if line.starts_with("ip tcp_metrics flush") {
                host.flush_tcp_metrics();
            } else if report {
                eprintln!("quietline: {line}: no such command here");
            }
        }
    }
}

/// The settings that are watched in a network namespace, with their defaults: TCP's. The limits of
/// the neighbor table are the machine's and not a script's.
fn followed() -> impl Iterator<Item = (&'static str, String)> {
    let defaults = Sysctls::default();
    Sysctls::names()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("net.ipv4.tcp_"))
        .map(move |name| (name, defaults.get(name).expect("a name of the table")))
}

/// An errno that the stack never returns.
pub(crate) fn raw_errno(number: i32) -> Errno {
    Errno::from_raw(number).expect("a number of the C library")
}
