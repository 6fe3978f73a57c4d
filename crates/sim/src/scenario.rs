//! One number decides everything: hosts, their settings, paths, weather, applications. [`run`] plays it and asserts.
//!
//! After every event the invariants of every connection hold (`Host::check`), its sequence numbers only grow, no frame is
//! unaccounted for, no byte of packet memory is (`recycling`), and while the network passes anything the bytes flow: [`STALL`] without progress is a failure. At the
//! end every stream has arrived whole, and nothing is left: no connection, no timer's work, no packet.
//!
//! A failing seed is replayed by [`explain`], which writes what went over the network as a pcapng file.
//!
//! Not here: what each part does (`network`, `traffic`).

mod draw;
mod play;
mod recycling;
mod ways;

use std::{
    any::Any,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Duration,
};

pub use ways::{Ways, compare_ways};

use pkt::PoolStats;
use stack::sysctl::{Sysctls, modes::RxContext};

use crate::{
    network::{Capture, Counts, Offload, PathConfig, Sabotage},
    traffic::Manners,
};

/// Virtual time without a byte for any application, while no path is dark, that counts as a stall. An RTO backs off to
/// 120 s; this is two of the longest with room to spare.
pub const STALL: Duration = Duration::from_secs(400);

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Settings of each host.
    pub hosts: Vec<Sysctls>,
    /// The row of modes each host is in, by the table of `modes`.
    pub modes: Vec<Vec<usize>>,
    /// Who runs the hosts.
    pub threads: Threads,
    /// How long devices hold a packet after they have sent it; `None`: they are done with it at once.
    pub completes_after: Option<Duration>,
    /// Cores of each host. Frames come in on the first; connections and their timers are on all.
    pub cores: u16,
    /// What the network does to what each host sends.
    pub paths: Vec<PathConfig>,
    /// MTU of every device.
    pub mtu: u32,
    /// Offloads of every device.
    pub offload: Offload,
    /// The connections.
    pub sessions: Vec<Session>,
    /// `TCP_MAXSEG` of each host's sockets: what the others may send it at once.
    pub maxseg: Vec<Option<u16>>,
    /// Settings that change meanwhile, by time.
    pub changes: Vec<Setting>,
}

/// Who runs the hosts of a scenario: whose packet memory is whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread runs everything.
    One,
    /// Each host has one for its applications and one for each core; who sends runs the receiver, as over a wire.
    Ringing,
    /// So too, and nobody runs another's core.
    Apart,
}

/// A setting that changes in the middle of a run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// When.
    pub at: Duration,
    /// Of which host.
    pub host: usize,
    /// Its name.
    pub name: String,
    /// What it becomes.
    pub value: String,
}

/// One connection: who, when, and how both applications behave.
#[derive(Clone, Debug)]
pub struct Session {
    /// The host that connects.
    pub client: usize,
    /// The host that listens.
    pub server: usize,
    /// When it begins.
    pub at: Duration,
    /// The client asks for Fast Open, and its first write goes with the SYN if it has a cookie.
    pub early: bool,
    /// The client's application.
    pub up: Manners,
    /// The server's.
    pub down: Manners,
}

/// What a run leaves to look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Virtual time to the end of the last stream.
    pub took: Duration,
    /// Bytes that applications have read.
    pub bytes: u64,
    /// Connections that were aborted, as planned.
    pub aborted: u64,
    /// Events of the world.
    pub steps: u64,
    /// Frames.
    pub frames: Counts,
    /// Batches that readers have taken from a prequeue, by the context their host began in.
    pub prequeued: [u64; CONTEXTS],
    /// Packets that waited for the owner of a socket.
    pub backlogged: u64,
    /// What packet memory has done.
    pub pool: PoolStats,
    /// What the caches of connections have done.
    pub caches: Caches,
}

/// What became of packets that connections could have kept (`skb_recycle` at `socket_one` and `list_after_unlock`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// Writes that found one.
    pub tx_hits: u64,
    /// Refused: the copy was still on its way out.
    pub tx_cloned: u64,
    /// Freed by softirq context for a reader.
    pub rx_handoffs: u64,
    /// Freed after the socket was let go.
    pub after_unlock: u64,
}

/// How many contexts there are ([`RxContext`]).
pub const CONTEXTS: usize = RxContext::Bh as usize + 1;

/// Plays `scenario`, with a fault in the network if a test wants one.
///
/// # Panics
/// When something does not hold.
pub fn run(scenario: &Scenario, capture: Option<Capture>, sabotage: Option<Sabotage>) -> Outcome {
    play::Play::new(scenario, capture, sabotage).run().0
}

/// Plays `scenario`; when something does not hold, what.
///
/// # Errors
/// The message of the panic.
pub fn try_run(
    scenario: &Scenario,
    capture: Option<Capture>,
    sabotage: Option<Sabotage>,
) -> Result<Outcome, String> {
    // Nothing of the world survives the panic, so nothing inconsistent can be seen.
    let played = catch_unwind(AssertUnwindSafe(|| run(scenario, capture, sabotage)));
    played.map_err(|panic| message(panic.as_ref()))
}

/// Plays a seed that has failed once more, writes `file`, and says how to look at it.
#[must_use]
pub fn explain(scenario: &Scenario, error: &str, file: &Path) -> String {
    let capture = Capture::default();
    let again = try_run(scenario, Some(capture.clone()), None);
    let mut text = format!("seed {}: {error}\n", scenario.seed);
    match capture.write(file) {
        Ok(frames) => {
            let _ = writeln!(text, "  capture: {} ({frames} frames)", file.display());
        }
        Err(error) => {
            let _ = writeln!(text, "  capture: {}: {error}", file.display());
        }
    }
    if again.err().as_deref() != Some(error) {
        text.push_str("  the replay ended in another way: the run depends on more than its seed\n");
    }
    let command = "cargo test -p quietline-sim --test network -- --nocapture seeds";
    let _ = write!(text, "  replay: SEED={} {command}\n  {scenario:?}", scenario.seed);
    text
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text").into()
}
