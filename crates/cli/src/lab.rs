//! `quietline lab`: runs the experiments of crate `lab`, and prints, stores and compares their
//! results.
//!
//! Not here: what an experiment does, and its statistics.

mod compare;
mod csv;
mod plot;
mod report;
mod table;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use quietline_lab::{
    experiment::{
        ExperimentRecord, LEVEL, LabRecord, Machine, MachineWatch, Method, MethodRecord,
        run as measure,
    },
    experiments::Name,
};

use crate::{
    args::{LabArgs, LabCommand, LabRunArgs},
    failure::Failure,
    output,
};

/// Runs of an arm with `--quick`: enough that a clear difference is significant.
const QUICK_RUNS: usize = 10;
/// Times of a run with `--quick`.
const QUICK_WARM_UP: Duration = Duration::from_millis(5);
const QUICK_MEASURE: Duration = Duration::from_millis(20);

/// Runs the command.
pub(crate) fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.command {
        LabCommand::Prequeue(args) => experiments(args, &[Name::Prequeue], "prequeue"),
        LabCommand::GroBatch(args) => experiments(args, &[Name::GroBatch], "gro-batch"),
        LabCommand::DstLayout(args) => experiments(args, &[Name::DstLayout], "dst-layout"),
        LabCommand::Tsq(args) => experiments(args, &[Name::Tsq], "tsq"),
        LabCommand::SkbCache(args) => experiments(args, &[Name::SkbCache], "skb-cache"),
        LabCommand::All(args) => experiments(args, &Name::ALL, "all"),
        LabCommand::Compare(args) => compare::run(args),
    }
}

fn experiments(args: &LabRunArgs, names: &[Name], word: &str) -> Result<(), Failure> {
    if let Some(dir) = &args.report {
        // An invalid path is reported before the experiments take their time.
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let method = method(args);
    let machine = Machine::read();
    let records = names.iter().map(|&name| experiment(name, args, &method)).collect();
    let record = LabRecord {
        command: "lab".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        repeat: repeat(args, word),
        machine,
        method: MethodRecord {
            quick: args.quick,
            seed: args.seed,
            level: LEVEL,
            steal_max: method.steal_max,
            foreign_max: method.foreign_max,
        },
        experiments: records,
    };
    let written = args.report.as_deref().map_or(Ok(()), |dir| write(dir, &record));
    let printed =
        if args.json { output::print_json(&record) } else { output::print(&table::text(&record)) };
    if let (Some(dir), Ok(()), false) = (&args.report, &written, args.json) {
        output::remark(&format!("report: {}", dir.join("lab.html").display()));
    }
    written.and(failed(&record)).and(printed)
}

fn method(args: &LabRunArgs) -> Method {
    let full = Method { seed: args.seed, ..Method::default() };
    let quick =
        Method { runs: QUICK_RUNS, warm_up: QUICK_WARM_UP, measure: QUICK_MEASURE, ..full.clone() };
    let method = if args.quick { quick } else { full };
    let runs = args.runs.and_then(|runs| usize::try_from(runs).ok());
    Method { runs: runs.unwrap_or(method.runs), ..method }
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

/// Runs one experiment under a progress bar, which is drawn on a terminal only.
fn experiment(name: Name, args: &LabRunArgs, method: &Method) -> ExperimentRecord {
    let experiment = name.experiment(args.quick);
    let bar = ProgressBar::new(0);
    let template = "{bar:24} {pos}/{len} {elapsed:>4}, {eta} left  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let mut watch = MachineWatch::new();
    let record = measure(&experiment, method, &mut watch, &mut |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("{}: {}, {}", experiment.name, progress.condition, progress.arm));
    });
    bar.finish_and_clear();
    record
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
