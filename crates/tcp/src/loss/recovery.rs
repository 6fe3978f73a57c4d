//! Loss recovery: the reaction of the congestion window to a loss, and loss detection without SACK.
//!
//! Above: `input::ack` and the retransmission timer. Below: the marks of entries in `send_queue`.
//! RFC 5681 §3.2, RFC 6582 (NewReno), RFC 3042 (limited transmit), RFC 5827 (early retransmit);
//! Linux: tcp_fastretrans_alert, tcp_enter_loss.
//!
//! | state | event | next state |
//! |---|---|---|
//! | Open | A duplicate ACK or a SACK block reports data behind a hole | Disorder |
//! | Disorder | The hole is filled | Open |
//! | Open, Disorder | An ECN echo arrives, or a queue of this host drops a packet | CWR |
//! | Open, Disorder, CWR | A loss is detected | Recovery |
//! | Open, Disorder, CWR | Only a path MTU probe, or only packets above the path MTU are lost | Loss |
//! | all | The retransmission timer expires | Loss |
//! | CWR, Recovery, Loss | All data in flight at the entry (`recover`) is acknowledged | Open |
//! | Recovery, Loss | The loss proves wrong | Open |
//!
//! With SACK, Disorder takes the place of the next state Open while the peer reports a hole.
//!
//! A detected loss marks entries of the send queue as lost; `retransmit` sends marked entries as
//! the window allows. With SACK, RACK marks them (`recovery/sack.rs`). Without SACK, as many
//! duplicate ACKs as the reordering degree of the path (at first 3) indicate a loss.
//!
//! An ECN echo lowers the window without a loss: the state is CWR until the data in flight is
//! acknowledged (RFC 3168 §6.1.2). A loss during CWR moves to Recovery or Loss without a second
//! reduction.
//!
//! Not here: the fields of the state (`tcb::recovery`), the size of the reduction (`congestion`),
//! the timer (`retransmit`).

mod sack;
mod undo;

pub(crate) use sack::on_reorder_timer;
pub(crate) use undo::on_retransmitted;

use core::time::Duration;

use pkt::Instant;

use crate::{
    base::counters::Counter,
    congestion::{AckSample, SlowStartEnd},
    cx::{Cx, config::TcpConfig},
    loss::rack,
    segment::pacing,
    tcb::{
        Tcb, TcbFlags,
        acked::Acked,
        ecn, mtu_probe,
        recovery::{CaState, Frto, Undo},
    },
};

/// Processes an ACK. `acked` has its facts; `duplicate` says whether it is a duplicate ACK by
/// RFC 5681's definition. Returns the time until the reordering timer is due, if it must run.
pub(crate) fn on_ack(
    tcb: &mut Tcb,
    cx: &mut Cx<'_>,
    acked: &Acked,
    rtt: Option<Duration>,
    duplicate: bool,
) -> Option<Duration> {
    let progress = acked.bytes > 0;
    if progress {
        tcb.recovery.timeouts = 0;
    }
    if tcb.flags.contains(TcbFlags::SACK) {
        return sack::on_ack(tcb, cx, acked, rtt);
    }
    match tcb.recovery.state {
        CaState::Recovery | CaState::Loss if undo::is_original(tcb, acked) => {
            undo_reduction(tcb, cx);
        }
        CaState::Cwr if is_over(tcb) => {
            tcb.congestion.on_recovery_complete();
            open(tcb);
        }
        CaState::Open | CaState::Disorder if acked.marked => {
            enter_cwr(tcb);
            tcb.congestion.on_recovery_ack(acked.bytes, tcb.pipe(), progress);
        }
        CaState::Cwr if progress => {
            tcb.recovery.dup_acks = 0;
            tcb.congestion.on_recovery_ack(acked.bytes, tcb.pipe(), true);
        }
        CaState::Open | CaState::Disorder if progress => {
            let fresh = not_counted_by_duplicates(tcb, acked.bytes);
            tcb.recovery.dup_acks = 0;
            tcb.recovery.state = CaState::Open;
            grow(tcb, cx, fresh, rtt);
        }
        CaState::Open | CaState::Disorder | CaState::Cwr if duplicate => on_dup_ack(tcb, cx),
        CaState::Recovery if tcb.snd_una.ge(tcb.recovery.recover) => {
            let flight = tcb.snd_nxt.since(tcb.snd_una);
            tcb.congestion.on_exit_recovery(flight);
            open(tcb);
        }
        CaState::Recovery if progress => on_partial_ack(tcb, cx, acked.bytes),
        CaState::Recovery if duplicate => {
            count_duplicate(tcb, cx);
            tcb.congestion.on_dup_ack();
        }
        CaState::Loss if progress => {
            grow(tcb, cx, acked.bytes, rtt);
            if tcb.snd_una.ge(tcb.recovery.recover) {
                tcb.congestion.on_recovery_complete();
                open(tcb);
            }
        }
        _ => {}
    }
    None
}

