//! The states of a connection and the transitions between them.
//!
//! RFC 9293 §3.3.2. Names and numbers are those of Linux: include/net/tcp_states.h.
//!
//! Linux's NEW_SYN_RECV has no variant: a passive open is an object of the small type `Request`
//! until the handshake completes, unless it uses Fast Open. A connection in [`State::TimeWait`] is
//! soon replaced by an object of the small type `TimeWait`.

use core::fmt;

/// State of a connection, numbered as Linux reports it in `TCP_INFO`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// Open in both directions.
    Established = 1,
    /// Active open: our SYN is sent, or held until the first write (Fast Open).
    SynSent = 2,
    /// Our SYN is not acknowledged and the peer's has arrived: simultaneous open, Fast Open server,
    /// or a passive open until the third segment is processed.
    SynRecv = 3,
    /// Our FIN is sent or queued, not acknowledged; the peer still sends.
    FinWait1 = 4,
    /// Our FIN is acknowledged; the peer still sends.
    FinWait2 = 5,
    /// Both FINs are acknowledged; the connection waits until old duplicates have left the network.
    TimeWait = 6,
    /// No connection (RFC: CLOSED).
    Close = 7,
    /// The peer has closed its direction; we still send.
    CloseWait = 8,
    /// The peer has closed and our FIN is sent or queued.
    LastAck = 9,
    /// Listening for connection requests.
    Listen = 10,
    /// FINs have crossed; ours is not acknowledged.
    Closing = 11,
}

impl State {
    /// Every state, by Linux number.
    pub const ALL: [Self; 11] = [
        Self::Established,
        Self::SynSent,
        Self::SynRecv,
        Self::FinWait1,
        Self::FinWait2,
        Self::TimeWait,
        Self::Close,
        Self::CloseWait,
        Self::LastAck,
        Self::Listen,
        Self::Closing,
    ];

    /// Returns the name as netstat prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Established => "ESTABLISHED",
            Self::SynSent => "SYN_SENT",
            Self::SynRecv => "SYN_RECV",
            Self::FinWait1 => "FIN_WAIT1",
            Self::FinWait2 => "FIN_WAIT2",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::Listen => "LISTEN",
            Self::Closing => "CLOSING",
        }
    }

    /// Whether both sides know both initial sequence numbers (the synchronized states of
    /// RFC 9293 §3.5.2).
    #[must_use]
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Close | Self::Listen | Self::SynSent | Self::SynRecv)
    }

    /// Whether the direction to the peer is open or will be. Before ESTABLISHED only Fast Open
    /// accepts data.
    #[must_use]
    pub const fn may_queue_data(self) -> bool {
        matches!(self, Self::SynSent | Self::SynRecv | Self::Established | Self::CloseWait)
    }

    /// Whether queued data and our FIN may be sent, or retransmitted after a loss.
    #[must_use]
    pub const fn may_transmit(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }

    /// Whether the peer may still send new data, because its FIN has not been processed.
    #[must_use]
    pub const fn may_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether the peer's FIN has been processed: the received stream has an end.
    #[must_use]
    pub const fn peer_closed(self) -> bool {
        matches!(self, Self::CloseWait | Self::LastAck | Self::Closing | Self::TimeWait)
    }

    /// Whether we have closed our direction: our FIN is sent or enqueued behind the data.
    #[must_use]
    pub const fn local_closed(self) -> bool {
        matches!(
            self,
            Self::FinWait1 | Self::FinWait2 | Self::Closing | Self::LastAck | Self::TimeWait
        )
    }

    /// Whether `TcpCurrEstab` counts the connection: ESTABLISHED or CLOSE_WAIT (RFC 4022
    /// tcpCurrEstab).
    #[must_use]
    pub const fn counts_as_established(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Whether a connection in this state may enter `next`: by an abort, by the FIN that Linux
    /// accepts in SYN_RECV, or by a transition of RFC 9293 figure 5. The transitions from LISTEN
    /// are excluded, because no control block makes them.
    ///
    /// Only assertions call this function.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use State::{
            Close, CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynRecv,
            SynSent, TimeWait,
        };
        match (self, next) {
            // A reset, an abort or a timeout ends any state.
            (_, Close)
            | (Close, SynSent | Listen)
            | (SynSent, SynRecv | Established)
            | (SynRecv, Established | FinWait1 | CloseWait)
            | (Established, FinWait1 | CloseWait)
            | (FinWait1, FinWait2 | Closing | TimeWait)
            | (FinWait2 | Closing, TimeWait)
            | (CloseWait, LastAck) => true,
            _ => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn state_numbers_are_those_of_linux() {
        for (index, state) in (1u8..).zip(State::ALL) {
            assert_eq!(state as u8, index);
        }
    }

    #[test]
    fn the_predicates_of_a_state_do_not_contradict_each_other() {
        for state in State::ALL {
            // The peer's FIN ends receiving. Before the handshake both predicates are false.
            assert!(
                !(state.may_receive() && state.peer_closed()),
                "{state} both receives and is closed"
            );
            if state.counts_as_established() {
                assert!(state.may_queue_data() && state.may_transmit() && !state.local_closed());
            }
        }
    }

    #[test]
    fn every_state_can_be_entered_and_closed() {
        for state in State::ALL {
            assert!(state.may_become(State::Close), "{state} cannot be closed");
            let reached = State::ALL.iter().any(|from| from.may_become(state));
            assert!(reached, "{state} is never entered");
        }
        assert!(!State::TimeWait.may_become(State::Established));
        assert!(!State::Established.may_become(State::SynRecv));
        assert!(!State::Listen.may_become(State::Established));
    }
}
