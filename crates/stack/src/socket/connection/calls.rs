//! Process context: what an application thread does inside a socket call.
//!
//! The thread owns the socket for the call and runs TCP itself, down to the device; softirq context that meets the
//! owned socket leaves its packets on the backlog, which the call works off before it returns. None of these calls
//! block: `EAGAIN` is the answer, and whoever may wait (crate `quietline`) waits and calls again. Linux:
//! `tcp_sendmsg`, `tcp_recvmsg`, `release_sock`.

use std::{
    io::{IoSlice, IoSliceMut},
    time::Duration,
};

use bitflags::bitflags;
use sync::Owned;
use tcp::{RecvError, SendError, State};

use super::{StreamState, TcpSocket, backlog};
use crate::{
    base::{errno::Errno, timer::TICK},
    cx::Cx,
    host::Host,
    socket::options::MemoryInfo,
};
use pkt::{Packet, PagesRange, Payload};

bitflags! {
    /// How a write is sent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Another write follows soon: the last small segment waits for it, as under `TCP_CORK` (`MSG_MORE`).
        const MORE = 1;
        /// A record ends here: no later byte is put into the packet of the last one (`MSG_EOR`).
        const EOR = 1 << 1;
    }
}

/// Application bytes that one step of `send` takes before it transmits: one superframe (with BIG TCP a larger one), so that
/// payload is still in the cache when the device takes it, and acknowledgements are seen in between.
const SEND_STEP_BYTES: usize = 64 * 1024;

/// Which halves of a connection `shutdown` closes: `SHUT_RD`, `SHUT_WR`, `SHUT_RDWR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownHow {
    /// No more reading.
    Read,
    /// No more writing: sends FIN after what is queued.
    Write,
    /// Neither.
    Both,
}

impl TcpSocket {
    /// Queues and sends from `bufs`; returns the bytes taken, at least one. `EAGAIN` when the send buffer is full.
    pub fn send(&self, host: &Host, cx: &mut Cx, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if let [buf] = bufs {
            // Most writes: a list of one needs no loop.
            return self.send_payload(host, cx, core::iter::once(&**buf), SendFlags::empty());
        }
        self.send_with_flags(host, cx, bufs, SendFlags::empty())
    }

    /// As [`send`](Self::send), with flags.
    pub fn send_with_flags(
        &self,
        host: &Host,
        cx: &mut Cx,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_payload(host, cx, bufs.iter().map(|buf| &**buf), flags)
    }

    /// As [`send`](Self::send), of a range of pages, which are not copied: the packets share them.
    pub fn send_pages(
        &self,
        host: &Host,
        cx: &mut Cx,
        range: PagesRange<'_>,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_payload(host, cx, core::iter::once(range), flags)
    }

    fn send_payload<P: Payload>(
        &self,
        host: &Host,
        cx: &mut Cx,
        parts: impl Iterator<Item = P> + Clone,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.call(host, cx, |socket, state, host, cx| {
            let total = parts.clone().map(|part| part.byte_len()).sum();
            let sent = send_all(socket, state, host, cx, parts, total, flags);
            state.tcb.set_mid_write(false);
            // The record ends with the write, so only where all of it was taken.
            if flags.contains(SendFlags::EOR) && sent == Ok(total) {
                state.tcb.end_record();
            }
            sent
        })
    }

    /// Copies received bytes into `buf`; 0 is the end of the stream. `EAGAIN` when nothing has arrived. `cx.now` may be of an
    /// earlier call ([`Cx::rest`]).
    pub fn recv(
        &self,
        host: &Host,
        cx: &mut Cx,
        buf: &mut [u8],
        peek: bool,
    ) -> Result<usize, Errno> {
        self.call_untimed(host, cx, |_, state, _, cx| {
            if buf.is_empty() {
                return Ok(0);
            }
            let received = recv_step(state, cx, buf, peek);
            // Nothing but the queue has changed, or nothing at all.
            state.only_read = matches!(received, Ok(_) | Err(Errno::EAGAIN));
            received
        })
    }

