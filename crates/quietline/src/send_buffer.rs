//! Packet memory that the application fills and sends without a copy.

use std::{io, ops::Range, time::Duration};

use pkt::Pages;
use stack::Errno;

use crate::{
    clock::{self, with_cx},
    handle::Stack,
    wait::sleep_for,
};

/// Bytes in the stack's packet memory that the application writes once and sends any number of
/// times without a copy ([`TcpStream::send_buffer`](crate::TcpStream::send_buffer)), as with
/// `MSG_ZEROCOPY` in Linux.
///
/// A buffer cannot be written while data sent from it is in flight. It may be dropped at any time:
/// its memory returns to the stack with the last packet.
#[derive(Debug)]
pub struct SendBuffer {
    stack: Stack,
    pages: Pages,
}

impl SendBuffer {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// `EINVAL` if `len` is zero, `ENOBUFS` if packet memory is at its limit.
    pub fn new(stack: &Stack, len: usize) -> io::Result<Self> {
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let pages = with_cx(|cx| Pages::new(&mut cx.pool, len)).ok_or(Errno::ENOBUFS)?;
        Ok(Self { stack: stack.clone(), pages })
    }

    /// Returns the number of bytes, at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns false: a buffer has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns true if no data sent from the buffer is in flight: all of it is acknowledged, has
    /// left the device and, if the peer is a stack of this process, was read there.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pages.is_idle()
    }

    /// Returns the bytes for writing, in chunks of up to 32 KB.
    ///
    /// # Errors
    /// `WouldBlock` unless [idle](Self::is_idle).
    pub fn chunks_mut(&mut self) -> io::Result<impl Iterator<Item = &mut [u8]>> {
        self.pages.chunks_mut().ok_or_else(|| Errno::EAGAIN.into())
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// `EINVAL`, without writing anything, if the bytes exceed the buffer; `WouldBlock` unless
    /// [idle](Self::is_idle).
    pub fn write_at(&mut self, offset: usize, mut bytes: &[u8]) -> io::Result<()> {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.len()) {
            return Err(Errno::EINVAL.into());
        }
        let mut skip = offset;
        for chunk in self.chunks_mut()? {
            let start = skip.min(chunk.len());
            skip -= start;
            let room = &mut chunk[start..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Waits until the buffer is [idle](Self::is_idle). Its contents stay.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`. The buffer stays recalled: it cannot be sent until it is idle
    /// and has been written, or a later call has succeeded.
    pub fn wait_idle(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.is_idle() && self.pages.collect() {
            return Ok(());
        }
        let deadline = timeout.map(|timeout| clock::now() + timeout);
        self.pages.recall();
        if !sleep_for(&self.stack, self.pages.events(), deadline, || self.pages.is_back()) {
            return Err(Errno::ETIMEDOUT.into());
        }
        let whole = self.pages.collect();
        debug_assert!(whole, "all pages were returned");
        Ok(())
    }

    /// Returns the pages, if `range` of them can be sent.
    pub(crate) fn pages_to_send(&self, range: &Range<usize>) -> io::Result<&Pages> {
        if range.start > range.end || range.end > self.len() {
            return Err(Errno::EINVAL.into());
        }
        if self.pages.is_recalled() {
            return Err(Errno::EBUSY.into());
        }
        Ok(&self.pages)
    }
}
