//! ECN marks and control bits of an arriving segment.
//!
//! Above: `input::data` and `input::syn_sent`. RFC 3168 §6.1, RFC 8257 §3.2; Linux:
//! `__tcp_ecn_check_ce`, dctcp_ece_ack_update.
//!
//! Not here: the state of both directions, and the bits of sent segments (`tcb::ecn`).

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

/// Processes the answer to our ECN offer: the peer's SYN-ACK, or its SYN in a simultaneous open.
pub(super) fn on_answer(tcb: &mut Tcb, header: &SegmentHeader) {
    let agreed = if header.has(Flags::ACK) {
        // A SYN-ACK with both bits set is an echo of the SYN's flags by a broken host or middlebox.
        header.flags & ECN_SETUP == Flags::ECE
    } else {
        header.flags.contains(ECN_SETUP)
    };
    if !agreed {
        tcb.ecn.remove(EcnState::AGREED);
    }
}

/// Processes the ECN field `codepoint` of a segment with data (RFC 3168 §6.1.3). Must be called
/// before RCV.NXT advances.
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
        // A peer that has reduced its window may wait for this ACK before it sends more.
        tcb.ack.schedule_now();
    }
    if codepoint == Ecn::Ce && !tcb.ecn.contains(EcnState::ECHO) {
        tcb.ecn |= EcnState::ECHO;
        tcb.ack.enter_quick(tcb.rcv_wnd);
    }
}

/// Makes every ACK cover either only marked or only unmarked data, so that the sender can count the
/// marked bytes (RFC 8257 §3.2).
fn on_data_dctcp(tcb: &mut Tcb, cx: &mut Cx<'_>, codepoint: Ecn) {
    let marked = codepoint == Ecn::Ce;
    if marked == tcb.ecn.contains(EcnState::CE) {
        return;
    }
    if tcb.ack.is_pending() {
        // The data before the change is acknowledged with the echo that applies to it.
        segment::send_ack(tcb, cx);
    }
    tcb.ecn.set(EcnState::CE, marked);
    tcb.ack.enter_quick(tcb.rcv_wnd);
}
