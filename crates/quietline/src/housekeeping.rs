//! Releases the memory of ended connections and threads when no further traffic would do it.
//!
//! Above: workers, one of which is the keeper. Linux: the RCU grace-period thread, and shrinkers.
//!
//! While connections open and close, each retirement frees earlier objects, and pools exchange free
//! memory. After the last one, objects remain: `sync::epoch` and ending threads report them with
//! [`request`], which wakes the keeper. The keeper runs one second later, when a burst has passed,
//! then every second while it finds something to release, and after that at growing intervals for a
//! minute, because devices and peers return packets late. Then it sleeps without a limit.
//!
//! Without workers, the calls that poll a stack release its memory (`Stack::poll`).
//!
//! Not here: the release itself (`sync::epoch`, `pkt::Domain::trim`).

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

/// Time from the first request to the first pass, and between passes that release memory.
const PERIOD: Duration = Duration::from_secs(1);

/// Longest and last interval between two passes that find nothing.
const PERIOD_MAX: Duration = Duration::from_secs(32);

/// Set by a request since the last pass. Relaxed: the kick orders it, and a later pass follows in
/// any case.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Workers of the process, the keeper first.
static WORKERS: Mutex<Vec<Arc<dyn Kick>>> = Mutex::new(Vec::new());

/// Address of the keeper's kick; 0 without a keeper. Written under the lock of [`WORKERS`].
/// Relaxed: a worker that becomes the keeper is kicked afterwards.
static KEEPER: AtomicUsize = AtomicUsize::new(0);

/// Asks the keeper to release memory after [`PERIOD`].
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

/// The housekeeping of one worker. The oldest worker of the process is the keeper.
pub(crate) struct Housekeeping {
    kick: Arc<dyn Kick>,
    /// Time of the next pass, and its distance from the last one. `None`: after the next request.
    next: Option<(Instant, Duration)>,
}

impl Housekeeping {
    /// Registers the worker that `kick` wakes.
    pub(crate) fn new(kick: Arc<dyn Kick>) -> Self {
        let mut workers = workers();
        workers.push(Arc::clone(&kick));
        KEEPER.store(address(&workers[0]), Ordering::Relaxed);
        drop(workers);
        Self { kick, next: None }
    }

    /// Runs a pass if one is due. Called before the worker sleeps, while it is offline in RCU.
    /// Returns the longest time that the worker may sleep.
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
        let period = next_period(release(clock::memory()), period);
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
        // The new keeper takes over pending requests.
        REQUESTED.store(true, Ordering::Relaxed);
        kick_keeper();
    }
}

/// Releases memory. Returns true if there was some, or if more will follow.
fn release(memory: &Memory) -> bool {
    let requested = REQUESTED.swap(false, Ordering::Relaxed);
    let retired = memory.rcu.is_waiting();
    let left = memory.rcu.settle();
    // Trim packet memory only after connections have stopped opening and closing: until then it is
    // needed again soon.
    left || retired || memory.packets.trim() || requested
}

/// Returns the time from this pass to the next, where this pass came `period` after the one before.
/// `None`: after the next request.
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

    /// Far more time than any test here takes.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let begin = std::time::Instant::now();
        while !done() {
            assert!(begin.elapsed() < TIMEOUT, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens fewer connections than make a retirement free earlier objects.
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
            drop((stream, listener.accept().expect("the accepted end")));
        }
        wait_until("objects of closed connections are not freed", || {
            clock::memory().rcu.pending() == 0
        });
    }

    #[test]
    fn passes_become_rare_and_stop() {
        let mut period = next_period(true, PERIOD_MAX).expect("another pass");
        assert_eq!(period, PERIOD);
        let mut sum = Duration::ZERO;
        while let Some(next) = next_period(false, period) {
            sum += next;
            period = next;
        }
        assert_eq!(sum, Duration::from_secs(2 + 4 + 8 + 16 + 32));
    }
}
