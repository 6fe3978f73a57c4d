//! State of loss recovery, and its accessors.
//!
//! Above: `loss` changes this state. RFC 5681 §3.2, RFC 6582, RFC 3522, RFC 5682; Linux: the
//! `TCP_CA_*` states of struct inet_connection_sock.
//!
//! Not here: the transitions that ACKs and timeouts cause (`loss::recovery`).

use pkt::Instant;

use crate::{
    tcb::{acked::Transmission, rack::Rack},
    wire::seq::SeqNum,
};

/// Segments that limited transmit may send beyond the congestion window, one per early duplicate
/// ACK (RFC 3042 §2).
const LIMITED_TRANSMIT_SEGMENTS: u32 = 2;

/// State of congestion avoidance and loss recovery, numbered as in Linux (`TCP_CA_*`,
/// `tcpi_ca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CaState {
    /// No sign of a loss.
    Open = 0,
    /// Duplicate ACKs or SACK blocks, too few to indicate a loss.
    Disorder = 1,
    /// The congestion window is being reduced after a congestion mark, or a drop in a queue of this
    /// host, once per window.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// Slow start after a retransmission timeout, or retransmission of segments that exceeded the
    /// path MTU, without a reduction.
    Loss = 4,
}

impl CaState {
    /// Returns whether no loss is assumed and no congestion was signaled: Open or Disorder.
    pub(crate) fn is_calm(self) -> bool {
        matches!(self, Self::Open | Self::Disorder)
    }

    /// Returns whether lost segments are being retransmitted.
    pub(crate) fn is_repairing(self) -> bool {
        matches!(self, Self::Recovery | Self::Loss)
    }
}

/// State that allows a later ACK to undo a reduction of the congestion window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// SND.UNA when the congestion window was reduced.
    pub(crate) marker: SeqNum,
    /// Bytes retransmitted since then and not reported as duplicates.
    pub(crate) outstanding: u32,
    /// TSval of the first retransmission; `None` before it.
    pub(crate) stamp: Option<u32>,
}

impl Undo {
    pub(crate) fn new(snd_una: SeqNum) -> Self {
        Self { marker: snd_una, outstanding: 0, stamp: None }
    }

    /// Returns whether every retransmission was reported as a duplicate, which proves the reduction
    /// spurious.
    #[inline]
    pub(crate) fn is_refuted(self) -> bool {
        self.stamp.is_some() && self.outstanding == 0
    }
}

/// State of F-RTO (RFC 5682 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frto {
    /// Not running: the timeout is assumed to be genuine.
    Off,
    /// Step 2: the first segment in flight was retransmitted.
    Head,
    /// Steps 2.b and 3: new data is sent before segments that are marked lost, and its ACK decides.
    NewData,
}

/// An unanswered tail loss probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// TLP.end_seq: SND.NXT after the probe was sent.
    pub(crate) end_seq: SeqNum,
    /// TLP.is_retrans: whether the probe retransmitted the last segment.
    pub(crate) is_retransmission: bool,
}

