//! One lock around the stack, who waits for what, and time.
//!
//! Every call of packetdrill locks [`State`], runs the host as far as it goes at the present moment, and lets go. A call
//! that has to wait does so in [`Runtime::wait_for`]: it tries, waits until something has changed, and tries again.
//!
//! **Virtual time.** packetdrill uses two threads: the one that loads this library, the *driver*, which sends and
//! receives packets, and one for calls that a script says will block, a *sleeper* here once it does. Whoever of them
//! waits for the next event of the script moves time in [`Runtime::step`], from one deadline to the next. After each move
//! [`Runtime::settle`] lets every sleeper look again, and one whose call is done must have read the clock (packetdrill
//! notes when a call returned) before time moves on: a call returns at the very moment at which it could.
//!
//! **Wall-clock time.** A thread of this library runs the host when a timer is due; everybody else waits on the
//! condition variable with a timeout.

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

use pkt::Instant;
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

/// How long a receiver waits for a packet, on its own clock, before it says that there is none. packetdrill takes it
/// for a failure of the script.
const RECEIVE_LIMIT: Duration = Duration::from_secs(10);

/// How long, in real time, the driver waits for a sleeper to look or to return. Far above what a thread needs to be
/// scheduled; a sleeper that packetdrill keeps from reading the clock must not stop the script for ever.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// Real time that a returned call is given to tell packetdrill what it has got, a new connection for instance, before
/// the next event of the script refers to it. Given when the driver sleeps: only then it has let packetdrill's lock go.
const RETURN_GRACE: Duration = Duration::from_millis(10);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The running contexts of this thread, by runtime.
    static CONTEXTS: RefCell<HashMap<u64, Box<Cx>>> = RefCell::default();
}

/// The library as packetdrill holds it.
#[derive(Debug)]
pub(crate) struct Runtime {
    id: u64,
    flags: Flags,
    memory: Memory,
    device: Arc<PacketDevice>,
    driver: ThreadId,
    state: Mutex<State>,
    /// Something has happened: whoever waits looks again.
    changed: Condvar,
    /// A sleeper has looked or returned.
    settled: Condvar,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) clock: Clock,
    pub(crate) descriptors: Descriptors,
    /// Built when it is first needed.
    host: Option<Arc<Host>>,
    control: ControlFile,
    /// With the flag `netns`.
    namespace: Option<Namespace>,
    sleepers: BTreeMap<u64, Sleeper>,
    next_sleeper: u64,
    /// Threads whose call has ended after a sleep, until they read the clock.
    returning: HashSet<ThreadId>,
    /// One of them has read the clock since the driver last slept.
    has_returned: bool,
    /// Grows when sleepers must look again.
    generation: u64,
    stopped: bool,
}

/// A call that waits on another thread than the driver.
#[derive(Debug)]
struct Sleeper {
    /// The generation it has looked at.
    seen: u64,
    deadline: Option<Instant>,
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all: `EAGAIN` is the answer.
    None,
    /// At most so long.
    For(Duration),
    /// Until it is done.
    Endless,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Runtime {
    /// A stack that does what `flags` say. The calling thread is the driver.
    ///
    /// # Errors
    /// When the settings of the network namespace are to be followed and cannot be.
    pub(crate) fn new(flags: Flags) -> io::Result<Arc<Self>> {
        let watch = || Namespace::watch(Path::new("/proc/sys"), followed());
        let namespace = flags.netns.then(watch).transpose()?;
        let runtime = Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flags,
            memory: Memory::new(MEMORY_BYTES_MAX),
            device: Arc::new(PacketDevice::new()),
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
            thread::spawn(move || clock.serve_timers());
        }
        Ok(runtime)
    }

