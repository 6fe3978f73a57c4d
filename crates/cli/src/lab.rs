//! `quietline lab`: runs the experiments of crate `lab`, and prints, stores and compares their
//! results.
//!
//! Not here: what an experiment does, and its statistics.

mod calibrate;
mod compare;
mod csv;
mod merge;
mod plan;
mod plot;
mod progress;
mod report;
mod scaling;
pub(crate) mod table;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use quietline_lab::{
    experiment::{
        Experiment, ExperimentRecord, LEVEL, LabRecord, Machine, MachineWatch, Method,
        MethodRecord, Progress, run_conditions,
    },
    experiments::{
        Name, selftest,
        tsq::{self, real::Real},
    },
};

use crate::{
    args::{LabArgs, LabCommand, LabOutputArgs, LabRunArgs, LabTsqArgs},
    failure::Failure,
    output,
};

use plan::Job;
pub(crate) use report::section;

/// Runs of an arm with `--quick`: enough that a clear difference is significant.
const QUICK_RUNS: usize = 10;
/// Times of a run with `--quick`.
const QUICK_WARM_UP: Duration = Duration::from_millis(5);
const QUICK_MEASURE: Duration = Duration::from_millis(20);

/// Repetitions of each cost of a cache line that are measured before the experiments.
const CALIBRATIONS: u32 = 100;

/// Runs the command.
pub(crate) fn run(args: &LabArgs) -> Result<(), Failure> {
    let Some(command) = &args.command else {
        if args.all.plan || args.all.job.is_some() {
            return experiments(&args.all, &Name::ALL, "all").map(drop);
        }
        let reason = "an experiment is missing; try 'quietline lab --help'";
        return Err(Failure::Usage(reason.to_owned()));
    };
    let (args, names, word) = match command {
        LabCommand::Prequeue(args) => (args, &[Name::Prequeue][..], "prequeue"),
        LabCommand::GroBatch(args) => (args, &[Name::GroBatch][..], "gro-batch"),
        LabCommand::DstLayout(args) => (args, &[Name::DstLayout][..], "dst-layout"),
        LabCommand::SkbCache(args) => (args, &[Name::SkbCache][..], "skb-cache"),
        LabCommand::All(args) => (args, &Name::ALL[..], "all"),
        LabCommand::Tsq(args) => return small_queues(args),
        LabCommand::Selftest(args) => return test_itself(args),
        LabCommand::Compare(args) => return compare::run(args),
        LabCommand::Merge(args) => return merge::run(args),
        LabCommand::Calibrate(args) => return calibrate::run(args),
    };
    experiments(args, names, word).map(drop)
}

/// Runs experiments, or the part of them that one job is. Returns their result, or nothing if
/// their plan was printed.
fn experiments(
    args: &LabRunArgs,
    names: &[Name],
    word: &str,
) -> Result<Option<LabRecord>, Failure> {
    let method = method(args);
    let jobs = plan::jobs(args, names, word, &method);
    if args.plan {
        return plan::print(&jobs).map(|()| None);
    }
    let job = args.job.map(|number| plan::choose(&jobs, number)).transpose()?;
    let parts: Vec<(Experiment, Vec<usize>)> = match job {
        Some(job) => vec![(job.name.experiment(args.quick), vec![job.place])],
        None => names.iter().map(|name| whole(name.experiment(args.quick))).collect(),
    };
    let repeat = job.map_or_else(|| repeat(args, word), |job| job.command.clone());
    run_parts(args, &method, &parts, repeat, job).map(Some)
}

/// Runs the test of the lab. Fails if a verdict is not the expected one.
fn test_itself(args: &LabRunArgs) -> Result<(), Failure> {
    let record = experiments(args, &[Name::Selftest], "selftest")?;
    let mut experiments = record.iter().flat_map(|record| &record.experiments);
    match experiments.find_map(selftest::unexpected) {
        Some(verdict) => {
            Err(anyhow!("the lab cannot be trusted on this machine: {verdict}").into())
        }
        None => Ok(()),
    }
}

/// Runs small queues in virtual time, or over a queue of the kernel.
fn small_queues(args: &LabTsqArgs) -> Result<(), Failure> {
    let (Some(interface), Some(address), Some(peer)) = (&args.real, args.address, args.peer) else {
        return experiments(&args.run, &[Name::Tsq], "tsq").map(drop);
    };
    let real = Real {
        interface: interface.clone(),
        address: address.to_string(),
        peer,
        sink: args.discard_port,
        echo: args.echo_port,
    };
    let parts = vec![whole(tsq::real::experiment(&real, args.run.quick))];
    let repeat = format!(
        "{} --real {interface} --address {address} --peer {peer} --discard-port {} --echo-port {}",
        repeat(&args.run, "tsq"),
        args.discard_port,
        args.echo_port
    );
    run_parts(&args.run, &method(&args.run), &parts, repeat, None).map(drop)
}

