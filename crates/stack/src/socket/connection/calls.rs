//! Process context: socket calls of application threads.
//!
//! The thread owns the socket for the call and runs TCP itself, down to the device. Softirq context
//! that finds the socket owned leaves its packets in the backlog, which the call processes before
//! it returns. No call blocks: it returns `EAGAIN`, and callers that may wait (crate `quietline`)
//! wait and call again. Linux: `tcp_sendmsg`, `tcp_recvmsg`, `release_sock`.

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
    /// Flags of a write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Another write follows soon: the last small segment waits for it, as with `TCP_CORK`
        /// (`MSG_MORE`).
        const MORE = 1;
        /// A record ends here: no later byte is added to the packet of the last one (`MSG_EOR`).
        const EOR = 1 << 1;
    }
}

/// Application bytes that one step of `send` takes before it transmits: one superframe (a larger
/// one with BIG TCP). The payload is then still in the cache when the device takes it, and
/// acknowledgments are processed in between.
const SEND_STEP_BYTES: usize = 64 * 1024;

/// Halves of a connection that `shutdown` closes: `SHUT_RD`, `SHUT_WR`, `SHUT_RDWR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownHow {
    /// Ends reading.
    Read,
    /// Ends writing: sends FIN after the queued data.
    Write,
    /// Ends both.
    Both,
}

