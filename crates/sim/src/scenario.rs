//! Scenarios: one seed decides hosts, settings, paths, faults of the network and applications.
//! [`run`] plays a scenario and asserts.
//!
//! After every event the invariants of every connection hold (`Host::check`), its sequence numbers
//! only grow, and every frame and every byte of packet memory is accounted for (`recycling`). While
//! the network passes anything, data flows: [`STALL`] without progress is a failure. At the end
//! every stream has arrived whole, and no connection, timer or packet is left. Each datagram that
//! has arrived is one that was sent (`datagrams`).
//!
//! A failing seed is replayed by [`explain`], which writes the traffic as a pcapng file.
//!
//! Not here: the parts themselves (`network`, `traffic`).

mod datagrams;
mod draw;
mod play;
mod prediction;
mod recycling;

use std::{
    any::Any,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Duration,
};

pub use datagrams::Flow;
pub use prediction::{PredictionSummary, compare_prediction};

use pkt::PoolStats;
use stack::sysctl::{Sysctls, modes::RxContext};

use crate::{
    network::{Capture, Counts, Offload, PathConfig, Sabotage, Version},
    traffic::Behavior,
};

/// Virtual time without a byte for any application, while no path is in a blackout, that counts as
/// a stall. An RTO backs off to 120 s; this is three of them with room to spare.
pub const STALL: Duration = Duration::from_secs(400);

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Settings of each host.
    pub hosts: Vec<Sysctls>,
    /// Row of modes of each host, by the table of `modes`.
    pub modes: Vec<Vec<usize>>,
    /// Threads that run the hosts.
    pub threads: Threads,
    /// Time from the transmission of a packet to its completion by the device. `None`: at once.
    pub completes_after: Option<Duration>,
    /// Cores of each host. Frames arrive on the first; connections and their timers are on all.
    pub cores: u16,
    /// Path of each host's outgoing frames.
    pub paths: Vec<PathConfig>,
    /// MTU of every device.
    pub mtu: u32,
    /// IP version of the hosts.
    pub version: Version,
    /// Offloads of every device.
    pub offload: Offload,
    /// The connections.
    pub sessions: Vec<Session>,
    /// The datagrams.
    pub datagrams: Vec<Flow>,
    /// `TCP_MAXSEG` of each host's sockets, which bounds the segments that the others send.
    pub maxseg: Vec<Option<u16>>,
    /// Settings that change during the run, by time.
    pub changes: Vec<Setting>,
}

/// Threads that run the hosts of a scenario, each with packet memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread runs everything.
    One,
    /// Each host has one thread for its applications and one for each core; a sender runs the
    /// receiver, as over a wire.
    Ringing,
    /// As `Ringing`, but no thread runs another's core.
    Apart,
}

/// A setting that changes during a run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Time since the start.
    pub at: Duration,
    /// Index of the host.
    pub host: usize,
    /// Name of the setting.
    pub name: String,
    /// New value.
    pub value: String,
}

/// One connection: its hosts, its start and the behavior of both applications.
#[derive(Clone, Debug)]
pub struct Session {
    /// The host that connects.
    pub client: usize,
    /// The host that listens.
    pub server: usize,
    /// Start, as time since the start of the run.
    pub at: Duration,
    /// The client requests Fast Open, and its first write is sent with the SYN if it has a cookie.
    pub early: bool,
    /// The client's application.
    pub up: Behavior,
    /// The server's application.
    pub down: Behavior,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Virtual time to the end of the last stream.
    pub took: Duration,
    /// Bytes that applications have read.
    pub bytes: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Different datagrams that have arrived.
    pub datagrams_received: u64,
    /// Connections that were aborted as planned.
    pub aborted: u64,
    /// Events of the world.
    pub steps: u64,
    /// Frames by outcome.
    pub frames: Counts,
    /// Batches that readers have taken from a prequeue, by the receive context that their host
    /// began in.
    pub prequeued: [u64; CONTEXTS],
    /// Packets queued to the backlog of an owned socket.
    pub backlogged: u64,
    /// Statistics of packet memory.
    pub pool: PoolStats,
    /// Statistics of the connections' packet caches.
    pub caches: Caches,
}

/// Outcomes for packets that connections could have kept (`skb_recycle` at `socket_one` and
/// `list_after_unlock`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// Writes that found a cached packet.
    pub tx_hits: u64,
    /// Packets refused because their clone was still in transmission.
    pub tx_cloned: u64,
    /// Packets freed by softirq context for a reader.
    pub rx_handoffs: u64,
    /// Packets freed after the socket was unlocked.
    pub after_unlock: u64,
}

/// Number of receive contexts ([`RxContext`]).
pub const CONTEXTS: usize = RxContext::Bh as usize + 1;

/// Plays `scenario`, optionally with a deliberate fault in the network.
///
/// # Panics
/// When a check fails.
pub fn run(scenario: &Scenario, capture: Option<Capture>, sabotage: Option<Sabotage>) -> Outcome {
    play::Play::new(scenario, capture, sabotage).run().0
}

/// Plays `scenario`, and returns the message if a check fails.
///
/// # Errors
/// The message of the panic.
pub fn try_run(
    scenario: &Scenario,
    capture: Option<Capture>,
    sabotage: Option<Sabotage>,
) -> Result<Outcome, String> {
    // The world does not outlive the panic, so no inconsistent state is visible.
    let played = catch_unwind(AssertUnwindSafe(|| run(scenario, capture, sabotage)));
    played.map_err(|panic| message(panic.as_ref()))
}

/// Plays a failed seed again, writes the capture to `file`, and returns a report.
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
        text.push_str("  the replay ended differently: the run depends on more than its seed\n");
    }
    let command = "cargo test -p quietline-sim --test network -- --nocapture seeds";
    let _ = write!(text, "  replay: SEED={} {command}\n  {scenario:?}", scenario.seed);
    text
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text").into()
}
