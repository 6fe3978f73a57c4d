//! Request bodies: of a known length, or chunked (RFC 9112 §7.1).

use std::io::{self, ErrorKind};

use super::{
    connection::Connection,
    error::{Refusal, RequestError},
    head::Body,
};
use crate::endpoint::Stream;

/// Reads the body of one request, and no byte after it.
#[derive(Debug)]
pub(super) struct BodyReader<'c, S> {
    connection: &'c mut Connection<S>,
    state: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Remaining bytes of a body of known length.
    Length(u64),
    /// Before the line with the next chunk's length.
    ChunkHead,
    /// Remaining bytes of a chunk; a line end follows.
    Chunk(u64),
    /// The body has been read completely.
    Done,
}

impl<'c, S: Stream> BodyReader<'c, S> {
    /// Creates a reader. The connection must be positioned after the head.
    pub(super) fn new(connection: &'c mut Connection<S>, body: Body) -> Self {
        let state = match body {
            Body::Length(length) => Position::Length(length),
            Body::Chunked => Position::ChunkHead,
        };
        Self { connection, state }
    }

    /// Reads the next bytes of the body; 0 at its end. A truncated body is an error, so that a
    /// partial file is never stored as a complete one.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<usize, RequestError> {
        loop {
            match self.state {
                Position::Length(0) | Position::Done => return Ok(0),
                Position::Length(left) => {
                    let count = self.read_some(into, left)?;
                    self.state = Position::Length(left - count as u64);
                    return Ok(count);
                }
                Position::ChunkHead => self.state = self.chunk_head()?,
                Position::Chunk(0) => {
                    self.line_end()?;
                    self.state = Position::ChunkHead;
                }
                Position::Chunk(left) => {
                    let count = self.read_some(into, left)?;
                    self.state = Position::Chunk(left - count as u64);
                    return Ok(count);
                }
            }
        }
    }

    fn read_some(&mut self, into: &mut [u8], left: u64) -> Result<usize, RequestError> {
        let room = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.connection.read(&mut into[..room])? {
            0 => Err(RequestError::Io(cut_short())),
            count => Ok(count),
        }
    }

    fn chunk_head(&mut self) -> Result<Position, RequestError> {
        loop {
            match httparse::parse_chunk_size(self.connection.buffered()) {
                Ok(httparse::Status::Complete((used, size))) => {
                    self.connection.consume(used);
                    if size > 0 {
                        return Ok(Position::Chunk(size));
                    }
                    self.trailers()?;
                    return Ok(Position::Done);
                }
                Ok(httparse::Status::Partial) => self.more()?,
                Err(_) => {
                    return Err(Refusal::new(400, "the length of a chunk is not a number").into());
                }
            }
        }
    }

    /// Skips the trailer lines. None of them is used.
    fn trailers(&mut self) -> Result<(), RequestError> {
        loop {
            let mut lines = [httparse::EMPTY_HEADER; 16];
            match httparse::parse_headers(self.connection.buffered(), &mut lines) {
                Ok(httparse::Status::Complete((used, _))) => {
                    self.connection.consume(used);
                    return Ok(());
                }
                Ok(httparse::Status::Partial) => self.more()?,
                Err(_) => return Err(Refusal::new(400, "the trailers are invalid").into()),
            }
        }
    }

    fn line_end(&mut self) -> Result<(), RequestError> {
        while self.connection.buffered().len() < 2 {
            self.more()?;
        }
        if !self.connection.buffered().starts_with(b"\r\n") {
            return Err(Refusal::new(400, "a chunk is longer than its stated length").into());
        }
        self.connection.consume(2);
        Ok(())
    }

    fn more(&mut self) -> Result<(), RequestError> {
        if self.connection.is_full() {
            return Err(Refusal::new(431, "the lines between chunks are too long").into());
        }
        match self.connection.fill()? {
            0 => Err(RequestError::Io(cut_short())),
            _ => Ok(()),
        }
    }
}

/// Returns the error of a client that closed its side within the body.
fn cut_short() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the client closed the connection within the body of a request",
    )
}