/// An experiment with all of its conditions.
fn whole(experiment: Experiment) -> (Experiment, Vec<usize>) {
    let places = (0..experiment.conditions.len()).collect();
    (experiment, places)
}

/// Runs conditions of experiments, prints, stores and returns their results.
fn run_parts(
    args: &LabRunArgs,
    method: &Method,
    parts: &[(Experiment, Vec<usize>)],
    repeat: String,
    job: Option<&Job>,
) -> Result<LabRecord, Failure> {
    make_directory(&args.output)?;
    let calibration = Some(calibrate::measure(CALIBRATIONS)?);
    let machine = Machine { calibration, ..Machine::read() };
    let record = LabRecord {
        command: "lab".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        repeat,
        method: MethodRecord {
            quick: args.quick,
            seed: args.seed,
            level: LEVEL,
            steal_max: method.steal_max,
            foreign_max: method.foreign_max,
        },
        jobs: job.iter().map(|job| job.record(&machine)).collect(),
        experiments: measure(parts, method),
        machine,
    };
    finish(&record, &args.output)?;
    Ok(record)
}

/// Runs the conditions of each experiment.
fn measure(parts: &[(Experiment, Vec<usize>)], method: &Method) -> Vec<ExperimentRecord> {
    let mut report = progress::Report::new(parts, method);
    let mut records = Vec::new();
    for (experiment, places) in parts {
        let mut watch = MachineWatch::new();
        let mut tell =
            |at: Progress<'_>| report.next_run((experiment, places.as_slice()), at, method);
        records.push(run_conditions(experiment, method, places, &mut watch, &mut tell));
        report.finish(experiment, places, method);
    }
    records
}

/// Creates the directory of `--report` before the experiments take their time, so that an invalid
/// path is reported at once.
fn make_directory(args: &LabOutputArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.report {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    Ok(())
}

/// Prints and stores a result.
fn finish(record: &LabRecord, args: &LabOutputArgs) -> Result<(), Failure> {
    make_directory(args)?;
    let written = args.report.as_deref().map_or(Ok(()), |dir| write(dir, record));
    let printed =
        if args.json { output::print_json(record) } else { output::print(&table::text(record)) };
    if let (Some(dir), Ok(()), false) = (&args.report, &written, args.json) {
        output::remark(&format!("report: {}", dir.join("lab.html").display()));
    }
    let measured = failed(record);
    written.and(measured).and(printed)
}

/// Reads a stored result.
fn read(path: &Path) -> Result<LabRecord, Failure> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let record = serde_json::from_str(&text)
        .with_context(|| format!("{} is no result of 'quietline lab'", path.display()))?;
    Ok(record)
}

fn method(args: &LabRunArgs) -> Method {
    let mut method = Method { seed: args.seed, ..Method::default() };
    if args.quick {
        (method.runs, method.warm_up, method.measure) = (QUICK_RUNS, QUICK_WARM_UP, QUICK_MEASURE);
    }
    if let Some(runs) = args.runs.and_then(|runs| usize::try_from(runs).ok()) {
        method.runs = runs;
    }
    method
}

/// The command line that repeats the run.
fn repeat(args: &LabRunArgs, word: &str) -> String {
    let mut line = format!("quietline lab {word}");
    if args.quick {
        line.push_str(" --quick");
    }
    if let Some(runs) = args.runs {
        line.push_str(&format!(" --runs {runs}"));
    }
    line.push_str(&format!(" --seed {}", args.seed));
    line
}

/// Writes page, object and runs into a directory.
fn write(dir: &Path, record: &LabRecord) -> Result<(), Failure> {
    let files = [
        ("lab.json", output::json_line(record)?),
        ("lab.csv", csv::runs(record)),
        ("lab.html", report::page(record)?),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if a workload failed: a result without its runs must not look like a success.
fn failed(record: &LabRecord) -> Result<(), Failure> {
    for experiment in &record.experiments {
        for condition in &experiment.conditions {
            if let Some(error) = &condition.error {
                let (name, condition) = (&experiment.name, &condition.name);
                return Err(anyhow!("{name} failed ({condition}): {error}").into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
