//! Second and fourth step: RST and SYN inside a connection.
//!
//! RFC 9293 §3.10.7.4 second and fourth, RFC 5961 §3 and §4; Linux: tcp_validate_incoming,
//! tcp_reset, tcp_send_challenge_ack.
//!
//! A blind attacker guesses a sequence number in the window; only the exact one ends a connection.
//! Everything else is answered by a challenge ACK, which a peer that really reset the connection
//! answers with the exact number.

use pkt::DropReason;

use super::Segment;
use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    cx::Cx,
    tcb::{Tcb, fast_open},
    wire::header::Flags,
};

/// Any RST ends here, one way or the other.
pub(super) fn check_rst(
    tcb: &mut Tcb,
    segment: &Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    if !segment.header.has(Flags::RST) {
        return Ok(());
    }
    if segment.header.seq != tcb.rcv_nxt {
        fast_open::on_early_reset(tcb);
        challenge(tcb, cx);
        return Err(DropReason::TcpResetInvalid);
    }
    on_reset(tcb, cx);
    Err(DropReason::TcpReset)
}

/// A valid RST: the peer knows no such connection.
pub(super) fn on_reset(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let error = match tcb.state {
        State::SynRecv if tcb.is_open_early() => TcpError::ConnectionReset,
        State::SynSent | State::SynRecv => TcpError::ConnectionRefused,
        State::CloseWait => TcpError::BrokenPipe,
        // CLOSING and LAST-ACK among them: the peer has not acknowledged our FIN, and perhaps not our data.
        _ => TcpError::ConnectionReset,
    };
    if tcb.state == State::SynRecv {
        cx.count(Counter::TcpExtEmbryonicRsts);
    }
    tcb.finish(cx, Some(error));
}

/// A SYN in a synchronized connection is a stale duplicate, a restarted peer or an attack (RFC 5961 §4). In
/// SYN-RECEIVED the crossed SYN or a repetition of it: its ACK, if any, still counts.
pub(super) fn check_syn(
    tcb: &mut Tcb,
    segment: &Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    if !segment.header.has(Flags::SYN) {
        return Ok(());
    }
    if tcb.state == State::SynRecv
        && segment.header.has(Flags::ACK)
        && segment.header.seq == tcb.irs
    {
        // Simultaneous open: the peer's SYN-ACK acknowledges our SYN.
        return Ok(());
    }
    challenge_syn(tcb, cx);
    Err(DropReason::TcpInvalidSyn)
}

/// Owes the ACK that asks whoever sent a SYN whether it was the peer.
pub(super) fn challenge_syn(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    cx.count(Counter::TcpExtTCPSYNChallenge);
    challenge(tcb, cx);
}

/// Owes a challenge ACK, if the limits of RFC 5961 §7 allow one: the connection's, then the host's.
pub(super) fn challenge(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let limit = cx.config.tcp_challenge_ack_limit;
    if tcb.may_answer_invalid(cx) && cx.challenges.take(cx.now, limit, cx.rng) {
        cx.count(Counter::TcpExtTCPChallengeACK);
        tcb.ack.schedule_now();
    } else {
        cx.count(Counter::TcpExtTCPACKSkippedChallenge);
    }
}
