//! What every HTML page of the command has in common. A page is one file: styles and plots are
//! inline.

use crate::output;

/// Styles of the page. Numbers do not wrap. Below 40rem (a phone), each table row becomes a block
/// with named cells, and the narrow ratio plot replaces the wide one, which would be illegible when
/// scaled down.
const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin:2rem 0 .3rem}\
table{border-collapse:collapse;width:100%;font-size:.92rem}\
th,td{padding:.35rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top;white-space:nowrap}\
th:first-child,td:first-child{text-align:left;white-space:normal}\
.plots{display:flex;flex-wrap:wrap;gap:1rem}svg{max-width:100%;height:auto}\
.q{color:#0072b2;font-weight:600}.k{color:#d55e00;font-weight:600}.bad{color:#b00020;font-weight:600}\
small,.note{color:#555}.narrow{display:none}\
@media(max-width:40rem){\
body{margin:1rem auto}.wide{display:none}.narrow{display:block}\
table,tbody,tr,td{display:block}thead{display:none}\
tr{border-bottom:1px solid #ddd;padding:.5rem 0}\
td,td:first-child{border:0;padding:.1rem 0}td:first-child{font-weight:600}\
td[data-name]{display:grid;grid-template-columns:7rem 1fr;text-align:left}\
td[data-name]::before{content:attr(data-name);color:#555}td small{display:block}td br{display:none}}";

/// End of a page.
pub(crate) const END: &str = "</body></html>\n";

/// Returns the beginning of a page with this title and heading.
pub(crate) fn begin(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
    )
}

/// Replaces the characters that HTML gives a meaning.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a number with narrow no-break spaces between groups of digits.
pub(crate) fn number(value: f64) -> String {
    output::number(value).replace(' ', "\u{202f}")
}
