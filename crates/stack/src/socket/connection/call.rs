//! The frame of a socket call: an application thread owns the socket from `begin_call` to `end`.
//!
//! Above: every call on a connection (`send`, `recv`, `calls`, `modes::reader`). Below: `settle`,
//! `backlog`. Linux: `lock_sock`, `release_sock`.
//!
//! Softirq context that finds the socket owned puts packets on the backlog and defers the rest;
//! `end` processes both before it releases the lock. The thread also runs the cores whose doorbells
//! its own packets have rung (`Cx::do_softirq`), so that a peer in this process answers at once.
//!
//! Not here: waiting. A call that would have to wait returns `EAGAIN`, and crate `quietline` waits.

use pkt::Packet;
use sync::Owned;

use super::{Connection, StreamState, backlog};
use crate::{
    cx::{Cx, Entered},
    socket::net::Net,
};

/// Payload bytes that `send` queues before it transmits, and after which a sending thread polls its
/// own core: one superframe, or a larger one with BIG TCP. The payload is then still in the cache
/// when the device reads it, and acknowledgments are processed in between.
pub(super) const SEND_STEP_BYTES: usize = 64 * 1024;

/// The socket, owned by the calling thread.
pub(in crate::socket) type Holder<'a> = Owned<'a, StreamState, Packet>;

/// A call under way.
#[must_use = "a call settles the connection and wakes its waiters in `end`"]
pub(in crate::socket) struct Call<'a> {
    pub(in crate::socket) socket: &'a Connection,
    pub(in crate::socket) net: &'a Net,
    pub(in crate::socket) state: Holder<'a>,
    /// Return value of `Cx::enter`, for `Cx::leave`.
    entered: Entered,
}

impl Connection {
    /// Begins a call: takes the lock and reads the clock.
    #[inline]
    pub(in crate::socket) fn begin_call<'a>(&'a self, net: &'a Net, cx: &mut Cx) -> Call<'a> {
        let mut call = self.begin_untimed_call(net, cx);
        call.state.sync_clock(cx);
        call
    }

    /// Like [`begin_call`](Self::begin_call), for work that needs no exact time. `cx.now` may be
    /// stale, but is not earlier than the latest time that the socket has seen. `settle` reads the
    /// clock itself if it has work.
    #[inline]
    pub(in crate::socket) fn begin_untimed_call<'a>(
        &'a self,
        net: &'a Net,
        cx: &mut Cx,
    ) -> Call<'a> {
        let entered = cx.enter(net);
        cx.record_flow(self.hash());
        cx.pool.drain_deferred();
        let state = self.lock.own();
        state.not_before_latest(cx);
        Call { socket: self, net, state, entered }
    }
}

impl Call<'_> {
    /// Ends the call: transmits, runs the cores that were raised, processes the backlog, releases
    /// the lock, and wakes the waiting threads.
    #[inline]
    pub(in crate::socket) fn end(mut self, cx: &mut Cx) {
        let (socket, net) = (self.socket, self.net);
        backlog::note_locked_timer(&self.state, cx);
        self.state.settle_call(socket, net, cx);
        cx.do_softirq();
        self.poll_in_passing(cx);
        // These packets are queued before the lock is released, so that softirq context can free
        // them first.
        while let Some(packet) = cx.read.pop_front() {
            socket.read_packets.push(packet);
        }
        backlog::release(socket, self.state, net, cx);
        socket.free_read_packets(cx);
        cx.do_softirq();
        cx.leave(self.entered);
    }

    /// Polls the devices of the connection's core, about once per superframe sent, because a thread
    /// that sends in bulk delays the core's worker. Packets for this connection go to its backlog.
    pub(super) fn poll_in_passing(&mut self, cx: &mut Cx) {
        if self.state.take_poll_due(SEND_STEP_BYTES) {
            cx.freshen();
            self.net.runner(self.socket.core()).poll_in_passing(cx);
        }
    }
}
