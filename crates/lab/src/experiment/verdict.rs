//! Judges the comparisons of an experiment.

use super::{
    Better, CensoredRecord, Clock, Comparison, ComparisonRecord, Condition, ConditionRecord,
    Control, Experiment, LEVEL, Method, POWER, Verdict,
};
use crate::statistics::{
    Censored, Summary, holm, likelihood_ratio, pairs, power, ratio_of_means, welch,
};

/// Resamples of the test of censored means.
const CENSORED_RESAMPLES: u32 = 400;

/// A run that reaches this part of a ceiling has reached it: the last packet of a run need not fit.
const CEILING_PART: f64 = 0.999;

/// Judges every comparison in every condition.
pub(super) fn judge(
    experiment: &Experiment,
    method: &Method,
    conditions: &[ConditionRecord],
) -> Vec<ComparisonRecord> {
    let mut judged = Vec::new();
    for record in conditions {
        let declared = experiment.conditions.iter().find(|own| own.name == record.name);
        let Some(declared) = declared else { continue };
        for comparison in &experiment.comparisons {
            judged.push(compare(experiment, method, declared, record, comparison));
        }
    }
    correct(&mut judged);
    for record in &mut judged {
        record.verdict = verdict(experiment, record);
    }
    judged
}

/// Corrects the p-values of the valid comparisons for their number.
fn correct(judged: &mut [ComparisonRecord]) {
    let valid = |record: &&mut ComparisonRecord| record.reasons.is_empty();
    let p_values: Vec<f64> =
        judged.iter_mut().filter(valid).filter_map(|record| record.p_permutation).collect();
    let adjusted = holm(&p_values);
    let tested = judged.iter_mut().filter(valid).filter(|record| record.p_permutation.is_some());
    for (record, p) in tested.zip(adjusted) {
        record.p_holm = Some(p);
    }
}

