//! Reports of data that arrived twice: one range per ACK.
//!
//! Above: `input::data` and `input::sequence`. RFC 2883 §4; Linux: tcp_dsack_set.
//!
//! Not here: the blocks of an ACK (`tcb::sack_report`).

use crate::{
    base::counters::Counter,
    cx::Cx,
    segment,
    tcb::{Tcb, TcbFlags},
    wire::seq::SeqNum,
};

/// Records a range that arrived twice. One ACK reports one range, so an ACK that reports the
/// previous range is sent first, if that range is still unreported and does not touch the new one.
pub(crate) fn on_duplicate(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    range: (SeqNum, SeqNum),
    counter: Counter,
) {
    let wanted = tcb.flags.contains(TcbFlags::SACK) && cx.config.tcp_dsack;
    if !wanted || range.0.ge(range.1) {
        return;
    }
    cx.count(counter);
    if !tcb.sack_report.add_duplicate(range) {
        if !segment::send_duplicate_ack(tcb, cx) {
            // No memory: drop the older range, because the newer one is more useful to the peer.
            tcb.sack_report.on_sent();
        }
        tcb.sack_report.add_duplicate(range);
    }
    tcb.ack.schedule_now();
}
