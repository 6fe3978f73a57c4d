//! `quietline demo --compare NAME=A,B,…`: the workloads with each value of one setting.
//!
//! The values are the arms of an experiment of crate `lab`: they take turns forwards and backwards
//! (A B B A), every run builds two hosts anew, and the ratio to the first value has a bootstrap
//! interval over pairs of runs. A comparison is invalid while other programs use the machine.
//!
//! Not here: the workloads (`slice`), the schedule and the statistics (crate `lab`).

use std::{str::FromStr, time::Duration};

use anyhow::anyhow;
use indicatif::{ProgressBar, ProgressStyle};
use quietline_lab::experiment::{
    Arm, Better, Clock, Comparison, Condition, Error, Experiment, ExperimentRecord, MachineWatch,
    Method, Metric, Observation, Series, Setup, run as measure,
};
use serde::Serialize;

use super::{
    environment::Environment,
    meter::Slice,
    pair,
    run::{chosen, share},
    slice,
    workload::Workload,
};
use crate::{
    args::DemoArgs,
    failure::Failure,
    lab::{self, table},
    link::Sysctl,
    output,
    page::{self, escape},
    page_file::PageFile,
    plot::index,
    settings,
};

/// Target number of runs of each value: what the lab takes.
const RUNS_AIM: f64 = 20.0;
/// Bounds of the number of runs.
const RUNS: std::ops::RangeInclusive<usize> = 2..=100;
/// Bounds of a run's length, in seconds, as those of a slice.
const RUN_SECONDS_MIN: f64 = 0.005;
const RUN_SECONDS_MAX: f64 = 0.25;
/// Part of a run that is not measured.
const WARM_UP_PART: f64 = 0.2;
/// Part of the time that building the hosts takes.
const BUILD_PART: f64 = 0.1;
/// Percentiles of the latency curve.
const PERCENTILES: [f64; 12] =
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0];

/// Value of `--compare`: a setting and the values to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compare {
    /// Linux name of the setting.
    pub(crate) name: String,
    /// Its values. The first is the divisor of the ratios.
    pub(crate) values: Vec<String>,
}

impl FromStr for Compare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected NAME=A,B with two or more values, such as net.core.busy_read=0,50";
        let (name, values) = text.split_once('=').ok_or(EXPECTED)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let name = name.trim().to_owned();
        if name.is_empty() || values.len() < 2 || values.iter().any(String::is_empty) {
            return Err(EXPECTED.to_owned());
        }
        for (place, value) in values.iter().enumerate() {
            if values.iter().take(place).any(|other| other == value) {
                return Err(format!("the value {value} occurs twice"));
            }
        }
        Ok(Self { name, values })
    }
}

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Object<'r> {
    command: &'static str,
    repeat: &'r str,
    environment: &'r Environment,
    seed: u64,
    sysctl: Vec<String>,
    compare: &'r ExperimentRecord,
}

/// Runs the command.
pub(super) fn run(args: &DemoArgs, compare: &Compare) -> Result<(), Failure> {
    for value in &compare.values {
        settings::check_value("--compare", &compare.name, value)?;
    }
    let page = args.report.as_deref().map(PageFile::open).transpose()?;
    let workloads = chosen(args);
    let method = method(args, &workloads, compare.values.len());
    let experiment = experiment(args, compare, workloads.clone());
    let mut record = measured(&experiment, &method);
    for comparison in &mut record.comparisons {
        let own = workloads.iter().find(|workload| workload.title() == comparison.condition);
        if comparison.metric == RATE {
            own.map_or("", |workload| workload.unit()).clone_into(&mut comparison.unit);
        }
    }
    let environment = Environment::read();
    let repeat = repeat(args, compare);
    let written: Result<(), Failure> = match page {
        Some(file) => Ok(file.write(&html(&record, &environment, &repeat)?)?),
        None => Ok(()),
    };
    let printed = if args.observe.json {
        output::print_json(&Object {
            command: "demo",
            repeat: &repeat,
            environment: &environment,
            seed: args.seed,
            sysctl: args.sysctl.iter().map(ToString::to_string).collect(),
            compare: &record,
        })
    } else {
        output::print(&text(&record, &environment, &repeat))
    };
    if let (Some(path), Ok(()), false) = (&args.report, &written, args.observe.json) {
        output::remark(&format!("report: {}", path.display()));
    }
    let measured = verdict(&record);
    written.and(measured).and(printed)
}

/// Name of the metric that the values are compared in.
const RATE: &str = "rate";

/// Declares the experiment. The texts of its arms live as long as the process, because declared
/// names do.
fn experiment(args: &DemoArgs, compare: &Compare, workloads: Vec<Workload>) -> Experiment {
    let name: &'static str = compare.name.clone().leak();
    let values: Vec<&'static str> =
        compare.values.iter().map(|value| &*value.clone().leak()).collect();
    let (sysctl, seed) = (args.sysctl.clone(), args.seed);
    let conditions = workloads.iter().map(|workload| Condition {
        name: workload.title().to_owned(),
        description: format!("{}; the rate is in {}", workload.description(), workload.unit()),
        ..Condition::default()
        overhead: Duration::ZERO,
    });
    let comparison = |arm| Comparison { baseline: values[0], arm, metric: RATE };
    Experiment {
        name: "demo",
        title: format!("{name}: {}", values.join(", ")).leak(),
        claim: "",
        workload: "The demo's workloads between two hosts of this process, which a wire in memory \
                   connects. Both hosts have the setting, and every run builds them anew.",
        limits: "One machine runs both hosts and both applications.",
        clock: Clock::Wall,
        conditions: conditions.collect(),
        arms: values.iter().map(|value| Arm::new(*value, &[(name, *value)])).collect(),
        metrics: vec![
            Metric::new(RATE, "", "work per second", Better::Higher),
            Metric::new(
                "cores",
                "",
                "CPU seconds per second of both hosts and applications together",
                Better::Lower,
            ),
        ],
        controls: Vec::new(),
        comparisons: values.iter().skip(1).map(|arm| comparison(*arm)).collect(),
        trial: Box::new(move |setup| trial(setup, &sysctl, seed, workloads[setup.condition])),
    }
}

