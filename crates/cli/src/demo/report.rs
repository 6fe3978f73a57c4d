//! The results as one self-contained HTML page: styles and plots are inline.

use std::fmt::Write as _;

use anyhow::Result;

use super::{
    environment::Environment,
    plot,
    run::{DemoResult, Outcome, Series},
};
use crate::{
    page::{self, escape, number},
    stats::Ratio,
};

/// Returns the whole page.
pub(super) fn page(result: &DemoResult, environment: &Environment) -> Result<String> {
    let mut page = page::begin("quietline demo");
    let _ = writeln!(page, "<p>{}</p>", escape(&environment.sentence()));
    method(&mut page, result);
    if let Some(settings) = result.plan.settings() {
        let _ = writeln!(page, "<p>Settings: {}.</p>", escape(&settings));
    }
    rates(&mut page, result);
    if let Some([wide, narrow]) = plot::ratios(result)? {
        let _ = write!(
            page,
            "<h2>Ratio to the kernel's loopback</h2>\n<p class=\"note\">Points are ratios of medians, bars \
             their 95 % bootstrap intervals. To the right of the line, quietline is faster.</p>\n\
             <div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>\n"
        );
    }
    for outcome in &result.outcomes {
        details(&mut page, outcome)?;
    }
    page.push_str(page::END);
    Ok(page)
}

fn method(page: &mut String, result: &DemoResult) {
    let _ = writeln!(
        page,
        "<p><span class=\"q\">quietline</span>: two stacks in this process, connected by a wire in memory. \
         <span class=\"k\">kernel</span>: two sockets of this process on the loopback interface, as the \
         system has configured it. Both run the same program above the socket. Slices of {:.0} ms, of which the \
         first {:.0} % are not measured, alternate between the two over {} rounds in {:.1} s; seed {}.</p>",
        result.plan.slice_seconds * 1e3,
        super::run::WARMUP_SHARE * 100.0,
        result.rounds,
        result.elapsed.as_secs_f64(),
        result.plan.seed,
    );
}

fn rates(page: &mut String, result: &DemoResult) {
    page.push_str(
        "<table><thead><tr><th>workload</th><th>unit</th><th>quietline</th><th>kernel</th><th>ratio</th>\
         <th>cores q / k</th><th>n</th></tr></thead><tbody>\n",
    );
    for outcome in &result.outcomes {
        let ratio = outcome.ratio(result.plan.seed).map_or_else(
            || "–".to_owned(),
            |ratio| {
                let Ratio { value, low, high } = ratio;
                format!("<span>{value:.2}<br><small>{low:.2} – {high:.2}</small></span>")
            },
        );
        let cores = |series: Option<&Series>| {
            series
                .and_then(Series::cores)
                .map_or_else(|| "–".to_owned(), |cores| format!("{cores:.1}"))
        };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td data-name=\"unit\">{}</td><td data-name=\"quietline\">{}</td>\
             <td data-name=\"kernel\">{}</td><td data-name=\"ratio\">{ratio}</td>\
             <td data-name=\"cores q / k\">{} / {}</td><td data-name=\"n\">{}</td></tr>",
            outcome.workload.title(),
            outcome.workload.unit(),
            side(&outcome.quietline),
            outcome.kernel.as_ref().map_or_else(|| "not applicable".to_owned(), side),
            cores(Some(&outcome.quietline)),
            cores(outcome.kernel.as_ref()),
            outcome.quietline.rates.len(),
        );
    }
    page.push_str(
        "</tbody></table>\n<p class=\"note\">Median ± median absolute deviation, with the quartiles below. \
         n: slices per side. Cores: CPU seconds per second of both ends together.</p>\n",
    );
}

fn side(series: &Series) -> String {
    series.summary().map_or_else(
        || "<span class=\"bad\">failed</span>".to_owned(),
        |summary| {
            format!(
                "<span>{} ± {}<br><small>{} – {}</small></span>",
                number(summary.median),
                number(summary.mad),
                number(summary.q1),
                number(summary.q3),
            )
        },
    )
}

fn details(page: &mut String, outcome: &Outcome) -> Result<()> {
    let _ = write!(
        page,
        "<h2>{}</h2>\n<p class=\"note\">{}.</p>\n",
        outcome.workload.title(),
        outcome.workload.description(),
    );
    if let Some(error) = &outcome.error {
        let _ = writeln!(page, "<p class=\"bad\">Failed: {}</p>", escape(error));
    }
    if let Some(reason) = outcome.workload.without_kernel() {
        let _ = writeln!(page, "<p class=\"note\">Kernel {reason}.</p>");
    }
    if let Some(content) = &outcome.content {
        let verdict = if content.ok() { "equal" } else { "<span class=\"bad\">different</span>" };
        let _ = writeln!(
            page,
            "<p>{} bytes in {} transfers; checksums at both ends {verdict}.</p>",
            content.bytes, content.transfers,
        );
    }
    page.push_str("<div class=\"plots\">\n");
    for (caption, svg) in [
        ("Rate of each slice; lines are the medians, bands the quartiles.", plot::slices(outcome)?),
        (
            "Latency of a transaction; each step to the right is ten times rarer.",
            plot::latency(outcome)?,
        ),
    ] {
        if let Some(svg) = svg {
            let _ = writeln!(page, "<figure>{svg}<figcaption>{caption}</figcaption></figure>");
        }
    }
    page.push_str("</div>\n");
    Ok(())
}