/// Ends the recovery and restores the window: the segment that counted as lost has arrived.
fn undo_reduction(tcb: &mut Tcb, cx: &Cx<'_>) {
    let counter = if tcb.recovery.state == CaState::Loss {
        Counter::TcpExtTCPLossUndo
    } else {
        Counter::TcpExtTCPFullUndo
    };
    undo::revert(tcb, cx, counter);
    open(tcb);
}

/// Processes a partial ACK (RFC 6582 §3.2 step 3): the next hole begins at SND.UNA.
fn on_partial_ack(tcb: &mut Tcb, cx: &mut Cx<'_>, acked_bytes: u32) {
    let flight = tcb.snd_nxt.since(tcb.snd_una);
    tcb.congestion.on_partial_ack(acked_bytes, flight);
    mark_head_lost(tcb, cx);
}

/// Returns whether all data that was in flight at the start of the recovery is acknowledged. CWR
/// ends one byte later, when the segment with the CWR flag is acknowledged (RFC 3168 §6.1.2):
/// otherwise the echoes until then would reduce the window again.
fn is_over(tcb: &Tcb) -> bool {
    match tcb.recovery.state {
        CaState::Cwr => tcb.snd_una.gt(tcb.recovery.recover),
        _ => tcb.snd_una.ge(tcb.recovery.recover),
    }
}

/// Lets the congestion window grow after an ACK, and counts the end of slow start if HyStart has
/// detected it.
fn grow(tcb: &mut Tcb, cx: &Cx<'_>, acked_bytes: u32, rtt: Option<Duration>) {
    let detect = cx.config.hystart_detect;
    let watched = tcb.congestion.detects_slow_start_end();
    let held = watched && tcb.flags.contains(TcbFlags::HOST_LIMITED);
    let sample = AckSample {
        now: cx.now,
        acked_bytes,
        rtt,
        snd_una: tcb.snd_una,
        snd_nxt: tcb.snd_nxt,
        held_min_rtt: tcb.rtt.min_rtt().filter(|_| held),
        train_max: if watched && detect.train() { pacing::train_max(tcb, cx) } else { None },
        watches_delay: detect.delay(),
    };
    let Some(end) = tcb.congestion.on_ack(&sample) else { return };
    let (detected, cwnd) = match end {
        SlowStartEnd::Delay => {
            (Counter::TcpExtTCPHystartDelayDetect, Counter::TcpExtTCPHystartDelayCwnd)
        }
        SlowStartEnd::Train => {
            (Counter::TcpExtTCPHystartTrainDetect, Counter::TcpExtTCPHystartTrainCwnd)
        }
    };
    cx.count(detected);
    cx.counters.add(cwnd, u64::from(tcb.congestion.cwnd_segments()));
}

/// Returns the acknowledged bytes that no duplicate ACK has counted yet: each duplicate stood for
/// one delivered segment (Linux: tcp_remove_reno_sacks).
fn not_counted_by_duplicates(tcb: &Tcb, acked_bytes: u32) -> u32 {
    let mss = tcb.mss.effective();
    let counted = tcb.recovery.dup_acks.saturating_mul(mss);
    acked_bytes.saturating_sub(counted).max(mss.min(acked_bytes))
}

fn open(tcb: &mut Tcb) {
    tcb.recovery.state = CaState::Open;
    tcb.recovery.dup_acks = 0;
    tcb.send_queue.clear_marks();
}

