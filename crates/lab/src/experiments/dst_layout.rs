//! False sharing in the route entry (Linux 6.4): the place of the reference count, the way to
//! count, and the read that the count disturbs.
//!
//! **Claim.** memcached and memtier with one SET for 100 GETs over loopback became 20 to 120 %
//! faster, depending on the processor and the number of CPUs, when the reference count of the route
//! entry left the line of the fields that every packet reads.
//!
//! **Method.** One stack with connections to itself over loopback, all to one address, so that all
//! packets have one route entry. For each two CPUs of the machine a thread on the first sends a
//! request on each of its connections and takes the responses, and a thread on the second answers;
//! all spin, so that no wake-up hides what a packet costs. One request of 101 stores 100 bytes, the
//! others fetch 100. With `cas_inc_not_zero`, `rcuref` and `sharded` a packet holds a reference
//! from the thread that sends it to the thread that receives it; with `sharded` each thread counts
//! in a word of its own. With the check `entry`, that of Linux, both threads read the entry's
//! generation meanwhile; with `generation`, the default, they compare a copy.
//!
//! **Expectation.** The layouts differ only where packets both write the entry's one count and read
//! the entry: in the arms `cas entry` and `rcuref entry`. The arms `sharded` write no line that two
//! threads share, so that the layouts do not differ there, and a packet costs only the operations
//! themselves more than in the arms `noref`, which do not count at all. The arms `generation` are
//! the better cure, because no packet reads a line that a count shares, in any layout.

use std::{array, sync::LazyLock, time::Duration};

use crate::experiment::{Arm, Better, Clock, Comparison, Condition, Control, Experiment, Metric};

mod workload;

const LAYOUTS: [&str; 3] = ["packed", "padded", "filled"];

/// Ways to count: short name, `dst_ref`.
const REFS: [(&str, &str); 4] =
    [("cas", "cas_inc_not_zero"), ("rcuref", "rcuref"), ("sharded", "sharded"), ("noref", "noref")];

/// Values of `dst_check`: the source of a route's validity.
const CHECKS: [&str; 2] = ["entry", "generation"];

/// Name of an arm by its layout, way to count and check.
static NAMES: LazyLock<[[[String; 2]; 4]; 3]> = LazyLock::new(|| {
    array::from_fn(|layout| {
        array::from_fn(|way| {
            array::from_fn(|check| format!("{} {} {}", LAYOUTS[layout], REFS[way].0, CHECKS[check]))
        })
    })
});

/// Arms of the short experiment.
const QUICK: [&str; 5] = [
    "packed cas entry",
    "filled cas entry",
    "filled sharded entry",
    "packed cas generation",
    "filled noref generation",
];

/// Compared pairs: the tested change, its first version, the ways to count, and the better cures.
const PAIRS: [(&str, &str); 16] = [
    ("packed cas entry", "filled cas entry"),
    ("packed cas entry", "padded cas entry"),
    ("packed rcuref entry", "filled rcuref entry"),
    ("packed sharded entry", "filled sharded entry"),
    ("packed noref entry", "filled noref entry"),
    ("packed cas generation", "filled cas generation"),
    ("packed rcuref generation", "filled rcuref generation"),
    ("packed noref generation", "filled noref generation"),
    ("filled cas entry", "filled rcuref entry"),
    ("filled cas entry", "filled sharded entry"),
    ("filled rcuref entry", "filled sharded entry"),
    ("filled cas entry", "filled noref entry"),
    ("filled sharded entry", "filled noref entry"),
    ("filled cas generation", "filled noref generation"),
    ("packed cas entry", "packed cas generation"),
    ("packed cas entry", "filled noref generation"),
];

