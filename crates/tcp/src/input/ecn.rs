//! Congestion marks and control bits of a segment that arrives.
//!
//! Above: `input::data` and `input::syn_sent`. RFC 3168 §6.1, RFC 8257 §3.2; Linux:
//! `__tcp_ecn_check_ce`, dctcp_ece_ack_update.
//!
//! Not here: the state of both directions, and the bits of segments that leave (`tcb::ecn`).

use pkt::Ecn;

use crate::{
    cx::Cx,
    segment,
    tcb::{
        Tcb,
        ecn::{ECN_SETUP, EcnState},
    },
    wire::header::{Flags, SegmentHeader},
};

/// The peer's SYN-ACK, or its SYN that crossed ours, answers our offer.
pub(super) fn on_answer(tcb: &mut Tcb, header: &SegmentHeader) {
    let agreed = if header.has(Flags::ACK) {
        // Both bits set: something reflects what it gets.
        header.flags & ECN_SETUP == Flags::ECE
    } else {
        header.flags.contains(ECN_SETUP)
    };
    if !agreed {
        tcb.ecn.remove(EcnState::AGREED);
    }
}

/// A segment with data arrived under `codepoint` (RFC 3168 §6.1.3). Call it before RCV.NXT moves.
pub(super) fn on_data(tcb: &mut Tcb, cx: &mut Cx<'_>, header: &SegmentHeader, codepoint: Ecn) {
    if !tcb.ecn.contains(EcnState::AGREED) {
        return;
    }
    if codepoint != Ecn::NotEct {
        tcb.ecn |= EcnState::SEEN;
    }
    if tcb.congestion.algorithm().needs_ecn() {
        return on_data_dctcp(tcb, cx, codepoint);
    }
    if header.has(Flags::CWR) {
        tcb.ecn.remove(EcnState::ECHO);
        // A peer that reduced waits for our ACKs.
        tcb.ack.schedule_now();
    }
    if codepoint == Ecn::Ce && !tcb.ecn.contains(EcnState::ECHO) {
        tcb.ecn |= EcnState::ECHO;
        tcb.ack.enter_quick(tcb.rcv_wnd);
    }
}

/// RFC 8257 §3.2: every ACK tells of data that was marked all the same, so that the sender can count.
fn on_data_dctcp(tcb: &mut Tcb, cx: &mut Cx<'_>, codepoint: Ecn) {
    let marked = codepoint == Ecn::Ce;
    if marked == tcb.ecn.contains(EcnState::CE) {
        return;
    }
    if tcb.ack.is_pending() {
        // What came before is acknowledged with what was true of it.
        segment::send_ack(tcb, cx);
    }
    tcb.ecn.set(EcnState::CE, marked);
    tcb.ack.enter_quick(tcb.rcv_wnd);
}