/// Counts a duplicate ACK: a segment has left the network. More duplicates than segments behind the
/// hole mean that the path reorders or duplicates, so the reordering degree is raised to the
/// number of segments in flight (Linux: tcp_check_reno_reordering).
fn count_duplicate(tcb: &mut Tcb, cx: &Cx<'_>) {
    let flight = tcb.snd_nxt.since(tcb.snd_una);
    let packets = u32::try_from(tcb.send_queue.sent_count()).unwrap_or(u32::MAX);
    let segments = flight.div_ceil(tcb.mss.effective()).max(packets);
    if tcb.recovery.dup_acks + 1 < segments {
        tcb.recovery.dup_acks += 1;
        return;
    }
    rack::note_reordering(tcb, cx, flight, Counter::TcpExtTCPRenoReorder);
}

/// Processes a duplicate ACK (RFC 5681 §3.2 and RFC 6582 §3.2 steps 1–2).
fn on_dup_ack(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    count_duplicate(tcb, cx);
    let cwr = tcb.recovery.state == CaState::Cwr;
    if !cwr {
        tcb.recovery.state = CaState::Disorder;
    }
    if tcb.recovery.dup_acks < dup_ack_threshold(tcb) {
        return;
    }
    if tcb.snd_una.le(tcb.recovery.recover) && !cwr {
        // These duplicates follow the end of a recovery, whose retransmissions caused them
        // (RFC 6582 §4.1).
        return;
    }
    if is_mtu_probe_loss(tcb, cx) {
        return;
    }
    let mss = tcb.mss.effective();
    let flight = tcb.snd_nxt.since(tcb.snd_una);
    let limited = tcb.recovery.limited_transmit_segments() * mss;
    tcb.recovery.recover = tcb.snd_nxt;
    tcb.recovery.since = cx.now;
    tcb.recovery.state = CaState::Recovery;
    tcb.recovery.undo = Some(Undo::new(tcb.snd_una));
    // `hole_end` must differ from SND.UNA, so that the first hole of this recovery starts with one
    // segment.
    tcb.recovery.hole_end = tcb.snd_una - 1;
    tcb.congestion.on_enter_recovery(flight.saturating_sub(limited).max(mss));
    ecn::on_reduced(tcb);
    cx.count(Counter::TcpExtTCPRenoRecovery);
    mark_head_lost(tcb, cx);
}

/// Reduces the window on an ECN echo, once for all data in flight (RFC 3168 §6.1.2).
fn enter_cwr(tcb: &mut Tcb) {
    tcb.recovery.state = CaState::Cwr;
    tcb.recovery.recover = tcb.snd_nxt;
    tcb.recovery.probe = None;
    // Later evidence cannot refute an ECN mark, so there is no undo.
    tcb.recovery.undo = None;
    tcb.congestion.on_mark();
    ecn::on_reduced(tcb);
}

impl Tcb {
    /// Reduces the window because a queue of this host dropped a packet: as for an ECN echo, once
    /// for all data in flight. Loss detection finds the dropped data as usual. Linux:
    /// `tcp_enter_cwr` after `NET_XMIT_DROP` or `NET_XMIT_CN`.
    pub fn on_local_congestion(&mut self) {
        if matches!(self.recovery.state, CaState::Open | CaState::Disorder) {
            enter_cwr(self);
        }
    }

    /// Like [`on_local_congestion`](Self::on_local_congestion), for a queue that holds packets
    /// until their departure times: packets with departure time `from` or later were dropped, so
    /// pacing reuses these times. Linux: `tcp_update_skb_after_send` only when `__tcp_transmit_skb`
    /// has succeeded.
    pub fn on_local_drop(&mut self, from: Instant) {
        self.pacing.cancel_departures(from);
        self.on_local_congestion();
    }
}

