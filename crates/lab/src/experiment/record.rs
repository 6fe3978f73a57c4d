//! Results of experiments as data, which the command prints, plots, stores and reads again.

use serde::{Deserialize, Serialize};

use super::{Better, Load, Machine, Metric, Series};
use crate::statistics::{Censored, Interval, Summary, Welch};

/// Everything that one command has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabRecord {
    /// `lab`.
    pub command: String,
    /// Version of the program.
    pub version: String,
    /// The command line that repeats it.
    pub repeat: String,
    /// The machine.
    pub machine: Machine,
    /// How the experiments were run.
    pub method: MethodRecord,
    /// Jobs of a sweep whose results these are; none if one process ran all experiments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobRecord>,
    /// The experiments, in the order in which they ran.
    pub experiments: Vec<ExperimentRecord>,
}

/// A job of a sweep: one condition of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Number of the job, from 0.
    pub job: usize,
    /// Jobs of the whole sweep.
    pub of: usize,
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the condition.
    pub condition: String,
    /// Machine that ran the job.
    pub machine: Machine,
}

/// How experiments were run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodRecord {
    /// Whether conditions and times were shortened.
    pub quick: bool,
    /// Seed.
    pub seed: u64,
    /// Level of significance.
    pub level: f64,
    /// Largest part of the CPU time that the hypervisor may have taken.
    pub steal_max: f64,
    /// Largest part of the CPU time that other programs may have used.
    pub foreign_max: f64,
}

/// Results of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRecord {
    /// Name on the command line.
    pub name: String,
    /// Heading.
    pub title: String,
    /// The tested claim.
    pub claim: String,
    /// The traffic.
    pub workload: String,
    /// Differences from the original measurement.
    pub limits: String,
    /// Whether the metrics are in virtual time.
    pub is_virtual: bool,
    /// Runs of each arm in each condition.
    pub runs: usize,
    /// Time of a run before the measurement, in seconds.
    pub warm_up_s: f64,
    /// Time of the measurement, in seconds.
    pub measure_s: f64,
    /// Measured quantities.
    pub metrics: Vec<MetricRecord>,
    /// Results by condition.
    pub conditions: Vec<ConditionRecord>,
    /// Verdicts.
    pub comparisons: Vec<ComparisonRecord>,
    /// Wall time of the whole experiment, in seconds.
    pub elapsed_s: f64,
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    /// Name.
    pub name: String,
    /// Unit.
    pub unit: String,
    /// Meaning of the quantity.
    pub meaning: String,
    /// Whether large values are good.
    pub higher_is_better: bool,
    /// Smallest effect of interest, as a part of the baseline's mean.
    #[serde(default)]
    pub margin: f64,
}

impl From<&Metric> for MetricRecord {
    fn from(metric: &Metric) -> Self {
        Self {
            name: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            meaning: metric.meaning.to_owned(),
            higher_is_better: metric.better == Better::Higher,
            margin: metric.margin,
        }
    }
}

/// Results in one condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConditionRecord {
    /// Name.
    pub name: String,
    /// Description of the traffic.
    pub description: String,
    /// Other work of the machine.
    pub load: LoadRecord,
    /// Results by arm.
    pub arms: Vec<ArmRecord>,
    /// Why the runs ended early, if they did.
    pub error: Option<String>,
}

/// Other work of the machine, as parts of its CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Other programs.
    pub foreign: f64,
    /// The hypervisor.
    pub steal: f64,
}

impl From<Load> for LoadRecord {
    fn from(load: Load) -> Self {
        Self { foreign: load.foreign(), steal: load.steal() }
    }
}

/// Runs of one arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmRecord {
    /// Name.
    pub name: String,
    /// Sysctls.
    pub settings: Vec<(String, String)>,
    /// The runs; those at the same place of two arms are a pair.
    pub runs: Vec<RunRecord>,
    /// Quantities over time and distributions, of the first run.
    pub series: Vec<Series>,
}

