//! Request heads: from bytes to values this server acts on (RFC 9112 §2-§6).

use std::io::ErrorKind;

use super::{
    connection::Connection,
    date::{self, HttpDate},
    error::{Refusal, Trouble},
};
use crate::endpoint::Stream;

/// Header lines one request may have.
const HEADERS_MAX: usize = 64;

/// A request whose head was accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// What to do.
    pub(super) method: Method,
    /// The decoded path below the root: components joined by `/`, none of them empty, and none that begins with a dot but
    /// `.well-known`.
    pub(super) path: Vec<u8>,
    /// The target ended in a slash: it names a directory.
    pub(super) names_directory: bool,
    /// The path as the client wrote it, for redirects.
    pub(super) raw_path: String,
    /// How the body is delimited.
    pub(super) body: Body,
    /// The one byte range that was asked for.
    pub(super) range: Option<Range>,
    /// When the range counts.
    pub(super) if_range: IfRange,
    /// The client has the file as it was at this date.
    pub(super) modified_since: Option<HttpDate>,
    /// The client waits for `100 Continue`.
    pub(super) expects_continue: bool,
    /// The connection goes on after the answer.
    pub(super) keep_alive: bool,
}

/// What a look for the next request has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is complete.
    Request(Box<Request>),
    /// More of it has to come.
    Wait,
    /// The client ended the connection.
    End,
}

/// The methods this server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Fetch.
    Get,
    /// Fetch without the content.
    Head,
    /// Store.
    Put,
    /// A method HTTP knows and this server does not do.
    Other,
}

/// How a request's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// No body, or a known length.
    Length(u64),
    /// Chunks, until one of length 0.
    Chunked,
}

/// The condition of a range (RFC 9110 §13.1.5): the client has a part of the file and wants the rest of the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfRange {
    /// There is none.
    Always,
    /// The file must have exactly this date.
    Unchanged(HttpDate),
    /// An entity tag, which no file has here, or what cannot be read.
    Never,
}

impl IfRange {
    /// Whether the range of a file of this date is sent; else the whole file is.
    pub(super) fn holds(self, modified: Option<HttpDate>) -> bool {
        match self {
            Self::Always => true,
            Self::Unchanged(date) => modified == Some(date),
            Self::Never => false,
        }
    }
}

/// A byte range (RFC 9110 §14.1.2), still to be held against a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// From a position to the end or to another position, inclusive.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

impl Request {
    /// The next request, as far as it has come.
    pub(super) fn read<S: Stream>(connection: &mut Connection<S>) -> Result<Next, Trouble> {
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
                    return Err(Trouble::Gone);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Parses a head and says how many bytes it had; `None` when it is not complete yet.
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
                return Err(Refusal::new(505, "only HTTP/1.0 and HTTP/1.1 are spoken here"));
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
            return Err(Refusal::new(400, "a partial PUT is not possible here"));
        }
        Ok(Some((request, used)))
    }

    /// Whether bytes of the request follow its head.
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

    /// The comma-separated elements of all lines of a name.
    fn elements(&self, name: &'static str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
        self.all(name).flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
    }

    /// RFC 9112 §6.3, and strict where two readings would let a request be smuggled past a proxy.
    fn body(&self) -> Result<Body, Refusal> {
        let mut encodings = self.elements("Transfer-Encoding");
        let first = encodings.next();
        let mut lengths = self.elements("Content-Length");
        if let Some(encoding) = first {
            if lengths.next().is_some() {
                return Err(Refusal::new(400, "a request has a length or an encoding, not both"));
            }
            if !encoding.eq_ignore_ascii_case(b"chunked") || encodings.next().is_some() {
                return Err(Refusal::new(501, "this transfer encoding is not known here"));
            }
            return Ok(Body::Chunked);
        }
        let Some(length) = lengths.next() else {
            return Ok(Body::Length(0));
        };
        if lengths.any(|other| other != length) {
            return Err(Refusal::new(400, "a request has one length"));
        }
        match number(length) {
            Some(length) => Ok(Body::Length(length)),
            None => Err(Refusal::new(400, "the length is not a number")),
        }
    }

    fn expects_continue(&self) -> Result<bool, Refusal> {
        match self.all("Expect").next() {
            None => Ok(false),
            Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
            Some(_) => Err(Refusal::new(417, "only 100-continue can be expected")),
        }
    }

    /// RFC 9112 §9.3.
    fn keep_alive(&self, is_1_1: bool) -> bool {
        let has =
            |option: &[u8]| self.elements("Connection").any(|e| e.eq_ignore_ascii_case(option));
        !has(b"close") && (is_1_1 || has(b"keep-alive"))
    }

    /// RFC 9110 §13.1.3: not with If-None-Match, which no file here can match, and only a date that can be read.
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

    /// A range that cannot be read, or more than one, counts as none: RFC 9110 §14.2 lets a server ignore it.
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

/// Digits only: `+1` and ` 1` are numbers to `parse`, not to HTTP.
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
        _ => Err(Refusal::new(501, "this method is not known here")),
    }
}

/// The path of a request target in origin or absolute form (RFC 9112 §3.2), without its query.
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

/// Percent-decodes a path and takes it apart; refuses what would lead out of the root.
fn decode_path(raw: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(*byte);
        if *byte == b'%' {
            let Some((digits, after)) = rest.split_first_chunk::<2>() else {
                return Err(Refusal::new(400, "a percent sign stands before two digits"));
            };
            let (Some(high), Some(low)) = (hex(digits[0]), hex(digits[1])) else {
                return Err(Refusal::new(400, "a percent sign stands before two digits"));
            };
            decoded.pop();
            decoded.push(high << 4 | low);
            rest = after;
        }
    }
    if decoded.contains(&0) {
        return Err(Refusal::new(400, "a path has no zero bytes"));
    }
    // Taken apart after decoding: an encoded slash must not hide a `..`.
    let mut components = Vec::new();
    for component in decoded.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(Refusal::new(403, "a path does not climb")),
            // RFC 8615: the one such name that is meant for everybody.
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
