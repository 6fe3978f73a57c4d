//! The results as tables for a terminal.

use std::{collections::BTreeSet, fmt::Write as _};

use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width,
    presets::{ASCII_FULL_CONDENSED, UTF8_FULL_CONDENSED},
};
use quietline_lab::experiment::{
    CensoredRecord, ComparisonRecord, ExperimentRecord, LabRecord, Machine, SummaryRecord,
};

use crate::output::{self, number};

/// Width of the output: the default width of a terminal.
pub(super) const WIDTH: usize = 80;

/// Returns the text, in ASCII where stdout is no UTF-8 terminal.
pub(super) fn text(record: &LabRecord) -> String {
    let plain = output::is_plain();
    let text = unicode(record, plain);
    if plain { output::in_ascii(&text) } else { text }
}

fn unicode(record: &LabRecord, plain: bool) -> String {
    let mut text = filled(&machine(&record.machine, &record.version));
    for experiment in &record.experiments {
        text.push_str(&self::experiment(experiment, plain));
    }
    text.push('\n');
    text.push_str(&legend());
    if let Some(sentence) = jobs(record) {
        text.push_str(&filled(&sentence));
    }
    text.push_str(&filled(&format!("Repeat with: {}", record.repeat)));
    text
}

/// One experiment: a table for each condition, and what there is to say about them.
pub(crate) fn experiment(experiment: &ExperimentRecord, plain: bool) -> String {
    let mut text = format!("\n{}", filled(&experiment.title));
    if !experiment.claim.is_empty() {
        text.push_str(&filled(&format!("Claim: {}", experiment.claim)));
    }
    text.push_str(&comparisons(experiment, plain));
    text.push_str(&remarks(experiment));
    text.push_str(&filled(&format!("Limits: {}", experiment.limits)));
    text
}

/// How to read the tables.
pub(crate) fn legend() -> String {
    filled(
        "Below each metric: the baseline, then the arms that are compared with it. Medians with their \
         quartiles; the ratio of the means, arm / baseline, with its 95 % bootstrap interval over pairs; \
         the verdict about the arm with the p-value of the permutation test over pairs after Holm's correction. Overlapping \
         quartiles are no difference, whatever a test says.",
    )
}

/// One line about the machine.
pub(super) fn machine(machine: &Machine, version: &str) -> String {
    let load = machine.load.map_or_else(String::new, |[one, ..]| format!(", load {one:.2}"));
    let clock = machine.clock_mhz.map_or_else(String::new, |mhz| format!(" at {mhz:.0} MHz"));
    format!(
        "quietline {version} on {} × {}{clock}{}, Linux {}, clock source {}{load}{}",
        machine.cpus,
        machine.cpu_model,
        if machine.is_virtual { " (virtual machine)" } else { "" },
        machine.kernel,
        machine.clock_source.as_deref().unwrap_or("unknown"),
        if machine.optimized { "" } else { "; UNOPTIMIZED BUILD: times are meaningless" },
    )
}

/// The jobs of a sweep and their machines, in one sentence.
pub(super) fn jobs(record: &LabRecord) -> Option<String> {
    let of = record.jobs.first()?.of;
    let mut machines: Vec<String> = Vec::new();
    for job in &record.jobs {
        let machine = format!("{} × {}", job.machine.cpus, job.machine.cpu_model);
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    let on = match machines.as_slice() {
        [one] => format!("on {one}"),
        several => format!("on machines of {} kinds: {}", several.len(), several.join("; ")),
    };
    Some(format!("{} of the {of} jobs of the plan, {on}.", record.jobs.len()))
}

/// How an experiment was run, in one sentence.
pub(super) fn method(experiment: &ExperimentRecord) -> String {
    let runs = experiment.runs;
    let elapsed = experiment.elapsed_s;
    if experiment.is_virtual {
        return format!("{runs} runs of each arm in virtual time, in {elapsed:.1} s.");
    }
    format!(
        "{runs} runs of each arm, in turns forwards and backwards, each of {:.0} ms after a warm-up of \
         {:.0} ms, in {elapsed:.1} s.",
        experiment.measure_s * 1e3,
        experiment.warm_up_s * 1e3,
    )
}

/// Median and quartiles.
pub(super) fn summary(summary: Option<&SummaryRecord>) -> String {
    summary.map_or_else(
        || "–".to_owned(),
        |SummaryRecord { median, q1, q3, .. }| {
            format!("{} [{}, {}]", number(*median), number(*q1), number(*q3))
        },
    )
}

/// The ratio with its interval.
pub(super) fn ratio(record: &ComparisonRecord) -> [String; 2] {
    record.ratio.map_or_else(
        || ["–".to_owned(), String::new()],
        |ratio| {
            [format!("{:.3}", ratio.estimate), format!("[{:.3}, {:.3}]", ratio.low, ratio.high)]
        },
    )
}

/// A p-value; values below a hundred-thousandth are bounds of the number of resamples.
pub(super) fn p_value(p: Option<f64>) -> String {
    match p {
        Some(p) if p < 0.001 => "p < 0.001".to_owned(),
        Some(p) if p > 0.999 => "p = 1".to_owned(),
        Some(p) => format!("p = {p:.3}"),
        None => String::new(),
    }
}

/// Estimates of runs that reached a ceiling, in words.
pub(super) fn censored(record: &ComparisonRecord, censored: &CensoredRecord) -> String {
    let [below, above] = censored.reached;
    let mean = |place: usize| {
        censored.mean[place].map_or_else(
            || "undefined".to_owned(),
            |[mean, se]| format!("{mean:.3} (standard error {se:.3})"),
        )
    };
    format!(
        "{}, {} / {}: {below} and {above} runs reached {:.3}; estimated means (Cohen 1959) {} and {}{}",
        record.condition,
        record.baseline,
        record.arm,
        censored.ceiling,
        mean(0),
        mean(1),
        censored.p.map_or_else(String::new, |p| format!(", likelihood ratio p = {p:.3}")),
    )
}

/// Why comparisons are invalid, each reason once.
pub(super) fn reasons(experiment: &ExperimentRecord) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let each = experiment.comparisons.iter().flat_map(|comparison| {
        comparison.reasons.iter().map(|reason| format!("{}: {reason}", comparison.condition))
    });
    each.filter(|reason| seen.insert(reason.clone())).collect()
}

