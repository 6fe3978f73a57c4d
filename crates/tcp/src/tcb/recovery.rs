//! State of loss recovery, and the questions that other modules ask it.
//!
//! Above: `loss` changes it. RFC 5681 §3.2, RFC 6582, RFC 3522, RFC 5682; Linux: the `TCP_CA_*`
//! states of struct inet_connection_sock.
//!
//! Not here: what an ACK or a timeout changes of it (`loss::recovery`).

use pkt::Instant;

use crate::{
    tcb::{acked::Transmission, rack::Rack},
    wire::seq::SeqNum,
};

/// Segments limited transmit may send beyond the window, one per early duplicate ACK (RFC 3042 §2).
const LIMITED_TRANSMIT_SEGMENTS: u32 = 2;

/// Where the connection stands in recovering from loss, by Linux's numbers (`TCP_CA_*`, `tcpi_ca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CaState {
    /// Nothing unusual.
    Open = 0,
    /// Duplicate ACKs, too few to mean a loss.
    Disorder = 1,
    /// The window follows a congestion mark: once per window.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// Slow start after a retransmission timeout.
    Loss = 4,
}

impl CaState {
    /// Nothing is taken for lost.
    pub(crate) fn is_calm(self) -> bool {
        matches!(self, Self::Open | Self::Disorder)
    }

    /// What was lost is sent again.
    pub(crate) fn is_repairing(self) -> bool {
        matches!(self, Self::Recovery | Self::Loss)
    }
}

/// What a later ACK is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// SND.UNA when the window was reduced.
    pub(crate) marker: SeqNum,
    /// Bytes sent again since then and not reported as duplicates.
    pub(crate) outstanding: u32,
    /// TSval of the first retransmission; `None` until there is one.
    pub(crate) stamp: Option<u32>,
}

impl Undo {
    pub(crate) fn new(snd_una: SeqNum) -> Self {
        Self { marker: snd_una, outstanding: 0, stamp: None }
    }

    /// Every retransmission was reported as a duplicate.
    #[inline]
    pub(crate) fn is_refuted(self) -> bool {
        self.stamp.is_some() && self.outstanding == 0
    }
}

/// Where F-RTO stands (RFC 5682 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frto {
    /// Not running: the timeout is taken at its word.
    Off,
    /// The head was sent again, step 2.
    Head,
    /// New data is sent in place of what is marked lost, step 3.
    NewData,
}

/// A probe that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// TLP.end_seq: SND.NXT when it left.
    pub(crate) end_seq: SeqNum,
    /// TLP.is_retrans: it repeated the last segment.
    pub(crate) is_retransmission: bool,
}

/// See the module head.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// When the first retransmission without progress happened (Linux `retrans_stamp`): R2 counts from here.
    pub(crate) since: Instant,
    pub(crate) rack: Rack,
    /// A tail loss probe without an answer.
    pub(crate) probe: Option<Probe>,
    /// What may show that the last reduction was needless.
    pub(crate) undo: Option<Undo>,
    pub(crate) frto: Frto,
    /// RFC 6582's `recover`: SND.NXT when the last recovery began.
    pub(crate) recover: SeqNum,
    /// Where the last retransmission of a hole ended.
    pub(crate) hole_end: SeqNum,
    /// Duplicate ACKs since SND.UNA moved.
    pub(crate) dup_acks: u32,
    /// Segments of that retransmission.
    pub(crate) hole_segments: u16,
    pub(crate) state: CaState,
    /// Timeouts since SND.UNA moved.
    pub(crate) timeouts: u8,
    /// The SYN or SYN-ACK was sent more than once.
    pub(crate) handshake_lossy: bool,
    /// When our SYN-ACK left is not known: a cookie keeps nothing.
    pub(crate) handshake_unsampled: bool,
}

