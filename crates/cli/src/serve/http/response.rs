//! Responses: a status line, header lines, and short content.

use std::{fmt::Write as _, io, time::SystemTime};

use super::{connection::Connection, date::http_date, error::Refusal};
use crate::endpoint::Stream;

/// A response with its content in memory. For a file, only the head is built here.
#[derive(Debug)]
pub(super) struct Response {
    status: u16,
    headers: String,
    length: Option<u64>,
    content: Vec<u8>,
    keep_alive: bool,
}

impl Response {
    /// Creates a response with a status only.
    pub(super) fn empty(status: u16) -> Self {
        Self {
            status,
            headers: String::new(),
            length: None,
            content: Vec::new(),
            keep_alive: false,
        }
    }

    /// Creates a response whose content of `length` bytes the caller sends.
    pub(super) fn with_length(status: u16, length: u64) -> Self {
        Self { length: Some(length), ..Self::empty(status) }
    }

    /// Creates a response with content of a media type.
    pub(super) fn content(status: u16, media_type: &str, content: Vec<u8>) -> Self {
        let response = Self::with_length(status, content.len() as u64);
        Self { content, ..response }.header("Content-Type", media_type)
    }

    /// Creates a response with a short text.
    pub(super) fn text(status: u16, text: &str) -> Self {
        Self::content(status, "text/plain; charset=utf-8", text.as_bytes().to_vec())
    }

    /// Creates an error response.
    pub(super) fn refusal(refusal: &Refusal) -> Self {
        let text = format!("{} {}: {}\n", refusal.status, phrase(refusal.status), refusal.reason);
        let response = Self::text(refusal.status, &text);
        match &refusal.header {
            Some((name, value)) => response.header(name, value),
            None => response,
        }
    }

    /// Adds a header line.
    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        let _ = write!(self.headers, "{name}: {value}\r\n");
        self
    }

    /// Sets whether the connection is kept.
    pub(super) fn keep_alive(self, keep_alive: bool) -> Self {
        Self { keep_alive, ..self }
    }

    /// Returns the status line and the header lines.
    pub(super) fn head(&self) -> String {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nServer: quietline\r\nDate: {}\r\n{}",
            self.status,
            phrase(self.status),
            http_date(SystemTime::now()),
            self.headers,
        );
        if let Some(length) = self.length {
            let _ = write!(head, "Content-Length: {length}\r\n");
        }
        let connection = if self.keep_alive { "keep-alive" } else { "close" };
        let _ = write!(head, "Connection: {connection}\r\n\r\n");
        head
    }

    /// Sends the response in one write; a response to HEAD without its content.
    pub(super) fn send<S: Stream>(
        self,
        connection: &mut Connection<S>,
        with_content: bool,
    ) -> io::Result<()> {
        let mut bytes = self.head().into_bytes();
        if with_content {
            bytes.extend_from_slice(&self.content);
        }
        connection.write_all(&bytes)
    }
}

/// Returns the reason phrase of RFC 9110 §15 for a status used here.
fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Unknown",
    }
}