/// A heading and a table for each condition: the condition's name is too long for a column.
fn comparisons(experiment: &ExperimentRecord, plain: bool) -> String {
    let mut text = String::new();
    for condition in &experiment.conditions {
        let own = experiment.comparisons.iter().filter(|own| own.condition == condition.name);
        let _ = write!(text, "\n{}", filled(&condition.name));
        if let Some(error) = &condition.error {
            text.push_str(&filled(&format!("FAILED: {error}")));
        }
        let _ = writeln!(text, "{}", rows(own, plain));
    }
    text
}

/// Rows of one condition: for each metric and baseline, the baseline and the arms below it.
fn rows<'r>(comparisons: impl Iterator<Item = &'r ComparisonRecord>, plain: bool) -> String {
    let mut groups: Vec<Vec<&ComparisonRecord>> = Vec::new();
    for record in comparisons {
        let same = |own: &&mut Vec<&ComparisonRecord>| {
            own.iter().all(|own| own.metric == record.metric && own.baseline == record.baseline)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    let mut table = Table::new();
    table.load_style(if plain { ASCII_FULL_CONDENSED } else { UTF8_FULL_CONDENSED });
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(WIDTH).unwrap_or(80));
    table.set_header(["metric, arms", "median [quartiles]", "ratio\n[95 %]", "verdict\np"]);
    // The names of most arms, an interval, and a verdict stay on one line each.
    for (column, least) in [(0, 19), (2, 16), (3, 17)] {
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let median = |of: Option<&SummaryRecord>| right(unbroken(&summary(of)));
    for group in groups {
        let Some(first) = group.first() else { continue };
        table.add_row([Cell::new(named(first))]);
        table.add_row([
            Cell::new(format!("  {}", first.baseline)),
            median(first.baseline_summary.as_ref()),
        ]);
        for record in group {
            let [value, interval] = ratio(record);
            let p = p_value(record.p_holm);
            table.add_row([
                Cell::new(format!("  {}", record.arm)),
                median(record.arm_summary.as_ref()),
                right(format!("{value}\n{interval}")),
                Cell::new(format!("{}\n{p}", record.verdict.words())),
            ]);
        }
    }
    table.to_string().replace(NO_BREAK, " ")
}

/// No-break space, which keeps the digits of a number together until the table is laid out.
const NO_BREAK: char = '\u{a0}';

/// The text without breaks between the digits of its numbers.
fn unbroken(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        let in_number = before.is_ascii_digit() && chars.peek().is_some_and(char::is_ascii_digit);
        whole.push(if c == ' ' && in_number { NO_BREAK } else { c });
        before = c;
    }
    whole
}

/// The metric with its unit.
pub(super) fn named(record: &ComparisonRecord) -> String {
    let metric = record.metric.replace('_', " ");
    if record.unit.is_empty() { metric } else { format!("{metric}, {}", record.unit) }
}

fn remarks(experiment: &ExperimentRecord) -> String {
    let mut text = String::new();
    for reason in reasons(experiment) {
        text.push_str(&filled(&format!("Invalid: {reason}")));
    }
    for record in &experiment.comparisons {
        if let Some(estimates) = &record.censored {
            text.push_str(&filled(&censored(record, estimates)));
        }
    }
    let detectable = experiment.comparisons.iter().filter_map(|record| record.detectable);
    let most = detectable.fold(0.0, f64::max);
    text.push_str(&filled(&format!(
        "{} Every comparison would find a difference of {:.1} % with a probability of 80 %.",
        method(experiment),
        most * 100.0,
    )));
    text
}

/// Wraps a paragraph at the width.
pub(crate) fn filled(paragraph: &str) -> String {
    let options = textwrap::Options::new(WIDTH).subsequent_indent("  ");
    format!("{}\n", textwrap::fill(paragraph, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_output_fits_the_width() {
        let mut record = super::super::tests::record();
        record.machine.cpu_model = "A Processor(R) With A Long Name 9999X".repeat(2);
        let long = "gro off, busy 50, normal_only 8".to_owned();
        record.experiments[0].comparisons[0].arm = long;
        for plain in [true, false] {
            for line in unicode(&record, plain).lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
        assert!(output::in_ascii(&unicode(&record, true)).is_ascii());
    }

    #[test]
    fn the_words_of_the_verdicts_are_in_the_table() {
        let text = unicode(&super::super::tests::record(), true);
        assert!(text.contains("better") && text.contains("invalid"), "{text}");
        assert!(text.contains("Invalid: 100M, 1 sender"), "{text}");
        assert!(text.contains("quietline lab tsq --seed 1"), "{text}");
    }
}
