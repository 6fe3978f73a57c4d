//! One experiment: what it declares, how its runs are scheduled, and how its results are judged.
//!
//! Above: the command, which prints and plots the [`ExperimentRecord`]. Below: `statistics`.
//!
//! An [`Experiment`] is a declaration: conditions (what the traffic is like), arms (named sets of
//! sysctls), metrics, positive controls and comparisons, and the function that makes one run of one
//! arm in one condition. [`run`] makes the runs: a warm-up of each arm, then rounds in which the
//! arms take turns forwards and backwards (A B B A), so that a drift of the machine meets all arms
//! alike. Every run builds its hosts anew, because the addresses that memory happens to get would
//! otherwise be the same in all runs of an arm and look like an effect of it.
//!
//! A comparison is *invalid*, and has no verdict about its arms, if a positive control fails (the
//! counter of a mechanism did not move in the arm that has it, or moved in an arm that does not),
//! if other programs used the machine, or if a run failed.
//!
//! Not here: workloads (`experiments`), output.

mod facts;
mod record;
mod schedule;
#[cfg(test)]
mod tests;
mod verdict;
mod watch;

use std::{fmt, time::Duration};

pub use facts::Machine;
pub use record::{
    ArmRecord, CensoredRecord, ComparisonRecord, ConditionRecord, ExperimentRecord, IntervalRecord,
    JobRecord, LabRecord, LoadRecord, MethodRecord, MetricRecord, RunRecord, SummaryRecord,
    Verdict, WelchRecord,
};
pub use schedule::{Progress, estimate, estimate_condition, join, run, run_conditions};
pub use watch::{Load, MachineWatch, Watch};

/// Reason why a run has no result.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Level of significance of every test.
pub const LEVEL: f64 = 0.05;

/// Probability with which the stated smallest difference is found.
pub const POWER: f64 = 0.8;

/// Smallest effect of interest of a metric that states no other: 1 %.
pub const MARGIN: f64 = 0.01;

/// A declared experiment.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// Heading of its results.
    pub title: &'static str,
    /// The claim on trial: what the change's author measured.
    pub claim: &'static str,
    /// The traffic, the hosts and their threads.
    pub workload: &'static str,
    /// Differences from the original measurement, and its missing parts.
    pub limits: &'static str,
    /// Clock of the metrics.
    pub clock: Clock,
    /// Kinds of traffic. Arms are compared within a condition only.
    pub conditions: Vec<Condition>,
    /// The compared configurations.
    pub arms: Vec<Arm>,
    /// Measured quantities, in the order of [`Observation::metrics`].
    pub metrics: Vec<Metric>,
    /// Proofs that the mechanisms ran.
    pub controls: Vec<Control>,
    /// The comparisons, made in every condition. All of them are one family for Holm's correction.
    pub comparisons: Vec<Comparison>,
    /// Makes one run.
    pub trial: Trial,
}

impl fmt::Debug for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Experiment").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The function that makes one run.
pub type Trial = Box<dyn Fn(&Setup<'_>) -> Result<Observation, Error>>;

/// Clock of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time of the machine: other programs disturb it.
    Wall,
    /// Time of a simulation: nothing disturbs it, and a seed repeats a run exactly.
    Virtual,
}

/// One kind of traffic.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// Short name, unique within the experiment.
    pub name: String,
    /// Description of the traffic.
    pub description: String,
    /// Metrics that cannot exceed a value, such as the rate of a link: a run that reaches it says
    /// only that its true value is no smaller.
    pub ceilings: Vec<(&'static str, f64)>,
    /// Time of a run besides warm-up and measurement, for the estimate: connections, threads and
    /// memory of hosts; of a simulation all of it.
    pub overhead: Duration,
}

/// One configuration.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Short name, unique within the experiment.
    pub name: String,
    /// Sysctls by their Linux names.
    pub settings: Vec<(&'static str, &'static str)>,
}

impl Arm {
    /// An arm with these settings.
    pub fn new(name: impl Into<String>, settings: &[(&'static str, &'static str)]) -> Self {
        Self { name: name.into(), settings: settings.to_vec() }
    }
}

