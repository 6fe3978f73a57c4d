//! Writes whose bytes are in packet memory already: from a [`SendBuffer`], or read there from a file.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use pkt::Pages;
use stack::{Errno, Readiness, socket::SendFlags};

use super::{Shared, TcpStream};
use crate::{clock::with_cx, send_buffer::SendBuffer};

/// Bytes of a file that are read at a time: a few superframes, so that the next are read while these are on their way.
const FILE_STEP_BYTES: usize = 256 * 1024;

impl TcpStream {
    /// Sends the bytes of `range` of `buffer` without copying them (`MSG_ZEROCOPY`); returns how many were taken, as `write`
    /// does. The buffer may be written again when it is [idle](SendBuffer::is_idle), and sent again at any time.
    ///
    /// # Errors
    /// As send(2). `EINVAL` when `range` leaves the buffer, `EBUSY` while
    /// [`wait_idle`](SendBuffer::wait_idle) has called it back.
    pub fn send_buffer(
        &self,
        buffer: &SendBuffer,
        range: Range<usize>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let pages = buffer.pages_to_send(&range)?;
        self.send_pages(pages, range, flags)
    }

    /// Sends up to `count` bytes of `file` from `offset` on (`sendfile`); returns how many, fewer only where the file ends or,
    /// nonblocking, where the send buffer is full. They are read straight into packet memory. The file's own position is
    /// neither used nor changed.
    ///
    /// # Errors
    /// As sendfile(2), unless bytes were sent before.
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
            // The last step has promised another one: the file's length is not known before its end.
            let Shared { stack, socket, .. } = &*self.shared;
            with_cx(|cx| socket.with_tcb(stack.host(), cx, |tcb, _| tcb.cut_write()));
        }
        Ok(sent)
    }

    /// One step of a file: read, then sent whole unless the socket says otherwise. 0 is the end of the file.
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