/// Makes one run: two new hosts, one slice of the workload.
fn trial(
    setup: &Setup<'_>,
    sysctl: &[Sysctl],
    seed: u64,
    workload: Workload,
) -> Result<Observation, Error> {
    let own = setup
        .arm
        .settings
        .iter()
        .map(|&(name, value)| Sysctl { name: name.to_owned(), value: value.to_owned() });
    let sysctl: Vec<Sysctl> = sysctl.iter().cloned().chain(own).collect();
    let pair = pair::quietline(workload.wire(), seed, &sysctl, None)?;
    let part = share(workload);
    let slice = Slice {
        warmup: setup.warm_up.mul_f64(part),
        measure: setup.measure.mul_f64(part),
        seed: setup.seed,
    };
    let sample = slice::run(&pair, workload, slice)?;
    if let Some((sent, received)) = &sample.content
        && sent.value() != received.value()
    {
        return Err("the received content differs from the sent content".into());
    }
    let latency = sample.latency.as_ref().filter(|latency| !latency.is_empty()).map(|latency| {
        #[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 ns")]
        let point =
            |percentile: f64| [percentile, latency.value_at_percentile(percentile) as f64 / 1e3];
        Series {
            name: "latency of a transaction".to_owned(),
            x_unit: "percentile".to_owned(),
            y_unit: "µs".to_owned(),
            points: PERCENTILES.map(point).to_vec(),
        }
    });
    Ok(Observation {
        metrics: vec![sample.rate, sample.cores],
        counters: Vec::new(),
        series: latency.into_iter().collect(),
    })
}

/// Chooses the length and the number of runs that fit the requested time.
fn method(args: &DemoArgs, workloads: &[Workload], values: usize) -> Method {
    let shares = workloads.iter().map(|workload| share(*workload)).sum::<f64>() * index(values);
    let seconds = args.seconds * (1.0 - BUILD_PART);
    let run = (seconds / (shares * RUNS_AIM)).clamp(RUN_SECONDS_MIN, RUN_SECONDS_MAX);
    let most = seconds / (shares * run);
    let runs = RUNS.rev().find(|runs| runs.is_multiple_of(2) && index(*runs) <= most);
    Method {
        runs: runs.unwrap_or(*RUNS.start()),
        warm_up: Duration::from_secs_f64(run * WARM_UP_PART),
        measure: Duration::from_secs_f64(run * (1.0 - WARM_UP_PART)),
        seed: args.seed,
        ..Method::default()
    }
}

fn measured(experiment: &Experiment, method: &Method) -> ExperimentRecord {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:20} {percent:>3} % {elapsed:>4}, {eta} left  {wide_msg}")
    {
        bar.set_style(style);
    }
    let record = measure(experiment, method, &mut MachineWatch::new(), &mut |at| {
        bar.set_length(at.total as u64);
        bar.set_position(at.done as u64);
        bar.set_message(format!("{}; {}", at.condition, at.arm));
    });
    bar.finish_and_clear();
    record
}

/// The command line that repeats the comparison.
fn repeat(args: &DemoArgs, compare: &Compare) -> String {
    let mut line =
        format!("quietline demo --compare {}={}", compare.name, compare.values.join(","));
    for setting in &args.sysctl {
        line.push_str(&format!(" --sysctl '{setting}'"));
    }
    for workload in &args.workloads {
        line.push_str(&format!(" --workload {}", workload.name()));
    }
    line.push_str(&format!(" --seconds {} --seed {}", args.seconds, args.seed));
    line
}

fn text(record: &ExperimentRecord, environment: &Environment, repeat: &str) -> String {
    let plain = output::is_plain();
    let mut text = table::filled(&environment.sentence());
    text.push_str(&table::experiment(record, plain));
    text.push('\n');
    text.push_str(&table::legend());
    text.push_str(&table::filled(&format!("Repeat with: {repeat}")));
    if plain { output::in_ascii(&text) } else { text }
}

fn html(
    record: &ExperimentRecord,
    environment: &Environment,
    repeat: &str,
) -> anyhow::Result<String> {
    let mut page = page::begin("quietline demo");
    page.push_str(&format!(
        "<p>{}</p>\n<p>Repeat with <code>{}</code></p>\n",
        escape(&environment.sentence()),
        escape(repeat)
    ));
    lab::section(&mut page, record)?;
    page.push_str(page::END);
    Ok(page)
}

/// Fails if a workload failed.
fn verdict(record: &ExperimentRecord) -> Result<(), Failure> {
    let failed = record.conditions.iter().find_map(|own| Some((own, own.error.as_ref()?)));
    match failed {
        Some((condition, error)) => Err(anyhow!("{} failed: {error}", condition.name).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_has_a_name_and_two_values_or_more() {
        let compare: Compare = "net.core.busy_read = 0, 50,100".parse().expect("a comparison");
        assert_eq!(compare.name, "net.core.busy_read");
        assert_eq!(compare.values, ["0", "50", "100"]);
        for text in ["", "a", "a=", "a=1", "=1,2", "a=1,", "a=,1", "a=1,2,1"] {
            assert!(text.parse::<Compare>().is_err(), "{text}");
        }
    }
}