    /// Ends the thread that serves timers, if there is one. Descriptors stay open: packetdrill closes them itself.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.descriptors.leak();
        self.changed.notify_all();
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` at the present moment, and everybody whom it concerns.
    pub(crate) fn run<R>(&self, work: impl FnOnce(&mut State, &Arc<Host>, &mut Cx) -> R) -> R {
        let mut guard = self.lock();
        let result = self.enter(&mut guard, work);
        self.announce(guard);
        result
    }

    /// Tries `attempt` until it has another answer than `EAGAIN`, as long as `patience` lasts.
    pub(crate) fn wait_for<R>(
        &self,
        patience: Patience,
        mut attempt: impl FnMut(&mut State, &Arc<Host>, &mut Cx) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut guard = self.lock();
        let deadline = match patience {
            Patience::For(time) => Some(guard.clock.now() + time),
            _ => None,
        };
        let mut sleeper = None;
        let result = loop {
            match self.enter(&mut guard, &mut attempt) {
                Err(Errno::EAGAIN) if patience != Patience::None => {}
                result => break result,
            }
            if deadline.is_some_and(|deadline| deadline <= guard.clock.now()) {
                break Err(Errno::EAGAIN);
            }
            guard = if guard.clock.is_virtual() && self.is_driver() {
                let moved;
                (guard, moved) = self.step(guard, deadline);
                if !moved {
                    // Nobody else moves time, and nothing is armed: the call would never return.
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
        self.announce(guard);
        result
    }

    /// A packet arrives from packetdrill.
    pub(crate) fn deliver(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.run(
            |_, _, cx| {
                if self.device.deliver(cx, bytes) { Ok(()) } else { Err(Errno::ENOBUFS) }
            },
        )
    }

    /// The next packet that the stack emits. `None` when there is none for [`RECEIVE_LIMIT`].
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

    /// The caller does nothing for `time`.
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

    /// The clock as packetdrill reads it.
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

    /// Lets time pass until something happens, at most until `limit`.
    fn pass<'a>(&'a self, guard: Guard<'a>, limit: Instant) -> Guard<'a> {
        if guard.clock.is_virtual() {
            return self.step(guard, Some(limit)).0;
        }
        let time = limit.saturating_duration_since(guard.clock.now());
        self.changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Moves virtual time to the next moment at which something happens, at most to `limit`, and does it. False when
    /// nothing ever will and there is no limit.
    fn step<'a>(&'a self, mut guard: Guard<'a>, limit: Option<Instant>) -> (Guard<'a>, bool) {
        guard = self.settle(guard);
        let sleepers = guard.sleepers.values().filter_map(|sleeper| sleeper.deadline);
        let next = sleepers.chain(guard.next_deadline()).chain(limit).min();
        let Some(next) = next else { return (guard, false) };
        // A host that wants to be run again at once is run after the smallest time packetdrill can see.
        let next = next.max(guard.clock.now() + READING);
        guard.clock.advance_to(limit.map_or(next, |limit| next.min(limit)));
        self.enter(&mut guard, |_, _, _| ());
        (self.settle(guard), true)
    }

    /// Every sleeper looks again, and those whose calls are done return. Virtual time only.
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

    /// Waits for a change on a thread that does not move time.
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

    /// Something may have changed for others.
    fn announce(&self, guard: Guard<'_>) {
        if guard.clock.is_virtual() && self.is_driver() {
            drop(self.settle(guard));
        } else {
            self.changed.notify_all();
        }
    }

    /// Wall-clock time: runs the host whenever something is due.
    fn serve_timers(&self) {
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

    /// Runs `work` in the context of this thread, then the host until it has nothing more to do at this moment.
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

    /// The host, with the settings of this moment.
    fn host(&self, state: &mut State) -> Arc<Host> {
        let host = match &state.host {
            Some(host) => Arc::clone(host),
            None => Arc::clone(state.host.insert(self.build_host())),
        };
        state.read_control(&host, self.flags.report);
        host
    }

    fn build_host(&self) -> Arc<Host> {
        let Flags { local, gateway, .. } = self.flags;
        let address = ipnet::IpNet::V4(local);
        let any = ipnet::IpNet::V4(ipnet::Ipv4Net::default());
        let device = Arc::clone(&self.device);
        let config = HostConfig {
            name: String::from("packetdrill"),
            devices: vec![DeviceConfig { device, addresses: vec![address] }],
            routes: vec![RouteSpec::via(any, gateway.into())],
            cores: 1,
            sysctls: Sysctls::default(),
            secrets: Secrets::replay(self.flags.seed),
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

    /// Takes over what the script has set. `report` tells of what has no effect here.
    fn read_control(&mut self, host: &Host, report: bool) {
        let (mut settings, others) = self.control.read_new();
        if let Some(namespace) = &mut self.namespace {
            settings.extend(namespace.read_new().unwrap_or_else(|error| {
                // A script that runs with other settings than it asked for proves nothing.
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

/// The settings that are followed in a network namespace, with their defaults: TCP's. The machine's limits of neighbours are
/// not a script's.
fn followed() -> impl Iterator<Item = (&'static str, String)> {
    let defaults = Sysctls::default();
    Sysctls::names()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("net.ipv4.tcp_"))
        .map(move |name| (name, defaults.get(name).expect("a name of the table")))
}

/// A number that the stack itself never returns.
pub(crate) fn raw_errno(number: i32) -> Errno {
    Errno::from_raw(number).expect("a number of the C library")
}
