//! The predicted ways of TCP against the long ones, through the whole stack: the same run with header prediction in every
//! connection and in none. Every frame is the same to the byte and the nanosecond, and every counter but those of the ways.
//!
//! What a connection leaves out on a short way is not only TCP's: the end of a call looks at less, too, and what it must not have
//! missed are the account of memory, the queues below and what completes late.
//!
//! Not here: the connection's own state, which `tcp::tests::fast_path` compares field by field.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stack::base::counters::Snapshot;
use tcp::Counter;

use super::{Outcome, Scenario, message, play::Play};
use crate::network::Capture;

/// What the predicted run has shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ways {
    /// Segments that were predicted, data and acknowledgments.
    pub predicted: u64,
    /// Times that a host's memory for TCP became scarce.
    pub pressures: u64,
    /// Frames, each seen twice.
    pub frames: u64,
}

/// Whether it counts the ways themselves: what was predicted, and how often output looked at the queue below, which it leaves out
/// where it knows that there is nothing to send. There it does not look at the path either, so that one which has run out is
/// found out, and not counted as a hit, by the next send.
fn counts_ways(name: &str) -> bool {
    if name == stack::base::counters::Counter::DstHit.name() {
        return true;
    }
    let ways = [
        Counter::TcpExtTCPHPHits,
        Counter::TcpExtTCPHPHitsToUser,
        Counter::TcpExtTCPHPAcks,
        Counter::TcpExtTCPPureAcks,
    ];
    ways.iter().any(|counter| counter.name() == name) || name.starts_with("HostQueueBytes")
}

/// A run: what came of it, what each host has counted, and its frames.
struct Run {
    outcome: Outcome,
    counted: Vec<Snapshot>,
    capture: Capture,
}

impl Run {
    fn of(scenario: &Scenario, prediction: bool) -> Result<Self, String> {
        let mut scenario = scenario.clone();
        for session in &mut scenario.sessions {
            for manners in [&mut session.up, &mut session.down] {
                manners.prediction = Some(prediction);
            }
        }
        let capture = Capture::default();
        // Nothing of the world survives the panic, so nothing inconsistent can be seen.
        let play = || Play::new(&scenario, Some(capture.clone()), None).run();
        let played = catch_unwind(AssertUnwindSafe(play));
        let (outcome, counted) = played.map_err(|panic| message(panic.as_ref()))?;
        Ok(Self { outcome, counted, capture })
    }

    fn count(&self, counter: Counter) -> u64 {
        self.counted.iter().map(|host| host.tcp(counter)).sum()
    }
}

/// Plays `scenario` both ways.
///
/// # Errors
/// What differs first, or what does not hold in one of them.
pub fn compare_ways(scenario: &Scenario) -> Result<Ways, String> {
    let short = Run::of(scenario, true)?;
    let long = Run::of(scenario, false)?;
    if let Some(difference) = short.capture.first_difference(&long.capture) {
        return Err(difference);
    }
    let mut different = String::new();
    for (host, (short, long)) in short.counted.iter().zip(&long.counted).enumerate() {
        for ((name, short), (_, long)) in short.iter().zip(long.iter()) {
            if short != long && !counts_ways(name) {
                different += &format!("{name} of host {host} is {short} or {long}; ");
            }
        }
    }
    if !different.is_empty() {
        return Err(different);
    }
    let [outcome, other] = [&short, &long].map(|run| format!("{:?}", run.outcome));
    if outcome != other {
        return Err(format!("{outcome} or {other}"));
    }
    if long.count(Counter::TcpExtTCPHPHits) + long.count(Counter::TcpExtTCPHPAcks) > 0 {
        return Err(String::from("something was predicted in spite of all"));
    }
    Ok(Ways {
        predicted: short.count(Counter::TcpExtTCPHPHits) + short.count(Counter::TcpExtTCPHPAcks),
        pressures: short.count(Counter::TcpExtTCPMemoryPressures),
        frames: short.outcome.frames.sent,
    })
}
