//! First step: checks that the segment is inside the window and not an old duplicate (PAWS).
//!
//! RFC 9293 §3.4 and §3.10.7.4 first, RFC 7323 §5 (PAWS); Linux: tcp_validate_incoming,
//! tcp_sequence, tcp_paws_discard.
//!
//! After this step the segment starts at RCV.NXT or later and ends inside the window: old data and
//! data beyond the window are trimmed. There are two exceptions: a bare ACK
//! (`ends_at_retracted_edge`), and a FIN one number beyond the window (`trim`). A rejected segment
//! without RST is answered by an ACK, unless it is an ACK that newer ones have overtaken. Data or a
//! FIN is always answered, because a peer retransmits it if an ACK was lost; other segments cause
//! at most one such ACK per `tcp_invalid_ratelimit`.

use core::time::Duration;

use pkt::{DropReason, Instant};

use super::{Segment, reset};
use crate::{
    base::{counters::Counter, state::State},
    cx::Cx,
    open::syn,
    segment::{sack_report, window::acceptable_window},
    tcb::{Tcb, TcbFlags},
    wire::{header::Flags, option::is_older},
};

/// Time after which TS.Recent of an idle connection is invalid (RFC 7323 §5.5): nearly half the
/// wrap of a 1 ms clock.
const TS_RECENT_LIFETIME: Duration = Duration::from_secs(24 * 24 * 3600);

pub(super) fn check(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    let rst = segment.header.has(Flags::RST);
    if !rst && is_paws_reject(tcb, segment, cx.now) {
        if segment.seq_len() == 0 && segment.header.ack.lt(tcb.snd_una) {
            // An ACK that newer ACKs have overtaken needs no answer.
            cx.count(Counter::TcpExtPAWSOldAck);
            return Err(DropReason::TcpPaws);
        }
        cx.count(Counter::TcpExtPAWSEstab);
        report_old(tcb, segment, cx);
        answer(tcb, segment, cx, Counter::TcpExtTCPACKSkippedPAWS);
        return Err(DropReason::TcpPaws);
    }
    let window = acceptable_window(tcb);
    let old = segment.seq_len() > 0 && segment.end_seq().le(tcb.rcv_nxt);
    let beyond = segment.seq.gt(tcb.rcv_nxt + window);
    let precedes = segment.end_seq().lt(tcb.rcv_nxt);
    let excepted = precedes && ends_at_retracted_edge(tcb, segment);
    let before = precedes && !excepted;
    let may_be_exact = rst && segment.header.seq == tcb.rcv_nxt;
    if (old || beyond || before) && !may_be_exact {
        return Err(refuse(tcb, segment, cx, window));
    }
    if excepted {
        answer(tcb, segment, cx, Counter::TcpExtTCPACKSkippedSeq);
    }
    trim(tcb, segment, cx, window);
    Ok(())
}

/// Returns whether the segment is a bare ACK before RCV.NXT from a peer that respects a window we
/// have retracted. Such a peer numbers its ACKs at the retracted right edge, although we have
/// received data beyond that edge (`segment::acceptable_seq`). Numbers before the lowest retracted
/// edge are rejected.
///
/// The segment's ACK field and window are used, its timestamp is not (`take_timestamp`). The
/// segment is answered like a rejected one, because it may be a window probe. Differs from
/// RFC 9293 §3.10.7.4, because two ends that retract their windows at the same time would reject
/// each other's ACKs forever. Linux accepts segments that are not before the last announced window.
fn ends_at_retracted_edge(tcb: &Tcb, segment: &Segment<'_>) -> bool {
    tcb.flags.contains(TcbFlags::HAS_RETRACTED)
        && segment.header.flags == Flags::ACK
        && segment.seq_len() == 0
        && segment.seq.ge(tcb.retracted_to)
}

