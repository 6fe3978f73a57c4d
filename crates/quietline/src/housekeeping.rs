//! Memory of connections and threads that have ended is released although nothing else happens.
//!
//! Above: workers, one of which is the keeper. Linux: the RCU grace-period thread, and shrinkers.
//!
//! While connections come and go, each retirement releases what earlier ones left, and pools exchange free memory. When they
//! cease, the last of it waits: `sync::epoch` and a thread that ends say so here ([`request`]), which wakes the keeper. It looks
//! a second later, when a burst has passed, then every second while there is something to release, and after that at longer
//! and longer intervals for a minute, because what devices and peers still hold returns late. Then it sleeps without a limit.
//!
//! Stacks without workers are looked after by the calls that poll them (`Stack::poll`).
//!
//! Not here: what is released (`sync::epoch`, `pkt::Domain::trim`).

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pkt::Instant;
use stack::{Memory, core::Kick};

use crate::{clock, handle::until};

/// From the first request to the first look, and between looks that find something.
const PERIOD: Duration = Duration::from_secs(1);

/// The longest interval between two looks that find nothing: the last one.
const PERIOD_MAX: Duration = Duration::from_secs(32);

/// Somebody has asked since the last look. Relaxed: the kick orders it, and a look comes later anyway.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Workers of the process, the keeper first.
static WORKERS: Mutex<Vec<Arc<dyn Kick>>> = Mutex::new(Vec::new());

/// Address of the keeper's kick; 0 without one. Written under the lock of [`WORKERS`]; Relaxed: a worker that is the keeper
/// from now on is kicked.
static KEEPER: AtomicUsize = AtomicUsize::new(0);

/// There may be memory to release a moment later.
pub(crate) fn request() {
    if !REQUESTED.load(Ordering::Relaxed) && !REQUESTED.swap(true, Ordering::Relaxed) {
        kick_keeper();
    }
}

fn kick_keeper() {
    let keeper = workers().first().cloned();
    if let Some(keeper) = keeper {
        keeper.kick();
    }
}

fn workers() -> std::sync::MutexGuard<'static, Vec<Arc<dyn Kick>>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address(kick: &Arc<dyn Kick>) -> usize {
    Arc::as_ptr(kick).addr()
}

/// One worker's part. The first worker of the process that is left is the keeper.
pub(crate) struct Housekeeping {
    kick: Arc<dyn Kick>,
    /// When to look, and how long after the last look that is. `None`: when somebody asks.
    next: Option<(Instant, Duration)>,
}

impl Housekeeping {
    /// For a worker that `kick` wakes.
    pub(crate) fn new(kick: Arc<dyn Kick>) -> Self {
        let mut workers = workers();
        workers.push(Arc::clone(&kick));
        KEEPER.store(address(&workers[0]), Ordering::Relaxed);
        drop(workers);
        Self { kick, next: None }
    }

    /// Before the worker sleeps, and offline: looks if it is time. Returns how long the worker may sleep at most.
    pub(crate) fn before_sleep(&mut self) -> Option<Duration> {
        if KEEPER.load(Ordering::Relaxed) != address(&self.kick) {
            self.next = None;
            return None;
        }
        if self.next.is_none() && !REQUESTED.load(Ordering::Relaxed) {
            return None;
        }
        let now = clock::now();
        let (at, period) = *self.next.get_or_insert((now + PERIOD, PERIOD));
        if now < at {
            return Some(until(now, at));
        }
        let period = next_period(look(clock::memory()), period);
        self.next = period.map(|period| (now + period, period));
        period
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        let mut workers = workers();
        workers.retain(|kick| address(kick) != address(&self.kick));
        KEEPER.store(workers.first().map_or(0, address), Ordering::Relaxed);
        drop(workers);
        // Whoever is the keeper now takes over what was asked for.
        REQUESTED.store(true, Ordering::Relaxed);
        kick_keeper();
    }
}

/// Releases what can be released; true when there was something, or more is to come.
fn look(memory: &Memory) -> bool {
    let requested = REQUESTED.swap(false, Ordering::Relaxed);
    let retired = memory.rcu.is_waiting();
    let left = memory.rcu.settle();
    // Packet memory follows when connections have ceased to come and go: until then it is wanted again soon.
    left || retired || memory.packets.trim() || requested
}

/// How long after a look the next one is, which came `period` after the one before. `None`: when somebody asks.
fn next_period(found: bool, period: Duration) -> Option<Duration> {
    if found {
        return Some(PERIOD);
    }
    (period < PERIOD_MAX).then(|| 2 * period)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{Stack, TcpListener, TcpStream, Wire, WireConfig};

    /// Far more than anything here takes.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let begin = std::time::Instant::now();
        while !done() {
            assert!(begin.elapsed() < TIMEOUT, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fewer connections than make a retirement reclaim what others left.
    #[test]
    fn the_last_closed_connections_are_released_without_further_traffic() {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
        let build = |wire: Arc<Wire>, address: &str| {
            let builder = Stack::builder().device(wire);
            builder.address(address.parse().expect("a prefix")).build().expect("a stack")
        };
        let (client, server) = (build(left, "10.9.0.1/24"), build(right, "10.9.0.2/24"));
        let to: SocketAddr = "10.9.0.2:80".parse().expect("an address");
        let listener = TcpListener::bind(&server, to).expect("a free port");
        for _ in 0..20 {
            let stream = TcpStream::connect(&client, to).expect("a connection");
            stream.set_linger(Some(Duration::ZERO)).expect("an option");
            drop((stream, listener.accept().expect("its other end")));
        }
        wait_until("objects of closed connections still wait", || {
            clock::memory().rcu.pending() == 0
        });
    }

    #[test]
    fn looks_become_rare_and_cease() {
        let mut period = next_period(true, PERIOD_MAX).expect("another look");
        assert_eq!(period, PERIOD);
        let mut sum = Duration::ZERO;
        while let Some(next) = next_period(false, period) {
            sum += next;
            period = next;
        }
        assert_eq!(sum, Duration::from_secs(2 + 4 + 8 + 16 + 32));
    }
}
