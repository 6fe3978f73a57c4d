//! `quietline lab compare`: the runs of two stored results, arm by arm.
//!
//! The runs of two commands are not interleaved, so that a difference may be one of the machine or
//! of the day: the test is Welch's, and the output says so.

use std::collections::BTreeSet;

use anyhow::anyhow;
use comfy_table::{
    Cell, CellAlignment, ContentArrangement, Table,
    presets::{ASCII_FULL_CONDENSED, UTF8_FULL_CONDENSED},
};
use quietline_lab::{
    experiment::{ArmRecord, LEVEL, LabRecord},
    statistics::{Summary, holm, welch},
};
use serde::Serialize;

use super::table::{WIDTH, filled, p_value};
use crate::{
    args::LabCompareArgs,
    failure::Failure,
    output::{self, number},
};

/// One arm in both results.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    experiment: String,
    condition: String,
    arm: String,
    metric: String,
    unit: String,
    median_first: f64,
    median_second: f64,
    /// Mean of the second divided by mean of the first.
    ratio: Option<f64>,
    /// Welch's two-sided p, corrected for all rows (Holm).
    p_holm: f64,
    /// `no difference` where the quartiles overlap, else `different` or `not significant`.
    verdict: &'static str,
}

/// Runs the command.
pub(super) fn run(args: &LabCompareArgs) -> Result<(), Failure> {
    let (first, second) = (super::read(&args.first)?, super::read(&args.second)?);
    let rows = rows(&first, &second);
    if rows.is_empty() {
        return Err(anyhow!("the two results have no arm in common").into());
    }
    if args.json {
        return output::print_json(&serde_json::json!({
            "command": "lab compare",
            "first": { "file": args.first, "machine": first.machine, "repeat": first.repeat },
            "second": { "file": args.second, "machine": second.machine, "repeat": second.repeat },
            "differences": differences(&first, &second),
            "arms": rows,
        }));
    }
    let plain = output::is_plain();
    let mut text = format!("{}\n", table(&rows, plain));
    for sentence in differences(&first, &second) {
        text.push_str(&filled(&sentence));
    }
    text.push_str(&filled(
        "The runs of the two results are not interleaved: a difference may be one of the machine. p is \
         Welch's, two-sided, after Holm's correction. Overlapping quartiles are no difference.",
    ));
    output::print(&if plain { output::in_ascii(&text) } else { text })
}

/// Circumstances that differ between the two results, besides the code that they measured.
fn differences(first: &LabRecord, second: &LabRecord) -> Vec<String> {
    let machine = |own: &LabRecord| format!("{} × {}", own.machine.cpus, own.machine.cpu_model);
    let method = |own: &LabRecord| {
        let quick = if own.method.quick { "with --quick" } else { "without --quick" };
        let runs: BTreeSet<usize> = own.experiments.iter().map(|own| own.runs).collect();
        let runs: Vec<_> = runs.into_iter().map(|runs| runs.to_string()).collect();
        format!("{} runs of each arm {quick}", runs.join(" or "))
    };
    let each: [(&str, &dyn Fn(&LabRecord) -> String); 4] = [
        ("machines", &machine),
        ("kernels", &|own| own.machine.kernel.clone()),
        ("versions", &|own| own.version.clone()),
        ("methods", &method),
    ];
    let texts = each.into_iter().map(|(what, text)| (what, text(first), text(second)));
    let differing = texts.filter(|(_, one, other)| one != other);
    differing.map(|(what, one, other)| format!("The {what} differ: {one}; {other}.")).collect()
}