impl ArmRecord {
    /// The values of a metric, in the order of the runs.
    #[must_use]
    pub fn values(&self, metric: usize) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.metrics.get(metric).copied()).collect()
    }

    /// The values of a counter per operation, in the order of the runs.
    #[must_use]
    pub fn counter(&self, name: &str) -> Vec<f64> {
        let of =
            |run: &RunRecord| run.counters.iter().find(|(own, _)| own == name).map(|own| own.1);
        self.runs.iter().filter_map(of).collect()
    }
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Place among all runs of the condition.
    pub order: usize,
    /// Seed.
    pub seed: u64,
    /// One number for each metric.
    pub metrics: Vec<f64>,
    /// Counters per operation.
    pub counters: Vec<(String, f64)>,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The comparison does not count; the reasons say why.
    Invalid,
    /// The quartiles overlap. That is no difference, even if a test rejects.
    NoDifference,
    /// The quartiles are apart, but the test, corrected for all comparisons, does not reject.
    NotSignificant,
    /// The interval of the ratio lies within the margin of the metric: any difference is smaller
    /// than the smallest effect of interest.
    Equivalent,
    /// The arm is better than the baseline.
    Better,
    /// The arm is worse than the baseline.
    Worse,
}

impl Verdict {
    /// The verdict in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NoDifference => "no difference",
            Self::NotSignificant => "not significant",
            Self::Equivalent => "equivalent",
            Self::Better => "better",
            Self::Worse => "worse",
        }
    }
}

/// One comparison. Every number is absent if the runs do not give it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonRecord {
    /// Condition.
    pub condition: String,
    /// Metric.
    pub metric: String,
    /// Unit of the metric.
    pub unit: String,
    /// Arm that is the divisor of the ratio.
    pub baseline: String,
    /// The other arm.
    pub arm: String,
    /// Runs of the baseline.
    pub baseline_summary: Option<SummaryRecord>,
    /// Runs of the arm.
    pub arm_summary: Option<SummaryRecord>,
    /// Mean of the arm divided by that of the baseline, with its 95 % interval over pairs.
    pub ratio: Option<IntervalRecord>,
    /// Welch's test.
    pub welch: Option<WelchRecord>,
    /// Two-sided permutation test over pairs: the test that decides.
    pub p_permutation: Option<f64>,
    /// The same, corrected for all valid comparisons of the experiment (Holm).
    pub p_holm: Option<f64>,
    /// Smallest difference, as a part of the baseline's mean, that this number of runs finds with a
    /// probability of 80 %.
    pub detectable: Option<f64>,
    /// Estimates where runs reached a ceiling.
    pub censored: Option<CensoredRecord>,
    /// Result of the comparison.
    pub verdict: Verdict,
    /// Why it is invalid.
    pub reasons: Vec<String>,
}

/// Summary of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as `statistics::Summary`")]
pub struct SummaryRecord {
    pub n: usize,
    pub mean: f64,
    pub sd: f64,
    pub min: f64,
    pub q1: f64,
    pub median: f64,
    pub q3: f64,
    pub max: f64,
}

impl From<Summary> for SummaryRecord {
    fn from(summary: Summary) -> Self {
        let Summary { n, mean, sd, min, q1, median, q3, max } = summary;
        Self { n, mean, sd, min, q1, median, q3, max }
    }
}

/// An estimate with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as `statistics::Interval`")]
pub struct IntervalRecord {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

impl From<Interval> for IntervalRecord {
    fn from(Interval { estimate, low, high }: Interval) -> Self {
        Self { estimate, low, high }
    }
}

/// Result of Welch's test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as `statistics::Welch`")]
pub struct WelchRecord {
    /// Absent if infinite: two arms without variance.
    pub t: Option<f64>,
    pub df: Option<f64>,
    pub p_two: f64,
    pub p_one: f64,
}

impl From<Welch> for WelchRecord {
    fn from(Welch { t, df, p_two, p_one }: Welch) -> Self {
        let finite = |value: f64| value.is_finite().then_some(value);
        Self { t: finite(t), df: finite(df), p_two, p_one }
    }
}

/// Estimates by Cohen (1959) for both arms, and the likelihood-ratio test of equal means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CensoredRecord {
    /// The ceiling.
    pub ceiling: f64,
    /// Runs of baseline and arm that reached it.
    pub reached: [usize; 2],
    /// Estimated means, with their standard errors; absent where too few runs stayed below.
    pub mean: [Option<[f64; 2]>; 2],
    /// p-value of equal means.
    pub p: Option<f64>,
}

impl CensoredRecord {
    /// Mean and standard error of an estimate.
    pub(super) fn mean_of(estimate: Option<Censored>) -> Option<[f64; 2]> {
        estimate.map(|estimate| [estimate.mu, estimate.se_mu])
    }
}
