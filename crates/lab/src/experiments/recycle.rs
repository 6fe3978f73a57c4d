//! One-packet caches of a socket (Linux 5.2) and what replaced them: where the memory of a packet
//! is freed that another CPU has allocated.
//!
//! **Claim.** A socket that keeps one acknowledged packet for its next write, and hands one read
//! packet back to the CPU that receives, makes small RPCs about 10 % faster on a host with 112
//! hardware threads. The size of the messages and the number of connections were not published.
//!
//! **Method.** A host answers requests of 64 bytes over many connections, one request under way on
//! each. Its softirq runs on the first CPU and its application on the second, so that each frees
//! the packets that the other has allocated. The device copies every frame, as one with receive
//! rings does. The client shares the first CPU, has memory of its own, and does the same in all
//! arms.

use std::time::Duration;

use crate::experiment::{Arm, Better, Clock, Comparison, Condition, Control, Experiment, Metric};

mod workload;

const ARMS: [&str; 5] =
    ["none", "socket_one", "list_after_unlock", "per_core_defer", "unified_pool"];

/// Counters per request that are reported.
const COUNTERS: [&str; 13] = [
    "SkbAllocs",
    "SkbFreesLocal",
    "SkbFreesAdopted",
    "SkbFreesRemote",
    "SkbTxCacheHit",
    "SkbRxCacheHandoff",
    "SkbRxCacheFull",
    "SkbReadAfterUnlock",
    "SkbDeferPushed",
    "SkbDeferOverflows",
    "SkbMagazineRefills",
    "SkbLocks",
    "SkbLocksContended",
];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let connections: &[usize] = if quick { &[16] } else { &[1, 16, 256] };
    let connections = connections.to_vec();
    let compared = ["request_time", "application_cpu", "remote_frees"];
    let against_none = |arm| compared.map(|metric| Comparison { baseline: "none", arm, metric });
    Experiment {
        name: "skb-cache",
        title: "Recycled packets: one-packet caches of a socket (Linux 5.2) and later ways",
        claim: "About 10 % more small RPCs per second on a host with 112 hardware threads, because frees on another CPU than the allocating one go.",
        workload: "Requests and responses of 64 bytes, one under way on each connection; softirq and client on the first CPU, the server's application on the second; a device that copies frames.",
        limits: "Two CPUs: locks of packet memory are hardly contended, and the gain on 112 threads is a matter of the model. What this machine shows is the number of remote frees per request (2 without, 0 with), and what they cost between two CPUs.",
        clock: Clock::Wall,
        conditions: connections.iter().map(|&count| condition(count)).collect(),
        arms: ARMS
            .iter()
            .map(|&mode| Arm::new(mode, &[("net.quietline.skb_recycle", mode)]))
            .collect(),
        metrics: metrics(),
        controls: controls(),
        comparisons: ARMS[1..].iter().copied().flat_map(against_none).collect(),
        trial: Box::new(move |setup| workload::run(connections[setup.condition], setup)),
    }
}

fn condition(count: usize) -> Condition {
    let plural = if count == 1 { "" } else { "s" };
    Condition {
        name: format!("{count} connection{plural}"),
        description: format!("{count} connection{plural}, one request under way on each"),
        ceilings: Vec::new(),
        overhead: Duration::from_millis(10),
    }
}

/// Metrics of a run.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric("request_time", "ns", "time of a request, all connections together", Better::Lower),
        metric("request_rate", "/s", "requests per second", Better::Higher),
        metric(
            "application_cpu",
            "ns",
            "CPU time of the server's application per request, its polling included",
            Better::Lower,
        ),
        metric(
            "remote_frees",
            "",
            "descriptors per request that one context of the server returned to another",
            Better::Lower,
        ),
        metric(
            "locks",
            "",
            "locks of packet memory that the server took per request",
            Better::Lower,
        ),
    ]
}

/// Proofs that the mechanisms ran.
fn controls() -> Vec<Control> {
    let control = |counter, arm: &'static str, still: &[&'static str], at_most| Control {
        counter,
        conditions: Vec::new(),
        moves_in: vec![arm],
        at_least: 0.5,
        still_in: still.to_vec(),
        at_most,
    };
    vec![
        // A segment that arrives while the application owns the socket waits on the backlog, and
        // the application processes it: its softirq does not fetch the packet that was read.
        control("SkbFreesRemote", "none", &["socket_one", "unified_pool"], 0.2),
        Control {
            // More packets under way than `skb_defer_max` admits are freed at once, as in Linux.
            conditions: vec!["1 connection", "16 connections"],
            ..control("SkbFreesRemote", "none", &["per_core_defer"], 0.2)
        },
        control("SkbTxCacheHit", "socket_one", &["none", "per_core_defer", "unified_pool"], 0.0),
        control("SkbReadAfterUnlock", "list_after_unlock", &["none", "socket_one"], 0.0),
        control("SkbDeferPushed", "per_core_defer", &["none", "socket_one", "unified_pool"], 0.0),
        control("SkbFreesAdopted", "unified_pool", &["none", "socket_one", "per_core_defer"], 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Setup;

    /// The counts do not depend on the machine's speed: two remote frees per request without
    /// recycling, none with it.
    #[test]
    fn every_mode_frees_where_it_says() {
        let experiment = experiment(true);
        for arm in &experiment.arms {
            let (warm_up, measure) = (Duration::from_millis(20), Duration::from_millis(40));
            let setup = Setup { condition: 0, arm, seed: 3, warm_up, measure };
            let observed = (experiment.trial)(&setup).expect("a run");
            let count = |name: &str| {
                let own = observed.counters.iter().find(|(own, _)| *own == name);
                own.expect("a counter").1
            };
            let remote = count("SkbFreesRemote");
            match arm.name.as_str() {
                "none" => assert!(remote > 1.5, "{observed:?}"),
                "socket_one" | "per_core_defer" | "unified_pool" => {
                    assert!(remote < 0.1, "{}: {observed:?}", arm.name);
                }
                _ => {}
            }
            assert!(observed.metrics[..3].iter().all(|value| *value > 0.0), "{observed:?}");
        }
    }
}
