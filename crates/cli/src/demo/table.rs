//! The results as a table for a terminal.

use std::fmt::Write as _;

use comfy_table::{
    Cell, CellAlignment, Table,
    presets::{ASCII_FULL_CONDENSED, UTF8_FULL_CONDENSED},
};

use super::{
    environment::Environment,
    run::{DemoResult, Outcome, Series},
};
use crate::output::{self, number};

/// Width of the output: the default width of a terminal.
const WIDTH: usize = 80;

/// Character set of stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Characters {
    /// For a terminal with a UTF-8 locale.
    Unicode,
    /// For any other output.
    Ascii,
}

impl Characters {
    /// Symbol of the median absolute deviation, because words would be too long.
    fn plus_minus(self) -> &'static str {
        match self {
            Self::Unicode => "±",
            Self::Ascii => "+-",
        }
    }
}

/// Returns the table, remarks and a legend.
pub(super) fn text(
    result: &DemoResult,
    environment: &Environment,
    characters: Characters,
) -> String {
    let mut text = filled(&environment.sentence());
    let _ = write!(text, "\n{}\n\n", rates(result, characters));
    for outcome in &result.outcomes {
        text.push_str(&remarks(outcome));
    }
    let note = format!(
        "Rates are medians of slices of {:.0} ms, with their median absolute deviation below. The two \
         sides are interleaved over {} rounds in {:.1} s; seed {}. Ratio: quietline / kernel, with its \
         95 % bootstrap interval below; above 1 quietline is faster. Cores: CPU seconds per second of \
         both ends together, with the number of slices per side below.",
        result.plan.slice_seconds * 1e3,
        result.rounds,
        result.elapsed.as_secs_f64(),
        result.plan.seed,
    );
    text.push('\n');
    text.push_str(&filled(&note));
    if let Some(settings) = result.plan.settings() {
        text.push_str(&filled(&format!("Settings: {settings}.")));
    }
    match characters {
        Characters::Unicode => text,
        Characters::Ascii => output::in_ascii(&text),
    }
}

/// Returns the counters of the quietline hosts for each workload; `zeros`: include counters that
/// are zero.
pub(super) fn counters(result: &DemoResult, zeros: bool) -> String {
    let mut text = String::new();
    for own in &result.counters {
        let _ = writeln!(text, "\n#{} {}", own.workload.name(), own.host);
        text.push_str(&output::counter_lines(own.counters.iter().copied(), zeros));
    }
    text
}

/// Wraps a paragraph at the width.
fn filled(paragraph: &str) -> String {
    let options = textwrap::Options::new(WIDTH).subsequent_indent("  ");
    format!("{}\n", textwrap::fill(paragraph, options.break_words(false)))
}

