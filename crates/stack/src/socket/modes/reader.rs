//! A blocking `recv`, divided into steps: each corresponds to the part of Linux's `tcp_recvmsg`
//! between two sleeps.
//!
//! Above: crate `quietline`, whose threads sleep, and the simulator, which simulates such threads.
//! Below: `prequeue.rs`, `backlog.rs`. The stack itself never sleeps: a step that finds no data
//! returns `EAGAIN`, and has made its thread the socket's reader if
//! [`RxContext`](crate::sysctl::modes::RxContext) uses readers. The caller continues as follows:
//!
//! ```text
//!   recv_or_wait ── bytes, end, error ──► done: the reader is removed
//!        │ EAGAIN: reader                            ▲
//!        ▼                                           │
//!   sleep until readable or `is_due` ── woken ──► recv_or_wait
//!        └────────────── timeout ──► recv_and_leave
//! ```
//!
//! Packets are copied directly to the reader's buffer, bypassing the receive queue, once the reader
//! has read all older data. A call that peeks is not a reader and uses [`Connection::recv`].

use std::io::IoSliceMut;

use super::prequeue::ReaderId;
use crate::{
    base::{counters::Counter, errno::Errno},
    cx::Cx,
    socket::connection::{
        Connection, backlog,
        call::Holder,
        recv::{recv_more, recv_step},
    },
    socket::net::Net,
};

/// State of one blocking `recv`. A caller that stops waiting must call
/// [`Connection::recv_and_leave`]; otherwise the socket's delayed-ACK
/// timer removes the reader.
#[derive(Debug, Default)]
pub struct Reader {
    /// Identifier at the socket, once installed.
    id: Option<ReaderId>,
    /// Whether the last step returned `EAGAIN`.
    waits: bool,
}

impl Reader {
    /// Creates the state of a thread that has not waited yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether packets may wait for this thread. If so, the thread must call
    /// `recv_and_leave` when it stops waiting.
    #[must_use]
    pub const fn is_installed(&self) -> bool {
        self.id.is_some()
    }
}

impl Connection {
    /// Copies received bytes into `bufs`, as [`recv_vectored`](Self::recv_vectored); 0 is the end
    /// of the stream. On `EAGAIN` the caller should sleep until the socket is readable or
    /// [`is_due`](Self::is_due), and call again.
    pub fn recv_or_wait(
        &self,
        net: &Net,
        cx: &mut Cx,
        reader: &mut Reader,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        self.recv_interrupted(net, cx, reader, bufs, |_| {})
    }

    /// Like [`recv_or_wait`](Self::recv_or_wait), but calls `interrupt` as soon as the thread owns
    /// the socket. The simulator, which has one thread, uses this: packets that arrive in
    /// `interrupt` go to the backlog.
    pub fn recv_interrupted(
        &self,
        net: &Net,
        cx: &mut Cx,
        reader: &mut Reader,
        bufs: &mut [IoSliceMut<'_>],
        interrupt: impl FnOnce(&mut Cx),
    ) -> Result<usize, Errno> {
        let mut call = self.begin_untimed_call(net, cx);
        interrupt(cx);
        let was_reader = reader.is_installed();
        let result = Step { socket: self, net, reader }.read_all(&mut call.state, cx, bufs, true);
        let waits = result == Err(Errno::EAGAIN);
        // A reader also processes packets itself, so its call has not only read.
        let is_reader = was_reader || reader.is_installed();
        call.state.only_read = !is_reader && (waits || result.is_ok());
        if waits && reader.waits {
            cx.count(Counter::SocketWakesSpurious, 1);
        }
        reader.waits = waits;
        call.end(cx);
        result
    }

    /// Performs the last step of a thread that stops waiting: returns the available data or
    /// `EAGAIN`, and removes the reader.
    pub fn recv_and_leave(
        &self,
        net: &Net,
        cx: &mut Cx,
        reader: &mut Reader,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        let mut call = self.begin_call(net, cx);
        let result = Step { socket: self, net, reader }.read_all(&mut call.state, cx, bufs, false);
        call.end(cx);
        result
    }

    /// Returns whether packets wait for this thread.
    #[must_use]
    pub fn is_due(&self, reader: &Reader) -> bool {
        reader.is_installed() && self.has_prequeued()
    }
}

/// Reads more after `copied` bytes that were copied directly: a segment that filled a gap may have
/// made later data in the receive queue readable.
fn read_rest(state: &mut Holder<'_>, cx: &mut Cx, copied: usize, buf: &mut [u8]) -> usize {
    recv_more(state, cx, copied, &mut [IoSliceMut::new(&mut buf[copied..])])
}

/// One step of a reader that owns the socket.
struct Step<'a> {
    socket: &'a Connection,
    net: &'a Net,
    reader: &'a mut Reader,
}

