//! Header prediction compared with the slow path through the whole stack: the same run with header
//! prediction in every connection and in none. Every frame is equal to the byte and the nanosecond,
//! and so is every counter but those of the prediction itself.
//!
//! The fast path omits work outside TCP, too: the end of a call checks less, and must still notice
//! a change of the memory account, of the queues below and of late completions.
//!
//! Not here: the connection's own state, which `tcp::tests::fast_path` compares field by field.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stack::base::counters::Snapshot;
use tcp::Counter;

use super::{Outcome, Scenario, message, play::Play};
use crate::network::Capture;

/// Results of the run with prediction.
#[derive(Clone, Copy, Debug, Default)]
pub struct PredictionSummary {
    /// Segments that were predicted, data and acknowledgments.
    pub predicted: u64,
    /// Number of times that a host entered TCP memory pressure.
    pub pressures: u64,
    /// Number of frames sent, each compared with its counterpart.
    pub frames: u64,
}

/// Whether a counter depends on prediction by design. The fast path counts predicted segments, and
/// it skips output and its query of the queue below when there is nothing to send. It then skips
/// the route check, too, which `DstCheckEntry` counts; an expired route is found, and not counted
/// as a hit, by the next send.
fn depends_on_prediction(name: &str) -> bool {
    use stack::base::counters::Counter as StackCounter;
    if [StackCounter::DstHit, StackCounter::DstCheckEntry].iter().any(|own| own.name() == name) {
        return true;
    }
    let counters = [
        Counter::TcpExtTCPHPHits,
        Counter::TcpExtTCPHPHitsToUser,
        Counter::TcpExtTCPHPAcks,
        Counter::TcpExtTCPPureAcks,
    ];
    counters.iter().any(|counter| counter.name() == name) || name.starts_with("HostQueueBytes")
}

/// A run: its results, the counters of each host, and its frames.
struct Run {
    outcome: Outcome,
    counted: Vec<Snapshot>,
    capture: Capture,
}

impl Run {
    fn of(scenario: &Scenario, prediction: bool) -> Result<Self, String> {
        let mut scenario = scenario.clone();
        for session in &mut scenario.sessions {
            for behavior in [&mut session.up, &mut session.down] {
                behavior.prediction = Some(prediction);
            }
        }
        let capture = Capture::default();
        // The world does not outlive the panic, so no inconsistent state is visible.
        let play = || Play::new(&scenario, Some(capture.clone()), None).run();
        let played = catch_unwind(AssertUnwindSafe(play));
        let (outcome, counted) = played.map_err(|panic| message(panic.as_ref()))?;
        Ok(Self { outcome, counted, capture })
    }

    fn count(&self, counter: Counter) -> u64 {
        self.counted.iter().map(|host| host.tcp(counter)).sum()
    }
}

/// Plays `scenario` with header prediction and without.
///
/// # Errors
/// The first difference, or the check that failed in one of the runs.
pub fn compare_prediction(scenario: &Scenario) -> Result<PredictionSummary, String> {
    let short = Run::of(scenario, true)?;
    let long = Run::of(scenario, false)?;
    if let Some(difference) = short.capture.first_difference(&long.capture) {
        return Err(difference);
    }
    let mut different = String::new();
    for (host, (short, long)) in short.counted.iter().zip(&long.counted).enumerate() {
        for ((name, short), (_, long)) in short.iter().zip(long.iter()) {
            if short != long && !depends_on_prediction(name) {
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
        return Err(String::from("a segment was predicted although prediction was off"));
    }
    Ok(PredictionSummary {
        predicted: short.count(Counter::TcpExtTCPHPHits) + short.count(Counter::TcpExtTCPHPAcks),
        pressures: short.count(Counter::TcpExtTCPMemoryPressures),
        frames: short.outcome.frames.sent,
    })
}