    /// As [`recv`](Self::recv), into `bufs` one after the other.
    pub fn recv_vectored(
        &self,
        host: &Host,
        cx: &mut Cx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        self.call_untimed(host, cx, |_, state, _, cx| {
            let Some(first) = bufs.iter().position(|buf| !buf.is_empty()) else { return Ok(0) };
            let received = recv_step(state, cx, &mut bufs[first], false);
            state.only_read = matches!(received, Ok(_) | Err(Errno::EAGAIN));
            let copied = received?;
            Ok(copied + recv_more(state, cx, copied, &mut bufs[first + 1..]))
        })
    }

    /// Sends `buf`, the last byte of which is urgent (`MSG_OOB`); returns the bytes taken. `EAGAIN` when the send buffer is
    /// full.
    pub fn send_oob(&self, host: &Host, cx: &mut Cx, buf: &[u8]) -> Result<usize, Errno> {
        self.call(host, cx, |_, state, _, cx| {
            let sent = state.tcb.send_oob(&mut cx.tcp(), buf);
            sent.map_err(send_errno)
        })
    }

    /// Takes the urgent byte (`MSG_OOB`); `None` is the end of the stream. `EINVAL` when there is none to be taken,
    /// `EAGAIN` when it was announced and has not come; neither waits, as in Linux.
    pub fn recv_oob(&self, host: &Host, cx: &mut Cx, peek: bool) -> Result<Option<u8>, Errno> {
        self.call(host, cx, |_, state, _, _| state.tcb.recv_oob(peek).map_err(recv_errno))
    }

    /// Whether the next byte to read is the urgent one (`SIOCATMARK`).
    pub fn at_mark(&self, host: &Host, cx: &mut Cx) -> bool {
        self.with_tcb(host, cx, |tcb, _| tcb.at_mark())
    }

    /// Closes one or both halves.
    pub fn shutdown(&self, host: &Host, cx: &mut Cx, how: ShutdownHow) -> Result<(), Errno> {
        self.call(host, cx, |socket, state, host, cx| {
            state.drain_prequeue(socket, host, cx);
            match state.tcb.state() {
                State::Close | State::Listen => return Err(Errno::ENOTCONN),
                // The attempt ends, whichever side is meant (Linux: inet_shutdown).
                State::SynSent => {
                    state.tcb.shutdown_write(&mut cx.tcp());
                    return Ok(());
                }
                _ => {}
            }
            if how != ShutdownHow::Write {
                state.tcb.shutdown_read();
            }
            if how != ShutdownHow::Read {
                state.tcb.shutdown_write(&mut cx.tcp());
            }
            Ok(())
        })
    }

    /// The application gives the connection up. What is queued is still sent, unless SO_LINGER says otherwise; the
    /// socket lives on without it until TCP is done.
    pub fn close(&self, host: &Host, cx: &mut Cx) {
        self.call(host, cx, |socket, state, host, cx| {
            state.drain_prequeue(socket, host, cx);
            state.tcb.close(&mut cx.tcp());
        });
        // The thread may do anything now, and nobody but the worker would look for what comes.
        cx.leave_polling();
    }

    /// Aborts: sends RST and forgets everything queued.
    pub fn abort(&self, host: &Host, cx: &mut Cx) {
        self.call(host, cx, |_, state, _, cx| {
            state.tcb.abort(&mut cx.tcp());
        });
    }

    /// Ends the connection with `ENETDOWN`: its local address left the host together with a device.
    pub(crate) fn lose_address(&self, host: &Host, cx: &mut Cx) {
        self.call(host, cx, |_, state, _, cx| {
            state.tcb.lose_address(&mut cx.tcp());
        });
    }

    /// Takes the pending error, as `SO_ERROR` does.
    pub fn take_error(&self, host: &Host, cx: &mut Cx) -> Option<Errno> {
        self.call(host, cx, |_, state, _, _| state.tcb.take_error()).map(Errno::from)
    }

