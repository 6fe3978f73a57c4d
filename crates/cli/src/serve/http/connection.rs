//! A stream with a small read buffer in front, for heads; bodies pass it by.

use std::io::{self, Read as _, Write as _};

use super::super::meter::Metered;
use crate::endpoint::Stream;

/// Largest request head. What servers commonly take; beyond it comes 431.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connection<'s, 't, S> {
    stream: &'s mut Metered<'t, S>,
    buffer: Vec<u8>,
    /// `buffer[start..end]` was received and not consumed. `start <= end <= buffer.len()`.
    start: usize,
    end: usize,
}

impl<'s, 't, S: Stream> Connection<'s, 't, S> {
    /// Wraps a stream.
    pub(super) fn new(stream: &'s mut Metered<'t, S>) -> Self {
        Self { stream, buffer: vec![0; HEAD_BYTES_MAX], start: 0, end: 0 }
    }

    /// The stream, for its options.
    pub(super) fn stream(&self) -> &S {
        self.stream.inner()
    }

    /// What was received and not consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether `fill` could only make room by dropping bytes.
    pub(super) fn is_full(&self) -> bool {
        self.end - self.start == self.buffer.len()
    }

    /// Takes `count` buffered bytes away.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Reads more into the buffer; 0 at the end of the stream. The buffer must not be full.
    pub(super) fn fill(&mut self) -> io::Result<usize> {
        debug_assert!(!self.is_full(), "a full buffer would look like the end of the stream");
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let count = self.stream.read(&mut self.buffer[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Reads what comes next: buffered bytes first, then straight from the stream.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let buffered = self.buffered();
        if buffered.is_empty() {
            return self.stream.read(into);
        }
        let count = buffered.len().min(into.len());
        into[..count].copy_from_slice(&buffered[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Writes everything.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}
