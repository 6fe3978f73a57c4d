//! Request heads: parsing and validation (RFC 9112 §2-§6).

use std::io::ErrorKind;

use super::{
    connection::Connection,
    date::{self, HttpDate},
    error::{Refusal, RequestError},
};
use crate::endpoint::Stream;

/// Most header lines of one request.
const HEADERS_MAX: usize = 64;

/// A request whose head was accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Method of the request.
    pub(super) method: Method,
    /// Decoded path below the root: components joined by `/`. No component is empty, and none
    /// begins with a dot except `.well-known`.
    pub(super) path: Vec<u8>,
    /// The target ends in a slash: it names a directory.
    pub(super) names_directory: bool,
    /// Path as the client wrote it, for redirects.
    pub(super) raw_path: String,
    /// Framing of the body.
    pub(super) body: Body,
    /// Requested byte range.
    pub(super) range: Option<Range>,
    /// Condition of the range.
    pub(super) if_range: IfRange,
    /// Date of the client's copy, from `If-Modified-Since`.
    pub(super) modified_since: Option<HttpDate>,
    /// The client waits for `100 Continue`.
    pub(super) expects_continue: bool,
    /// The connection is kept after the response.
    pub(super) keep_alive: bool,
}

/// Result of a check for the next request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The head is complete.
    Request(Box<Request>),
    /// More bytes of the head are needed.
    Wait,
    /// The client closed the connection.
    End,
}

/// Request methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Returns the content of a file.
    Get,
    /// Returns the head of the response only.
    Head,
    /// Stores a file.
    Put,
    /// A method of HTTP that this server does not implement.
    Other,
}

/// Framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// A known length; 0 if there is no body.
    Length(u64),
    /// Chunks, up to one of length 0.
    Chunked,
}

/// Condition of a range (RFC 9110 §13.1.5): a client with a part of a file only wants the rest of
/// the same version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfRange {
    /// No condition.
    Always,
    /// The file must have exactly this date.
    Unchanged(HttpDate),
    /// An entity tag, which files have none of here, or an invalid value.
    Never,
}

impl IfRange {
    /// Whether the range is sent for a file of this date; otherwise the whole file is sent.
    pub(super) fn holds(self, modified: Option<HttpDate>) -> bool {
        match self {
            Self::Always => true,
            Self::Unchanged(date) => modified == Some(date),
            Self::Never => false,
        }
    }
}

/// A byte range (RFC 9110 §14.1.2), not yet limited to the length of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// From a position to the end or to another position, inclusive.
    From(u64, Option<u64>),
    /// The last bytes of the file.
    Last(u64),
}

impl Request {
    /// Returns the next request, if its head has been received completely.
    pub(super) fn read<S: Stream>(connection: &mut Connection<S>) -> Result<Next, RequestError> {
        loop {
            if !connection.buffered().is_empty()
                && let Some((request, used)) = Self::parse(connection.buffered())?
            {
                connection.consume(used);
                return Ok(Next::Request(Box::new(request)));
            }
            if connection.is_full() {
                return Err(Refusal::new(431, "the request head is too large").into());
            }
            match connection.fill_now() {
                Ok(0) => return Ok(Next::End),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.release_buffer();
                    return Ok(Next::Wait);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(RequestError::Gone);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Parses a head. Returns the request and the length of its head; `None` while the head is
    /// incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Refusal> {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Request::new(&mut lines);
        let used = match head.parse(bytes) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Refusal::new(431, "the request has too many header lines"));
            }
            Err(httparse::Error::Version) => {
                return Err(Refusal::new(505, "only HTTP/1.0 and HTTP/1.1 are supported"));
            }
            Err(error) => return Err(Refusal::new(400, format!("bad request: {error}"))),
        };
        let is_1_1 = head.version == Some(1);
        let headers = Headers(head.headers);
        if is_1_1 && headers.all("Host").count() != 1 {
            return Err(Refusal::new(400, "an HTTP/1.1 request has exactly one Host"));
        }
        let method = method(head.method.unwrap_or_default())?;
        let raw_path = raw_path(head.path.unwrap_or_default())?;
        let path = decode_path(raw_path.as_bytes())?;
        let expects_continue = headers.expects_continue()?;
        let request = Self {
            method,
            path,
            names_directory: raw_path.ends_with('/'),
            raw_path: raw_path.to_owned(),
            body: headers.body()?,
            range: headers.range(),
            if_range: headers.if_range(),
            modified_since: headers.modified_since(),
            expects_continue: expects_continue && is_1_1,
            keep_alive: headers.keep_alive(is_1_1),
        };
        if method == Method::Put && headers.all("Content-Range").next().is_some() {
            // RFC 9110 §14.5: storing a part as if it were the whole would corrupt the file.
            return Err(Refusal::new(400, "partial PUT is not supported"));
        }
        Ok(Some((request, used)))
    }

    /// Whether a body follows the head.
    pub(super) fn has_body(&self) -> bool {
        self.body != Body::Length(0)
    }
}

