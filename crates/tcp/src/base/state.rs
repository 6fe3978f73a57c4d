//! The states of a connection and the moves between them.
//!
//! RFC 9293 §3.3.2; Linux: include/net/tcp_states.h, whose names and numbers these are.
//!
//! NEW_SYN_RECV has no variant: a passive open lives in its own small type until the handshake is
//! done, and TIME_WAIT's own type likewise reports [`State::TimeWait`].

use core::fmt;

/// State of a connection, numbered as Linux reports it in `TCP_INFO`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// Data flows both ways.
    Established = 1,
    /// Active open: our SYN is out.
    SynSent = 2,
    /// Simultaneous open: SYNs have crossed, ours is not acknowledged.
    SynRecv = 3,
    /// Our FIN is out, not acknowledged; the peer still sends.
    FinWait1 = 4,
    /// Our FIN is acknowledged; the peer still sends.
    FinWait2 = 5,
    /// Both FINs are acknowledged; old duplicates drain.
    TimeWait = 6,
    /// No connection (RFC: CLOSED).
    Close = 7,
    /// The peer has closed its direction; we still send.
    CloseWait = 8,
    /// The peer has closed and our FIN is out.
    LastAck = 9,
    /// Waiting for a peer.
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

    /// Name as netstat prints it.
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

    /// Both sides know both initial sequence numbers (RFC 9293 §3.5.2's synchronized group).
    #[must_use]
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Close | Self::Listen | Self::SynSent | Self::SynRecv)
    }

    /// New application data may be accepted for sending once it can be sent.
    #[must_use]
    pub const fn may_queue_data(self) -> bool {
        matches!(self, Self::SynSent | Self::SynRecv | Self::Established | Self::CloseWait)
    }

    /// Queued data and a first FIN may go out, or again after loss.
    #[must_use]
    pub const fn may_transmit(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }

    /// The peer may still send new data: no FIN of its has been taken.
    #[must_use]
    pub const fn may_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// The peer's FIN has been taken: the stream has an end.
    #[must_use]
    pub const fn peer_closed(self) -> bool {
        matches!(self, Self::CloseWait | Self::LastAck | Self::Closing | Self::TimeWait)
    }

    /// We have closed our direction: a FIN is sent or is behind the queued data.
    #[must_use]
    pub const fn local_closed(self) -> bool {
        matches!(
            self,
            Self::FinWait1 | Self::FinWait2 | Self::Closing | Self::LastAck | Self::TimeWait
        )
    }

    /// Counted by `TcpCurrEstab`: ESTABLISHED or CLOSE_WAIT (RFC 4022 tcpCurrEstab).
    #[must_use]
    pub const fn counts_as_established(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// `next` is an edge of RFC 9293 figure 5, an abort, or Linux's tolerance of a FIN in SYN_RECV.
    ///
    /// For assertions; no state changes because of it.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use State::{
            Close, CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynRecv,
            SynSent, TimeWait,
        };
        match (self, next) {
            // A reset, an abort or a give-up ends any state.
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
    fn numbers_are_linux_numbers() {
        for (index, state) in (1u8..).zip(State::ALL) {
            assert_eq!(state as u8, index);
        }
    }

    #[test]
    fn closed_flags_follow_the_edges() {
        for state in State::ALL {
            // Taking the peer's FIN ends receiving, and both are false before the handshake.
            assert!(!(state.may_receive() && state.peer_closed()), "{state}");
            if state.counts_as_established() {
                assert!(state.may_queue_data() && state.may_transmit() && !state.local_closed());
            }
        }
    }

    #[test]
    fn every_state_is_left_and_only_close_is_final() {
        for state in State::ALL {
            assert!(state.may_become(State::Close), "{state}");
            let reached = State::ALL.iter().any(|from| from.may_become(state));
            assert!(reached, "{state} is never entered");
        }
        assert!(!State::TimeWait.may_become(State::Established));
        assert!(!State::Established.may_become(State::SynRecv));
        assert!(!State::Listen.may_become(State::Established));
    }
}
