//! The results as one self-contained HTML page: styles and plots are inline.

use std::fmt::Write as _;

use anyhow::Result;
use quietline_lab::experiment::{
    ArmRecord, ComparisonRecord, ConditionRecord, ExperimentRecord, LabRecord, Series,
    SummaryRecord, Verdict,
};

use super::{plot, scaling, table};
use crate::{
    page::{self, escape},
    plot::css,
};

/// Arms whose settings are shown without a click.
const ARMS_SHOWN: usize = 8;

/// Returns the whole page.
pub(super) fn page(record: &LabRecord) -> Result<String> {
    let mut page = page::begin("quietline lab");
    let machine = table::machine(&record.machine, &record.version);
    let _ = writeln!(page, "<p>{}</p>", escape(&machine));
    if let Some(sentence) = table::jobs(record) {
        let _ = writeln!(page, "<p>{}</p>", escape(&sentence));
    }
    let _ = writeln!(
        page,
        "<p>Repeat with <code>{}</code>. <code>lab.json</code> and <code>lab.csv</code> beside this page \
         have every run.</p>",
        escape(&record.repeat)
    );
    overview(&mut page, record);
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
    scaling::section(&mut page, record)?;
    page.push_str(page::END);
    Ok(page)
}

/// Verdicts of every experiment, counted.
fn overview(page: &mut String, record: &LabRecord) {
    const VERDICTS: [Verdict; 6] = [
        Verdict::Better,
        Verdict::Worse,
        Verdict::Equivalent,
        Verdict::NoDifference,
        Verdict::NotSignificant,
        Verdict::Invalid,
    ];
    page.push_str("<table><thead><tr><th>experiment</th><th>comparisons</th>");
    for verdict in VERDICTS {
        let _ = write!(page, "<th>{}</th>", verdict.words());
    }
    page.push_str("</tr></thead><tbody>\n");
    for experiment in &record.experiments {
        let (name, title) = (escape(&experiment.name), escape(&experiment.title));
        let count = experiment.comparisons.len();
        let _ = write!(
            page,
            "<tr><td><a href=\"#{name}\">{title}</a></td><td data-name=\"comparisons\">{count}</td>"
        );
        for verdict in VERDICTS {
            let own = experiment.comparisons.iter().filter(|own| own.verdict == verdict).count();
            let words = verdict.words();
            let class = if verdict == Verdict::Invalid && own > 0 { " class=\"bad\"" } else { "" };
            let _ = write!(page, "<td data-name=\"{words}\"><span{class}>{own}</span></td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table>\n");
}

/// One experiment with its tables and plots.
pub(crate) fn section(page: &mut String, experiment: &ExperimentRecord) -> Result<()> {
    let (name, title) = (escape(&experiment.name), escape(&experiment.title));
    let _ = writeln!(page, "<h2 id=\"{name}\">{title}</h2>");
    for (name, text) in [
        ("Claim", &experiment.claim),
        ("Workload", &experiment.workload),
        ("Limits", &experiment.limits),
        ("Method", &table::method(experiment)),
    ] {
        if !text.is_empty() {
            let _ = writeln!(page, "<p><strong>{name}.</strong> {}</p>", escape(text));
        }
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
    for (place, condition) in experiment.conditions.iter().enumerate() {
        details(page, experiment, condition, place == 0)?;
    }
    Ok(())
}

/// A plot for a page and the same for a phone.
fn both(page: &mut String, [wide, narrow]: &[String; 2], caption: &str) {
    let _ = writeln!(
        page,
        "<figure><div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>\
         <figcaption>{}</figcaption></figure>",
        escape(caption)
    );
}

/// The arms with their colors and settings.
fn arms(page: &mut String, experiment: &ExperimentRecord) {
    let Some(condition) = experiment.conditions.first() else { return };
    // A long table can be folded.
    let count = condition.arms.len();
    let is_long = count > ARMS_SHOWN;
    if is_long {
        let _ = write!(page, "<details><summary>{count} arms and their settings</summary>");
    }
    page.push_str(
        "<table class=\"text\"><thead><tr><th>arm</th><th>settings</th></tr></thead><tbody>\n",
    );
    for (place, arm) in condition.arms.iter().enumerate() {
        let settings: Vec<_> =
            arm.settings.iter().map(|(name, value)| escape(&format!("{name}={value}"))).collect();
        let settings = if settings.is_empty() { vec!["defaults".to_owned()] } else { settings };
        let _ = writeln!(
            page,
            "<tr><td>{}{}</td><td data-name=\"settings\"><span>{}</span></td></tr>",
            dot(place),
            escape(&arm.name),
            settings.join("<br>"),
        );
    }
    page.push_str(if is_long { "</tbody></table></details>\n" } else { "</tbody></table>\n" });
}

/// A square of the color of an arm.
pub(super) fn dot(arm: usize) -> String {
    format!("<i class=\"dot\" style=\"background:{}\"></i>", css(arm))
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
    let p = record.p_holm.map_or_else(String::new, |_| {
        format!("<br><small>{}</small>", escape(&table::p_value(record.p_holm)))
    });
    let welch = record.welch.map_or_else(String::new, |welch| {
        format!("<br><small>Welch {:.3} / {:.3}</small>", welch.p_two, welch.p_one)
    });
    let detectable = record.detectable.map_or_else(String::new, |part| {
        format!("<br><small>detectable {:.1} %</small>", part * 100.0)
    });
    let _ = writeln!(
        page,
        "<tr><td>{number}. {}<br><small>{} → {}</small></td><td data-name=\"metric\">{}</td>\
         <td data-name=\"baseline\"><span>{}</span></td>\
         <td data-name=\"arm\"><span>{}</span></td>\
         <td data-name=\"ratio\"><span>{ratio}<br><small>{interval}</small></span></td>\
         <td data-name=\"verdict\"><span><span{class}>{}</span>{p}{welch}{detectable}\
         </span></td></tr>",
        escape(&record.condition),
        escape(&record.baseline),
        escape(&record.arm),
        escape(&table::named(record)),
        side(record.baseline_summary.as_ref()),
        side(record.arm_summary.as_ref()),
        record.verdict.words(),
    );
}

/// The plots of one condition, which a reader can fold.
fn details(
    page: &mut String,
    experiment: &ExperimentRecord,
    condition: &ConditionRecord,
    is_open: bool,
) -> Result<()> {
    let open = if is_open { " open" } else { "" };
    let _ = writeln!(page, "<details{open}><summary>{}</summary>", escape(&condition.name));
    let _ = write!(page, "<p class=\"note\">{}.", escape(&page::sentence(&condition.description)));
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
    let numbered = experiment.comparisons.iter().enumerate().map(|(place, own)| (place + 1, own));
    let own: Vec<_> = numbered.filter(|(_, own)| own.condition == condition.name).collect();
    if let Some(plots) = plot::ratios(&own)? {
        both(
            page,
            &plots,
            "Ratio of the means, arm / baseline, with its 95 % bootstrap interval, by the number of the \
             comparison.",
        );
    }
    for (place, metric) in experiment.metrics.iter().enumerate() {
        let is_compared = experiment.comparisons.iter().any(|record| record.metric == metric.name);
        let name = metric.name.replace('_', " ");
        let label = if metric.unit.is_empty() { name } else { format!("{name}, {}", metric.unit) };
        if is_compared && let Some(plots) = plot::runs(&condition.arms, place, &label)? {
            let caption = format!(
                "Every run, with median and quartiles of each arm: {}.",
                metric.meaning.trim_end_matches('.')
            );
            both(page, &plots, &caption);
        }
    }
    curves(page, condition)?;
    page.push_str("</details>\n");
    Ok(())
}

/// Quantities over time and distributions, a plot for each with a curve for each arm.
fn curves(page: &mut String, condition: &ConditionRecord) -> Result<()> {
    let Some(first) = condition.arms.first() else { return Ok(()) };
    if first.series.is_empty() {
        return Ok(());
    }
    page.push_str("<div class=\"key\">");
    for (place, arm) in condition.arms.iter().enumerate() {
        let _ = write!(page, "<span>{}{}</span>", dot(place), escape(&arm.name));
    }
    page.push_str("</div>\n<div class=\"plots\">\n");
    for (place, series) in first.series.iter().enumerate() {
        let own = |(arm, record): (usize, _)| Some((arm, series_of(record, place)?));
        let arms: Vec<(usize, &Series)> =
            condition.arms.iter().enumerate().filter_map(own).collect();
        if let Some(svg) = plot::series(&arms)? {
            let over = if series.x_unit == "s" { "over time" } else { "by percentile" };
            let caption = escape(&format!("{} {over}.", page::sentence(&series.name)));
            let _ = writeln!(page, "<figure>{svg}<figcaption>{caption}</figcaption></figure>");
        }
    }
    page.push_str("</div>\n");
    Ok(())
}

fn series_of(arm: &ArmRecord, place: usize) -> Option<&Series> {
    arm.series.get(place)
}
