//! The results as one self-contained HTML page: styles and plots are inline.

use std::fmt::Write as _;

use anyhow::Result;
use quietline_lab::experiment::{
    ArmRecord, ComparisonRecord, ConditionRecord, ExperimentRecord, LabRecord, Series,
    SummaryRecord, Verdict,
};

use super::{plot, table};
use crate::page::{self, escape};

/// Returns the whole page.
pub(super) fn page(record: &LabRecord) -> Result<String> {
    let mut page = page::begin("quietline lab");
    let machine = table::machine(&record.machine, &record.version);
    let _ = writeln!(page, "<p>{}</p>", escape(&machine));
    let _ = writeln!(page, "<p>Repeat with <code>{}</code></p>", escape(&record.repeat));
    let _ = writeln!(
        page,
        "<p class=\"note\">A comparison is invalid where a positive control fails, where other programs \
         used more than {:.0} % of the CPU time, or where the hypervisor took more than {:.0} %. \
         Overlapping quartiles are no difference, whatever a test says. The test is a permutation test \
         over pairs of runs; its p-values are corrected for all valid comparisons of an experiment \
         (Holm), at a level of {}.</p>",
        record.method.foreign_max * 100.0,
        record.method.steal_max * 100.0,
        record.method.level,
    );
    for experiment in &record.experiments {
        section(&mut page, experiment)?;
    }
    page.push_str(page::END);
    Ok(page)
}

fn section(page: &mut String, experiment: &ExperimentRecord) -> Result<()> {
    let _ = writeln!(page, "<h2>{}</h2>", escape(&experiment.title));
    for (name, text) in [
        ("Claim", &experiment.claim),
        ("Workload", &experiment.workload),
        ("Limits", &experiment.limits),
        ("Method", &table::method(experiment)),
    ] {
        let _ = writeln!(page, "<p><strong>{name}.</strong> {}</p>", escape(text));
    }
    arms(page, experiment);
    comparisons(page, experiment);
    for reason in table::reasons(experiment) {
        let _ = writeln!(page, "<p class=\"bad\">Invalid: {}</p>", escape(&reason));
    }
    for record in &experiment.comparisons {
        if let Some(estimates) = &record.censored {
            let _ = writeln!(page, "<p>{}</p>", escape(&table::censored(record, estimates)));
        }
    }
    if let Some(plots) = plot::ratios(&experiment.comparisons)? {
        page.push_str(
            "<p class=\"note\">Ratio of the means with its 95 % bootstrap interval, by the number of the \
             comparison.</p>\n",
        );
        both(page, &plots);
    }
    for condition in &experiment.conditions {
        details(page, experiment, condition)?;
    }
    Ok(())
}

/// A plot for a page and the same for a phone.
fn both(page: &mut String, [wide, narrow]: &[String; 2]) {
    let _ =
        write!(page, "<div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>\n");
}

/// The arms with their colors and settings.
fn arms(page: &mut String, experiment: &ExperimentRecord) {
    let Some(condition) = experiment.conditions.first() else { return };
    page.push_str("<table><thead><tr><th>arm</th><th>settings</th></tr></thead><tbody>\n");
    for (place, arm) in condition.arms.iter().enumerate() {
        let settings: Vec<_> =
            arm.settings.iter().map(|(name, value)| escape(&format!("{name}={value}"))).collect();
        let _ = writeln!(
            page,
            "<tr><td style=\"color:{};font-weight:600\">{}</td>\
             <td data-name=\"settings\" style=\"white-space:normal;overflow-wrap:anywhere\">{}</td></tr>",
            plot::css(place),
            escape(&arm.name),
            settings.join("<br>"),
        );
    }
    page.push_str("</tbody></table>\n");
}

fn comparisons(page: &mut String, experiment: &ExperimentRecord) {
    page.push_str(
        "<table><thead><tr><th>comparison</th><th>metric</th><th>baseline</th><th>arm</th><th>ratio</th>\
         <th>verdict</th></tr></thead><tbody>\n",
    );
    for (place, record) in experiment.comparisons.iter().enumerate() {
        row(page, place + 1, record);
    }
    page.push_str(
        "</tbody></table>\n<p class=\"note\">Medians with their quartiles below. p: permutation test over \
         pairs after Holm's correction, and Welch's two-sided and one-sided p below. Detectable: the \
         difference that this number of runs finds with a probability of 80 %.</p>\n",
    );
}

