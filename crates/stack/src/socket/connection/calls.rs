//! Calls on a connection that transfer no data: shutdown, close, errors, options, and checks.
//!
//! Above: crate `quietline`, the simulator. Below: `call`, which begins and ends each call. Linux:
//! `inet_shutdown`, `tcp_close`, `sock_error`.
//!
//! Not here: `send` and `recv` (`send`, `recv`), options that need no lock (`options`).

use std::time::Duration;

use tcp::State;

use super::{Connection, backlog};
use crate::{
    base::{errno::Errno, timer::TICK},
    cx::Cx,
    socket::{net::Net, options::MemoryInfo},
};

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

impl Connection {
    /// Closes one or both halves.
    pub fn shutdown(&self, net: &Net, cx: &mut Cx, how: ShutdownHow) -> Result<(), Errno> {
        let mut call = self.begin_call(net, cx);
        call.state.drain_prequeue(self, net, cx);
        let tcb = &mut call.state.tcb;
        let result = match tcb.state() {
            State::Close | State::Listen => Err(Errno::ENOTCONN),
            // The connection attempt ends, whichever half is closed (Linux: inet_shutdown).
            State::SynSent => {
                tcb.shutdown_write(&mut cx.tcp());
                Ok(())
            }
            _ => {
                if how != ShutdownHow::Write {
                    tcb.shutdown_read();
                }
                if how != ShutdownHow::Read {
                    tcb.shutdown_write(&mut cx.tcp());
                }
                Ok(())
            }
        };
        call.end(cx);
        result
    }

    /// Ends the application's use of the connection. Queued data is still sent, unless received
    /// data is unread or `SO_LINGER` is zero: then the connection is reset. The socket exists until
    /// TCP has closed the connection, or a TIME-WAIT socket replaces it.
    pub fn close(&self, net: &Net, cx: &mut Cx) {
        let mut call = self.begin_call(net, cx);
        call.state.drain_prequeue(self, net, cx);
        call.state.tcb.close(&mut cx.tcp());
        call.end(cx);
        // The thread possibly never polls this core again, so the worker must watch the queues.
        cx.leave_polling();
    }

    /// Aborts the connection: sends RST and drops all queued data.
    pub fn abort(&self, net: &Net, cx: &mut Cx) {
        let mut call = self.begin_call(net, cx);
        call.state.tcb.abort(&mut cx.tcp());
        call.end(cx);
    }

    /// Ends the connection with `ENETDOWN`, because its local address was removed with a device.
    pub(crate) fn lose_address(&self, net: &Net, cx: &mut Cx) {
        let mut call = self.begin_call(net, cx);
        call.state.tcb.lose_address(&mut cx.tcp());
        call.end(cx);
    }

    /// Returns the pending error and clears it, as `SO_ERROR` does.
    pub fn take_error(&self, net: &Net, cx: &mut Cx) -> Option<Errno> {
        let mut call = self.begin_call(net, cx);
        let error = call.state.tcb.take_error();
        call.end(cx);
        error.map(Errno::from)
    }

    /// Runs `change` under the socket lock, mostly to read or change options of the connection.
    pub fn with_tcb<R>(
        &self,
        net: &Net,
        cx: &mut Cx,
        change: impl FnOnce(&mut tcp::Tcb, &mut tcp::Cx<'_>) -> R,
    ) -> R {
        let mut call = self.begin_call(net, cx);
        let result = change(&mut call.state.tcb, &mut cx.tcp());
        call.end(cx);
        result
    }

    /// Returns the memory that the socket holds and may hold (`SO_MEMINFO`).
    pub fn memory_info(&self, net: &Net, cx: &mut Cx) -> MemoryInfo {
        let call = self.begin_call(net, cx);
        let info = MemoryInfo::of(self, &call.state);
        call.end(cx);
        info
    }

    /// Returns how long `close` should wait until the peer has acknowledged the queued data and the
    /// FIN (`SO_LINGER`), or `None` if it should not wait.
    pub fn linger(&self, net: &Net, cx: &mut Cx) -> Option<Duration> {
        self.with_tcb(net, cx, |tcb, _| tcb.linger())
    }

    /// Checks the invariants of the connection and of the state around it. The check performs no
    /// overdue action of TCP, so that a forgotten action is detected. For the simulator, between
    /// two turns of a core (passes of its softirq work). See [`tcp::Tcb::check_after_output`].
    ///
    /// # Panics
    ///
    /// If an invariant does not hold.
    pub fn check(&self, net: &Net, cx: &mut Cx) -> Option<tcp::Edges> {
        self.check_memory(net, cx).0
    }

    /// As [`check`](Self::check); also returns the memory that the connection holds.
    pub(crate) fn check_memory(&self, net: &Net, cx: &mut Cx) -> (Option<tcp::Edges>, MemoryInfo) {
        let mut state = self.lock.own();
        // The timer wheel may fire one tick late.
        let edges = state.tcb.check_after_output(cx.now - TICK);
        if let Some(deadline) = state.tcb.next_deadline() {
            assert!(self.is_armed(deadline), "no timer is armed for {deadline:?}");
        }
        state.prequeue.check();
        state.check_dst(self, net, cx);
        state.check_account(self);
        let memory = MemoryInfo::of(self, &state);
        backlog::release(self, state, net, cx);
        (edges, memory)
    }

    /// Owns the socket while `interrupt` runs. For the simulator, in which this call stands for a
    /// thread that is descheduled in the middle of a call.
    pub fn hold(&self, net: &Net, cx: &mut Cx, interrupt: impl FnOnce(&mut Cx)) {
        let call = self.begin_call(net, cx);
        interrupt(cx);
        call.end(cx);
    }
}
