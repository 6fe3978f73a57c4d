//! Many connections, few threads: a connection that waits for its peer has no thread.
//!
//! ```text
//!   accept ──► parked ──(readable, or its deadline has passed)──► ready ──► a thread serves what has come
//!                ▲                                                                   │
//!                └──────────────── until when to wait next ◄─────────────────────────┘
//! ```
//!
//! Threads are started when something is ready and none is free, and end when they have had nothing to do for a while. Every
//! connection that is parked has a deadline, so that none is kept for ever.
//!
//! Not here: what is served (`http`), how a connection tells that it is readable (`endpoint::Watch`).

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use super::pool::STACK_BYTES;
use crate::endpoint::{Host, OnReadable, Watch};

/// How long an unused thread waits for another connection.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// How long to wait before a thread is started again after the system had none to give.
const START_AGAIN: Duration = Duration::from_millis(20);

/// One connection and what is known of it.
pub(super) trait Client: Send + 'static {
    /// What is watched.
    type Stream;

    /// The connection.
    fn stream(&self) -> &Self::Stream;

    /// Serves what has come, and may wait within an exchange, but not for the next one. Returns until when to wait for more;
    /// `None` at the connection's end.
    fn serve(&mut self) -> Option<Instant>;

    /// Nothing came until the deadline: the connection ends.
    fn expire(&mut self);
}

/// The connections of a service.
pub(super) struct Clients<C, W> {
    shared: Arc<Shared<C, W>>,
}

struct Shared<C, W> {
    state: Mutex<State<C>>,
    /// A connection is ready and a thread is free.
    work: Condvar,
    /// A connection has ended.
    room: Condvar,
    /// There is a thread to start, or an earlier deadline.
    keeper: Condvar,
    watch: W,
    connections_max: usize,
}

struct State<C> {
    /// Connections that wait for their peer. Those that are being served are in no table.
    waiting: HashMap<u64, Waiting<C>>,
    /// Deadlines of those that are parked.
    deadlines: BTreeSet<(Instant, u64)>,
    ready: VecDeque<Ready<C>>,
    /// Connections that have not ended.
    connections: usize,
    key_next: u64,
    /// Threads that exist.
    threads: usize,
    /// Threads that were started and have not looked for work yet.
    starting: usize,
    /// Threads that wait for work.
    idle: usize,
}

enum Waiting<C> {
    /// Its watch is being set; true: it has been told of meanwhile.
    Arming(bool),
    Parked(C, Instant),
}

struct Ready<C> {
    key: u64,
    client: C,
    is_late: bool,
}

impl<C, W> Clients<C, W>
where
    C: Client,
    W: Watch<Stream = C::Stream>,
{
    /// No connections yet, and `connections_max` at most.
    pub(super) fn new<H: Host<Watch = W>>(host: &H, connections_max: usize) -> io::Result<Self> {
        // The function that connections call refers to what holds the watch: it is given when both exist.
        let target: Arc<Mutex<Weak<Shared<C, W>>>> = Arc::default();
        let on_readable: OnReadable = {
            let target = Arc::clone(&target);
            Arc::new(move |key| {
                let shared = lock(&target).upgrade();
                if let Some(shared) = shared {
                    shared.on_readable(key);
                }
            })
        };
        let state = State {
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            connections: 0,
            key_next: 0,
            threads: 0,
            starting: 0,
            idle: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            keeper: Condvar::new(),
            watch: host.watch(on_readable)?,
            connections_max,
        });
        *lock(&target) = Arc::downgrade(&shared);
        let keeper = Arc::clone(&shared);
        thread::Builder::new().name("connections".to_owned()).spawn(move || keeper.keep())?;
        Ok(Self { shared })
    }

    /// Takes a connection, which may have something to read until `deadline`; waits while there are as many as may be.
    pub(super) fn submit(&self, client: C, deadline: Instant) {
        let mut state = self.shared.lock();
        while state.connections >= self.shared.connections_max {
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.connections += 1;
        let key = state.key_next;
        state.key_next += 1;
        drop(state);
        if let Some(client) = self.shared.park(key, client, deadline) {
            let mut state = self.shared.lock();
            state.ready.push_back(Ready { key, client, is_late: false });
            self.shared.hand_out(&state);
        }
    }
}

