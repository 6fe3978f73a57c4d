//! A `recv` that waits, in steps: what Linux's `tcp_recvmsg` does between two sleeps.
//!
//! Above: crate `quietline`, whose threads do the sleeping, and the simulator, which plays them. Below: `prequeue.rs`,
//! `backlog.rs`. Neither here nor there does the stack sleep: a step that has nothing answers `EAGAIN`, and has made its
//! thread the socket's reader, if [`RxContext`](crate::sysctl::modes::RxContext) has readers. Then
//!
//! ```text
//!   recv_or_wait ── bytes, end, error ──► done: no reader any more
//!        │ EAGAIN: reader                            ▲
//!        ▼                                           │
//!   sleep until readable or `is_due` ── woken ──► recv_or_wait
//!        └────────────── time is up ──► recv_and_leave
//! ```
//!
//! Packets reach the reader's own buffer past the receive queue when it has read everything before them. Whoever peeks is
//! no reader and calls [`TcpSocket::recv`].

use std::io::IoSliceMut;

use super::prequeue::ReaderId;
use crate::{
    base::{counters::Counter, errno::Errno},
    cx::Cx,
    host::Host,
    socket::connection::{
        TcpSocket, backlog,
        calls::{Holder, recv_more, recv_step},
    },
};

/// One call of `recv` that waits. Whoever gives it up calls [`TcpSocket::recv_and_leave`]; if nobody does, the socket finds
/// out by its delayed-ACK timer.
#[derive(Debug, Default)]
pub struct Reader {
    /// What the socket knows it by, once it has been installed.
    id: Option<ReaderId>,
    /// It has been told to wait.
    waits: bool,
}

impl Reader {
    /// A thread that has not waited yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Packets may wait for this thread: it must not go away without a last word.
    #[must_use]
    pub const fn is_installed(&self) -> bool {
        self.id.is_some()
    }
}

impl TcpSocket {
    /// Copies received bytes into `bufs`, as [`recv_vectored`](Self::recv_vectored); 0 is the end of the stream. On `EAGAIN`
    /// the thread is expected to sleep until the socket is readable or [`is_due`](Self::is_due), and to call again.
    pub fn recv_or_wait(
        &self,
        host: &Host,
        cx: &mut Cx,
        reader: &mut Reader,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        self.recv_interrupted(host, cx, reader, bufs, |_| {})
    }

    /// As [`recv_or_wait`](Self::recv_or_wait) by a thread that is interrupted as soon as it owns the socket. For the
    /// simulator, which has one thread: what arrives in `interrupt` goes to the backlog.
    pub fn recv_interrupted(
        &self,
        host: &Host,
        cx: &mut Cx,
        reader: &mut Reader,
        bufs: &mut [IoSliceMut<'_>],
        interrupt: impl FnOnce(&mut Cx),
    ) -> Result<usize, Errno> {
        self.call_untimed(host, cx, |socket, state, host, cx| {
            interrupt(cx);
            let was_reader = reader.is_installed();
            let result = Step { socket, host, reader }.read_all(state, cx, bufs, true);
            let waits = result == Err(Errno::EAGAIN);
            // Only a reader processes packets itself.
            state.only_read = !was_reader && !reader.is_installed() && (waits || result.is_ok());
            if waits && reader.waits {
                cx.count(Counter::SocketWakesSpurious, 1);
            }
            reader.waits = waits;
            result
        })
    }

    /// The last step of a thread that waits no longer: what there is, or `EAGAIN`, and no reader any more.
    pub fn recv_and_leave(
        &self,
        host: &Host,
        cx: &mut Cx,
        reader: &mut Reader,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        self.call(host, cx, |socket, state, host, cx| {
            Step { socket, host, reader }.read_all(state, cx, bufs, false)
        })
    }

    /// Packets wait for this thread.
    #[must_use]
    pub fn is_due(&self, reader: &Reader) -> bool {
        reader.is_installed() && self.has_prequeued()
    }
}

/// Behind `copied` bytes that came directly: a segment that filled a hole has left what lay behind it in the receive queue.
fn read_rest(state: &mut Holder<'_>, cx: &mut Cx, copied: usize, buf: &mut [u8]) -> usize {
    recv_more(state, cx, copied, &mut [IoSliceMut::new(&mut buf[copied..])])
}

/// One step of a reader that owns the socket.
struct Step<'a> {
    socket: &'a TcpSocket,
    host: &'a Host,
    reader: &'a mut Reader,
}

impl Step<'_> {
    /// The first buffer as a reader's; what the others have room for has been queued by then.
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

    /// Receive queue, prequeue, backlog: oldest first. With `wait`, a step that finds nothing stays the reader.
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

    /// What lies in the receive queue, else what waits for this reader.
    fn read_queues(
        &self,
        state: &mut Holder<'_>,
        cx: &mut Cx,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        if state.tcb.readable_bytes() == 0 && state.prequeue.is_reader(self.reader.id) {
            let copied = state.read_prequeue(self.socket, self.host, cx, buf);
            if copied > 0 {
                return Ok(copied);
            }
        }
        recv_step(state, cx, buf, false)
    }

    /// What has come in while this thread looked for something else.
    fn read_backlog(
        &self,
        state: &mut Holder<'_>,
        cx: &mut Cx,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        match backlog::work_off_to(self.socket, state, self.host, cx, buf) {
            Some(copied @ 1..) => Ok(copied),
            Some(0) => recv_step(state, cx, buf, false),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Makes this thread the reader; false when there is none to be.
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

    /// The call is over: what still waits for this reader is processed, into what room `buf` has left.
    fn leave(&mut self, state: &mut Holder<'_>, cx: &mut Cx, buf: &mut [u8]) -> usize {
        let id = self.reader.id.take();
        if !state.prequeue.is_reader(id) {
            return 0;
        }
        let copied = state.read_prequeue(self.socket, self.host, cx, buf);
        state.prequeue.remove_reader();
        copied
    }
}
