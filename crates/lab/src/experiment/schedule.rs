//! Makes the runs of an experiment in their order.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::{
    Arm, ArmRecord, Clock, Condition, ConditionRecord, Error, Experiment, ExperimentRecord, Load,
    Method, Observation, RunRecord, Setup, Watch, verdict,
};

/// Part of a run's times that an unmeasured run of the warm-up takes.
const WARM_UP_PART: u32 = 4;

/// How far an experiment is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'e> {
    /// Finished runs, those of the warm-up included.
    pub done: usize,
    /// All runs.
    pub total: usize,
    /// Condition of the next run.
    pub condition: &'e str,
    /// Arm of the next run.
    pub arm: &'e str,
}

/// Time that an experiment takes on a quiet machine.
#[must_use]
pub fn estimate(experiment: &Experiment, method: &Method) -> Duration {
    let of = |condition| estimate_condition(experiment, condition, method);
    experiment.conditions.iter().map(of).sum()
}

/// Time that one of its conditions takes.
#[must_use]
pub fn estimate_condition(
    experiment: &Experiment,
    condition: &Condition,
    method: &Method,
) -> Duration {
    let runs = 2 * u32::try_from(rounds(method)).unwrap_or(u32::MAX);
    let arms = u32::try_from(experiment.arms.len()).unwrap_or(u32::MAX);
    let timed = match experiment.clock {
        Clock::Wall => method.warm_up + method.measure,
        Clock::Virtual => Duration::ZERO,
    };
    let warm_up = timed / WARM_UP_PART + condition.overhead;
    ((timed + condition.overhead) * runs + warm_up) * arms
}

