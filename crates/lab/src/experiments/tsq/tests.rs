//! Results in virtual time against the published figures and their model (docs of this module).

use super::{workload::run, *};
use crate::experiment::{
    LEVEL, MachineWatch, Method, Observation, Setup, Verdict, run as run_experiment,
};

fn observe(arm: &str, rate_mbit: u64, superframes: bool) -> Observation {
    observe_senders(arm, Traffic { rate_bps: rate_mbit * MBIT, senders: 1, superframes })
}

fn observe_senders(arm: &str, traffic: Traffic) -> Observation {
    let experiment = experiment(false);
    let arm = experiment.arms.iter().find(|own| own.name == arm).expect("an arm");
    let setup =
        Setup { condition: 0, arm, seed: 7, warm_up: Duration::ZERO, measure: Duration::ZERO };
    run(traffic, &setup).expect("a run")
}

fn counter(observed: &Observation, name: &str) -> f64 {
    observed.counters.iter().find(|(own, _)| *own == name).expect("a counter").1
}

fn metric(observed: &Observation, name: &str) -> f64 {
    let experiment = experiment(true);
    let place = experiment.metrics.iter().position(|metric| metric.name == name);
    observed.metrics[place.expect("a metric")]
}

/// 61 packets of 2,152 bytes of memory reach the limit. They are frames of 1,538 bytes, which take
/// 0.75 ms at 1 Gbit/s and 7.5 ms at 100 Mbit/s. The packet that is admitted last waits for 60
/// others.
#[test]
fn single_segments_wait_as_long_as_the_limit_admits() {
    for (rate_mbit, limit_ms) in [(1000, 1.0), (100, 8.0)] {
        let observed = observe("static131072_ge", rate_mbit, false);
        let wait = metric(&observed, "wait_first_bit");
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let frame_ms = 1538.0 * 8.0 / (rate_mbit as f64 * 1e3);
        assert!(wait < limit_ms, "{rate_mbit}: {wait}");
        let packets = metric(&observed, "wait_p99") / frame_ms;
        assert!((50.0..=62.0).contains(&packets), "{rate_mbit}: {packets}");
        assert!(metric(&observed, "utilization") > 95.0, "{observed:?}");
    }
}

/// Two superframes of 64 KB are 1.09 ms at 1 Gbit/s and 10.9 ms at 100 Mbit/s until the last
/// bit of the second, so that the mean to the first bit stays below 1 ms and 8 ms.
#[test]
fn two_superframes_wait_for_one_another() {
    for (rate_mbit, limit_ms, whole_ms) in [(1000, 1.0, 1.4), (100, 8.0, 14.0)] {
        let observed = observe("static131072_ge", rate_mbit, true);
        let (first, last) =
            (metric(&observed, "wait_first_bit"), metric(&observed, "wait_last_bit"));
        assert!(first < limit_ms, "{rate_mbit}: {first}");
        assert!(last > first && last < whole_ms, "{rate_mbit}: {last}");
    }
}

/// 1,000 packets of pfifo_fast are 123 ms at 100 Mbit/s; 132 ms were published.
#[test]
fn without_a_limit_the_whole_queue_fills() {
    let observed = observe("off", 100, false);
    let most = metric(&observed, "wait_p99");
    assert!((60.0..=135.0).contains(&most), "{most}");
    let with = observe("static131072_ge", 100, false);
    assert!(metric(&observed, "ping_rtt") > 5.0 * metric(&with, "ping_rtt"));
    let loss = metric(&observed, "utilization") - metric(&with, "utilization");
    assert!(loss < 1.0, "throughput lost: {loss} %");
}

/// At 10 Mbit/s the queue of several senders is longer than their retransmission timeout. Without a
/// limit a retransmission still waits for its copy in that queue, which is no stop by the limit.
#[test]
fn a_retransmission_that_waits_for_its_copy_is_not_counted_as_a_stop_by_the_limit() {
    for senders in [2, 4] {
        let traffic = Traffic { rate_bps: 10 * MBIT, senders, superframes: true };
        let observed = observe_senders("off", traffic);
        assert!(counter(&observed, "TcpExtTCPSpuriousRtxHostQueues") > 0.0, "{observed:?}");
        assert_eq!(counter(&observed, "TsqThrottled"), 0.0, "{observed:?}");
        assert_eq!(counter(&observed, "TcpRetransSegs"), 0.0, "{observed:?}");
        let limited = observe_senders("static131072_ge", traffic);
        assert!(counter(&limited, "TsqThrottled") > 0.0, "{limited:?}");
    }
}

#[test]
fn a_run_of_one_seed_repeats_exactly() {
    assert_eq!(observe("v619", 1000, true), observe("v619", 1000, true));
}

#[test]
fn a_run_has_its_quantities_over_time_and_as_distributions() {
    let observed = observe("dyn_min2", 1000, true);
    assert_eq!(observed.series.len(), 9);
    for series in &observed.series {
        assert!(series.points.len() > 10, "{}: {}", series.name, series.points.len());
        assert!(series.points.iter().flatten().all(|value| value.is_finite()), "{series:?}");
    }
}

/// The quick experiment as the command runs it, with the verdicts that the change claims.
#[test]
fn the_quick_experiment_finds_shorter_queues_and_no_lost_throughput() {
    let experiment = experiment(true);
    let method = Method { runs: 10, ..Method::default() };
    let record = run_experiment(&experiment, &method, &mut MachineWatch::new(), &mut |_| {});
    for comparison in &record.comparisons {
        assert_ne!(comparison.verdict, Verdict::Invalid, "{comparison:?}");
        if comparison.metric == "wait_first_bit" {
            assert_eq!(comparison.verdict, Verdict::Better, "{comparison:?}");
            assert!(comparison.p_holm.is_some_and(|p| p < LEVEL));
        }
    }
}
