//! `quietline lab merge`: the results of the jobs of a sweep as one result.
//!
//! Comparisons are judged anew, because Holm's correction needs all comparisons of an experiment.
//! Results that do not belong together are refused: another version, another command, a job twice,
//! or a job that is missing.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use quietline_lab::{
    experiment::{ExperimentRecord, JobRecord, LabRecord, Method, join},
    experiments::Name,
};

use crate::{args::LabMergeArgs, failure::Failure};

/// Missing jobs that a message names.
const NAMED_MAX: usize = 8;

/// Runs the command.
pub(super) fn run(args: &LabMergeArgs) -> Result<(), Failure> {
    let mut results = Vec::new();
    for path in &args.files {
        results.push((path.as_path(), super::read(path)?));
    }
    let record = merge(results, args.partial)?;
    super::finish(&record, &args.output)
}

fn merge(results: Vec<(&Path, LabRecord)>, partial: bool) -> Result<LabRecord> {
    let mut jobs: BTreeMap<usize, (&Path, LabRecord, JobRecord)> = BTreeMap::new();
    for (path, record) in results {
        let shown = path.display();
        let [job] = record.jobs.as_slice() else {
            bail!("{shown} is not the result of one job: it was made without --job");
        };
        let job = job.clone();
        if let Some((first, other, of)) = jobs.values().next() {
            let first = first.display();
            ensure!(
                other.version == record.version,
                "{shown} is of quietline {}, {first} of {}",
                record.version,
                other.version
            );
            ensure!(
                of.of == job.of && base(other, of) == base(&record, &job),
                "{shown} and {first} are jobs of two sweeps: '{}' and '{}'",
                record.repeat,
                other.repeat
            );
        }
        if let Some((first, ..)) = jobs.get(&job.job) {
            bail!("{shown} and {} are both job {}", first.display(), job.job);
        }
        jobs.insert(job.job, (path, record, job));
    }
    check_missing(&jobs.values().map(|(.., job)| job).collect::<Vec<_>>(), partial)?;
    join_all(jobs.into_values().collect())
}

/// The command of the whole sweep.
fn base<'r>(record: &'r LabRecord, job: &JobRecord) -> &'r str {
    record.repeat.strip_suffix(&format!(" --job {}", job.job)).unwrap_or(&record.repeat)
}

fn check_missing(jobs: &[&JobRecord], partial: bool) -> Result<()> {
    let of = jobs.first().map_or(0, |job| job.of);
    ensure!(jobs.iter().all(|job| job.job < of), "a job's number is not in its plan of {of} jobs");
    let missing: Vec<String> = (0..of)
        .filter(|number| jobs.iter().all(|job| job.job != *number))
        .map(|number| number.to_string())
        .collect();
    if missing.is_empty() || partial {
        return Ok(());
    }
    let (count, more) = (missing.len(), missing.len() > NAMED_MAX);
    let named = missing.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    let more = if more { ", …" } else { "" };
    bail!("{count} of {of} jobs are missing ({named}{more}); --partial merges without them")
}

fn join_all(results: Vec<(&Path, LabRecord, JobRecord)>) -> Result<LabRecord> {
    let (_, first, job) = results.first().context("no result")?;
    let mut whole = LabRecord {
        repeat: base(first, job).to_owned(),
        jobs: Vec::new(),
        experiments: Vec::new(),
        ..first.clone()
    };
    let mut parts: Vec<(Name, Vec<ExperimentRecord>)> = Vec::new();
    for (path, record, job) in results {
        let shown = path.display();
        ensure!(record.method == whole.method, "{shown} was measured by another method");
        for own in record.experiments {
            let name = name(&own.name)
                .with_context(|| format!("{shown} has an unknown experiment, {}", own.name))?;
            match parts.iter_mut().find(|(other, _)| *other == name) {
                Some((_, parts)) => {
                    let same = |other: &ExperimentRecord| {
                        (other.runs, other.measure_s, other.warm_up_s)
                            == (own.runs, own.measure_s, own.warm_up_s)
                    };
                    ensure!(parts.iter().all(same), "{shown} has other runs of {}", own.name);
                    parts.push(own);
                }
                None => parts.push((name, vec![own])),
            }
        }
        whole.jobs.push(job);
    }
    let method = Method {
        seed: whole.method.seed,
        steal_max: whole.method.steal_max,
        foreign_max: whole.method.foreign_max,
        ..Method::default()
    };
    for (name, parts) in parts {
        let experiment = name.experiment(whole.method.quick);
        let unknown = parts
            .iter()
            .flat_map(|part| &part.conditions)
            .find(|own| experiment.conditions.iter().all(|condition| condition.name != own.name));
        if let Some(own) = unknown {
            bail!("experiment {} has no condition '{}' in this version", experiment.name, own.name);
        }
        whole.experiments.push(join(&experiment, &of(&method, &parts), parts));
    }
    Ok(whole)
}

