//! RACK: a transmission is lost when one that left enough later has arrived.
//!
//! Above: `recovery::sack` and the reordering timer. Below: marks in `send_queue`. RFC 8985 §6;
//! Linux: tcp_recovery.c.
//!
//! Time replaces counting: lost retransmissions, lost tails behind a later segment and small
//! flights are found the same way. How much later is enough follows the path: a quarter of the
//! smallest round trip at first, nothing while no reordering was ever seen, and more for every
//! round in which the peer reports that a retransmission was needless.
//!
//! Transmissions are looked at in the order they were made, in two queues: entries sent once, which
//! are in that order already, and `send_queue`'s list of retransmissions. Each stops at the first
//! that is not due, so that an ACK costs a step per loss it declares.
//!
//! Not here: the state as data (`tcb::rack`), tail loss probes (`tlp`), what a loss means for the
//! window (`recovery`).

use core::time::Duration;

use crate::{
    base::counters::Counter,
    cx::Cx,
    tcb::{
        Tcb,
        acked::{Acked, Transmission},
        recovery::CaState,
        send_queue::entry::{Entry, EntryFlags},
    },
};

/// Takes what an ACK delivered.
pub(crate) fn on_ack(tcb: &mut Tcb, cx: &Cx<'_>, acked: &Acked) {
    let highest = tcb.send_queue.highest_sacked().map_or(tcb.snd_una, |end| end.max(tcb.snd_una));
    if let Some(distance) = tcb.recovery.rack.on_delivered(acked, highest, cx.now) {
        note_reordering(tcb, cx, distance, Counter::TcpExtTCPSACKReorder);
    }
    if let Some((start, end)) = acked.duplicate {
        let segments = end.since(start).div_ceil(tcb.mss.effective());
        tcb.totals.dsack_dups = tcb.totals.dsack_dups.wrapping_add(segments);
        tcb.recovery.rack.on_duplicate(tcb.snd_una, tcb.snd_nxt);
    }
}

/// The path was seen to deliver something `distance` bytes late: so many segments behind a hole mean nothing from here on
/// (Linux: tcp_check_sack_reordering).
pub(crate) fn note_reordering(tcb: &mut Tcb, cx: &Cx<'_>, distance: u32, seen_by: Counter) {
    let segments = distance.div_ceil(tcb.mss.effective());
    let most = u32::from(cx.config.tcp_max_reordering);
    let reordering = u32::from(tcb.reordering).max(segments.min(most));
    tcb.reordering = u16::try_from(reordering).unwrap_or(u16::MAX);
    tcb.totals.reord_seen = tcb.totals.reord_seen.wrapping_add(1);
    cx.count(seen_by);
}

/// A reduction was taken back: what the needless retransmissions said of the order of arrivals is out of date. What is
/// known of the originals stays, or nothing would ever tell of the holes between those that arrived.
pub(crate) fn forget_retransmissions(tcb: &mut Tcb) {
    tcb.recovery.rack.newest = tcb.send_queue.newest_sacked_original();
    tcb.recovery.rack.rtt_ns = u64::from(tcb.rtt.srtt_us().unwrap_or(0)) * 1_000;
}

/// RFC 8985 §6.2 step 4: how much later than a lost transmission the one that proves it left.
fn reordering_window(tcb: &Tcb) -> Duration {
    let rack = &tcb.recovery.rack;
    if !rack.reordering_seen {
        let threshold = u32::from(tcb.reordering);
        let recovering = matches!(tcb.recovery.state(), CaState::Recovery | CaState::Loss);
        if recovering || tcb.send_queue.sacked_segments(tcb.mss.effective()) >= threshold {
            return Duration::ZERO;
        }
    }
    let quarter = tcb.rtt.min_rtt().unwrap_or(Duration::ZERO) / 4;
    (quarter * u32::from(rack.window_mult)).min(tcb.rtt.srtt().unwrap_or(Duration::ZERO))
}

/// What one look at the flight found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// Something was marked lost.
    pub(crate) lost: bool,
    /// How long until the next one will be, unless it arrives.
    pub(crate) wait: Option<Duration>,
}

/// RFC 8985 §6.2 step 5: marks what is lost.
pub(crate) fn detect(tcb: &mut Tcb, cx: &Cx<'_>) -> Found {
    let Some(newest) = tcb.recovery.rack.newest else { return Found::default() };
    if tcb.send_queue.sent_count() == 0 {
        return Found::default();
    }
    let patience = Duration::from_nanos(tcb.recovery.rack.rtt_ns) + reordering_window(tcb);
    let due = |entry: &Entry| {
        let this = Transmission { sent_at: entry.sent_at, end_seq: entry.end_seq() };
        // A wait of zero means lost. An entry that left later than all that arrived is never due.
        newest.is_after(&this).then(|| (entry.sent_at + patience) - cx.now)
    };
    let again = detect_retransmissions(tcb, cx, due);
    let first = detect_originals(tcb, due);
    let wait = again.wait.into_iter().chain(first.wait).min();
    Found { lost: again.lost || first.lost, wait }
}

/// Entries sent once, oldest first.
fn detect_originals(tcb: &mut Tcb, due: impl Fn(&Entry) -> Option<Duration>) -> Found {
    let mut lost = false;
    let mut index = tcb.send_queue.scan_start();
    while index < tcb.send_queue.sent_count() {
        let entry = tcb.send_queue.entry(index);
        if entry.flags.contains(EntryFlags::SACKED) {
            index = tcb.send_queue.after_sacked(index);
            continue;
        }
        if !entry.flags.intersects(EntryFlags::LOST | EntryFlags::EVER_RETRANSMITTED) {
            match due(entry) {
                Some(Duration::ZERO) => {
                    tcb.send_queue.mark_lost(index);
                    lost = true;
                }
                wait => {
                    tcb.send_queue.set_scan_start(index);
                    return Found { lost, wait };
                }
            }
        }
        index += 1;
    }
    tcb.send_queue.set_scan_start(index);
    Found { lost, wait: None }
}

/// Entries sent again, in the order of that.
fn detect_retransmissions(
    tcb: &mut Tcb,
    cx: &Cx<'_>,
    due: impl Fn(&Entry) -> Option<Duration>,
) -> Found {
    let mut lost = false;
    while let Some(index) = tcb.send_queue.oldest_retransmission() {
        match due(tcb.send_queue.entry(index)) {
            Some(Duration::ZERO) => {
                tcb.send_queue.mark_lost(index);
                cx.count(Counter::TcpExtTCPLostRetransmit);
                lost = true;
            }
            wait => return Found { lost, wait },
        }
    }
    Found { lost, wait: None }
}
