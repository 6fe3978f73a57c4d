//! The jobs of a sweep: `--plan` lists them, `--job` runs one, so that a cluster can run them on
//! several machines.
//!
//! A job is one condition of one experiment. The arms of a condition take turns in one process,
//! because only then a drift of the machine meets all of them alike. A job has the seeds that it
//! would have in a run of all experiments.
//!
//! Not here: the scripts of schedulers (deploy/).

use quietline_lab::{
    experiment::{JobRecord, Machine, Method, estimate_condition},
    experiments::Name,
};
use serde::Serialize;

use crate::{args::LabRunArgs, failure::Failure, output};

/// One job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Job {
    /// Number, from 0.
    pub(super) job: usize,
    /// Jobs of the plan.
    pub(super) of: usize,
    /// Experiment.
    #[serde(skip)]
    pub(super) name: Name,
    /// Its name on the command line.
    pub(super) experiment: &'static str,
    /// Place of the condition in its experiment.
    #[serde(skip)]
    pub(super) place: usize,
    /// Name of the condition.
    pub(super) condition: String,
    /// Estimate of the job's time, in seconds.
    pub(super) seconds: f64,
    /// Command that runs it.
    pub(super) command: String,
}

/// Returns the jobs of a command line.
pub(super) fn jobs(args: &LabRunArgs, names: &[Name], word: &str, method: &Method) -> Vec<Job> {
    let mut jobs = Vec::new();
    for &name in names {
        let experiment = name.experiment(args.quick);
        for (place, condition) in experiment.conditions.iter().enumerate() {
            let seconds = estimate_condition(&experiment, condition, method).as_secs_f64();
            jobs.push(Job {
                job: jobs.len(),
                of: 0,
                name,
                experiment: experiment.name,
                place,
                condition: condition.name.clone(),
                seconds: (seconds * 10.0).ceil() / 10.0,
                command: format!("{} --job {}", super::repeat(args, word), jobs.len()),
            });
        }
    }
    let of = jobs.len();
    jobs.iter_mut().for_each(|job| job.of = of);
    jobs
}

/// Prints the jobs, one object per line.
pub(super) fn print(jobs: &[Job]) -> Result<(), Failure> {
    let mut text = String::new();
    for job in jobs {
        text.push_str(&serde_json::to_string(job).map_err(anyhow::Error::new)?);
        text.push('\n');
    }
    output::print(&text)
}

/// Returns the job with this number.
pub(super) fn choose(jobs: &[Job], number: usize) -> Result<&Job, Failure> {
    jobs.get(number).ok_or_else(|| {
        let last = jobs.len().saturating_sub(1);
        Failure::option("--job", number, format!("the plan has the jobs 0 to {last}"))
    })
}

impl Job {
    /// The job as a part of its result.
    pub(super) fn record(&self, machine: &Machine) -> JobRecord {
        JobRecord {
            job: self.job,
            of: self.of,
            experiment: self.experiment.to_owned(),
            condition: self.condition.clone(),
            machine: machine.clone(),
        }
    }
}