/// The method of the parts of an experiment.
fn of(method: &Method, parts: &[ExperimentRecord]) -> Method {
    let Some(first) = parts.first() else { return method.clone() };
    let seconds = std::time::Duration::try_from_secs_f64;
    Method {
        runs: first.runs,
        warm_up: seconds(first.warm_up_s).unwrap_or(method.warm_up),
        measure: seconds(first.measure_s).unwrap_or(method.measure),
        ..method.clone()
    }
}

fn name(text: &str) -> Result<Name> {
    let all = Name::ALL.into_iter();
    let found = all.into_iter().find(|name| name.experiment(true).name == text);
    found.ok_or_else(|| anyhow!("this version has no experiment {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of two jobs of tsq.
    fn two() -> Vec<LabRecord> {
        let declared = Name::Tsq.experiment(true);
        [0, 1]
            .map(|job| {
                let mut record = super::super::tests::record();
                record.repeat = format!("quietline lab tsq --quick --seed 1 --job {job}");
                record.experiments[0].conditions[0].name = declared.conditions[job].name.clone();
                record.jobs = vec![JobRecord {
                    job,
                    of: 2,
                    experiment: "tsq".to_owned(),
                    condition: declared.conditions[job].name.clone(),
                    machine: record.machine.clone(),
                }];
                record
            })
            .to_vec()
    }

    fn merged(records: Vec<LabRecord>, partial: bool) -> Result<LabRecord> {
        let paths: Vec<_> = (0..records.len()).map(|i| format!("{i}.json")).collect();
        let results = records.into_iter().zip(&paths).map(|(own, path)| (Path::new(path), own));
        merge(results.collect(), partial)
    }

    #[test]
    fn two_jobs_become_one_result_in_the_order_of_the_plan() {
        let mut records = two();
        records.reverse();
        let whole = merged(records, false).expect("a result");
        assert_eq!(whole.repeat, "quietline lab tsq --quick --seed 1");
        assert_eq!(whole.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [0, 1]);
        let declared = Name::Tsq.experiment(true);
        let names: Vec<_> = whole.experiments[0].conditions.iter().map(|own| &own.name).collect();
        assert_eq!(names, declared.conditions.iter().map(|own| &own.name).collect::<Vec<_>>());
    }

    #[test]
    fn results_that_do_not_belong_together_are_refused() {
        let refused = |change: fn(&mut Vec<LabRecord>)| {
            let mut records = two();
            change(&mut records);
            format!("{:#}", merged(records, false).expect_err("refused"))
        };
        for (change, expected) in [
            ((|all| all[1].version = "9".to_owned()) as fn(&mut Vec<LabRecord>), "of quietline 9"),
            (|all| all[1].repeat = "quietline lab all --job 1".to_owned(), "jobs of two sweeps"),
            (|all| all[1].jobs.clear(), "made without --job"),
            (|all| all[1] = all[0].clone(), "both job 0"),
            (|all| drop(all.pop()), "1 of 2 jobs are missing (1)"),
            (|all| all[1].experiments[0].name = "x".to_owned(), "unknown experiment, x"),
            (|all| all[1].experiments[0].runs = 4, "other runs of tsq"),
            (|all| all[1].method.steal_max = 0.5, "another method"),
            (|all| all[1].experiments[0].conditions[0].name = "x".to_owned(), "no condition 'x'"),
        ] {
            let message = refused(change);
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let one = two().into_iter().take(1).collect();
        assert!(merged(one, true).is_ok(), "--partial");
    }
}
