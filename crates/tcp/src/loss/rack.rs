//! RACK: a transmission is lost if one that was sent sufficiently later has been delivered.
//!
//! Above: `recovery::sack` and the reordering timer. Below: the marks of entries in `send_queue`.
//! RFC 8985 §6; Linux: tcp_recovery.c.
//!
//! RACK compares times instead of counting duplicates, so that one rule detects lost
//! retransmissions, losses near the end of a flight, and losses in small flights. The reordering
//! window, the time that RACK allows for reordering, adapts to the path. At first it is a quarter
//! of the minimum RTT. It grows in every round in which the peer reports a needless retransmission,
//! up to the smoothed RTT. As long as no reordering was seen, the window is zero in recovery and
//! whenever enough segments are SACKed.
//!
//! Transmissions are examined in the order of sending, in two lists: the entries sent once, which
//! the send queue already holds in that order, and `send_queue`'s list of retransmissions. Each
//! scan stops at the first entry that is not yet lost, so that an ACK costs one step per detected
//! loss.
//!
//! Not here: the fields of the state (`tcb::rack`), tail loss probes (`tlp`), the reaction of the
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

/// Updates the RACK state from an ACK.
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

/// Raises the reordering degree (`Tcb::reordering`, the number of segments behind a hole that
/// indicate a loss): the path delivered data `distance` bytes late, so the same number of segments
/// behind a hole does not indicate a loss (Linux: tcp_check_sack_reordering).
pub(crate) fn note_reordering(tcb: &mut Tcb, cx: &Cx<'_>, distance: u32, seen_by: Counter) {
    let segments = distance.div_ceil(tcb.mss.effective());
    let most = u32::from(cx.config.tcp_max_reordering);
    let reordering = u32::from(tcb.reordering).max(segments.min(most));
    tcb.reordering = u16::try_from(reordering).unwrap_or(u16::MAX);
    tcb.totals.reord_seen = tcb.totals.reord_seen.wrapping_add(1);
    cx.count(seen_by);
}

/// Discards the delivery times of retransmissions after an undo, because needless retransmissions
/// say nothing about the order of delivery. The newest delivered original stays: without it RACK
/// would not detect the holes between delivered originals.
pub(crate) fn forget_retransmissions(tcb: &mut Tcb) {
    tcb.recovery.rack.newest = tcb.send_queue.newest_sacked_original();
    tcb.recovery.rack.rtt_ns = u64::from(tcb.rtt.srtt_us().unwrap_or(0)) * 1_000;
}

/// Returns the reordering window: how much later than a lost transmission the delivered one must
/// have been sent (RFC 8985 §6.2 step 4).
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

/// Result of one scan of the flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// Whether at least one entry was marked lost.
    pub(crate) lost: bool,
    /// Time until the next entry counts as lost, unless it is delivered.
    pub(crate) wait: Option<Duration>,
}

/// Marks lost entries (RFC 8985 §6.2 step 5).
pub(crate) fn detect(tcb: &mut Tcb, cx: &Cx<'_>) -> Found {
    let Some(newest) = tcb.recovery.rack.newest else { return Found::default() };
    if tcb.send_queue.sent_count() == 0 {
        return Found::default();
    }
    let delay = Duration::from_nanos(tcb.recovery.rack.rtt_ns) + reordering_window(tcb);
    let due = |entry: &Entry| {
        let this = Transmission { sent_at: entry.sent_at, end_seq: entry.end_seq() };
        // A remaining wait of zero means lost. An entry sent after every delivered transmission is
        // never due.
        newest.is_after(&this).then(|| (entry.sent_at + delay) - cx.now)
    };
    let again = detect_retransmissions(tcb, cx, due);
    let first = detect_originals(tcb, due);
    let wait = again.wait.into_iter().chain(first.wait).min();
    Found { lost: again.lost || first.lost, wait }
}

/// Scans the entries sent once, oldest first.
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

/// Scans the retransmitted entries in the order of their retransmission.
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
