//! The results as one HTML page that needs nothing else: styles and plots are inside.

use std::fmt::Write as _;

use anyhow::Result;

use super::{
    environment::Environment,
    plot,
    run::{DemoResult, Outcome, Series},
    table::number,
};

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin:2rem 0 .3rem}\
table{border-collapse:collapse;width:100%;font-size:.92rem}\
th,td{padding:.35rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}\
th:first-child,td:first-child{text-align:left}\
.plots{display:flex;flex-wrap:wrap;gap:1rem}svg{max-width:100%;height:auto}\
.q{color:#0072b2;font-weight:600}.k{color:#d55e00;font-weight:600}.bad{color:#b00020;font-weight:600}\
small,.note{color:#555}";

/// The whole page.
pub(super) fn page(result: &DemoResult, environment: &Environment) -> Result<String> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>quietline demo</title><style>{STYLE}</style></head>\n<body>\n\
         <h1>quietline demo</h1>\n<p>{}</p>\n",
        escape(&environment.sentence())
    );
    method(&mut page, result);
    table(&mut page, result);
    if let Some(svg) = plot::ratios(result)? {
        let _ = write!(
            page,
            "<h2>Ratio to the kernel's loopback</h2>\n<p class=\"note\">Points are ratios of medians, bars \
             their 95 % bootstrap intervals. Above the line quietline is faster.</p>\n{svg}\n"
        );
    }
    for outcome in &result.outcomes {
        details(&mut page, outcome)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn method(page: &mut String, result: &DemoResult) {
    let _ = writeln!(
        page,
        "<p><span class=\"q\">quietline</span>: two stacks in this process, joined by a wire in memory. \
         <span class=\"k\">kernel</span>: two sockets of this process on the loopback interface, as the \
         system has it. Both run the same program above the socket. Slices of {:.0} ms, of which the \
         first {:.0} % are not measured, alternate between the two over {} rounds in {:.1} s; seed {}.</p>",
        result.plan.slice_seconds * 1e3,
        super::run::WARMUP_SHARE * 100.0,
        result.rounds,
        result.elapsed.as_secs_f64(),
        result.plan.seed,
    );
}

fn table(page: &mut String, result: &DemoResult) {
    page.push_str(
        "<table><thead><tr><th>workload</th><th>unit</th><th>quietline</th><th>kernel</th><th>ratio</th>\
         <th>cores q / k</th><th>n</th></tr></thead><tbody>\n",
    );
    for outcome in &result.outcomes {
        let ratio = outcome.ratio(result.plan.seed).map_or_else(
            || "–".to_owned(),
            |ratio| {
                format!("{:.2}<br><small>{:.2} – {:.2}</small>", ratio.value, ratio.low, ratio.high)
            },
        );
        let cores = |series: Option<&Series>| {
            series
                .and_then(Series::cores)
                .map_or_else(|| "–".to_owned(), |cores| format!("{cores:.1}"))
        };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{ratio}</td><td>{} / {}</td><td>{}</td></tr>",
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
        "</tbody></table>\n<p class=\"note\">Median ± median absolute deviation, and below the quartiles. \
         Cores: CPU seconds per second of both ends together.</p>\n",
    );
}

fn side(series: &Series) -> String {
    series.summary().map_or_else(
        || "<span class=\"bad\">failed</span>".to_owned(),
        |summary| {
            format!(
                "{} ± {}<br><small>{} – {}</small>",
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
    for svg in [plot::slices(outcome)?, plot::latency(outcome)?].into_iter().flatten() {
        page.push_str(&svg);
    }
    page.push_str("</div>\n");
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