impl TcpSocket {
    /// Queues and sends from `bufs`; returns the bytes taken, at least one. `EAGAIN` when the send
    /// buffer is full.
    pub fn send(&self, host: &Host, cx: &mut Cx, bufs: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if let [buf] = bufs {
            // The common case: one buffer needs no list.
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

    /// Like [`send`](Self::send), from a range of pages, which the packets share instead of copying
    /// them.
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
            // The record ends with the write only if all of it was taken.
            if flags.contains(SendFlags::EOR) && sent == Ok(total) {
                state.tcb.end_record();
            }
            sent
        })
    }

    /// Copies received bytes into `buf`; 0 is the end of the stream. `EAGAIN` when no data has
    /// arrived. `cx.now` may be that of an earlier call ([`Cx::rest`]).
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
            // At most the receive queue has changed.
            state.only_read = matches!(received, Ok(_) | Err(Errno::EAGAIN));
            received
        })
    }

    /// Like [`recv`](Self::recv), into several buffers in order.
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

    /// Sends `buf`, the last byte of which is urgent (`MSG_OOB`); returns the bytes taken. `EAGAIN`
    /// when the send buffer is full.
    pub fn send_oob(&self, host: &Host, cx: &mut Cx, buf: &[u8]) -> Result<usize, Errno> {
        self.call(host, cx, |_, state, _, cx| {
            let sent = state.tcb.send_oob(&mut cx.tcp(), buf);
            sent.map_err(send_errno)
        })
    }

    /// Takes the urgent byte (`MSG_OOB`); `None` is the end of the stream. `EINVAL` when there is
    /// none, `EAGAIN` when it was announced and has not arrived; neither case waits, as in Linux.
    pub fn recv_oob(&self, host: &Host, cx: &mut Cx, peek: bool) -> Result<Option<u8>, Errno> {
        self.call(host, cx, |_, state, _, _| state.tcb.recv_oob(peek).map_err(recv_errno))
    }

    /// Returns whether the next byte to read is the urgent one (`SIOCATMARK`).
    pub fn at_mark(&self, host: &Host, cx: &mut Cx) -> bool {
        self.with_tcb(host, cx, |tcb, _| tcb.at_mark())
    }

    /// Closes one or both halves.
    pub fn shutdown(&self, host: &Host, cx: &mut Cx, how: ShutdownHow) -> Result<(), Errno> {
        self.call(host, cx, |socket, state, host, cx| {
            state.drain_prequeue(socket, host, cx);
            match state.tcb.state() {
                State::Close | State::Listen => return Err(Errno::ENOTCONN),
                // The attempt ends for either half (Linux: inet_shutdown).
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

    /// Closes the connection for the application. Queued data is still sent, unless SO_LINGER says
    /// otherwise; the socket continues to exist until TCP has finished.
    pub fn close(&self, host: &Host, cx: &mut Cx) {
        self.call(host, cx, |socket, state, host, cx| {
            state.drain_prequeue(socket, host, cx);
            state.tcb.close(&mut cx.tcp());
        });
        // The thread may not return to polling, and then only the worker would poll for packets.
        cx.leave_polling();
    }

    /// Aborts the connection: sends RST and drops all queued data.
    pub fn abort(&self, host: &Host, cx: &mut Cx) {
        self.call(host, cx, |_, state, _, cx| {
            state.tcb.abort(&mut cx.tcp());
        });
    }

    /// Ends the connection with `ENETDOWN`, because its local address was removed with a device.
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

    /// Verifies the invariants of the connection and its surroundings without running TCP, so that
    /// forgotten work stays visible. For the simulator, between two turns. See
    /// [`tcp::Tcb::check_turn`].
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self, host: &Host, cx: &mut Cx) -> Option<tcp::Edges> {
        self.check_memory(host, cx).0
    }

    /// Like [`check`](Self::check); also returns the memory of the connection.
    pub(crate) fn check_memory(
        &self,
        host: &Host,
        cx: &mut Cx,
    ) -> (Option<tcp::Edges>, MemoryInfo) {
        let mut state = self.lock.own();
        // The wheel may be late by at most a tick.
        let edges = state.tcb.check_turn(cx.now - TICK);
        if let Some(deadline) = state.tcb.next_deadline() {
            assert!(self.is_armed(deadline), "no timer entry covers {deadline:?}");
        }
        state.prequeue.check();
        state.check_dst(self, host, cx);
        state.check_account(self);
        let memory = MemoryInfo::of(self, &state);
        backlog::release(self, state, host, cx);
        (edges, memory)
    }

    /// Owns the socket during `interrupt`. The simulator uses it to simulate a thread that is
    /// descheduled in the middle of a call.
    pub fn hold(&self, host: &Host, cx: &mut Cx, interrupt: impl FnOnce(&mut Cx)) {
        self.call(host, cx, |_, _, _, cx| interrupt(cx));
    }

    /// Returns the time that `close` should wait for queued data (`SO_LINGER`), if it should.
    pub fn linger(&self, host: &Host, cx: &mut Cx) -> Option<Duration> {
        self.with_tcb(host, cx, |tcb, _| tcb.linger())
    }

    /// Frame of every call: owns the socket, does the work, settles, runs other cores' work,
    /// processes the backlog, releases, wakes.
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

    /// Like [`call`](Self::call), for `work` that needs no exact time: `cx.now` may be stale, but
    /// is not earlier than the socket's latest time. The remaining steps read the clock themselves.
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
        // Before the socket is released, so that softirq context may free the packets first.
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

/// Reads more into the following buffers after a read of `copied` bytes. The state after the data,
/// such as an error, is left to the next call, because reporting clears it. A read stops before
/// urgent data.
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

/// Loop of `send` between owning and settling the socket: repeats steps while there is space.
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
                    // An error that arrived meanwhile is left to the next call, because reporting
                    // clears it.
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

/// One step of `send`, of one superframe: copies, transmits, runs the peer's core, and processes
/// replies from the backlog.
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

/// Polls the devices of the core from a thread that sends in bulk, about once per superframe:
/// packets for its own connection go to the backlog, which it processes next.
fn poll_in_passing(socket: &TcpSocket, state: &mut Holder<'_>, host: &Host, cx: &mut Cx) {
    if state.take_poll_due(SEND_STEP_BYTES) {
        cx.freshen();
        host.core(socket.core()).poll_in_passing(host, cx);
    }
}

fn has_error(state: &Holder<'_>) -> bool {
    state.tcb.has_error()
}
