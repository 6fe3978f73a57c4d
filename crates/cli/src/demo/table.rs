//! The results as a table for a terminal.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::{
    environment::Environment,
    run::{DemoResult, Outcome, Series},
};
use crate::output;

/// Table, remarks and what the columns mean.
pub(super) fn text(result: &DemoResult, environment: &Environment) -> String {
    let mut text = environment.sentence();
    let _ = write!(text, "\n\n{}\n\n", rates(result));
    for outcome in &result.outcomes {
        text.push_str(&remarks(outcome));
    }
    let _ = writeln!(
        text,
        "\nMedian ± median absolute deviation of n slices of {:.0} ms a side, interleaved over {} rounds in\n\
         {:.1} s; seed {}. Ratio: quietline / kernel with its 95 % bootstrap interval; above 1 quietline is\n\
         faster. Cores: CPU seconds per second of both ends together.",
        result.plan.slice_seconds * 1e3,
        result.rounds,
        result.elapsed.as_secs_f64(),
        result.plan.seed,
    );
    text
}

/// The counters of the quietline hosts.
pub(super) fn counters(result: &DemoResult) -> String {
    let mut text = String::new();
    for (host, counters) in &result.counters {
        let _ = writeln!(text, "\n#{host}");
        text.push_str(&output::counter_lines(counters.iter().copied()));
    }
    text
}

fn rates(result: &DemoResult) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "workload",
        "unit",
        "quietline",
        "kernel loopback",
        "ratio",
        "cores q / k",
        "n",
    ]);
    for outcome in &result.outcomes {
        let kernel = outcome.kernel.as_ref();
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(outcome.workload.title()),
            Cell::new(outcome.workload.unit()),
            right(rate(&outcome.quietline)),
            right(kernel.map_or_else(|| "not applicable".to_owned(), rate)),
            right(ratio(outcome, result.plan.seed)),
            right(format!("{} / {}", cores(Some(&outcome.quietline)), cores(kernel))),
            right(outcome.quietline.rates.len().to_string()),
        ]);
    }
    table
}

fn rate(series: &Series) -> String {
    match series.summary() {
        Some(summary) => format!("{} ± {}", number(summary.median), number(summary.mad)),
        None => "failed".to_owned(),
    }
}

fn ratio(outcome: &Outcome, seed: u64) -> String {
    match outcome.ratio(seed) {
        Some(ratio) => format!("{:.2} [{:.2}, {:.2}]", ratio.value, ratio.low, ratio.high),
        None => "–".to_owned(),
    }
}

fn cores(series: Option<&Series>) -> String {
    series.and_then(Series::cores).map_or_else(|| "–".to_owned(), |cores| format!("{cores:.1}"))
}

fn remarks(outcome: &Outcome) -> String {
    let mut text = String::new();
    let name = outcome.workload.name();
    if let Some(error) = &outcome.error {
        let _ = writeln!(text, "{name}: FAILED: {error}");
    }
    if let Some(reason) = outcome.workload.without_kernel() {
        let _ = writeln!(text, "{name}: kernel {reason}");
    }
    if let Some(content) = &outcome.content {
        let _ = writeln!(
            text,
            "{name}: {:.1} MB in {} transfers, checksums {} (last one {:016x} sent, {:016x} received)",
            megabytes(content.bytes),
            content.transfers,
            if content.ok() { "equal" } else { "DIFFER" },
            content.sent,
            content.received,
        );
    }
    let latency = |series: &Series| {
        let [p50, p99] = [50.0, 99.0].map(|percentile| series.latency_us(percentile));
        Some(format!("{} / {}", number(p50?), number(p99?)))
    };
    if let Some(quietline) = latency(&outcome.quietline) {
        let kernel = outcome.kernel.as_ref().and_then(latency);
        let kernel = kernel.map_or_else(String::new, |kernel| format!(", kernel {kernel}"));
        let _ = writeln!(text, "{name}: latency p50 / p99 in µs: quietline {quietline}{kernel}");
    }
    text
}

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let megabytes = bytes as f64 / 1e6;
    megabytes
}

/// Three significant digits, no exponent: 0.123, 12.3, 12 345.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    let digits = match magnitude {
        _ if magnitude >= 99.95 || magnitude == 0.0 => 0,
        _ if magnitude >= 9.995 => 1,
        _ if magnitude >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if digits > 0 || text.len() < 5 {
        return text;
    }
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.1234, "0.123"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (99.97, "100"),
            (1234.5, "1234"),
            (12345.6, "12 346"),
            (1_234_567.0, "1 234 567"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