    /// Reads or changes options of the connection under the socket lock.
    pub fn with_tcb<R>(
        &self,
        host: &Host,
        cx: &mut Cx,
        change: impl FnOnce(&mut tcp::Tcb, &mut tcp::Cx<'_>) -> R,
    ) -> R {
        self.call(host, cx, |_, state, _, cx| change(&mut state.tcb, &mut cx.tcp()))
    }

    /// Walks the invariants of the connection and of what stands around it, without a turn of TCP: what was forgotten
    /// stays forgotten. For the simulator, between two turns. See [`tcp::Tcb::check_turn`].
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self, host: &Host, cx: &mut Cx) -> Option<tcp::Edges> {
        self.check_memory(host, cx).0
    }

    /// As [`check`](Self::check); answers also what the connection holds.
    pub(crate) fn check_memory(
        &self,
        host: &Host,
        cx: &mut Cx,
    ) -> (Option<tcp::Edges>, MemoryInfo) {
        let mut state = self.lock.own();
        // The wheel may be a tick late, and nothing else.
        let edges = state.tcb.check_turn(cx.now - TICK);
        if let Some(deadline) = state.tcb.next_deadline() {
            assert!(self.is_armed(deadline), "the wheel knows nothing of {deadline:?}");
        }
        state.prequeue.check();
        state.check_dst(self, host, cx);
        state.check_account(self);
        let memory = MemoryInfo::of(self, &state);
        backlog::release(self, state, host, cx);
        (edges, memory)
    }

    /// Owns the socket while `interrupt` happens. For the simulator, which so plays a thread that is descheduled in the
    /// middle of a call.
    pub fn hold(&self, host: &Host, cx: &mut Cx, interrupt: impl FnOnce(&mut Cx)) {
        self.call(host, cx, |_, _, _, cx| interrupt(cx));
    }

    /// How long `close` should wait for queued data (`SO_LINGER`), if it should.
    pub fn linger(&self, host: &Host, cx: &mut Cx) -> Option<Duration> {
        self.with_tcb(host, cx, |tcb, _| tcb.linger())
    }