impl Recovery {
    pub(crate) fn new(iss: SeqNum) -> Self {
        Self {
            since: Instant::ZERO,
            rack: Rack::new(iss),
            probe: None,
            undo: None,
            frto: Frto::Off,
            recover: iss,
            hole_end: iss,
            dup_acks: 0,
            hole_segments: 0,
            state: CaState::Open,
            timeouts: 0,
            handshake_lossy: false,
            handshake_unsampled: false,
        }
    }

    /// The handshake needed `retransmits` repetitions while it was a request.
    pub(crate) fn on_request_retransmits(&mut self, retransmits: u8) {
        self.handshake_lossy = retransmits > 0;
    }

    /// The handshake's round trip is unknown.
    pub(crate) fn on_unsampled_handshake(&mut self) {
        self.handshake_unsampled = true;
    }

    pub(crate) fn handshake_is_unsampled(&self) -> bool {
        self.handshake_unsampled
    }

    pub(crate) fn handshake_was_lossy(&self) -> bool {
        self.handshake_lossy
    }

    pub(crate) fn on_established(&mut self, snd_una: SeqNum) {
        self.timeouts = 0;
        self.rack = Rack::new(snd_una);
    }

    /// Nothing is outstanding any more.
    pub(crate) fn forget(&mut self, snd_una: SeqNum) {
        *self = Self::new(snd_una);
    }

    pub(crate) fn state(&self) -> CaState {
        self.state
    }

    /// The SYN or SYN-ACK of this block is sent again.
    pub(crate) fn on_handshake_timeout(&mut self) {
        self.handshake_lossy = true;
    }

    /// Nothing is being repaired or probed for, and no reduction has turned out to be needless. One that still may is no
    /// matter: the evidence against it is a D-SACK.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.state == CaState::Open
            && self.probe.is_none()
            && !self.undo.is_some_and(Undo::is_refuted)
            && self.frto == Frto::Off
    }

    /// While [`is_quiet`](Self::is_quiet), all that was in flight has arrived, `newest` last and nothing behind it before.
    #[inline]
    pub(crate) fn on_predicted(&mut self, newest: Transmission, now: Instant) {
        self.timeouts = 0;
        self.rack.on_newest(newest, now);
        self.rack.on_highest(newest.end_seq);
    }

    /// When the first retransmission without progress happened.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Duplicate ACKs since SND.UNA moved: segments that left the network (Linux `sacked_out` without SACK).
    pub(crate) fn dup_acks(&self) -> u32 {
        self.dup_acks
    }

    /// Timeouts since SND.UNA moved (Linux `icsk_retransmits`).
    pub(crate) fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// Segments that may leave beyond the window because others arrived (RFC 3042).
    pub(crate) fn limited_transmit_segments(&self) -> u32 {
        if self.state == CaState::Disorder {
            self.dup_acks.min(LIMITED_TRANSMIT_SEGMENTS)
        } else {
            0
        }
    }

    /// F-RTO wants new data to leave before what is marked lost (RFC 5682 §3.1 step 2.b).
    pub(crate) fn wants_new_data(&self) -> bool {
        self.frto == Frto::NewData
    }

    /// New data was sent since F-RTO asked for it: its answer decides.
    pub(crate) fn has_new_data(&self, snd_nxt: SeqNum) -> bool {
        snd_nxt.gt(self.recover)
    }

    /// There is no new data to send: F-RTO ends.
    pub(crate) fn stop_frto(&mut self) {
        self.frto = Frto::Off;
    }

    /// Segments of the hole at SND.UNA that may leave whatever the window says.
    pub(crate) fn head_segments(&self) -> u32 {
        if self.state == CaState::Recovery { u32::from(self.hole_segments).max(1) } else { 1 }
    }

    /// Counts a timeout of whatever is outstanding.
    pub(crate) fn count_timeout(&mut self, now: Instant) {
        if self.timeouts == 0 {
            self.since = now;
        }
        self.timeouts = self.timeouts.saturating_add(1);
    }
}