/// An arm's name and its settings.
type Choice = (&'static str, [(&'static str, &'static str); 3]);

fn choices(quick: bool) -> Vec<Choice> {
    let mut all = Vec::new();
    for (layout, of_layout) in LAYOUTS.iter().zip(&*NAMES) {
        for ((_, way), of_way) in REFS.iter().zip(of_layout) {
            for (check, name) in CHECKS.iter().zip(of_way) {
                let settings = [
                    ("net.quietline.dst_layout", *layout),
                    ("net.quietline.dst_ref", *way),
                    ("net.quietline.dst_check", *check),
                ];
                all.push((name.as_str(), settings));
            }
        }
    }
    all.retain(|(name, _)| !quick || QUICK.contains(name));
    all
}

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let choices = choices(quick);
    let connections: &[usize] = if quick { &[8] } else { &[1, 16] };
    let connections = connections.to_vec();
    let has = |name: &str| choices.iter().any(|(own, _)| *own == name);
    let compared = PAIRS.iter().filter(|(baseline, arm)| has(baseline) && has(arm));
    Experiment {
        name: "dst-layout",
        title: "False sharing in the route entry (Linux 6.4)",
        claim: "20 to 120 % more requests of memcached over loopback, depending on the processor and the number of CPUs.",
        workload: "One SET of 100 bytes for 100 GETs of 100 bytes over loopback, all to one address; a spinning thread that asks and one that answers for each two CPUs.",
        limits: "Two CPUs show two transfers of a line per packet, not the queue of a hundred CPUs for one line, nor the loops of a compare-and-swap among many: that is a matter of the model. A packet reads one field of the entry; in Linux it reads two to five.",
        clock: Clock::Wall,
        conditions: connections.iter().map(|&count| condition(count)).collect(),
        arms: choices.iter().map(|(name, settings)| Arm::new(*name, settings)).collect(),
        metrics: metrics(),
        controls: controls(&choices),
        comparisons: compared
            .map(|&(baseline, arm)| Comparison { baseline, arm, metric: "request_time" })
            .collect(),
        trial: Box::new(move |setup| workload::run(connections[setup.condition], setup)),
    }
}

fn condition(count: usize) -> Condition {
    let plural = if count == 1 { "" } else { "s" };
    Condition {
        name: format!("{count} connection{plural}"),
        description: format!(
            "{count} connection{plural} of each thread, one request under way on each"
        ),
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
            "dst_operations",
            "",
            "reference counts of route entries taken and released per request",
            Better::Lower,
        ),
        metric("dst_reads", "", "reads of route entries per request", Better::Lower),
    ]
}

/// Proofs that the mechanisms ran: a request and its response each take a count, and each read the
/// entry when they are sent and when they are received.
fn controls(choices: &[Choice]) -> Vec<Control> {
    let names = |of: &dyn Fn(&str) -> bool| {
        choices.iter().map(|(name, _)| *name).filter(|name| of(name)).collect::<Vec<_>>()
    };
    let control = |counter, moves_in, still_in| Control {
        counter,
        conditions: Vec::new(),
        moves_in,
        at_least: 1.5,
        still_in,
        at_most: 0.01,
    };
    vec![
        control(
            "DstGet",
            names(&|name| !name.contains("noref")),
            names(&|name| name.contains("noref")),
        ),
        control(
            "DstCheckEntry",
            names(&|name| name.ends_with("entry")),
            names(&|name| name.ends_with("generation")),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Setup;

    #[test]
    fn a_request_counts_and_reads_route_entries_where_its_arm_says() {
        let experiment = experiment(false);
        for arm in &experiment.arms {
            let (warm_up, measure) = (Duration::from_millis(5), Duration::from_millis(15));
            let setup = Setup { condition: 1, arm, seed: 5, warm_up, measure };
            let observed = (experiment.trial)(&setup).expect("a run");
            let (operations, reads) = (observed.metrics[2], observed.metrics[3]);
            if arm.name.contains("noref") {
                assert!(operations < 0.01, "{}: {observed:?}", arm.name);
            } else {
                // A request and its response, each taken and released.
                assert!(operations > 3.0, "{}: {observed:?}", arm.name);
            }
            if arm.name.ends_with("entry") {
                assert!(reads > 1.5, "{}: {observed:?}", arm.name);
            } else {
                assert!(reads < 0.01, "{}: {observed:?}", arm.name);
            }
        }
    }

    #[test]
    fn every_layout_is_compared_where_packets_count_and_where_they_do_not() {
        let experiment = experiment(false);
        assert_eq!(experiment.arms.len(), 24);
        assert_eq!(experiment.comparisons.len(), PAIRS.len());
    }
}