/// State of loss recovery of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// Time of the first timeout without progress, from which the limit R2 (`tcp_retries2`) counts,
    /// or of the start of a later fast recovery (Linux `retrans_stamp`).
    pub(crate) since: Instant,
    pub(crate) rack: Rack,
    /// Unanswered tail loss probe.
    pub(crate) probe: Option<Probe>,
    /// State that may prove the last reduction spurious.
    pub(crate) undo: Option<Undo>,
    pub(crate) frto: Frto,
    /// RFC 6582's `recover`: SND.NXT when the last Recovery, Loss or CWR began, or when F-RTO began
    /// to send new data.
    pub(crate) recover: SeqNum,
    /// End of the last retransmission of a hole.
    pub(crate) hole_end: SeqNum,
    /// Duplicate ACKs since SND.UNA advanced, without SACK; a partial ACK during Recovery does not
    /// reset them.
    pub(crate) dup_acks: u32,
    /// Segments of the retransmission that ends at `hole_end`.
    pub(crate) hole_segments: u16,
    pub(crate) state: CaState,
    /// Timeouts since SND.UNA advanced.
    pub(crate) timeouts: u8,
    /// Whether the SYN or SYN-ACK was sent more than once.
    pub(crate) handshake_lossy: bool,
    /// Whether the handshake gives no sample of the round-trip time: a SYN cookie does not keep the
    /// time of the SYN-ACK, and after an ICMP error either of two SYNs may have been answered.
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

    /// Records that the handshake needed `retransmits` retransmissions of the SYN-ACK.
    pub(crate) fn on_request_retransmits(&mut self, retransmits: u8) {
        self.handshake_lossy = retransmits > 0;
    }

    /// Records that the round-trip time of the handshake is unknown.
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

    /// Resets the state when nothing is outstanding any longer.
    pub(crate) fn forget(&mut self, snd_una: SeqNum) {
        *self = Self::new(snd_una);
    }

    pub(crate) fn state(&self) -> CaState {
        self.state
    }

    /// Records a retransmission of the SYN or SYN-ACK.
    pub(crate) fn on_handshake_timeout(&mut self) {
        self.handshake_lossy = true;
    }

    /// Returns whether the state is Open, no probe or F-RTO is in progress, and no reduction has
    /// been proved spurious. The fast paths of `input` and `output` require this. A reduction that
    /// may still be proved spurious does not prevent them, because the proof is a D-SACK, and a
    /// segment with a D-SACK takes the slow path.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.state == CaState::Open
            && self.probe.is_none()
            && !self.undo.is_some_and(Undo::is_refuted)
            && self.frto == Frto::Off
    }

    /// Processes an ACK of the whole flight while [`is_quiet`](Self::is_quiet). `newest` is the
    /// last transmission of the flight, and its end is the end of all bytes that have arrived.
    #[inline]
    pub(crate) fn on_predicted(&mut self, newest: Transmission, now: Instant) {
        self.timeouts = 0;
        self.rack.on_newest(newest, now);
        self.rack.on_highest(newest.end_seq);
    }

    /// Returns the time from which R2 counts after a timeout.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns `dup_acks`: segments that left the network (Linux `sacked_out` without SACK).
    pub(crate) fn dup_acks(&self) -> u32 {
        self.dup_acks
    }

    /// Returns the timeouts since SND.UNA advanced (Linux `icsk_retransmits`).
    pub(crate) fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// Returns the segments that may be sent beyond the congestion window because other segments
    /// arrived (RFC 3042).
    pub(crate) fn limited_transmit_segments(&self) -> u32 {
        if self.state == CaState::Disorder {
            self.dup_acks.min(LIMITED_TRANSMIT_SEGMENTS)
        } else {
            0
        }
    }

    /// Returns whether F-RTO needs new data to be sent before segments that are marked lost
    /// (RFC 5682 §3.1 step 2.b).
    pub(crate) fn wants_new_data(&self) -> bool {
        self.frto == Frto::NewData
    }

    /// Returns whether new data was sent after F-RTO requested it. The ACK of this data decides.
    pub(crate) fn has_new_data(&self, snd_nxt: SeqNum) -> bool {
        snd_nxt.gt(self.recover)
    }

    /// Ends F-RTO because there is no new data to send.
    pub(crate) fn stop_frto(&mut self) {
        self.frto = Frto::Off;
    }

    /// Returns the segments of the hole at SND.UNA that may be sent regardless of the congestion
    /// window.
    pub(crate) fn head_segments(&self) -> u32 {
        if self.state == CaState::Recovery { u32::from(self.hole_segments).max(1) } else { 1 }
    }

    /// Counts a timeout.
    pub(crate) fn count_timeout(&mut self, now: Instant) {
        if self.timeouts == 0 {
            self.since = now;
        }
        self.timeouts = self.timeouts.saturating_add(1);
    }
}