fn row(page: &mut String, number: usize, record: &ComparisonRecord) {
    let side = |summary: Option<&SummaryRecord>| {
        let text = escape(&table::summary(summary));
        match text.split_once(" [") {
            Some((median, quartiles)) => format!("{median}<br><small>[{quartiles}</small>"),
            None => text,
        }
    };
    let [ratio, interval] = table::ratio(record);
    let class = if record.verdict == Verdict::Invalid { " class=\"bad\"" } else { "" };
    let welch = record.welch.map_or_else(String::new, |welch| {
        format!("<br><small>Welch {:.3} / {:.3}</small>", welch.p_two, welch.p_one)
    });
    let detectable = record.detectable.map_or_else(String::new, |part| {
        format!("<br><small>detectable {:.1} %</small>", part * 100.0)
    });
    let unit = if record.unit.is_empty() { String::new() } else { format!(", {}", record.unit) };
    let _ = writeln!(
        page,
        "<tr><td>{number}. {}<br><small>{} → {}</small></td><td data-name=\"metric\">{}{}</td>\
         <td data-name=\"baseline\"><span>{}</span></td>\
         <td data-name=\"arm\"><span>{}</span></td>\
         <td data-name=\"ratio\"><span>{ratio}<br><small>{interval}</small></span></td>\
         <td data-name=\"verdict\"><span><span{class}>{}</span><br><small>{}</small>{welch}{detectable}\
         </span></td></tr>",
        escape(&record.condition),
        escape(&record.baseline),
        escape(&record.arm),
        escape(&record.metric),
        escape(&unit),
        side(record.baseline_summary.as_ref()),
        side(record.arm_summary.as_ref()),
        record.verdict.words(),
        escape(&table::p_value(record.p_holm)),
    );
}

fn details(
    page: &mut String,
    experiment: &ExperimentRecord,
    condition: &ConditionRecord,
) -> Result<()> {
    let _ = writeln!(page, "<h3>{}</h3>", escape(&condition.name));
    let _ = write!(page, "<p class=\"note\">{}.", escape(&condition.description));
    if !experiment.is_virtual {
        let _ = write!(
            page,
            " Meanwhile other programs used {:.1} % of the CPU time, and the hypervisor took {:.1} %.",
            condition.load.foreign * 100.0,
            condition.load.steal * 100.0,
        );
    }
    page.push_str("</p>\n");
    if let Some(error) = &condition.error {
        let _ = writeln!(page, "<p class=\"bad\">Failed: {}</p>", escape(error));
    }
    for (place, metric) in experiment.metrics.iter().enumerate() {
        let is_compared = experiment.comparisons.iter().any(|record| record.metric == metric.name);
        let label = if metric.unit.is_empty() {
            metric.name.clone()
        } else {
            format!("{}, {}", metric.name, metric.unit)
        };
        if is_compared && let Some(plots) = plot::runs(&condition.arms, place, &label)? {
            let _ = writeln!(page, "<p class=\"note\">{}.</p>", escape(&metric.meaning));
            both(page, &plots);
        }
    }
    curves(page, condition)
}

/// Quantities over time and distributions, a plot for each with a curve for each arm.
fn curves(page: &mut String, condition: &ConditionRecord) -> Result<()> {
    let Some(first) = condition.arms.first() else { return Ok(()) };
    if first.series.is_empty() {
        return Ok(());
    }
    page.push_str("<div class=\"plots\">\n");
    for (place, series) in first.series.iter().enumerate() {
        let own = |(arm, record): (usize, _)| Some((arm, series_of(record, place)?));
        let arms: Vec<(usize, &Series)> =
            condition.arms.iter().enumerate().filter_map(own).collect();
        if let Some(svg) = plot::series(&arms)? {
            let over = if series.x_unit == "s" { "over time" } else { "by percentile" };
            let _ = writeln!(
                page,
                "<div><p class=\"note\">{} {over}</p>{svg}</div>",
                escape(&series.name)
            );
        }
    }
    page.push_str("</div>\n");
    Ok(())
}

fn series_of(arm: &ArmRecord, place: usize) -> Option<&Series> {
    arm.series.get(place)
}
