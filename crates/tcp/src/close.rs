//! The end of a connection: half-close, close, abort, and the states that wait.
//!
//! Above: the application, through `stack::socket`. RFC 9293 §3.6 and §3.10.4–3.10.5,
//! RFC 1122 §4.2.2.13; Linux: tcp_shutdown, tcp_close, tcp_disconnect, tcp_fin_time.
//!
//! `timer` stands here because every deadline may be the end of the connection: it runs the steps
//! of `loss` and `segment`, keepalive, and the states that wait.
//!
//! Not here: blocking in close for `SO_LINGER` (the socket layer waits while [`Tcb::is_closing`]).

pub(crate) mod keepalive;
pub mod time_wait;
pub mod timer;

use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    close::time_wait::TIME_WAIT_LEN,
    cx::Cx,
    segment,
    tcb::{Tcb, TcbFlags},
};

impl Tcb {
    /// No more writing: a FIN follows what is queued (`shutdown(SHUT_WR)`). The caller runs `output` after it.
    ///
    /// In SYN-SENT the attempt ends, as in Linux.
    pub fn shutdown_write(&mut self, cx: &mut Cx<'_>) {
        if self.flags.contains(TcbFlags::SHUT_WRITE) {
            return;
        }
        if self.state == State::SynSent {
            self.finish(cx, Some(TcpError::ConnectionReset));
            return;
        }
        self.flags |= TcbFlags::SHUT_WRITE;
        // In SYN-RECEIVED the flag waits for ESTABLISHED.
        self.start_close(cx);
    }

    /// No more reading (`shutdown(SHUT_RD)`): reads answer end of stream. Nothing is told to the peer, and what it
    /// sends in ESTABLISHED is still acknowledged, as in Linux.
    pub fn shutdown_read(&mut self) {
        self.flags |= TcbFlags::SHUT_READ;
    }

    /// The application lets go of the connection. Data unread, or a linger time of zero, reset it; else a FIN follows
    /// what is queued and the connection lives on as an orphan. The caller runs `output` after it and keeps the block
    /// until its state is CLOSE or TIME-WAIT.
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        self.flags |= TcbFlags::ORPHAN | TcbFlags::SHUT_READ;
        let unread = !self.receive_queue.is_empty();
        self.receive_queue.purge(cx.pool);
        match self.state {
            State::Close | State::TimeWait => {}
            State::SynSent | State::Listen => self.finish(cx, None),
            _ if unread => {
                // RFC 1122 §4.2.2.13: the peer must learn that data was lost.
                cx.count(Counter::TcpExtTCPAbortOnClose);
                segment::send_reset(self, cx);
                self.finish(cx, None);
            }
            _ if self.linger_ms == 0 => {
                cx.count(Counter::TcpExtTCPAbortOnData);
                self.abort(cx);
            }
            State::FinWait2 => self.enter_fin_wait_2(cx),
            _ => self.shutdown_write(cx),
        }
        self.error = None;
    }

    /// Resets the connection at once (RFC 9293 §3.10.5; `SO_LINGER` of zero). Nothing queued is sent. Whoever still
    /// uses it learns that it was aborted, as with Linux's `tcp_abort`.
    pub fn abort(&mut self, cx: &mut Cx<'_>) {
        if self.state == State::Close {
            // Over already, perhaps in good order: what was received may still be read.
            return;
        }
        let owes_reset = match self.state {
            State::SynRecv
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait => true,
            State::Closing | State::LastAck => self.send_queue.first_unsent().is_some(),
            State::Close | State::Listen | State::SynSent | State::TimeWait => false,
        };
        if owes_reset {
            segment::send_reset(self, cx);
        }
        self.flags |= TcbFlags::ORPHAN;
        self.finish(cx, Some(TcpError::Aborted));
        self.receive_queue.purge(cx.pool);
        // Data that was not read is gone: a reader gets the error, not the end that the peer's FIN stood for.
        self.flags -= TcbFlags::FIN_RECEIVED;
    }

    /// The host has lost the local address for good: no segment can be sent or received any more, not even a reset. Received
    /// data stays readable; after it the application gets ENETDOWN, the error that Linux reports to sockets whose interface is
    /// unregistered.
    pub fn lose_address(&mut self, cx: &mut Cx<'_>) {
        if self.state != State::Close {
            self.finish(cx, Some(TcpError::NetworkDown));
        }
    }

    /// Queues the FIN and takes the edge of figure 5 that goes with it.
    pub(crate) fn start_close(&mut self, cx: &Cx<'_>) {
        let next = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        self.send_queue.append_fin();
        self.set_state(cx, next);
    }

    /// FIN-WAIT-2 of an orphan ends by itself: the peer might never close (`TCP_LINGER2`, `tcp_fin_timeout`; Linux:
    /// tcp_fin_time).
    pub(crate) fn enter_fin_wait_2(&mut self, cx: &mut Cx<'_>) {
        if !self.flags.contains(TcbFlags::ORPHAN) {
            return;
        }
        if self.linger2_ms == 0 {
            cx.count(Counter::TcpExtTCPAbortOnLinger);
            segment::send_reset(self, cx);
            return self.finish(cx, None);
        }
        let timeout = self.linger2().unwrap_or(cx.config.tcp_fin_timeout);
        // Time enough for the peer to repeat its FIN.
        let least = self.rtt.rto() * 7 / 2;
        self.timers.arm_keep(cx.now + timeout.max(least));
    }

    /// Too many connections are held by nobody: this one is reset (Linux: tcp_check_oom).
    pub fn abort_on_memory(&mut self, cx: &mut Cx<'_>) {
        cx.count(Counter::TcpExtTCPAbortOnMemory);
        segment::send_reset(self, cx);
        self.finish(cx, None);
    }

    /// The application has let go of the connection.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.flags.contains(TcbFlags::ORPHAN)
    }

    /// Both FINs are acknowledged: only old duplicates are left to wait for. The stack moves the connection to a
    /// [`TimeWait`](crate::TimeWait) as soon as it sees the state.
    pub(crate) fn enter_time_wait(&mut self, cx: &Cx<'_>) {
        self.set_state(cx, State::TimeWait);
        let fin_ack_owed = self.ack.is_now();
        self.timers.stop_all();
        self.timers.arm_keep(cx.now + TIME_WAIT_LEN);
        self.recovery.forget(self.snd_una);
        if fin_ack_owed {
            self.ack.schedule_now();
        }
    }

    /// The stack took over TIME-WAIT with [`TimeWait::from_tcb`](crate::TimeWait::from_tcb): this block keeps only
    /// what the application may still read. Run `output` before it: the last ACK may be owed.
    pub fn release_time_wait(&mut self, cx: &mut Cx<'_>) {
        debug_assert_eq!(self.state, State::TimeWait);
        self.finish(cx, None);
    }

    /// The application let go and the peer has not acknowledged everything: what a lingering close waits for.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        matches!(self.state, State::FinWait1 | State::Closing | State::LastAck)
    }
}
