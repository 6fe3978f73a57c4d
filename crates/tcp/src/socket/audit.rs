//! Invariants of a connection between two engine calls, for the simulator, the fuzzer and the
//! tests.
//!
//! Above: `sim`, `fuzz` and the tests of this crate; no code on the data path calls it.
//!
//! The checks recompute sums from their parts and compare sequence numbers with each other and with
//! earlier values ([`Edges`]). Data and ACKs that wait must have an armed timer. A failed check is
//! a bug of the engine, whether or not the input was valid.
//!
//! Not here: checks that need both ends or the network (`sim`).

use pkt::Instant;

use crate::{
    base::state::State,
    segment::window::{highest_edge, least_window, receive_window, wanted_window},
    tcb::{Tcb, TcbFlags},
    wire::seq::SeqNum,
};

/// Sequence numbers that never decrease during a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// ISS, which distinguishes connections with the same four-tuple.
    pub iss: SeqNum,
    /// SND.UNA.
    pub snd_una: SeqNum,
    /// SND.NXT.
    pub snd_nxt: SeqNum,
    /// RCV.NXT.
    pub rcv_nxt: SeqNum,
    /// Highest right edge ever announced: data before it is accepted even if the window has shrunk
    /// since (RFC 7323 §2.4).
    pub window_end: SeqNum,
}

impl Edges {
    /// Compares with an earlier state of the same connection.
    ///
    /// # Panics
    ///
    /// If a number has decreased.
    pub fn check_after(&self, before: &Self) {
        assert!(self.snd_una.ge(before.snd_una), "SND.UNA moved back: {before:?} to {self:?}");
        assert!(self.snd_nxt.ge(before.snd_nxt), "SND.NXT moved back: {before:?} to {self:?}");
        assert!(self.rcv_nxt.ge(before.rcv_nxt), "RCV.NXT moved back: {before:?} to {self:?}");
        assert!(
            self.window_end.ge(before.window_end),
            "the accepted window moved back: {before:?} to {self:?}"
        );
    }
}

impl Tcb {
    /// Checks the invariants that hold after every engine call.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold: the engine has a bug.
    pub fn check(&self) {
        assert!(self.snd_una.le(self.snd_nxt), "SND.UNA is beyond SND.NXT");
        assert!(
            self.rcv_wup.le(self.rcv_nxt),
            "RCV.WUP (RCV.NXT at the last window announcement) is beyond RCV.NXT"
        );
        self.receive_queue.check();
        self.packet_cache.check();
        self.reassembly.check(self.rcv_nxt);
        self.congestion.check();
        if self.state == State::Close {
            assert!(self.send_queue.is_empty(), "a closed connection has data in its send queue");
            assert_eq!(self.next_deadline(), None, "a closed connection has a timer");
            return;
        }
        let syn_acked = self.snd_una != self.iss;
        let una = if syn_acked { self.snd_una } else { self.iss + 1 };
        self.send_queue.check(una, self.snd_nxt);
        let window_end = highest_edge(self);
        let fin = u32::from(self.flags.contains(TcbFlags::FIN_RECEIVED));
        if self.state.is_synchronized() {
            assert!(
                self.rcv_nxt.le(window_end + fin),
                "RCV.NXT is beyond the end of the announced window"
            );
        }
        assert!(
            self.snd_wnd <= self.mss.max_window(),
            "the current window of the peer is larger than MAX.WND"
        );
        let waits = self.next_deadline().is_some();
        let outstanding = !self.send_queue.is_empty() || !syn_acked;
        assert!(
            !outstanding || waits || self.state == State::SynRecv || self.is_syn_held(),
            "an unacknowledged SYN or queued data has no timer"
        );
    }

    /// Checks the invariants of [`check`](Self::check), and those that hold after
    /// [`output`](crate::output()) has processed all events up to `now`. Returns the numbers that
    /// never decrease; `None` until the handshake has completed, and in state CLOSED.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold: the engine has a bug.
    pub fn check_after_output(&self, now: Instant) -> Option<Edges> {
        self.check();
        if self.state == State::Close {
            return None;
        }
        if let Some(deadline) = self.next_deadline() {
            assert!(deadline >= now, "a timer was due {:?} ago", now - deadline);
        }
        if self.state.may_transmit() {
            // RFC 6298 §5.1: data in flight has a timer. RFC 9293 §3.8.6.1: a closed window is
            // probed while unsent data waits.
            let unsent = self.send_queue.first_unsent().is_some();
            assert!(
                self.send_queue.sent_count() == 0 || self.timers.is_flight_timer_armed(),
                "data is in flight without a timer: {:?}",
                self.timers
            );
            let waits = self.timers.rtx().is_some() || self.timers.is_pacing();
            assert!(!unsent || waits, "unsent data waits without a timer");
        }
        if self.state.may_receive() && self.receive_queue.is_empty() && self.reassembly.is_empty() {
            // RFC 9293 §3.8.6.2.2: an empty buffer has room for a segment, and the window announced
            // to the peer is open, or an ACK that opens it is pending.
            let (wanted, least) = (wanted_window(self), least_window(self));
            assert!(
                wanted >= least,
                "with an empty buffer the next window to announce would be {wanted} bytes, less than \
                 {least}"
            );
            assert!(
                receive_window(self) > 0 || self.ack.is_pending(),
                "the buffer is empty, the announced window is closed, and no ACK is pending: {:?}",
                self.receive_buffer
            );
        }
        if self.ack.is_pending() {
            assert!(self.timers.delack().is_some(), "an ACK is pending without a timer");
        }
        self.state.is_synchronized().then(|| Edges {
            iss: self.iss,
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            window_end: highest_edge(self),
        })
    }
}
