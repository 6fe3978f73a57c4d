//! Second and fourth step: RST and SYN inside a connection.
//!
//! RFC 9293 §3.10.7.4 second and fourth, RFC 5961 §3 and §4; Linux: tcp_validate_incoming,
//! tcp_reset, tcp_send_challenge_ack.
//!
//! A blind attacker can guess a sequence number in the window, so only an RST whose number is
//! exactly RCV.NXT ends a connection. Any other RST in the window, and a SYN, is answered by a
//! challenge ACK. A peer that has really reset the connection answers the challenge by an RST with
//! the exact number.

use pkt::DropReason;

use super::Segment;
use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    cx::Cx,
    tcb::{Tcb, fast_open},
    wire::header::Flags,
};

/// Processes the RST bit. The processing of a segment with RST always ends here.
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

/// Ends the connection after a valid RST.
pub(super) fn on_reset(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let error = match tcb.state {
        State::SynRecv if tcb.is_open_early() => TcpError::ConnectionReset,
        State::SynSent | State::SynRecv => TcpError::ConnectionRefused,
        State::CloseWait => TcpError::BrokenPipe,
        // CLOSING and LAST-ACK included: the peer has not acknowledged our FIN, and perhaps not our
        // data.
        _ => TcpError::ConnectionReset,
    };
    if tcb.state == State::SynRecv {
        cx.count(Counter::TcpExtEmbryonicRsts);
    }
    tcb.finish(cx, Some(error));
}

/// Rejects a SYN in a synchronized connection: it is an old duplicate, or comes from a restarted
/// peer or an attacker (RFC 5961 §4). In SYN-RECEIVED a retransmitted or simultaneous SYN may carry
/// an acceptable ACK.
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

/// Schedules the challenge ACK for a SYN. The peer's answer shows whether the peer sent the SYN.
pub(super) fn challenge_syn(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    cx.count(Counter::TcpExtTCPSYNChallenge);
    challenge(tcb, cx);
}

/// Schedules a challenge ACK, if the limits of RFC 5961 §7 allow one: the connection's, then the
/// host's.
pub(super) fn challenge(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let limit = cx.config.tcp_challenge_ack_limit;
    if tcb.may_answer_invalid(cx) && cx.challenges.take(cx.now, limit, cx.rng) {
        cx.count(Counter::TcpExtTCPChallengeACK);
        tcb.ack.schedule_now();
    } else {
        cx.count(Counter::TcpExtTCPACKSkippedChallenge);
    }
}
