//! Fast path of the fifth step, the ACK field, for a segment that passed header prediction. The
//! segment acknowledges the only queue entry in flight, or nothing is in flight and no
//! retransmission timer runs; in both cases no loss recovery is in progress. Request-response
//! traffic and receivers of one-way data use this fast path.
//!
//! [`super::process`] is the slow path. Under the conditions checked by [`process`] most of its
//! steps change nothing, and this file contains the others; `tests::fast_path` compares the results
//! of both. Linux: the part of tcp_ack without `FLAG_SLOWPATH`, tcp_clean_rtx_queue.
//!
//! Not here: the conditions on the header (`input::is_fast_path`).

use crate::{
    base::counters::Counter,
    cx::Cx,
    input::Segment,
    segment::pacing,
    tcb::{
        Tcb, TcbFlags,
        acked::{Rated, Transmission},
        packet_cache::CacheCx,
        send_queue::entry::{Entry, EntryFlags},
        timers::RtxPurpose,
    },
    wire::seq::SeqNum,
};

/// Processes the ACK if the fast path applies. Otherwise changes nothing and returns false.
#[inline]
pub(in crate::input) fn process(tcb: &mut Tcb, segment: &Segment<'_>, cx: &mut Cx<'_>) -> bool {
    let ack = segment.header.ack;
    if ack == tcb.snd_una {
        let is_idle = tcb.send_queue.sent_count() == 0 && tcb.timers.rtx().is_none();
        if !is_idle || !tcb.recovery.is_quiet() {
            return false;
        }
    } else if !is_predicted(tcb, ack) {
        return false;
    }
    tcb.flags -= TcbFlags::MORE;
    note_app_limited(tcb);
    if segment.header.seq.gt(tcb.snd_wl1) || ack != tcb.snd_una {
        tcb.snd_wl1 = segment.header.seq;
    }
    if ack != tcb.snd_una
        && let Some(entry) = tcb.send_queue.take_lone()
    {
        on_delivered(tcb, cx, &entry);
        if let Some(packet) = entry.packet {
            let (pool, _, cache_cx) = CacheCx::split(cx);
            tcb.packet_cache.put_tx(pool, &cache_cx, packet);
        }
        tcb.timers.stop_rtx();
        tcb.grow_sndbuf(cx);
    }
    super::note_alive(tcb, cx.now);
    true
}

/// Like [`delivery_rate::check_app_limited`](crate::tcb::delivery_rate::check_app_limited), for a
/// flight without SACKed or lost segments.
#[inline]
fn note_app_limited(tcb: &mut Tcb) {
    let in_flight = tcb.snd_nxt.since(tcb.snd_una);
    let unsent = tcb.send_queue.write_seq().since(tcb.snd_nxt);
    if unsent < tcb.mss.effective() && in_flight < tcb.congestion.cwnd() {
        tcb.rate.mark_app_limited(in_flight);
    }
}

/// Returns whether the fast path applies to an ACK of new data: one entry without FIN, sent once,
/// is in flight, none of its bytes or later ones were reported before, and the ACK covers it. SACK
/// is agreed, and the peer's window is no new maximum. No loss recovery or probe is in progress, no
/// path MTU search exists, no reduction has been proved spurious, no urgent data is pending, the
/// persist timer does not run, and TCP Small Queues did not end the last transmission. The
/// congestion window was not full, so it does not grow, and the algorithm counts no delivered
/// bytes.
#[inline]
fn is_predicted(tcb: &Tcb, ack: SeqNum) -> bool {
    const WATCHED: TcbFlags = TcbFlags::SACK
        .union(TcbFlags::URGENT_OUT)
        .union(TcbFlags::HOST_LIMITED)
        .union(TcbFlags::NO_FAST_PATH);
    const ODD: EntryFlags = EntryFlags::FIN
        .union(EntryFlags::LOST)
        .union(EntryFlags::EVER_RETRANSMITTED)
        .union(EntryFlags::SACKED);
    let fack = tcb.recovery.rack.fack();
    ack == tcb.snd_nxt
        && tcb.flags & WATCHED == TcbFlags::SACK
        && tcb
            .send_queue
            .lone()
            .is_some_and(|entry| !entry.flags.intersects(ODD) && fack.le(entry.seq))
        && tcb.recovery.is_quiet()
        && tcb.mtu_probing.is_none()
        && tcb.snd_wnd <= tcb.mss.max_window()
        && tcb.congestion.is_unused()
        && tcb.timers.rtx() != Some(RtxPurpose::Persist)
}

/// Updates the connection for the delivery of the only entry in flight, which the caller has
/// removed from the queue.
#[inline]
fn on_delivered(tcb: &mut Tcb, cx: &Cx<'_>, entry: &Entry) {
    let (now, end_seq) = (cx.now, entry.end_seq());
    tcb.snd_una = end_seq;
    tcb.totals.bytes_acked += u64::from(entry.len);
    tcb.totals.on_progress(now);
    let rtt_us = u32::try_from(now.micros_since(entry.sent_at)).unwrap_or(u32::MAX);
    tcb.rtt.on_sample_us(now, rtt_us, tcb.snd_una, tcb.snd_nxt);
    let transmission = Transmission { sent_at: entry.sent_at, end_seq };
    tcb.recovery.on_predicted(transmission, now);
    tcb.congestion.pause(now);
    let rated = Rated {
        transmission,
        snapshot: entry.snapshot,
        app_limited: entry.flags.contains(EntryFlags::APP_LIMITED),
        retransmission: false,
    };
    let lost = tcb.send_queue.lost_total();
    let _ = tcb.rate.on_delivered(now, entry.len, Some(&rated), lost, tcb.rtt.min_rtt_us());
    let mss = tcb.mss.effective();
    let segments = if entry.len <= mss { 1 } else { entry.len.div_ceil(mss) };
    cx.counters.add(Counter::TcpExtTCPDelivered, u64::from(segments));
    let _ = tcb.send_queue.take_excessive_loss();
    pacing::update(tcb, cx);
}
