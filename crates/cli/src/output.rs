//! Everything the commands print: results to stdout, remarks to stderr, both quiet about a closed pipe.

use std::io::{self, ErrorKind, IsTerminal as _, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Writes a result to stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    reader_gone(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes one JSON object and a newline to stdout.
pub(crate) fn print_json(object: &impl Serialize) -> Result<(), Failure> {
    print(&json_line(object)?)
}

/// The object as indented JSON that ends in a newline.
pub(crate) fn json_line(object: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(object).map_err(anyhow::Error::new)?;
    text.push('\n');
    Ok(text)
}

/// Writes one remark to stderr. A closed stderr is nothing to fail for.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes the one line that explains a failure.
pub(crate) fn complain(message: &str) {
    remark(&format!("quietline: {}", with_errno(&one_line(message))));
}

/// The standard library's text of a system error ends in "(os error 2)"; the system's word for the number is errno.
fn with_errno(message: &str) -> String {
    message.replace("(os error ", "(errno ")
}

/// Whether stdout takes ASCII only: a pipe or a file, whose reader is unknown, or a terminal of a locale without UTF-8.
pub(crate) fn is_plain() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default()
        .to_ascii_lowercase();
    let is_utf8 = locale.ends_with("utf-8") || locale.ends_with("utf8");
    !(is_utf8 && io::stdout().is_terminal())
}

/// The same text in ASCII, of the same width.
pub(crate) fn in_ascii(text: &str) -> String {
    let plain = |c: char| match c {
        '–' => '-',
        '×' => 'x',
        'µ' => 'u',
        _ if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(plain).collect()
}

/// Turns a broken pipe into `Failure::ReaderGone`.
pub(crate) fn reader_gone<T>(result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => error.into(),
    })
}

/// Joins the lines of a message with single spaces, so that scripts see one line per failure.
pub(crate) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Counters the way `nstat -a` shows them: a name, its value, one a line; with `zeros` as `nstat -az`.
pub(crate) fn counter_lines<'a>(
    counters: impl IntoIterator<Item = (&'a str, u64)>,
    zeros: bool,
) -> String {
    let shown = counters.into_iter().filter(|(_, value)| zeros || *value != 0);
    shown.map(|(name, value)| format!("{name:<32}{value}\n")).collect()
}

/// The same counters as a JSON object.
pub(crate) fn counter_object<'a>(
    counters: impl IntoIterator<Item = (&'a str, u64)>,
) -> serde_json::Value {
    counters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), serde_json::Value::from(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line() {
        assert_eq!(one_line("a b\n  c\n\nd"), "a b c d");
    }

    #[test]
    fn counters_line_up() {
        let counters = [("TcpInSegs", 7), ("TcpExtTCPTimeouts", 0)];
        let text = counter_lines(counters, true);
        assert_eq!(text.lines().count(), 2);
        assert_eq!(counter_lines(counters, false).lines().count(), 1);
        assert_eq!(text.lines().next().and_then(|line| line.find('7')), Some(32));
    }

    #[test]
    fn system_errors_have_one_style() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(with_errno(&error.to_string()), "No such file or directory (errno 2)");
    }

    #[test]
    fn ascii_keeps_the_width() {
        let text = "2 × CPU, 3 µs – 4 ☃";
        assert_eq!(in_ascii(text), "2 x CPU, 3 us - 4 ?");
        assert_eq!(in_ascii(text).len(), text.chars().count());
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let gone: Result<(), _> = reader_gone(Err(ErrorKind::BrokenPipe.into()));
        assert!(matches!(gone, Err(Failure::ReaderGone)));
        let other: Result<(), _> = reader_gone(Err(ErrorKind::NotFound.into()));
        assert!(matches!(other, Err(Failure::Run(_))));
    }
}
