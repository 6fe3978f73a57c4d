//! Request bodies: a known length, or chunks (RFC 9112 §7.1).

use std::io::{self, ErrorKind};

use super::{
    connection::Connection,
    error::{Refusal, Trouble},
    head::Body,
};
use crate::endpoint::Stream;

/// Reads the body of one request, no byte more.
#[derive(Debug)]
pub(super) struct BodyReader<'c, S> {
    connection: &'c mut Connection<S>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Bytes left of a known length.
    Length(u64),
    /// Before the line with a chunk's length.
    ChunkHead,
    /// Bytes left of a chunk; a line end follows.
    Chunk(u64),
    /// All was read.
    Done,
}

impl<'c, S: Stream> BodyReader<'c, S> {
    /// A reader placed after the head.
    pub(super) fn new(connection: &'c mut Connection<S>, body: Body) -> Self {
        let state = match body {
            Body::Length(length) => State::Length(length),
            Body::Chunked => State::ChunkHead,
        };
        Self { connection, state }
    }

    /// The next bytes of the body; 0 at its end. A body cut short is an error, so that half a file is never
    /// taken for a whole one.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<usize, Trouble> {
        loop {
            match self.state {
                State::Length(0) | State::Done => return Ok(0),
                State::Length(left) => {
                    let count = self.read_some(into, left)?;
                    self.state = State::Length(left - count as u64);
                    return Ok(count);
                }
                State::ChunkHead => self.state = self.chunk_head()?,
                State::Chunk(0) => {
                    self.line_end()?;
                    self.state = State::ChunkHead;
                }
                State::Chunk(left) => {
                    let count = self.read_some(into, left)?;
                    self.state = State::Chunk(left - count as u64);
                    return Ok(count);
                }
            }
        }
    }

    fn read_some(&mut self, into: &mut [u8], left: u64) -> Result<usize, Trouble> {
        let room = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.connection.read(&mut into[..room])? {
            0 => Err(Trouble::Io(cut_short())),
            count => Ok(count),
        }
    }

    fn chunk_head(&mut self) -> Result<State, Trouble> {
        loop {
            match httparse::parse_chunk_size(self.connection.buffered()) {
                Ok(httparse::Status::Complete((used, size))) => {
                    self.connection.consume(used);
                    if size > 0 {
                        return Ok(State::Chunk(size));
                    }
                    self.trailers()?;
                    return Ok(State::Done);
                }
                Ok(httparse::Status::Partial) => self.more()?,
                Err(_) => {
                    return Err(Refusal::new(400, "the length of a chunk is not a number").into());
                }
            }
        }
    }

    /// Reads past the trailer lines. None of them means anything here.
    fn trailers(&mut self) -> Result<(), Trouble> {
        loop {
            let mut lines = [httparse::EMPTY_HEADER; 16];
            match httparse::parse_headers(self.connection.buffered(), &mut lines) {
                Ok(httparse::Status::Complete((used, _))) => {
                    self.connection.consume(used);
                    return Ok(());
                }
                Ok(httparse::Status::Partial) => self.more()?,
                Err(_) => return Err(Refusal::new(400, "the trailers cannot be read").into()),
            }
        }
    }

    fn line_end(&mut self) -> Result<(), Trouble> {
        while self.connection.buffered().len() < 2 {
            self.more()?;
        }
        if !self.connection.buffered().starts_with(b"\r\n") {
            return Err(Refusal::new(400, "a chunk is longer than its length says").into());
        }
        self.connection.consume(2);
        Ok(())
    }

    fn more(&mut self) -> Result<(), Trouble> {
        if self.connection.is_full() {
            return Err(Refusal::new(431, "the lines between chunks are too long").into());
        }
        match self.connection.fill()? {
            0 => Err(Trouble::Io(cut_short())),
            _ => Ok(()),
        }
    }
}

/// The client ended its side within the body.
fn cut_short() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the client ended within the body of a request")
}