/// Answers a SYN that the client retransmits because our SYN-ACK was lost (Fast Open, before the
/// third segment). Returns whether the segment is such a SYN.
pub(super) fn is_repeated_syn(tcb: &mut Tcb, cx: &mut Cx<'_>, segment: &Segment<'_>) -> bool {
    let header = segment.header;
    let repeated = tcb.is_open_early()
        && header.flags.intersection(Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN
        && header.seq == tcb.irs;
    if repeated && tcb.may_answer_invalid(cx) {
        syn::send_syn(tcb, cx);
    }
    repeated
}

/// Rejects a segment outside the window: schedules the answer and returns the drop reason.
fn refuse(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>, window: u32) -> DropReason {
    if segment.header.has(Flags::RST) {
        return DropReason::TcpResetInvalid;
    }
    let old = segment.end_seq().le(tcb.rcv_nxt);
    if has_data_or_fin(segment) && old {
        // The peer retransmits received data: our ACK was lost or late.
        cx.count(Counter::TcpExtDelayedACKLost);
        let rcv_wnd = tcb.rcv_wnd;
        tcb.ack.enter_quick(rcv_wnd);
        report_old(tcb, segment, cx);
    }
    if segment.header.has(Flags::SYN) {
        // RFC 5961 §4.2: a SYN is challenged for any sequence number.
        reset::challenge_syn(tcb, cx);
    } else {
        answer(tcb, segment, cx, Counter::TcpExtTCPACKSkippedSeq);
    }
    if old {
        DropReason::TcpOldSequence
    } else if window == 0 {
        cx.count(Counter::TcpExtTCPZeroWindowDrop);
        DropReason::TcpZeroWindow
    } else {
        cx.count(Counter::TcpExtBeyondWindow);
        DropReason::TcpOverWindow
    }
}

/// Reports data below RCV.NXT as a duplicate (RFC 2883 §4.1.1). A FIN counts as data, as in Linux.
fn report_old(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) {
    if segment.header.has(Flags::SYN) {
        return;
    }
    let end = segment.end_seq().min(tcb.rcv_nxt);
    sack_report::on_duplicate(tcb, cx, (segment.seq, end), Counter::TcpExtTCPDSACKOldSent);
}

/// Returns whether the segment carries data or a FIN, which a peer retransmits if our ACK was lost.
/// A SYN is challenged instead (RFC 5961 §4).
fn has_data_or_fin(segment: &Segment<'_>) -> bool {
    segment.seq_len() > 0 && !segment.header.has(Flags::SYN)
}

/// Schedules an ACK that informs the peer of our state, within the rate limit.
fn answer(tcb: &mut Tcb, segment: &Segment<'_>, cx: &Cx<'_>, skipped: Counter) {
    if has_data_or_fin(segment) || tcb.may_answer_invalid(cx) {
        tcb.ack.schedule_now();
    } else if tcb.state == State::FinWait2 && tcb.flags.contains(TcbFlags::ORPHAN) {
        cx.count(Counter::TcpExtTCPACKSkippedFinWait2);
    } else {
        cx.count(skipped);
    }
}

/// Trims old data and data beyond the window. The ACK of a segment that only touches the window's
/// edge is still processed; otherwise two closed windows could never open (RFC 9293 §3.10.7.4,
/// "special allowance").
///
/// A FIN is kept if all data before it is kept, even if the FIN is one number beyond the window,
/// because a FIN needs no buffer. Some stacks retransmit a bare FIN into a closed window until it
/// is acknowledged (Linux accepts it, too).
fn trim(tcb: &mut Tcb, segment: &mut Segment<'_>, cx: &mut Cx<'_>, window: u32) {
    if segment.seq.lt(tcb.rcv_nxt) {
        report_old(tcb, segment, cx);
        let old = tcb.rcv_nxt.since(segment.seq).min(segment.len);
        if let Some(packet) = segment.packet.as_mut() {
            packet.advance(old as usize);
        }
        segment.seq += old;
        segment.len -= old;
        segment.reported = old > 0;
    }
    let edge = tcb.rcv_nxt + window;
    if segment.len == 0 || (segment.seq + segment.len).le(edge) {
        return;
    }
    let room = if edge.gt(segment.seq) { edge.since(segment.seq) } else { 0 };
    segment.fin = false;
    segment.len = room;
    if let Some(packet) = segment.packet.as_mut() {
        packet.truncate(room as usize);
    }
    let counter =
        if window == 0 { Counter::TcpExtTCPZeroWindowDrop } else { Counter::TcpExtBeyondWindow };
    cx.count(counter);
    tcb.ack.schedule_now();
}

/// Returns whether PAWS rejects the segment (RFC 7323 §5.2), with Linux's exception for reordered
/// ACKs.
fn is_paws_reject(tcb: &Tcb, segment: &Segment<'_>, now: Instant) -> bool {
    let Some((value, _)) = segment.header.options.timestamps else { return false };
    if !tcb.flags.contains(TcbFlags::TIMESTAMPS)
        || !is_older(value, tcb.ts_recent)
        || now - tcb.ts_recent_at > TS_RECENT_LIFETIME
    {
        return false;
    }
    !is_disordered_ack(tcb, segment, value)
}

/// Returns whether the segment is an old pure ACK without new information. The network has
/// reordered it, and PAWS would answer it needlessly.
fn is_disordered_ack(tcb: &Tcb, segment: &Segment<'_>, value: u32) -> bool {
    let late_ms = u128::from(tcb.ts_recent.wrapping_sub(value));
    segment.seq_len() == 0
        && segment.seq == tcb.rcv_nxt
        && segment.header.ack == tcb.snd_una
        && segment.header.flags == Flags::ACK
        && u32::from(segment.header.window) << tcb.snd_wscale == tcb.snd_wnd
        && late_ms <= tcb.rtt.rto().as_millis()
}

/// Updates TS.Recent from a segment that includes the last acknowledged sequence number
/// (RFC 7323 §4.3). The timestamp of a segment that is still before RCV.NXT here
/// (`ends_at_retracted_edge`) is not used, because it is outside the window (§5.3, R2).
pub(super) fn take_timestamp(tcb: &mut Tcb, segment: &Segment<'_>, now: Instant) {
    if let Some((value, _)) = segment.header.options.timestamps
        && tcb.flags.contains(TcbFlags::TIMESTAMPS)
        && segment.header.seq.le(tcb.rcv_wup)
        && segment.seq.ge(tcb.rcv_nxt)
        && (!is_older(value, tcb.ts_recent) || now - tcb.ts_recent_at > TS_RECENT_LIFETIME)
    {
        tcb.ts_recent = value;
        tcb.ts_recent_at = now;
    }
}