impl<C, W> Shared<C, W>
where
    C: Client,
    W: Watch<Stream = C::Stream>,
{
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        lock(&self.state)
    }

    /// Leaves a connection to itself until it has something to read; returns one that has already.
    fn park(&self, key: u64, client: C, deadline: Instant) -> Option<C> {
        self.lock().waiting.insert(key, Waiting::Arming(false));
        // Not under the lock: the connection may tell at once, on another thread. One that cannot be watched is served, and
        // ends by the error that it meets.
        let is_ready = self.watch.arm(key, client.stream()).unwrap_or(true);
        let mut state = self.lock();
        let was_told = matches!(state.waiting.remove(&key), Some(Waiting::Arming(true)));
        if is_ready || was_told {
            return Some(client);
        }
        state.waiting.insert(key, Waiting::Parked(client, deadline));
        let is_first = state.deadlines.first().is_none_or(|&(first, _)| deadline < first);
        state.deadlines.insert((deadline, key));
        if is_first {
            self.keeper.notify_one();
        }
        None
    }

    /// A connection has something to read. Called by whoever brings it, and for a connection that is being served also in vain.
    fn on_readable(&self, key: u64) {
        let mut state = self.lock();
        match state.waiting.remove(&key) {
            Some(Waiting::Parked(client, deadline)) => {
                state.deadlines.remove(&(deadline, key));
                state.ready.push_back(Ready { key, client, is_late: false });
                self.hand_out(&state);
            }
            Some(Waiting::Arming(_)) => {
                state.waiting.insert(key, Waiting::Arming(true));
            }
            None => {}
        }
    }

    /// Something has become ready: for a thread that is free, or one that the keeper starts. The caller may be a thread that
    /// must not be kept.
    fn hand_out(&self, state: &State<C>) {
        if state.idle >= state.ready.len() {
            self.work.notify_one();
        } else {
            self.keeper.notify_one();
        }
    }

    /// The keeper: starts threads, and ends connections that were silent for too long.
    fn keep(self: Arc<Self>) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let due = |&&(at, _): &&(Instant, u64)| at <= now;
            while let Some(&(at, key)) = state.deadlines.first().filter(due) {
                state.deadlines.remove(&(at, key));
                if let Some(Waiting::Parked(client, _)) = state.waiting.remove(&key) {
                    state.ready.push_back(Ready { key, client, is_late: true });
                    self.work.notify_one();
                }
            }
            let missing = state.ready.len() > state.idle + state.starting;
            if missing && state.threads < self.connections_max {
                state.threads += 1;
                state.starting += 1;
                drop(state);
                let started = self.start_thread();
                state = self.lock();
                if started.is_ok() {
                    // Anything may have come while the lock was free.
                    continue;
                }
                state.threads -= 1;
                state.starting -= 1;
            }
            // What is ready waits for a thread that becomes free, or for the next attempt to start one.
            let next = state.deadlines.first().map(|&(at, _)| at.saturating_duration_since(now));
            let wait = if missing { Some(START_AGAIN) } else { next };
            state = match wait {
                None => self.keeper.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let waited = self.keeper.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || shared.work()).map(drop)
    }

    /// A thread: serves what is ready until nothing has been for a while.
    fn work(&self) {
        self.lock().starting -= 1;
        while let Some(Ready { key, mut client, is_late }) = self.next() {
            loop {
                let deadline = if is_late {
                    client.expire();
                    None
                } else {
                    client.serve()
                };
                let Some(deadline) = deadline else {
                    drop(client);
                    let mut state = self.lock();
                    state.connections -= 1;
                    self.room.notify_one();
                    break;
                };
                match self.park(key, client, deadline) {
                    Some(ready) => client = ready,
                    None => break,
                }
            }
        }
    }

    fn next(&self) -> Option<Ready<C>> {
        let mut state = self.lock();
        state.idle += 1;
        loop {
            if let Some(ready) = state.ready.pop_front() {
                state.idle -= 1;
                return Some(ready);
            }
            let (guard, wait) =
                self.work.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if wait.timed_out() && state.ready.is_empty() {
                state.idle -= 1;
                state.threads -= 1;
                return None;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
