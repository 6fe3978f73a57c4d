//! Many connections on few threads: a connection that waits for its peer holds no thread.
//!
//! ```text
//!   accept ──► parked ──(readable, or its deadline has passed)──► ready ──► a thread serves it
//!                ▲                                                                │
//!                └───────────────────── next deadline ◄───────────────────────────┘
//! ```
//!
//! A thread is started when a connection is ready and no thread is idle, and ends after it has been
//! idle for a while. Every parked connection has a deadline, so that none is kept forever.
//!
//! Not here: the protocol (`http`), and readiness notification (`endpoint::Watch`).

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use super::pool::STACK_BYTES;
use crate::endpoint::{Host, OnReadable, Watch};

/// Time that an idle thread waits for another connection before it ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Delay before another attempt to start a thread, after the system refused one.
const START_AGAIN: Duration = Duration::from_millis(20);

/// A connection, as [`Clients`] sees it.
pub(super) trait Client: Send + 'static {
    /// Type of the watched stream.
    type Stream;

    /// The stream to watch for readability.
    fn stream(&self) -> &Self::Stream;

    /// Serves the received data. May block within an exchange, but not for the next one. Returns
    /// the deadline of the next wait; `None` when the connection has ended.
    fn serve(&mut self) -> Option<Instant>;

    /// Handles a deadline that passed without data: the connection ends.
    fn expire(&mut self);
}

/// The connections of a service.
pub(super) struct Clients<C, W> {
    shared: Arc<Shared<C, W>>,
}

struct Shared<C, W> {
    state: Mutex<Queues<C>>,
    /// Notified when a connection is ready and a thread is idle.
    work: Condvar,
    /// Notified when a connection has ended.
    ended: Condvar,
    /// Notified when a thread is to be started, or the earliest deadline has changed.
    manager: Condvar,
    watch: W,
    connections_max: usize,
}

struct Queues<C> {
    /// Connections that wait for their peer. Connections that are being served are not in this map.
    waiting: HashMap<u64, Waiting<C>>,
    /// Deadlines of parked connections.
    deadlines: BTreeSet<(Instant, u64)>,
    ready: VecDeque<Ready<C>>,
    /// Number of connections that have not ended.
    connections: usize,
    key_next: u64,
    /// Number of existing threads.
    threads: usize,
    /// Threads that were started and have not looked for work yet.
    starting: usize,
    /// Threads that wait for work.
    idle: usize,
}

enum Waiting<C> {
    /// The watch is being armed. True: a notification has arrived meanwhile.
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
    /// Starts without connections; at most `connections_max` can exist at the same time.
    pub(super) fn new<H: Host<Watch = W>>(host: &H, connections_max: usize) -> io::Result<Self> {
        // The callback needs the shared state and the shared state holds the watch, so the
        // callback's reference is set after both exist.
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
        let state = Queues {
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
            ended: Condvar::new(),
            manager: Condvar::new(),
            watch: host.watch(on_readable)?,
            connections_max,
        });
        *lock(&target) = Arc::downgrade(&shared);
        let manager = Arc::clone(&shared);
        thread::Builder::new().name("connections".to_owned()).spawn(move || manager.manage())?;
        Ok(Self { shared })
    }

    /// Adds a connection with the deadline for its first data. Blocks while the limit is reached.
    pub(super) fn submit(&self, client: C, deadline: Instant) {
        let mut state = self.shared.lock();
        while state.connections >= self.shared.connections_max {
            state = self.shared.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.connections += 1;
        let key = state.key_next;
        state.key_next += 1;
        drop(state);
        if let Some(client) = self.shared.park(key, client, deadline) {
            let mut state = self.shared.lock();
            state.ready.push_back(Ready { key, client, is_late: false });
            self.shared.dispatch(&state);
        }
    }
}

impl<C, W> Shared<C, W>
where
    C: Client,
    W: Watch<Stream = C::Stream>,
{
    fn lock(&self) -> MutexGuard<'_, Queues<C>> {
        lock(&self.state)
    }

    /// Parks a connection until it is readable. Returns it if it is readable already.
    fn park(&self, key: u64, client: C, deadline: Instant) -> Option<C> {
        self.lock().waiting.insert(key, Waiting::Arming(false));
        // Called without the lock, because the watch may notify at once from another thread. A
        // connection that cannot be watched is served, and ends with the error that it meets.
        let is_ready = self.watch.arm(key, client.stream()).unwrap_or(true);
        let mut state = self.lock();
        let was_notified = matches!(state.waiting.remove(&key), Some(Waiting::Arming(true)));
        if is_ready || was_notified {
            return Some(client);
        }
        state.waiting.insert(key, Waiting::Parked(client, deadline));
        let is_first = state.deadlines.first().is_none_or(|&(first, _)| deadline < first);
        state.deadlines.insert((deadline, key));
        if is_first {
            self.manager.notify_one();
        }
        None
    }

    /// Makes a parked connection ready. Called by the watch, sometimes also for a connection that
    /// is being served; that call has no effect.
    fn on_readable(&self, key: u64) {
        let mut state = self.lock();
        match state.waiting.remove(&key) {
            Some(Waiting::Parked(client, deadline)) => {
                state.deadlines.remove(&(deadline, key));
                state.ready.push_back(Ready { key, client, is_late: false });
                self.dispatch(&state);
            }
            Some(Waiting::Arming(_)) => {
                state.waiting.insert(key, Waiting::Arming(true));
            }
            None => {}
        }
    }

    /// Notifies an idle thread, or the manager thread, which starts one. The caller may be a thread
    /// that must not block.
    fn dispatch(&self, state: &Queues<C>) {
        if state.idle >= state.ready.len() {
            self.work.notify_one();
        } else {
            self.manager.notify_one();
        }
    }

    /// Body of the manager thread: starts threads, and expires connections at their deadlines.
    fn manage(self: Arc<Self>) {
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
                    // The state may have changed while the lock was released.
                    continue;
                }
                state.threads -= 1;
                state.starting -= 1;
            }
            // Ready connections wait for a thread to become idle, or for the next attempt to start
            // one.
            let next = state.deadlines.first().map(|&(at, _)| at.saturating_duration_since(now));
            let wait = if missing { Some(START_AGAIN) } else { next };
            state = match wait {
                None => self.manager.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let waited = self.manager.wait_timeout(state, wait);
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

    /// Body of a connection thread: serves ready connections until it has been idle for a while.
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
                    self.ended.notify_one();
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
