//! First step: is the segment inside the window, and not from an earlier time around the sequence
//! space?
//!
//! RFC 9293 §3.4 and §3.10.7.4 first, RFC 7323 §5 (PAWS); Linux: tcp_validate_incoming,
//! tcp_sequence, tcp_paws_discard.
//!
//! After it the segment starts at RCV.NXT or later and ends inside the window: what was received
//! before and what lies beyond are cut off. The one exception carries nothing
//! (`ends_at_retracted_edge`). A segment that is refused is answered by an ACK, at most one per
//! `tcp_invalid_ratelimit` unless it carries data (a lost ACK made the peer repeat it).

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

/// TS.Recent of an idle connection is no longer trusted after this (RFC 7323 §5.5): half the wrap of a 1 ms clock.
const TS_RECENT_LIFETIME: Duration = Duration::from_secs(24 * 24 * 3600);

pub(super) fn check(
    tcb: &mut Tcb,
    segment: &mut Segment<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), DropReason> {
    let rst = segment.header.has(Flags::RST);
    if !rst && is_paws_reject(tcb, segment, cx.now) {
        if segment.seq_len() == 0 && segment.header.ack.lt(tcb.snd_una) {
            // An ACK that was overtaken: it needs no answer.
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

/// A bare ACK with a number before RCV.NXT, from a peer that keeps its numbers inside a window we have retracted although what
/// it had sent beyond that has arrived (`segment::acceptable_seq`): no further back than the edges we retracted to.
///
/// Its ACK field and its window count, its timestamp does not (`take_timestamp`), and it is answered like the refused, because
/// a probe looks the same. Differs from RFC 9293 §3.10.7.4, because two ends that retract their windows at once would
/// refuse each other's ACKs for ever; Linux takes what is not before the last window it announced.
fn ends_at_retracted_edge(tcb: &Tcb, segment: &Segment<'_>) -> bool {
    tcb.flags.contains(TcbFlags::HAS_RETRACTED)
        && segment.header.flags == Flags::ACK
        && segment.seq_len() == 0
        && segment.seq.ge(tcb.retracted_to)
}

/// The client repeats its SYN: our SYN-ACK was lost. True if the segment is that.
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

/// Names why the segment is refused, and answers it.
fn refuse(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>, window: u32) -> DropReason {
    if segment.header.has(Flags::RST) {
        return DropReason::TcpResetInvalid;
    }
    let old = segment.end_seq().le(tcb.rcv_nxt);
    if repeats(segment) && old {
        // The peer repeats what we have: our ACK was lost or late.
        cx.count(Counter::TcpExtDelayedACKLost);
        let rcv_wnd = tcb.rcv_wnd;
        tcb.ack.enter_quick(rcv_wnd);
        report_old(tcb, segment, cx);
    }
    if segment.header.has(Flags::SYN) {
        // RFC 5961 §4.2: challenged whatever its sequence number.
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

/// Data below RCV.NXT arrived twice (RFC 2883 §4.1.1). A FIN counts as data, as in Linux.
fn report_old(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) {
    if segment.header.has(Flags::SYN) {
        return;
    }
    let end = segment.end_seq().min(tcb.rcv_nxt);
    sack_report::on_duplicate(tcb, cx, (segment.seq, end), Counter::TcpExtTCPDSACKOldSent);
}

/// It carries data or a FIN, which a peer repeats when our ACK was lost. A SYN is challenged instead (RFC 5961 §4).
fn repeats(segment: &Segment<'_>) -> bool {
    segment.seq_len() > 0 && !segment.header.has(Flags::SYN)
}

/// Owes the ACK that tells the peer where we are.
fn answer(tcb: &mut Tcb, segment: &Segment<'_>, cx: &Cx<'_>, skipped: Counter) {
    if repeats(segment) || tcb.may_answer_invalid(cx) {
        tcb.ack.schedule_now();
    } else if tcb.state == State::FinWait2 && tcb.flags.contains(TcbFlags::ORPHAN) {
        cx.count(Counter::TcpExtTCPACKSkippedFinWait2);
    } else {
        cx.count(skipped);
    }
}

/// Cuts off what was received before and what lies beyond the window. The ACK of a segment that only touches the
/// edge still counts, else two closed windows would never open (RFC 9293 §3.10.7.4, "special allowance").
///
/// A FIN stays if all data before it does, although its number may be one beyond the window: it needs no buffer. Some stacks
/// send a bare FIN into a closed window again and again until it is acknowledged (Linux takes it, too).
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

/// RFC 7323 §5.2, with the exception Linux makes for ACKs that overtook each other.
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

/// An old pure ACK that says nothing new: a network reordered it, and refusing it would send ACKs for nothing.
fn is_disordered_ack(tcb: &Tcb, segment: &Segment<'_>, value: u32) -> bool {
    let late_ms = u128::from(tcb.ts_recent.wrapping_sub(value));
    segment.seq_len() == 0
        && segment.seq == tcb.rcv_nxt
        && segment.header.ack == tcb.snd_una
        && segment.header.flags == Flags::ACK
        && u32::from(segment.header.window) << tcb.snd_wscale == tcb.snd_wnd
        && late_ms <= tcb.rtt.rto().as_millis()
}

/// TS.Recent follows segments that touch what was last acknowledged (RFC 7323 §4.3). What is not at RCV.NXT or beyond by now
/// is outside the window (§5.3, R2) and was let in for its ACK field only.
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
