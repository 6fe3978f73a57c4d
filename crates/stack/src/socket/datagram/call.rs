//! Begin and end of a call on a datagram socket: a thread owns the socket from `begin_call` to
//! `end`.
//!
//! Linux: `lock_sock`, `release_sock`. As for a connection (`connection::call`), the backlog is
//! processed before the lock is released, and the thread runs the cores whose doorbells (arrival
//! signals of devices in this process) its packets have rung.

use pkt::Packet;
use sync::Owned;

use super::{DatagramSocket, DatagramState};
use crate::{
    cx::{Cx, Entered},
    socket::net::Net,
};

/// Payload bytes after which a sending thread polls the core of the socket.
const POLL_EVERY_BYTES: usize = 64 * 1024;

/// A call under way.
#[must_use = "`end` must be called: it publishes the state and wakes waiting threads"]
pub(super) struct Call<'a> {
    pub(super) socket: &'a DatagramSocket,
    pub(super) net: &'a Net,
    pub(super) state: Owned<'a, DatagramState, Packet>,
    entered: Entered,
}

impl DatagramSocket {
    /// Begins a call: reads the clock if `cx.now` may be stale, and takes the lock.
    #[inline]
    pub(super) fn begin_call<'a>(&'a self, net: &'a Net, cx: &mut Cx) -> Call<'a> {
        cx.refresh_clock();
        self.begin_untimed_call(net, cx)
    }

    /// Like [`begin_call`](Self::begin_call), for work that needs no exact time.
    #[inline]
    pub(super) fn begin_untimed_call<'a>(&'a self, net: &'a Net, cx: &mut Cx) -> Call<'a> {
        let entered = cx.enter(net);
        cx.pool.drain_deferred();
        Call { socket: self, net, state: self.lock.own(), entered }
    }

    /// Owns the socket while `interrupt` runs. The simulator uses this to model a thread that is
    /// descheduled in the middle of a call.
    pub fn hold(&self, net: &Net, cx: &mut Cx, interrupt: impl FnOnce(&mut Cx)) {
        let call = self.begin_call(net, cx);
        interrupt(cx);
        call.end(cx);
    }
}

impl Call<'_> {
    /// Ends the call: publishes the state, runs the cores whose doorbells the packets have rung,
    /// polls the core of the socket if that is due, processes the backlog, releases the lock, and
    /// wakes the waiting threads.
    #[inline]
    pub(super) fn end(mut self, cx: &mut Cx) {
        let socket = self.socket;
        self.state.publish(socket, cx);
        cx.do_softirq();
        if self.state.sent_unpolled >= POLL_EVERY_BYTES {
            self.state.sent_unpolled = 0;
            cx.refresh_clock();
            self.net.runner(socket.core).poll_in_passing(cx);
        }
        if !self.state.is_undisturbed() {
            self.state.run_backlog(|state, work| state.work(socket, cx, work));
        }
        let mut newly_ready = self.state.newly_ready.take();
        self.state.release(|state, work| {
            state.work(socket, cx, work);
            newly_ready |= state.newly_ready.take();
        });
        socket.wake(cx, newly_ready);
        cx.do_softirq();
        cx.leave(self.entered);
    }
}
