//! The parts that all HTML pages of the command share. A page is one file: styles and plots are
//! inline.

use crate::output;

/// Styles of the page. Numbers do not wrap. Colors are those of `plot::PALETTE`, and lighter ones
/// on a dark page. Below 48rem each table row becomes a block with named cells, and narrow plots
/// replace wide ones, which would be illegible when scaled down.
const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1f2328;--soft:#57606a;--rule:#d8dee4;--bad:#b00020;--gray:#8c959f;\
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b8578f;--c4:#c98500;--c5:#3f9fd8;--c6:#5a5a5a}\
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e3e7eb;--soft:#9aa4af;--rule:#2f363d;--bad:#ff7b86;--gray:#6e7781;\
--c0:#58a6dd;--c1:#ff8f45;--c2:#2fc49a;--c3:#e29fca;--c4:#f0b429;--c5:#9ad4f7;--c6:#b4bac0}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:var(--fg);background:var(--bg)}\
a{color:var(--c0)}h1{font-size:1.7rem;line-height:1.2}h2{font-size:1.25rem;margin:2.4rem 0 .4rem;padding-top:.8rem;border-top:1px solid var(--rule)}\
h3{font-size:1.05rem;margin:1.6rem 0 .2rem}p{margin:.5rem 0}code{overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums;margin:.8rem 0}\
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top;white-space:nowrap}\
th:first-child,td:first-child,.text th,.text td{text-align:left;white-space:normal}\
figure{margin:0}figcaption{font-size:.9rem;color:var(--soft);margin:.4rem 0 0}\
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));gap:1rem;margin:.6rem 0}\
svg{display:block;max-width:100%;height:auto}\
.key{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;font-size:.92rem;margin:.5rem 0}\
.key i,.dot{display:inline-block;width:.75rem;height:.75rem;border-radius:2px;margin-right:.35rem}\
.q{color:var(--c0);font-weight:600}.k{color:var(--c1);font-weight:600}.bad{color:var(--bad);font-weight:600}\
small,.note{color:var(--soft)}.narrow{display:none}summary{cursor:pointer;margin:1rem 0 .3rem;font-weight:600}\
@media(max-width:48rem){\
body{margin:1rem auto}.wide{display:none}.narrow{display:block}\
table,tbody,tr,td{display:block}thead{display:none}\
tr{border-bottom:1px solid var(--rule);padding:.5rem 0}\
td,td:first-child{border:0;padding:.1rem 0}td:first-child{font-weight:600}\
td[data-name],.text td[data-name]{display:grid;grid-template-columns:7rem 1fr;text-align:left;white-space:normal;overflow-wrap:anywhere}\
td[data-name]::before{content:attr(data-name);color:var(--soft)}td small{display:block}td br{display:none}td small br,.text td br{display:inline}}";

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

/// Returns the text with a capital letter at its beginning.
pub(crate) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

/// Formats a number with narrow no-break spaces between groups of digits.
pub(crate) fn number(value: f64) -> String {
    output::number(value).replace(' ', "\u{202f}")
}
