//! Snapshot of a connection's state, for `TCP_INFO` and `ss`.
//!
//! Above: `stack::socket` and `quietline::stream`. Linux: tcp_get_info.
//!
//! Not here: the invariants of the connection (`audit`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    base::state::State,
    segment::window::receive_window,
    tcb::{Tcb, TcbFlags, ecn::EcnState, fast_open::FastOpenFailure, totals::SenderTime},
};

/// Results of the handshake for `TCP_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeInfo {
    /// Data in the SYN was accepted: by the peer of an active open, or by this side of a passive
    /// open (`TCPI_OPT_SYN_DATA`).
    pub syn_data: bool,
    /// Reason why the SYN carried no data, or the peer did not accept it.
    pub fast_open_failure: FastOpenFailure,
    /// Our SYN was acknowledged, and it carried no data that the peer accepted.
    pub syn_acked: bool,
}

/// Values of `TCP_INFO`. Windows and queues are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// State of the connection.
    pub state: State,
    /// State of loss recovery by Linux's number: 0 Open, 1 Disorder, 2 CWR, 3 Recovery, 4 Loss.
    pub ca_state: u8,
    /// Window scales were exchanged.
    pub window_scaling: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// SACK is in use.
    pub sack: bool,
    /// Results of the handshake.
    pub handshake: HandshakeInfo,
    /// Window scales: that of the peer's windows, then that of our windows.
    pub window_scales: (u8, u8),
    /// Retransmission timeout.
    pub rto: Duration,
    /// Delayed-ACK time.
    pub ato: Duration,
    /// Payload of a full segment that this side sends.
    pub snd_mss: u32,
    /// Estimated payload of a full segment that the peer sends.
    pub rcv_mss: u32,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Smallest round-trip time.
    pub min_rtt: Option<Duration>,
    /// Congestion window.
    pub cwnd: u32,
    /// Slow-start threshold.
    pub ssthresh: u32,
    /// Bytes in flight.
    pub in_flight: u32,
    /// Bytes sent and not acknowledged.
    pub unacked: u32,
    /// Bytes of `unacked` reported by SACK; without SACK, one segment for each duplicate ACK.
    pub sacked: u32,
    /// Bytes of `unacked` that count as lost.
    pub lost: u32,
    /// Bytes of retransmissions that are assumed to be in flight.
    pub retrans: u32,
    /// Time since data was last sent.
    pub last_data_sent: Duration,
    /// Time since data was last received; `None` if there was none.
    pub last_data_received: Option<Duration>,
    /// Time since the last acceptable segment.
    pub last_ack_received: Duration,
    /// Send window.
    pub snd_wnd: u32,
    /// Receive window: its announced part that the peer has not used yet.
    pub rcv_wnd: u32,
    /// Round-trip time measured as receiver.
    pub rcv_rtt: Duration,
    /// Largest number of bytes read in one round trip.
    pub rcv_space: u32,
    /// Current limit of the announced window.
    pub rcv_ssthresh: u32,
    /// Path MTU.
    pub pmtu: u32,
    /// Announced MSS, less the timestamp option of every segment.
    pub advmss: u16,
    /// Timeouts since the last progress.
    pub retransmits: u8,
    /// Unanswered probes.
    pub probes: u8,
    /// Exponent of the backoff of the RTO or of the persist timer.
    pub backoff: u8,
    /// Fast recovery or timeout recovery is in progress.
    pub in_recovery: bool,
    /// Retransmitted segments.
    pub total_retrans: u32,
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes sent, without retransmissions.
    pub bytes_sent: u64,
    /// Payload bytes retransmitted.
    pub bytes_retrans: u64,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Segments with data sent, retransmissions included.
    pub data_segs_out: u32,
    /// Segments with data received.
    pub data_segs_in: u32,
    /// Segments that duplicate SACKs reported.
    pub dsack_dups: u32,
    /// Number of times that reordering on the network path was detected.
    pub reord_seen: u32,
    /// Number of segments behind a hole that indicate a loss.
    pub reordering: u16,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// Retransmission timeouts.
    pub total_rto: u16,
    /// Series of timeouts without progress between them.
    pub total_rto_recoveries: u16,
    /// Total duration of these series.
    pub total_rto_time: Duration,
    /// Time that the sender was busy or limited, by cause.
    pub sender_time: SenderTime,
    /// Bytes queued and never sent.
    pub notsent_bytes: u32,
    /// Bytes known to have been delivered, by acknowledgment or SACK.
    pub bytes_delivered: u64,
    /// Delivery rate in bytes per second, once there is a sample.
    pub delivery_rate: Option<u64>,
    /// The delivery rate was limited by the application.
    pub delivery_rate_app_limited: bool,
    /// Bytes of `bytes_delivered` whose acknowledgment carried an ECN echo.
    pub bytes_delivered_ce: u64,
    /// Pacing rate in bytes per second, once it is known.
    pub pacing_rate: Option<u64>,
    /// `SO_MAX_PACING_RATE`.
    pub max_pacing_rate: Option<u64>,
    /// ECN is in use.
    pub ecn: bool,
    /// The peer has sent ECN-capable packets.
    pub ecn_seen: bool,
}

