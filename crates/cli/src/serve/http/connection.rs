//! A stream with a small read buffer for heads; bodies bypass the buffer.

use std::io::{self, ErrorKind, Read as _, Write as _};

use super::{super::meter::Metered, pace::Pace};
use crate::endpoint::Stream;

/// Largest request head, in bytes: a common limit of HTTP servers. A larger head is answered with
/// 431.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: Metered<S>,
    /// Empty while no bytes are buffered, so that a connection between two requests holds no memory
    /// for heads.
    buffer: Vec<u8>,
    /// `buffer[start..end]` is received and not yet consumed. `start <= end <= buffer.len()`.
    start: usize,
    end: usize,
    pace: Pace,
}

impl<S: Stream> Connection<S> {
    /// Wraps a stream.
    pub(super) fn new(stream: Metered<S>) -> Self {
        Self { stream, buffer: Vec::new(), start: 0, end: 0, pace: Pace::begin() }
    }

    /// Begins a body or a response, for which a minimum rate applies.
    pub(super) fn begin_exchange(&mut self) {
        self.pace = Pace::begin();
    }

    /// Frees the buffer if it is empty.
    pub(super) fn release_buffer(&mut self) {
        if self.start == self.end {
            (self.buffer, self.start, self.end) = (Vec::new(), 0, 0);
        }
    }

    /// The stream, for its options.
    pub(super) fn stream(&self) -> &S {
        self.stream.inner()
    }

    /// Bytes that are received and not yet consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether the buffer is full of unconsumed bytes.
    pub(super) fn is_full(&self) -> bool {
        self.end - self.start == HEAD_BYTES_MAX
    }

    /// Removes `count` bytes from the front of the buffer.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Reads more bytes into the buffer, and waits for them; 0 at the end of the stream. The buffer
    /// must not be full.
    pub(super) fn fill(&mut self) -> io::Result<usize> {
        self.make_room();
        let count = self.stream.read(&mut self.buffer[self.end..])?;
        self.end += count;
        self.pace.advance(count)?;
        Ok(count)
    }

    /// Like [`fill`](Self::fill), without waiting: `WouldBlock` when no bytes have been received.
    pub(super) fn fill_now(&mut self) -> io::Result<usize> {
        self.make_room();
        let count = self.stream.try_read(&mut self.buffer[self.end..])?;
        self.end += count;
        Ok(count)
    }

    fn make_room(&mut self) {
        debug_assert!(!self.is_full(), "a full buffer would look like the end of the stream");
        self.buffer.resize(HEAD_BYTES_MAX, 0);
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Reads the next bytes: buffered ones first, then directly from the stream.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let buffered = self.buffered();
        if buffered.is_empty() {
            let count = self.stream.read(into)?;
            self.pace.advance(count)?;
            return Ok(count);
        }
        let count = buffered.len().min(into.len());
        into[..count].copy_from_slice(&buffered[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Writes all bytes; fails if the client is slower than the minimum rate.
    pub(super) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.pace.advance(count)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<S> Connection<S> {
    /// Returns the bytes of this connection: received, sent.
    pub(super) fn moved(&self) -> (u64, u64) {
        self.stream.moved()
    }
}
