//! Everything the commands print: results to stdout, remarks to stderr, both quiet about a closed pipe.

use std::io::{self, ErrorKind, Write};

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
    remark(&format!("quietline: {}", one_line(message)));
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

/// Counters the way `nstat -az` shows them: a name, its value, one a line.
pub(crate) fn counter_lines<'a>(counters: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    counters.into_iter().map(|(name, value)| format!("{name:<32}{value}\n")).collect()
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
        let text = counter_lines([("TcpInSegs", 7), ("TcpExtTCPTimeouts", 0)]);
        assert_eq!(text.lines().count(), 2);
        assert_eq!(text.lines().next().and_then(|line| line.find('7')), Some(32));
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let gone: Result<(), _> = reader_gone(Err(ErrorKind::BrokenPipe.into()));
        assert!(matches!(gone, Err(Failure::ReaderGone)));
        let other: Result<(), _> = reader_gone(Err(ErrorKind::NotFound.into()));
        assert!(matches!(other, Err(Failure::Run(_))));
    }
}