/// Runs an experiment. A run that fails ends its condition; the other conditions continue.
pub fn run(
    experiment: &Experiment,
    method: &Method,
    watch: &mut dyn Watch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> ExperimentRecord {
    let every: Vec<usize> = (0..experiment.conditions.len()).collect();
    run_conditions(experiment, method, &every, watch, progress)
}

/// Runs some conditions of an experiment, which are named by their places. A condition has the
/// same seeds whether it runs alone or with others, so that the parts of an experiment can run in
/// several processes and be joined by [`join`].
pub fn run_conditions(
    experiment: &Experiment,
    method: &Method,
    places: &[usize],
    watch: &mut dyn Watch,
    progress: &mut dyn FnMut(Progress<'_>),
) -> ExperimentRecord {
    let start = Instant::now();
    let runs_of_condition = experiment.arms.len() * (2 * rounds(method) + 1);
    let total = places.len() * runs_of_condition;
    let mut conditions = Vec::new();
    for (number, &place) in places.iter().enumerate() {
        let Some(condition) = experiment.conditions.get(place) else { continue };
        let mut record = ConditionRecord {
            name: condition.name.clone(),
            description: condition.description.clone(),
            arms: experiment.arms.iter().map(empty).collect(),
            ..ConditionRecord::default()
        };
        let mut done = number * runs_of_condition;
        let mut tell = |arm: &Arm| {
            progress(Progress { done, total, condition: &condition.name, arm: &arm.name });
            done += 1;
        };
        match measure(experiment, method, place, watch, &mut tell, &mut record) {
            Ok(load) => record.load = load.into(),
            Err(error) => record.error = Some(error.to_string()),
        }
        conditions.push(record);
    }
    record(experiment, method, conditions, start.elapsed().as_secs_f64())
}

/// Joins conditions of one experiment that ran in several processes, and judges them as one family.
/// The conditions stand in the order of the declaration; one that `parts` has twice counts once.
#[must_use]
pub fn join(
    experiment: &Experiment,
    method: &Method,
    parts: Vec<ExperimentRecord>,
) -> ExperimentRecord {
    let elapsed_s = parts.iter().map(|part| part.elapsed_s).sum();
    let mut all: Vec<_> = parts.into_iter().flat_map(|part| part.conditions).collect();
    let mut conditions = Vec::new();
    for declared in &experiment.conditions {
        if let Some(place) = all.iter().position(|own| own.name == declared.name) {
            conditions.push(all.swap_remove(place));
        }
    }
    record(experiment, method, conditions, elapsed_s)
}

/// Judges conditions, and describes the experiment beside them.
fn record(
    experiment: &Experiment,
    method: &Method,
    conditions: Vec<ConditionRecord>,
    elapsed_s: f64,
) -> ExperimentRecord {
    let comparisons = verdict::judge(experiment, method, &conditions);
    ExperimentRecord {
        name: experiment.name.to_owned(),
        title: experiment.title.to_owned(),
        claim: experiment.claim.to_owned(),
        workload: experiment.workload.to_owned(),
        limits: experiment.limits.to_owned(),
        is_virtual: experiment.clock == Clock::Virtual,
        runs: 2 * rounds(method),
        warm_up_s: method.warm_up.as_secs_f64(),
        measure_s: method.measure.as_secs_f64(),
        metrics: experiment.metrics.iter().map(Into::into).collect(),
        conditions,
        comparisons,
        elapsed_s,
    }
}

/// Rounds of a condition. Each has two runs of every arm.
fn rounds(method: &Method) -> usize {
    method.runs.div_ceil(2).max(1)
}

fn empty(arm: &Arm) -> ArmRecord {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    ArmRecord {
        name: arm.name.clone(),
        settings: arm.settings.iter().map(owned).collect(),
        ..ArmRecord::default()
    }
}

/// Makes the runs of one condition, and returns what else the machine did meanwhile.
fn measure(
    experiment: &Experiment,
    method: &Method,
    condition: usize,
    watch: &mut dyn Watch,
    tell: &mut dyn FnMut(&Arm),
    record: &mut ConditionRecord,
) -> Result<Load, Error> {
    let mut rng = Rng::with_seed(method.seed ^ (condition as u64).rotate_left(32));
    let setup = |arm, seed, part| Setup {
        condition,
        arm,
        seed,
        warm_up: method.warm_up / part,
        measure: method.measure / part,
    };
    for arm in &experiment.arms {
        tell(arm);
        (experiment.trial)(&setup(arm, rng.u64(..), WARM_UP_PART)).map_err(of(arm))?;
    }
    let before = watch.read();
    let mut order = 0;
    for round in 0..rounds(method) {
        for backwards in [false, true] {
            // Both runs of a pair have the same chance.
            let seed = rng.u64(..);
            for index in turn(experiment.arms.len(), round, backwards) {
                let arm = &experiment.arms[index];
                tell(arm);
                let observed = (experiment.trial)(&setup(arm, seed, 1)).map_err(of(arm))?;
                add(&mut record.arms[index], experiment, observed, order, seed)?;
                order += 1;
            }
        }
    }
    Ok(watch.read().since(&before))
}

fn of(arm: &Arm) -> impl Fn(Error) -> Error {
    let name = arm.name.clone();
    move |error| format!("arm {name}: {error}").into()
}

/// The arms of one half of a round: each round begins with another arm, and its second half is the
/// mirror image of the first.
fn turn(arms: usize, round: usize, backwards: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..arms).map(|place| (place + round) % arms).collect();
    if backwards {
        order.reverse();
    }
    order
}

fn add(
    arm: &mut ArmRecord,
    experiment: &Experiment,
    observed: Observation,
    order: usize,
    seed: u64,
) -> Result<(), Error> {
    let Observation { metrics, counters, series } = observed;
    if metrics.len() != experiment.metrics.len() || metrics.iter().any(|value| !value.is_finite()) {
        return Err(format!("arm {}: no measurement: {metrics:?}", arm.name).into());
    }
    if arm.runs.is_empty() {
        arm.series = series;
    }
    let counters = counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    arm.runs.push(RunRecord { order, seed, metrics, counters });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_arms_take_turns_as_a_b_b_a_and_b_a_a_b() {
        let round = |round| [turn(2, round, false), turn(2, round, true)].concat();
        assert_eq!(round(0), [0, 1, 1, 0]);
        assert_eq!(round(1), [1, 0, 0, 1]);
    }

    #[test]
    fn every_arm_has_the_same_mean_place_in_a_round() {
        for round in 0..5 {
            let order = [turn(5, round, false), turn(5, round, true)].concat();
            for arm in 0..5 {
                let places = order.iter().enumerate().filter(|(_, own)| **own == arm);
                assert_eq!(places.map(|(place, _)| place).sum::<usize>(), 9, "{order:?}");
            }
        }
    }
}