/// Builds the table with two lines per row, so that it fits the width.
fn rates(result: &DemoResult, characters: Characters) -> Table {
    let mut table = Table::new();
    table.load_style(match characters {
        Characters::Unicode => UTF8_FULL_CONDENSED,
        Characters::Ascii => ASCII_FULL_CONDENSED,
    });
    table.set_header(["workload", "quietline", "kernel", "ratio\n[95 %]", "cores q/k\nslices"]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for outcome in &result.outcomes {
        let kernel = outcome.kernel.as_ref();
        let unit = outcome.workload.unit_short();
        let rate = |series: &Series| rate(series, unit, characters);
        let cores = format!("{} / {}", cores(Some(&outcome.quietline)), cores(kernel));
        table.add_row([
            Cell::new(outcome.workload.title().replacen(", ", ",\n", 1)),
            right(rate(&outcome.quietline)),
            right(kernel.map_or_else(|| "n/a".to_owned(), rate)),
            right(ratio(outcome, result.plan.seed)),
            right(format!("{cores}\n{}", outcome.quietline.rates.len())),
        ]);
    }
    table
}

fn rate(series: &Series, unit: &str, characters: Characters) -> String {
    match series.summary() {
        Some(summary) => format!(
            "{} {unit}\n{} {}",
            number(summary.median),
            characters.plus_minus(),
            number(summary.mad)
        ),
        None => "failed".to_owned(),
    }
}

fn ratio(outcome: &Outcome, seed: u64) -> String {
    // Two decimals show how far a small ratio is from 1; a large ratio needs none.
    let short = |value: f64| if value < 10.0 { format!("{value:.2}") } else { number(value) };
    match outcome.ratio(seed) {
        Some(ratio) => {
            format!("{}\n[{}, {}]", short(ratio.value), short(ratio.low), short(ratio.high))
        }
        None => "–".to_owned(),
    }
}

fn cores(series: Option<&Series>) -> String {
    match series.and_then(Series::cores) {
        Some(cores) if cores < 9.95 => format!("{cores:.1}"),
        Some(cores) => format!("{cores:.0}"),
        None => "–".to_owned(),
    }
}

fn remarks(outcome: &Outcome) -> String {
    let mut text = String::new();
    let mut remark = |remark: String| {
        text.push_str(&filled(&format!("{}: {remark}", outcome.workload.name())));
    };
    if let Some(error) = &outcome.error {
        remark(format!("FAILED: {error}"));
    }
    if let Some(reason) = outcome.workload.without_kernel() {
        remark(format!("kernel {reason}"));
    }
    if let Some(content) = &outcome.content {
        remark(format!(
            "{:.1} MB in {} transfers, checksums {} (last one {:016x} sent, {:016x} received)",
            megabytes(content.bytes),
            content.transfers,
            if content.ok() { "equal" } else { "DIFFER" },
            content.sent,
            content.received,
        ));
    }
    let latency = |series: &Series| {
        let [p50, p99] = [50.0, 99.0].map(|percentile| series.latency_us(percentile));
        Some(format!("{} / {}", number(p50?), number(p99?)))
    };
    if let Some(quietline) = latency(&outcome.quietline) {
        let kernel = outcome.kernel.as_ref().and_then(latency);
        let kernel = kernel.map_or_else(String::new, |kernel| format!(", kernel {kernel}"));
        remark(format!("latency p50 / p99 in µs: quietline {quietline}{kernel}"));
    }
    text
}

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let megabytes = bytes as f64 / 1e6;
    megabytes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{
            run::{ContentCheck, Plan},
            workload::Workload,
        },
        *,
    };

    /// Returns results of every workload, with numbers as wide as real ones can be.
    fn result() -> DemoResult {
        let series = |rate: f64| Series {
            rates: vec![rate, rate * 3.0, rate * 0.001],
            cores: vec![12.3; 3],
            latency: None,
        };
        let outcomes = Workload::all().map(|workload| {
            let rate = if workload.unit_short() == "/s" { 1_234_567.0 } else { 123.4 };
            Outcome {
                workload,
                quietline: series(rate),
                kernel: workload.without_kernel().is_none().then(|| series(rate / 12.0)),
                content: workload.without_kernel().map(|_| ContentCheck::default()),
                error: Some("quietline: a long story of what went wrong, ".repeat(4)),
            }
        });
        let workloads = Workload::all().collect();
        let sysctl = "net.quietline.rx_context=prequeue_drop_limited".parse().expect("a setting");
        let sysctl = vec![sysctl; 3];
        DemoResult {
            plan: Plan { seconds: 12.0, seed: u64::MAX, workloads, slice_seconds: 0.25, sysctl },
            outcomes: outcomes.collect(),
            rounds: 40,
            elapsed: Duration::from_secs(3600),
            counters: Vec::new(),
        }
    }

    #[test]
    fn every_line_of_the_output_fits_the_width() {
        let mut environment = Environment::read();
        environment.cpu_model = "A Processor(R) With A Long Name CPU 9999X @ 9.99GHz ".repeat(2);
        for characters in [Characters::Unicode, Characters::Ascii] {
            let text = text(&result(), &environment, characters);
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
            assert_eq!(text.is_ascii(), characters == Characters::Ascii, "{text}");
        }
    }
}
