//! Begin and end of a socket call: an application thread owns the socket from `begin_call` to
//! `end`.
//!
//! Above: the calls on a connection (`send`, `recv`, `calls`, `modes::reader`). Below: `settle`,
//! `backlog`. Linux: `lock_sock`, `release_sock`.
//!
//! While the socket is owned, softirq context adds packets to the backlog and defers other work;
//! `end` processes both before it releases the lock. If packets of the call have reached another
//! socket of this process, over loopback or a wire (the in-process link between two hosts), `end`
//! also runs the receiving cores (`Cx::do_softirq`), so that the peer answers at once.
//!
//! Not here: waiting. A call that would have to wait returns `EAGAIN`; crate `quietline` then waits
//! and repeats the call.

use pkt::Packet;
use sync::Owned;

use super::{Connection, StreamState, backlog};
use crate::{
    cx::{Cx, Entered},
    socket::net::Net,
};

/// Payload bytes that `send` queues before it transmits them, and after which the sending thread
/// polls the connection's core: one superframe (packet of several segments). With BIG TCP a
/// superframe may be larger, and `send` then queues a whole one. Steps of this size keep the
/// payload in the cache until the device reads it, and acknowledgments are processed between two
/// steps.
pub(super) const SEND_STEP_BYTES: usize = 64 * 1024;

/// State of a socket that the calling thread owns.
pub(in crate::socket) type Holder<'a> = Owned<'a, StreamState, Packet>;

/// A socket call between `begin_call` and `end`.
#[must_use = "`end` must be called: it transmits, releases the lock and wakes waiting threads"]
pub(in crate::socket) struct Call<'a> {
    pub(in crate::socket) socket: &'a Connection,
    pub(in crate::socket) net: &'a Net,
    pub(in crate::socket) state: Holder<'a>,
    /// Return value of `Cx::enter`, for `Cx::leave`.
    entered: Entered,
}

impl Connection {
    /// Begins a call: takes the lock, and reads the clock if `cx.now` may be stale.
    #[inline]
    pub(in crate::socket) fn begin_call<'a>(&'a self, net: &'a Net, cx: &mut Cx) -> Call<'a> {
        let mut call = self.begin_untimed_call(net, cx);
        call.state.sync_clock(cx);
        call
    }

    /// Begins a call whose work needs no exact time: as [`begin_call`](Self::begin_call), but
    /// without reading the clock. `cx.now` may be stale, but is not earlier than the latest time of
    /// the socket. If the end of the call runs `settle`, that reads the clock (`settle_call`).
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
        state.advance_clock_to_latest(cx);
        Call { socket: self, net, state, entered }
    }
}

impl Call<'_> {
    /// Ends the call: transmits, runs the cores that packets of this call have reached, processes
    /// the backlog, releases the lock, and wakes the waiting threads.
    #[inline]
    pub(in crate::socket) fn end(mut self, cx: &mut Cx) {
        let (socket, net) = (self.socket, self.net);
        backlog::note_locked_timer(&self.state, cx);
        self.state.settle_call(socket, net, cx);
        cx.do_softirq();
        self.poll_in_passing(cx);
        // Packets whose data was read are queued before the lock is released, so that softirq
        // context may free them before this thread does.
        while let Some(packet) = cx.read.pop_front() {
            socket.read_packets.push(packet);
        }
        backlog::release(socket, self.state, net, cx);
        socket.free_read_packets(cx);
        cx.do_softirq();
        cx.leave(self.entered);
    }

    /// Polls the devices of the connection's core once per [`SEND_STEP_BYTES`] sent, if the core is
    /// idle, so that its worker need not be woken for each acknowledgment. Received packets of this
    /// connection are added to its backlog.
    pub(super) fn poll_in_passing(&mut self, cx: &mut Cx) {
        if self.state.take_poll_due(SEND_STEP_BYTES) {
            cx.refresh_clock();
            self.net.runner(self.socket.core()).poll_in_passing(cx);
        }
    }
}
