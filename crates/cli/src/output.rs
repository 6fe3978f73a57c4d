//! Output of the commands: results on stdout, remarks on stderr. Neither reports a closed pipe as
//! an error.

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

/// Returns the object as indented JSON that ends in a newline.
pub(crate) fn json_line(object: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(object).map_err(anyhow::Error::new)?;
    text.push('\n');
    Ok(text)
}

/// Writes one remark to stderr. Errors are ignored: a closed stderr must not fail the command.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes the line that explains a failure.
pub(crate) fn complain(message: &str) {
    remark(&format!("quietline: {}", with_errno(&one_line(message))));
}

/// Replaces the standard library's "(os error 2)" by "(errno 2)", the usual term.
fn with_errno(message: &str) -> String {
    message.replace("(os error ", "(errno ")
}

/// Whether stdout gets ASCII only: it is a pipe or file, whose reader is unknown, or a terminal
/// with a locale other than UTF-8.
pub(crate) fn is_plain() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default()
        .to_ascii_lowercase();
    let is_utf8 = locale.ends_with("utf-8") || locale.ends_with("utf8");
    !(is_utf8 && io::stdout().is_terminal())
}

/// Returns the text in ASCII, with the same width.
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

/// Joins the lines of a message with single spaces, so that scripts read one line per failure.
pub(crate) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Formats counters as `nstat -a` does, one name and value per line; with `zeros`, as `nstat -az`.
pub(crate) fn counter_lines<'a>(
    counters: impl IntoIterator<Item = (&'a str, u64)>,
    zeros: bool,
) -> String {
    let shown = counters.into_iter().filter(|(_, value)| zeros || *value != 0);
    shown.map(|(name, value)| format!("{name:<32}{value}\n")).collect()
}

/// Returns the same counters as a JSON object.
pub(crate) fn counter_object<'a>(
    counters: impl IntoIterator<Item = (&'a str, u64)>,
) -> serde_json::Value {
    counters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), serde_json::Value::from(value)))
        .collect()
}

/// Formats a number with three significant digits and no exponent: 0.123, 12.3, 12 345.
pub(crate) fn number(value: f64) -> String {
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
    fn a_message_of_several_lines_becomes_one_line() {
        assert_eq!(one_line("a b\n  c\n\nd"), "a b c d");
    }

    #[test]
    fn counter_values_are_aligned_in_one_column() {
        let counters = [("TcpInSegs", 7), ("TcpExtTCPTimeouts", 0)];
        let text = counter_lines(counters, true);
        assert_eq!(text.lines().count(), 2);
        assert_eq!(counter_lines(counters, false).lines().count(), 1);
        assert_eq!(text.lines().next().and_then(|line| line.find('7')), Some(32));
    }

    #[test]
    fn system_errors_are_printed_as_errno() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(with_errno(&error.to_string()), "No such file or directory (errno 2)");
    }

    #[test]
    fn ascii_replacement_keeps_the_width() {
        let text = "2 × CPU, 3 µs – 4 ☃";
        assert_eq!(in_ascii(text), "2 x CPU, 3 us - 4 ?");
        assert_eq!(in_ascii(text).len(), text.chars().count());
    }

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        let gone: Result<(), _> = reader_gone(Err(ErrorKind::BrokenPipe.into()));
        assert!(matches!(gone, Err(Failure::ReaderGone)));
        let other: Result<(), _> = reader_gone(Err(ErrorKind::NotFound.into()));
        assert!(matches!(other, Err(Failure::Run(_))));
    }

    #[test]
    fn numbers_are_printed_with_three_significant_digits() {
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