/// Which values of a metric are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Large ones: throughput.
    Higher,
    /// Small ones: time, queues, operations.
    Lower,
}

/// One measured quantity.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Short name, unique within the experiment.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Meaning of the quantity.
    pub meaning: &'static str,
    /// Which values are good.
    pub better: Better,
    /// Smallest effect of interest, as a part of the baseline's mean: a ratio whose whole interval
    /// lies within this distance of 1 is no difference, however small its p-value. A run in virtual
    /// time has hardly any variance, so that without a margin a difference of one packet would be
    /// significant.
    pub margin: f64,
}

impl Metric {
    /// A metric with the margin [`MARGIN`].
    #[must_use]
    pub const fn new(
        name: &'static str,
        unit: &'static str,
        meaning: &'static str,
        better: Better,
    ) -> Self {
        Self { name, unit, meaning, better, margin: MARGIN }
    }
}

/// A positive control: a counter that proves that a mechanism ran where it should, and only there.
#[derive(Clone, Debug)]
pub struct Control {
    /// Name of the counter in [`Observation::counters`]; its values are per operation.
    pub counter: &'static str,
    /// Beginnings of the names of the conditions in which the control holds; none means all.
    pub conditions: Vec<&'static str>,
    /// Arms in which the counter moves: in every run by [`at_least`](Self::at_least) per operation.
    pub moves_in: Vec<&'static str>,
    /// See [`moves_in`](Self::moves_in).
    pub at_least: f64,
    /// Arms in which it does not: in no run by more than [`at_most`](Self::at_most).
    pub still_in: Vec<&'static str>,
    /// See [`still_in`](Self::still_in).
    pub at_most: f64,
}

/// Two arms and the metric in which they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The arm that is the divisor of the ratio: the state before the change.
    pub baseline: &'static str,
    /// The other arm.
    pub arm: &'static str,
    /// Name of the metric.
    pub metric: &'static str,
}

/// One run to be made.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'e> {
    /// Index of the condition.
    pub condition: usize,
    /// The arm.
    pub arm: &'e Arm,
    /// Seed of the run's chance; both runs of a pair have the same.
    pub seed: u64,
    /// Time before the measurement, in which windows grow and caches fill.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub measure: Duration,
}

/// Result of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// One number for each metric.
    pub metrics: Vec<f64>,
    /// Counters by name, per operation.
    pub counters: Vec<(&'static str, f64)>,
    /// Quantities over time, for plots. Kept of the first run of each arm only.
    pub series: Vec<Series>,
}

/// A quantity over time, or a distribution.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Series {
    /// Meaning of the quantity.
    pub name: String,
    /// Unit of the horizontal axis: `s`, or `percentile` for a distribution.
    pub x_unit: String,
    /// Unit of the vertical axis.
    pub y_unit: String,
    /// The points.
    pub points: Vec<[f64; 2]>,
}

impl Series {
    /// The distribution of values at 41 percentiles.
    #[must_use]
    pub fn distribution(name: &str, y_unit: &str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        let points = (0..=40).filter_map(|step| {
            let place = last * step / 40;
            #[expect(clippy::cast_precision_loss, reason = "at most 40")]
            let percentile = step as f64 * 2.5;
            Some([percentile, *values.get(place)?])
        });
        let (name, x_unit) = (name.to_owned(), "percentile".to_owned());
        Self { name, x_unit, y_unit: y_unit.to_owned(), points: points.collect() }
    }
}

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Method {
    /// Runs of each arm in each condition: an even number, half of them forwards and half
    /// backwards.
    pub runs: usize,
    /// Time of a run before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub measure: Duration,
    /// Seed of everything random.
    pub seed: u64,
    /// Largest part of the machine's CPU time that the hypervisor may take.
    pub steal_max: f64,
    /// Largest part of the machine's CPU time that other programs may use.
    pub foreign_max: f64,
}

impl Default for Method {
    fn default() -> Self {
        Self {
            runs: 20,
            warm_up: Duration::from_millis(10),
            measure: Duration::from_millis(50),
            seed: 1,
            steal_max: 0.02,
            foreign_max: 0.05,
        }
    }
}