impl Step<'_> {
    /// Reads into `bufs`. Packets are copied directly only into the first buffer; data for the
    /// other buffers is in the receive queue by then.
    fn read_all(
        &mut self,
        state: &mut Holder<'_>,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
        wait: bool,
    ) -> Result<usize, Errno> {
        let Some(first) = bufs.iter().position(|buf| !buf.is_empty()) else {
            self.leave(state, cx, &mut []);
            return Ok(0);
        };
        let copied = self.read(state, cx, &mut bufs[first], wait)?;
        Ok(copied + recv_more(state, cx, copied, &mut bufs[first + 1..]))
    }

    /// Reads receive queue, prequeue and backlog, oldest first. With `wait`, the thread stays the
    /// reader if it finds nothing.
    fn read(
        &mut self,
        state: &mut Holder<'_>,
        cx: &mut Cx,
        buf: &mut [u8],
        wait: bool,
    ) -> Result<usize, Errno> {
        let result = match self.read_queues(state, cx, buf) {
            Err(Errno::EAGAIN) if wait && self.install(state, cx) => {
                match self.read_backlog(state, cx, buf) {
                    Err(Errno::EAGAIN) => return Err(Errno::EAGAIN),
                    result => result,
                }
            }
            result => result,
        };
        match result {
            Ok(mut copied @ 1..) => {
                copied += read_rest(state, cx, copied, buf);
                copied += self.leave(state, cx, &mut buf[copied..]);
                Ok(copied + read_rest(state, cx, copied, buf))
            }
            result => {
                self.leave(state, cx, &mut []);
                result
            }
        }
    }

    /// Reads from the receive queue, or else from the prequeue of this reader.
    fn read_queues(
        &self,
        state: &mut Holder<'_>,
        cx: &mut Cx,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        if state.tcb.readable_bytes() == 0 && state.prequeue.is_reader(self.reader.id) {
            let copied = state.read_prequeue(self.socket, self.net, cx, buf);
            if copied > 0 {
                return Ok(copied);
            }
        }
        recv_step(state, cx, buf, false)
    }

    /// Reads the packets that arrived while this thread owned the socket.
    fn read_backlog(
        &self,
        state: &mut Holder<'_>,
        cx: &mut Cx,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        match backlog::drain_backlog_to(self.socket, state, self.net, cx, buf) {
            Some(copied @ 1..) => Ok(copied),
            Some(0) => recv_step(state, cx, buf, false),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Makes this thread the reader; false if readers are disabled or another thread is the reader.
    fn install(&mut self, state: &mut Holder<'_>, cx: &Cx) -> bool {
        if state.prequeue.is_reader(self.reader.id) {
            return true;
        }
        self.reader.id = None;
        let connected = state.tcb.state().is_synchronized();
        if connected && cx.sysctls().has_prequeue() {
            self.reader.id = state.prequeue.install();
        }
        self.reader.is_installed()
    }

    /// Ends the wait: processes packets that still wait for this reader, into `buf`, and removes
    /// the reader. Returns the number of bytes copied.
    fn leave(&mut self, state: &mut Holder<'_>, cx: &mut Cx, buf: &mut [u8]) -> usize {
        let id = self.reader.id.take();
        if !state.prequeue.is_reader(id) {
            return 0;
        }
        let copied = state.read_prequeue(self.socket, self.net, cx, buf);
        state.prequeue.remove_reader();
        copied
    }
}