    /// The frame of every call: own the socket, do the work, settle, run what others must run for it, work off the
    /// backlog, let go, wake.
    pub(crate) fn call<R>(
        &self,
        host: &Host,
        cx: &mut Cx,
        work: impl FnOnce(&Self, &mut Holder<'_>, &Host, &mut Cx) -> R,
    ) -> R {
        self.call_untimed(host, cx, |socket, state, host, cx| {
            state.synchronise(cx);
            work(socket, state, host, cx)
        })
    }

    /// As [`call`](Self::call), of `work` that asks no time: what may be stale is `cx.now`, which is no earlier than what
    /// the socket has seen. What else there is to do looks at the clock itself.
    pub(crate) fn call_untimed<R>(
        &self,
        host: &Host,
        cx: &mut Cx,
        work: impl FnOnce(&Self, &mut Holder<'_>, &Host, &mut Cx) -> R,
    ) -> R {
        let entered = cx.enter(host);
        cx.record_flow(self.hash());
        cx.pool.drain_deferred();
        let mut state = self.lock.own();
        state.not_before_latest(cx);
        let result = work(self, &mut state, host, cx);
        backlog::note_locked_timer(&state, cx);
        state.settle_call(self, host, cx);
        cx.do_softirq();
        poll_in_passing(self, &mut state, host, cx);
        // Before the socket is let go, so that softirq may free it first.
        while let Some(packet) = cx.read.pop_front() {
            self.read_packets.push(packet);
        }
        backlog::release(self, state, host, cx);
        self.free_read_packets(cx);
        cx.do_softirq();
        cx.leave(entered);
        result
    }
}

/// The socket, owned by the calling thread.
pub(crate) type Holder<'a> = Owned<'a, StreamState, Packet>;

pub(crate) fn recv_step(
    state: &mut Holder<'_>,
    cx: &mut Cx,
    buf: &mut [u8],
    peek: bool,
) -> Result<usize, Errno> {
    state.tcb.recv(&mut cx.tcp(), buf, peek).map_err(recv_errno)
}

/// Behind a read that has got `copied` bytes: what fits into the buffers that follow. What is behind the data, be it an
/// error, is the next call's: reporting takes it. And a read stops before urgent data.
pub(crate) fn recv_more(
    state: &mut Holder<'_>,
    cx: &mut Cx,
    copied: usize,
    bufs: &mut [IoSliceMut<'_>],
) -> usize {
    let mut more = 0;
    for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
        if copied == 0 || state.tcb.readable_bytes() == 0 || state.tcb.at_mark() {
            break;
        }
        more += recv_step(state, cx, buf, false).unwrap_or(0);
    }
    more
}

fn recv_errno(error: RecvError) -> Errno {
    match error {
        RecvError::WouldBlock => Errno::EAGAIN,
        RecvError::NotConnected => Errno::ENOTCONN,
        RecvError::NoUrgentData => Errno::EINVAL,
        RecvError::Connection(error) => error.into(),
    }
}

fn send_errno(error: SendError) -> Errno {
    match error {
        SendError::WouldBlock => Errno::EAGAIN,
        SendError::BrokenPipe => Errno::EPIPE,
        SendError::NoMemory => Errno::ENOBUFS,
        SendError::Connection(error) => error.into(),
    }
}

/// What `send` does between owning the socket and settling it: one step after the other, as long as there is room.
fn send_all<P: Payload>(
    socket: &TcpSocket,
    state: &mut Holder<'_>,
    host: &Host,
    cx: &mut Cx,
    parts: impl Iterator<Item = P>,
    total: usize,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut sent = 0;
    let step_bytes = SEND_STEP_BYTES.max(state.superframe_bytes());
    for mut rest in parts {
        while rest.byte_len() > 0 {
            let (step, later) = rest.split(rest.byte_len().min(step_bytes));
            rest = later;
            let len = step.byte_len();
            let goes_on = sent + len < total;
            state.tcb.set_mid_write(goes_on);
            let more = goes_on || flags.contains(SendFlags::MORE);
            match send_step(socket, state, host, cx, step, more) {
                Ok(taken) => {
                    sent += taken;
                    // An error that came meanwhile is the next call's: reporting takes it.
                    if taken < len || has_error(state) {
                        state.tcb.cut_write();
                        return Ok(sent);
                    }
                }
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(sent)
}

/// One superframe's worth of `send`: copy, transmit, let the peer's core run, take its answers from the backlog.
fn send_step(
    socket: &TcpSocket,
    state: &mut Holder<'_>,
    host: &Host,
    cx: &mut Cx,
    step: impl Payload,
    more: bool,
) -> Result<usize, Errno> {
    let len = step.byte_len();
    let mut taken = 0;
    loop {
        match state.tcb.send(&mut cx.tcp(), &[step.split(taken).1], more) {
            Ok(bytes) => {
                taken += bytes;
                state.note_sent(bytes);
            }
            Err(_) if taken > 0 => return Ok(taken),
            Err(error) => return Err(send_errno(error)),
        }
        if taken == len && !more {
            // The frame of the call settles.
            return Ok(taken);
        }
        backlog::note_locked_timer(state, cx);
        state.settle(socket, host, cx);
        cx.do_softirq();
        poll_in_passing(socket, state, host, cx);
        let worked = backlog::work_off(socket, state, host, cx);
        if taken == len || !worked || has_error(state) {
            return Ok(taken);
        }
    }
}

/// A thread that sends in bulk looks at its core's devices itself, once for about each superframe: what it finds for its own
/// connection waits on the backlog that it works off next.
fn poll_in_passing(socket: &TcpSocket, state: &mut Holder<'_>, host: &Host, cx: &mut Cx) {
    if state.take_poll_due(SEND_STEP_BYTES) {
        cx.freshen();
        host.core(socket.core()).poll_in_passing(host, cx);
    }
}

fn has_error(state: &Holder<'_>) -> bool {
    state.tcb.has_error()
}
