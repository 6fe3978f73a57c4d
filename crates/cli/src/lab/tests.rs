//! The command with a made-up record, which its tables, pages and files show.

use quietline_lab::experiment::{
    ArmRecord, ComparisonRecord, ConditionRecord, IntervalRecord, LoadRecord, MetricRecord,
    RunRecord, Series, SummaryRecord, Verdict,
};

use super::*;

/// A record with everything that a record can have.
pub(super) fn record() -> LabRecord {
    let reason = "control TsqThrottled: 0.000 per operation".to_owned();
    LabRecord {
        command: "lab".to_owned(),
        version: "0".to_owned(),
        repeat: "quietline lab tsq --seed 1".to_owned(),
        machine: Machine::read(),
        method: MethodRecord {
            quick: true,
            seed: 1,
            level: LEVEL,
            steal_max: 0.02,
            foreign_max: 0.05,
        },
        jobs: Vec::new(),
        experiments: vec![ExperimentRecord {
            name: "tsq".to_owned(),
            title: "Small queues".to_owned(),
            claim: "Less than 1 ms".to_owned(),
            workload: "Bulk senders".to_owned(),
            limits: "None".to_owned(),
            is_virtual: true,
            runs: 6,
            warm_up_s: 0.01,
            measure_s: 0.05,
            metrics: vec![MetricRecord {
                name: "wait".to_owned(),
                unit: "ms".to_owned(),
                meaning: "mean wait".to_owned(),
                higher_is_better: false,
                margin: 0.01,
            }],
            conditions: vec![ConditionRecord {
                name: "100M, 1 sender, <segments>".to_owned(),
                description: "a bulk sender".to_owned(),
                load: LoadRecord { foreign: 0.25, steal: 0.01 },
                arms: vec![arm("off", 1.0), arm("static131072_ge", 0.1)],
                error: None,
            }],
            comparisons: vec![
                comparison(Verdict::Better, Vec::new()),
                comparison(Verdict::Invalid, vec![reason]),
            ],
            elapsed_s: 1.5,
        }],
    }
}

fn series(name: &str, x_unit: &str) -> Series {
    Series {
        name: name.to_owned(),
        x_unit: x_unit.to_owned(),
        y_unit: "ms".to_owned(),
        points: (0..50).map(|i| [f64::from(i), f64::from(i % 7) + 0.5]).collect(),
    }
}

fn arm(name: &str, factor: f64) -> ArmRecord {
    ArmRecord {
        name: name.to_owned(),
        settings: vec![("net.quietline.tsq_limit".to_owned(), name.to_owned())],
        runs: (0..6)
            .map(|order| RunRecord {
                order,
                seed: 7,
                metrics: vec![1234.5 * factor + f64::from(u32::try_from(order).unwrap_or(0))],
                counters: vec![("TsqThrottled".to_owned(), 0.25)],
            })
            .collect(),
        series: vec![series("wait", "s"), series("wait", "percentile")],
    }
}

fn summary(median: f64) -> SummaryRecord {
    SummaryRecord {
        n: 6,
        mean: median,
        sd: 1.0,
        min: median - 2.0,
        q1: median - 1.0,
        median,
        q3: median + 1.0,
        max: median + 2.0,
    }
}

fn comparison(verdict: Verdict, reasons: Vec<String>) -> ComparisonRecord {
    ComparisonRecord {
        condition: "100M, 1 sender, <segments>".to_owned(),
        metric: "wait".to_owned(),
        unit: "ms".to_owned(),
        baseline: "off".to_owned(),
        arm: "static131072_ge".to_owned(),
        baseline_summary: Some(summary(1234.5)),
        arm_summary: Some(summary(123.4)),
        ratio: Some(IntervalRecord { estimate: 0.1, low: 0.09, high: 0.11 }),
        welch: None,
        p_permutation: Some(0.0012),
        p_holm: Some(0.0024),
        detectable: Some(0.01),
        censored: None,
        verdict,
        reasons,
    }
}

#[test]
fn a_record_is_the_same_when_it_is_read_again() {
    let record = record();
    let text = output::json_line(&record).expect("JSON");
    let again: LabRecord = serde_json::from_str(&text).expect("a record");
    assert_eq!(again, record);
}

#[test]
fn the_command_that_repeats_a_run_has_its_options() {
    let output = || LabOutputArgs { json: true, report: None };
    let args = |quick, runs| {
        let output = output();
        LabRunArgs { quick, runs, seed: 7, plan: false, job: None, output }
    };
    assert_eq!(repeat(&args(false, None), "tsq"), "quietline lab tsq --seed 7");
    let quick = repeat(&args(true, Some(40)), "all");
    assert_eq!(quick, "quietline lab all --quick --runs 40 --seed 7");
    assert_eq!(method(&args(true, None)).runs, QUICK_RUNS);
    assert_eq!(method(&args(true, Some(40))).runs, 40);
    assert!(method(&args(false, None)).runs >= 20);
}

#[test]
fn files_of_a_report_hold_every_run() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), &record()).expect("written");
    let read = |name| fs::read_to_string(dir.path().join(name)).expect("a file");
    // A line of names, and for each of 12 runs a metric and a counter.
    assert_eq!(read("lab.csv").lines().count(), 1 + 12 * 2);
    let page = read("lab.html");
    assert!(page.ends_with("</html>\n") && page.matches("<svg").count() >= 4);
    assert!(!page.contains("<segments>"), "text of a record is no markup");
    assert!(!page.contains("http://www.w3.org/1999/xhtml") && !page.contains("<script"));
    assert!(serde_json::from_str::<LabRecord>(&read("lab.json")).is_ok());
}

#[test]
fn every_condition_of_every_experiment_is_a_job() {
    let output = LabOutputArgs { json: false, report: None };
    let args = LabRunArgs { quick: true, runs: None, seed: 3, plan: true, job: None, output };
    let jobs = plan::jobs(&args, &Name::ALL, "all", &method(&args));
    let conditions = Name::ALL.iter().map(|name| name.experiment(true).conditions.len());
    assert_eq!(jobs.len(), conditions.sum::<usize>());
    for (number, job) in jobs.iter().enumerate() {
        assert_eq!((job.job, job.of), (number, jobs.len()));
        let command = format!("quietline lab all --quick --seed 3 --job {number}");
        assert_eq!(job.command, command);
        assert!(job.seconds > 0.0 && job.seconds < 3600.0, "{job:?}");
    }
    assert!(plan::choose(&jobs, jobs.len()).is_err());
}
