//! End of a connection: half-close, close, abort, FIN-WAIT-2 and TIME-WAIT.
//!
//! Above: the application, through `stack::socket`. RFC 9293 §3.6 and §3.10.4–3.10.5,
//! RFC 1122 §4.2.2.13; Linux: tcp_shutdown, tcp_close, tcp_disconnect, tcp_fin_time.
//!
//! `timer` belongs to this module because most timers can end the connection: it runs the timeout
//! steps of `loss` and `segment`, keepalive, FIN-WAIT-2 and TIME-WAIT.
//!
//! Not here: a close that blocks for `SO_LINGER` (its caller waits until `stack::socket` publishes
//! that the FIN is acknowledged).

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
    /// Closes the sending direction: a FIN follows the queued data (`shutdown(SHUT_WR)`). The
    /// caller runs `output` afterwards.
    ///
    /// In SYN-SENT the connection attempt ends, as in Linux.
    pub fn shutdown_write(&mut self, cx: &mut Cx<'_>) {
        if self.flags.contains(TcbFlags::SHUT_WRITE) {
            return;
        }
        if self.state == State::SynSent {
            self.finish(cx, Some(TcpError::ConnectionReset));
            return;
        }
        self.flags |= TcbFlags::SHUT_WRITE;
        // In SYN-RECEIVED the FIN is deferred until ESTABLISHED.
        self.start_close(cx);
    }

    /// Closes the receiving direction (`shutdown(SHUT_RD)`): reads return end of stream once the
    /// queue is empty. The peer is not notified, and data that it sends in ESTABLISHED is still
    /// queued and acknowledged, as in Linux.
    pub fn shutdown_read(&mut self) {
        self.flags |= TcbFlags::SHUT_READ;
    }

    /// Closes the connection for the application. In SYN-SENT the attempt ends at once. Unread
    /// data, or a linger time of zero, causes a reset. Otherwise a FIN follows the queued data,
    /// unless it was sent before, and the connection continues as an orphan. The caller runs
    /// `output` afterwards and keeps the control block until its state is CLOSE or TIME-WAIT.
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        self.flags |= TcbFlags::ORPHAN | TcbFlags::SHUT_READ;
        let unread = !self.receive_queue.is_empty();
        self.receive_queue.purge(cx.pool);
        match self.state {
            State::Close | State::TimeWait => {}
            State::SynSent | State::Listen => self.finish(cx, None),
            _ if unread => {
                // RFC 1122 §4.2.2.13: the reset tells the peer that data was lost.
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

    /// Ends the connection at once (RFC 9293 §3.10.5; `SO_LINGER` of zero) and discards queued
    /// data. A reset is sent, except in SYN-SENT and TIME-WAIT, and in CLOSING and LAST-ACK if no
    /// data is unsent. A pending or later call gets the error `Aborted`, as with Linux's
    /// `tcp_abort`.
    pub fn abort(&mut self, cx: &mut Cx<'_>) {
        if self.state == State::Close {
            // The connection has already ended, perhaps in good order: its received data stays
            // readable.
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
        // Unread data was discarded: a reader gets the error, not the end of stream.
        self.flags -= TcbFlags::FIN_RECEIVED;
    }

    /// Ends the connection because the host has lost its local address: no segment can be sent or
    /// received, not even a reset. Received data stays readable; then the application gets
    /// ENETDOWN, the error that Linux reports for sockets of an unregistered interface.
    pub fn lose_address(&mut self, cx: &mut Cx<'_>) {
        if self.state != State::Close {
            self.finish(cx, Some(TcpError::NetworkDown));
        }
    }

    /// Queues the FIN and makes the corresponding transition of RFC 9293, figure 5.
    pub(crate) fn start_close(&mut self, cx: &Cx<'_>) {
        let next = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        self.send_queue.append_fin();
        self.set_state(cx, next);
    }

    /// Arms the timeout of an orphan's FIN-WAIT-2, because the peer might never close
    /// (`TCP_LINGER2`, `tcp_fin_timeout`; Linux: tcp_fin_time).
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
        // The timeout must be long enough for the peer to retransmit its FIN.
        let least = self.rtt.rto() * 7 / 2;
        self.timers.arm_keep(cx.now + timeout.max(least));
    }

    /// Resets an orphan because there are too many orphans or too little memory (Linux:
    /// tcp_check_oom).
    pub fn abort_on_memory(&mut self, cx: &mut Cx<'_>) {
        cx.count(Counter::TcpExtTCPAbortOnMemory);
        segment::send_reset(self, cx);
        self.finish(cx, None);
    }

    /// Returns whether the application has closed the connection.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.flags.contains(TcbFlags::ORPHAN)
    }

    /// Enters TIME-WAIT: both FINs are acknowledged, and only old duplicates can arrive. The stack
    /// replaces the connection by a [`TimeWait`](crate::TimeWait) as soon as it reads the new
    /// state.
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

    /// Ends this control block after the stack has taken over TIME-WAIT with
    /// [`TimeWait::from_tcb`](crate::TimeWait::from_tcb). Only unread data stays. Call `output`
    /// first, because the last ACK may be pending.
    pub fn release_time_wait(&mut self, cx: &mut Cx<'_>) {
        debug_assert_eq!(self.state, State::TimeWait);
        self.finish(cx, None);
    }
}
