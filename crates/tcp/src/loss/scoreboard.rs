//! The peer's SACK blocks: their validation, and the entries that they mark as SACKed.
//!
//! Above: `input::ack`. Below: the marks of entries in `send_queue`. RFC 2018 §5, RFC 2883,
//! RFC 3708 §3; Linux: tcp_sacktag_write_queue, tcp_check_dsack, tcp_is_sackblock_valid.
//!
//! Hostile blocks cost little. An ACK has at most four blocks, each of which costs a binary search
//! and one step per newly marked entry. Only an edge of a block can split an entry, at a multiple
//! of the segment size, so that of the pieces of an entry only the last one may be smaller than a
//! segment. A queue that far exceeds the send buffer is not split further.
//!
//! Not here: loss detection (`rack`), reneging (`retransmit`: a timeout whose oldest entry was
//! SACKed).

use crate::{
    base::counters::Counter,
    cx::Cx,
    tcb::{Tcb, TcbFlags, acked::Acked},
    wire::{header::SegmentHeader, seq::SeqNum},
};

/// Processes the SACK blocks of an ACK whose number is not beyond SND.NXT, but may be below
/// SND.UNA. Records in `acked` the newly SACKed data and the data that the peer received twice.
pub(crate) fn process(tcb: &mut Tcb, cx: &mut Cx<'_>, header: &SegmentHeader, acked: &mut Acked) {
    let blocks = &header.options.sack_blocks[..];
    if blocks.is_empty() || !tcb.flags.contains(TcbFlags::SACK) {
        return;
    }
    let is_duplicate = is_duplicate_report(blocks, header.ack);
    if is_duplicate {
        on_duplicate(tcb, cx, blocks[0], header.ack, acked);
    }
    let una = tcb.snd_una.max(header.ack);
    for &(start, end) in &blocks[usize::from(is_duplicate)..] {
        let inside = start.lt(end) && end.le(tcb.snd_nxt) && start.ge(tcb.snd_una);
        if !inside {
            // Blocks below SND.UNA are common in old ACKs and are no error.
            if start.ge(end) || end.gt(tcb.snd_una) {
                cx.count(Counter::TcpExtTCPSACKDiscard);
            }
            continue;
        }
        let mss = tcb.mss.effective();
        let start = start.max(una);
        if start.lt(end) {
            let cuts = tcb.send_queue.mark_sacked(cx.pool, (start, end), mss, tcb.sndbuf, acked);
            cx.counters.add(Counter::TcpExtTCPSackShiftFallback, u64::from(cuts.made));
            cx.counters.add(Counter::TcpExtTCPWqueueTooBig, u64::from(cuts.refused));
        }
    }
}

/// Returns whether the first block is a D-SACK: it lies below the acknowledgment or inside the
/// second block (RFC 2883 §4).
fn is_duplicate_report(blocks: &[(SeqNum, SeqNum)], ack: SeqNum) -> bool {
    let (start, end) = blocks[0];
    let inside_second = |&(left, right): &(SeqNum, SeqNum)| start.ge(left) && end.le(right);
    start.lt(ack) || blocks.get(1).is_some_and(inside_second)
}

fn on_duplicate(
    tcb: &Tcb,
    cx: &Cx<'_>,
    (start, end): (SeqNum, SeqNum),
    ack: SeqNum,
    acked: &mut Acked,
) {
    let oldest = tcb.snd_una - tcb.mss.max_window().max(1);
    if start.ge(end) || end.gt(tcb.snd_nxt) || start.lt(oldest) {
        cx.count(Counter::TcpExtTCPDSACKIgnoredOld);
        return;
    }
    let segments = end.since(start).div_ceil(tcb.mss.effective());
    if segments > tcb.totals.total_retrans {
        // More segments than were ever retransmitted: the network duplicated them, or the peer
        // lies.
        cx.count(Counter::TcpExtTCPDSACKIgnoredDubious);
        return;
    }
    let old = start.lt(ack);
    cx.count(if old { Counter::TcpExtTCPDSACKRecv } else { Counter::TcpExtTCPDSACKOfoRecv });
    cx.counters.add(Counter::TcpExtTCPDSACKRecvSegs, u64::from(segments));
    acked.duplicate = Some((start, end));
}