/// The header lines of one request.
struct Headers<'h>(&'h [httparse::Header<'h>]);

impl<'h> Headers<'h> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
        let lines = self.0.iter().filter(move |line| line.name.eq_ignore_ascii_case(name));
        lines.map(|line| line.value.trim_ascii())
    }

    /// Returns the comma-separated elements of all lines of a name.
    fn elements(&self, name: &'static str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
        self.all(name).flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
    }

    /// Determines the framing of the body (RFC 9112 §6.3). Ambiguous framing is refused, because a
    /// proxy may read it differently (request smuggling).
    fn body(&self) -> Result<Body, Refusal> {
        let mut encodings = self.elements("Transfer-Encoding");
        let first = encodings.next();
        let mut lengths = self.elements("Content-Length");
        if let Some(encoding) = first {
            if lengths.next().is_some() {
                return Err(Refusal::new(
                    400,
                    "Content-Length and Transfer-Encoding exclude each other",
                ));
            }
            if !encoding.eq_ignore_ascii_case(b"chunked") || encodings.next().is_some() {
                return Err(Refusal::new(501, "this transfer encoding is not supported"));
            }
            return Ok(Body::Chunked);
        }
        let Some(length) = lengths.next() else {
            return Ok(Body::Length(0));
        };
        if lengths.any(|other| other != length) {
            return Err(Refusal::new(400, "the values of Content-Length differ"));
        }
        match number(length) {
            Some(length) => Ok(Body::Length(length)),
            None => Err(Refusal::new(400, "Content-Length is not a number")),
        }
    }

    fn expects_continue(&self) -> Result<bool, Refusal> {
        match self.all("Expect").next() {
            None => Ok(false),
            Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
            Some(_) => Err(Refusal::new(417, "only 100-continue is supported in Expect")),
        }
    }

    /// Whether the connection persists (RFC 9112 §9.3).
    fn keep_alive(&self, is_1_1: bool) -> bool {
        let has =
            |option: &[u8]| self.elements("Connection").any(|e| e.eq_ignore_ascii_case(option));
        !has(b"close") && (is_1_1 || has(b"keep-alive"))
    }

    /// Returns the date of If-Modified-Since, if it is valid. RFC 9110 §13.1.3: ignored if there is
    /// an If-None-Match, which no file here can match.
    fn modified_since(&self) -> Option<HttpDate> {
        if self.all("If-None-Match").next().is_some() {
            return None;
        }
        self.all("If-Modified-Since").next().and_then(date::parse)
    }

    fn if_range(&self) -> IfRange {
        match self.all("If-Range").next() {
            None => IfRange::Always,
            Some(value) => date::parse(value).map_or(IfRange::Never, IfRange::Unchanged),
        }
    }

    /// Returns the requested range. An invalid range, or several, count as none: RFC 9110 §14.2
    /// lets a server ignore them.
    fn range(&self) -> Option<Range> {
        let value = self.all("Range").next()?;
        let unit_bytes = value.len() > 6 && value[..6].eq_ignore_ascii_case(b"bytes=");
        let range = if unit_bytes { value[6..].trim_ascii() } else { return None };
        let dash = range.iter().position(|byte| *byte == b'-')?;
        let (first, last) = (&range[..dash], &range[dash + 1..]);
        match (first.is_empty(), last.is_empty()) {
            (true, _) => number(last).map(Range::Last),
            (false, true) => number(first).map(|first| Range::From(first, None)),
            (false, false) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Range::From(first, Some(last)))
            }
        }
    }
}

/// Parses digits only: `parse` alone would accept `+1`, which HTTP does not.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

fn method(name: &str) -> Result<Method, Refusal> {
    match name {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        "PUT" => Ok(Method::Put),
        "POST" | "DELETE" | "OPTIONS" | "PATCH" | "TRACE" | "CONNECT" => Ok(Method::Other),
        _ => Err(Refusal::new(501, "this method is not supported")),
    }
}

/// Returns the path of a request target in origin or absolute form (RFC 9112 §3.2), without its
/// query.
fn raw_path(target: &str) -> Result<&str, Refusal> {
    let path = if target.starts_with('/') {
        target
    } else if let Some(rest) = target.strip_prefix("http://") {
        rest.find('/').map_or("/", |slash| &rest[slash..])
    } else {
        return Err(Refusal::new(400, "the request target is not a path"));
    };
    Ok(path.split(['?', '#']).next().unwrap_or(path))
}

/// Percent-decodes and normalizes a path; refuses a path that would leave the root.
fn decode_path(raw: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(*byte);
        if *byte == b'%' {
            let Some((digits, after)) = rest.split_first_chunk::<2>() else {
                return Err(Refusal::new(
                    400,
                    "a percent sign must be followed by two hexadecimal digits",
                ));
            };
            let (Some(high), Some(low)) = (hex(digits[0]), hex(digits[1])) else {
                return Err(Refusal::new(
                    400,
                    "a percent sign must be followed by two hexadecimal digits",
                ));
            };
            decoded.pop();
            decoded.push(high << 4 | low);
            rest = after;
        }
    }
    if decoded.contains(&0) {
        return Err(Refusal::new(400, "a path must not contain zero bytes"));
    }
    // Split after decoding, so that an encoded slash cannot hide a `..`.
    let mut components = Vec::new();
    for component in decoded.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(Refusal::new(403, "a path must not contain '..'")),
            // RFC 8615: the only name with a leading dot that is meant for public access.
            b".well-known" => components.push(component),
            name if name.starts_with(b".") => {
                return Err(Refusal::new(403, "names that begin with a dot are not served"));
            }
            name => components.push(name),
        }
    }
    Ok(components.join(&b'/'))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests;