fn verdict(experiment: &Experiment, record: &ComparisonRecord) -> Verdict {
    let (Some(baseline), Some(arm)) = (record.baseline_summary, record.arm_summary) else {
        return Verdict::Invalid;
    };
    if !record.reasons.is_empty() {
        return Verdict::Invalid;
    }
    let metric = experiment.metrics.iter().find(|metric| metric.name == record.metric);
    let margin = metric.map_or(0.0, |metric| metric.margin);
    let within = |end: f64| (end - 1.0).abs() <= margin;
    if record.ratio.is_some_and(|ratio| within(ratio.low) && within(ratio.high)) {
        return Verdict::Equivalent;
    }
    if baseline.q1 <= arm.q3 && arm.q1 <= baseline.q3 {
        return Verdict::NoDifference;
    }
    if record.p_holm.is_none_or(|p| p >= LEVEL) {
        return Verdict::NotSignificant;
    }
    let higher_is_better = metric.is_some_and(|metric| metric.better == Better::Higher);
    if (arm.median > baseline.median) == higher_is_better {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

fn compare(
    experiment: &Experiment,
    method: &Method,
    declared: &Condition,
    record: &ConditionRecord,
    comparison: &Comparison,
) -> ComparisonRecord {
    let metric = experiment.metrics.iter().position(|metric| metric.name == comparison.metric);
    let values = |name: &str| {
        let arm = record.arms.iter().find(|arm| arm.name == name);
        arm.zip(metric).map(|(arm, metric)| arm.values(metric)).unwrap_or_default()
    };
    let (first, second) = (values(comparison.baseline), values(comparison.arm));
    let (low, high) = (Summary::of(&first), Summary::of(&second));
    let differences: Vec<f64> = first.iter().zip(&second).map(|(a, b)| b - a).collect();
    let has_pairs = first.len() == second.len() && first.len() >= 2;
    let ceiling = declared.ceilings.iter().find(|(name, _)| *name == comparison.metric);
    ComparisonRecord {
        condition: declared.name.clone(),
        metric: comparison.metric.to_owned(),
        unit: metric.map_or("", |index| experiment.metrics[index].unit).to_owned(),
        baseline: comparison.baseline.to_owned(),
        arm: comparison.arm.to_owned(),
        baseline_summary: low.map(Into::into),
        arm_summary: high.map(Into::into),
        ratio: ratio_of_means(&first, &second, 0.95, method.seed).map(Into::into),
        welch: welch(&first, &second).map(Into::into),
        p_permutation: has_pairs.then(|| pairs(&differences, method.seed)),
        p_holm: None,
        detectable: low.zip(high).and_then(|(low, high)| detectable(&low, &high)),
        censored: ceiling.and_then(|(_, ceiling)| censored(&first, &second, *ceiling, method)),
        verdict: Verdict::Invalid,
        reasons: reasons(experiment, method, record, comparison),
    }
}

/// Why a comparison does not count.
fn reasons(
    experiment: &Experiment,
    method: &Method,
    record: &ConditionRecord,
    comparison: &Comparison,
) -> Vec<String> {
    if let Some(error) = &record.error {
        // Counters are missing, too; that is no failure of a control.
        return vec![error.clone()];
    }
    let mut reasons = Vec::new();
    if experiment.clock == Clock::Wall {
        let limits = [
            (record.load.steal, method.steal_max, "the hypervisor took"),
            (record.load.foreign, method.foreign_max, "other programs used"),
        ];
        for (part, limit, what) in limits {
            if part > limit {
                reasons.push(format!(
                    "{what} {:.1} % of the CPU time, more than {:.1} %",
                    part * 100.0,
                    limit * 100.0
                ));
            }
        }
    }
    for control in &experiment.controls {
        for arm in [comparison.baseline, comparison.arm] {
            reasons.extend(failure(control, record, arm));
        }
    }
    reasons
}

/// How a control fails in an arm, if it does.
fn failure(control: &Control, record: &ConditionRecord, arm: &str) -> Option<String> {
    let (moves, still) = (control.moves_in.contains(&arm), control.still_in.contains(&arm));
    let applies = control.conditions.is_empty()
        || control.conditions.iter().any(|start| record.name.starts_with(start));
    if !applies || (!moves && !still) {
        return None;
    }
    let runs = record.arms.iter().find(|own| own.name == arm)?.counter(control.counter);
    let counter = control.counter;
    if runs.is_empty() {
        return Some(format!("control {counter}: no value in arm {arm}"));
    }
    let least = runs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = runs.iter().copied().fold(0.0, f64::max);
    if moves && least < control.at_least {
        let at_least = control.at_least;
        return Some(format!(
            "control {counter}: {least:.3} per operation in arm {arm}, expected at least {at_least}"
        ));
    }
    (still && most > control.at_most).then(|| {
        let at_most = control.at_most;
        format!(
            "control {counter}: {most:.3} per operation in arm {arm}, expected at most {at_most}"
        )
    })
}

/// Smallest difference of the means that the t-test finds with probability [`POWER`], as a part of
/// the baseline's mean: by bisection over the effect in standard deviations.
fn detectable(baseline: &Summary, arm: &Summary) -> Option<f64> {
    let n = baseline.n.min(arm.n);
    if n < 2 || baseline.mean == 0.0 {
        return None;
    }
    let (mut low, mut high) = (0.0, 1e3);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if power(n, middle, LEVEL) < POWER { low = middle } else { high = middle }
    }
    let sd = f64::midpoint(baseline.sd.powi(2), arm.sd.powi(2)).sqrt();
    Some(high * sd / baseline.mean.abs())
}

/// Estimates where a run of either arm reached the ceiling.
fn censored(
    first: &[f64],
    second: &[f64],
    ceiling: f64,
    method: &Method,
) -> Option<CensoredRecord> {
    let split = |values: &[f64]| {
        let below = |value: &f64| *value < ceiling * CEILING_PART;
        let observed: Vec<f64> = values.iter().copied().filter(below).collect();
        let reached = values.len() - observed.len();
        (observed, reached)
    };
    let groups = [split(first), split(second)];
    if groups.iter().all(|(_, reached)| *reached == 0) {
        return None;
    }
    let [estimate_first, estimate_second] = [&groups[0], &groups[1]]
        .map(|(observed, reached)| Censored::of(observed, *reached, ceiling).ok());
    let of = |index: usize| (groups[index].0.as_slice(), groups[index].1);
    Some(CensoredRecord {
        ceiling,
        reached: [groups[0].1, groups[1].1],
        mean: [estimate_first, estimate_second].map(CensoredRecord::mean_of),
        p: likelihood_ratio(of(0), of(1), ceiling, CENSORED_RESAMPLES, method.seed).ok(),
    })
}
