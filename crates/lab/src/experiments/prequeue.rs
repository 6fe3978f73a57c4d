//! The prequeue without a reference to the route entry (Linux 3.18), and no prequeue at all.
//!
//! **Claim.** 144 streams of 64-byte writes between two hosts with 48 hardware threads each: from
//! 6 million packets per second at 95 % of the CPU time to 9 million at 35 %, when a packet that
//! waits for a blocked reader no longer counts a reference to the route entry that all flows share.
//!
//! **Model check.** Two atomic operations per packet on one line, one by the CPU that receives and
//! one by the CPU that reads, are 12 million transfers per second: 83 ns each, the cost of a
//! modified line between CPUs. Two CPUs cannot show the saturation, but the operations per packet
//! (2 before, 0 after) and the cost of a pair of them.
//!
//! **Method.** A generator sends writes of 64 bytes to each flow in turn, each a pushed segment
//! that receive offload could not merge; offload is off as well. The softirq that processes them is
//! on the first CPU. A reader for each flow is blocked in `read` on the second CPU. Either all
//! flows share one input route entry (one server address), or each has its own (one address for
//! each). The generator is a part of the receiver's device and writes headers only; its time is
//! stated apart.

use std::time::Duration;

use super::{generator::Load, receiver, threads};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Setup,
};

/// Bytes of a write.
const WRITE_BYTES: u32 = 64;
/// Writes that a flow may have in flight: the reader's buffer has room for their memory.
const FLIGHT_PACKETS: u32 = 64;

/// Counters per packet that are reported.
const COUNTERS: [&str; 9] = [
    "PrequeueQueued",
    "PrequeueWakes",
    "TcpExtTCPPrequeued",
    "SocketBacklogQueued",
    "SocketWakes",
    "DstGet",
    "DstPut",
    "DstForce",
    "DstDropNoref",
];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let flows = if quick { 4 } else { 48 };
    let context = |name, mode| {
        let settings = [("net.quietline.rx_context", name), ("net.quietline.rx_dst_mode", mode)];
        Arm::new(name, &settings)
    };
    let compared = ["packet_rate", "cpu", "dst_operations"];
    let against = |baseline, arm| compared.map(|metric| Comparison { baseline, arm, metric });
    Experiment {
        name: "prequeue",
        title: "The prequeue without route references (Linux 3.18)",
        claim: "144 streams of 64-byte writes on 48 hardware threads: 6 to 9 million packets per second, 95 to 35 % CPU, because a waiting packet no longer counts a reference to the shared route entry.",
        workload: "Pushed segments of 64 bytes to each flow in turn, from a generator in the receiver's device; softirq on the first CPU, blocked readers on the second. Receive offload is off.",
        limits: "Two CPUs: the line of the reference count changes hands between two of them, and cannot saturate. The generator runs on the CPU of the softirq, the same in all arms; its time per packet is a metric. The rate for 48 threads is a matter of the coherence model.",
        clock: Clock::Wall,
        conditions: [
            ("shared entry", "one server address"),
            ("entry per flow", "one server address per flow"),
        ]
        .map(|(name, what)| Condition {
            name: name.to_owned(),
            description: format!("{flows} flows to {what}"),
            ceilings: Vec::new(),
            overhead: Duration::from_millis(20),
        })
        .into(),
        arms: vec![
            context("prequeue_ref", "force"),
            context("prequeue_drop", "optimistic_drop"),
            context("bh", "rcu_clear_then_release"),
        ],
        metrics: metrics(),
        controls: controls(),
        comparisons: [
            ("prequeue_ref", "prequeue_drop"),
            ("prequeue_ref", "bh"),
            ("prequeue_drop", "bh"),
        ]
        .into_iter()
        .flat_map(|(baseline, arm)| against(baseline, arm))
        .collect(),
        trial: Box::new(move |setup| run(flows, setup)),
    }
}

/// Metrics of a run.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric(
            "packet_rate",
            "/s",
            "packets with data that the receiver got per second",
            Better::Higher,
        ),
        metric(
            "cpu",
            "ns",
            "CPU time of both contexts per packet, without the generator",
            Better::Lower,
        ),
        metric(
            "softirq_cpu",
            "ns",
            "CPU time of the softirq per packet, without the generator",
            Better::Lower,
        ),
        metric("reader_cpu", "ns", "CPU time of the readers per packet", Better::Lower),
        metric(
            "dst_operations",
            "",
            "reference counts of route entries taken and released per packet",
            Better::Lower,
        ),
        metric("generator_cpu", "ns", "CPU time of the generator per packet", Better::Lower),
    ]
}

/// Proofs that the mechanisms ran.
fn controls() -> Vec<Control> {
    vec![
        Control {
            counter: "PrequeueQueued",
            conditions: Vec::new(),
            moves_in: vec!["prequeue_ref", "prequeue_drop"],
            at_least: 0.05,
            still_in: vec!["bh"],
            at_most: 0.0,
        },
        Control {
            counter: "DstForce",
            conditions: Vec::new(),
            moves_in: vec!["prequeue_ref"],
            at_least: 0.05,
            still_in: vec!["prequeue_drop", "bh"],
            at_most: 0.01,
        },
    ]
}

/// Traffic: writes of 64 bytes to each flow in turn.
fn load(flows: u8, separate: bool) -> Load {
    Load {
        flows,
        separate,
        segment: WRITE_BYTES,
        pushed: true,
        flight: FLIGHT_PACKETS * WRITE_BYTES,
        request: 0,
        rate_bps: None,
    }
}

/// Makes one run.
fn run(flows: u8, setup: &Setup<'_>) -> Result<Observation, Error> {
    let mut settings = vec![
        // A reader that polls is no blocked reader.
        ("net.core.busy_read", "0"),
        ("net.quietline.dev.default.gro", "0"),
    ];
    settings.extend(&setup.arm.settings);
    let measured = receiver::measure(load(flows, setup.condition == 1), &settings, setup)?;
    let count = |name| measured.per_frame(name);
    Ok(Observation {
        metrics: vec![
            measured.frames / measured.seconds,
            measured.host_ns(),
            measured.softirq_ns - measured.generator_ns,
            measured.application_ns,
            count("DstGet") + count("DstPut"),
            measured.generator_ns,
        ],
        counters: threads::per_operation(&measured.change, &COUNTERS, measured.frames),
        series: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every arm runs in both conditions. How many packets find a blocked reader depends on the
    /// machine. Without references there are no operations at all once each socket has cached its
    /// input route, which takes one reference, or one for each packet that waits before it.
    #[test]
    fn every_arm_runs_and_counts_references_where_it_says() {
        let experiment = experiment(true);
        for condition in 0..2 {
            for arm in &experiment.arms {
                let (warm_up, measure) = (Duration::from_millis(10), Duration::from_millis(30));
                let setup = Setup { condition, arm, seed: 5, warm_up, measure };
                let observed = (experiment.trial)(&setup).expect("a run");
                let operations = observed.metrics[4];
                match arm.name.as_str() {
                    "prequeue_ref" => assert!(operations > 0.0, "{observed:?}"),
                    name => assert_eq!(operations, 0.0, "{name}: {observed:?}"),
                }
            }
        }
    }
}
