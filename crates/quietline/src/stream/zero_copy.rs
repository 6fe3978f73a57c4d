//! Writes from packet memory: from a [`SendBuffer`], or from a file that is read into packet
//! memory.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use pkt::Pages;
use stack::{Errno, Readiness, socket::SendFlags};

use super::{Shared, TcpStream};
use crate::{clock::with_cx, send_buffer::SendBuffer};

/// Bytes of a file that are read per step: a few superframes, so that the file is read while
/// earlier superframes are in flight.
const FILE_STEP_BYTES: usize = 256 * 1024;

impl TcpStream {
    /// Sends the bytes of `range` of `buffer` without copying them (`MSG_ZEROCOPY`). Returns the
    /// number of bytes taken, as `write` does. The buffer may be written again when it is
    /// [idle](SendBuffer::is_idle), and sent again at any time.
    ///
    /// # Errors
    /// As send(2). `EINVAL` if `range` exceeds the buffer; `EBUSY` while
    /// [`wait_idle`](SendBuffer::wait_idle) has recalled its pages.
    pub fn send_buffer(
        &self,
        buffer: &SendBuffer,
        range: Range<usize>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let pages = buffer.pages_to_send(&range)?;
        self.send_pages(pages, range, flags)
    }

    /// Sends up to `count` bytes of `file` from `offset` on (`sendfile`). Returns the number of
    /// bytes sent, which is less than `count` only at the end of the file or, if the stream is
    /// nonblocking, when the send buffer is full. The bytes are read directly into packet memory.
    /// The file's own position is neither used nor changed.
    ///
    /// # Errors
    /// As sendfile(2), unless some bytes were sent before the error.
    pub fn send_file(&self, file: &File, offset: u64, count: u64) -> io::Result<u64> {
        let mut sent = 0;
        while sent < count {
            match self.send_file_step(file, offset + sent, count - sent) {
                Ok(0) => break,
                Ok(taken) => sent += taken,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if sent < count {
            // The last step set `MSG_MORE`, because the length of the file is known only at its
            // end. End the write here, so that a partial segment is not held back.
            let Shared { stack, socket, .. } = &*self.shared;
            with_cx(|cx| socket.with_tcb(stack.host(), cx, |tcb, _| tcb.end_write_early()));
        }
        Ok(sent)
    }

    /// Reads one step of a file into packet memory and sends it whole, unless the socket takes
    /// less. Returns 0 at the end of the file.
    fn send_file_step(&self, file: &File, offset: u64, left: u64) -> io::Result<u64> {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(FILE_STEP_BYTES);
        let (mut at, mut ended) = (offset, false);
        let read = |room: &mut [u8]| {
            let got = file.read_at(room, at)?;
            at += got as u64;
            ended |= got == 0;
            Ok::<_, io::Error>(got)
        };
        let Some(pages) = with_cx(|cx| Pages::read_from(&mut cx.pool, want, read))? else {
            return if ended { Ok(0) } else { Err(Errno::ENOBUFS.into()) };
        };
        let goes_on = (pages.len() as u64) < left;
        let flags = if goes_on { SendFlags::MORE } else { SendFlags::empty() };
        let mut sent = 0;
        while sent < pages.len() {
            match self.send_pages(&pages, sent..pages.len(), flags) {
                Ok(taken) => sent += taken,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent as u64)
    }

    fn send_pages(
        &self,
        pages: &Pages,
        range: Range<usize>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let Shared { stack, socket, .. } = &*self.shared;
        self.blocking(Readiness::WRITE, || {
            with_cx(|cx| socket.send_pages(stack.host(), cx, pages.range(range.clone()), flags))
        })
    }
}
