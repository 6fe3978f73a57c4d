//! Every row runs, and the generator costs what it says.

use super::*;

fn observe(condition: usize, arm: &str) -> Observation {
    let experiment = experiment(false);
    let arm = experiment.arms.iter().find(|own| own.name == arm).expect("an arm");
    let (warm_up, measure) = (Duration::from_millis(20), Duration::from_millis(60));
    let setup = Setup { condition, arm, seed: 5, warm_up, measure };
    (experiment.trial)(&setup).unwrap_or_else(|error| panic!("{condition}: {error}"))
}

fn counter(observed: &Observation, name: &str) -> f64 {
    observed.counters.iter().find(|(own, _)| *own == name).expect("a counter").1
}

#[test]
fn every_row_runs_with_and_without_lists() {
    for condition in 0..rows(false).len() {
        for arm in ["gro off, busy 0, immediate", "gro on, busy 50, segments 8"] {
            let observed = observe(condition, arm);
            assert!(observed.metrics.iter().all(|value| *value > 0.0), "{condition}: {observed:?}");
            assert_eq!(counter(&observed, "TcpExtTCPOFOQueue"), 0.0, "{condition}: {observed:?}");
        }
    }
}

/// The mechanisms run where the declaration's controls expect them: receive offload holds frames,
/// and lists have eight.
#[test]
fn frames_of_the_generator_are_merged_and_listed() {
    let merged = observe(0, "gro on, busy 0, segments 8");
    assert!(counter(&merged, "GroHeld") > 0.01, "{merged:?}");
    assert!(counter(&merged, "GroSuperframes") > 0.01, "{merged:?}");
    let listed = observe(0, "gro off, busy 0, segments 8");
    assert!(counter(&listed, "RxListSize8To15") > 0.01, "{listed:?}");
    assert_eq!(counter(&listed, "GroHeld"), 0.0, "{listed:?}");
}

/// A link of 10 Gbit/s carries no more, even if the receiver could take more.
#[test]
fn a_limited_row_stays_below_its_line_rate() {
    let observed = observe(2, "gro on, busy 0, segments 8");
    assert!(observed.metrics[0] < LINE_RATE_GBPS * 1.02, "{observed:?}");
}