/// Every metric of every arm that both results have.
fn rows(first: &LabRecord, second: &LabRecord) -> Vec<Row> {
    let mut rows = Vec::new();
    for experiment in &first.experiments {
        let Some(other) = second.experiments.iter().find(|own| own.name == experiment.name) else {
            continue;
        };
        for condition in &experiment.conditions {
            let Some(there) = other.conditions.iter().find(|own| own.name == condition.name) else {
                continue;
            };
            for arm in &condition.arms {
                let Some(twin) = there.arms.iter().find(|own| own.name == arm.name) else {
                    continue;
                };
                for (place, metric) in experiment.metrics.iter().enumerate() {
                    let same = other.metrics.iter().position(|own| own.name == metric.name);
                    let row = same.and_then(|same| compare((arm, place), (twin, same)));
                    rows.extend(row.map(|row| Row {
                        experiment: experiment.name.clone(),
                        condition: condition.name.clone(),
                        metric: metric.name.clone(),
                        unit: metric.unit.clone(),
                        ..row
                    }));
                }
            }
        }
    }
    judge(&mut rows);
    rows
}

/// A row without its place, and with an uncorrected p.
fn compare(first: (&ArmRecord, usize), second: (&ArmRecord, usize)) -> Option<Row> {
    let [one, two] = [first, second].map(|(arm, metric)| arm.values(metric));
    let [a, b] = [Summary::of(&one)?, Summary::of(&two)?];
    let ratio = b.mean / a.mean;
    Some(Row {
        experiment: String::new(),
        condition: String::new(),
        arm: first.0.name.clone(),
        metric: String::new(),
        unit: String::new(),
        median_first: a.median,
        median_second: b.median,
        ratio: ratio.is_finite().then_some(ratio),
        p_holm: welch(&one, &two)?.p_two,
        verdict: if a.overlaps(&b) { "no difference" } else { "" },
    })
}

fn judge(rows: &mut [Row]) {
    let p_values: Vec<f64> = rows.iter().map(|row| row.p_holm).collect();
    for (row, p) in rows.iter_mut().zip(holm(&p_values)) {
        row.p_holm = p;
        if row.verdict.is_empty() {
            row.verdict = if p < LEVEL { "different" } else { "not significant" };
        }
    }
}

fn table(rows: &[Row], plain: bool) -> Table {
    let mut table = Table::new();
    table.load_style(if plain { ASCII_FULL_CONDENSED } else { UTF8_FULL_CONDENSED });
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(WIDTH).unwrap_or(80));
    table.set_header(["experiment", "arm", "median A\nmedian B", "B / A", "verdict"]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for row in rows {
        let unit = if row.unit.is_empty() { String::new() } else { format!(", {}", row.unit) };
        table.add_row([
            Cell::new(format!("{}, {}", row.experiment, row.condition)),
            Cell::new(format!("{}\n{}{unit}", row.arm, row.metric)),
            right(format!("{}\n{}", number(row.median_first), number(row.median_second))),
            right(row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"))),
            Cell::new(format!("{}\n{}", row.verdict, p_value(Some(row.p_holm)))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_does_not_differ_from_itself_and_does_from_a_slower_one() {
        let first = super::super::tests::record();
        let same = rows(&first, &first);
        assert_eq!(same.len(), 2);
        assert!(same.iter().all(|row| row.verdict == "no difference" && row.ratio == Some(1.0)));
        let mut second = first.clone();
        for run in &mut second.experiments[0].conditions[0].arms[1].runs {
            run.metrics[0] *= 1.5;
        }
        let changed = rows(&first, &second);
        assert_eq!((changed[0].verdict, changed[1].verdict), ("no difference", "different"));
        assert!(table(&changed, true).to_string().lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn differing_circumstances_are_named() {
        let first = super::super::tests::record();
        assert!(differences(&first, &first).is_empty());
        let mut second = first.clone();
        second.machine.cpus += 1;
        second.version = "9".to_owned();
        second.method.quick = false;
        let named = differences(&first, &second);
        assert_eq!(named.len(), 3, "{named:?}");
        assert!(named[2].contains("6 runs of each arm without --quick"), "{named:?}");
    }

    #[test]
    fn results_without_a_common_arm_have_no_row() {
        let first = super::super::tests::record();
        let mut second = first.clone();
        second.experiments[0].name = "other".to_owned();
        assert!(rows(&first, &second).is_empty());
    }
}