impl Tcb {
    fn handshake_info(&self) -> HandshakeInfo {
        HandshakeInfo {
            syn_data: self.syn_data_taken(),
            fast_open_failure: self.fast_open_failure(),
            syn_acked: self.snd_una != self.iss && !self.is_syn_data_acked(),
        }
    }

    /// Returns [`TcpInfo::sacked`].
    fn reported_bytes(&self) -> u32 {
        if self.flags.contains(TcbFlags::SACK) {
            return self.send_queue.sacked_bytes();
        }
        let counted = self.recovery.dup_acks().saturating_mul(self.mss.effective());
        counted.min(self.snd_nxt.since(self.snd_una))
    }

    /// Returns the state as of the last transmission of data or the last received segment.
    #[must_use]
    pub fn info(&self) -> TcpInfo {
        self.info_at(self.last_sent_at.max(self.last_received_at))
    }

    /// Returns the state at `now`, for `TCP_INFO`.
    #[must_use]
    pub fn info_at(&self, now: Instant) -> TcpInfo {
        TcpInfo {
            state: self.state,
            ca_state: self.recovery.state() as u8,
            window_scaling: self.flags.contains(TcbFlags::WINDOW_SCALING),
            unacked: self.snd_nxt.since(self.snd_una),
            sacked: self.reported_bytes(),
            retrans: self.send_queue.retrans_bytes(),
            last_data_sent: now - self.last_sent_at,
            last_data_received: self.ack.last_data_at().map(|at| now - at),
            last_ack_received: now - self.last_received_at,
            data_segs_out: self.totals.data_segs_out,
            data_segs_in: self.totals.data_segs_in,
            dsack_dups: self.totals.dsack_dups,
            reord_seen: self.totals.reord_seen,
            reordering: self.reordering,
            rcv_ooopack: self.totals.rcv_ooopack,
            total_rto: self.totals.total_rto,
            total_rto_recoveries: self.totals.total_rto_recoveries,
            total_rto_time: self.totals.total_rto_time(now),
            sender_time: self.totals.sender_time(now),
            timestamps: self.flags.contains(TcbFlags::TIMESTAMPS),
            sack: self.flags.contains(TcbFlags::SACK),
            handshake: self.handshake_info(),
            window_scales: (self.snd_wscale, self.rcv_wscale),
            rto: self.rtt.rto(),
            ato: self.ack.ato(),
            snd_mss: self.mss.effective(),
            rcv_mss: self.ack.rcv_mss(),
            rtt: self.rtt.srtt(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min_rtt(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            in_flight: self.pipe(),
            lost: self.send_queue.lost_bytes(),
            snd_wnd: self.snd_wnd,
            rcv_wnd: receive_window(self),
            rcv_rtt: self.receive_buffer.rtt(),
            rcv_space: self.receive_buffer.space(),
            rcv_ssthresh: self.receive_buffer.ssthresh(),
            pmtu: self.mss.pmtu(),
            advmss: self.mss.advertised_payload(),
            retransmits: self.recovery.timeouts(),
            probes: self.probes_out,
            backoff: self.rtt.backoff().max(self.persist_backoff),
            in_recovery: self.recovery.state().is_repairing(),
            total_retrans: self.totals.total_retrans,
            bytes_acked: self.totals.bytes_acked,
            bytes_received: self.totals.bytes_received,
            bytes_sent: self.totals.bytes_sent,
            bytes_retrans: self.totals.bytes_retrans,
            segs_out: self.totals.segs_out,
            segs_in: self.totals.segs_in,
            notsent_bytes: self.send_queue.write_seq().since(self.snd_nxt),
            bytes_delivered: self.rate.delivered(),
            delivery_rate: self.rate.best().map(|(rate, _)| rate),
            bytes_delivered_ce: self.rate.delivered_ce(),
            pacing_rate: self.pacing.rate(),
            max_pacing_rate: self.pacing.max_rate(),
            ecn: self.ecn.contains(EcnState::AGREED),
            ecn_seen: self.ecn.contains(EcnState::AGREED | EcnState::SEEN),
            delivery_rate_app_limited: self.rate.best().is_some_and(|(_, limited)| limited),
        }
    }
}