/// Returns the number of duplicate ACKs that indicate a loss: the reordering degree of the path. If
/// no more packets than that are in flight and no new data is queued, the number is one per packet
/// after the first (early retransmit, RFC 5827 §3; counted in packets, because a superframe causes
/// one ACK). A single segment in flight keeps the full threshold: no segment follows it that could
/// cause a duplicate.
fn dup_ack_threshold(tcb: &Tcb) -> u32 {
    let reordering = u32::from(tcb.reordering);
    let in_flight = u32::try_from(tcb.send_queue.sent_count()).unwrap_or(u32::MAX);
    let one_segment = tcb.snd_nxt.since(tcb.snd_una) <= tcb.mss.effective();
    if in_flight > reordering || one_segment || tcb.send_queue.first_unsent().is_some() {
        return reordering;
    }
    in_flight.saturating_sub(1).max(1)
}

/// Marks the hole at SND.UNA lost: one segment, or twice as many as before if the last
/// retransmission filled only a part of the hole.
///
/// Differs from RFC 6582: if a virtual device loses a whole superframe (a packet of several
/// segments), the hole has dozens of segments, and one segment per round trip would take seconds to
/// fill it. Therefore a partial ACK that ends exactly at the end of the last retransmission doubles
/// the size of the next one.
fn mark_head_lost(tcb: &mut Tcb, cx: &mut Cx<'_>) {
    let Some(head) = tcb.send_queue.head() else { return };
    let len = head.len;
    let mss = tcb.mss.effective();
    let segments = &mut tcb.recovery.hole_segments;
    *segments =
        if tcb.snd_una == tcb.recovery.hole_end { segments.saturating_mul(2).max(1) } else { 1 };
    let hole = mss.saturating_mul(u32::from(*segments));
    if len > hole && !tcb.send_queue.split(cx.pool, 0, hole) {
        return;
    }
    tcb.recovery.hole_end = tcb.snd_una + hole.min(len);
    tcb.send_queue.mark_lost(0);
}

/// Returns whether only a probe of the path MTU was lost. Then the segments keep their size, and
/// the window is not reduced.
fn is_mtu_probe_loss(tcb: &mut Tcb, cx: &Cx<'_>) -> bool {
    let failed = mtu_probe::probe_failed(tcb, cx);
    if failed {
        enter_resize(tcb);
    }
    failed
}

/// Enters Loss without a reduction: the path accepts only smaller segments, so the large ones are
/// retransmitted, and there was no congestion.
pub(crate) fn enter_resize(tcb: &mut Tcb) {
    if tcb.recovery.state.is_calm() || tcb.recovery.state == CaState::Cwr {
        tcb.recovery.state = CaState::Loss;
        tcb.recovery.recover = tcb.snd_nxt;
        tcb.recovery.undo = None;
        tcb.recovery.frto = Frto::Off;
        tcb.recovery.probe = None;
    }
}

/// Enters Loss after a timeout: all data in flight counts as lost, and the window is one segment
/// (RFC 5681 §3.1).
pub(crate) fn enter_loss(tcb: &mut Tcb, config: &TcpConfig) {
    let repeated = match tcb.recovery.state {
        CaState::Open | CaState::Disorder => false,
        CaState::Cwr | CaState::Recovery | CaState::Loss => tcb.snd_una.lt(tcb.recovery.recover),
    };
    tcb.congestion.on_rto(repeated);
    ecn::on_reduced(tcb);
    let calm = tcb.recovery.state.is_calm();
    let known = tcb.send_queue.sacked_segments(tcb.mss.effective());
    if calm && known >= u32::from(config.tcp_reordering) {
        // Enough segments behind the hole were SACKed, so the reordering degree was too high
        // (Linux: tcp_enter_loss).
        tcb.reordering = tcb.reordering.min(config.tcp_reordering.into());
    }
    if !repeated {
        tcb.recovery.undo = Some(Undo::new(tcb.snd_una));
    }
    // A first timeout during a reduction or recovery starts no F-RTO: retransmissions may already
    // be in flight, and F-RTO could not distinguish their ACKs from those of the originals.
    let frto = config.tcp_frto != 0 && tcb.flags.contains(TcbFlags::SACK);
    tcb.recovery.frto =
        if frto && (calm || tcb.recovery.timeouts > 0) { Frto::Head } else { Frto::Off };
    tcb.recovery.state = CaState::Loss;
    tcb.recovery.dup_acks = 0;
    tcb.recovery.probe = None;
    tcb.recovery.recover = tcb.snd_nxt;
    tcb.send_queue.mark_all_lost();
}
